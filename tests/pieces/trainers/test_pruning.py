"""Pruning: how many weights remain, which ones, and what clients send; ADMM against its three steps written out."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn

import zoo
from tacit.core import CrossEntropy, Descent, Key, ProximalTerm, SimulatedRound, State, View
from tacit.core.wave import Shapes
from tacit.data import Population
from tacit.engine.batches import make_batches
from tacit.engine.layout import Layout
from tacit.engine.learners.reference import ReferenceLearner
from tacit.engine.waves import AutoLearner, StackedClients
from tacit.errors import UserError
from tacit.pieces.trainers import AdmmPrune, Keep, MagnitudePrune, Sgd
from tacit.pieces.trainers.pruning import allocate
from tacit.tasks.models import lenet, mobilenet_v2

SGD = Sgd(lr=0.1, epochs=2, batch_size=4, sends="weights")
ADMM_SGD = Sgd(lr=0.1, epochs=3, batch_size=4, sends="weights")
KEEP = Keep(counts=(20, 100, 50))  # of zoo.cnn
LENET = Layout.of(lenet()).shapes
WRONG: Any = "wrong"


def now(index: int = 0) -> SimulatedRound:
    return SimulatedRound.of(index, 3, 3.0, 3, Key.from_seed(0), Key.from_seed(1))


def wave_of(net: nn.Module, clients: Population) -> StackedClients:
    return StackedClients(torch.arange(len(clients)), clients, AutoLearner(net, CrossEntropy()))


def view_of(net: nn.Module) -> View:
    return View(Layout.of(net).flatten(net), {})


def nonzero(rows: Tensor, shapes: Shapes) -> list[list[int]]:
    """Non-zero numbers of every row, parameter by parameter."""
    parts = torch.split(rows, [torch.Size(shape).numel() for shape in shapes], dim=1)
    return [part.count_nonzero(dim=1).tolist() for part in parts]


@pytest.mark.parametrize(("counts", "total"), [((100, 1750, 2800, 300), 4950), ((330, 4250, 38_000, 513), 43_093)])
def test_the_counts_for_lenet(counts: tuple[int, ...], total: int) -> None:
    """Compression ratios of 86.97 and 9.99 for 430,500 weights."""
    kept = [count for count in Keep(counts=counts).layer_counts(LENET) if count is not None]
    assert sum(kept) == total
    assert round(430_500 / total, 2) in (86.97, 9.99)


@pytest.mark.parametrize("across_layers", ["balanced", "uniform"])
@pytest.mark.parametrize("compression", [1.0, 1.01, 4.95, 8.7, 9.99, 87.0, 5000.0])
@pytest.mark.parametrize("make", [lenet, mobilenet_v2, zoo.mlp])
def test_compression_is_met_to_a_weight(
    make: Callable[[], nn.Module], compression: float, across_layers: Literal["balanced", "uniform"]
) -> None:
    shapes = Layout.of(make()).shapes
    sizes = [torch.Size(shape).numel() for shape in shapes if len(shape) > 1]
    keep = Keep(compression=compression, across_layers=across_layers)
    kept = [count for count in keep.layer_counts(shapes) if count is not None]
    assert sum(kept) == max(round(sum(sizes) / compression), len(sizes))
    assert all(1 <= count <= size for count, size in zip(kept, sizes, strict=True))


def test_balanced_layers_share_one_factor() -> None:
    counts = allocate(1000, [100, 10_000, 1_000_000], 0.5)
    assert counts == [9, 90, 901]
    assert allocate(2000, [100, 10_000, 1_000_000], 0.5) == [18, 180, 1802]
    assert allocate(50_000, [100, 10_000, 1_000_000], 0.5) == [100, 4536, 45_364]


def test_projection_is_the_nearest_pruned_row() -> None:
    """In each layer of each row the largest magnitudes stay bit for bit, and no pruned row is closer."""
    keep, shapes = Keep(counts=(3, 2)), ((2, 4), (2,), (1, 6))
    rows = torch.randn(5, 16, generator=torch.Generator().manual_seed(0))
    projected = keep.project(rows, shapes)
    assert nonzero(projected, shapes) == [[3] * 5, [2] * 5, [2] * 5]
    assert torch.equal(projected[projected != 0], rows[projected != 0])
    assert torch.equal(keep.project(projected, shapes), projected)
    lost = (rows - projected).abs()
    for row, layer, count in ((row, part, n) for row in range(5) for part, n in ((slice(0, 8), 3), (slice(10, 16), 2))):
        assert float(lost[row, layer].square().sum()) == pytest.approx(
            float(rows[row, layer].abs().sort().values[:-count].square().sum())
        )


def test_clients_send_exactly_the_given_counts() -> None:
    net, clients = zoo.cnn(), zoo.population((6, 6, 9))
    shapes, wave, view = Layout.of(net).shapes, wave_of(net, clients), view_of(net)
    trainer = MagnitudePrune(sgd=SGD, keep=KEEP, warm_up=2)
    warm, pruned = (trainer.train(view, wave, now(index)).dense() for index in (1, 2))
    assert torch.equal(warm, SGD.train(view, wave, now(1)).dense())
    assert nonzero(pruned, shapes) == [[20] * 3, [6] * 3, [100] * 3, [50] * 3, [10] * 3]
    whole = SGD.train(view, wave, now(2)).dense()
    assert torch.equal(pruned[pruned != 0], whole[pruned != 0])


def test_gradual_pruning_keeps_fewer_weights_from_round_to_round() -> None:
    net, clients = zoo.cnn(), zoo.population((6, 6))
    shapes, wave, view = Layout.of(net).shapes, wave_of(net, clients), view_of(net)
    trainer = MagnitudePrune(sgd=SGD, keep=KEEP, warm_up=4, ramp=2)
    rows = [trainer.train(view, wave, now(index)).dense() for index in range(6)]
    assert torch.equal(rows[1], SGD.train(view, wave, now(1)).dense())
    sizes = [shape.numel() for shape in map(torch.Size, shapes) if len(shape) > 1]
    for row, progress in zip(rows[2:], (1 / 3, 2 / 3, 1, 1), strict=True):
        counts = [round(n ** (1 - progress) * k**progress) for n, k in zip(sizes, KEEP.counts, strict=True)]
        weights = [part for part, shape in zip(nonzero(row, shapes), shapes, strict=True) if len(shape) > 1]
        assert weights == [[count] * 2 for count in counts]
    assert trainer.weight_counts(shapes) == KEEP.layer_counts(shapes)


def test_the_aggregated_model_is_pruned_after_the_warm_up() -> None:
    trainer, shapes = MagnitudePrune(sgd=SGD, keep=Keep(counts=(2,)), warm_up=3), ((2, 3), (2,))
    weights = torch.tensor([0.0, 1.0, -2.0, 0.0, 3.0, 0.5, 7.0, 0.0])
    assert trainer.weight_counts(shapes) == (2, None)
    assert trainer.variants(State(3, weights, shapes=shapes)) == {}
    variants = trainer.variants(State(4, weights, shapes=shapes))
    assert variants.keys() == {"pruned"}
    assert variants["pruned"].tolist() == [0.0, 0.0, -2.0, 0.0, 3.0, 0.0, 7.0, 0.0]


def double_cnn() -> nn.Module:
    torch.manual_seed(0)
    return zoo.cnn().double()


def admm_by_hand(trainer: AdmmPrune, net: nn.Module, clients: Population, client: int, rho: float) -> Tensor:
    """W-, Z- and U-steps for one client, with the reference learner for the W-step."""
    layout, learner, index = Layout.of(net), ReferenceLearner(net, CrossEntropy()), torch.tensor([client])
    w = layout.flatten(net)
    z, u = KEEP.project(w, layout.shapes), torch.zeros_like(w)
    strengths = tuple(rho if len(shape) > 1 else 0.0 for shape in layout.shapes)
    for epoch in range(trainer.sgd.epochs or 0):
        keys = now().clients.child("batches").child("update", epoch)
        proximal = ProximalTerm((z - u)[None], strengths)
        descent = Descent(trainer.sgd.rate(0), None, 1, 4, trainer.sgd.momentum, 0.0, keys, proximal=proximal)
        w = w + learner.descend(w, make_batches(clients, index, descent, w.dtype), descent, index).dense()[0]
        z = KEEP.project(w + u, layout.shapes)
        u = u + w - z
    return KEEP.project(w, layout.shapes)


@pytest.mark.parametrize("momentum", [0.0, 0.5])
@pytest.mark.parametrize("sizes", [(6, 6, 6), (6, 9, 2)], ids=["equal", "ragged"])
def test_a_client_s_round_of_admm_is_the_three_steps(sizes: tuple[int, ...], momentum: float) -> None:
    net, clients = double_cnn(), zoo.population(sizes, dtype=torch.float64)
    trainer = AdmmPrune(sgd=replace(ADMM_SGD, momentum=momentum), keep=KEEP, penalty=0.05)
    rho = 0.05 * (1 - momentum) / 0.1
    rows = trainer.train(view_of(net), wave_of(net, clients), now()).dense()
    expected = torch.stack([admm_by_hand(trainer, net, clients, client, rho) for client in range(3)])
    torch.testing.assert_close(rows, expected, rtol=1e-9, atol=1e-12)
    assert rows.count_nonzero(dim=1).tolist() == [170 + 6 + 10] * 3


def lost_by_projection(penalty: float) -> float:
    """The norm of what the projection removes from the trained weights, relative to theirs."""
    net, clients = double_cnn(), zoo.population((30, 30), dtype=torch.float64)
    wave, trainer = wave_of(net, clients), AdmmPrune(sgd=replace(ADMM_SGD, epochs=6), keep=KEEP, penalty=penalty)
    trained = trainer.solve(view_of(net), wave, now(), KEEP)
    return float((trained - KEEP.project(trained, wave.shapes)).norm() / trained.norm())


def test_a_stronger_penalty_leaves_less_to_prune() -> None:
    none, weak, strong = lost_by_projection(1e-9), lost_by_projection(0.01), lost_by_projection(0.1)
    assert none > 0.3
    assert weak < 0.9 * none
    assert strong < 0.2 * none


def test_the_warm_up_is_plain_training() -> None:
    net, clients = double_cnn(), zoo.population((6, 6), dtype=torch.float64)
    wave, view = wave_of(net, clients), view_of(net)
    trainer = AdmmPrune(sgd=ADMM_SGD, keep=KEEP, warm_up=5)
    assert torch.equal(trainer.train(view, wave, now(4)).dense(), ADMM_SGD.train(view, wave, now(4)).dense())
    assert trainer.train(view, wave, now(5)).dense().count_nonzero(dim=1).tolist() == [186, 186]


@pytest.mark.parametrize("prune", [MagnitudePrune, AdmmPrune])
def test_with_a_frozen_mask_no_other_weights_move(prune: type[MagnitudePrune] | type[AdmmPrune]) -> None:
    """Equal to masked training of the pruned model by the reference learner, and exactly zero elsewhere."""
    net, clients = double_cnn(), zoo.population((6, 6), dtype=torch.float64)
    wave, view = wave_of(net, clients), view_of(net)
    trainer = prune(sgd=ADMM_SGD, keep=KEEP, warm_up=1, freeze_after=3)
    free, frozen = (trainer.train(view, wave, now(index)).dense() for index in (2, 3))
    start = KEEP.project(view.weights, wave.shapes)
    mask = torch.cat([start.nonzero()[:, 0], _biases(wave.shapes)]).unique()
    descent = replace(ADMM_SGD.descent(now(3)), mask=mask)
    reference = StackedClients(torch.arange(2), clients, ReferenceLearner(net, CrossEntropy()))
    torch.testing.assert_close(frozen, reference.descend(start, descent).dense() + start, rtol=1e-9, atol=1e-12)
    outside = torch.ones(len(start), dtype=torch.bool).index_fill_(0, mask, False)
    assert frozen[:, outside].count_nonzero() == 0
    assert free[:, outside].count_nonzero() > 0


def _biases(shapes: Shapes) -> Tensor:
    parts = [torch.full(shape, len(shape) == 1).flatten() for shape in shapes]
    return torch.cat(parts).nonzero()[:, 0]


def test_updates_divide_the_training_of_a_round() -> None:
    """Three epochs with three updates are the default; six steps with three updates are two steps before each."""
    net, clients = double_cnn(), zoo.population((8, 8), dtype=torch.float64)
    wave, view = wave_of(net, clients), view_of(net)

    def rows(updates: int | None, sgd: Sgd = ADMM_SGD) -> Tensor:
        return AdmmPrune(sgd=sgd, keep=KEEP, updates=updates).train(view, wave, now()).dense()

    six_steps = replace(ADMM_SGD, epochs=None, steps=6)  # an epoch is two steps of four samples
    assert torch.equal(rows(3), rows(None))
    torch.testing.assert_close(rows(3, six_steps), rows(3))
    assert not torch.equal(rows(1), rows(3))


def test_the_penalty_coefficient() -> None:
    """ρ·lr/(1 − momentum) is the penalty for any learning rate: momentum m multiplies steps by 1/(1 − m)."""
    for lr in (0.01, 0.3):
        for momentum in (0.0, 0.5, 0.9):
            rho = AdmmPrune(sgd=replace(ADMM_SGD, momentum=momentum), keep=KEEP, penalty=0.02).rho(lr)
            assert rho * lr / (1 - momentum) == pytest.approx(0.02)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Keep(counts=(0,)), ">= 1"),
        (lambda: Keep(counts=(1, 2)).layer_counts(LENET), "4 layers of 500, 25000, 400000, 5000 weights, got 1, 2"),
        (lambda: Keep(counts=(501, 2, 2, 2)).layer_counts(LENET), "got 501, 2, 2, 2"),
        (lambda: MagnitudePrune(sgd=Sgd(lr=0.1, steps=1), keep=Keep(counts=(1,))), "sgd to send weights"),
        (lambda: MagnitudePrune(sgd=SGD, keep=Keep(counts=(1,)), ramp=1), "ramp=1 <= warm_up=0"),
        (lambda: AdmmPrune(sgd=replace(ADMM_SGD, sends="updates"), keep=KEEP), "sgd to send weights"),
        (lambda: AdmmPrune(sgd=replace(ADMM_SGD, epochs=None, steps=3), keep=KEEP), "updates to be given for training"),
        (lambda: AdmmPrune(sgd=ADMM_SGD, keep=KEEP, updates=2), "updates=2 to divide the 3 steps or epochs"),
        (lambda: AdmmPrune(sgd=ADMM_SGD, keep=KEEP, warm_up=3, freeze_after=2), "freeze_after=2 >= warm_up=3"),
        (lambda: MagnitudePrune(sgd=SGD, keep=KEEP, warm_up=3, freeze_after=2), "freeze_after=2 >= warm_up=3"),
        (lambda: AdmmPrune(sgd=ADMM_SGD, keep=KEEP, warm_up=3, ramp=4), "ramp=4 <= warm_up=3"),
    ],
)
def test_fields_that_do_not_fit_each_other_are_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(UserError) as caught:
        make()
    assert message in str(caught.value)
