"""What all runs of a ledger released about each unit: clients, and the records or persons within them.

A run charges clients, records, or both. What it charges to a unit covers all that it releases about that unit, and
what it does not charge follows from what it does:

| a run charges | of a client | of a record or person |
|---|---|---|
| clients | its releases | the same releases, for replace-one: the client sends another row within its bound |
| records or persons | nothing bounds it | its releases |
| both | its releases for clients | its releases for records: what is released for clients is computed from these |

A ledger does not know which client of one run is which of another, nor at which client of each run a record is. It
therefore counts, for every run, the client that is worst in composition with those of the other runs.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Self

from tacit.core.prices import Release, Unit
from tacit.privacy.accountants import Accountant, Accounting
from tacit.privacy.record_accounting import RecordAccounting, RecordCharge

Charge = Release | RecordCharge  # of a round: what it releases about clients, or about records or persons


@dataclass(frozen=True, eq=False)
class RunAccount:
    """What one run released.

    Attributes:
        clients: about clients, and how often.
        records: about the records or persons of each of its clients; None: it charges clients only.
    """

    clients: Counter[Release] = field(default_factory=Counter)
    records: RecordAccounting | None = None

    def compose(self, charge: Charge) -> Self:
        """The account with one more round."""
        if isinstance(charge, RecordCharge):
            return replace(self, records=(self.records or RecordAccounting()).compose(charge))
        return replace(self, clients=self.clients + Counter([charge]))

    def within(self, copies: int) -> RecordAccounting:
        """About a record or person at each of its clients; at `copies` of them, where it charges clients only."""
        if self.records is not None:
            return self.records
        releases = {each.at_clients(copies).within_client(): times for each, times in self.clients.items()}
        return RecordAccounting({0: Counter(releases)}, self.clients.total())


@dataclass(frozen=True, eq=False)
class LedgerAccounts:
    """What all runs of a ledger released. Immutable.

    Attributes:
        clients: the accounting of clients, over all rounds of all runs that charge them.
        runs: the account of every run, by its name.
        unit: what runs charge within clients: records or persons; None: no run did.
        copies: at how many clients one of them is, at most, as far as runs know it.
    """

    clients: Accounting
    runs: Mapping[str, RunAccount] = field(default_factory=dict)
    unit: Unit | None = None
    copies: int = 1

    @classmethod
    def of(cls, accountant: Accountant, charges: Iterable[tuple[str, Charge]]) -> Self:
        """The accounts of these rounds, each with the name of its run."""
        found, releases = cls(Accounting.of(accountant)), list[Release]()
        for run, charge in charges:
            found = found._with(run, charge)
            if isinstance(charge, Release):
                releases.append(charge)
        return replace(found, clients=Accounting.of(accountant, releases))  # equal ones are composed at once

    def compose(self, run: str, charge: Charge) -> Self:
        """The accounts with one more round of this run."""
        found = self._with(run, charge)
        return replace(found, clients=self.clients.compose(charge)) if isinstance(charge, Release) else found

    def _with(self, run: str, charge: Charge) -> Self:
        """With one more round in the account of its run."""
        runs = {**self.runs, run: self.runs.get(run, RunAccount()).compose(charge)}
        if isinstance(charge, Release):
            return replace(self, runs=runs)
        return replace(self, runs=runs, unit=charge.unit, copies=max(self.copies, charge.copies))

    @cached_property
    def records(self) -> RecordAccounting:
        """What was released about a record or person, whichever clients of each run it is at."""
        if not self.runs:
            return RecordAccounting()
        first, *others = (each.within(self.copies) for each in self.runs.values())
        return replace(first, others=tuple(others), rounds=sum(each.rounds for each in (first, *others)))

    @cached_property
    def bounds_clients(self) -> bool:
        """Whether every run charges clients, so that their account is complete."""
        return all(each.clients for each in self.runs.values())

    @property
    def units(self) -> tuple[Unit, ...]:
        """Whom runs charge: each has an account that a budget applies to."""
        charged = any(each.clients for each in self.runs.values())
        return (*((Unit.CLIENT,) if charged else ()), *(() if self.unit is None else (self.unit,)))

    def composed(self, unit: Unit) -> Accounting | RecordAccounting:
        """What was charged to this unit; of clients, only by the runs that charge them."""
        return self.clients if unit is Unit.CLIENT else self.records

    def epsilon(self, unit: Unit, delta: float) -> float:
        """The ε of this unit for all runs together, at this δ; infinite if nothing bounds it."""
        if unit is Unit.CLIENT and not self.bounds_clients:
            return math.inf
        return self.composed(unit).epsilon(delta)

    def costs_more(self, other: Self, run: str, unit: Unit, delta: float) -> bool:
        """Whether anybody's ε of this unit is larger than in other accounts, of which only this run differs."""
        if unit is Unit.CLIENT:
            return self.clients.costs_more(other.clients, delta)
        mine, its = (each.runs[run].within(each.copies) for each in (self, other))
        return mine.costs_more(its, delta)
