"""How many weights are kept, which ones, and what clients send."""

import pytest
import torch
from torch import Tensor

import zoo
from tacit.core import CrossEntropy, Key, Round, State, View
from tacit.engine.layout import Layout
from tacit.engine.learners import Fastest
from tacit.engine.waves import StackedClients
from tacit.errors import UserError
from tacit.pieces.trainers import Keep, MagnitudePrune, Sgd
from tacit.pieces.trainers.pruning import spread_out
from tacit.tasks.models import lenet, mobilenet_v2

SGD = Sgd(lr=0.1, epochs=2, batch_size=4, sends="weights")
LENET = Layout.of(lenet()).shapes


def now(index: int) -> Round:
    return Round(index, 3, 3.0, 3, Key.from_seed(0), Key.from_seed(1))


def kept(rows: Tensor, shapes: tuple[tuple[int, ...], ...]) -> list[list[int]]:
    """Non-zero numbers of every row, parameter by parameter."""
    parts = torch.split(rows, [torch.Size(shape).numel() for shape in shapes], dim=1)
    return [part.count_nonzero(dim=1).tolist() for part in parts]


@pytest.mark.parametrize(("counts", "total"), [((100, 1750, 2800, 300), 4950), ((330, 4250, 38_000, 513), 43_093)])
def test_the_counts_for_lenet(counts: tuple[int, ...], total: int) -> None:
    """Of 430,500 weights: 86.97 and 9.99 times fewer."""
    left = [count for count in Keep(counts=counts).of(LENET) if count is not None]
    assert sum(left) == total
    assert round(430_500 / total, 2) in (86.97, 9.99)


@pytest.mark.parametrize("spread", ["balanced", "uniform"])
@pytest.mark.parametrize("compression", [1.0, 1.01, 4.95, 8.7, 9.99, 87.0, 5000.0])
@pytest.mark.parametrize("make", [lenet, mobilenet_v2, zoo.mlp])
def test_compression_is_met_to_a_weight(make, compression: float, spread: str) -> None:
    shapes = Layout.of(make()).shapes
    sizes = [torch.Size(shape).numel() for shape in shapes if len(shape) > 1]
    left = [count for count in Keep(compression=compression, spread=spread).of(shapes) if count is not None]
    assert sum(left) == max(round(sum(sizes) / compression), len(sizes))
    assert all(1 <= count <= size for count, size in zip(left, sizes, strict=True))


def test_balanced_layers_share_one_factor() -> None:
    counts = spread_out(1000, [100, 10_000, 1_000_000], 0.5)
    assert counts == [9, 90, 901]
    assert spread_out(2000, [100, 10_000, 1_000_000], 0.5) == [18, 180, 1802]
    assert spread_out(50_000, [100, 10_000, 1_000_000], 0.5) == [100, 4536, 45_364]


def test_projection_is_the_nearest_row() -> None:
    """The largest magnitudes stay bit for bit, in each layer and row by itself, and no closer row has as few."""
    keep, shapes = Keep(counts=(3, 2)), ((2, 4), (2,), (1, 6))
    rows = torch.randn(5, 16, generator=torch.Generator().manual_seed(0))
    projected = keep.project(rows, shapes)
    assert kept(projected, shapes) == [[3] * 5, [2] * 5, [2] * 5]
    assert torch.equal(projected[projected != 0], rows[projected != 0])
    assert torch.equal(keep.project(projected, shapes), projected)
    lost = (rows - projected).abs()
    for row, layer, count in ((row, part, n) for row in range(5) for part, n in ((slice(0, 8), 3), (slice(10, 16), 2))):
        assert float(lost[row, layer].square().sum()) == pytest.approx(
            float(rows[row, layer].abs().sort().values[:-count].square().sum())
        )


def test_clients_send_exactly_so_many() -> None:
    model, clients = zoo.cnn(), zoo.population((6, 6, 9))
    layout, keep = Layout.of(model), Keep(counts=(20, 100, 50))
    wave = StackedClients(torch.arange(3), clients, Fastest(model, CrossEntropy()))
    trainer = MagnitudePrune(sgd=SGD, keep=keep, warm_up=2)
    view = View(layout.flatten(model), {})
    warm, pruned = (trainer.train(view, wave, now(index)).dense() for index in (1, 2))
    assert torch.equal(warm, SGD.train(view, wave, now(1)).dense())
    assert kept(pruned, layout.shapes) == [[20] * 3, [6] * 3, [100] * 3, [50] * 3, [10] * 3]
    whole = SGD.train(view, wave, now(2)).dense()
    assert torch.equal(pruned[pruned != 0], whole[pruned != 0])


def test_an_approach_leaves_fewer_weights_from_round_to_round() -> None:
    model, clients = zoo.cnn(), zoo.population((6, 6))
    layout, keep = Layout.of(model), Keep(counts=(20, 100, 50))
    wave, view = (
        StackedClients(torch.arange(2), clients, Fastest(model, CrossEntropy())),
        View(layout.flatten(model), {}),
    )
    trainer = MagnitudePrune(sgd=SGD, keep=keep, warm_up=4, approach=2)
    rows = [trainer.train(view, wave, now(index)).dense() for index in range(6)]
    assert torch.equal(rows[1], SGD.train(view, wave, now(1)).dense())
    sizes = [shape.numel() for shape in map(torch.Size, layout.shapes) if len(shape) > 1]
    for row, along in zip(rows[2:], (1 / 3, 2 / 3, 1, 1), strict=True):
        counts = [round(n ** (1 - along) * k**along) for n, k in zip(sizes, keep.counts, strict=True)]
        weights = [part for part, shape in zip(kept(row, layout.shapes), layout.shapes, strict=True) if len(shape) > 1]
        assert weights == [[count] * 2 for count in counts]
    assert trainer.kept(layout.shapes) == keep.of(layout.shapes)


def test_the_aggregated_model_is_pruned_once_pruning_has_begun() -> None:
    trainer, shapes = MagnitudePrune(sgd=SGD, keep=Keep(counts=(2,)), warm_up=3), ((2, 3), (2,))
    weights = torch.tensor([0.0, 1.0, -2.0, 0.0, 3.0, 0.5, 7.0, 0.0])
    assert trainer.kept(shapes) == (2, None)
    assert trainer.pruned(State(3, weights), shapes) is None
    pruned = trainer.pruned(State(4, weights), shapes)
    assert pruned is not None
    assert pruned.tolist() == [0.0, 0.0, -2.0, 0.0, 3.0, 0.0, 7.0, 0.0]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Keep(), "either compression or counts"),
        (lambda: Keep(compression=2.0, counts=(1,)), "either compression or counts"),
        (lambda: Keep(compression=0.5), "compression=0.5 >= 1"),
        (lambda: Keep(counts=(0,)), ">= 1"),
        (lambda: Keep(compression=2.0, spread="even"), "'balanced' or 'uniform'"),
        (lambda: Keep(compression=2.0, along=1.5), "along=1.5 in [0, 1]"),
        (lambda: Keep(counts=(1, 2)).of(LENET), "4 layers of 500, 25000, 400000, 5000 weights, got 1, 2"),
        (lambda: Keep(counts=(501, 2, 2, 2)).of(LENET), "got 501, 2, 2, 2"),
        (lambda: MagnitudePrune(sgd=Sgd(lr=0.1, steps=1), keep=Keep(counts=(1,))), "sgd to send weights"),
        (lambda: MagnitudePrune(sgd=SGD, keep=Keep(counts=(1,)), warm_up=-1), "warm_up=-1 >= 0"),
        (lambda: MagnitudePrune(sgd=SGD, keep=Keep(counts=(1,)), approach=1), "approach=1 in [0, warm_up=0]"),
    ],
)
def test_bad_arguments_get_a_sentence(make, words: str) -> None:
    with pytest.raises(UserError) as caught:
        make()
    assert words in str(caught.value)
