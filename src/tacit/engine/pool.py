"""Worker processes: started once, given jobs through pipes, replaced when they die.

Results are returned in the order of the jobs, whichever process finished first, so that the folded sum does not depend
on the number of workers.
"""

import ctypes
import multiprocessing
import signal
import sys
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkContext
from typing import Any, Protocol

import torch

from tacit.core.worker_choice import RayChoice, Workers, available_cores, read_workers
from tacit.engine.worker import Job, Worker
from tacit.errors import TacitError, WorkerError, expect

MAX_DEATHS = 3  # on one job, before the run fails
WORKER_SLOTS = 2  # results that are held for each worker


class Pool(Protocol):
    """Where jobs run: in this process, in several, or on several machines.

    Attributes:
        worker: this process's own, with the weights that jobs use and the slots that results are written to.
    """

    worker: Worker

    def run(self, jobs: Sequence[Job], ahead: int) -> Iterator[Any]:
        """The jobs' results in order; at most `ahead` jobs are started before the first result is taken."""

    def close(self) -> None:
        """End all processes."""


MakeWorker = Callable[[int], Worker]  # with this many slots


def open_pool(workers: int | RayChoice, make_worker: MakeWorker) -> Pool:
    """A pool of this many processes, of which a single one is this process itself, or of a Ray cluster's actors."""
    if isinstance(workers, RayChoice):
        from tacit.engine.ray.ray_pool import open_ray_pool  # Ray is optional, and takes a second to import

        return open_ray_pool(workers, make_worker)
    worker = make_worker(WORKER_SLOTS * workers)
    return InProcessPool(worker) if workers == 1 else ProcessPool(worker, workers)


def choose_workers(asked: Workers, device: str) -> int | RayChoice:
    """The workers: by default one process per core, or a single process on an accelerator."""
    choice, accelerated = read_workers(asked), torch.device(device).type != "cpu"
    if isinstance(choice, RayChoice):
        expect(not accelerated, f"device='cpu' with workers={asked!r}, got {device!r}", "Leave out one of them.")
        return choice
    if accelerated or not sys.platform.startswith("linux"):  # elsewhere a forked PyTorch is not safe
        return 1
    return choice or available_cores()


def run_in_order(
    count: int, ahead: int, assign: Callable[[deque[int], int], None], collect: Callable[[], list[tuple[int, Any]]]
) -> Iterator[Any]:
    """The results of this many jobs in their order, whoever finished first.

    Args:
        count: of jobs.
        ahead: how many jobs are started at most before the first result is taken.
        assign: gives idle workers the first of these jobs, as far as their numbers are below a limit.
        collect: waits for results; None for a job whose worker died, which another one repeats.
    """
    waiting, done = deque(range(count)), dict[int, Any]()
    for following in range(count):
        while following not in done:
            assign(waiting, following + ahead)
            for number, result in collect():
                if result is None:
                    waiting.appendleft(number)
                else:
                    done[number] = result
        yield done.pop(following)


def check_deaths(deaths: int, detail: str) -> None:
    """Raise `WorkerError` if workers died too often on one job."""
    if deaths >= MAX_DEATHS:
        raise WorkerError(
            f"Worker processes died {deaths} times on the same clients ({detail}). "
            "The most common cause is too little memory: use fewer workers, a smaller model or smaller batches."
        )


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
        collect = partial(self._collect, dict.fromkeys(range(len(jobs)), 0))
        return run_in_order(len(jobs), ahead, partial(self._assign, jobs), collect)

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
        check_deaths(deaths, f"exit code {worker.process.exitcode}")
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
        """Send a job; a broken pipe is detected when the result is read."""
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
    keep_memory()
    while True:
        try:
            job = pipe.recv()
        except (EOFError, OSError):
            return
        pipe.send(answer(worker, job))


def failure(sentence: str) -> TacitError:
    """The error for an unexpected exception that is being handled, with its traceback as a note."""
    error = TacitError(f"{sentence} {traceback.format_exc(limit=0).splitlines()[-1]}")
    error.add_note(traceback.format_exc())
    return error


def keep_memory() -> None:
    """Tell the C library to keep freed memory: the same large tensors are allocated again and again."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(-3, 1 << 30)  # M_MMAP_THRESHOLD
        mallopt(-1, 1 << 30)  # M_TRIM_THRESHOLD


def answer(worker: Worker, job: Job) -> tuple[bool, Any]:
    """Whether the job succeeded, and its result or the error."""
    try:
        return True, worker.do(job)
    except TacitError as error:
        return False, error
    except Exception:
        return False, failure("A worker failed.")
