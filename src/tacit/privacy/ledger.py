"""The privacy ledger: the charges for one population, in a file that survives crashes.

A round is reserved before any noise is drawn, and what is reserved is used: there are no refunds, because a failure can
depend on the data. After the model is released, its digest is recorded. Every row contains the hash of the previous
one, so that changed, missing and reordered rows are detected when the ledger is opened. Only one process at a time can
hold a ledger; the operating system releases the lock when that process ends, however it ends.

::

    reserve ──► compute ──► release (the model is written) ──► mark (its digest is recorded here)
    killed before reserve returns: charged at most once, and free to repeat
    killed after it: the same round of the same run with the same release and the same key may be repeated without a
                     new charge; it leads to the same release, because the noise derives from the key. With another key
                     it is another attempt, which is charged like any round

Rounds are charged by unit, and each unit has an account within the ledger's budget (`ledger_accounts`). What a run that
protects clients releases is charged to records, too, at twice its distance; of clients, nothing holds after a run that
protects only records. Batches draw records or persons: a ledger has charges for one of the two, because either account
would miss what runs for the other released.

The ledger knows the digest of every key that noise was drawn from, and refuses a key under any other round or run:
noise that is added twice cancels out of the difference.

The hash chain detects accidents and careless changes. An older copy of the file has a valid chain, too, and anyone who
can write the file can compute a new one. `Ledger.head` is therefore noted outside of the file: beside it after every
row, where `Ledger.open` checks it, in the manifest of every run, which is checked when that run is resumed or a new one
starts beside it, and, at a site, in its log. Only someone who changes all of these goes unnoticed.
"""

import json
import math
import secrets
import sqlite3
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from itertools import count, takewhile
from pathlib import Path
from types import TracebackType
from typing import Self

from msgspec import Struct, convert, to_builtins

from tacit.core import Budget
from tacit.core.prices import NO_LIMIT, Unit
from tacit.errors import BudgetError, LedgerError, TacitError
from tacit.privacy.accountants import FAST_PLD, Accountant, accountant_by_name
from tacit.privacy.ledger_accounts import LedgerAccounts
from tacit.privacy.ledger_file import LedgerFile
from tacit.privacy.ledger_head import LedgerHead, LedgerUse, NotedHead, head_file, read_head
from tacit.privacy.release_json import canonical, charge_from_json, charge_to_json
from tacit.privacy.unit_accounting import Charge

_FORMAT = 2


class _Terms(Struct, tag_field="kind", tag="budget"):
    """The first row; `id` is random, so that no other ledger has the same one."""

    format: int
    id: str
    accountant: str
    adjacency: str
    epsilon: float
    delta: float


@dataclass(frozen=True)
class LedgerEntry:
    """A reserved round, or a further attempt at it.

    Attributes:
        run: the run's name.
        round: the round's number in that run.
        event: what the round releases, as canonical JSON.
        label: a description for people.
        digest: digest of the released state; None if the round was not marked as released.
        key: digest of the key of the round's noise; empty if it was not given.
        attempt: 1, and one more each time that the round was repeated with another key.
        unit: whose privacy is charged; a round of the same run may have an entry for each unit.
    """

    run: str
    round: int
    event: str
    label: str = ""
    digest: str | None = None
    key: str = ""
    attempt: int = 1
    unit: Unit = Unit.CLIENT

    @property
    def number(self) -> "EntryNumber":
        """Its identifier in the ledger."""
        return self.run, self.round, self.attempt, self.unit

    @property
    def charge(self) -> Charge:
        """The charge for its unit."""
        return charge_from_json(json.loads(self.event), self.unit)


EntryNumber = tuple[str, int, int, Unit]  # run, round, attempt and whose privacy is charged


class Ledger:
    """An open ledger. Use `Ledger.open` in a `with` statement.

    Formal guarantees: once `reserve` has returned, the charge is on the disk. Whatever is released after that is
    therefore charged, whenever the process is killed. The charges of all runs together never exceed the budget. While a
    ledger is open, nothing else in this process may open the file: closing it would release the lock.

    Attributes:
        path: the file.
        budget: the budget of all runs together, for each unit.
        accounts: what all reserved rounds of all runs release about each unit. What is within clients has the tightest
            accountant, whatever that of the ledger is.

    Example:
        >>> import tempfile
        >>> from tacit.core.prices import Gaussian, Release, Sampling
        >>> release = Release(Gaussian(1.54), sampling=Sampling("poisson", 1 / 60))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with Ledger.open(Path(folder) / "ledger.db", Budget(1, 1e-5)) as ledger:
        ...         entry = ledger.reserve("first run", 1, Charge.of_clients(release))
        ...         released = ledger.release(entry, "digest of the model")
        ...         ledger.accounts[Unit.CLIENT].rounds
        1
    """

    budget: Budget
    accounts: LedgerAccounts

    def __init__(self, file: LedgerFile) -> None:
        self.path, self._file = file.path, file
        self._entries: dict[EntryNumber, LedgerEntry] = {}
        self._first_events: dict[EntryNumber, str] = {}  # the event with which an attempt was first reserved
        self._keys: dict[str, tuple[str, int]] = {}  # the run and the round of each key

    @classmethod
    def open(
        cls,
        path: Path,
        budget: Budget | None = None,
        accountant: Accountant | None = None,
        *,
        limit: Budget | None = None,
        noted: NotedHead | None = None,
    ) -> Self:
        """Open or create a ledger, and lock it until it is closed.

        Args:
            path: the file.
            budget: of a new ledger; an existing ledger keeps its own and refuses another.
            accountant: of a new ledger, `pld` by default; an existing ledger keeps its own.
            limit: the budget until it is closed, for a ledger that has none of its own; a new one then has none. A
                ledger that has a budget refuses another limit.
            noted: a head that was noted elsewhere, which this ledger must continue, even if it is missing.

        Raises:
            LedgerError: another process holds it, it was tampered with, or it has another budget.
            StorageError: it cannot be written.
        """
        file = LedgerFile(Path(path))
        try:
            ledger = cls(file)
            with file.errors():
                ledger._load(budget, accountant, limit, noted)
            return ledger
        except BaseException:
            file.close()
            raise

    def close(self) -> None:
        """Release the file. A forked process holds no lock, so that this does nothing there."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    @property
    def entries(self) -> tuple[LedgerEntry, ...]:
        """All reserved rounds, in the order of their reservation; every attempt is an entry."""
        return tuple(self._entries.values())

    @property
    def head(self) -> LedgerHead:
        """The last row; with a copy of it, a rollback of the ledger can be detected."""
        return self._file.head

    @property
    def use(self) -> LedgerUse:
        """What all runs together have used of the budget."""
        delta, rounds = self.budget.delta, {(entry.run, entry.round) for entry in self.entries}
        units = self.accounts.units
        epsilons = {unit: self.accounts.epsilon(unit, delta) for unit in units}
        return LedgerUse(
            self.path,
            {unit: epsilon if math.isfinite(epsilon) else None for unit, epsilon in epsilons.items()},
            self.budget,
            len(rounds),
            len(self.accounts.runs),
        )

    def check_continues(self, head: LedgerHead, noted: str) -> None:
        """Raise `LedgerError` unless this ledger still has all rows up to a head that was noted earlier."""
        head.check_precedes(self._file.hashes, self.path, noted)

    def check_charged(self, run: str, rounds: int, unit: Unit = Unit.CLIENT) -> None:
        """Raise `LedgerError` unless the first `rounds` rounds of this run were charged here."""
        missing = [number for number in range(1, rounds + 1) if (run, number, 1, unit) not in self._entries]
        if missing:
            raise LedgerError(
                f"{self.path} is the ledger of other runs: round {missing[0]} of {run} was never charged to it. "
                "Give the ledger with which this run was started."
            )

    def reserve(
        self,
        run: str,
        round: int,  # noqa: A002
        charge: Charge,
        label: str = "",
        key: str = "",
    ) -> LedgerEntry:
        """Charge a round before any noise is drawn; the charge is on the disk when this returns.

        Repeating a reserved round of the same run with the same charge and key costs nothing. With another key, the
        noise is new and so is the release: it is a further attempt, with a charge of its own.

        Raises:
            BudgetError: the round would exceed the budget. Nothing was charged.
            LedgerError: the round was reserved with another release, or the key belongs to another round.
            StorageError: the charge could not be written. Nothing may be released.
        """
        unit = charge.unit
        self._check_within(unit)
        earlier = self.attempts(run, round, unit)
        reserved = next((each for each in earlier if each.key == key), None)
        attempt = reserved.attempt if reserved else len(earlier) + 1
        entry = LedgerEntry(run, round, canonical(charge_to_json(charge)), label, key=key, attempt=attempt, unit=unit)
        self._check_key(entry)
        if reserved is None:
            return self._charge(entry, self.accounts.compose(run, charge))
        self._check_same(reserved, entry)
        return reserved

    def attempts(self, run: str, round: int, unit: Unit = Unit.CLIENT) -> tuple[LedgerEntry, ...]:  # noqa: A002
        """All attempts at a round, in the order of their reservation."""
        numbers = takewhile(self._entries.__contains__, ((run, round, attempt, unit) for attempt in count(1)))
        return tuple(self._entries[number] for number in numbers)

    def increase(self, entry: LedgerEntry, charge: Charge) -> LedgerEntry:
        """Replace the release of a reserved round by a costlier one, before anything is released.

        A release that costs less changes nothing: there are no refunds.

        Raises:
            BudgetError: the round would exceed the budget. The reservation is unchanged.
            LedgerError: the round was already released.
            StorageError: the charge could not be written. Nothing may be released.
        """
        reserved = self._entries[entry.number]
        increased = replace(reserved, event=canonical(charge_to_json(charge)))
        if reserved.digest is not None:
            self._check_same(reserved, increased)
        after = self._account({**self._entries, entry.number: increased}.values())
        if not after.costs_more(self.accounts, entry.run, entry.unit, self.budget.delta):
            return reserved
        return self._charge(increased, after)

    def _charge(self, entry: LedgerEntry, after: LedgerAccounts) -> LedgerEntry:
        """Write an entry; `after` are the accounts that include it."""
        for unit in after.units if self.budget.limited else ():
            if not after[unit].epsilon(self.budget.delta) <= self.budget.epsilon:
                raise BudgetError(self._refusal(entry, unit))
        self._file.append({"kind": "reserve", **asdict(entry)})
        self._add(entry)
        self.accounts = after
        return entry

    def _account(self, entries: Iterable[LedgerEntry]) -> LedgerAccounts:
        return LedgerAccounts.of(self._accountant, ((entry.run, entry.charge) for entry in entries))

    def release(self, entry: LedgerEntry, digest: str) -> LedgerEntry:
        """Mark a reserved round as released, with the digest of what was released. Idempotent."""
        reserved = self._entries.get(entry.number)
        if reserved is None:
            raise LedgerError(f"Round {entry.round} of {entry.run} was never reserved in {self.path}.")
        if reserved.digest not in (None, digest):
            raise LedgerError(
                f"Round {entry.round} of {entry.run} was already released with other content. "
                "A second release needs its own charge: start a new run."
            )
        marked = replace(reserved, digest=digest)
        if reserved.digest is None:
            number = {"run": entry.run, "round": entry.round, "attempt": entry.attempt, "unit": entry.unit.value}
            self._file.append({"kind": "release", **number, "digest": digest})
            self._entries[entry.number] = marked
        return marked

    def _load(
        self,
        budget: Budget | None,
        accountant: Accountant | None,
        limit: Budget | None,
        elsewhere: NotedHead | None = None,
    ) -> None:
        """Read all rows; write the first one if the file is new."""
        new, beside = self._file.is_new, read_head(self.path)
        noted = [head for head in (beside and NotedHead(beside, str(head_file(self.path))), elsewhere) if head]
        if limit is not None and budget is None and new:
            budget = Budget(NO_LIMIT, limit.delta)
        if new:
            self._check_noted(noted)  # a ledger that was deleted is not begun anew
            self._create(budget, accountant or FAST_PLD)
        rows = self._file.rows()
        try:
            self.budget, self._accountant = _parse_terms(next(rows))
            self._check_terms(budget, accountant)
            self._limit(limit)
            for row in rows:
                self._replay(row)
            self._check_noted(noted)
            self.accounts = self._account(self.entries)
        except (TacitError, sqlite3.Error, UnicodeDecodeError):
            raise
        except Exception as error:  # whatever the content of a row leads to
            raise self._file.tamper_error("a row has invalid content") from error

    def _check_noted(self, noted: Iterable[NotedHead]) -> None:
        for each in noted:
            self.check_continues(each.head, each.place)

    def _create(self, budget: Budget | None, accountant: Accountant) -> None:
        """Write the first row of a new ledger: its terms."""
        if budget is None:
            raise LedgerError(f"{self.path} is not a ledger yet. Give its budget, epsilon and delta, to create it.")
        limit, own_id = (float(budget.epsilon), float(budget.delta)), secrets.token_hex(16)
        self._file.create(to_builtins(_Terms(_FORMAT, own_id, accountant.name, accountant.adjacency.value, *limit)))

    def _add(self, entry: LedgerEntry) -> None:
        self._entries[entry.number] = entry
        self._first_events.setdefault(entry.number, entry.event)
        if entry.key:
            self._keys[entry.key] = entry.run, entry.round

    def _replay(self, row: dict[str, object]) -> None:
        content = {key: value for key, value in row.items() if key != "kind"}
        unit = Unit(str(content.pop("unit")))
        if row["kind"] == "reserve":
            self._add(LedgerEntry(**content, unit=unit))  # type: ignore[arg-type]
        else:
            number = str(row["run"]), int(str(row["round"])), int(str(row["attempt"])), unit
            self._entries[number] = replace(self._entries[number], digest=str(row["digest"]))

    def _check_same(self, known: LedgerEntry, requested: LedgerEntry) -> None:
        first = self._first_events[requested.number]
        if requested.charge not in (known.charge, replace(known, event=first).charge):  # their text may differ
            raise LedgerError(
                f"Round {requested.round} of {requested.run} was reserved as {known.event}, but {requested.event} is "
                "requested. A different release needs its own charge: start a new run."
            )

    def _check_key(self, entry: LedgerEntry) -> None:
        """Raise `LedgerError` if another round has this key."""
        run, number = self._keys.get(entry.key, (entry.run, entry.round))
        if (run, number) != (entry.run, entry.round):
            raise LedgerError(
                f"{self.path} knows the key of round {entry.round} of {entry.run}: it is that of round {number} of "
                f"{run}. The difference of two releases with the same noise has none. Use secret noise, or with seeded "
                "noise another seed. Nothing was released."
            )

    def _check_within(self, unit: Unit) -> None:
        """Raise `LedgerError` if records are to be charged where persons were, or persons where records were."""
        others = {entry.unit for entry in self.entries if entry.unit.within_client} - {unit}
        if unit.within_client and others:
            (other,) = others
            raise LedgerError(
                f"{self.path} has charges for {other}s, and this run would charge {unit}s: each account would miss "
                f"what the other released. Use a ledger of runs that protect {unit}s, or give all runs the same "
                "person=. Nothing was released."
            )

    def _check_terms(self, budget: Budget | None, accountant: Accountant | None) -> None:
        if budget not in (None, self.budget):
            raise LedgerError(
                f"{self.path} has a budget of {self.budget}, not of {budget}. A ledger has only one budget."
            )
        own = self._accountant
        if accountant is not None and (accountant.name, accountant.adjacency) != (own.name, own.adjacency):
            raise LedgerError(
                f"{self.path} uses accountant {own.name} for {own.adjacency}, "
                f"not {accountant.name} for {accountant.adjacency}."
            )

    def _limit(self, limit: Budget | None) -> None:
        """Set the budget until it is closed."""
        if limit is not None and not self.budget.limited:
            self.budget = limit
        self._check_terms(limit, None)

    def _refusal(self, entry: LedgerEntry, unit: Unit) -> str:
        epsilon = self.accounts[unit].epsilon(self.budget.delta)
        rounds = len({each.number[:3] for each in self.entries if unit.within_client or each.unit is unit})
        scope = "" if self.accounts.units == (Unit.CLIENT,) == (entry.unit,) else f" for a {unit}"
        of_clients = unit.within_client and (not entry.unit.within_client or self.accounts.counts_clients_within)
        too = f"; what runs that protect clients release counts for a {unit}, too, at twice its distance" * of_clients
        return (
            f"Round {entry.round} of {entry.run} would exceed the budget of {self.budget}{scope}: ε = {epsilon:.4g} is "
            f"already used, by {rounds} rounds{too}. Nothing was released."
        )


def _parse_terms(row: dict[str, object]) -> tuple[Budget, Accountant]:
    """Budget and accountant, from the first row."""
    terms = convert(row, _Terms)
    if terms.format != _FORMAT:
        raise ValueError(row)
    accountant = accountant_by_name(terms.accountant, terms.adjacency)
    fast = replace(FAST_PLD, adjacency=accountant.adjacency)
    return Budget(terms.epsilon, terms.delta), fast if accountant.name == fast.name else accountant
