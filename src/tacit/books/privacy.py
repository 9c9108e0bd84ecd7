"""The privacy book: what a run's rounds cost together, folded round by round."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Self

from tacit.books.accountants import Accountant, Spent
from tacit.books.events import Release, releases
from tacit.core import Budget, Event
from tacit.core.budget import check_delta
from tacit.core.errors import expect

__all__ = ["Budget", "PrivacyBook", "check_delta", "last_that", "weak_delta"]

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
class PrivacyBook:
    """What has been spent, as an accountant sees it. Charging gives a new book.

    Formal guarantees: (ε, δ) holds for all charged releases together, also where later ones were chosen in the
    light of earlier ones, as long as the events charged did not depend on private data.

    Example:
        >>> import dp_accounting as dp
        >>> from tacit.books.accountants import Pld
        >>> book = PrivacyBook.of(Pld()).charge(dp.PoissonSampledDpEvent(1 / 60, dp.GaussianDpEvent(1.54)), times=200)
        >>> book.rounds, round(book.epsilon(1e-5), 4)
        (200, 0.6806)
    """

    accountant: Accountant
    spent: Spent
    rounds: int = 0

    @classmethod
    def of(cls, accountant: Accountant, events: Iterable[Event] = ()) -> Self:
        """The book of these rounds; equal releases are composed at once."""
        total, rounds, spent = Counter[Release](), 0, accountant.nothing()
        for event, same in groupby(events):
            times = sum(1 for _ in same)
            rounds += times
            total.update({release: count * times for release, count in releases(event).items()})
        for release, count in total.items():
            spent = spent.compose(release, count)
        return cls(accountant, spent, rounds)

    def charge(self, event: Event, times: int = 1) -> Self:
        """The book after `times` more rounds with this event."""
        spent = self.spent
        for release, count in releases(event).items():
            spent = spent.compose(release, count * times)
        return replace(self, spent=spent, rounds=self.rounds + times)

    def epsilon(self, delta: float) -> float:
        """The ε spent at this δ."""
        check_delta(delta)
        return self.spent.epsilon(delta)

    def delta(self, epsilon: float) -> float:
        """The δ spent at this ε."""
        expect(epsilon > 0, f"epsilon={epsilon:g} > 0")
        return self.spent.delta(epsilon)

    def would_pass(self, event: Event, epsilon: float, delta: float) -> bool:
        """Whether one more round with this event would spend more than (ε, δ)."""
        return self.charge(event).epsilon(delta) > epsilon

    def rounds_left(self, event: Event, epsilon: float, delta: float, guess: int = 1) -> int:
        """How many more rounds with this event stay within (ε, δ); at most `MOST_ROUNDS`.

        `guess` is where the search begins: near the answer it saves time.
        """
        return last_that(lambda rounds: self.charge(event, rounds).epsilon(delta) <= epsilon, guess)


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
