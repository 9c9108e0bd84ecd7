"""Models, populations and waves for several tests."""

import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn

import tacit
from tacit.core import (
    ClientKeys,
    ClientMemory,
    CrossEntropy,
    Descent,
    Key,
    Loss,
    Messages,
    Method,
    ProximalTerm,
    Round,
    Rows,
    ServerRound,
    State,
    View,
    Wave,
)
from tacit.core.client_half import ClientHalf
from tacit.core.lengths import row_limit
from tacit.core.server_half import aggregate_messages, broadcast, client_view, finish_round, reject_unusable
from tacit.data import Population
from tacit.engine.batches import Batches, make_batches
from tacit.engine.layout import Layout
from tacit.engine.learners.kernels import KernelLearner, kernel_learner
from tacit.engine.waves import AutoLearner, StackedClients
from tacit.wire import frames
from tacit.wire.frames import FrameKind


def public_names() -> dict[str, object]:
    """What a `repr` may name: all that `tacit` and `tacit.pieces` export, the enclave among them."""
    return {name: getattr(room, name) for room in (tacit, tacit.pieces) for name in dir(room)}


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 30), nn.ReLU(), nn.Linear(30, 20), nn.Tanh(), nn.Linear(20, 10))


def wide() -> nn.Module:
    """A hidden layer that is large enough for factored updates."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 200), nn.Sigmoid(), nn.Linear(200, 150), nn.ReLU(), nn.Linear(150, 10)
    )


def softmax() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


def biasless() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 40, bias=False), nn.ReLU(), nn.Linear(40, 10, bias=False))


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 6, 3, padding="same"),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 8, 3, padding=1, bias=False),
        nn.Tanh(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(32, 10),
    )


def strided() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, stride=2, padding=1, dilation=1),
        nn.Sigmoid(),
        nn.Conv2d(4, 8, 2, groups=2),
        nn.ReLU(),
        nn.MaxPool2d(2, stride=1, padding=1),
        nn.Flatten(),
        nn.Linear(128, 10),
    )


def pooled_inputs() -> nn.Module:
    """Pooling below the first layer with weights."""
    return nn.Sequential(nn.AvgPool2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, 10))


class FunctionalCalls(nn.Module):
    """A chain of layers that calls functions in its forward method."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.out = nn.Linear(36, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.max_pool2d(torch.relu(self.conv(x)), 2)
        out: Tensor = self.out(torch.flatten(x, 1))
        return out


class Residual(nn.Module):
    """Not a chain of layers: a residual connection and layer norm."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(64, 64)
        self.norm = nn.LayerNorm(64)
        self.out = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        out: Tensor = self.out(self.norm(x + torch.relu(self.inner(x))))
        return out


class Recurrent(nn.Module):
    """An LSTM over the rows of an image."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, 12, batch_first=True)
        self.out = nn.Linear(12, 10)

    def forward(self, x: Tensor) -> Tensor:
        hidden, _ = self.lstm(x.squeeze(1))
        out: Tensor = self.out(hidden[:, -1])
        return out


CHAINS: dict[str, Callable[[], nn.Module]] = {
    "mlp": mlp,
    "wide": wide,
    "softmax": softmax,
    "biasless": biasless,
    "cnn": cnn,
    "strided": strided,
    "pooled_inputs": pooled_inputs,
    "functional": FunctionalCalls,
}
OTHERS: dict[str, Callable[[], nn.Module]] = {"residual": Residual, "recurrent": Recurrent}


def population(sizes: Sequence[int], *, dtype: torch.dtype = torch.float32, seed: int = 0) -> Population:
    """Clients with random 8×8 images of ten classes."""
    g = torch.Generator().manual_seed(seed)
    return Population.of(
        [(torch.randn(n, 1, 8, 8, generator=g, dtype=dtype), torch.randint(0, 10, (n,), generator=g)) for n in sizes]
    )


def converted(clients: Population, dtype: torch.dtype) -> Population:
    """The same clients with inputs of another type."""
    return replace(clients, x=clients.x.to(dtype))


def wave(sizes: Sequence[int] = (5, 3), make: Callable[[], nn.Module] = mlp) -> StackedClients:
    """Clients with random images in one wave."""
    torch.manual_seed(0)
    return StackedClients(torch.arange(len(sizes)), population(sizes), AutoLearner(make(), CrossEntropy()))


def descent(
    *,
    lr: float = 0.1,
    steps: int | None = None,
    epochs: int | None = None,
    batch_size: int | None = None,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    clip: float | None = None,
    proximal: ProximalTerm | None = None,
) -> Descent:
    return Descent(
        lr,
        steps,
        epochs,
        batch_size,
        momentum,
        weight_decay,
        ClientKeys(Key.from_seed(7)),
        clip=clip,
        proximal=proximal,
    )


class CanDescend(Protocol):
    def descend(self, weights: Tensor, batches: Batches, descent: Descent, clients: Tensor) -> Rows: ...


def updates(learner: CanDescend, weights: Tensor, clients: Population, descent: Descent) -> Rows:
    """The updates of all clients, from shared weights or each from its own row."""
    numbers = torch.arange(len(clients))
    return learner.descend(weights, make_batches(clients, numbers, descent, weights.dtype), descent, numbers)


def weights_of(model: nn.Module) -> Tensor:
    return Layout.of(model).flatten(model)


def kernels(model: nn.Module, loss: Loss | None = None) -> KernelLearner:
    """The hand-batched learner of a model that supports it."""
    learner = kernel_learner(model, loss or CrossEntropy())
    assert learner is not None
    return learner


def view_of(method: Method, state: State, now: Round) -> View:
    """What clients make of the broadcast of this state."""
    return client_view(method, broadcast(method, state, now), state, now)


class DiesOnce(nn.Module):
    """Kills its process the first time it is trained in another one."""

    def __init__(self, marker: Path) -> None:
        super().__init__()
        self.inner, self.marker, self.parent = Residual(), marker, os.getpid()

    def forward(self, x: Tensor) -> Tensor:
        if os.getpid() != self.parent and self.training and not self.marker.exists():
            self.marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        outputs: Tensor = self.inner(x)
        return outputs


def answer(half: ClientHalf, request: bytes, data: Wave, memory: ClientMemory) -> bytes:
    """A client's message for a broadcast, both as bytes."""
    frame = frames.unpack(request, FrameKind.VIEW)
    now = half.round(frame.round, frame.cohort)
    messages, _ = half.messages(frame.parts, data, memory, now)
    return half.method.channel.message_format.pack(messages, 0, now)


def server_side(method: Method, state: State, messages: Messages, now: ServerRound) -> State:
    """The state after a round whose messages are all at hand, in a conversation of this round alone."""
    accepted, _ = reject_unusable(messages, row_limit(method, messages, state, now))
    with method.channel.open(method, now.population) as conversation:
        total = aggregate_messages(method, conversation, state, accepted, now)
        return finish_round(method, conversation, state, total, now)
