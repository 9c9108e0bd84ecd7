"""Lines for an operator about other parties, a bounded number an hour for each: nobody can fill a disk."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

LINES, SECONDS = 60, 3600.0  # lines about one party, in this many seconds; further ones are counted


@dataclass
class _Hour:
    since: float
    count: int = 0


@dataclass
class Notices:
    """Reports what happens, by the party that it is about.

    Attributes:
        say: writes a line.
        clock: seconds.
    """

    say: Callable[[str], None]
    clock: Callable[[], float] = time.monotonic
    _hours: dict[str, _Hour] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def report(self, party: str, text: str) -> None:
        """Report this about an enrolled party, or about all others together under one name."""
        with self._lock:
            hour, left_out = self._hours.get(party), 0
            if hour is None or self.clock() - hour.since > SECONDS:
                left_out = 0 if hour is None else max(0, hour.count - LINES)
                hour = self._hours[party] = _Hour(self.clock())
            hour.count += 1
            count = hour.count
        if left_out:
            self.say(f"{party}: {left_out} more lines were left out in the last hour.")
        if count <= LINES:
            self.say(f"{party}: {text}{' Further lines of this hour are left out.' if count == LINES else ''}")
