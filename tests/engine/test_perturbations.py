"""How well weights do with groups of them nudged: every way through is the plain loop over all candidates."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import zoo
from tacit.core import BinaryCrossEntropy, CrossEntropy, Loss, MeanSquared, Perturbation, Population, Samples
from tacit.engine.batches import plan_batches
from tacit.engine.layout import Layout
from tacit.engine.learners import Fastest
from tacit.engine.learners.functional import Functional
from tacit.engine.learners.kernels import kernels_for
from tacit.engine.learners.reference import Reference

HOW = zoo.descent(lr=0.3, steps=30)
LINEAR = {name: zoo.CHAINS[name] for name in ("mlp", "wide", "softmax", "biasless", "pooled_inputs")}


def of_inputs(model: nn.Module, members: Callable[[int], Tensor]) -> tuple[Tensor, int]:
    """Groups of the inputs of the first layer with weights, and their number."""
    layout = Layout.of(model)
    groups = torch.full((layout.dim,), -1)
    outputs, *inside = layout.shapes[0]
    own = members(int(torch.tensor(inside).prod()))
    groups[: layout.sizes[0]] = own.repeat(outputs)
    return groups, int(own.max()) + 1


def each(inputs: int) -> Tensor:
    return torch.arange(inputs)


def some_together(inputs: int) -> Tensor:
    """Three inputs in no group, the others in groups of five."""
    return torch.where(torch.arange(inputs) < 3, -1, (torch.arange(inputs) - 3) // 5)


def samples(*, positive: bool = False) -> Samples:
    """Half of the pixels are zero, and two of them in every image."""
    (x, y), g = zoo.population([40], dtype=torch.float64)[0], torch.Generator().manual_seed(1)
    x = x * (torch.rand(x.shape, generator=g) < 0.5)
    x[:, :, 0, :2] = 0
    return x.abs() if positive else x, y


def weights_of(model: nn.Module) -> Tensor:
    return Layout.of(model).flatten(model)


@pytest.mark.parametrize("positive", [True, False], ids=["positive", "any sign"])
@pytest.mark.parametrize("amount", [-0.3, 0.003, 0.03, 1.0])
@pytest.mark.parametrize("members", [each, some_together])
@pytest.mark.parametrize("make", LINEAR.values(), ids=LINEAR)
def test_kernels(
    make: Callable[[], nn.Module], members: Callable[[int], Tensor], amount: float, positive: bool
) -> None:
    torch.manual_seed(0)
    model, data = make().double(), samples(positive=positive)
    nudge = Perturbation(*of_inputs(model, members), amount)
    kernels = kernels_for(model, CrossEntropy())
    assert kernels is not None
    fast = kernels.perturbed_scores(weights_of(model), data, nudge)
    assert fast is not None
    assert torch.equal(fast, Reference(model, CrossEntropy()).perturbed_scores(weights_of(model), data, nudge))
    assert amount < 1 or positive or make is zoo.softmax or fast.unique().numel() > 2  # there is something to compare


@pytest.mark.parametrize("amount", [1e-3, 0.01, 0.1, 1.0])
def test_only_classes_that_cannot_change_are_left_out(amount: float) -> None:
    """The paper's kind of model, partly trained, on enough samples that some are about to change."""
    torch.manual_seed(0)
    model = zoo.biasless().double()
    x, y = zoo.population([200], dtype=torch.float64)[0]
    data = x.abs(), y
    clients = Population.of([data])
    start = weights_of(model)
    trained = (
        start
        + Reference(model, CrossEntropy())
        .descend(start, plan_batches(clients, torch.tensor([0]), HOW, start.dtype), HOW, torch.tensor([0]))
        .dense()[0]
    )
    nudge = Perturbation(*of_inputs(model, each), amount)
    fast = Fastest(model, CrossEntropy()).perturbed_scores(trained, data, nudge)
    assert torch.equal(fast, Reference(model, CrossEntropy()).perturbed_scores(trained, data, nudge))
    assert amount < 0.1 or fast.unique().numel() > 3


@pytest.mark.parametrize("make", [zoo.cnn, zoo.Residual, zoo.mlp])
def test_functional(make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    model = make().double()
    nudge = Perturbation(*of_inputs(model, each), 0.3)
    functional, reference = (way(model, CrossEntropy()) for way in (Functional, Reference))
    found = functional.perturbed_scores(weights_of(model), samples(), nudge)
    assert torch.equal(found, reference.perturbed_scores(weights_of(model), samples(), nudge))


@pytest.mark.parametrize("loss", [MeanSquared(), BinaryCrossEntropy()], ids=repr)
def test_other_losses(loss: Loss) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 7), nn.Sigmoid(), nn.Linear(7, 2)).double()
    data = torch.randn(20, 5).double(), torch.rand(20, 2).double()
    nudge = Perturbation(*of_inputs(model, each), 0.3)
    fast = Fastest(model, loss).perturbed_scores(weights_of(model), data, nudge)
    torch.testing.assert_close(fast, Reference(model, loss).perturbed_scores(weights_of(model), data, nudge))
    assert fast.unique().numel() > 1


def test_groups_that_are_not_of_inputs_take_the_general_way() -> None:
    torch.manual_seed(0)
    model = zoo.mlp().double()
    kernels = kernels_for(model, CrossEntropy())
    assert kernels is not None
    single = torch.full((Layout.of(model).dim,), -1)
    single[[5, 70]] = torch.tensor([0, 1])  # single weights of the first layer
    bias = single.new_full(single.shape, -1)
    bias[64 * 30] = 0
    for groups, count in ((single, 2), (bias, 1)):
        nudge = Perturbation(groups, count, 0.5)
        assert kernels.perturbed_scores(weights_of(model), samples(), nudge) is None
        found = Fastest(model, CrossEntropy()).perturbed_scores(weights_of(model), samples(), nudge)
        assert torch.equal(
            found, Reference(model, CrossEntropy()).perturbed_scores(weights_of(model), samples(), nudge)
        )


def test_an_input_that_is_always_zero_changes_nothing() -> None:
    torch.manual_seed(0)
    model = zoo.mlp().double()
    found = Fastest(model, CrossEntropy()).perturbed_scores(
        weights_of(model), samples(), Perturbation(*of_inputs(model, each), 1.0)
    )
    assert bool((found[1:3] == found[0]).all())
    assert bool((found[3:] != found[0]).any())


def test_a_wave_asks_every_client_of_its_own_data() -> None:
    wave = zoo.wave((5, 9))
    weights = torch.stack([weights_of(zoo.mlp()), weights_of(zoo.mlp())])
    nudge = Perturbation(*of_inputs(zoo.mlp(), each), 0.3)
    found = wave.perturbed_scores(weights, nudge)
    assert found.shape == (2, 65)
    assert torch.equal(found[1], wave.learner.perturbed_scores(weights[1], wave.population[1], nudge))
    assert wave.shapes[0] == (30, 64)
