"""Lower bounds on ε from an adversary's guesses, which hold with a given confidence.

There are two kinds of audits. In *many runs*, one canary is included in or excluded from each run, and `ErrorCounts`
counts wrong guesses at a threshold that was fixed beforehand. In *one run*, each of many canaries is included with
probability ½, and `OneRunGuesses` counts correct guesses.

`ScoreGap` compares the scores themselves, where the claim is that of a Gaussian mechanism.

References: Nasr et al. 2021 (Clopper–Pearson); Nasr et al. 2023 and Dong, Roth, Su 2022 (Gaussian); Steinke, Nasr,
Jagielski 2023 (one run); Mahloujifar, Melis, Chaudhuri 2024 (one run, f-DP).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import expit
from scipy.stats import beta, binom, chi2, jarque_bera, norm

from tacit.errors import expect, positive, within

Scores = NDArray[np.float64]
PrivacyProfile = Callable[[float], float]  # the claimed δ as a function of ε
CONFIDENCE = 0.95
MAX_EPSILON = 100.0  # lower bounds are cut off here
MAX_MU = 14.0  # of μ-Gaussian differential privacy: the ε of larger μ is above that for any δ of interest
NORMAL = 1e-3  # scores whose skewness and kurtosis have a smaller p-value under normality are not taken as normal
CONTRADICTED = 3.0  # standard errors between a known difference of means and the observed one
RESAMPLES = 400  # of the bootstrap


@dataclass(frozen=True)
class ErrorCounts:
    """Wrong guesses of many runs at a fixed threshold.

    Attributes:
        false_negatives: runs with the canary that were guessed to be without it.
        included: runs with the canary.
        false_positives: runs without the canary that were guessed to be with it.
        excluded: runs without the canary.
        confidence: probability with which both bounds of `rates` hold together.
    """

    false_negatives: int
    included: int
    false_positives: int
    excluded: int
    confidence: float = CONFIDENCE

    def __post_init__(self) -> None:
        for name, errors, runs in (
            ("false_negatives", self.false_negatives, self.included),
            ("false_positives", self.false_positives, self.excluded),
        ):
            expect(0 <= errors <= runs and runs >= 1, f"0 <= {name}={errors} <= {runs}")
        within("(0.5, 1)", confidence=self.confidence)

    @classmethod
    def at(cls, threshold: float, included: Scores, excluded: Scores, confidence: float = CONFIDENCE) -> "ErrorCounts":
        """Count errors if every score of at least the threshold is guessed to be of a run with the canary."""
        false_negatives, false_positives = int((included < threshold).sum()), int((excluded >= threshold).sum())
        return cls(false_negatives, len(included), false_positives, len(excluded), confidence)

    @property
    def rates(self) -> tuple[float, float]:
        """Clopper–Pearson upper bounds on the false negative rate and the false positive rate."""
        alpha = (1 - self.confidence) / 2
        return (
            _upper_bound(self.false_negatives, self.included, alpha),
            _upper_bound(self.false_positives, self.excluded, alpha),
        )

    def epsilon_lower_bound(self, delta: float) -> float:
        """The largest ε that these errors refute at this δ.

        Formal guarantees: holds for any mechanism, with probability at least `confidence`.

        Example:
            >>> counts = ErrorCounts(false_negatives=10, included=1000, false_positives=10, excluded=1000)
            >>> round(counts.epsilon_lower_bound(1e-5), 3)
            3.982
        """
        return _epsilon_at(*self.rates, delta, gaussian=False)

    def gaussian_lower_bound(self, delta: float) -> float:
        """The ε at this δ of the Gaussian mechanism with the most noise that these errors do not refute.

        Formal guarantees: tighter than `epsilon_lower_bound`, but holds only for mechanisms with Gaussian noise.
        """
        return _epsilon_at(*self.rates, delta, gaussian=True)

    def refutes(self, profile: PrivacyProfile) -> bool:
        """Whether these errors contradict a claimed profile at any ε: fewer guesses are wrong than it allows."""
        fnr, fpr = self.rates
        for epsilon in np.linspace(0.01, max(2 * self.epsilon_lower_bound(0.0), 0.5), 40):
            needed = delta_needed(fnr, fpr, epsilon)
            if needed > 0 and needed > profile(epsilon):  # profiles can take long to evaluate
                return True
        return False

    def bootstrap_lower_bound(self, delta: float, *, gaussian: bool) -> float:
        """The ε that all but one in twenty resamplings of the runs exceed.

        An estimate and not a bound: a rate of zero stays zero in every resampling, and counts as half an error.
        """
        rng = np.random.default_rng(0)
        resampled = (
            (rng.binomial(runs, errors / runs, RESAMPLES) + 0.5 * (errors == 0)) / runs
            for errors, runs in ((self.false_negatives, self.included), (self.false_positives, self.excluded))
        )
        rates = [(min(max(a, 1e-9), 1 - 1e-9), min(max(b, 1e-9), 1 - 1e-9)) for a, b in zip(*resampled, strict=True)]
        return float(np.quantile([_epsilon_at(fnr, fpr, delta, gaussian=gaussian) for fnr, fpr in rates], 0.05))

    def __str__(self) -> str:
        return (
            f"wrong for {self.false_negatives} of {self.included} runs with the canary "
            f"and {self.false_positives} of {self.excluded} without"
        )


@dataclass(frozen=True)
class ScoreGap:
    """How far apart scores with and without the canary are, for scores that are linear in what was released.

    Attributes:
        mu: the difference of the means over the standard deviation.
        included: runs with the canary.
        excluded: runs without it.
        normal: whether the scores of both kinds can be taken as normally distributed.
        confidence: probability with which `mu_lower_bound` holds.
        exact: whether the difference of the means is known, and not estimated.
    """

    mu: float
    included: int
    excluded: int
    normal: bool
    confidence: float = CONFIDENCE
    exact: bool = False

    @classmethod
    def of(
        cls, included: Scores, excluded: Scores, confidence: float = CONFIDENCE, moved: float | None = None
    ) -> "ScoreGap":
        """The gap between the scores of runs with and without the canary.

        `moved` is the difference of their means, where runs with the same keys have shown it. It is not used if the
        scores contradict it.
        """
        freedom = len(included) + len(excluded) - 2
        spread = math.sqrt((included.var() * len(included) + excluded.var() * len(excluded)) / freedom)
        gap = float(included.mean() - excluded.mean())
        error = spread * math.sqrt(1 / len(included) + 1 / len(excluded))
        exact = moved is not None and abs(gap - moved) < CONTRADICTED * error
        gap = moved if exact and moved is not None else gap
        constant = spread <= 1e-6 * abs(gap) and gap != 0  # two equal constants show nothing
        mu = math.copysign(1e6, gap) if constant else gap / max(spread, 1e-300)
        normal = constant or all(_is_normal(scores) for scores in (included, excluded))
        return cls(mu, len(included), len(excluded), normal, confidence, exact)

    @property
    def mu_lower_bound(self) -> float:
        """A lower bound on μ, from the large-sample distribution of the noncentral t statistic.

        Formal guarantees: for at least a hundred runs, up to the error of that approximation, and only if what is
        released is Gaussian with equal variances. It can therefore refute a claim to be so. If the difference of the
        means is known, the bound follows from the χ² distribution of the variance and holds for any number of runs.
        """
        freedom = self.included + self.excluded - 2
        if self.exact:
            return max(self.mu * math.sqrt(float(chi2.ppf(1 - self.confidence, freedom)) / freedom), 0.0)
        error = math.sqrt(1 / self.included + 1 / self.excluded + self.mu**2 / (2 * freedom))
        return max(self.mu - float(norm.ppf(self.confidence)) * error, 0.0)

    def epsilon_lower_bound(self, delta: float) -> float:
        """The ε of the Gaussian mechanism with that μ; 0 if scores are not normal."""
        bound = min(self.mu_lower_bound, MAX_MU)
        return epsilon_of_gaussian(bound, delta) if self.normal and bound > 0 else 0.0


def delta_needed(fnr: float, fpr: float, epsilon: float) -> float:
    """The least δ at this ε of a mechanism that permits guesses with these error rates."""
    ratio = math.exp(min(epsilon, 700.0))
    return max(1 - fnr - ratio * fpr, 1 - fpr - ratio * fnr)


def mu_of_rates(fnr: float, fpr: float) -> float:
    """The μ of the Gaussian mechanism with the most noise that permits guesses with these error rates."""
    return float(norm.isf(fpr) - norm.ppf(fnr))


def epsilon_of_gaussian(mu: float, delta: float) -> float:
    """The ε of μ-Gaussian differential privacy at this δ (Dong, Roth, Su 2022, Corollary 1).

    Example:
        >>> round(epsilon_of_gaussian(1.0, 1e-5), 3)
        4.377
    """
    positive(mu=mu)
    within("(0, 1)", delta=delta)

    def log_excess(epsilon: float) -> float:
        first = norm.logcdf(mu / 2 - epsilon / mu)
        second = epsilon + norm.logcdf(-mu / 2 - epsilon / mu)
        if second >= first:  # up to floating point
            return -math.inf
        return float(first + np.log1p(-math.exp(second - first))) - math.log(delta)

    if log_excess(1e-9) <= 0:
        return 0.0
    return MAX_EPSILON if log_excess(MAX_EPSILON) >= 0 else float(brentq(log_excess, 1e-9, MAX_EPSILON, xtol=1e-6))


@dataclass(frozen=True)
class OneRunGuesses:
    """Guesses about the canaries of one run; the adversary may abstain on uncertain ones.

    Attributes:
        canaries: number of canaries, each included with probability ½.
        guesses: number of canaries about which a guess was made.
        correct: number of correct guesses.
        confidence: probability with which `epsilon_lower_bound` holds.
    """

    canaries: int
    guesses: int
    correct: int
    confidence: float = CONFIDENCE

    def __post_init__(self) -> None:
        expect(
            0 <= self.correct <= self.guesses <= self.canaries,
            f"correct={self.correct} <= guesses={self.guesses} <= canaries={self.canaries}",
        )

    def p_value(self, epsilon: float, delta: float) -> float:
        """Upper bound on the probability of this many correct guesses in an (ε, δ)-private run (Theorem 5.2)."""
        q = float(expit(epsilon))
        tail = float(binom.sf(self.correct - 1, self.guesses, q))
        if delta == 0:
            return tail
        steps = np.arange(1, self.correct + 1)
        slopes = (binom.sf(self.correct - steps - 1, self.guesses, q) - tail) / steps
        return min(tail + 2 * self.canaries * delta * float(slopes.max(initial=0.0)), 1.0)

    def epsilon_lower_bound(self, delta: float) -> float:
        """The largest ε that these guesses refute at this δ.

        Formal guarantees: holds for any mechanism, with probability at least `confidence`.

        Example:
            >>> round(OneRunGuesses(canaries=1000, guesses=200, correct=180).epsilon_lower_bound(1e-5), 3)
            1.796
        """
        alpha = 1 - self.confidence
        if self.p_value(0.0, delta) > alpha:
            return 0.0
        if self.p_value(MAX_EPSILON, delta) <= alpha:
            return MAX_EPSILON
        return float(brentq(lambda epsilon: self.p_value(epsilon, delta) - alpha, 0.0, MAX_EPSILON, xtol=1e-6))

    def refutes_gaussian(self, mu: float) -> bool:
        """Whether these guesses refute μ-Gaussian differential privacy (Mahloujifar et al. 2024, Algorithm 3).

        The recursion bounds, from the highest count of correct guesses downwards, the probability r of a correct and h
        of a wrong guess under each count; together they cannot exceed the fraction of canaries that are guessed.
        """
        alpha = 1 - self.confidence
        r, h = alpha * self.correct / self.canaries, alpha * (self.guesses - self.correct) / self.canaries
        for count in range(self.correct - 1, -1, -1):
            wrong = max(h, float(norm.cdf(norm.ppf(r) - mu)))
            if wrong == h:
                break
            r, h = min(r + count / (self.guesses - count) * (wrong - h), 1.0), wrong
        return r + h > self.guesses / self.canaries

    def gaussian_lower_bound(self, delta: float) -> float:
        """The ε at this δ of the Gaussian mechanism with the most noise that these guesses do not refute.

        Formal guarantees: holds for mechanisms with Gaussian noise, with probability at least `confidence`.
        """
        low, high = 0.0, MAX_MU
        if not self.refutes_gaussian(1e-6):
            return 0.0
        while high - low > 1e-4:
            middle = (low + high) / 2
            low, high = (middle, high) if self.refutes_gaussian(middle) else (low, middle)
        return epsilon_of_gaussian(low, delta) if low > 0 else 0.0

    def lower_bounds(self, delta: float, *, gaussian: bool) -> dict[str, float]:
        """Lower bounds on ε by name; with `gaussian`, also the one that holds for Gaussian noise only."""
        bounds = {"one run": self.epsilon_lower_bound(delta)}
        return {**bounds, "one run, Gaussian": self.gaussian_lower_bound(delta)} if gaussian else bounds

    def refutes(self, profile: PrivacyProfile) -> bool:
        """Guesses of one run are compared with ε at a single δ only."""
        return False

    def __str__(self) -> str:
        return f"{self.correct} of {self.guesses} correct, for {self.canaries} canaries"


def _upper_bound(errors: int, trials: int, alpha: float) -> float:
    return 1.0 if errors == trials else float(beta.ppf(1 - alpha, errors + 1, trials - errors))


def _epsilon_at(fnr: float, fpr: float, delta: float, *, gaussian: bool) -> float:
    """The ε that these error rates refute: for any mechanism, or for Gaussian ones."""
    if not gaussian:
        return max(_log_ratio(1 - fnr - delta, fpr), _log_ratio(1 - fpr - delta, fnr))
    mu = mu_of_rates(fnr, fpr)
    return epsilon_of_gaussian(min(mu, MAX_MU), delta) if mu > 0 else 0.0


def _is_normal(scores: Scores) -> bool:
    """The test of Jarque and Bera, which looks at skewness and kurtosis."""
    if len(scores) < 20 or float(scores.std()) <= 1e-6 * abs(float(scores.mean())):
        return False
    return float(jarque_bera(scores).pvalue) > NORMAL


def _log_ratio(correct: float, wrong: float) -> float:
    return max(math.log(correct / wrong), 0.0) if correct > 0 else 0.0
