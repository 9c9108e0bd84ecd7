from collections.abc import Callable

import pytest
import torch
from torch import nn

import zoo
from tacit.engine.layout import Layout
from tacit.engine.learners.kernels import forward_of
from tacit.engine.learners.kernels.forward import Halve


@pytest.mark.parametrize("make", zoo.CHAINS.values(), ids=zoo.CHAINS)
def test_outputs_are_the_models_own_to_the_last_bit(make: Callable[[], nn.Module]) -> None:
    model, x = make(), torch.randn(7, 1, 8, 8)
    expected = model(x)
    assert torch.equal(forward_of(model)(x), expected)


def test_new_weights_are_used_at_once() -> None:
    model, x = zoo.cnn(), torch.randn(3, 1, 8, 8)
    forward = forward_of(model)
    before = forward(x)
    Layout.of(model).load(model, 2 * Layout.of(model).flatten(model))
    assert torch.equal(forward(x), model(x))
    assert not torch.equal(forward(x), before)


@pytest.mark.parametrize("sides", [(8, 8), (7, 9), (2, 3)])
def test_halving_is_pooling(sides: tuple[int, int]) -> None:
    x = torch.randn(2, 3, *sides)
    x[0, 0, 0, 1] = torch.nan
    torch.testing.assert_close(Halve()(x), nn.MaxPool2d(2)(x), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(
    ("pool", "halved"),
    [
        (nn.MaxPool2d(2), True),
        (nn.MaxPool2d((2, 2), stride=(2, 2), padding=(0, 0)), True),
        (nn.MaxPool2d(2, stride=1), False),
        (nn.MaxPool2d(3, stride=2, padding=1), False),
        (nn.MaxPool2d(2, dilation=2), False),
        (nn.MaxPool2d(2, ceil_mode=True), False),
        (nn.MaxPool2d((2, 1), stride=2), False),
    ],
)
def test_only_the_usual_pooling_is_exchanged(pool: nn.Module, halved: bool) -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), pool)
    forward, x = forward_of(model), torch.randn(2, 1, 9, 9)
    assert any(isinstance(module, Halve) for module in forward.modules()) is halved
    assert torch.equal(forward(x), model(x))


def test_what_is_not_a_chain_is_evaluated_as_it_is() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.9)).train()
    forward, x = forward_of(model), torch.ones(2, 4)
    assert forward is model
    assert torch.equal(forward(x), model[0](x))
