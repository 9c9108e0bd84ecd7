"""Models, populations and waves that several tests need."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from tacit.core import CrossEntropy, Descent, Key, Population, ProximalTerm
from tacit.engine.learners import Fastest
from tacit.engine.waves import StackedClients


def mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 30), nn.ReLU(), nn.Linear(30, 20), nn.Tanh(), nn.Linear(20, 10))


def wide() -> nn.Module:
    """A hidden layer large enough for factored clients."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 400), nn.Sigmoid(), nn.Linear(400, 300), nn.ReLU(), nn.Linear(300, 10)
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
    """Nothing trained lies below the first linear layer, though it is not the first layer."""
    return nn.Sequential(nn.AvgPool2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, 10))


class Functional(nn.Module):
    """Functional calls in a forward function of its own: a chain all the same."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.out = nn.Linear(36, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.max_pool2d(torch.relu(self.conv(x)), 2)
        return self.out(torch.flatten(x, 1))


class Residual(nn.Module):
    """Not a chain: a residual connection and layer norm."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(64, 64)
        self.norm = nn.LayerNorm(64)
        self.out = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        return self.out(self.norm(x + torch.relu(self.inner(x))))


class Recurrent(nn.Module):
    """An LSTM over the rows of an image."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, 12, batch_first=True)
        self.out = nn.Linear(12, 10)

    def forward(self, x: Tensor) -> Tensor:
        hidden, _ = self.lstm(x.squeeze(1))
        return self.out(hidden[:, -1])


CHAINS: dict[str, Callable[[], nn.Module]] = {
    "mlp": mlp,
    "wide": wide,
    "softmax": softmax,
    "biasless": biasless,
    "cnn": cnn,
    "strided": strided,
    "pooled_inputs": pooled_inputs,
    "functional": Functional,
}
OTHERS: dict[str, Callable[[], nn.Module]] = {"residual": Residual, "recurrent": Recurrent}


def population(sizes: Sequence[int], *, dtype: torch.dtype = torch.float32, seed: int = 0) -> Population:
    """Clients with random 8×8 images of ten classes."""
    g = torch.Generator().manual_seed(seed)
    return Population.of(
        [(torch.randn(n, 1, 8, 8, generator=g, dtype=dtype), torch.randint(0, 10, (n,), generator=g)) for n in sizes]
    )


def wave(sizes: Sequence[int] = (5, 3), make: Callable[[], nn.Module] = mlp) -> StackedClients:
    """Clients with such data in one wave."""
    torch.manual_seed(0)
    return StackedClients(torch.arange(len(sizes)), population(sizes), Fastest(make(), CrossEntropy()))


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
        lr, steps, epochs, batch_size, momentum, weight_decay, Key.from_seed(7), clip=clip, proximal=proximal
    )
