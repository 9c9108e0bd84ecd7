"""The jobs of a worker: train a wave and write its sum to shared memory, or evaluate a piece of the test data.

The same object works in the parent process (one worker) and, inherited by fork, in worker processes.
"""

import mmap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tacit.core import Broadcast, ClientMemory, ClientRound, DenseRows, Key, Method, Round, State, Sum, View, WaveReport
from tacit.core.client_half import make_messages, read_broadcast
from tacit.core.lengths import row_lengths, row_limit, shorten
from tacit.core.server_half import broadcast, reject_unusable, sum_messages
from tacit.data import Task
from tacit.data.population_files import release_pages
from tacit.engine.layout import Layout
from tacit.engine.learners.kernels import evaluation_module
from tacit.engine.waves import LARGEST, AutoLearner, StackedClients, single_thread

WIDEST = 8  # bytes of a number: sums on a grid are in float64, whatever the model's type


@dataclass(frozen=True, eq=False)
class TrainJob:
    """One wave of a round; its sum (or its rows, if the method needs them) goes to a slot."""

    now: ClientRound
    memory: Mapping[str, NDArray[np.generic]]  # of the server's pieces, what changed since the workers started
    clients: NDArray[np.int64]
    slot: int
    dense: bool = False  # rows as they are on the wire, not in a factored form
    usual: float | None = None  # the length of rows, to which outliers are shortened; None: not known, or they are not


@dataclass(frozen=True)
class EvaluateJob:
    """A piece of the test data, under one hypothesis."""

    evaluation: int  # its number
    hypothesis: int
    begin: int
    end: int


Job = TrainJob | EvaluateJob


@dataclass(frozen=True)
class Trained:
    """The result of a wave, beside the numbers in its slot."""

    wave_report: WaveReport
    up: tuple[int, ...]
    part: Sum  # without its numbers, which are in the slot


class Worker:
    """Everything a job needs; large tensors are in memory shared with the worker processes.

    Attributes:
        sent: the server's broadcast of a round; one that lies is played by another function.
    """

    def __init__(
        self,
        method: Method,
        task: Task,
        model: nn.Module,
        learner: AutoLearner,
        state: State,
        before: Key,
        slots: int,
        sent: Callable[[Method, State, Round], Broadcast] = broadcast,
    ) -> None:
        self.method, self.task, self.model, self.learner = method, task, model, learner
        self._origin = state, before
        self.initial_memory = dict(state.memory)  # every worker process starts with it
        self.layout, self.sent = Layout.of(model), sent
        self.weights = allocate(state.weights.numel(), state.weights).view(state.weights.shape)
        rows = 1 if method.streams else min(LARGEST, len(task.population))
        room = rows * state.dim * WIDEST
        octets = torch.empty(0, dtype=torch.uint8, device=state.weights.device)
        self.slots = [allocate(room, octets) for _ in range(slots)]
        self._memory = dict(state.memory)
        self._client = ClientMemory(state.weights.clone(), before)  # shared by all clients of this process
        self._view: tuple[int, Broadcast, View] | None = None  # of a round, by the round's index
        self._loaded = (-1, 0)  # the evaluation and the hypothesis whose weights the model holds

    @cached_property
    def forward(self) -> nn.Module:
        """The model that evaluates the test data."""
        return evaluation_module(self.model)

    def start(self, state: State, now: Round) -> tuple[Broadcast, View]:
        """Start a round: give its weights to all workers, and return its broadcast and the clients' view of it."""
        self.weights.copy_(state.weights)
        return self._broadcast(replace(state, weights=self.weights), now)

    def do(self, job: Job) -> "Trained | NDArray[np.generic]":
        """Do a job with one thread, as every worker does."""
        with single_thread():
            return self._train(job) if isinstance(job, TrainJob) else self._evaluate(job)

    def slot_content(self, slot: int, result: Trained) -> Sum:
        """The numbers that a wave wrote to its slot: its sum, or its rows."""
        like = result.part.total
        return replace(result.part, total=self.slots[slot].view(like.dtype)[: like.numel()].view(like.shape))

    def fill_slot(self, slot: int, numbers: NDArray[np.generic]) -> None:
        """Copy the content of another machine's slot to a slot of this worker."""
        flat = torch.from_numpy(np.empty(0, numbers.dtype)).dtype
        self.slots[slot].view(flat)[: numbers.size].numpy()[:] = numbers.reshape(-1)

    def __reduce__(self) -> "tuple[Callable[..., Worker], tuple[Any, ...]]":
        """Build a new worker in another process, with one slot: it shares nothing with this one."""
        return _remake, (self.method, self.task.without_code(), self.model, *self._origin)

    def _train(self, job: TrainJob) -> Trained:
        method, now = self.method, job.now
        self._update_memory(job.memory)
        state = State(now.index, self.weights, self._memory, self.layout.sizes, self.layout.shapes)
        wave = StackedClients(torch.from_numpy(job.clients), self.task.population, self.learner)
        _, view = self._broadcast(state, now)
        messages = make_messages(method, view, wave, now)
        if job.dense:
            messages = replace(messages, rows=DenseRows(messages.rows.dense()))
        up = method.channel.message_format.sizes(messages)
        kept, wave_report = reject_unusable(messages, row_limit(method, messages, state, now))
        if method.streams and method.shortens:
            wave_report = replace(wave_report, lengths=tuple(row_lengths(method, kept, state).tolist()))
        part = (
            sum_messages(method, state, shorten(method, kept, state, job.usual))
            if method.streams
            else Sum(kept.rows.dense(), 0.0, grid_step=kept.grid_step, surplus=kept.surplus)
        )
        self.slots[job.slot].view(part.total.dtype)[: part.total.numel()].copy_(part.total.reshape(-1))
        release_pages(self.task.population)
        return Trained(wave_report, up, replace(part, total=part.total.to("meta")))

    def _broadcast(self, state: State, now: Round) -> tuple[Broadcast, View]:
        """The round's broadcast and the clients' view of it, once per process."""
        if self._view is None or self._view[0] != now.index:
            sent = self.sent(self.method, state, now)
            parts = sent.client_parts(first=self._client.mask is None, wire_format=self.method.channel.down)
            view, self._client = read_broadcast(self.method, parts, self._client, now)
            self._view = now.index, sent, view
        return self._view[1:]

    def _update_memory(self, changed: Mapping[str, NDArray[np.generic]]) -> None:
        """Update changed entries; unchanged ones stay the same tensor, by which kernels recognise a mask."""
        for name, value in changed.items():
            tensor = torch.from_numpy(value)
            if name not in self._memory or not torch.equal(self._memory[name], tensor):
                self._memory[name] = tensor

    @torch.no_grad()
    def _evaluate(self, job: EvaluateJob) -> NDArray[np.generic]:
        assert self.task.test is not None
        wanted = (job.evaluation, job.hypothesis)
        if self._loaded != wanted:
            self.layout.load(self.model, self.weights.view(-1, self.layout.dim)[job.hypothesis])
            self._loaded = wanted
        outputs: Tensor = self.forward(self.task.test[0][job.begin : job.end])
        return outputs.cpu().numpy()


def _remake(method: Method, task: Task, model: nn.Module, state: State, before: Key) -> Worker:
    return Worker(method, task, model, AutoLearner.of(model, task), state, before, 1)


def allocate(count: int, like: Tensor) -> Tensor:
    """A zeroed vector that forked processes share; on an accelerator, an ordinary one."""
    if like.device.type != "cpu":
        return torch.zeros(count, dtype=like.dtype, device=like.device)
    buffer = mmap.mmap(-1, count * like.element_size())
    return torch.frombuffer(buffer, dtype=like.dtype, count=count)
