"""Only the mask's coordinates move; every other one keeps its first bits."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import zoo
from tacit import methods
from tacit.core import CrossEntropy, Key, Method, Round, Task, View
from tacit.engine import initial_state, rounds
from tacit.engine.layout import Layout
from tacit.engine.learners import Fastest
from tacit.engine.waves import StackedClients
from tacit.errors import UserError
from tacit.pieces.servers import Momentum
from tacit.pieces.trainers import Masked, Sgd

SMALL = {"rounds": 200, "cohort": 2, "ratio": 0.03, "lr": 0.1, "steps": 2}
NOISE = {"noise": 0.5, "epsilon": None}


def now() -> Round:
    return Round(0, 3, 3.0, 3, Key.from_seed(0), Key.from_seed(1))


def signed_zeros() -> nn.Module:
    """A tiny model with weights that are 0 and −0 among the others."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    with torch.no_grad():
        model[1].weight[:, ::3] = -0.0
        model[1].weight[:, 1::3] = 0.0
        model[1].bias.fill_(-0.0)
    return model


@pytest.mark.parametrize(
    "method",
    [
        methods.fl_top(**SMALL),
        methods.fl_bas_3(**SMALL),
        methods.fl_top_dp(**SMALL, **NOISE, channel="ideal"),
        methods.fl_top_bis(**SMALL),
        replace(methods.fl_top(**SMALL), server=Momentum(0.5)),
    ],
    ids=lambda method: f"{method.name} {type(method.server).__name__}",
)
def test_after_200_rounds_all_others_have_their_first_bits(method: Method) -> None:
    task = Task(model=signed_zeros, clients=zoo.population([3] * 4), public=zoo.population([5], seed=3)[0])
    first = initial_state(method, task)
    *_, (state, _) = rounds(method, task, workers=1)
    mask = state.memory["codec/mask"]
    others = torch.ones(state.dim, dtype=torch.bool).index_fill_(0, mask, False)
    assert len(mask) == int(0.03 * 650)
    assert torch.equal(state.weights[others].view(torch.int32), first.weights[others].view(torch.int32))
    assert bool(first.weights[others].signbit().any())
    assert not torch.equal(state.weights[mask], first.weights[mask])


def test_basic_moves_other_coordinates_in_every_round() -> None:
    task = Task(model=zoo.softmax, clients=zoo.population([3] * 4))
    basic = methods.fl_basic(**{**SMALL, "rounds": 4})
    weights, moved = initial_state(basic, task).weights, []
    for state, _ in rounds(basic, task, workers=1):
        moved.append(frozenset((state.weights != weights).nonzero().flatten().tolist()))
        weights = state.weights
    assert len(set(moved)) == 4
    assert all(0 < len(which) <= int(0.03 * 650) for which in moved)


def test_without_a_mask_it_is_sgd() -> None:
    model, clients = zoo.mlp(), zoo.population([4, 6, 5])
    wave = StackedClients(torch.arange(3), clients, Fastest(model, CrossEntropy()))
    view, sgd = View(Layout.of(model).flatten(model), {}), Sgd(lr=0.1, steps=2)
    assert torch.equal(Masked(sgd).train(view, wave, now()).dense(), sgd.train(view, wave, now()).dense())


def test_one_step_of_a_mask_is_that_part_of_a_free_step() -> None:
    model, clients, mask = zoo.mlp(), zoo.population([4, 6, 5]), torch.tensor([0, 5, 1900, 2779])
    wave = StackedClients(torch.arange(3), clients, Fastest(model, CrossEntropy()))
    view, sgd = View(Layout.of(model).flatten(model), {}, mask=mask), Sgd(lr=0.1, steps=1)
    masked, free = (trainer.train(view, wave, now()).dense() for trainer in (Masked(sgd), sgd))
    torch.testing.assert_close(masked[:, mask], free[:, mask], rtol=1e-4, atol=1e-8)
    assert int((masked != 0).sum()) <= 3 * 4


def test_weights_cannot_be_sent() -> None:
    with pytest.raises(UserError, match="weights outside the mask are not sent at all"):
        Masked(Sgd(lr=0.1, steps=1, sends="weights"))
