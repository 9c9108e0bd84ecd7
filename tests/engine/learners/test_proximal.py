"""Clients that start from different weights, with proximal terms towards different targets, in every learner."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import zoo
from tacit.core import CrossEntropy, DenseRows, Descent, ProximalTerm
from tacit.data import Population
from tacit.engine.batches import make_batches
from tacit.engine.layout import Layout
from tacit.engine.learners.functional import FunctionalLearner
from tacit.engine.learners.reference import ReferenceLearner
from tacit.engine.waves import AutoLearner

EQUAL, RAGGED = (6, 6, 6), (3, 9, 1, 6)
DESCENTS = {
    "full batch": zoo.descent(steps=4),
    "minibatch epochs": zoo.descent(epochs=2, batch_size=4),
    "many steps": zoo.descent(steps=6, batch_size=2),
}
every_descent = pytest.mark.parametrize("descent", DESCENTS.values(), ids=DESCENTS)
every_chain = pytest.mark.parametrize("make", zoo.CHAINS.values(), ids=zoo.CHAINS)


def random_rows(model: nn.Module, clients: int, seed: int) -> Tensor:
    """The model's weights plus other noise for each client."""
    flat = zoo.weights_of(model)
    return flat + 0.1 * torch.randn(clients, len(flat), generator=torch.Generator().manual_seed(seed)).to(flat.dtype)


def with_proximal(descent: Descent, model: nn.Module, clients: int) -> Descent:
    """A proximal term of another strength for each weight matrix, and none for biases."""
    shapes = Layout.of(model).shapes
    strengths = tuple(0.3 + 0.2 * i if len(shape) > 1 else 0.0 for i, shape in enumerate(shapes))
    return replace(descent, proximal=ProximalTerm(random_rows(model, clients, 2), strengths))


def updates(learner: zoo.CanDescend, weights: Tensor, clients: Population, descent: Descent) -> Tensor:
    return zoo.updates(learner, weights, clients, descent).dense()


def seeded(make: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return make().double()


@pytest.mark.law
@every_chain
@every_descent
@pytest.mark.parametrize("start", ["shared", "per client"])
@pytest.mark.parametrize("proximal", [False, True], ids=["free", "proximal"])
@pytest.mark.parametrize("decay", [0.0, 0.2])
def test_kernels(make: Callable[[], nn.Module], descent: Descent, start: str, proximal: bool, decay: float) -> None:
    model, clients = seeded(make), zoo.population(EQUAL, dtype=torch.float64)
    weights = zoo.weights_of(model) if start == "shared" else random_rows(model, 3, 1)
    descent = replace(descent, weight_decay=decay)
    descent = with_proximal(descent, model, 3) if proximal else descent
    kernels = zoo.kernels(model)
    assert kernels.supports(weights, make_batches(clients, torch.arange(3), descent, weights.dtype), descent)
    ours = updates(kernels, weights, clients, descent)
    theirs = updates(ReferenceLearner(model, CrossEntropy()), weights, clients, descent)
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("sizes", [EQUAL, RAGGED], ids=["equal", "ragged"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("mask", [None, torch.arange(3, 600, 7)], ids=["all", "masked"])
@pytest.mark.parametrize("make", [zoo.mlp, zoo.Residual])
def test_functional(
    make: Callable[[], nn.Module], mask: Tensor | None, momentum: float, sizes: tuple[int, ...]
) -> None:
    model, clients = seeded(make), zoo.population(sizes, dtype=torch.float64)
    descent = zoo.descent(epochs=2, batch_size=4, momentum=momentum, weight_decay=0.01 * momentum)
    descent, weights = replace(with_proximal(descent, model, len(sizes)), mask=mask), random_rows(model, len(sizes), 1)
    ours = updates(FunctionalLearner(model, CrossEntropy()), weights, clients, descent)
    theirs = updates(ReferenceLearner(model, CrossEntropy()), weights, clients, descent)
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("make", [zoo.cnn, zoo.Residual])
@pytest.mark.parametrize("mask", [None, torch.arange(3, 600, 7)], ids=["all", "masked"])
def test_ragged_clients_and_masks_are_supported(make: Callable[[], nn.Module], mask: Tensor | None) -> None:
    model, clients = seeded(make), zoo.population(RAGGED, dtype=torch.float64)
    descent = replace(with_proximal(DESCENTS["minibatch epochs"], model, 4), mask=mask)
    weights = random_rows(model, 4, 1)
    ours = updates(AutoLearner(model, CrossEntropy()), weights, clients, descent)
    theirs = updates(ReferenceLearner(model, CrossEntropy()), weights, clients, descent)
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11)


def test_the_reference_is_the_gradient_of_the_penalised_loss() -> None:
    """Against `torch.optim` with an explicit penalty, for one client."""
    model, clients = seeded(zoo.mlp), zoo.population([7], dtype=torch.float64)
    weights = random_rows(model, 1, 1)
    descent = with_proximal(zoo.descent(steps=5, momentum=0.8, lr=0.05), model, 1)
    ours = updates(ReferenceLearner(model, CrossEntropy()), weights, clients, descent)[0]
    layout = Layout.of(model)
    layout.load(model, weights[0])
    assert descent.proximal is not None
    targets, strengths = layout.views(descent.proximal.target[0]).values(), descent.proximal.strengths
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.8)
    x, y = clients[0]
    for _ in range(5):
        optimiser.zero_grad()
        pairs = zip(model.parameters(), targets, strengths, strict=True)
        penalty = torch.stack([s / 2 * (w - t).square().sum() for w, t, s in pairs]).sum()
        (nn.functional.cross_entropy(model(x), y) + penalty).backward()
        optimiser.step()
    torch.testing.assert_close(ours, layout.flatten(model) - weights[0])


def test_received_weights_are_not_modified() -> None:
    model, clients = zoo.cnn(), zoo.population(EQUAL)
    descent, weights = with_proximal(DESCENTS["full batch"], model, 3), random_rows(model, 3, 1)
    assert descent.proximal is not None
    before = weights.clone(), descent.proximal.target.clone()
    learners: list[zoo.CanDescend] = [AutoLearner(model, CrossEntropy()), ReferenceLearner(model, CrossEntropy())]
    for learner in learners:
        assert DenseRows(updates(learner, weights, clients, descent)).norms().min() > 0
        assert torch.equal(weights, before[0])
        assert torch.equal(descent.proximal.target, before[1])
