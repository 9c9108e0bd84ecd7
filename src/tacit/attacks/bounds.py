"""Lower bounds on ε from an adversary's guesses, which hold with a given confidence.

There are two kinds of audits. In *many runs*, one canary is included in or excluded from each run, and `ErrorCounts`
counts wrong guesses at a threshold that was fixed beforehand. In *one run*, each of many canaries is included with
probability ½, and `OneRunGuesses` counts correct guesses.

References: Nasr et al. 2021 (Clopper–Pearson); Nasr et al. 2023 and Dong, Roth, Su 2022 (Gaussian); Steinke, Nasr,
Jagielski 2023 (one run).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import expit
from scipy.stats import beta, binom, norm

from tacit.errors import expect

Scores = NDArray[np.float64]
PrivacyProfile = Callable[[float], float]  # the claimed δ as a function of ε
CONFIDENCE = 0.95
MAX_EPSILON = 100.0  # lower bounds are cut off here


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
        expect(0.5 < self.confidence < 1, f"confidence={self.confidence} in (0.5, 1)")

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
        fnr, fpr = self.rates
        return max(_log_ratio(1 - fnr - delta, fpr), _log_ratio(1 - fpr - delta, fnr))

    def gaussian_lower_bound(self, delta: float) -> float:
        """The ε at this δ of the Gaussian mechanism with the most noise that these errors do not refute.

        Formal guarantees: tighter than `epsilon_lower_bound`, but holds only for mechanisms with Gaussian noise.
        """
        fnr, fpr = self.rates
        mu = float(norm.isf(fpr) - norm.ppf(fnr))
        return epsilon_of_gaussian(mu, delta) if mu > 0 else 0.0

    def lower_bounds(self, delta: float, *, gaussian: bool) -> dict[str, float]:
        """Lower bounds on ε by name; with `gaussian`, also the one that holds for Gaussian noise only."""
        bounds = {"Clopper-Pearson": self.epsilon_lower_bound(delta)}
        return {**bounds, "Gaussian": self.gaussian_lower_bound(delta)} if gaussian else bounds

    def refutes(self, profile: PrivacyProfile) -> bool:
        """Whether these errors contradict a claimed profile at any ε: fewer guesses are wrong than it allows."""
        fnr, fpr = self.rates
        for epsilon in np.linspace(0.01, max(2 * self.epsilon_lower_bound(0.0), 0.5), 40):
            needed = max(1 - fnr - math.exp(epsilon) * fpr, 1 - fpr - math.exp(epsilon) * fnr)
            if needed > 0 and needed > profile(epsilon):  # profiles can take long to evaluate
                return True
        return False

    def __str__(self) -> str:
        return (
            f"wrong for {self.false_negatives} of {self.included} runs with the canary "
            f"and {self.false_positives} of {self.excluded} without"
        )


def epsilon_of_gaussian(mu: float, delta: float) -> float:
    """The ε of μ-Gaussian differential privacy at this δ (Dong, Roth, Su 2022, Corollary 1).

    Example:
        >>> round(epsilon_of_gaussian(1.0, 1e-5), 3)
        4.377
    """
    expect(mu > 0, f"mu={mu} > 0")
    expect(0 < delta < 1, f"delta={delta} in (0, 1)")

    def log_excess(epsilon: float) -> float:
        first = norm.logcdf(mu / 2 - epsilon / mu)
        second = epsilon + norm.logcdf(-mu / 2 - epsilon / mu)
        return float(first + np.log1p(-math.exp(min(second - first, 0.0)))) - math.log(delta)

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

    def lower_bounds(self, delta: float, *, gaussian: bool) -> dict[str, float]:
        """The lower bound on ε by its name; for Gaussian noise there is no other one."""
        return {"one run": self.epsilon_lower_bound(delta)}

    def refutes(self, profile: PrivacyProfile) -> bool:
        """Guesses of one run are compared with ε at a single δ only."""
        return False

    def __str__(self) -> str:
        return f"{self.correct} of {self.guesses} correct, for {self.canaries} canaries"


def _upper_bound(errors: int, trials: int, alpha: float) -> float:
    return 1.0 if errors == trials else float(beta.ppf(1 - alpha, errors + 1, trials - errors))


def _log_ratio(correct: float, wrong: float) -> float:
    return max(math.log(correct / wrong), 0.0) if correct > 0 else 0.0
