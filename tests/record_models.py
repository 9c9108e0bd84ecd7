"""Models of many kinds, and records for them, on which ways to clip per record are compared."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import zoo
from tacit.engine.layout import Layout

IMAGE, TOKENS = (1, 8, 8), 12
Make = Callable[[], nn.Module]


class Convolutions(nn.Module):
    """Convolutions of many kinds, with functions in place."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 4, 3, padding=2, dilation=2)
        self.second = nn.Conv2d(4, 8, (3, 2), stride=(2, 1), groups=2, padding="valid", bias=False)
        self.third = nn.Conv2d(8, 4, 3, padding="same", padding_mode="circular")
        self.along = nn.Conv1d(4, 3, 3, padding=1, stride=2)
        self.head = nn.Linear(33, 10)

    def forward(self, x: Tensor) -> Any:
        x = F.relu_(self.first(x))
        x = torch.tanh(self.third(F.relu(self.second(x), inplace=True)))
        return self.head(self.along(x.flatten(2)).flatten(1))


class Normalised(nn.Module):
    """A residual net with three kinds of norms."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 3, padding=1)
        self.body = nn.Sequential(nn.GroupNorm(2, 4), nn.ReLU(inplace=True), nn.Conv2d(4, 4, 3, padding=1))
        self.norm = nn.InstanceNorm2d(4, affine=True)
        self.last = nn.LayerNorm((4, 8))
        self.head = nn.Linear(4, 10)

    def forward(self, x: Tensor) -> Any:
        x = self.stem(x)
        x = F.relu(x + self.norm(self.body(x)))
        return self.head(self.last(x.mean(2)).mean(2))


class Words(nn.Module):
    """An embedding of words with padding, and layers on sequences, one of which is large."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, width, padding_idx=0)
        self.norm = nn.LayerNorm(width)
        self.mix = nn.Linear(width, 300)
        self.large = nn.Linear(300, 300)
        self.head = nn.Linear(300, TOKENS)

    def forward(self, x: Tensor) -> Any:
        return self.head(torch.tanh(self.large(torch.tanh(self.mix(self.norm(self.embedding(x)))))).mean(1))


class Tied(nn.Module):
    """The output layer has the weights of the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, 6)
        self.head = nn.Linear(6, TOKENS, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Any:
        return self.head(torch.tanh(self.embedding(x)).mean(1))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, TOKENS)

    def forward(self, x: Tensor) -> Any:
        x = self.embedding(x)
        return self.head(self.attention(x, x, x, need_weights=False)[0].mean(1))


class Repeated(nn.Module):
    """A layer that is called twice, and one whose weights are used without calling it."""

    def __init__(self) -> None:
        super().__init__()
        self.twice, self.head = nn.Linear(64, 64), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Any:
        x = torch.tanh(self.twice(torch.tanh(self.twice(x.flatten(1)))))
        return F.linear(x, self.head.weight, self.head.bias)


class Lstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(8, 5, batch_first=True), nn.Linear(5, 10)

    def forward(self, x: Tensor) -> Any:
        return self.head(self.lstm(x.flatten(1, 2))[0][:, -1])


def frozen() -> nn.Module:
    model = zoo.mlp()
    model[1].weight.requires_grad_(False)
    model[5].requires_grad_(False)
    return model


RULES: dict[str, Make] = {
    "mlp": zoo.mlp,
    "cnn": zoo.cnn,
    "convolutions": Convolutions,
    "normalised": Normalised,
    "words": Words,
    "frozen": frozen,
    "biasless": zoo.biasless,
}
MAPPED: dict[str, Make] = {"tied": Tied, "attention": Attention, "repeated": Repeated}
ALL: dict[str, Make] = {**RULES, **MAPPED, "lstm": Lstm}
every_model = pytest.mark.parametrize("make", ALL.values(), ids=ALL)


def model_of(make: Make) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return make()


def records(make: Make, count: int = 7) -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(1)
    if make in (Words, Tied, Attention):
        return torch.randint(TOKENS, (count, 5), generator=source), torch.randint(TOKENS, (count,), generator=source)
    return torch.randn(count, *IMAGE, generator=source), torch.randint(10, (count,), generator=source)


def weights_of(model: nn.Module) -> Tensor:
    return Layout.of(model).flatten(model)


def every_third(model: nn.Module) -> Tensor:
    return torch.arange(0, Layout.of(model).dim, 3)
