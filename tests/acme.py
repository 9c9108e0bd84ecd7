"""Stands for the installed package of a consortium: models, and the data of its hospitals."""

import torch
from torch import Tensor, nn

SEED = 5
SIZES = (5, 6, 7, 8, 9, 10, 11, 12)  # ascending: then the simulation sums clients in the order of their numbers


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 3))


def larger() -> nn.Module:
    return nn.Sequential(nn.Linear(12, 9), nn.Tanh(), nn.Linear(9, 3))


def linear() -> nn.Module:
    """42 weights."""
    return nn.Sequential(nn.Linear(12, 3), nn.PReLU(3))


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
