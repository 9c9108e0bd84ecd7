"""Worker processes: started once, given jobs through pipes, replaced when they die.

Results are returned in the order of the jobs, whichever process finished first, so that the folded sum does not depend
on the number of workers.
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

MAX_DEATHS = 3  # on one job, before the run fails


class Pool(Protocol):
    """Where jobs run: in this process, or in several."""

    def run(self, jobs: Sequence[Job], ahead: int) -> Iterator[Any]:
        """The jobs' results in order; at most `ahead` jobs are started before the first result is taken."""
        ...

    def close(self) -> None:
        """End all processes."""
        ...


def make_pool(worker: Worker, workers: int) -> Pool:
    """A pool of this many processes; one worker is this process itself."""
    return InProcessPool(worker) if workers == 1 else ProcessPool(worker, workers)


def count_workers(asked: int | None, device: str) -> int:
    """How many workers to start: one per core unless another number is given, and one on an accelerator."""
    if asked is not None:
        expect(asked >= 1, f"workers={asked} >= 1")
    if torch.device(device).type != "cpu":
        return 1
    if not sys.platform.startswith("linux"):  # elsewhere a forked PyTorch is not safe
        return 1
    return asked or len(os.sched_getaffinity(0))


class InProcessPool:
    """Runs jobs in this process, one after the other."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker

    def run(self, jobs: Sequence[Job], ahead: int) -> Iterator[Any]:
        return map(self.worker.do, jobs)

    def close(self) -> None:
        pass


class ProcessPool:
    """Runs jobs in forked processes."""

    def __init__(self, worker: Worker, workers: int) -> None:
        self.worker = worker
        self.context: ForkContext = multiprocessing.get_context("fork")
        self.workers: list[WorkerProcess] = []
        for _ in range(workers):
            self.workers.append(self._start())

    def run(self, jobs: Sequence[Job], ahead: int) -> Iterator[Any]:
        waiting = deque(range(len(jobs)))
        done: dict[int, Any] = {}
        deaths = dict.fromkeys(waiting, 0)
        for following in range(len(jobs)):
            while following not in done:
                self._assign(jobs, waiting, following + ahead)
                for number, result in self._collect(deaths):
                    if result is None:
                        waiting.appendleft(number)  # its worker died: another one repeats it
                    else:
                        done[number] = result
            yield done.pop(following)

    def close(self) -> None:
        for worker in self.workers:
            worker.end()
        self.workers = []

    def _start(self) -> "WorkerProcess":
        return WorkerProcess(self.context, self.worker, [worker.pipe for worker in self.workers])

    def _assign(self, jobs: Sequence[Job], waiting: deque[int], limit: int) -> None:
        for worker in self.workers:
            if worker.job is None and waiting and waiting[0] < limit:
                worker.assign(waiting.popleft(), jobs)

    def _collect(self, deaths: dict[int, int]) -> list[tuple[int, Any]]:
        """The results that are ready, at least one; None for a job whose worker died."""
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
        if deaths >= MAX_DEATHS:
            raise WorkerError(
                f"Worker processes died {deaths} times on the same clients (exit code {worker.process.exitcode}). "
                "The most common cause is too little memory: use fewer workers, a smaller model or smaller batches."
            )
        self.workers.insert(place, self._start())


class WorkerProcess:
    """One process and the pipe to it."""

    def __init__(self, context: ForkContext, worker: Worker, others: "list[Connection[Any, Any]]") -> None:
        self.pipe, child_end = context.Pipe()
        unused = [*others, self.pipe]
        self.process = context.Process(target=_work, args=(worker, child_end, unused), daemon=True)
        self.process.start()
        child_end.close()
        self.job: int | None = None

    def assign(self, number: int, jobs: Sequence[Job]) -> None:
        """Send a job; a broken pipe is noticed when the result is taken."""
        self.job = number
        try:
            self.pipe.send(jobs[number])
        except OSError:
            self.process.join()

    def take(self) -> Any:
        """The job's result, or None if the process died; an error of the job is raised here."""
        self.job = None
        try:
            fine, result = self.pipe.recv()
        except (EOFError, OSError):
            return None
        if not fine:
            raise result
        return result

    def end(self) -> None:
        """Kill the process: it holds nothing that must be saved."""
        self.process.kill()
        self.process.join()
        self.pipe.close()


def _work(worker: Worker, pipe: "Connection[Any, Any]", unused: "list[Connection[Any, Any]]") -> None:
    """Run jobs until the parent closes the pipe or ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # not with the parent's handler, which a fork inherits
    for other in unused:
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
