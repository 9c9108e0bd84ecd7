from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import zoo
from tacit.engine.learners.kernels.chain import chain_of


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(torch.relu(self.layer(x.flatten(1))))


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.flatten(1)) if x.sum() > 0 else self.layer(-x.flatten(1))


def frozen_part() -> nn.Module:
    model = zoo.mlp()
    model[1].weight.requires_grad_(False)
    return model


def unused_part() -> nn.Module:
    model = zoo.Functional()
    model.spare = nn.Linear(2, 2)
    return model


def reflecting() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 2, 3, padding=1, padding_mode="reflect"), nn.Flatten(), nn.Linear(128, 10))


@pytest.mark.parametrize("make", zoo.CHAINS.values(), ids=zoo.CHAINS)
def test_chains_are_recognised(make: Callable[[], nn.Module]) -> None:
    assert chain_of(make()) is not None


@pytest.mark.parametrize("make", [zoo.Residual, zoo.Recurrent, Tied, Branching, frozen_part, unused_part, reflecting])
def test_what_is_not_a_chain(make: Callable[[], nn.Module]) -> None:
    assert chain_of(make()) is None


def test_a_single_layer_is_a_chain() -> None:
    links = chain_of(nn.Linear(4, 2))
    assert links is not None
    assert [link.name for link in links] == [""]


def test_names_are_those_of_the_parameters() -> None:
    links = chain_of(zoo.Functional())
    assert links is not None
    assert [link.name for link in links if link.name] == ["conv", "out"]


def test_hooks_are_not_ignored() -> None:
    model = zoo.mlp()
    model[1].register_forward_hook(lambda *_: None)
    assert chain_of(model) is None


def test_pooling_moves_before_relu() -> None:
    links = chain_of(zoo.cnn())
    assert links is not None
    assert [type(link.module).__name__ for link in links[:3]] == ["Conv2d", "MaxPool2d", "ReLU"]
