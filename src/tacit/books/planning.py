"""Before a run: the noise for a budget, the ε after every round, the rounds that a budget allows."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

import dp_accounting as dp
from scipy.optimize import brentq

from tacit.books.accountants import LEAST_NOISE, Accountant, Rdp, RdpClassic
from tacit.books.privacy import Budget, PrivacyBook, check_delta, last_that
from tacit.core import Event
from tacit.core.errors import expect

PRECISION = 2e-5  # of a noise multiplier, relative
MOST_NOISE = 1e6


class Amplifier(Protocol):
    """What planning needs of a sampler."""

    def amplify(self, event: Event, population: int, index: int) -> Event:
        """The event of round `index` as seen from outside."""
        ...


@dataclass(frozen=True)
class Stages:
    """Samplers one after the other, each for some rounds; the last one goes on for good."""

    parts: tuple[tuple[int, Amplifier], ...]

    def __post_init__(self) -> None:
        expect(len(self.parts) > 0 and all(rounds >= 1 for rounds, _ in self.parts), "stages of at least one round")

    @property
    def rounds(self) -> int:
        """Of all stages."""
        return sum(rounds for rounds, _ in self.parts)

    def amplify(self, event: Event, population: int, index: int) -> Event:
        """As the sampler of this round's stage does."""
        ends = accumulate(rounds for rounds, _ in self.parts)
        samplers = (sampler for (_, sampler), end in zip(self.parts, ends, strict=True) if index < end)
        return next(samplers, self.parts[-1][1]).amplify(event, population, index)


@dataclass(frozen=True)
class Cohorts:
    """How cohorts are drawn from a population, round by round.

    Example:
        >>> from tacit.books.accountants import RdpClassic
        >>> from tacit.samplers import Poisson
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
        books = accumulate(self.events(noise, rounds), PrivacyBook.charge, initial=PrivacyBook.of(accountant))
        return [book.epsilon(delta) for book in books][1:]

    def epsilon(self, noise: float, rounds: int, delta: float, accountant: Accountant) -> float:
        """The ε at this δ after all of these rounds."""
        return PrivacyBook.of(accountant, self.events(noise, rounds)).epsilon(delta)

    def noise_for(self, budget: Budget, rounds: int, accountant: Accountant) -> float:
        """The least noise multiplier that stays within the budget for these rounds; at most 0.002 % above it."""

        def excess(noise: float) -> float:
            return self.epsilon(noise, rounds, budget.delta, accountant) - budget.epsilon

        quick = isinstance(accountant, Rdp | RdpClassic)
        start = 1.0 if quick else self.noise_for(budget, rounds, Rdp(accountant.adjacency))
        low, high = _bracket(excess, start, 2.0 if quick else 1.3)
        root = float(brentq(excess, low, high, rtol=PRECISION / 4))
        return next(noise for noise in (root * (1 + PRECISION * step / 4) for step in range(100)) if excess(noise) <= 0)

    def rounds_within(self, budget: Budget, noise: float, accountant: Accountant) -> int:
        """How many rounds at this noise stay within the budget; at most `MOST_ROUNDS`."""
        check_noise(noise)

        def fits(by: Accountant) -> Callable[[int], bool]:
            return lambda rounds: self.epsilon(noise, rounds, budget.delta, by) <= budget.epsilon

        guess = last_that(fits(Rdp(accountant.adjacency)))
        return last_that(fits(accountant), guess)


def check_noise(noise: float) -> None:
    """Raise `UserError` unless there is noise."""
    expect(0 < noise < math.inf, f"noise={noise:g} > 0 and finite", "Without noise nothing is proved.")


def _bracket(excess: Callable[[float], float], start: float, factor: float) -> tuple[float, float]:
    """Two noise multipliers between which the budget is met exactly."""
    high = start
    while excess(high) > 0:
        high *= factor
        expect(high <= MOST_NOISE, "an epsilon that some noise can reach", "Take a larger epsilon or delta.")
    low = high / factor
    while excess(low) <= 0:
        low, high = low / factor, low
        expect(low >= LEAST_NOISE, "an epsilon that needs noise", "This budget allows almost anything.")
    return low, high
