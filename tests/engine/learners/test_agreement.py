"""Every learner computes what the reference computes."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import zoo
from tacit.core import BinaryCrossEntropy, CrossEntropy, Descent, Loss, MeanSquared, RootBrier, RootMeanSquared, Rows
from tacit.data import Population
from tacit.engine.batches import make_batches
from tacit.engine.learners.functional import FunctionalLearner
from tacit.engine.learners.kernels import kernel_learner
from tacit.engine.learners.kernels.conv import LoopConv, PatchConv
from tacit.engine.learners.kernels.layers import BlockRows, FactoredBlock
from tacit.engine.learners.kernels.learner import LayerBuilder
from tacit.engine.learners.kernels.linear import DenseLinear, FactoredLinear, GramLinear, WindowLinear
from tacit.engine.learners.reference import ReferenceLearner
from tacit.engine.waves import AutoLearner

TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-10}
EQUAL, RAGGED = (6, 6, 6), (3, 9, 1, 6)
DESCENTS = {
    "full batch": zoo.descent(steps=4),
    "one step": zoo.descent(steps=1),
    "minibatch epochs": zoo.descent(epochs=2, batch_size=4),
    "many steps": zoo.descent(steps=11, batch_size=2),
}


def trained(learner: zoo.CanDescend, model: nn.Module, clients: Population, descent: Descent) -> Rows:
    return zoo.updates(learner, zoo.weights_of(model), clients, descent)


def relative(ours: Tensor, theirs: Tensor) -> float:
    return float((ours - theirs).norm() / theirs.norm())


def assert_same(ours: Rows, theirs: Rows, tolerance: float) -> None:
    assert relative(ours.dense(), theirs.dense()) < tolerance
    assert relative(ours.norms(), theirs.norms()) < tolerance
    factors = torch.linspace(0.1, 1, ours.count, dtype=torch.float64)
    ours, theirs = (rows.scaled(factors.to(rows.dtype)) for rows in (ours, theirs))
    assert relative(ours.sum(), theirs.sum()) < tolerance


@pytest.mark.law
@pytest.mark.parametrize("sizes", [EQUAL, RAGGED], ids=["equal", "ragged"])
@pytest.mark.parametrize("descent", DESCENTS.values(), ids=DESCENTS)
@pytest.mark.parametrize("make", zoo.CHAINS.values(), ids=zoo.CHAINS)
def test_kernels(make: Callable[[], nn.Module], descent: Descent, sizes: tuple[int, ...]) -> None:
    """In single and in double precision, against the reference in double precision."""
    torch.manual_seed(0)
    model, clients = make().double(), zoo.population(sizes, dtype=torch.float64)
    kernels, weights = zoo.kernels(model), zoo.weights_of(model)
    theirs = trained(ReferenceLearner(model, CrossEntropy()), model, clients, descent)
    for dtype in TOLERANCE:
        ours = zoo.updates(kernels, weights.to(dtype), zoo.converted(clients, dtype), descent)
        assert ours.dtype == dtype
        assert_same(ours, theirs, TOLERANCE[dtype])


def test_the_models_and_descents_cover_every_form_of_a_layer() -> None:
    """Without this, a form that no case above selects would not be compared with the reference."""
    forms = set()
    for make in zoo.CHAINS.values():
        model = make()
        kernels, weights, everyone = zoo.kernels(model), zoo.weights_of(model), torch.arange(len(EQUAL))
        for descent in DESCENTS.values():
            batches = make_batches(zoo.population(EQUAL), everyone, descent, weights.dtype)
            forms |= {type(layer) for layer in LayerBuilder(kernels, weights, batches, descent).layers()}
    assert forms >= {GramLinear, FactoredLinear, WindowLinear, DenseLinear, PatchConv, LoopConv}


@pytest.mark.parametrize("sizes", [EQUAL, RAGGED], ids=["equal", "ragged"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("make", [zoo.cnn, zoo.mlp, zoo.Residual])
def test_functional(make: Callable[[], nn.Module], momentum: float, sizes: tuple[int, ...]) -> None:
    """The first case takes seconds, because PyTorch imports its compiler when `vmap` is first used."""
    torch.manual_seed(0)
    model, clients = make().double(), zoo.population(sizes, dtype=torch.float64)
    descent = zoo.descent(epochs=2, batch_size=4, momentum=momentum, weight_decay=0.01 * momentum)
    theirs = trained(ReferenceLearner(model, CrossEntropy()), model, clients, descent)
    functional, weights = FunctionalLearner(model, CrossEntropy()), zoo.weights_of(model)
    for dtype in TOLERANCE:
        ours = zoo.updates(functional, weights.to(dtype), zoo.converted(clients, dtype), descent)
        assert ours.dtype == dtype
        assert_same(ours, theirs, TOLERANCE[dtype])


@pytest.mark.parametrize("make", [zoo.mlp, zoo.Residual])
def test_clipped_gradients(make: Callable[[], nn.Module]) -> None:
    """Some gradients are clipped and some are not; the kernels do not support clipping."""
    torch.manual_seed(0)
    model, clients = make().double(), zoo.population(RAGGED, dtype=torch.float64)
    free, descent, tight = (zoo.descent(epochs=2, batch_size=4, clip=clip) for clip in (None, 1.5, 1e-3))
    functional, reference = FunctionalLearner(model, CrossEntropy()), ReferenceLearner(model, CrossEntropy())
    clipped = trained(reference, model, clients, descent)
    assert_same(trained(functional, model, clients, descent), clipped, 1e-10)
    kernels = kernel_learner(model, CrossEntropy())
    weights, everyone = zoo.weights_of(model), torch.arange(len(RAGGED))
    batches = make_batches(clients, everyone, descent, weights.dtype)
    assert kernels is None or kernels.supports(weights, batches, free)
    assert kernels is None or not kernels.supports(weights, batches, descent)
    assert relative(clipped.dense(), trained(reference, model, clients, free).dense()) > 0.1
    one_step = trained(reference, model, clients, zoo.descent(steps=1, clip=1e-3, lr=0.5))
    torch.testing.assert_close(one_step.norms(), torch.full((4,), 0.5e-3, dtype=torch.float64))
    assert float(trained(reference, model, clients, tight).norms().max()) <= 0.1 * 1e-3 * 6 * (1 + 1e-9)


@pytest.mark.parametrize("loss", [MeanSquared(), BinaryCrossEntropy(), RootMeanSquared()], ids=repr)
@pytest.mark.parametrize("outputs", [1, 3])
def test_losses_on_real_targets(loss: Loss, outputs: int) -> None:
    model = nn.Sequential(nn.Linear(5, 7), nn.Sigmoid(), nn.Linear(7, outputs)).double()
    g = torch.Generator().manual_seed(3)
    parts = [(torch.randn(n, 5, generator=g).double(), torch.rand(n, outputs, generator=g).double()) for n in RAGGED]
    clients, descent = Population.of(parts), zoo.descent(epochs=2, batch_size=4)
    ours = trained(zoo.kernels(model, loss), model, clients, descent)
    assert_same(ours, trained(ReferenceLearner(model, loss), model, clients, descent), 1e-10)


@pytest.mark.parametrize(
    "descent", [zoo.descent(epochs=2, batch_size=4), zoo.descent(steps=3)], ids=["batches", "full batch"]
)
def test_root_brier(descent: Descent) -> None:
    torch.manual_seed(0)
    model, clients, loss = zoo.mlp().double(), zoo.population(RAGGED, dtype=torch.float64), RootBrier()
    reference = trained(ReferenceLearner(model, loss), model, clients, descent)
    assert_same(trained(zoo.kernels(model, loss), model, clients, descent), reference, 1e-10)
    assert_same(trained(FunctionalLearner(model, loss), model, clients, descent), reference, 1e-10)


def test_a_perfect_fit_does_not_change() -> None:
    """The root has no gradient at zero; every learner takes zero."""
    model = nn.Sequential(nn.Linear(2, 1)).double()
    x = torch.randn(4, 2).double()
    clients, loss = Population.of([(x, model(x).detach())]), RootMeanSquared()
    for learner in (ReferenceLearner(model, loss), FunctionalLearner(model, loss), zoo.kernels(model, loss)):
        rows = trained(learner, model, clients, zoo.descent(steps=2)).dense()
        assert float(rows.abs().max()) == 0.0


def test_the_reference_is_sgd_of_torch() -> None:
    """The reference itself against `torch.optim`, for one client."""
    model, clients = zoo.mlp(), zoo.population([7])
    descent = zoo.descent(steps=5, momentum=0.8, weight_decay=0.02, lr=0.05)
    ours = trained(ReferenceLearner(model, CrossEntropy()), model, clients, descent).dense()[0]
    before = zoo.weights_of(model)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.8, weight_decay=0.02)
    x, y = clients[0]
    for _ in range(5):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimiser.step()
    torch.testing.assert_close(ours, zoo.weights_of(model) - before)


@pytest.mark.parametrize("make", zoo.OTHERS.values(), ids=zoo.OTHERS)
def test_models_without_kernels(make: Callable[[], nn.Module]) -> None:
    model, clients, descent = make(), zoo.population(RAGGED), DESCENTS["minibatch epochs"]
    auto = AutoLearner(model, CrossEntropy())
    assert auto.kernels is None
    reference = ReferenceLearner(model, CrossEntropy())
    assert_same(trained(auto, model, clients, descent), trained(reference, model, clients, descent), 1e-4)


def test_batch_statistics_ignore_padding() -> None:
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(64, 5), nn.BatchNorm1d(5, track_running_stats=False), nn.Linear(5, 10)
    )
    clients, descent = zoo.population((2, 9, 5)), zoo.descent(steps=2)
    together = trained(AutoLearner(model, CrossEntropy()), model, clients, descent).dense()
    for client in range(3):
        alone = Population.of([clients[client]])
        torch.testing.assert_close(
            together[client], trained(AutoLearner(model, CrossEntropy()), model, alone, descent).dense()[0]
        )


def test_dropout_of_a_client_does_not_depend_on_its_wave() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 30), nn.Dropout(0.5), nn.Linear(30, 10))
    clients, descent = zoo.population((6, 6, 6)), zoo.descent(steps=3)
    learner, weights = AutoLearner(model, CrossEntropy()), zoo.weights_of(model)
    rows = {}
    for wave in ([0, 1, 2], [2]):
        numbers = torch.tensor(wave)
        batches = make_batches(clients, numbers, descent, weights.dtype)
        rows[len(wave)] = learner.descend(weights, batches, descent, numbers).dense()
    torch.testing.assert_close(rows[3][2], rows[1][0], rtol=0, atol=0)
    assert not torch.equal(rows[3][0], rows[3][1])


def test_norms_of_factored_rows_hold_after_cancellation() -> None:
    """Steps that undo each other leave a small update; its computed norm must not be below the true one."""
    g = torch.Generator().manual_seed(0)
    left, right = torch.randn(1, 1, 50, generator=g), torch.randn(1, 1, 80, generator=g)
    noise = 1e-4 * torch.randn(1, 1, 80, generator=g)
    left, right = torch.cat([left, -left], 1), torch.cat([right, right + noise], 1)
    block = FactoredBlock(left, right, torch.bmm(right, right.transpose(1, 2)))
    rows = BlockRows(((0, 4000, block),), 1, 4000, torch.float32)
    true = torch.linalg.vector_norm(torch.bmm(left.double().transpose(1, 2), right.double()))
    assert float(rows.norms()) >= float(true)
    total_length = float((left.norm(dim=2) * right.norm(dim=2)).sum())
    assert float(rows.norms()) < 1e-3 * total_length


class DataDependent(nn.Module):
    """A branch on the data, which `torch.func` cannot map over clients."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(64, 10), nn.LayerNorm(64)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x.flatten(1))
        out: Tensor = self.layer(-x) if x[0, 0] > 0 else self.layer(x)
        return out


@pytest.mark.parametrize(
    ("make", "learner"),
    [(DataDependent, ReferenceLearner), (zoo.Residual, FunctionalLearner), (zoo.Recurrent, ReferenceLearner)],
)
def test_models_that_cannot_be_mapped_are_trained_one_by_one(make: Callable[[], nn.Module], learner: type) -> None:
    clients = zoo.population(EQUAL)
    assert isinstance(AutoLearner(make(), CrossEntropy(), like=clients[0]).fallback, learner)
