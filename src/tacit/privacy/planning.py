"""Before a run: the noise for a budget, the ε after every round, the rounds that a budget allows."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate, count
from typing import Protocol

import dp_accounting as dp
from scipy.optimize import brentq

from tacit.core import Event
from tacit.errors import expect
from tacit.privacy.accountants import LEAST_NOISE, Accountant, Pld, Rdp
from tacit.privacy.accounting import Accounting, Budget, check_delta, last_that

PRECISION = 2e-5  # of a noise multiplier, relative
MOST_NOISE = 1e6
COARSE = 1e-3  # a grid of losses that is good enough to begin with


class Amplifier(Protocol):
    """What planning needs of a sampler."""

    def amplify(self, event: Event, population: int, index: int) -> Event:
        """The event of round `index` as seen from outside."""
        ...


@dataclass(frozen=True)
class Cohorts:
    """How cohorts are drawn from a population, round by round.

    Example:
        >>> from tacit.privacy.accountants import RdpClassic
        >>> from tacit.pieces.samplers import Poisson
        >>> cohorts = Cohorts(Poisson(100), population=6000)
        >>> round(cohorts.epsilons(1.54, 200, 1e-5, RdpClassic())[-1], 4)
        1.0006
        >>> cohorts.rounds_within(Budget(1, 1e-5), 1.54, RdpClassic())
        199
    """

    sampler: Amplifier
    population: int

    def events(self, noise: float, rounds: int) -> Iterator[Event]:
        """The event of every round, at this noise multiplier."""
        expect(rounds >= 1, f"rounds={rounds} >= 1")
        gaussian = dp.GaussianDpEvent(noise)
        return (self.sampler.amplify(gaussian, self.population, index) for index in range(rounds))

    def epsilons(self, noise: float, rounds: int, delta: float, accountant: Accountant) -> list[float]:
        """The ε at this δ after each round."""
        check_noise(noise)
        check_delta(delta)
        fine = self._fine(accountant, noise, rounds, delta)
        books = accumulate(self.events(noise, rounds), Accounting.charge, initial=Accounting.of(fine))
        return [book.epsilon(delta) for book in books][1:]

    def epsilon(self, noise: float, rounds: int, delta: float, accountant: Accountant) -> float:
        """The ε at this δ after all of these rounds."""
        fine = self._fine(accountant, noise, rounds, delta)
        return Accounting.of(fine, self.events(noise, rounds)).epsilon(delta)

    def noise_for(self, budget: Budget, rounds: int, accountant: Accountant) -> float:
        """The least noise multiplier that stays within the budget for these rounds; at most 0.002 % above it."""

        @cache
        def excess(noise: float) -> float:
            return self.epsilon(noise, rounds, budget.delta, accountant) - budget.epsilon

        rougher = _rougher(accountant)
        start = self.noise_for(budget, rounds, rougher.accountant) if rougher else 1.0
        low, high = _bracket(excess, start, rougher.factor if rougher else 2.0)
        root = float(brentq(excess, low, high, rtol=PRECISION / 4))
        candidates = (min(high, root * (1 + PRECISION * step / 4)) for step in count())
        return next(noise for noise in candidates if excess(noise) <= 0)

    def rounds_within(self, budget: Budget, noise: float, accountant: Accountant) -> int:
        """How many rounds at this noise stay within the budget; at most `MOST_ROUNDS`."""
        check_noise(noise)
        rougher = _rougher(accountant)
        guess = self.rounds_within(budget, noise, rougher.accountant) if rougher else 1
        return last_that(lambda rounds: self.epsilon(noise, rounds, budget.delta, accountant) <= budget.epsilon, guess)

    def _fine(self, accountant: Accountant, noise: float, rounds: int, delta: float) -> Accountant:
        """The accountant with a grid that suits the ε to expect: finer below 0.1, coarser above 10."""
        if not isinstance(accountant, Pld):
            return accountant
        expected = Accounting.of(Rdp(accountant.adjacency), self.events(noise, rounds)).epsilon(delta)
        if not 0 < expected < math.inf:
            return accountant
        return replace(accountant, interval=accountant.interval * max(min(1.0, expected / 0.1), expected / 10))


@dataclass(frozen=True)
class _Rougher:
    """An accountant that is quicker, and by which factor its noise may be off."""

    accountant: Accountant
    factor: float


def _rougher(accountant: Accountant) -> _Rougher | None:
    if not isinstance(accountant, Pld):
        return None
    if accountant.interval < COARSE:
        return _Rougher(replace(accountant, interval=COARSE), 1.0005)
    return _Rougher(Rdp(accountant.adjacency), 1.2)


def check_noise(noise: float) -> None:
    """Raise `UserError` unless there is noise."""
    expect(0 < noise < math.inf, f"noise={noise:g} > 0 and finite", "Without noise nothing is proved.")


def _bracket(excess: Callable[[float], float], start: float, factor: float) -> tuple[float, float]:
    """Two noise multipliers between which the budget is met exactly, in growing steps from a first guess."""
    low = high = start
    while excess(high) > 0:
        low, high, factor = high, high * factor, factor**1.5
        expect(high <= MOST_NOISE, "an epsilon that some noise can reach", "Take a larger epsilon or delta.")
    while excess(low) <= 0:
        expect(low > LEAST_NOISE, "an epsilon that needs noise", "This budget allows almost anything.")
        low, high, factor = max(low / factor, LEAST_NOISE), low, factor**1.5
    return low, high
