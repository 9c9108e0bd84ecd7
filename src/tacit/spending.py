"""What a run spends on privacy: charged before every round, told after it.

What a round releases follows from the method and the population alone, so it is known beforehand how many rounds the
budget allows; a ledger that other runs charge too may end the run earlier. Loading this module loads
`dp_accounting`, which takes a second: runs without noise do without it.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import Self

from tacit.books.accountants import RUNNING, Accountant, Rdp
from tacit.books.events import event_of
from tacit.books.guarantee import Guarantee
from tacit.books.ledger import Ledger
from tacit.books.privacy import PrivacyBook, last_that, weak_delta
from tacit.core import Event, Method, State
from tacit.core.errors import expect

DELTA = 1e-5  # at which ε is told if the method has no budget


@dataclass(frozen=True, eq=False)
class Spending:
    """A run's privacy so far.

    Attributes:
        method: what is run.
        population: on how many clients.
        book: what this run's rounds cost together.
        allowed: how many rounds there can be in all, by the method and its own budget.
        ledger: where they are charged, if anywhere.
        run: the run's name in the ledger; it fixes the run's noise.
    """

    method: Method
    population: int
    book: PrivacyBook
    allowed: int
    ledger: Ledger | None = None
    run: str = ""

    @classmethod
    def begin(cls, method: Method, population: int, done: int, ledger: Ledger | None = None, run: str = "") -> Self:
        """The spending of a run of which `done` rounds are done, for a method with noise."""
        if ledger is not None:
            ledger.check_covers(run, done)
        events = islice(_events(method, population), done)
        return cls(method, population, PrivacyBook.of(RUNNING, events), rounds_allowed(method, population), ledger, run)

    @property
    def delta(self) -> float:
        """At which ε is told."""
        return DELTA if self.method.budget is None else self.method.budget.delta

    @cached_property
    def epsilon(self) -> float:
        """What is spent at that δ."""
        return self.book.epsilon(self.delta)

    @property
    def delta_at_budget(self) -> float | None:
        """The δ spent at the budget's ε."""
        return None if self.method.budget is None else self.book.delta(self.method.budget.epsilon)

    def reserve(self) -> Self:
        """The spending with one more round, charged before any of its noise is drawn.

        Raises:
            BudgetError: the ledger's budget would be passed. Nothing was charged.
        """
        event = event_of(self.method, self.population, self.book.rounds)
        assert event is not None  # a method without noise has no spending
        if self.ledger is not None:
            self.ledger.reserve(self.run, self.book.rounds + 1, event, self.method.name)
        return replace(self, book=self.book.charge(event))

    def release(self, state: State) -> None:
        """Mark the round as released, with a digest of the model that came of it."""
        if self.ledger is None:
            return
        entry = next(e for e in reversed(self.ledger.entries) if (e.run, e.round) == (self.run, self.book.rounds))
        weights = state.weights.detach().cpu().contiguous().numpy()
        self.ledger.release(entry, hashlib.sha256(weights.data).hexdigest())

    def guarantee(self) -> Guarantee:
        """What is proved so far, and what is not."""
        weak = weak_delta(self.delta, self.population)
        warned = (weak,) if weak else ()
        tuning = "Hyperparameters that were chosen by looking at results on the same data are not accounted for."
        if self.method.mechanism.unproved:
            none = Guarantee.none(self.method.mechanism.unproved, rounds=self.book.rounds)
            nominal = f"Nominal ε = {self.epsilon:.4g} at δ = {self.delta:g}, as if the bound had been public."
            return none.but(nominal, tuning, *warned)
        event = event_of(self.method, self.population, max(self.book.rounds - 1, 0))
        return Guarantee.of(self.book, self.delta, event).but(tuning, *warned)


def rounds_allowed(method: Method, population: int) -> int:
    """How many rounds there can be: those of the method, or as many as its budget pays for."""
    if method.budget is None:
        return method.rounds
    guess = 1
    for accountant in (Rdp(), RUNNING):  # the quick one says where to begin
        guess = _paid(method, population, accountant, max(guess, 1))
    advice = "Not even the first round fits: take more noise or smaller cohorts."
    expect(guess >= 1, f"a budget of {method.budget} that allows a round", advice)
    return guess


def _paid(method: Method, population: int, accountant: Accountant, guess: int) -> int:
    budget = method.budget
    assert budget is not None

    def fits(rounds: int) -> bool:
        if rounds > method.rounds:
            return False
        book = PrivacyBook.of(accountant, islice(_events(method, population), rounds))
        return book.epsilon(budget.delta) <= budget.epsilon

    return last_that(fits, guess)


def _events(method: Method, population: int) -> Iterator[Event]:
    """What each round releases, for as many rounds as are asked for."""
    for index in range(method.rounds):
        event = event_of(method, population, index)
        assert event is not None
        yield event
