"""The workloads: models, data and local training, the same for every framework.

Only PyTorch is needed, so every framework's environment can import this module. Data are random: speed does not depend
on their content, and nothing has to be downloaded.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

CLASSES = 10


def mlp() -> nn.Module:
    """784-200-200-10 with ReLU (199,210 parameters)."""
    return nn.Sequential(nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, CLASSES))


def cnn() -> nn.Module:
    """The convolutional network of McMahan et al. (2017): 1,663,370 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(3136, 512),
        nn.ReLU(),
        nn.Linear(512, CLASSES),
    )


def softmax_regression() -> nn.Module:
    """784-10 (7,850 parameters)."""
    return nn.Linear(784, CLASSES)


class Block(nn.Module):
    """Two normalised convolutions with a residual connection."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)
        self.norms = nn.ModuleList(nn.GroupNorm(4, channels) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        inner = F.relu(self.norms[0](self.first(x)))
        return F.relu(x + self.norms[1](self.second(inner)))


class ResidualNet(nn.Module):
    """A convolution, two residual blocks, mean pooling and a layer norm before the classifier."""

    def __init__(self, channels: int = 16) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, channels, 3, stride=2, padding=1)
        self.blocks = nn.Sequential(Block(channels), Block(channels))
        self.norm = nn.LayerNorm(channels)
        self.head = nn.Linear(channels, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(F.relu(self.stem(x))).mean(dim=(2, 3))))


class Recurrent(nn.Module):
    """One LSTM layer over the rows of an image, with a classifier on its last output."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.lstm = nn.LSTM(28, width, batch_first=True)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        outputs, _ = self.lstm(x)
        return self.head(outputs[:, -1])


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A model, the shape of the data, and each client's local training."""

    name: str
    title: str
    model: Callable[[], nn.Module]
    shape: tuple[int, ...]
    clients: int
    samples: int
    epochs: int
    batch_size: int
    lr: float
    clip: float = 0.1  # below the norm of every client's update, so every update is clipped
    noise_multiplier: float = 1.0
    peers: bool = True  # whether Flower and pfl-research run it too, or only the plain loop

    def full_batch(self) -> "Workload":
        """The same with full batches, so the order of samples does not matter (check mode)."""
        return replace(self, batch_size=self.samples, epochs=max(self.epochs, 5))

    def net(self) -> nn.Module:
        """The model with the initial weights that all frameworks share."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            return self.model()

    def data(self) -> tuple[Tensor, Tensor]:
        """All clients' samples: `x` is (clients, samples, *shape), `y` is (clients, samples)."""
        source = torch.Generator().manual_seed(2)
        x = torch.randn(self.clients, self.samples, *self.shape, generator=source)
        return x, torch.randint(CLASSES, (self.clients, self.samples), generator=source)

    def batches(self, x: Tensor, y: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """One client's batches, unshuffled."""
        for _ in range(self.epochs):
            yield from zip(x.split(self.batch_size), y.split(self.batch_size), strict=True)


def train(net: nn.Module, batches: Iterator[tuple[Tensor, Tensor]], lr: float) -> None:
    """Local training as a user of PyTorch writes it; `net` is modified in place."""
    optimizer = torch.optim.SGD(net.parameters(), lr=lr)
    for x, y in batches:
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimizer.step()


def flat(net: nn.Module) -> Tensor:
    """A copy of all weights in one vector, in the order of `parameters()`."""
    return torch.cat([weight.detach().reshape(-1) for weight in net.parameters()])


@torch.no_grad()
def load(net: nn.Module, vector: Tensor) -> None:
    """Copy a vector made by `flat` into the weights."""
    weights = list(net.parameters())
    for weight, part in zip(weights, vector.split([weight.numel() for weight in weights]), strict=True):
        weight.copy_(part.view_as(weight))


IMAGE = (1, 28, 28)
WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload(
            name="W1", title="MLP 784-200-200-10, 100 clients x 600 samples, 60 steps of batch 10", model=mlp,
            shape=(784,), clients=100, samples=600, epochs=1, batch_size=10, lr=0.1,
        ),
        Workload(
            name="W2", title="CNN of 1.66 M weights, 100 clients x 10 samples, 5 full-batch steps", model=cnn,
            shape=IMAGE, clients=100, samples=10, epochs=5, batch_size=10, lr=0.05,
        ),
        Workload(
            name="W3", title="softmax regression, 1000 clients x 20 samples, 5 full-batch steps",
            model=softmax_regression, shape=(784,), clients=1000, samples=20, epochs=5, batch_size=20, lr=0.1,
        ),
        Workload(
            name="G1", title="residual net with norms, 100 clients x 20 samples, 5 full-batch steps",
            model=ResidualNet, shape=IMAGE, clients=100, samples=20, epochs=5, batch_size=20, lr=0.05, peers=False,
        ),
        Workload(
            name="G2", title="LSTM classifier, 100 clients x 20 samples, 5 full-batch steps", model=Recurrent,
            shape=(28, 28), clients=100, samples=20, epochs=5, batch_size=20, lr=0.1, peers=False,
        ),
        Workload(
            name="tiny", title="softmax regression, 6 clients x 4 samples, for tests", model=softmax_regression,
            shape=(784,), clients=6, samples=4, epochs=2, batch_size=2, lr=0.1,
        ),
    )
}  # fmt: skip
DEFAULT = ("W1", "W2", "W3", "G1", "G2")
