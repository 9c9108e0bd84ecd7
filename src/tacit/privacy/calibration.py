"""Before a run: the noise for a budget, the ε after every round, the number of rounds that a budget allows."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate, count

from scipy.optimize import brentq

from tacit.core import Budget
from tacit.core.interfaces import Sampler
from tacit.core.prices import Gaussian, Release, check_delta, check_rounds
from tacit.errors import expect
from tacit.privacy.accountants import FAST_PLD, MIN_NOISE, Accountant, Accounting, Pld, Rdp, max_rounds

_PRECISION = 2e-5  # of a noise multiplier, relative
MAX_FOUND_NOISE = 1e6
UNREACHABLE = ("an epsilon that some noise can reach", "Choose a larger epsilon or delta.")


@dataclass(frozen=True)
class CohortSampling:
    """How cohorts are drawn from a population; answers what noise, ε or number of rounds follows from the other two.

    Example:
        >>> from tacit.privacy.accountants import RdpClassic
        >>> from tacit.pieces.samplers import Poisson
        >>> cohorts = CohortSampling(Poisson(100), population=6000)
        >>> round(cohorts.epsilons(1.54, 200, 1e-5, RdpClassic())[-1], 4)
        1.0006
        >>> cohorts.rounds_within(Budget(1, 1e-5), 1.54, RdpClassic())
        199
    """

    sampler: Sampler
    population: int
    release: Release = Release(Gaussian(1.0))  # of a round, but for its noise and sampling

    def releases(self, noise: float, rounds: int) -> Iterator[Release]:
        """The release of every round with this noise multiplier."""
        check_rounds(rounds)
        gaussian = replace(self.release, loss=Gaussian(noise))
        return (gaussian.sampled(self.sampler.sampling(self.population, index)) for index in range(rounds))

    def epsilons(self, noise: float, rounds: int, delta: float, accountant: Accountant) -> list[float]:
        """The ε at this δ after each round."""
        check_noise(noise)
        check_delta(delta)
        start = Accounting.of(self._with_suitable_grid(accountant, noise, rounds, delta))
        after_rounds = accumulate(self.releases(noise, rounds), Accounting.compose, initial=start)
        return [accounting.epsilon(delta) for accounting in after_rounds][1:]

    def epsilon(self, noise: float, rounds: int, delta: float, accountant: Accountant) -> float:
        """The ε at this δ after all rounds."""
        suited = self._with_suitable_grid(accountant, noise, rounds, delta)
        return Accounting.of(suited, self.releases(noise, rounds)).epsilon(delta)

    def noise_for(self, budget: Budget, rounds: int, accountant: Accountant) -> float:
        """The smallest noise multiplier that stays within the budget, or one that is at most 0.002 % larger."""

        @cache
        def excess(noise: float) -> float:
            return self.epsilon(noise, rounds, budget.delta, accountant) - budget.epsilon

        faster, factor = _faster(accountant)
        start = 1.0 if faster is None else self.noise_for(budget, rounds, faster)
        low, high = bracket(excess, start, factor)
        root = float(brentq(excess, low, high, rtol=_PRECISION / 4))
        candidates = (min(high, root * (1 + _PRECISION * step / 4)) for step in count())
        return next(noise for noise in candidates if excess(noise) <= 0)

    def rounds_within(self, budget: Budget, noise: float, accountant: Accountant) -> int:
        """How many rounds with this noise multiplier stay within the budget; at most `MAX_FOUND_ROUNDS`."""
        check_noise(noise)
        faster, _ = _faster(accountant)
        guess = 1 if faster is None else self.rounds_within(budget, noise, faster)
        return max_rounds(lambda rounds: self.epsilon(noise, rounds, budget.delta, accountant) <= budget.epsilon, guess)

    def _with_suitable_grid(self, accountant: Accountant, noise: float, rounds: int, delta: float) -> Accountant:
        """The accountant with a grid that suits the expected ε: finer below 0.1, coarser above 10."""
        if not isinstance(accountant, Pld):
            return accountant
        expected = Accounting.of(Rdp(accountant.adjacency), self.releases(noise, rounds)).epsilon(delta)
        if not 0 < expected < math.inf:
            return accountant
        return replace(accountant, interval=accountant.interval * max(min(1.0, expected / 0.1), expected / 10))


def _faster(accountant: Accountant) -> tuple[Accountant | None, float]:
    """A faster accountant for a first guess, if there is one, and the factor by which its noise may be off."""
    if not isinstance(accountant, Pld):
        return None, 2.0
    if accountant.interval < FAST_PLD.interval:
        return replace(accountant, interval=FAST_PLD.interval), 1.0005
    return Rdp(accountant.adjacency), 1.2


def check_noise(noise: float) -> None:
    """Raise `UserError` unless the noise multiplier is positive and finite."""
    expect(0 < noise < math.inf, f"noise={noise:g} > 0 and finite", "Without noise nothing is proved.")


def bracket(excess: Callable[[float], float], start: float, factor: float) -> tuple[float, float]:
    """Two noise multipliers, one below the budget's and one above it, in growing steps from a first guess."""
    low = high = start
    while excess(high) > 0:
        low, high, factor = high, high * factor, factor**1.5
        expect(high <= MAX_FOUND_NOISE, *UNREACHABLE)
    while excess(low) <= 0:
        expect(low > MIN_NOISE, "an epsilon that needs noise", "This budget allows almost anything.")
        low, high, factor = max(low / factor, MIN_NOISE), low, factor**1.5
    return low, high


def enough_noise(start: float, epsilon: Callable[[float], float], budget: Budget) -> float:
    """The first noise multiplier from `start` on, in growing steps, whose ε is within the budget.

    Planning may use a finer grid of privacy losses than a run, and releases may cost more than Gaussian ones; rounds
    that are composed one by one cost about 1e-10 more.
    """
    noise, step = start, 1e-5
    while epsilon(noise) > budget.epsilon * (1 - 1e-8):
        noise, step = noise * (1 + step), min(2 * step, 2e-3)
        expect(noise <= 2 * start, *UNREACHABLE)
    return noise
