"""An append-only record of what a party sent, received, charged and refused, which a privacy officer can read.

One JSON object per line; each holds the hash of the line before it, so that changed, missing and reordered lines are
noticed. It contains names, digests, counts and reasons: no data, no weights, no updates and no keys. Like that of the
ledger, the chain shows accidents and careless changes; who can write the file can compute a new one, so note its head
(`tacit site log` prints it) elsewhere.
"""

import hashlib
import json
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from tacit.core import files
from tacit.errors import UserError

GENESIS = "0" * 64
MAX_LINE = 1 << 16  # bytes of an entry
LIMIT = 1 << 30  # bytes of a journal
Entry = dict[str, object]
_OWN = ("number", "time", "previous", "hash")


class AuditLog:
    """A journal that is being written. Opening it verifies the chain; a line that a crash cut off is removed.

    Several processes may write: a site that serves, and the command with which its operator reviews a plan.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     journal = AuditLog(Path(folder) / "log.jsonl", clock=lambda: 0.0)
        ...     journal.append("charged", round=1)
        ...     [(entry["event"], entry["round"], entry["time"]) for entry in read_journal(journal.path)]
        [('charged', 1, '1970-01-01T00:00:00Z')]
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self.path, self._clock = path, clock
        self.count, self.head, self._size = 0, GENESIS, 0
        with files.storage_errors(path):
            files.make_private(path.parent)
            files.touch_private(path)
            with path.open("rb") as file:
                files.lock(file)
                self._continue()

    def append(self, event: str, **content: object) -> None:
        """Add an entry; it is on the disk when this returns."""
        with files.storage_errors(self.path), self.path.open("ab") as file:
            files.lock(file)
            if file.tell() != self._size:  # another process has written
                self._continue()
            moment = datetime.fromtimestamp(self._clock(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            entry = {"number": self.count, "time": moment, "event": event, **content, "previous": self.head}
            digest = _hash(entry)
            file.write((json.dumps({**entry, "hash": digest}, ensure_ascii=False) + "\n").encode())
            files.flush(file)
            self.count, self.head, self._size = self.count + 1, digest, file.tell()

    def _continue(self) -> None:
        """Read up to the last entry."""
        entries = list(_verified(self.path, cut=True))
        self.count, self.head = len(entries), str(entries[-1]["hash"]) if entries else GENESIS
        self._size = self.path.stat().st_size


def read_journal(path: Path) -> list[Entry]:
    """All entries; raises `UserError` if the chain is broken."""
    return list(_verified(path))


def content_of(entry: Entry) -> Entry:
    """What an entry is about, without its number, time and hashes."""
    return {name: value for name, value in entry.items() if name not in (*_OWN, "event")}


def _verified(path: Path, *, cut: bool = False) -> Iterator[Entry]:
    content = files.read(path, "the journal", limit=LIMIT)
    whole, _, rest = content.rpartition(b"\n")
    if rest and cut:  # a crash while it was written: it was never acknowledged
        with path.open("rb+") as file:
            file.truncate(len(content) - len(rest))
    previous = GENESIS
    for number, line in enumerate(whole.splitlines() if whole else []):
        entry = _parsed(line, path, number)
        found = entry.pop("hash")
        if entry.get("number") != number or entry.get("previous") != previous or _hash(entry) != found:
            raise UserError(f"Line {number + 1} of {path} was changed, or lines before it are missing.")
        previous = str(found)
        yield {**entry, "hash": found}


def _parsed(line: bytes, path: Path, number: int) -> Entry:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        entry = None
    if not isinstance(entry, dict) or "hash" not in entry or len(line) > MAX_LINE:
        raise UserError(f"Expected line {number + 1} of {path} to be an entry of a journal, got other content.")
    return entry


def _hash(entry: Entry) -> str:
    text = json.dumps(entry, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()
