"""What a worker knows and does: train a wave and leave its sum in shared memory, or evaluate a piece of the test data.

The same object works in the parent process (one worker) and, inherited by fork, in worker processes.
"""

import mmap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tacit.core import Method, Receipt, Round, State, Sum, Task
from tacit.core.round import broadcast, client_side, receive, refuse
from tacit.engine.layout import Layout
from tacit.engine.learners import Fastest
from tacit.engine.learners.kernels import forward_of
from tacit.engine.waves import LARGEST, StackedClients

WIDEST = 8  # bytes of a number: sums on a grid are in float64 whatever the model is in


@dataclass(frozen=True, eq=False)
class TrainJob:
    """One wave of a round; its sum (or its rows, if the method must see them) goes to a slot."""

    now: Round
    memory: Mapping[str, NDArray[np.generic]]  # what pieces remember since the workers began
    clients: NDArray[np.int64]
    slot: int


@dataclass(frozen=True)
class EvaluateJob:
    """A piece of the test data, under one of the hypotheses that are measured."""

    number: int  # of the measurement
    hypothesis: int
    begin: int
    end: int


Job = TrainJob | EvaluateJob


@dataclass(frozen=True)
class Trained:
    """What a wave sends back beside what it left in its slot."""

    receipt: Receipt
    up: tuple[int, ...]
    part: Sum  # without its numbers, which lie in the slot


class Worker:
    """All that is needed to do a job; large tensors lie in memory shared with the worker processes."""

    def __init__(
        self, method: Method, task: Task, model: nn.Module, learner: Fastest, slots: int, state: State
    ) -> None:
        self.method, self.task, self.model, self.learner = method, task, model, learner
        self.memory = dict(state.memory)  # what pieces remembered when the workers began
        self.layout = Layout.of(model)
        self.weights = shared(state.weights.numel(), state.weights).view(state.weights.shape)
        rows = 1 if method.streams else max_rows(task)
        room = rows * state.dim * WIDEST
        octets = torch.empty(0, dtype=torch.uint8, device=state.weights.device)
        self.slots = [shared(room, octets) for _ in range(slots)]
        self.loaded = (-1, 0)  # the round and the hypothesis that the model holds

    @cached_property
    def forward(self) -> nn.Module:
        """The model as it is evaluated; found when there is something to evaluate."""
        return forward_of(self.model)

    def do(self, job: Job) -> "Trained | NDArray[np.generic]":
        """Do a job with one thread, as every worker does."""
        with single_thread():
            return self._train(job) if isinstance(job, TrainJob) else self._evaluate(job)

    def _train(self, job: TrainJob) -> Trained:
        method, now = self.method, job.now
        self._learn(job.memory)
        state = State(now.index, self.weights, self.memory, self.layout.sizes, self.layout.shapes)
        wave = StackedClients(torch.from_numpy(job.clients), self.task.population, self.learner)
        messages = client_side(method, broadcast(method, state, now), wave, now)
        up = method.channel.upload(messages, now)
        kept, receipt = refuse(messages)
        part = receive(method, state, kept, now) if method.streams else Sum(kept.rows.dense(), 0.0, step=kept.step)
        self.slots[job.slot].view(part.total.dtype)[: part.total.numel()].copy_(part.total.reshape(-1))
        return Trained(receipt, up, replace(part, total=part.total.to("meta")))

    def left(self, slot: int, result: Trained) -> Sum:
        """What a wave left in its slot: its sum, or its rows."""
        like = result.part.total
        return replace(result.part, total=self.slots[slot].view(like.dtype)[: like.numel()].view(like.shape))

    def _learn(self, news: Mapping[str, NDArray[np.generic]]) -> None:
        """Take over what changed; what did not stays the same tensor, by which kernels know a mask again."""
        for name, value in news.items():
            tensor = torch.from_numpy(value)
            if name not in self.memory or not torch.equal(self.memory[name], tensor):
                self.memory[name] = tensor

    @torch.no_grad()
    def _evaluate(self, job: EvaluateJob) -> NDArray[np.generic]:
        assert self.task.test is not None
        wanted = (job.number, job.hypothesis)
        if self.loaded != wanted:
            self.layout.load(self.model, self.weights.view(-1, self.layout.dim)[job.hypothesis])
            self.loaded = wanted
        outputs: Tensor = self.forward(self.task.test[0][job.begin : job.end])
        return outputs.cpu().numpy()


def max_rows(task: Task) -> int:
    """The most rows a wave can have."""
    return min(LARGEST, len(task.population))


def shared(count: int, like: Tensor) -> Tensor:
    """A zeroed vector that forked processes share; on an accelerator, an ordinary one."""
    if like.device.type != "cpu":
        return torch.zeros(count, dtype=like.dtype, device=like.device)
    buffer = mmap.mmap(-1, count * like.element_size())
    return torch.frombuffer(buffer, dtype=like.dtype, count=count)


@contextmanager
def single_thread() -> Iterator[None]:
    """One thread for PyTorch's operators: sums then come out the same in any process."""
    before = torch.get_num_threads()
    if before != 1:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        if before != 1:
            torch.set_num_threads(before)
