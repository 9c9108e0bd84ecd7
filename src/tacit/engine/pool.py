"""Worker processes: started once, fed through pipes, replaced when they die.

Results are handed over in the order of the jobs, whichever process finished first, so that what is folded from
them does not depend on the number of workers.
"""

import ctypes
import multiprocessing
import os
import signal
import sys
import traceback
from collections import deque
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkContext
from typing import Any, Protocol

import torch

from tacit.engine.worker import Job, Worker
from tacit.errors import TacitError, WorkerError, expect

PATIENCE = 3  # deaths on one job before the run is given up


class Pool(Protocol):
    """Something that does jobs."""

    def run(self, jobs: Sequence[Job], ahead: int) -> Iterator[Any]:
        """The jobs' results in order; at most `ahead` jobs are started before the first is handed over."""
        ...

    def close(self) -> None:
        """End all processes."""
        ...


def make_pool(worker: Worker, workers: int) -> Pool:
    """A pool of that many processes; one worker is this process itself."""
    return InProcessPool(worker) if workers == 1 else ProcessPool(worker, workers)


def count_workers(asked: int | None, device: str) -> int:
    """How many workers to start: as many as cores unless asked otherwise, and one on an accelerator."""
    if asked is not None:
        expect(asked >= 1, f"workers={asked} >= 1")
    if torch.device(device).type != "cpu":
        return 1
    if not sys.platform.startswith("linux"):  # elsewhere a forked PyTorch is not safe
        return 1
    return asked or len(os.sched_getaffinity(0))


class InProcessPool:
    """Jobs done in this process, one after the other."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker

    def run(self, jobs: Sequence[Job], ahead: int) -> Iterator[Any]:
        """Each result as it is asked for."""
        return map(self.worker.do, jobs)

    def close(self) -> None:
        """Nothing to end."""


class ProcessPool:
    """Jobs done by forked processes."""

    def __init__(self, worker: Worker, workers: int) -> None:
        self.worker = worker
        self.context: ForkContext = multiprocessing.get_context("fork")
        self.workers: list[WorkerProcess] = []
        for _ in range(workers):
            self.workers.append(self._start())

    def run(self, jobs: Sequence[Job], ahead: int) -> Iterator[Any]:
        """The results in order."""
        waiting = deque(range(len(jobs)))
        done: dict[int, Any] = {}
        deaths = dict.fromkeys(waiting, 0)
        for following in range(len(jobs)):
            while following not in done:
                self._hand_out(jobs, waiting, following + ahead)
                for number, result in self._collect(deaths):
                    if result is None:
                        waiting.appendleft(number)  # its worker died: another one does it again
                    else:
                        done[number] = result
            yield done.pop(following)

    def close(self) -> None:
        """End all processes."""
        for worker in self.workers:
            worker.end()
        self.workers = []

    def _start(self) -> "WorkerProcess":
        return WorkerProcess(self.context, self.worker, [worker.pipe for worker in self.workers])

    def _hand_out(self, jobs: Sequence[Job], waiting: deque[int], limit: int) -> None:
        for worker in self.workers:
            if worker.job is None and waiting and waiting[0] < limit:
                worker.hand(waiting.popleft(), jobs)

    def _collect(self, deaths: dict[int, int]) -> list[tuple[int, Any]]:
        """Results that are there, waiting for at least one; None for a job whose worker died."""
        busy = {worker.pipe: i for i, worker in enumerate(self.workers) if worker.job is not None}
        collected = []
        for ready in wait(list(busy)):
            place = busy[ready]  # type: ignore[index]
            worker = self.workers[place]
            number = worker.job
            assert number is not None
            result = worker.take()
            if result is None:
                deaths[number] += 1
                self._replace(place, deaths[number])
            collected.append((number, result))
        return collected

    def _replace(self, place: int, deaths: int) -> None:
        worker = self.workers.pop(place)
        worker.end()
        if deaths >= PATIENCE:
            raise WorkerError(
                f"Worker processes died {deaths} times at the same clients (exit code {worker.process.exitcode}). "
                "This is most often a lack of memory: use fewer workers, a smaller model or smaller batches."
            )
        self.workers.insert(place, self._start())


class WorkerProcess:
    """One process and the pipe to it."""

    def __init__(self, context: ForkContext, worker: Worker, others: "list[Connection[Any, Any]]") -> None:
        self.pipe, theirs = context.Pipe()
        inherited = [*others, self.pipe]
        self.process = context.Process(target=_work, args=(worker, theirs, inherited), daemon=True)
        self.process.start()
        theirs.close()
        self.job: int | None = None

    def hand(self, number: int, jobs: Sequence[Job]) -> None:
        """Give it a job; a broken pipe is noticed when the result is taken."""
        self.job = number
        try:
            self.pipe.send(jobs[number])
        except OSError:
            self.process.join()

    def take(self) -> Any:
        """Its result, or None if it died; an error of the job is raised here."""
        self.job = None
        try:
            fine, result = self.pipe.recv()
        except (EOFError, OSError):
            return None
        if not fine:
            raise result
        return result

    def end(self) -> None:
        """Kill it: it holds nothing that must be saved."""
        self.process.kill()
        self.process.join()
        self.pipe.close()


def _work(worker: Worker, pipe: "Connection[Any, Any]", inherited: "list[Connection[Any, Any]]") -> None:
    """A worker's life: jobs until the parent closes the pipe or is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    for other in inherited:
        other.close()
    torch.set_num_threads(1)
    _keep_memory()
    while True:
        try:
            job = pipe.recv()
        except (EOFError, OSError):
            return
        pipe.send(_answer(worker, job))


def _keep_memory() -> None:
    """Tell the C library to keep freed memory: the same large tensors are allocated again and again."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(-3, 1 << 30)  # M_MMAP_THRESHOLD
        mallopt(-1, 1 << 30)  # M_TRIM_THRESHOLD


def _answer(worker: Worker, job: Job) -> tuple[bool, Any]:
    try:
        return True, worker.do(job)
    except TacitError as error:
        return False, error
    except Exception:
        return False, TacitError(f"A worker failed:\n{traceback.format_exc()}")
