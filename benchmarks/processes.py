"""Memory and processor time of a process and all its descendants, read from `/proc`.

Memory is the sum of PSS (proportional set size): a page shared by n processes counts 1/n in each, so shared data count
once, whatever a framework shares and however many processes it starts.
"""

import os
import signal
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

PROC = Path("/proc")
TICKS = os.sysconf("SC_CLK_TCK")


def _fields(pid: int) -> list[str]:
    """`/proc/<pid>/stat` from the state on; empty if the process has ended."""
    try:
        return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def tree(root: int) -> list[int]:
    """A process and all its descendants."""
    children: dict[int, list[int]] = {}
    for entry in PROC.iterdir() if PROC.exists() else ():
        if entry.name.isdigit() and (fields := _fields(int(entry.name))):
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found = [root]
    for pid in found:
        found.extend(children.get(pid, ()))
    return found


def _pss(pid: int) -> int:
    """The PSS of one process, in kilobytes."""
    try:
        lines = (PROC / str(pid) / "smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def memory_mib(root: int) -> float:
    """The current memory of the process tree, in MiB; 0 where the system has no `/proc`."""
    return sum(map(_pss, tree(root))) / 1024


def cpu_seconds(root: int) -> float:
    """The processor time that the running processes of the tree have used so far."""
    return sum(int(fields[11]) + int(fields[12]) for pid in tree(root) if (fields := _fields(pid))) / TICKS


def end(root: int) -> None:
    """Kill a process tree that does not end by itself."""
    for pid in tree(root):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


class PeakMemory:
    """Samples the memory of a process tree while a block runs."""

    def __init__(self, root: int, interval: float = 0.1) -> None:
        self.root, self.interval, self.mib = root, interval, 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def _sample(self) -> None:
        while not self._stop.wait(self.interval):
            self.mib = max(self.mib, memory_mib(self.root))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        self.mib = max(self.mib, memory_mib(self.root))
