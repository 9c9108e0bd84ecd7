"""What a contestant's processes cost, read from `/proc`: memory and processor time of a whole tree.

Memory is the sum of PSS (proportional set size): a page shared by n processes counts 1/n in each, so that
shared data are counted once, whatever a contestant shares and however many processes it starts.
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
    """`/proc/<pid>/stat` from the state on; empty if the process is gone."""
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
    """Kilobytes of one process."""
    try:
        lines = (PROC / str(pid) / "smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def memory_mib(root: int) -> float:
    """Memory of the tree now, in MiB; 0 where the system has no `/proc`."""
    return sum(map(_pss, tree(root))) / 1024


def cpu_seconds(root: int) -> float:
    """Processor time that the tree's living processes have used so far."""
    return sum(int(fields[11]) + int(fields[12]) for pid in tree(root) if (fields := _fields(pid))) / TICKS


def end(root: int) -> None:
    """End a tree that does not end by itself."""
    for pid in tree(root):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


class PeakMemory:
    """Samples the memory of a tree while a block runs."""

    def __init__(self, root: int, interval: float = 0.1) -> None:
        self.root, self.interval, self.mib = root, interval, 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self) -> None:
        while not self._over.wait(self.interval):
            self.mib = max(self.mib, memory_mib(self.root))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
        self.mib = max(self.mib, memory_mib(self.root))
