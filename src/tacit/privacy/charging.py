"""What a run spends on privacy: charged before every round, told after it.

What a round releases follows from the method and the population alone, so it is known beforehand how many rounds the
budget allows; a ledger that other runs charge too may end the run earlier. Loading this module loads
`dp_accounting`, which takes a second: runs without noise do without it.
"""

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import islice
from typing import Self

from tacit.core import Event, Method, Report, State, Turnout
from tacit.errors import BudgetError, expect
from tacit.privacy.accountants import Accountant, Rdp, running
from tacit.privacy.accounting import Accounting, last_that, weak_delta
from tacit.privacy.events import event_of
from tacit.privacy.guarantee import Guarantee
from tacit.privacy.ledger import Entry, Ledger
from tacit.privacy.planning import Cohorts


@dataclass(frozen=True, eq=False)
class Charges:
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
    book: Accounting
    allowed: int
    ledger: Ledger | None = None
    run: str = ""
    before: Accounting | None = None  # without the round that was reserved last

    @classmethod
    def begin(
        cls,
        method: Method,
        population: int,
        done: Sequence[Turnout],
        ledger: Ledger | None = None,
        run: str = "",
    ) -> Self:
        """The spending of a run after rounds with these turnouts, for a method with noise."""
        if ledger is not None:
            ledger.check_covers(run, len(done))
        events = [_priced(method, population, index, turnout) for index, turnout in enumerate(done)]
        book = Accounting.of(accountant_of(method, population), events)
        return cls(method, population, book, rounds_allowed(method, population), ledger, run)

    @property
    def delta(self) -> float:
        """At which ε is told."""
        return self.method.delta

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
            BudgetError: the run's budget or the ledger's would be passed. Nothing was charged.
        """
        event = _priced(self.method, self.population, self.book.rounds)
        charged = replace(self, book=self.book.charge(event), before=self.book)
        charged._check_within()  # earlier rounds may have cost more than was promised
        if self.ledger is not None:
            self.ledger.reserve(self.run, charged.book.rounds, event, self.method.name)
        return charged

    def settle(self, turnout: Turnout) -> Self:
        """The spending with the reserved round at the price that its turnout gives, before anything is released.

        Less than was reserved is counted here and stays reserved in the ledger; more is charged to it.

        Raises:
            BudgetError: a budget would be passed. Nothing may be released; what was reserved is spent.
        """
        assert self.before is not None  # only a reserved round is settled
        index = self.before.rounds
        promised, came = (_priced(self.method, self.population, index, known) for known in (None, turnout))
        if came == promised:
            return self
        settled = replace(self, book=self.before.charge(came))
        if settled.epsilon > self.epsilon:
            settled._check_within("because too few clients delivered their noise")
            if self.ledger is not None:
                self.ledger.amend(self._entry(self.ledger, index + 1), came)
        return settled

    def release(self, state: State) -> None:
        """Mark the round as released, with a digest of the model that came of it."""
        if self.ledger is None:
            return
        weights = state.weights.detach().cpu().contiguous().numpy()
        self.ledger.release(self._entry(self.ledger, self.book.rounds), hashlib.sha256(weights.data).hexdigest())

    def _entry(self, ledger: Ledger, number: int) -> Entry:
        """The round of this run that was reserved."""
        return next(e for e in reversed(ledger.entries) if (e.run, e.round) == (self.run, number))

    def _check_within(self, why: str = "") -> None:
        budget = self.method.budget
        if budget is not None and self.epsilon > budget.epsilon:
            reason = f", {why}" if why else ""
            raise BudgetError(
                f"Round {self.book.rounds} would pass the budget of {budget}{reason}. Nothing was released."
            )

    def guarantee(self, history: Sequence[Report] = ()) -> Guarantee:
        """What is proved so far, and what is not; `history` tells who took part how often."""
        weak = weak_delta(self.delta, self.population)
        warned = (weak,) if weak else ()
        tuning = "Hyperparameters that were chosen by looking at results on the same data are not accounted for."
        if self.method.mechanism.unproved:
            none = Guarantee.none(self.method.mechanism.unproved, rounds=self.book.rounds)
            nominal = f"Nominal ε = {self.epsilon:.4g} at δ = {self.delta:g}, as if the bound had been public."
            return none.but(nominal, tuning, *warned)
        mechanism = self.method.mechanism
        event = event_of(self.method, self.population, max(self.book.rounds - 1, 0))
        proved = Guarantee.of(self.book, self.delta, event, mechanism.against).but(tuning, *warned)
        return proved.but(*self._server(history)) if mechanism.shares else proved

    def _server(self, history: Sequence[Report]) -> Iterator[str]:
        """What is left against a server that knows who takes part."""
        yield "It is taken for granted that clients add their shares of the noise."
        if self.method.channel.bits is None:
            yield "Secure aggregation is taken for granted as well: a trusted party adds up real numbers."
        taken = Counter(client for report in history for client in report.clients)
        event = self.method.mechanism.event(0)
        if taken and event is not None:
            most = max(taken.values())
            epsilon = Accounting.of(self.book.accountant).charge(event, most).epsilon(self.delta)
            yield (
                "The server knows who takes part, so that sampling hides nobody from it: against it, ε = "
                f"{epsilon:.4g} at the same δ for a client that took part {most} times, as often as anybody."
            )


@cache
def sized(method: Method, population: int) -> Method:
    """The method with as much noise as its budget needs for all of its rounds."""
    budget, rounds = method.budget, method.rounds
    assert budget is not None  # or the method could not have been composed
    accountant = accountant_of(_with(method, 1.0), population)
    noise = Cohorts(method.sampler, population).noise_for(budget, rounds, accountant)
    step = 1e-5  # planning may use a finer grid of losses than a run, and events may cost more than Gaussian ones
    while True:
        fitted = _with(method, noise)
        epsilon = Accounting.of(accountant, _events(fitted, population)).epsilon(budget.delta)
        if epsilon <= budget.epsilon * (1 - 1e-8):  # rounds that are charged one by one come to some 1e-10 more
            return fitted
        noise, step = noise * (1 + step), min(2 * step, 2e-3)


def accountant_of(method: Method, population: int) -> Accountant:
    """Who prices a run of this method."""
    return running(event_of(method, population, 0))


def _with(method: Method, noise: float) -> Method:
    """The method with this noise multiplier."""
    mechanism = replace(method.mechanism, noise_multiplier=noise)  # type: ignore[type-var]
    return replace(method, mechanism=mechanism)


def rounds_allowed(method: Method, population: int) -> int:
    """How many rounds there can be: those of the method, or as many as its budget pays for."""
    if method.budget is None:
        return method.rounds
    guess = 1
    for accountant in (Rdp(), accountant_of(method, population)):  # the quick one says where to begin
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
        book = Accounting.of(accountant, islice(_events(method, population), rounds))
        return book.epsilon(budget.delta) <= budget.epsilon

    return last_that(fits, guess)


def _events(method: Method, population: int) -> Iterator[Event]:
    """What each round releases, for as many rounds as are asked for."""
    return (_priced(method, population, index) for index in range(method.rounds))


def _priced(method: Method, population: int, index: int, turnout: Turnout | None = None) -> Event:
    event = event_of(method, population, index, turnout)
    if event is None:  # a method without noise has no spending: nobody delivered any
        raise BudgetError(f"Round {index + 1} has no noise at all: no honest client delivered. Nothing was released.")
    return event
