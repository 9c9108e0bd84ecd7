"""An append-only record of what a party sent, received, charged and refused, which a privacy officer can read.

One JSON object per line, in a hash chain (`tacit.wire.chain`) that reveals changed, missing and reordered lines. It
contains names, digests, counts and reasons, but no data, weights, updates or keys. Note its head (`tacit site log`
prints it) elsewhere: anybody who can write the file can compute a new chain.
"""

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tacit.core.files import ChainedFile
from tacit.core.texts import plain
from tacit.errors import one_line

Entry = dict[str, Any]
MAX_ENTRY = 1 << 16  # characters; of a longer one, beginning and end are kept
JOURNAL = "journal"  # the purpose of its chain


class AuditLog:
    """A journal open for writing. Opening verifies the chain and drops a line that a crash cut off.

    Several processes may write: the serving site, and the operator's command that reviews a plan.

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
        """Add an entry durably: it is on disk on return. Texts are cut, whoever wrote them, so that it can be read."""
        moment = datetime.fromtimestamp(self._clock(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        shown = {name: plain(each) for name, each in content.items()}
        text = json.dumps(shown, ensure_ascii=False)
        if len(text) > MAX_ENTRY:
            shown = {"content": one_line(text)}
        self._file.append({"time": moment, "event": event, **shown})


def read_journal(path: Path) -> list[Entry]:
    """All entries; raises `UserError` if the chain is broken."""
    return ChainedFile(path, JOURNAL).entries


def content_of(entry: Entry) -> Entry:
    """An entry without its time and event."""
    return {name: value for name, value in entry.items() if name not in ("time", "event")}
