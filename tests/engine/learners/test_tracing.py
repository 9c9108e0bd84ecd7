from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import zoo
from tacit.engine.layout import Layout
from tacit.engine.learners.kernels.conv import ConvWeights
from tacit.engine.learners.kernels.tracing import MaxPool2x2, evaluation_module, even_padding, trace_chain


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 64)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(torch.relu(self.layer(x.flatten(1))))
        return out


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x.flatten(1)) if x.sum() > 0 else self.layer(-x.flatten(1))
        return out


def frozen_weight() -> nn.Module:
    model = zoo.mlp()
    model[1].weight.requires_grad_(False)
    return model


def unused_layer() -> nn.Module:
    model = zoo.FunctionalCalls()
    model.spare = nn.Linear(2, 2)
    return model


def reflecting() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 2, 3, padding=1, padding_mode="reflect"), nn.Flatten(), nn.Linear(128, 10))


@pytest.mark.parametrize("make", zoo.CHAINS.values(), ids=zoo.CHAINS)
def test_chains_are_recognised(make: Callable[[], nn.Module]) -> None:
    assert trace_chain(make()) is not None


@pytest.mark.parametrize(
    "make", [zoo.Residual, zoo.Recurrent, Tied, Branching, frozen_weight, unused_layer, reflecting]
)
def test_other_models_are_not_chains(make: Callable[[], nn.Module]) -> None:
    assert trace_chain(make()) is None


def test_a_single_layer_is_a_chain() -> None:
    chain = trace_chain(nn.Linear(4, 2))
    assert chain is not None
    assert [layer.parameters for layer in chain] == [("weight", "bias")]


def test_names_are_those_of_the_parameters() -> None:
    chain = trace_chain(zoo.FunctionalCalls())
    assert chain is not None
    assert [layer.parameters for layer in chain if layer.parameters] == [
        ("conv.weight", "conv.bias"),
        ("out.weight", "out.bias"),
    ]


def test_kinds_are_those_of_the_modules_and_of_the_functions_that_are_called() -> None:
    chain = trace_chain(zoo.FunctionalCalls())
    assert chain is not None
    assert [layer.kind for layer in chain] == [nn.Conv2d, nn.MaxPool2d, nn.ReLU, nn.Flatten, nn.Linear]


def test_geometry_that_is_changed_after_construction_is_that_of_the_forward_pass() -> None:
    conv = nn.Conv2d(1, 2, 3, padding=1)
    conv.stride, conv.padding, conv.dilation = 2, (2, 0), (1, 2)  # type: ignore[assignment]
    x = torch.randn(1, 4, 1, 9, 9)
    weights = ConvWeights(conv, conv.weight, conv.bias)
    torch.testing.assert_close(weights.apply(x, conv.weight[None], [conv.bias])[0], conv(x[0]))
    assert even_padding(nn.Conv2d(1, 1, (3, 5), padding="same")) == (1, 2)
    assert even_padding(nn.Conv2d(1, 1, 2, padding="same")) is None
    assert even_padding(nn.Conv2d(1, 1, 3, padding="valid")) == (0, 0)


def test_hooks_are_not_ignored() -> None:
    model = zoo.mlp()
    model[1].register_forward_hook(lambda *_: None)
    assert trace_chain(model) is None


def test_pooling_moves_before_relu() -> None:
    chain = trace_chain(zoo.cnn())
    assert chain is not None
    assert [type(layer.module).__name__ for layer in chain[:3]] == ["Conv2d", "MaxPool2d", "ReLU"]


@pytest.mark.parametrize("make", zoo.CHAINS.values(), ids=zoo.CHAINS)
def test_evaluation_gives_bitwise_the_models_outputs(make: Callable[[], nn.Module]) -> None:
    model, x = make(), torch.randn(7, 1, 8, 8)
    expected = model(x)
    assert torch.equal(evaluation_module(model)(x), expected)


def test_evaluation_uses_new_weights_at_once() -> None:
    model, x = zoo.cnn(), torch.randn(3, 1, 8, 8)
    forward = evaluation_module(model)
    before = forward(x)
    Layout.of(model).load(model, 2 * zoo.weights_of(model))
    assert torch.equal(forward(x), model(x))
    assert not torch.equal(forward(x), before)


@pytest.mark.parametrize("sides", [(8, 8), (7, 9), (2, 3)])
def test_2x2_pooling_equals_that_of_torch(sides: tuple[int, int]) -> None:
    x = torch.randn(2, 3, *sides)
    x[0, 0, 0, 1] = torch.nan
    torch.testing.assert_close(MaxPool2x2()(x), nn.MaxPool2d(2)(x), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(
    ("pool", "replaced"),
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
def test_only_2x2_pooling_is_replaced(pool: nn.Module, replaced: bool) -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), pool)
    forward, x = evaluation_module(model), torch.randn(2, 1, 9, 9)
    assert any(isinstance(module, MaxPool2x2) for module in forward.modules()) is replaced
    assert torch.equal(forward(x), model(x))


def test_a_model_that_is_not_a_chain_is_evaluated_itself() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.9)).train()
    forward, x = evaluation_module(model), torch.ones(2, 4)
    assert forward is model
    assert torch.equal(forward(x), model[0](x))
