"""What guesses prove about ε: lower bounds that hold with a given confidence.

Two kinds of experiment lead here. In *many runs*, one canary is in or out of each, and `Errors` counts wrong guesses at
a threshold that was fixed beforehand. In *one run*, each of many canaries is in or out by a fair coin.

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
Profile = Callable[[float], float]  # the δ that is claimed at an ε
CONFIDENCE = 0.95
MOST = 100.0  # no audit says more


@dataclass(frozen=True)
class Errors:
    """Wrong guesses at a fixed threshold, and how often they would have to be made at the most.

    Attributes:
        missed: how many canaries that were in were guessed out.
        inside: how many were in.
        false: how many that were out were guessed in.
        outside: how many were out.
        confidence: with which both bounds below hold together.
    """

    missed: int
    inside: int
    false: int
    outside: int
    confidence: float = CONFIDENCE

    def __post_init__(self) -> None:
        expect(0 <= self.missed <= self.inside and self.inside >= 1, f"0 <= missed={self.missed} <= {self.inside}")
        expect(0 <= self.false <= self.outside and self.outside >= 1, f"0 <= false={self.false} <= {self.outside}")
        expect(0.5 < self.confidence < 1, f"confidence={self.confidence} in (0.5, 1)")

    @classmethod
    def at(cls, threshold: float, inside: Scores, outside: Scores, confidence: float = CONFIDENCE) -> "Errors":
        """Whoever scores at least the threshold is guessed in."""
        missed, false = int((inside < threshold).sum()), int((outside >= threshold).sum())
        return cls(missed, len(inside), false, len(outside), confidence)

    @property
    def rates(self) -> tuple[float, float]:
        """Upper bounds of the rates of missed and of false guesses, by Clopper and Pearson."""
        alpha = (1 - self.confidence) / 2
        return _upper(self.missed, self.inside, alpha), _upper(self.false, self.outside, alpha)

    def epsilon(self, delta: float) -> float:
        """The largest ε that these guesses refute at this δ: whatever the mechanism is.

        Example:
            >>> round(Errors(missed=10, inside=1000, false=10, outside=1000).epsilon(1e-5), 3)
            3.982
        """
        missed, false = self.rates
        return max(_log_ratio(1 - missed - delta, false), _log_ratio(1 - false - delta, missed))

    def gaussian(self, delta: float) -> float:
        """The ε at this δ of the Gaussian mechanism with the most noise that these guesses do not refute.

        It says more than `epsilon` about mechanisms that add Gaussian noise, and nothing about others.
        """
        missed, false = self.rates
        mu = float(norm.isf(false) - norm.ppf(missed))
        return epsilon_of_gaussian(mu, delta) if mu > 0 else 0.0

    def refute(self, profile: Profile) -> bool:
        """Whether they contradict a claimed curve δ(ε) anywhere: more guesses are right than it allows."""
        missed, false = self.rates
        return any(
            1 - wrong > math.exp(epsilon) * other + profile(epsilon)
            for wrong, other in ((missed, false), (false, missed))
            for epsilon in np.linspace(0.01, max(2 * self.epsilon(0.0), 0.5), 40)
        )


def epsilon_of_gaussian(mu: float, delta: float) -> float:
    """The ε of μ-Gaussian differential privacy at this δ (Dong, Roth, Su 2022, Corollary 1).

    Example:
        >>> round(epsilon_of_gaussian(1.0, 1e-5), 3)
        4.377
    """
    expect(mu > 0, f"mu={mu} > 0")
    expect(0 < delta < 1, f"delta={delta} in (0, 1)")

    def excess(epsilon: float) -> float:
        first = norm.logcdf(mu / 2 - epsilon / mu)
        second = epsilon + norm.logcdf(-mu / 2 - epsilon / mu)
        return float(first + np.log1p(-math.exp(min(second - first, 0.0)))) - math.log(delta)

    if excess(1e-9) <= 0:
        return 0.0
    return MOST if excess(MOST) >= 0 else float(brentq(excess, 1e-9, MOST, xtol=1e-6))


@dataclass(frozen=True)
class Guesses:
    """Guesses about the canaries of one run, where those that are hard to tell may be passed over.

    Attributes:
        canaries: how many there were, each in or out by a fair coin.
        made: about how many a guess was made.
        right: how many guesses were right.
        confidence: with which `epsilon` holds.
    """

    canaries: int
    made: int
    right: int
    confidence: float = CONFIDENCE

    def __post_init__(self) -> None:
        expect(0 <= self.right <= self.made <= self.canaries, f"right={self.right} <= made={self.made} <= canaries")

    def chance(self, epsilon: float, delta: float) -> float:
        """The most probability with which an (ε, δ)-private run lets so many guesses be right (Theorem 5.2)."""
        q = float(expit(epsilon))
        usual = float(binom.sf(self.right - 1, self.made, q))
        if delta == 0:
            return usual
        steps = np.arange(1, self.right + 1)
        more = (binom.sf(self.right - steps - 1, self.made, q) - usual) / steps
        return min(usual + 2 * self.canaries * delta * float(more.max(initial=0.0)), 1.0)

    def epsilon(self, delta: float) -> float:
        """The largest ε that these guesses refute at this δ.

        Example:
            >>> round(Guesses(canaries=1000, made=200, right=180).epsilon(1e-5), 3)
            1.796
        """
        alpha = 1 - self.confidence
        if self.chance(0.0, delta) > alpha:
            return 0.0
        if self.chance(MOST, delta) <= alpha:
            return MOST
        return float(brentq(lambda epsilon: self.chance(epsilon, delta) - alpha, 0.0, MOST, xtol=1e-6))


def _upper(count: int, of: int, alpha: float) -> float:
    return 1.0 if count == of else float(beta.ppf(1 - alpha, count + 1, of - count))


def _log_ratio(right: float, wrong: float) -> float:
    return max(math.log(right / wrong), 0.0) if right > 0 else 0.0
