"""The privacy book: what a run's rounds cost together, folded round by round."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Self

from tacit.core import Budget, Event
from tacit.core.stopping import check_delta
from tacit.errors import expect
from tacit.privacy.accountants import Accountant, Spent
from tacit.privacy.events import AnyRelease, releases

__all__ = ["Accounting", "Budget", "check_delta", "last_that", "weak_delta"]

MOST_ROUNDS = 20_000  # nobody plans for more


def weak_delta(delta: float, population: int) -> str | None:
    """A sentence of warning if δ is not small against 1/population; None if it is.

    Example:
        >>> weak_delta(1e-3, 2000)
        'δ = 0.001 is not small against 1/2000: at this δ, handing over the data of 2 random clients would be allowed.'
    """
    if delta * population <= 0.1:
        return None
    handed = max(1, round(delta * population))
    clients = "one random client" if handed == 1 else f"{handed} random clients"
    return (
        f"δ = {delta:g} is not small against 1/{population}: "
        f"at this δ, handing over the data of {clients} would be allowed."
    )


@dataclass(frozen=True, eq=False)
class Accounting:
    """What has been spent, as an accountant sees it. Charging gives a new book.

    Formal guarantees: (ε, δ) holds for all charged releases together, also where later ones were chosen in the
    light of earlier ones, as long as the events charged did not depend on private data.

    Example:
        >>> import dp_accounting as dp
        >>> from tacit.privacy.accountants import Pld
        >>> book = Accounting.of(Pld()).charge(dp.PoissonSampledDpEvent(1 / 60, dp.GaussianDpEvent(1.54)), times=200)
        >>> book.rounds, round(book.epsilon(1e-5), 4)
        (200, 0.6806)
    """

    accountant: Accountant
    spent: Spent
    rounds: int = 0
    distance: float = 0.0  # total variation between what was released and what is priced, all rounds together

    @classmethod
    def of(cls, accountant: Accountant, events: Iterable[Event] = ()) -> Self:
        """The book of these rounds; equal releases are composed at once."""
        total, rounds = Counter[AnyRelease](), 0
        for event, same in groupby(events):
            times = sum(1 for _ in same)
            rounds += times
            total.update({release: count * times for release, count in releases(event).items()})
        return cls(accountant, accountant.nothing())._with(total, rounds)

    def charge(self, event: Event, times: int = 1) -> Self:
        """The book after `times` more rounds with this event."""
        return self._with({release: count * times for release, count in releases(event).items()}, times)

    def _with(self, more: Mapping[AnyRelease, int], rounds: int) -> Self:
        spent, distance = self.spent, self.distance
        for release, count in more.items():
            spent, distance = spent.compose(release, count), distance + count * release.distance
        return replace(self, spent=spent, rounds=self.rounds + rounds, distance=distance)

    def epsilon(self, delta: float) -> float:
        """The ε spent at this δ; infinite where the distance alone takes more than half of it."""
        check_delta(delta)
        left = delta - self.slack(delta)
        return self.spent.epsilon(left) if left >= delta / 2 else math.inf

    def delta(self, epsilon: float) -> float:
        """The δ spent at this ε."""
        expect(epsilon > 0, f"epsilon={epsilon:g} > 0")
        return min(1.0, self.spent.delta(epsilon) + _lost(self.distance, epsilon))

    def slack(self, delta: float) -> float:
        """The part of δ that pays for the distance, found with the ε of half of δ, which is no smaller than that of δ.

        If what is released is within η of what is priced, (ε, δ') becomes (ε, δ' + (1 + e^ε)·η).
        """
        return _lost(self.distance, self.spent.epsilon(delta / 2)) if self.distance else 0.0

    def rounds_left(self, event: Event, epsilon: float, delta: float, guess: int = 1) -> int:
        """How many more rounds with this event stay within (ε, δ); at most `MOST_ROUNDS`.

        `guess` is where the search begins: near the answer it saves time.
        """
        return last_that(lambda rounds: self.charge(event, rounds).epsilon(delta) <= epsilon, guess)


def _lost(distance: float, epsilon: float) -> float:
    return distance * (1 + math.exp(min(epsilon, 700.0)))


def last_that(fits: Callable[[int], bool], guess: int = 1) -> int:
    """The largest number that fits, where all smaller ones do; 0 if none does, and at most `MOST_ROUNDS`."""
    low, high, step = 0, max(1, guess), 1
    if fits(high):
        low = high
        while low + step <= MOST_ROUNDS and fits(low + step):
            low, step = low + step, 2 * step
        high = min(low + step, MOST_ROUNDS + 1)
    else:
        while high - step > 0 and not fits(high - step):
            high, step = high - step, 2 * step
        low = max(high - step, 0)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
