"""The file of a ledger: rows that are only ever appended, as the lines of a `tacit.wire.chain`, under one lock."""

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tacit.core import files
from tacit.errors import LedgerError, StorageError, TacitError, WireError
from tacit.privacy.ledger_head import LedgerHead, write_head
from tacit.wire.chain import MAX_LINE, Chain

MAX_LEDGER_BYTES = 1 << 26  # bytes of a ledger
_CHANGED = "{path} was changed or damaged after it was written: {what}. Restore a copy of it. Nothing was released."
_SCHEMA = (
    "CREATE TABLE rows (number INTEGER PRIMARY KEY, line TEXT NOT NULL)",
    "CREATE TABLE head (one INTEGER PRIMARY KEY CHECK (one = 1), number INTEGER NOT NULL, hash TEXT NOT NULL)",
)


class LedgerFile:
    """An open, locked file. The lock ends with the process that opened it, however that ends, and is not inherited.

    Attributes:
        path: the file.
    """

    def __init__(self, path: Path) -> None:
        self.path, self._chain = path, Chain("ledger")
        self._connection, self._process = _connect(path), os.getpid()

    def close(self) -> None:
        """Release the file. A forked process holds no lock, so that this does nothing there."""
        if os.getpid() == self._process:
            self._connection.close()

    @property
    def head(self) -> LedgerHead:
        """The last row."""
        return LedgerHead(self._chain.hashes[0].hex(), len(self._chain.hashes) - 1, self._chain.head.hex())

    @property
    def hashes(self) -> list[str]:
        """The hashes of the rows read or written, in order."""
        return [each.hex() for each in self._chain.hashes]

    @property
    def is_new(self) -> bool:
        """Whether nothing was ever written to it.

        Raises:
            LedgerError: it has other tables than a ledger.
        """
        tables = self._connection.execute("SELECT sql FROM sqlite_master LIMIT 9").fetchall()
        if not set(tables) <= {(statement,) for statement in _SCHEMA}:  # a view or trigger would run its own queries
            raise self.tamper_error("it has other tables than a ledger")
        return not tables

    def create(self, body: dict[str, object]) -> None:
        """Write the tables and the first row in one transaction. The row is read back, as that of any ledger."""
        self.append(body, _SCHEMA)
        self._chain = Chain(self._chain.purpose)

    def rows(self) -> Iterator[dict[str, Any]]:
        """All rows in order, each verified against its predecessor, and the last one against the head."""
        if self._connection.execute("PRAGMA quick_check").fetchall() != [("ok",)]:
            raise self.tamper_error("the file is damaged")
        hashes = self._chain.hashes
        for number, line in self._connection.execute("SELECT number, line FROM rows ORDER BY number"):
            if number != len(hashes):
                raise self.tamper_error(f"row {len(hashes)} is missing")
            try:
                row = self._chain.read(str(line).encode("utf-8", "replace"))
            except WireError:
                raise self.tamper_error(f"row {number} was changed") from None
            yield row
        last = len(hashes) - 1
        if self._connection.execute("SELECT number, hash FROM head").fetchall() != [(last, self._chain.head.hex())]:
            raise self.tamper_error(f"rows after {last} are missing")

    def append(self, body: dict[str, object], before: Sequence[str] = ()) -> None:
        """Write one row in a transaction that is on the disk when this returns, and note it beside the ledger."""
        if os.getpid() != self._process:
            raise LedgerError(f"{self.path} belongs to the process that opened it, not to those forked from it.")
        number, row = len(self._chain.hashes), self._chain.seal(body)
        with self.errors():
            for statement in ("BEGIN IMMEDIATE", *before):
                self._connection.execute(statement)
            self._connection.execute("INSERT INTO rows VALUES (?, ?)", (number, row.line.decode()))
            self._connection.execute("INSERT OR REPLACE INTO head VALUES (1, ?, ?)", (number, row.hash.hex()))
            self._connection.execute("COMMIT")
        self._chain.hashes.append(row.hash)
        write_head(self.path, self.head)  # after the row: a head that is behind is continued by the ledger

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Roll back an unfinished transaction, and translate SQLite's errors."""
        try:
            yield
        except (sqlite3.Error, UnicodeDecodeError) as error:
            with suppress(sqlite3.Error):
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
            raise _translate(error, self.path) from error

    def tamper_error(self, what: str) -> LedgerError:
        """The error for a file that was changed."""
        return LedgerError(_CHANGED.format(path=self.path, what=what))


def _connect(path: Path) -> sqlite3.Connection:
    """A connection with an exclusive lock, which ends with this process and is not inherited."""
    connection: sqlite3.Connection | None = None
    with suppress(OSError):  # SQLite reports these better
        files.touch_private(path)
        if path.stat().st_size > MAX_LEDGER_BYTES:
            raise LedgerError(
                f"Expected {path} to have at most {MAX_LEDGER_BYTES} bytes, got more. It is not a ledger."
            )
    try:
        connection = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_LINE)
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute("PRAGMA synchronous = EXTRA")
        connection.execute("BEGIN EXCLUSIVE")
        connection.execute("COMMIT")
        return connection
    except (sqlite3.Error, UnicodeDecodeError) as error:
        if connection is not None:
            connection.close()
        raise _translate(error, path) from error


def _translate(error: sqlite3.Error | UnicodeDecodeError, path: Path) -> TacitError:
    """The error of this module; SQLite's messages quote the file, and so may not even be text."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return LedgerError(f"{path} is held by another process. Wait until it ends, or use another ledger.")
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR):
        return LedgerError(_CHANGED.format(path=path, what=error))
    return StorageError(f"Could not write {path} ({error}). Nothing was released.")
