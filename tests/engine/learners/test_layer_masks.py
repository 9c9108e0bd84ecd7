"""Training under a mask: every learner changes the mask's coordinates as the reference does, and no others."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import Tensor, nn

import zoo
from tacit.core import CrossEntropy, Descent, MaskedRows, Rows
from tacit.data import Population
from tacit.engine.layout import Layout
from tacit.engine.learners.functional import FunctionalLearner
from tacit.engine.learners.kernels.layer_masks import ChainMask
from tacit.engine.learners.reference import ReferenceLearner
from tacit.engine.waves import AutoLearner

TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-10}
SIZES = {"equal": (6, 6, 6), "ragged": (3, 9, 1, 6)}
DESCENTS = {
    "full batch": zoo.descent(steps=4),
    "one step": zoo.descent(steps=1),
    "minibatch epochs": zoo.descent(epochs=2, batch_size=4),
    "many steps": zoo.descent(steps=6, batch_size=2),
    "few of many": zoo.descent(steps=1, batch_size=2),
}


def scattered(ratio: float) -> Callable[[nn.Module], Tensor]:
    """Random coordinates."""

    def mask(model: nn.Module) -> Tensor:
        dim = Layout.of(model).dim
        g = torch.Generator().manual_seed(5)
        return torch.randperm(dim, generator=g)[: max(1, int(ratio * dim))].sort().values

    return mask


def concentrated(model: nn.Module) -> Tensor:
    """Some outputs times some inputs of every layer, like the largest gradients on public data."""
    g, parts = torch.Generator().manual_seed(6), []
    for parameter in model.parameters():
        scores = torch.rand(parameter.shape[0], generator=g)
        if parameter.dim() > 1:
            scores = torch.outer(scores, torch.rand(parameter[0].numel(), generator=g)).flatten()
        parts.append(scores)
    return torch.cat(parts).topk(Layout.of(model).dim // 20).indices.sort().values


def only(keep: Callable[[str, int], bool]) -> Callable[[nn.Module], Tensor]:
    """Every second coordinate of the parameters for which `keep(name, number from the end)` is true."""

    def mask(model: nn.Module) -> Tensor:
        layout = Layout.of(model)
        last = len(layout.names) - 1
        kept = [keep(name, last - i) for i, name in enumerate(layout.names)]
        which = torch.cat([torch.full((size,), k) for size, k in zip(layout.sizes, kept, strict=True)])
        return which.nonzero().flatten()[::2].contiguous()

    return mask


MASKS: dict[str, Callable[[nn.Module], Tensor]] = {
    "0.1 %": scattered(0.001),
    "1 %": scattered(0.01),
    "10 %": scattered(0.1),
    "50 %": scattered(0.5),
    "all": scattered(1.0),
    "concentrated": concentrated,
    "biases": only(lambda name, _: name.endswith("bias")),
    "weights": only(lambda name, _: name.endswith("weight")),
    "last parameter": only(lambda _, above: above == 0),
    "all but the last layer": only(lambda _, above: above > 1),
    "all but the first layer": only(lambda name, _: name.split(".")[0] not in ("0", "1", "conv")),
    "empty": lambda _: torch.zeros(0, dtype=torch.int64),
}


def trained(learner: zoo.CanDescend, model: nn.Module, clients: Population, descent: Descent) -> Rows:
    weights = zoo.weights_of(model)
    before = weights.clone()
    rows = zoo.updates(learner, weights, clients, descent)
    assert torch.equal(weights, before)
    return rows


def assert_same(ours: Rows, theirs: Rows, descent: Descent, dtype: torch.dtype) -> None:
    assert isinstance(ours, MaskedRows)
    assert isinstance(theirs, MaskedRows)
    assert ours.mask is descent.mask
    assert ours.values.shape == (theirs.count, len(ours.mask))
    assert ours.dim == theirs.dim
    assert ours.dtype == dtype
    assert float((ours.values - theirs.values).norm()) <= TOLERANCE[dtype] * float(theirs.values.norm())


@cache
def auto_and_reference(make: Callable[[], nn.Module]) -> tuple[nn.Module, AutoLearner, ReferenceLearner]:
    """A model and its learners, which all masks share."""
    torch.manual_seed(0)
    model = make().double()
    return model, AutoLearner(model, CrossEntropy()), ReferenceLearner(model, CrossEntropy())


@pytest.mark.law
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("make", zoo.CHAINS.values(), ids=zoo.CHAINS)
def test_kernels(make: Callable[[], nn.Module], mask: Callable[[nn.Module], Tensor], sizes: tuple[int, ...]) -> None:
    """In single and in double precision, against the reference in double precision."""
    model, auto, reference = auto_and_reference(make)
    clients, weights, coordinates = zoo.population(sizes, dtype=torch.float64), zoo.weights_of(model), mask(model)
    for unmasked in DESCENTS.values():
        descent = replace(unmasked, mask=coordinates)
        theirs = zoo.updates(reference, weights, clients, descent)
        for dtype in TOLERANCE:
            ours = zoo.updates(auto, weights.to(dtype), zoo.converted(clients, dtype), descent)
            assert_same(ours, theirs, descent, dtype)
    assert torch.equal(weights, zoo.weights_of(model))


@pytest.mark.law
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("make", [zoo.mlp, zoo.Residual])
def test_functional(make: Callable[[], nn.Module], momentum: float, mask: Callable[[nn.Module], Tensor]) -> None:
    torch.manual_seed(0)
    model, clients = make().double(), zoo.population(SIZES["ragged"], dtype=torch.float64)
    descent = zoo.descent(epochs=2, batch_size=4, momentum=momentum, weight_decay=0.01 * momentum)
    descent = replace(descent, mask=mask(model))
    ours = trained(FunctionalLearner(model, CrossEntropy()), model, clients, descent)
    theirs = trained(ReferenceLearner(model, CrossEntropy()), model, clients, descent)
    assert_same(ours, theirs, descent, torch.float64)


@pytest.mark.parametrize("make", [zoo.mlp, zoo.cnn])
def test_a_full_mask_is_no_mask(make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    model, clients = make().double(), zoo.population(SIZES["ragged"], dtype=torch.float64)
    descent = DESCENTS["minibatch epochs"]
    full = replace(descent, mask=torch.arange(Layout.of(model).dim))
    learners: list[zoo.CanDescend] = [ReferenceLearner(model, CrossEntropy()), AutoLearner(model, CrossEntropy())]
    for learner in learners:
        masked, free = (trained(learner, model, clients, each).dense() for each in (full, descent))
        torch.testing.assert_close(masked, free, rtol=1e-10, atol=1e-12)


def test_the_reference_is_masked_sgd_of_torch() -> None:
    """The reference itself against `torch.optim` with gradients set to zero outside the mask, for one client."""
    model, clients = zoo.mlp(), zoo.population([7])
    layout, mask = Layout.of(model), scattered(0.1)(model)
    descent = replace(zoo.descent(steps=5, momentum=0.8, lr=0.05), mask=mask)
    ours = trained(ReferenceLearner(model, CrossEntropy()), model, clients, descent).dense()[0]
    before = layout.flatten(model)
    masked = layout.views(torch.zeros(layout.dim).index_fill_(0, mask, 1.0))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.8)
    x, y = clients[0]
    for _ in range(5):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None
            parameter.grad.mul_(masked[name])
        optimiser.step()
    torch.testing.assert_close(ours, layout.flatten(model) - before)


def test_the_masks_cover_every_form_of_a_masked_layer() -> None:
    """Without this, a form that no mask above selects would not be compared with the reference."""
    covered = set()
    for make in zoo.CHAINS.values():
        torch.manual_seed(0)
        model = make()
        for mask in MASKS.values():
            chain_mask = chain_mask_of(model, mask(model))
            for layer in chain_mask.layers.values():
                if not layer.empty:
                    covered.add("per client" if layer.is_dense else "block" if layer.is_blockwise else "scattered")
                    covered.add("gathered" if layer.gathers_gradient else "whole")
                covered.update({"output order"} if layer.output_order is not None else ())
                covered.update({"input order"} if layer.input_order is not None else ())
    forms = {"per client", "block", "scattered", "gathered", "whole"}
    assert covered == forms | {"output order", "input order"}


def chain_mask_of(model: nn.Module, mask: Tensor) -> ChainMask:
    kernels = zoo.kernels(model)
    trained(kernels, model, zoo.population((2, 2)), replace(DESCENTS["one step"], mask=mask))
    assert kernels.chain_mask is not None
    return kernels.chain_mask


def test_a_first_convolution_without_bias() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3, bias=False), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10)).double()
    clients, descent = zoo.population(SIZES["ragged"], dtype=torch.float64), DESCENTS["full batch"]
    ours = trained(AutoLearner(model, CrossEntropy()), model, clients, descent).dense()
    theirs = trained(ReferenceLearner(model, CrossEntropy()), model, clients, descent).dense()
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)
