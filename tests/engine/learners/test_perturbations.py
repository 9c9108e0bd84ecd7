"""Scores of weights with groups of them perturbed: every learner agrees with the loop over all candidates."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import zoo
from tacit.core import BinaryCrossEntropy, CrossEntropy, Loss, MeanSquared, Perturbation
from tacit.data import Population, Samples
from tacit.engine.layout import Layout
from tacit.engine.learners.functional import FunctionalLearner
from tacit.engine.learners.reference import ReferenceLearner
from tacit.engine.waves import AutoLearner

LINEAR = {name: zoo.CHAINS[name] for name in ("mlp", "wide", "softmax", "biasless", "pooled_inputs")}


def of_inputs(model: nn.Module, group: Callable[[int], Tensor], amount: float) -> Perturbation:
    """Groups of the inputs of the first layer with weights."""
    layout = Layout.of(model)
    groups = torch.full((layout.dim,), -1)
    outputs, *inside = layout.shapes[0]
    of_input = group(int(torch.tensor(inside).prod()))
    groups[: layout.sizes[0]] = of_input.repeat(outputs)
    return Perturbation(groups, int(of_input.max()) + 1, amount)


def reference_scores(
    model: nn.Module, data: Samples, perturbation: Perturbation, weights: Tensor | None = None, loss: Loss | None = None
) -> Tensor:
    weights = zoo.weights_of(model) if weights is None else weights
    return ReferenceLearner(model, loss or CrossEntropy()).perturbed_scores(weights, data, perturbation)


def each(inputs: int) -> Tensor:
    """Every input is a group."""
    return torch.arange(inputs)


def in_fives(inputs: int) -> Tensor:
    """Three inputs in no group, the others in groups of five."""
    return torch.where(torch.arange(inputs) < 3, -1, (torch.arange(inputs) - 3) // 5)


def samples(*, positive: bool = False) -> Samples:
    """Half of the pixels are zero, and two of them in every image."""
    (x, y), g = zoo.population([40], dtype=torch.float64)[0], torch.Generator().manual_seed(1)
    x = x * (torch.rand(x.shape, generator=g) < 0.5)
    x[:, :, 0, :2] = 0
    return x.abs() if positive else x, y


@pytest.mark.law
@pytest.mark.parametrize("positive", [True, False], ids=["positive", "any sign"])
@pytest.mark.parametrize("amount", [-0.3, 0.003, 0.03, 1.0])
@pytest.mark.parametrize("group", [each, in_fives])
@pytest.mark.parametrize("make", LINEAR.values(), ids=LINEAR)
def test_kernels(make: Callable[[], nn.Module], group: Callable[[int], Tensor], amount: float, positive: bool) -> None:
    torch.manual_seed(0)
    model, data = make().double(), samples(positive=positive)
    perturbation = of_inputs(model, group, amount)
    found = zoo.kernels(model).perturbed_scores(zoo.weights_of(model), data, perturbation)
    assert found is not None
    assert torch.equal(found, reference_scores(model, data, perturbation))
    assert amount < 1 or positive or make is zoo.softmax or found.unique().numel() > 2  # there is something to compare


@pytest.mark.parametrize("amount", [1e-3, 0.01, 0.1, 1.0])
def test_only_samples_whose_class_cannot_change_are_skipped(amount: float) -> None:
    """The paper's kind of model, partly trained, on enough samples that some are close to the decision boundary."""
    torch.manual_seed(0)
    model = zoo.biasless().double()
    x, y = zoo.population([200], dtype=torch.float64)[0]
    data, start = (x.abs(), y), zoo.weights_of(model)
    reference, descent = ReferenceLearner(model, CrossEntropy()), zoo.descent(lr=0.3, steps=30)
    trained = start + zoo.updates(reference, start, Population.of([data]), descent).dense()[0]
    perturbation = of_inputs(model, each, amount)
    found = AutoLearner(model, CrossEntropy()).perturbed_scores(trained, data, perturbation)
    assert torch.equal(found, reference_scores(model, data, perturbation, trained))
    assert amount < 0.1 or found.unique().numel() > 3


@pytest.mark.parametrize("make", [zoo.cnn, zoo.Residual, zoo.mlp])
def test_functional(make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    model = make().double()
    perturbation = of_inputs(model, each, 0.3)
    found = FunctionalLearner(model, CrossEntropy()).perturbed_scores(zoo.weights_of(model), samples(), perturbation)
    assert torch.equal(found, reference_scores(model, samples(), perturbation))


@pytest.mark.parametrize("loss", [MeanSquared(), BinaryCrossEntropy()], ids=repr)
def test_other_losses(loss: Loss) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 7), nn.Sigmoid(), nn.Linear(7, 2)).double()
    data = torch.randn(20, 5).double(), torch.rand(20, 2).double()
    perturbation = of_inputs(model, each, 0.3)
    found = AutoLearner(model, loss).perturbed_scores(zoo.weights_of(model), data, perturbation)
    torch.testing.assert_close(found, reference_scores(model, data, perturbation, loss=loss))
    assert found.unique().numel() > 1


def test_groups_that_are_not_groups_of_inputs_have_no_kernel() -> None:
    torch.manual_seed(0)
    model = zoo.mlp().double()
    weights = zoo.weights_of(model)
    single = torch.full((len(weights),), -1)
    single[[5, 70]] = torch.tensor([0, 1])  # single weights of the first layer
    bias = single.new_full(single.shape, -1)
    bias[64 * 30] = 0
    for groups, count in ((single, 2), (bias, 1)):
        perturbation = Perturbation(groups, count, 0.5)
        assert zoo.kernels(model).perturbed_scores(weights, samples(), perturbation) is None
        found = AutoLearner(model, CrossEntropy()).perturbed_scores(weights, samples(), perturbation)
        assert torch.equal(found, reference_scores(model, samples(), perturbation))


def test_an_input_that_is_always_zero_changes_nothing() -> None:
    torch.manual_seed(0)
    model = zoo.mlp().double()
    learner = AutoLearner(model, CrossEntropy())
    found = learner.perturbed_scores(zoo.weights_of(model), samples(), of_inputs(model, each, 1.0))
    assert bool((found[1:3] == found[0]).all())
    assert bool((found[3:] != found[0]).any())


def test_a_wave_scores_every_client_on_its_own_data() -> None:
    wave = zoo.wave((5, 9))
    weights = torch.stack([zoo.weights_of(zoo.mlp()), zoo.weights_of(zoo.mlp())])
    perturbation = of_inputs(zoo.mlp(), each, 0.3)
    found = wave.perturbed_scores(weights, perturbation)
    assert found.shape == (2, 65)
    assert torch.equal(found[1], wave.learner.perturbed_scores(weights[1], wave.population[1], perturbation))
    assert wave.shapes[0] == (30, 64)
