"""Local training: SGD, SGD under a mask, and the choice among hypotheses."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import zoo
from tacit import methods
from tacit.core import CrossEntropy, Key, Method, SimulatedRound, State, View
from tacit.core.client_half import make_messages
from tacit.core.state import FrameFormat
from tacit.data import Population, Task
from tacit.engine import initial_state, rounds
from tacit.engine.layout import Layout
from tacit.engine.waves import AutoLearner, StackedClients
from tacit.errors import UserError
from tacit.pieces.servers import Momentum
from tacit.pieces.trainers import BestOf, Masked, Sgd
from tacit.wire import frames
from tacit.wire.frames import Part

SGD = Sgd(lr=0.1, steps=2)
WHOLE = Sgd(lr=0.1, steps=2, sends="weights")
RATIO = 0.03
WRONG: Any = "gradients"


def now(index: int = 0) -> SimulatedRound:
    return SimulatedRound.of(index, 3, 3.0, 3, Key.from_seed(0), Key.from_seed(1))


def wave_of(clients: Population) -> tuple[StackedClients, Tensor]:
    """The clients with an MLP, and its initial weights."""
    model = zoo.mlp()
    wave = StackedClients(torch.arange(len(clients)), clients, AutoLearner(model, CrossEntropy()))
    return wave, Layout.of(model).flatten(model)


def test_weights_are_the_view_plus_the_update() -> None:
    wave, weights = wave_of(zoo.population([4, 6, 5]))
    view = View(weights, {})
    updates, trained = (sgd.train(view, wave, now()).dense() for sgd in (SGD, WHOLE))
    torch.testing.assert_close(trained, weights + updates)


def test_the_learning_rate_decays_with_the_rounds() -> None:
    wave, weights = wave_of(zoo.population([4]))
    sgd = Sgd(lr=0.1, steps=1, decay=0.5)
    early, late = (sgd.train(View(weights, {}), wave, now(i)).dense() for i in (0, 3))
    torch.testing.assert_close(late, early / 8)


def test_whole_models_cannot_be_masked() -> None:
    with pytest.raises(UserError, match="weights outside the mask are not sent at all"):
        Masked(WHOLE)


def signed_zeros() -> nn.Module:
    """A tiny model some of whose weights are 0 and −0."""
    linear = nn.Linear(64, 10)
    with torch.no_grad():
        linear.weight[:, ::3] = -0.0
        linear.weight[:, 1::3] = 0.0
        linear.bias.fill_(-0.0)
    return nn.Sequential(nn.Flatten(), linear)


def short(name: str, **changes: object) -> Method:
    training = {"rounds": 200, "cohort": 2, "ratio": RATIO, "descent.lr": 0.1, "descent.steps": 2}
    return methods.make(name, {**training, **changes})


@pytest.mark.parametrize(
    "method",
    [
        short("fl-top"),
        short("fl-bas-3"),
        short("fl-top-dp", noise=0.5, epsilon=None, channel="IdealSum()", **{"mechanism.arithmetic": "Reals()"}),
        short("fl-top-bis"),
        replace(short("fl-top"), server=Momentum(0.5)),
    ],
    ids=lambda method: f"{method.name} {type(method.server).__name__}",
)
def test_after_200_rounds_weights_outside_the_mask_are_bitwise_the_initial_ones(method: Method) -> None:
    task = Task(model=signed_zeros, clients=zoo.population([3] * 4), public=zoo.population([5], seed=3)[0])
    initial = initial_state(method, task)
    *_, (state, _) = rounds(method, task, workers=1, randomness="seeded")
    mask = state.memory["codec/mask"]
    outside = torch.ones(state.dim, dtype=torch.bool).index_fill_(0, mask, False)
    assert len(mask) == int(RATIO * 650)
    assert torch.equal(state.weights[outside].view(torch.int32), initial.weights[outside].view(torch.int32))
    assert bool(initial.weights[outside].signbit().any())
    assert not torch.equal(state.weights[mask], initial.weights[mask])


def test_fl_basic_changes_other_coordinates_in_every_round() -> None:
    task = Task(model=zoo.softmax, clients=zoo.population([3] * 4))
    basic = short("fl-basic", rounds=4)
    weights, changed = initial_state(basic, task).weights, []
    for state, _ in rounds(basic, task, workers=1, randomness="seeded"):
        changed.append(frozenset((state.weights != weights).nonzero().flatten().tolist()))
        weights = state.weights
    assert len(set(changed)) == 4
    assert all(0 < len(coordinates) <= int(RATIO * 650) for coordinates in changed)


def test_without_a_mask_masked_training_is_sgd() -> None:
    wave, weights = wave_of(zoo.population([4, 6, 5]))
    view = View(weights, {})
    assert torch.equal(Masked(SGD).train(view, wave, now()).dense(), SGD.train(view, wave, now()).dense())


def test_one_masked_step_is_the_masked_part_of_a_free_step() -> None:
    wave, weights = wave_of(zoo.population([4, 6, 5]))
    mask, sgd = torch.tensor([0, 5, 1900, 2779]), Sgd(lr=0.1, steps=1)
    view = View(weights, {}, mask=mask)
    masked, free = (trainer.train(view, wave, now()).dense() for trainer in (Masked(sgd), sgd))
    torch.testing.assert_close(masked[:, mask], free[:, mask], rtol=1e-4, atol=1e-8)
    assert int((masked != 0).sum()) <= 3 * 4


def hypotheses() -> tuple[StackedClients, Tensor]:
    """Five clients, and the weights of three models."""
    torch.manual_seed(0)
    models = [zoo.mlp() for _ in range(3)]
    weights = torch.stack([torch.cat([p.detach().flatten() for p in model.parameters()]) for model in models])
    learner = AutoLearner(models[0], CrossEntropy())
    return StackedClients(torch.arange(5), zoo.population([4, 9, 3, 7, 5]), learner), weights


def test_losses_are_those_of_each_client_alone() -> None:
    data, weights = hypotheses()
    model = zoo.mlp()
    for number, flat in enumerate(weights):
        nn.utils.vector_to_parameters(flat, model.parameters())
        for client in range(5):
            x, y = data.population[client]
            alone = nn.functional.cross_entropy(model(x), y)
            torch.testing.assert_close(data.losses(weights)[client, number].float(), alone)


def test_every_client_trains_the_hypothesis_with_its_smallest_loss() -> None:
    data, weights = hypotheses()
    view, choice = View(weights, {}), data.losses(weights).argmin(1)
    assert len(set(choice.tolist())) > 1  # otherwise this would test nothing
    assert torch.equal(BestOf(WHOLE).choose(view, data), choice)
    rows = BestOf(WHOLE).train(view, data, now()).dense()
    for client, number in enumerate(choice.tolist()):
        alone = WHOLE.train(View(weights[number], {}), data.keep(torch.arange(5) == client), now()).dense()[0]
        torch.testing.assert_close(rows[client], alone)


def test_with_one_hypothesis_there_is_no_choice() -> None:
    data, weights = hypotheses()
    one = View(weights[1], {})
    assert BestOf(WHOLE).choose(one, data).tolist() == [0] * 5
    assert torch.equal(BestOf(WHOLE).train(one, data, now()).dense(), WHOLE.train(one, data, now()).dense())


def test_only_the_best_of_several_is_a_choice_and_no_local_training_prunes() -> None:
    shapes, state = ((2, 3), (2,)), State(1, torch.ones(8), shapes=((2, 3), (2,)))
    for trainer, masked, chooses in ((WHOLE, False, False), (Masked(Sgd(lr=0.1, steps=1)), True, False)):
        assert (trainer.masked, trainer.chooses) == (masked, chooses)
        assert (trainer.weight_counts(shapes), trainer.variants(state)) == ((), {})
    best = BestOf(WHOLE)
    assert (best.masked, best.chooses, best.weight_counts(shapes), best.variants(state)) == (False, True, (), {})


def test_the_choice_is_never_sent() -> None:
    data, weights = hypotheses()
    messages = make_messages(methods.make("ifca", {"models": 3, "batch_size": None}), View(weights, {}), data, now())
    assert messages.samples is None
    sent = frames.unpack(FrameFormat().pack(messages, 0, now()), frames.FrameKind.MESSAGE)
    assert sent.parts.keys() == {Part.ROW}
    assert messages.rows.dim == weights.shape[1]
