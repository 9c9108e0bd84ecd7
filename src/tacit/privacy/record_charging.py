"""Charging a run's rounds for records: each is charged before it is played, for every client that takes part in it.

Batches of records are drawn by the clients, with secret coins, so that sampling amplifies against everybody, the server
included. Who takes part in a round is no secret: sampling of clients amplifies nothing here, and each client is charged
for the rounds in which it takes part. Importing this module imports `dp_accounting`, which takes a second.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Self

from scipy.optimize import brentq
from scipy.stats import binom

from tacit.core import Budget, Method, Report, Turnout
from tacit.core.prices import Adjacency, ClientUnits, Release, Repeated, Unit
from tacit.core.provenance import declaration
from tacit.errors import BudgetError, expect
from tacit.privacy.accountants import Accounting, Rdp, max_rounds
from tacit.privacy.charging import DROPOUTS
from tacit.privacy.guarantee import (
    AT_SEVERAL,
    IN_COMMON,
    PERSONS,
    Guarantee,
    delta_warning,
    public_population,
    record_adversary,
    trusted_sum,
)
from tacit.privacy.ledger import Ledger
from tacit.privacy.planning import bracket, enough_noise
from tacit.privacy.record_accounting import RecordAccounting, RecordCharge
from tacit.privacy.round_charges import RoundCharges

UNLIKELY = 0.01  # with which some client takes part more often than its noise is sized for
SIZES = "The number of {unit}s of every client is public: it decides at which rate its batches are drawn."
COPIES = "At how many clients a {unit} is, at most, is public: it decides how much noise is added."


@dataclass(frozen=True, eq=False, kw_only=True)
class RecordCharges(RoundCharges[RecordAccounting, RecordCharge]):
    """What the records, or persons, of a run's clients were charged so far.

    Attributes:
        units: what is protected within clients.
    """

    units: ClientUnits

    @classmethod
    def begin(
        cls,
        method: Method,
        units: ClientUnits,
        history: Sequence[Report] = (),
        ledger: Ledger | None = None,
        run: str = "",
    ) -> Self:
        """The charges of a method that protects records, after these rounds."""
        failed = cls.repeated(ledger, run, len(history), units.unit)
        charges = [_charge(method, units, report.clients, report.turnout) for report in history]
        return cls(
            method=method,
            units=units,
            accounting=cls.compose_entries(RecordAccounting.of(charges), failed),
            rounds_allowed=rounds_allowed(method, units),
            ledger=ledger,
            run=run,
            retries=len(failed),
        )

    @property
    def unit(self) -> Unit:
        return self.units.unit

    def reserve(self, cohort: Sequence[int], key: str = "") -> Self:
        """The charges with one more round of these clients, before any of its noise is drawn.

        Attempts at the round with other keys, which the ledger knows from before a crash, remain charged.

        Raises:
            BudgetError: the round would exceed the run's budget, or the ledger's, for a record of one of them. Nothing
                was charged.
        """
        return self._reserve(_charge(self.method, self.units, cohort), key)

    def settle(self, turnout: Turnout) -> Self:
        """The charges with the reserved round at its real turnout: with noise in shares, too few make it cost more.

        Raises:
            BudgetError: the round would exceed a budget. Nothing may be released; the reservation remains charged.
        """
        assert self.reserved is not None  # only a reserved round is settled
        return self._settle(_charge(self.method, self.units, tuple(self.reserved.planned.clients), turnout))

    def guarantee(self) -> Guarantee:
        """What is proved about every record so far, and what is not."""
        rounds, worst = self.rounds, self.accounting.worst(self.delta, fine=True)
        if worst is None or math.isinf(worst.epsilon):
            why = "nothing was released yet" if worst is None else f"no finite ε holds at δ = {self.delta:g}"
            return record_none(why, rounds, self.unit)
        of_worst = self.accounting.of_worst(worst, self.delta)
        releases = list(self.accounting.released[worst.client])
        return Guarantee(
            epsilon=worst.epsilon,
            delta=self.delta,
            noise_error=of_worst.noise_error(self.delta),
            rounds=rounds,
            retries=self.retries,
            unit=self.unit,
            worst_client=worst.client,
            steps=worst.steps,
            copies=self.units.copies,
            adjacency=Adjacency.ADD_OR_REMOVE.value,
            sampling=self._sampling,
            amplified=any(release.amplification.rate < 1 for release in releases),
            accountant=of_worst.accountant.name,
            adversary=record_adversary(sums="" if self.method.record_bound is None else releases[0].adversary),
        ).excluding(*self._not_covered(releases[0]))

    @property
    def _sampling(self) -> str:
        rates = {_price(self.method, size).release.sampling.rate for size in self._charged_sizes}
        low, high = min(rates), max(rates)
        if low == 1:
            return f"every batch contains every {self.unit}"
        probability = f"{low:.4g}" if low == high else f"{low:.4g} to {high:.4g}, by the size of the client"
        return f"Poisson batches, each {self.unit} with probability {probability}"

    def _not_covered(self, release: Release) -> tuple[str, ...]:
        across = self.method.record_bound is not None
        real = across and self.method.channel.message_format.bits is None
        return (
            "Hyperparameters that were tuned on the same data are not accounted for.",
            public_population(len(self.units.sizes)),
            "" if across else SIZES.format(unit=self.unit),
            COPIES.format(unit=self.unit) if self.units.clients else "",
            PERSONS if self.unit is Unit.RECORD else AT_SEVERAL if self.units.clients == 0 else "",
            IN_COMMON,
            "Clients are assumed to add their shares of the noise." if across else "",
            DROPOUTS if across else "",
            trusted_sum(self.method.channel.messages_seen_by) if real else "",
            release.caveat,
            delta_warning(self.delta, sum(self.units.sizes), self.unit) or "",
            declaration(self.method.own_parts),
        )

    @property
    def _whose(self) -> str:
        worst = self.accounting.worst(self.delta)
        return "" if worst is None else f" for the {self.unit}s of client {worst.client}"

    @property
    def _charged_sizes(self) -> set[int]:
        """The numbers of units of the clients that were charged."""
        return {self.units.sizes[client] for client in self.accounting.released}


def record_none(reason: str, rounds: int = 0, unit: Unit = Unit.RECORD) -> Guarantee:
    """Nothing is proved about records, or persons."""
    return replace(Guarantee.none(reason, rounds=rounds), unit=unit)


def rounds_allowed(method: Method, units: ClientUnits) -> int:
    """The number of rounds of the method, or as many as its budget allows if everyone takes part in each.

    With random cohorts, how often a client takes part is not known before: such a run stops before the round that would
    exceed the budget for one of its clients.
    """
    budget, clients = method.budget, len(units.sizes)
    if budget is None or any(method.sampler.sampling(clients, index).rate < 1 for index in range(method.rounds)):
        return method.rounds

    def fits(rounds: int) -> bool:
        return rounds <= method.rounds and _after(method, units, rounds).epsilon(budget.delta) <= budget.epsilon

    found = max_rounds(fits, method.rounds)
    advice = "Not even the first round fits: use more noise, smaller batches or fewer local steps."
    expect(found >= 1, f"a budget of {budget} that allows a round", advice)
    return found


@cache
def calibrate_records(method: Method, units: ClientUnits) -> Method:
    """The method with the noise that its budget needs for the records of the worst client, in all of its rounds."""
    budget = method.budget
    assert budget is not None  # or the method could not have been composed
    often = planned_participations(method, len(units.sizes))

    def epsilon(noise: float) -> float:
        return _after(_sized(method, noise), units, often).epsilon(budget.delta)

    return _sized(method, enough_noise(_noise_for(budget, method, units, often), epsilon, budget))


def planned_participations(method: Method, population: int) -> int:
    """In how many rounds a client takes part, except with probability 0.01, in which some client does more often."""
    rates = [method.sampler.sampling(population, index).rate for index in range(method.rounds)]
    fixed, random = sum(rate == 1 for rate in rates), [rate for rate in rates if rate < 1]
    if not random:
        return fixed
    return max(1, fixed + int(binom.isf(UNLIKELY / population, len(random), max(random))))


def _noise_for(budget: Budget, method: Method, units: ClientUnits, often: int) -> float:
    """About the smallest noise, for the client that is worst at the noise which the fast accountant suggests."""

    @cache
    def fast(noise: float) -> float:
        found = _after(_sized(method, noise), _some(units, min(units.sizes), max(units.sizes)), often)
        composed = (Accounting.of(Rdp()).compose_all(each, 1) for each in found.released.values())
        return max(each.epsilon(budget.delta) for each in composed) - budget.epsilon

    start = float(brentq(fast, *bracket(fast, 1.0, 2.0), rtol=1e-3))
    worst = _after(_sized(method, start), units, often).worst(budget.delta)
    assert worst is not None
    size = units.sizes[worst.client]

    @cache
    def tight(noise: float) -> float:
        return _after(_sized(method, noise), _some(units, size), often).epsilon(budget.delta) - budget.epsilon

    return float(brentq(tight, *bracket(tight, start, 1.1), rtol=1e-5))


def _sized(method: Method, noise: float) -> Method:
    """The method with this noise for its records, wherever it is added."""
    if method.record_bound is not None:
        return replace(method, mechanism=method.mechanism.sized(noise))
    return replace(method, trainer=method.trainer.sized(noise))


def _some(units: ClientUnits, *sizes: int) -> ClientUnits:
    """As if there were only clients of these sizes, as many of each as one unit may be at."""
    return replace(units, sizes=tuple(sorted(set(sizes))) * units.copies)


def _after(method: Method, units: ClientUnits, rounds: int) -> RecordAccounting:
    """The accounting after so many rounds in which every client takes part."""
    once = RecordAccounting().compose(_charge(method, units, range(len(units.sizes))))
    released = {
        client: Counter({release: times * rounds for release, times in each.items()})
        for client, each in once.released.items()
    }
    return replace(once, released=released, rounds=rounds)


def _charge(method: Method, units: ClientUnits, cohort: Sequence[int], turnout: Turnout | None = None) -> RecordCharge:
    """What a round of these clients releases about their records, or persons."""
    sizes = units.sizes
    prices = {size: _price(method, size, turnout) for size in {sizes[client] for client in cohort}}
    clients = {client: prices[sizes[client]] for client in cohort}
    return RecordCharge(clients, units.unit, units.copies, summed=method.record_bound is not None)


def _price(method: Method, size: int, turnout: Turnout | None = None) -> Repeated:
    price = method.record_price(size, turnout)
    if not isinstance(price, Repeated):  # methods without noise are not charged, so no honest client delivered any
        raise BudgetError("The round has no noise at all: no honest client delivered. Nothing was released.")
    return price


def record_release(method: Method, turnout: Turnout | None = None) -> Release | None:
    """What a round of a sum over all clients' records releases about each; None: it has no noise at all."""
    price = method.record_price(1, turnout)
    return price.release if isinstance(price, Repeated) else None
