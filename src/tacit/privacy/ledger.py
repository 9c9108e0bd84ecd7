"""The privacy ledger: what was spent on one population, in a file that outlives crashes.

A round is reserved before any noise is drawn, and reserved is spent: there are no refunds, since a failure can
depend on the data. After the model is released, its digest is written down. Every row carries the hash of the one
before it, so that changed, missing and reordered rows are found when the ledger is opened. One process at a time
may hold a ledger; the operating system lets go of it when that process dies, however it dies.

::

    reserve ──► compute ──► release (the model's file appears) ──► mark (its digest is written here)
    killed before reserve returns: spent at most once, and free to repeat
    killed after it: the same round of the same run with the same event may be repeated, at no new charge;
                     it must lead to the same release, so noise must come from a stream that the run's name fixes

The hash chain shows accidents and careless hands. Whoever can write the file can also compute a new chain: keep
`Ledger.head` elsewhere (each run notes it in its manifest) to notice that.
"""

import hashlib
import json
import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Self

from tacit.core import Event
from tacit.errors import BudgetError, LedgerError, StorageError, TacitError
from tacit.privacy.accountants import RUNNING, Accountant, Pld, accountant
from tacit.privacy.accounting import Accounting, Budget
from tacit.privacy.events import canonical, from_json, to_json

FORMAT = 1
GENESIS = "0" * 64
_CHANGED = "{path} is not as it was written: {what}. Restore it from a copy. Nothing was released."
_SCHEMA = (
    "CREATE TABLE rows (number INTEGER PRIMARY KEY, body TEXT NOT NULL, hash TEXT NOT NULL)",
    "CREATE TABLE head (one INTEGER PRIMARY KEY CHECK (one = 1), number INTEGER NOT NULL, hash TEXT NOT NULL)",
)


@dataclass(frozen=True)
class Entry:
    """A round that was reserved.

    Attributes:
        run: which run, by a name that also fixes its noise.
        round: which round of it.
        event: what it releases, as canonical JSON.
        label: for people.
        digest: of the released state; None if it was not marked as released.
    """

    run: str
    round: int
    event: str
    label: str = ""
    digest: str | None = None


class Ledger:
    """An open ledger. Use `Ledger.open`, in a `with` statement.

    Formal guarantees: once `reserve` has returned, the charge is on the disk. What is released after it is
    therefore charged, whenever the process is killed. The charges of all runs together never pass the budget.
    While it is held, nothing else in this process may open the file: closing it would let go of the lock.

    Attributes:
        path: the file.
        budget: what may be spent by all runs together.
        spent: the book of all reserved rounds of all runs.

    Example:
        >>> import dp_accounting as dp, tempfile
        >>> event = dp.PoissonSampledDpEvent(1 / 60, dp.GaussianDpEvent(1.54))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with Ledger.open(Path(folder) / "ledger.db", Budget(1, 1e-5)) as ledger:
        ...         entry = ledger.reserve("first run", 1, event)
        ...         released = ledger.release(entry, "digest of the model")
        ...         ledger.spent.rounds
        1
    """

    budget: Budget
    spent: Accounting

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path, self._connection, self._process = path, connection, os.getpid()
        self._entries: dict[tuple[str, int], Entry] = {}
        self._promised: dict[tuple[str, int], str] = {}  # the event a round was first reserved with
        self._number, self.head = -1, GENESIS

    @classmethod
    def open(cls, path: Path, budget: Budget | None = None, by: Accountant | None = None) -> Self:
        """Open a ledger, or begin one, and hold it until it is closed.

        Args:
            path: the file.
            budget: for a new ledger; that of an old one stands, and another one is refused.
            by: the accountant of a new ledger, `pld` by default; that of an old one stands.

        Raises:
            LedgerError: it is held by another process, was tampered with, or has another budget.
            StorageError: it cannot be written.
        """
        path = Path(path)
        connection = _connect(path)
        try:
            ledger = cls(path, connection)
            with ledger._guarded():
                ledger._begin(budget, by)
            return ledger
        except BaseException:
            connection.close()
            raise

    def close(self) -> None:
        """Let go of the file. A forked process has nothing to let go of."""
        if os.getpid() == self._process:
            self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    @property
    def entries(self) -> tuple[Entry, ...]:
        """All reserved rounds, in order."""
        return tuple(self._entries.values())

    def rounds_left(self, event: Event) -> int:
        """How many more rounds with this event the budget allows."""
        return self.spent.rounds_left(event, self.budget.epsilon, self.budget.delta)

    def check_covers(self, run: str, rounds: int) -> None:
        """Raise `LedgerError` unless the first `rounds` rounds of this run were reserved here."""
        missing = [number for number in range(1, rounds + 1) if (run, number) not in self._entries]
        if missing:
            raise LedgerError(
                f"{self.path} is the ledger of other runs: round {missing[0]} of {run} was never charged to it. "
                "Give the ledger that this run began with."
            )

    def reserve(self, run: str, round: int, event: Event, label: str = "") -> Entry:  # noqa: A002
        """Charge a round, before any noise is drawn; on the disk when this returns.

        Repeating a reserved round of the same run with the same event costs nothing.

        Raises:
            BudgetError: it would pass the budget. Nothing was charged.
            LedgerError: the round was reserved with another event.
            StorageError: the charge could not be written. Nothing may be released.
        """
        entry = Entry(run, round, canonical(to_json(event)), label)
        known = self._entries.get((run, round))
        if known is None:
            return self._charge(entry, self.spent.charge(event))
        self._check_same(known, entry)
        return known

    def amend(self, entry: Entry, event: Event) -> Entry:
        """Put a dearer event in the place of the one that was reserved, before anything is released.

        What costs less changes nothing: reserved is spent.

        Raises:
            BudgetError: it would pass the budget. What was reserved stands.
            LedgerError: the round is released already.
            StorageError: the charge could not be written. Nothing may be released.
        """
        known = self._entries[entry.run, entry.round]
        amended = replace(known, event=canonical(to_json(event)))
        if known.digest is not None:
            self._check_same(known, amended)
        after = self._book({**self._entries, (entry.run, entry.round): amended}.values())
        if after.epsilon(self.budget.delta) <= self.spent.epsilon(self.budget.delta):
            return known
        return self._charge(amended, after)

    def _charge(self, entry: Entry, after: Accounting) -> Entry:
        """Write an entry, with which so much is spent."""
        if not after.epsilon(self.budget.delta) <= self.budget.epsilon:
            raise BudgetError(self._refusal(entry))
        self._append({"kind": "reserve", **asdict(entry)})
        self._note(entry)
        self.spent = after
        return entry

    def _book(self, entries: Iterable[Entry]) -> Accounting:
        return Accounting.of(self._by, [from_json(json.loads(entry.event)) for entry in entries])

    def release(self, entry: Entry, digest: str) -> Entry:
        """Mark a reserved round as released, with the digest of what was released; twice the same is once."""
        known = self._entries.get((entry.run, entry.round))
        if known is None:
            raise LedgerError(f"Round {entry.round} of {entry.run} was never reserved in {self.path}.")
        if known.digest not in (None, digest):
            raise LedgerError(
                f"Round {entry.round} of {entry.run} was already released with other content. "
                "A second release needs a charge of its own: begin a new run."
            )
        marked = replace(known, digest=digest)
        if known.digest is None:
            self._append({"kind": "release", "run": entry.run, "round": entry.round, "digest": digest})
            self._entries[entry.run, entry.round] = marked
        return marked

    def _begin(self, budget: Budget | None, by: Accountant | None) -> None:
        """Read what there is, or write the first row."""
        if not self._connection.execute("SELECT name FROM sqlite_master").fetchall():
            self._found(budget, by or RUNNING)
        rows = self._verified()
        try:
            self.budget, self._by = _terms(next(rows))
            self._check_terms(budget, by)
            for row in rows:
                self._replay(row)
            self.spent = self._book(self.entries)
        except TacitError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError, StopIteration) as error:
            raise self._tampered("a row makes no sense") from error

    def _found(self, budget: Budget | None, by: Accountant) -> None:
        """Tables and the first row, all at once or not at all."""
        if budget is None:
            raise LedgerError(f"{self.path} is not a ledger yet. Give its budget, epsilon and delta, to begin it.")
        terms = {
            "format": FORMAT,
            "accountant": by.name,
            "adjacency": by.adjacency.value,
            "epsilon": float(budget.epsilon),
            "delta": float(budget.delta),
        }
        self._append({"kind": "budget", **terms}, before=_SCHEMA)
        self._number, self.head = -1, GENESIS  # to be read back, like that of any ledger

    def _verified(self) -> Iterator[dict[str, object]]:
        """All rows in order, each checked against the one before it, and the last one against the head."""
        if self._connection.execute("PRAGMA quick_check").fetchall() != [("ok",)]:
            raise self._tampered("the file is damaged")
        for number, body, digest in self._connection.execute("SELECT number, body, hash FROM rows ORDER BY number"):
            if number != self._number + 1:
                raise self._tampered(f"row {self._number + 1} is missing")
            if digest != _link(self.head, number, body):
                raise self._tampered(f"row {number} was changed")
            self._number, self.head = number, digest
            yield json.loads(body)
        if self._connection.execute("SELECT number, hash FROM head").fetchall() != [(self._number, self.head)]:
            raise self._tampered(f"rows after {self._number} are missing")

    def _note(self, entry: Entry) -> None:
        self._entries[entry.run, entry.round] = entry
        self._promised.setdefault((entry.run, entry.round), entry.event)

    def _replay(self, row: dict[str, object]) -> None:
        content = {key: value for key, value in row.items() if key != "kind"}
        if row["kind"] == "reserve":
            self._note(Entry(**content))  # type: ignore[arg-type]
        else:
            known = self._entries[str(row["run"]), int(str(row["round"]))]
            self._entries[known.run, known.round] = replace(known, digest=str(row["digest"]))

    def _append(self, body: dict[str, object], before: tuple[str, ...] = ()) -> None:
        """Write one row and the head, in one transaction that is on the disk when this returns."""
        if os.getpid() != self._process:
            raise LedgerError(f"{self.path} belongs to the process that opened it, not to those forked from it.")
        text, number = canonical(body), self._number + 1
        digest = _link(self.head, number, text)
        with self._guarded():
            for statement in ("BEGIN IMMEDIATE", *before):
                self._connection.execute(statement)
            self._connection.execute("INSERT INTO rows VALUES (?, ?, ?)", (number, text, digest))
            self._connection.execute("INSERT OR REPLACE INTO head VALUES (1, ?, ?)", (number, digest))
            self._connection.execute("COMMIT")
        self._number, self.head = number, digest

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """SQLite's complaints in our words; an unfinished transaction is undone."""
        try:
            yield
        except sqlite3.Error as error:
            with suppress(sqlite3.Error):
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
            raise _translated(error, self.path) from error

    def _check_same(self, known: Entry, asked: Entry) -> None:
        if asked.event not in (known.event, self._promised[asked.run, asked.round]):
            raise LedgerError(
                f"Round {asked.round} of {asked.run} was reserved as {known.event}, but {asked.event} is asked for. "
                "A different release needs a charge of its own: begin a new run."
            )

    def _check_terms(self, budget: Budget | None, by: Accountant | None) -> None:
        if budget not in (None, self.budget):
            raise LedgerError(f"{self.path} has a budget of {self.budget}, not of {budget}. One ledger has one budget.")
        if by is not None and (by.name, by.adjacency) != (self._by.name, self._by.adjacency):
            raise LedgerError(
                f"{self.path} is kept by {self._by.name} for {self._by.adjacency}, not by {by.name} for {by.adjacency}."
            )

    def _refusal(self, entry: Entry) -> str:
        spent = self.spent.epsilon(self.budget.delta)
        return (
            f"Round {entry.round} of {entry.run} would pass the budget of {self.budget}: ε = {spent:.4g} is spent, "
            f"in {self.spent.rounds} rounds. Nothing was released."
        )

    def _tampered(self, what: str) -> LedgerError:
        return LedgerError(_CHANGED.format(path=self.path, what=what))


def _connect(path: Path) -> sqlite3.Connection:
    """A connection that holds the file for itself, with locks that die with this process and are not inherited."""
    connection: sqlite3.Connection | None = None
    try:
        connection = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute("PRAGMA synchronous = EXTRA")
        connection.execute("BEGIN EXCLUSIVE")
        connection.execute("COMMIT")
        return connection
    except sqlite3.Error as error:
        if connection is not None:
            connection.close()
        raise _translated(error, path) from error


def _translated(error: sqlite3.Error, path: Path) -> TacitError:
    """What SQLite complains about, in our words."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return LedgerError(f"{path} is held by another process. Wait until it ends, or use another ledger.")
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR):
        return LedgerError(_CHANGED.format(path=path, what=error))
    return StorageError(f"Could not write {path} ({error}). Nothing was released.")


def _link(previous: str, number: int, body: str) -> str:
    return hashlib.sha256(canonical([previous, number, body]).encode()).hexdigest()


def _terms(row: dict[str, object]) -> tuple[Budget, Accountant]:
    """What the first row says."""
    epsilon, delta = row["epsilon"], row["delta"]
    if (
        row["kind"] != "budget"
        or row["format"] != FORMAT
        or not isinstance(epsilon, float)
        or not isinstance(delta, float)
    ):
        raise ValueError(row)
    by = accountant(str(row["accountant"]), str(row["adjacency"]))
    return Budget(epsilon, delta), replace(by, interval=RUNNING.interval) if isinstance(by, Pld) else by
