"""Removes the pads of secure aggregation in several processes: most of a server's work on long vectors.

Outside of `tacit.protocols.secagg`, which does no I/O: give `PadProcesses.remove` to its `converse`, or
`remove_many_pads`, as the server of a federation does, which starts processes where there is work for them.
"""

import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from types import TracebackType

import numpy as np

from tacit.core.worker_choice import available_cores
from tacit.errors import whole
from tacit.protocols.secagg.pads import Vector, remove_pads

MANY = 10**10  # numbers of pads: five to ten seconds on one core, of which the start of processes takes one or two
_PORTIONS = 4  # per process: they end at about the same time, and few vectors wait to be added


class PadProcesses:
    """Processes that remove pads, each a portion of them; use it as a context manager.

    Example:
        >>> from tacit.protocols.secagg import pads
        >>> keys = [bytes([number]) * 32 for number in range(20)]
        >>> one, other = np.zeros(1000, np.uint32), np.zeros(1000, np.uint32)
        >>> pads.remove_pads(one, keys[:15], keys[15:])
        >>> with PadProcesses(2) as processes:
        ...     processes.remove(other, keys[:15], keys[15:])
        >>> bool((one == other).all())
        True
    """

    def __init__(self, workers: int) -> None:
        whole(1, workers=workers)
        self._workers = workers
        context = multiprocessing.get_context("spawn")  # threads of libraries do not survive a fork
        self._pool = ProcessPoolExecutor(workers, mp_context=context)

    def __enter__(self) -> "PadProcesses":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(cancel_futures=True)

    def remove(self, total: Vector, added: Sequence[bytes], subtracted: Sequence[bytes]) -> None:
        """As `pads.remove_pads`, in place, with the same result."""
        portions = min(self._workers * _PORTIONS, max(1, len(added) + len(subtracted)))
        tasks = [
            self._pool.submit(_portion, total.size, added[start::portions], subtracted[start::portions])
            for start in range(portions)
        ]
        for task in tasks:
            np.add(total, np.frombuffer(task.result(), np.uint32), out=total)


def remove_many_pads(total: Vector, added: Sequence[bytes], subtracted: Sequence[bytes]) -> None:
    """As `pads.remove_pads`, in place, with the same result: from `MANY` numbers on, in one process for each core."""
    cores = available_cores()
    if cores == 1 or total.size * (len(added) + len(subtracted)) < MANY:
        remove_pads(total, added, subtracted)
        return
    with PadProcesses(cores) as processes:
        processes.remove(total, added, subtracted)


def _portion(size: int, added: Sequence[bytes], subtracted: Sequence[bytes]) -> bytes:
    """The change of the total by removing pads."""
    partial = np.zeros(size, np.uint32)
    remove_pads(partial, added, subtracted)
    return partial.tobytes()
