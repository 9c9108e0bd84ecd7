"""An append-only record of what a party sent, received, charged and refused, which a privacy officer can read.

One JSON object per line, chained by hashes (`tacit.wire.chain`), so that changed, missing and reordered lines are
noticed. It contains names, digests, counts and reasons: no data, no weights, no updates and no keys. Note its head
(`tacit site log` prints it) elsewhere: who can write the file can compute a new chain.
"""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tacit.core.files import ChainedFile

Entry = dict[str, Any]
JOURNAL = "journal"  # the purpose of its chain


class AuditLog:
    """A journal that is being written. Opening it verifies the chain; a line that a crash cut off is left out.

    Several processes may write: a site that serves, and the command with which its operator reviews a plan.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     journal = AuditLog(Path(folder) / "log.jsonl", clock=lambda: 0.0)
        ...     journal.append("charged", round=1)
        ...     read_journal(journal.path)
        [{'time': '1970-01-01T00:00:00Z', 'event': 'charged', 'round': 1}]
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self.path, self._clock = path, clock
        self._file = ChainedFile.open(path, JOURNAL)

    def append(self, event: str, **content: object) -> None:
        """Add an entry; it is on the disk when this returns."""
        moment = datetime.fromtimestamp(self._clock(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        self._file.append({"time": moment, "event": event, **content})


def read_journal(path: Path) -> list[Entry]:
    """All entries; raises `UserError` if the chain is broken."""
    return ChainedFile(path, JOURNAL).entries


def content_of(entry: Entry) -> Entry:
    """What an entry is about, without its time and event."""
    return {name: value for name, value in entry.items() if name not in ("time", "event")}
