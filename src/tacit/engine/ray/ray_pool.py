"""Workers on many machines: actors of a Ray cluster, with one thread each.

What forked processes share is sent: data once to every machine, weights once for every change, and sums back. Waves,
their order and the order of additions are those of the other pools, and so is the result, to the last bit, on machines
with one type of CPU.
"""

import os
import pickle
import sys
import warnings
from collections import ChainMap, deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from io import BytesIO
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.core.code_digest import code_measurement
from tacit.core.discovery import FILE_MODULE
from tacit.core.worker_choice import RayChoice
from tacit.engine.pool import (
    MAX_DEATHS,
    WORKER_SLOTS,
    MakeWorker,
    answer,
    check_deaths,
    failure,
    keep_memory,
    run_in_order,
)
from tacit.engine.ray.ray_cluster import Actor, RayCluster, end_actor, join_cluster, ray
from tacit.engine.worker import Job, Trained, TrainJob, Worker
from tacit.errors import TacitError, WorkerError

_TIMEOUT = 120.0  # seconds in which at least one actor has to start
_LARGE = 1 << 16  # bytes of a tensor that a machine's actors share
IN_FLIGHT = 2  # jobs of one actor: the second one waits at the actor, not at the network
Packed = list[NDArray[np.uint8]]
Memory = Mapping[str, NDArray[np.generic]]


def open_ray_pool(choice: RayChoice, make_worker: MakeWorker) -> "RayPool":
    """The actors of a cluster, which is started if there is none to join."""
    cluster = join_cluster(choice)
    try:
        count = choice.count or cluster.cores
        return RayPool(cluster, make_worker(WORKER_SLOTS * count), count)
    except BaseException:
        cluster.leave()
        raise


@dataclass(frozen=True)
class NodeCode:
    """Software and CPU of one machine, on which the bits of a result depend."""

    tacit: str
    torch: str
    cpu: str

    @classmethod
    def here(cls) -> "NodeCode":
        """This machine's."""
        version = torch.__version__.partition("+")[0]
        return cls(code_measurement()[:12], version, torch.backends.cpu.get_cpu_capability())


class WaveActor:
    """The content of an actor: a worker, built from bytes, and its jobs."""

    def prepare(self, packed: Packed, path: Sequence[str]) -> tuple[bool, Any]:
        """Become the worker of a run, which imports from these folders too; returns this node's code, or the error."""
        sys.path.extend(folder for folder in path if folder not in sys.path)
        torch.set_num_threads(1)
        keep_memory()
        try:
            self.worker, self.version = unpack(packed), 0
            return True, NodeCode.here()
        except TacitError as error:
            return False, error
        except Exception:
            return False, failure("A worker could not start.")

    def do(self, job: Job, version: int, weights: NDArray[np.generic], memory: Memory) -> tuple[bool, Any]:
        """Do a job with these weights; their version shows whether the actor has them already.

        Returns the result, and the numbers that a worker of the pool's machine would have left in a slot.
        """
        if version != self.version:
            self.worker.weights.numpy()[...] = weights
            self.version = version
        fine, result = answer(self.worker, replace(job, memory=memory) if isinstance(job, TrainJob) else job)
        if not fine:
            return False, result
        if isinstance(result, Trained):
            return True, (result, self.worker.slot_content(0, result).total.numpy())
        return True, (result, None)


@dataclass(frozen=True, eq=False)
class _Member:
    """One actor of the pool, and its pending results: references, with the numbers of jobs (None while it starts)."""

    actor: Actor
    pending: deque[tuple[Any, int | None]]

    def is_free(self, waiting: int, members: int) -> bool:
        """Whether it takes another job: a second one, to begin without delay, if enough are left for everyone."""
        if any(number is None for _, number in self.pending):
            return False
        return not self.pending or (len(self.pending) == 1 and waiting > members)


class RayPool:
    """Runs jobs in actors of a Ray cluster; those that die are replaced, and their jobs repeated."""

    def __init__(self, cluster: RayCluster, worker: Worker, count: int) -> None:
        self.cluster, self.worker = cluster, worker
        self._packed = ray.put(pack(worker))
        self._weights: tuple[int, Tensor, Any] | None = None  # a version, its numbers, and their reference
        self._memory: tuple[Memory, Any] | None = None
        self._failed_starts = 0
        self.members: list[_Member] = []
        for _ in range(count):
            self.members.append(self._start())

    def run(self, jobs: Sequence[Job], ahead: int) -> Iterator[Any]:
        if not jobs:
            return
        self._send_weights()
        self._send_memory(jobs[0])
        collect = partial(self._collect, dict.fromkeys(range(len(jobs)), 0))
        results = run_in_order(len(jobs), ahead, partial(self._assign, jobs), collect)
        for job, (result, numbers) in zip(jobs, results, strict=True):
            if isinstance(job, TrainJob):
                self.worker.fill_slot(job.slot, numbers)
            yield result

    def close(self) -> None:
        for member in self.members:
            if member.pending:
                end_actor(member.actor)
            else:
                self.cluster.give_back(member.actor)
        self.members = []
        self._packed = self._weights = self._memory = None
        self.cluster.leave()

    def _start(self) -> _Member:
        actor = self.cluster.take(WaveActor)
        path = [os.path.abspath(folder) for folder in sys.path]
        return _Member(actor, deque([(actor.prepare.remote(self._packed, path), None)]))

    def _send_weights(self) -> None:
        """Put the weights into the cluster's memory, unless they are there since the last change."""
        current = self.worker.weights
        if self._weights is None or not torch.equal(self._weights[1], current):
            version = 1 if self._weights is None else self._weights[0] + 1
            copied = current.clone()
            self._weights = version, copied, ray.put(copied.numpy())

    def _send_memory(self, job: Job) -> None:
        """Send the memory of the server's pieces, which all jobs of a round share."""
        if isinstance(job, TrainJob) and (self._memory is None or self._memory[0] is not job.memory):
            self._memory = job.memory, ray.put(dict(job.memory)) if job.memory else {}

    def _assign(self, jobs: Sequence[Job], waiting: deque[int], limit: int) -> None:
        assert self._weights is not None
        memory = {} if self._memory is None else self._memory[1]
        for _ in range(IN_FLIGHT):
            for member in self.members:
                if waiting and waiting[0] < limit and member.is_free(len(waiting), len(self.members)):
                    number = waiting.popleft()
                    job = jobs[number]
                    sent = replace(job, memory={}, slot=0) if isinstance(job, TrainJob) else job
                    reference = member.actor.do.remote(sent, self._weights[0], self._weights[2], memory)
                    member.pending.append((reference, number))

    def _collect(self, deaths: dict[int, int]) -> list[tuple[int, Any]]:
        """The result of a job as soon as one is ready; None for the jobs of an actor that died."""
        member = self._next_ready()
        reference, number = member.pending[0]
        try:
            fine, result = ray.get(reference)
        except (ray.exceptions.RayActorError, ray.exceptions.ObjectLostError) as error:
            self._replace(member, deaths, error)
            return [(job, None) for _, job in reversed(member.pending) if job is not None]
        member.pending.popleft()
        if not fine:
            raise result
        if number is None:
            check_node(result)
            return []
        return [(number, result)]

    def _next_ready(self) -> _Member:
        first = {member.pending[0][0]: member for member in self.members if member.pending}
        started = any(member.pending[0][1] is not None for member in first.values())
        ready, _ = ray.wait(list(first), timeout=None if started else _TIMEOUT)
        if not ready:
            raise WorkerError(
                f"Expected an actor of the Ray cluster to start within {_TIMEOUT:g} s, but none did. The cluster has "
                f"{self.cluster.cores} cores. See `ray status`, or use fewer workers."
            )
        return first[ready[0]]

    def _replace(self, member: _Member, deaths: dict[int, int], error: Exception) -> None:
        """Start another actor; raises `WorkerError` if actors keep dying on one job, or as they start."""
        end_actor(member.actor)
        number, reason = member.pending[0][1], str(error).strip().splitlines()[0]
        if number is None:
            self._failed_starts += 1
            if self._failed_starts >= MAX_DEATHS:
                raise WorkerError(f"Actors of the Ray cluster died {MAX_DEATHS} times as they started: {reason}")
        else:
            deaths[number] += 1
            check_deaths(deaths[number], reason)
        self.members[self.members.index(member)] = self._start()


def _reduce(tensor: Tensor) -> Any:
    plain = tensor.device.type == "cpu" and tensor.layout == torch.strided and not tensor.requires_grad
    if plain and tensor.numel() * tensor.element_size() >= _LARGE and tensor.dtype != torch.bfloat16:
        return _tensor, (np.ascontiguousarray(tensor.numpy()),)
    return tensor.__reduce_ex__(pickle.HIGHEST_PROTOCOL)  # type: ignore[no-untyped-call]


class _Packer(ray.cloudpickle.CloudPickler):  # type: ignore[misc]
    dispatch_table = ChainMap({Tensor: _reduce}, ray.cloudpickle.CloudPickler.dispatch_table)  # noqa: RUF012


def pack(worker: Worker) -> Packed:
    """A worker as bytes; large tensors follow as arrays, which a machine's actors read where they are."""
    buffers: list[pickle.PickleBuffer] = []
    file = BytesIO()
    with _files_by_value():
        _Packer(file, protocol=5, buffer_callback=buffers.append).dump(worker)
    return [np.frombuffer(file.getvalue(), np.uint8), *(np.frombuffer(buffer.raw(), np.uint8) for buffer in buffers)]


@contextmanager
def _files_by_value() -> Iterator[None]:
    """Send the code of files that were run by their path: no other machine can import their modules."""
    files = [module for name, module in list(sys.modules.items()) if name.startswith(FILE_MODULE)]
    for module in files:
        ray.cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in files:
            ray.cloudpickle.unregister_pickle_by_value(module)


def unpack(packed: Packed) -> Worker:
    """The worker in these bytes, which come from the process that started this actor."""
    head, *buffers = packed
    worker: Worker = pickle.loads(head.tobytes(), buffers=buffers)
    return worker


def _tensor(array: NDArray[np.generic]) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the array is read-only: nobody writes to a task's data
        return torch.from_numpy(array)


def check_node(node: NodeCode) -> None:
    """Raise `WorkerError` for a machine with other code; warn of another type of CPU."""
    here = NodeCode.here()
    if (node.tacit, node.torch) != (here.tacit, here.torch):
        raise WorkerError(
            f"Expected every machine of the Ray cluster to have this Tacit ({here.tacit}) and PyTorch {here.torch}, "
            f"but one has Tacit {node.tacit} and PyTorch {node.torch}. Install the same versions on all of them."
        )
    if node.cpu != here.cpu:
        warnings.warn(
            f"A machine of the Ray cluster computes with {node.cpu} and this one with {here.cpu}: the last digits of "
            "results depend on which machine trains which clients.",
            stacklevel=2,
        )
