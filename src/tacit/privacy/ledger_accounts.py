"""What all runs of a ledger released about each unit: clients, and the records or persons within them.

A run charges clients, records, or both. What it charges to a unit covers all that it releases about that unit, and
what it does not charge follows from what it does:

| a run charges | of a client | of a record or person |
|---|---|---|
| clients | its releases | the same releases, for replace-one: the client sends another row within its bound |
| records or persons | nothing bounds it | its releases |
| both | its releases for clients | its releases for records: what is released for clients is computed from these |

Clients whose data are equal, by a digest with a key of their owner, are the same in all runs, whatever their numbers
are. Data that differ are never taken for disjoint: where clients are not known to be the same, the client of every run
counts that is worst in composition with those of the others.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Self

from tacit.core.prices import Unit
from tacit.privacy.accountants import Accountant
from tacit.privacy.unit_accounting import ANYONE, Charge, UnitAccounting

RunAccount = Mapping[Unit, UnitAccounting]  # what one run released about each unit that it charges


@dataclass(frozen=True, eq=False)
class LedgerAccounts:
    """What all runs of a ledger released. Immutable; `accounts[unit]` is what was charged to a unit.

    Attributes:
        clients: the accounting of clients, over all rounds of all runs that charge them.
        runs: the account of every run, by its name.
        within: what runs charge within clients; `record` until one does.
        copies: at how many clients one of them is, at most, as far as runs know it.
    """

    clients: UnitAccounting
    runs: Mapping[str, RunAccount] = field(default_factory=dict)
    within: Unit = Unit.RECORD
    copies: int = 1

    @classmethod
    def of(cls, accountant: Accountant, charges: Iterable[tuple[str, Charge]]) -> Self:
        """The accounts of these rounds, each with the name of its run."""
        accounts, of_clients = cls(UnitAccounting(Unit.CLIENT)), list[Charge]()
        for run, charge in charges:
            accounts = accounts._with(run, charge)
            of_clients += [] if charge.unit.within_client else [charge]
        return replace(accounts, clients=UnitAccounting.of(Unit.CLIENT, of_clients, accountant))

    def compose(self, run: str, charge: Charge) -> Self:
        """The accounts with one more round of this run."""
        accounts = self._with(run, charge)
        return accounts if charge.unit.within_client else replace(accounts, clients=self.clients.compose(charge))

    def _with(self, run: str, charge: Charge) -> Self:
        """With one more round in the account of its run."""
        account = self.runs.get(run, {})
        composed = account.get(charge.unit, UnitAccounting(charge.unit)).compose(charge)
        accounts = replace(self, runs={**self.runs, run: {**account, charge.unit: composed}})
        if not charge.unit.within_client:
            return accounts
        return replace(accounts, within=charge.unit, copies=max(self.copies, charge.copies))

    def __getitem__(self, unit: Unit) -> UnitAccounting:
        """The charges to this unit; for clients, only by the runs that charge them."""
        return self._within if unit.within_client else self.clients

    @cached_property
    def _within(self) -> UnitAccounting:
        """What was released about a record or person, whichever clients of each run it is at."""
        if not self.runs:
            return UnitAccounting(self.within)
        first, *others = _align(map(self._of_run, self.runs))
        return replace(first, others=tuple(others), rounds=sum(each.rounds for each in (first, *others)))

    def _of_run(self, run: str) -> UnitAccounting:
        """What a run released about a record or person of each of its clients; at `copies`, unless the run knows."""
        account = self.runs[run]
        within_clients = next((each for unit, each in account.items() if unit.within_client), None)
        if within_clients is not None:
            return within_clients.at_copies(self.copies)
        of_clients = account[Unit.CLIENT]
        counts = of_clients.released[ANYONE].items()
        releases = Counter({each.at_clients(self.copies).within_client(): times for each, times in counts})
        return UnitAccounting(self.within, {0: releases}, of_clients.rounds)

    @property
    def counts_clients_within(self) -> bool:
        """Whether a run's releases about clients count for the units within them."""
        return any(set(account) == {Unit.CLIENT} for account in self.runs.values())

    @property
    def units(self) -> tuple[Unit, ...]:
        """The units that runs charge: each has an account within the budget."""
        charged = {unit for account in self.runs.values() for unit in account}
        return tuple(unit for unit in Unit if unit in charged)

    def epsilon(self, unit: Unit, delta: float) -> float:
        """The ε of this unit for all runs together, at this δ; infinite if nothing bounds it."""
        if not unit.within_client and any(unit not in account for account in self.runs.values()):
            return math.inf
        return self[unit].epsilon(delta)

    def costs_more(self, other: Self, run: str, unit: Unit, delta: float) -> bool:
        """Whether anybody's ε of this unit is larger than in other accounts, of which only this run differs."""
        own, its = ((each._of_run(run) if unit.within_client else each.clients) for each in (self, other))
        return own.costs_more(its, delta)


def _align(runs: Iterable[UnitAccounting]) -> list[UnitAccounting]:
    """The accountings of runs, of which those whose clients' data are partly the same are one."""
    accountings: list[UnitAccounting] = []
    for run in runs:
        for index, earlier in enumerate(accountings):
            together = earlier.align(run)
            if together is not None:
                accountings[index] = together
                break
        else:
            accountings.append(run)
    return accountings
