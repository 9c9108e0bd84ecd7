"""Stands for the installed package of a consortium: models, and the data of its hospitals."""

from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from tacit.data import Task

SEED = 5
SIZES = (5, 6, 7, 8, 9, 10, 11, 12)  # ascending: then the simulation sums clients in the order of their numbers


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 3))


def larger() -> nn.Module:
    return nn.Sequential(nn.Linear(12, 9), nn.Tanh(), nn.Linear(9, 3))


def linear() -> nn.Module:
    """42 weights."""
    return nn.Sequential(nn.Linear(12, 3), nn.PReLU(3))


def digits_net() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


@cache
def digits() -> "Task":
    """The digits of eight sites, in the order in which sites and clients are summed."""
    from tacit.tasks.catalog import make_task

    task = make_task("digits", clients="8", seed="4")
    parts = sorted((task.population[number] for number in range(8)), key=lambda part: len(part[0]))
    return replace(task, model=digits_net, clients=parts)


def digits_of(site: int) -> tuple[Tensor, Tensor]:
    return digits().population[site]


digits_0, digits_1, digits_2, digits_3, digits_4, digits_5, digits_6, digits_7 = (
    partial(digits_of, number) for number in range(8)
)


def samples(site: int) -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(100 + site)
    x = torch.randn(SIZES[site], 12, generator=source)
    return x, x[:, :3].argmax(1)


def public() -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(99)
    x = torch.randn(20, 12, generator=source)
    return x, x[:, :3].argmax(1)


def narrow() -> tuple[Tensor, Tensor]:
    """Samples with fewer inputs than the models have."""
    return torch.zeros(20, 2), torch.zeros(20, dtype=torch.long)


def load_0() -> tuple[Tensor, Tensor]:
    return samples(0)


def load_1() -> tuple[Tensor, Tensor]:
    return samples(1)


def load_2() -> tuple[Tensor, Tensor]:
    return samples(2)


def load_3() -> tuple[Tensor, Tensor]:
    return samples(3)


def load_4() -> tuple[Tensor, Tensor]:
    return samples(4)


def load_5() -> tuple[Tensor, Tensor]:
    return samples(5)


def load_6() -> tuple[Tensor, Tensor]:
    return samples(6)


def load_7() -> tuple[Tensor, Tensor]:
    return samples(7)
