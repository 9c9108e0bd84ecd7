"""Clients that start from weights of their own, and are pulled towards targets of their own, in every way there is."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import zoo
from tacit.core import CrossEntropy, DenseRows, Descent, Population, ProximalTerm
from tacit.engine.batches import plan_batches
from tacit.engine.layout import Layout
from tacit.engine.learners import Fastest, Learner
from tacit.engine.learners.functional import Functional
from tacit.engine.learners.kernels import kernels_for
from tacit.engine.learners.reference import Reference

EQUAL, RAGGED = (6, 6, 6), (3, 9, 1, 6)
DESCENTS = {
    "full batch": zoo.descent(steps=4),
    "minibatch epochs": zoo.descent(epochs=2, batch_size=4),
    "many steps": zoo.descent(steps=11, batch_size=2),
}
every_descent = pytest.mark.parametrize("how", DESCENTS.values(), ids=DESCENTS)
every_chain = pytest.mark.parametrize("make", zoo.CHAINS.values(), ids=zoo.CHAINS)


def rows(model: nn.Module, clients: int, seed: int) -> Tensor:
    flat = Layout.of(model).flatten(model)
    return flat + 0.1 * torch.randn(clients, len(flat), generator=torch.Generator().manual_seed(seed)).to(flat.dtype)


def pulled(how: Descent, model: nn.Module, clients: int) -> Descent:
    """Weights are pulled, each parameter by another strength, and biases are not."""
    shapes = Layout.of(model).shapes
    strengths = tuple(0.3 + 0.2 * i if len(shape) > 1 else 0.0 for i, shape in enumerate(shapes))
    return replace(how, proximal=ProximalTerm(rows(model, clients, 2), strengths))


def moved(learner: Learner, weights: Tensor, clients: Population, how: Descent) -> Tensor:
    everyone = torch.arange(len(clients))
    return learner.descend(weights, plan_batches(clients, everyone, how, weights.dtype), how, everyone).dense()


def made(make: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return make().double()


@every_chain
@every_descent
@pytest.mark.parametrize("start", ["shared", "own"])
@pytest.mark.parametrize("pull", [False, True], ids=["free", "pulled"])
@pytest.mark.parametrize("decay", [0.0, 0.2])
def test_kernels(make: Callable[[], nn.Module], how: Descent, start: str, proximal: bool, decay: float) -> None:
    model, clients, how = made(make), zoo.population(EQUAL, dtype=torch.float64), replace(how, weight_decay=decay)
    weights = Layout.of(model).flatten(model) if start == "shared" else rows(model, 3, 1)
    how = pulled(how, model, 3) if proximal else how
    kernels = kernels_for(model, CrossEntropy())
    assert kernels is not None
    assert kernels.takes(weights, plan_batches(clients, torch.arange(3), how, weights.dtype), how)
    ours, theirs = (moved(way, weights, clients, how) for way in (kernels, Reference(model, CrossEntropy())))
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("sizes", [EQUAL, RAGGED], ids=["equal", "ragged"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("mask", [None, torch.arange(3, 600, 7)], ids=["all", "masked"])
@pytest.mark.parametrize("make", [zoo.mlp, zoo.Residual])
def test_functional(
    make: Callable[[], nn.Module], mask: Tensor | None, momentum: float, sizes: tuple[int, ...]
) -> None:
    model, clients = made(make), zoo.population(sizes, dtype=torch.float64)
    how = zoo.descent(epochs=2, batch_size=4, momentum=momentum, weight_decay=0.01 * momentum)
    how, weights = replace(pulled(how, model, len(sizes)), mask=mask), rows(model, len(sizes), 1)
    ours, theirs = (moved(way(model, CrossEntropy()), weights, clients, how) for way in (Functional, Reference))
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("make", [zoo.cnn, zoo.Residual])
@pytest.mark.parametrize("mask", [None, torch.arange(3, 600, 7)], ids=["all", "masked"])
def test_whatever_is_fastest_takes_ragged_clients_and_masks(make: Callable[[], nn.Module], mask: Tensor | None) -> None:
    model, clients = made(make), zoo.population(RAGGED, dtype=torch.float64)
    how, weights = replace(pulled(DESCENTS["minibatch epochs"], model, 4), mask=mask), rows(model, 4, 1)
    ours, theirs = (moved(way(model, CrossEntropy()), weights, clients, how) for way in (Fastest, Reference))
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11)


def test_the_reference_is_the_gradient_of_the_penalised_loss() -> None:
    """Against `torch.optim` and a penalty that is written out, for one client."""
    model, clients = made(zoo.mlp), zoo.population([7], dtype=torch.float64)
    weights = rows(model, 1, 1)
    how = pulled(zoo.descent(steps=5, momentum=0.8, lr=0.05), model, 1)
    ours = moved(Reference(model, CrossEntropy()), weights, clients, how)[0]
    layout = Layout.of(model)
    layout.load(model, weights[0])
    assert how.proximal is not None
    targets, strengths = layout.views(how.proximal.target[0]).values(), how.proximal.strengths
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.8)
    x, y = clients[0]
    for _ in range(5):
        optimiser.zero_grad()
        pairs = zip(model.parameters(), targets, strengths, strict=True)
        penalty = torch.stack([s / 2 * (w - t).square().sum() for w, t, s in pairs]).sum()
        (nn.functional.cross_entropy(model(x), y) + penalty).backward()
        optimiser.step()
    torch.testing.assert_close(ours, layout.flatten(model) - weights[0])


def test_received_weights_are_left_alone() -> None:
    model, clients = zoo.cnn(), zoo.population(EQUAL)
    how, weights = pulled(DESCENTS["full batch"], model, 3), rows(model, 3, 1)
    assert how.proximal is not None
    before = weights.clone(), how.proximal.target.clone()
    for learner in (Fastest(model, CrossEntropy()), Reference(model, CrossEntropy())):
        assert DenseRows(moved(learner, weights, clients, how)).norms().min() > 0
        assert torch.equal(weights, before[0])
        assert torch.equal(how.proximal.target, before[1])
