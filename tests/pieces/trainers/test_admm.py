"""ADMM on a client, beside the three steps written out."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import zoo
from tacit.core import CrossEntropy, Descent, Key, Population, ProximalTerm, Round, View
from tacit.core.wave import Shapes
from tacit.engine.batches import plan_batches
from tacit.engine.layout import Layout
from tacit.engine.learners import Fastest
from tacit.engine.learners.reference import Reference
from tacit.engine.waves import StackedClients
from tacit.errors import UserError
from tacit.pieces.trainers import AdmmPrune, Keep, Sgd

KEEP = Keep(counts=(20, 100, 50))


def now(index: int = 0) -> Round:
    return Round(index, 3, 3.0, 3, Key.from_seed(0), Key.from_seed(1))


def sgd(**changes: object) -> Sgd:
    return Sgd(**{"lr": 0.1, "epochs": 3, "batch_size": 4, "sends": "weights", **changes})  # type: ignore[arg-type]


def model() -> nn.Module:
    torch.manual_seed(0)
    return zoo.cnn().double()


def by_hand(trainer: AdmmPrune, net: nn.Module, clients: Population, client: int, rho: float) -> Tensor:
    """W-, Z- and U-steps for one client, with the plain reference for the W-step."""
    layout, learner, mine = Layout.of(net), Reference(net, CrossEntropy()), torch.tensor([client])
    w = layout.flatten(net)
    z, u = KEEP.project(w, layout.shapes), torch.zeros_like(w)
    strengths = tuple(rho if len(shape) > 1 else 0.0 for shape in layout.shapes)
    for epoch in range(trainer.sgd.epochs or 0):
        key = now().secret.child("batches").child("update", epoch)
        how = Descent(
            trainer.sgd.lr, None, 1, 4, trainer.sgd.momentum, 0.0, key, proximal=ProximalTerm((z - u)[None], strengths)
        )
        w = w + learner.descend(w, plan_batches(clients, mine, how, w.dtype), how, mine).dense()[0]
        z = KEEP.project(w + u, layout.shapes)
        u = u + w - z
    return KEEP.project(w, layout.shapes)


@pytest.mark.parametrize("momentum", [0.0, 0.5])
@pytest.mark.parametrize("sizes", [(6, 6, 6), (6, 9, 2)], ids=["equal", "ragged"])
def test_a_client_s_round_is_the_three_steps(sizes: tuple[int, ...], momentum: float) -> None:
    net, clients = model(), zoo.population(sizes, dtype=torch.float64)
    trainer = AdmmPrune(sgd=sgd(momentum=momentum), keep=KEEP, pull=0.05)
    rho = 0.05 * (1 - momentum) / 0.1
    wave = StackedClients(torch.arange(3), clients, Fastest(net, CrossEntropy()))
    rows = trainer.train(View(Layout.of(net).flatten(net), {}), wave, now()).dense()
    expected = torch.stack([by_hand(trainer, net, clients, client, rho) for client in range(3)])
    torch.testing.assert_close(rows, expected, rtol=1e-9, atol=1e-12)
    assert rows.count_nonzero(dim=1).tolist() == [170 + 6 + 10] * 3


def lost(pull: float) -> float:
    """How much of the trained weights pruning takes away, as a share of their length."""
    net, clients = model(), zoo.population((30, 30), dtype=torch.float64)
    wave, view = (
        StackedClients(torch.arange(2), clients, Fastest(net, CrossEntropy())),
        View(Layout.of(net).flatten(net), {}),
    )
    trained = AdmmPrune(sgd=sgd(epochs=6), keep=KEEP, pull=pull).solve(view, wave, now(), KEEP)
    return float((trained - KEEP.project(trained, wave.shapes)).norm() / trained.norm())


def test_the_pull_leaves_less_to_be_pruned() -> None:
    """The stronger it is, the nearer is the trained model to the pruned one."""
    nothing, weak, strong = lost(1e-9), lost(0.01), lost(0.1)
    assert nothing > 0.3
    assert weak < 0.9 * nothing
    assert strong < 0.2 * nothing


def test_warm_up_is_plain_training() -> None:
    net, clients = model(), zoo.population((6, 6), dtype=torch.float64)
    wave, view = (
        StackedClients(torch.arange(2), clients, Fastest(net, CrossEntropy())),
        View(Layout.of(net).flatten(net), {}),
    )
    trainer = AdmmPrune(sgd=sgd(), keep=KEEP, warm_up=5)
    assert torch.equal(trainer.train(view, wave, now(4)).dense(), sgd().train(view, wave, now(4)).dense())
    assert trainer.train(view, wave, now(5)).dense().count_nonzero(dim=1).tolist() == [186, 186]


def test_once_the_choice_is_settled_no_other_weights_move() -> None:
    """Beside plain masked training of the pruned model, and bitwise zero elsewhere."""
    net, clients = model(), zoo.population((6, 6), dtype=torch.float64)
    wave, weights = StackedClients(torch.arange(2), clients, Fastest(net, CrossEntropy())), Layout.of(net).flatten(net)
    trainer = AdmmPrune(sgd=sgd(), keep=KEEP, warm_up=1, settled=3)
    choosing, settled = (trainer.train(View(weights, {}), wave, now(index)).dense() for index in (2, 3))
    start = KEEP.project(weights, wave.shapes)
    mask = torch.cat([start.nonzero()[:, 0], _biases(wave.shapes)]).unique()
    how = replace(sgd().descent(now(3)), mask=mask)
    plain = StackedClients(torch.arange(2), clients, Reference(net, CrossEntropy()))
    torch.testing.assert_close(settled, plain.descend(start, how).dense() + start, rtol=1e-9, atol=1e-12)
    outside = torch.ones(len(start), dtype=torch.bool).index_fill_(0, mask, False)
    assert settled[:, outside].count_nonzero() == 0
    assert choosing[:, outside].count_nonzero() > 0


def _biases(shapes: Shapes) -> Tensor:
    parts = [torch.full(shape, len(shape) == 1).flatten() for shape in shapes]
    return torch.cat(parts).nonzero()[:, 0]


def test_updates_share_out_the_descent() -> None:
    """Three epochs with three updates are the default; six steps with three updates are two steps before each."""
    net, clients = model(), zoo.population((8, 8), dtype=torch.float64)
    wave, view = (
        StackedClients(torch.arange(2), clients, Fastest(net, CrossEntropy())),
        View(Layout.of(net).flatten(net), {}),
    )

    def rows(updates: int | None, **how: object) -> Tensor:
        return AdmmPrune(sgd=sgd(**how), keep=KEEP, updates=updates).train(view, wave, now()).dense()

    assert torch.equal(rows(3, epochs=3), rows(None, epochs=3))
    torch.testing.assert_close(rows(3, epochs=None, steps=6), rows(3, epochs=3))  # an epoch is two steps of four
    assert not torch.equal(rows(1, epochs=3), rows(3, epochs=3))


def test_the_penalty_s_rule() -> None:
    """ρ·lr/(1 − momentum) is the share, whatever the learning rate: with momentum m, steps add up to 1/(1 − m)."""
    for lr in (0.01, 0.3):
        for momentum in (0.0, 0.5, 0.9):
            rho = AdmmPrune(sgd=sgd(momentum=momentum), keep=KEEP, pull=0.02).penalty(lr)
            assert rho * lr / (1 - momentum) == pytest.approx(0.02)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"sgd": sgd(sends="updates")}, "sgd to send weights"),
        ({"sgd": sgd(epochs=None, steps=3)}, "updates to be given for a descent in steps"),
        ({"updates": 2}, "updates=2 to divide the descent of 3"),
        ({"updates": 0}, "updates=0 to divide"),
        ({"pull": 0.0}, "pull=0.0 in (0, 1)"),
        ({"pull": 1.0}, "pull=1.0 in (0, 1)"),
        ({"warm_up": -1}, "warm_up=-1 >= 0"),
        ({"warm_up": 3, "settled": 2}, "settled=2 >= warm_up=3"),
        ({"warm_up": 3, "approach": 4}, "approach=4 in [0, warm_up=3]"),
    ],
)
def test_bad_arguments_get_a_sentence(changes: dict[str, object], words: str) -> None:
    with pytest.raises(UserError) as caught:
        AdmmPrune(**{"sgd": sgd(), "keep": KEEP, **changes})  # type: ignore[arg-type]
    assert words in str(caught.value)
