"""Every way through a wave computes what the plain reference computes."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import zoo
from tacit.core import (
    BinaryCrossEntropy,
    CrossEntropy,
    Descent,
    Loss,
    MeanSquared,
    Population,
    RootBrier,
    RootMeanSquared,
    Rows,
)
from tacit.engine.batches import plan_batches
from tacit.engine.layout import Layout
from tacit.engine.learners import Fastest, Learner
from tacit.engine.learners.functional import Functional
from tacit.engine.learners.kernels import kernels_for
from tacit.engine.learners.kernels.rows import BlockRows, FactoredBlock
from tacit.engine.learners.reference import Reference

TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-10}
EQUAL, RAGGED = (6, 6, 6), (3, 9, 1, 6)
DESCENTS = {
    "full batch": zoo.descent(steps=4),
    "one step": zoo.descent(steps=1),
    "minibatch epochs": zoo.descent(epochs=2, batch_size=4),
    "many steps": zoo.descent(steps=11, batch_size=2),
}


def trained(learner: Learner, model: nn.Module, clients: Population, how: Descent) -> Rows:
    everyone = torch.arange(len(clients))
    weights = Layout.of(model).flatten(model)
    return learner.descend(weights, plan_batches(clients, everyone, how, weights.dtype), how, everyone)


def relative(ours: Tensor, theirs: Tensor) -> float:
    return float((ours - theirs).norm() / theirs.norm())


def assert_same(ours: Rows, theirs: Rows, tolerance: float) -> None:
    assert relative(ours.dense(), theirs.dense()) < tolerance
    assert relative(ours.norms(), theirs.norms()) < tolerance
    factors = torch.linspace(0.1, 1, ours.count, dtype=ours.dtype)
    assert relative(ours.scaled(factors).sum(), theirs.scaled(factors).sum()) < tolerance


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("sizes", [EQUAL, RAGGED], ids=["equal", "ragged"])
@pytest.mark.parametrize("how", DESCENTS.values(), ids=DESCENTS)
@pytest.mark.parametrize("make", zoo.CHAINS.values(), ids=zoo.CHAINS)
def test_kernels(make: Callable[[], nn.Module], how: Descent, sizes: tuple[int, ...], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model, clients = make().to(dtype), zoo.population(sizes, dtype=dtype)
    kernels = kernels_for(model, CrossEntropy())
    assert kernels is not None
    reference = Reference(model, CrossEntropy())
    assert_same(trained(kernels, model, clients, how), trained(reference, model, clients, how), TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("sizes", [EQUAL, RAGGED], ids=["equal", "ragged"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("make", [zoo.cnn, zoo.mlp, zoo.Residual])
def test_functional(make: Callable[[], nn.Module], momentum: float, sizes: tuple[int, ...], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model, clients = make().to(dtype), zoo.population(sizes, dtype=dtype)
    how = zoo.descent(epochs=2, batch_size=4, momentum=momentum, weight_decay=0.01 * momentum)
    functional, reference = (way(model, CrossEntropy()) for way in (Functional, Reference))
    assert_same(trained(functional, model, clients, how), trained(reference, model, clients, how), TOLERANCE[dtype])


@pytest.mark.parametrize("make", [zoo.mlp, zoo.Residual])
def test_clipped_gradients(make: Callable[[], nn.Module]) -> None:
    """Some are clipped and some are not; kernels leave it to the general way."""
    torch.manual_seed(0)
    model, clients = make().double(), zoo.population(RAGGED, dtype=torch.float64)
    free, how, tight = (zoo.descent(epochs=2, batch_size=4, clip=clip) for clip in (None, 1.5, 1e-3))
    functional, reference = (way(model, CrossEntropy()) for way in (Functional, Reference))
    assert_same(trained(functional, model, clients, how), trained(reference, model, clients, how), 1e-10)
    kernels = kernels_for(model, CrossEntropy())
    weights, everyone = Layout.of(model).flatten(model), torch.arange(len(RAGGED))
    batches = plan_batches(clients, everyone, how, weights.dtype)
    assert kernels is None or (kernels.takes(weights, batches, free) and not kernels.takes(weights, batches, how))
    assert (
        relative(trained(reference, model, clients, how).dense(), trained(reference, model, clients, free).dense())
        > 0.1
    )
    one_step = trained(reference, model, clients, zoo.descent(steps=1, clip=1e-3, lr=0.5))
    torch.testing.assert_close(one_step.norms(), torch.full((4,), 0.5e-3, dtype=torch.float64))
    assert float(trained(reference, model, clients, tight).norms().max()) <= 0.1 * 1e-3 * 6 * (1 + 1e-9)


@pytest.mark.parametrize("loss", [MeanSquared(), BinaryCrossEntropy(), RootMeanSquared()], ids=repr)
@pytest.mark.parametrize("outputs", [1, 3])
def test_losses_on_real_targets(loss: Loss, outputs: int) -> None:
    model = nn.Sequential(nn.Linear(5, 7), nn.Sigmoid(), nn.Linear(7, outputs)).double()
    g = torch.Generator().manual_seed(3)
    parts = [(torch.randn(n, 5, generator=g).double(), torch.rand(n, outputs, generator=g).double()) for n in RAGGED]
    clients, how = Population.of(parts), zoo.descent(epochs=2, batch_size=4)
    kernels = kernels_for(model, loss)
    assert kernels is not None
    assert_same(trained(kernels, model, clients, how), trained(Reference(model, loss), model, clients, how), 1e-10)


@pytest.mark.parametrize("how", [zoo.descent(epochs=2, batch_size=4), zoo.descent(steps=3)], ids=["batches", "whole"])
def test_root_brier(how: Descent) -> None:
    torch.manual_seed(0)
    model, clients, loss = zoo.mlp().double(), zoo.population(RAGGED, dtype=torch.float64), RootBrier()
    kernels, functional = kernels_for(model, loss), Functional(model, loss)
    assert kernels is not None
    plain = trained(Reference(model, loss), model, clients, how)
    assert_same(trained(kernels, model, clients, how), plain, 1e-10)
    assert_same(trained(functional, model, clients, how), plain, 1e-10)


def test_a_perfect_fit_does_not_move() -> None:
    """The root has no gradient at zero; every way takes none."""
    model = nn.Sequential(nn.Linear(2, 1)).double()
    x = torch.randn(4, 2).double()
    clients, loss = Population.of([(x, model(x).detach())]), RootMeanSquared()
    for way in (Reference, Functional, kernels_for):
        rows = trained(way(model, loss), model, clients, zoo.descent(steps=2)).dense()
        assert float(rows.abs().max()) == 0.0


def test_reference_is_plain_torch_sgd() -> None:
    """The reference itself against `torch.optim`, for one client."""
    model, clients = zoo.mlp(), zoo.population([7])
    how = zoo.descent(steps=5, momentum=0.8, weight_decay=0.02, lr=0.05)
    ours = trained(Reference(model, CrossEntropy()), model, clients, how).dense()[0]
    before = Layout.of(model).flatten(model)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.8, weight_decay=0.02)
    x, y = clients[0]
    for _ in range(5):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimiser.step()
    torch.testing.assert_close(ours, Layout.of(model).flatten(model) - before)


@pytest.mark.parametrize("make", zoo.OTHERS.values(), ids=zoo.OTHERS)
def test_anything_else_still_trains(make: Callable[[], nn.Module]) -> None:
    model, clients, how = make(), zoo.population(RAGGED), DESCENTS["minibatch epochs"]
    fastest = Fastest(model, CrossEntropy())
    assert fastest.kernels is None
    reference = Reference(model, CrossEntropy())
    assert_same(trained(fastest, model, clients, how), trained(reference, model, clients, how), 1e-4)


def test_batch_statistics_ignore_padding() -> None:
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(64, 5), nn.BatchNorm1d(5, track_running_stats=False), nn.Linear(5, 10)
    )
    clients, how = zoo.population((2, 9, 5)), zoo.descent(steps=2)
    together = trained(Fastest(model, CrossEntropy()), model, clients, how).dense()
    for client in range(3):
        alone = Population.of([clients[client]])
        torch.testing.assert_close(
            together[client], trained(Fastest(model, CrossEntropy()), model, alone, how).dense()[0]
        )


def test_dropout_is_the_clients_own() -> None:
    """The same client draws the same dropout, whoever else is in its wave."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 30), nn.Dropout(0.5), nn.Linear(30, 10))
    clients, how = zoo.population((6, 6, 6)), zoo.descent(steps=3)
    learner, weights = Fastest(model, CrossEntropy()), Layout.of(model).flatten(model)
    rows = {}
    for wave in ([0, 1, 2], [2]):
        ids = torch.tensor(wave)
        rows[len(wave)] = learner.descend(weights, plan_batches(clients, ids, how, weights.dtype), how, ids).dense()
    torch.testing.assert_close(rows[3][2], rows[1][0], rtol=0, atol=0)
    assert not torch.equal(rows[3][0], rows[3][1])


def test_norms_of_factored_rows_hold_after_cancellation() -> None:
    """Steps that undo each other leave a small update; its norm must not come out below the true one."""
    g = torch.Generator().manual_seed(0)
    left, right = torch.randn(1, 1, 50, generator=g), torch.randn(1, 1, 80, generator=g)
    noise = 1e-4 * torch.randn(1, 1, 80, generator=g)
    left, right = torch.cat([left, -left], 1), torch.cat([right, right + noise], 1)
    block = FactoredBlock(left, right, torch.bmm(right, right.transpose(1, 2)))
    rows = BlockRows(((0, 4000, block),), 1, 4000, torch.float32)
    true = torch.linalg.vector_norm(torch.bmm(left.double().transpose(1, 2), right.double()))
    assert float(rows.norms()) >= float(true)
    walked = float((left.norm(dim=2) * right.norm(dim=2)).sum())
    assert float(rows.norms()) < 1e-3 * walked


class DataDependent(nn.Module):
    """A branch on the data, which cannot be mapped over clients."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(64, 10), nn.LayerNorm(64)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x.flatten(1))
        return self.layer(-x) if x[0, 0] > 0 else self.layer(x)


def test_what_cannot_be_mapped_is_trained_one_by_one() -> None:
    clients = zoo.population(EQUAL)
    for make, way in ((DataDependent, Reference), (zoo.Residual, Functional), (zoo.Recurrent, Reference)):
        assert isinstance(Fastest(make(), CrossEntropy(), like=clients[0]).general, way)
