import torch

import zoo
from tacit import methods
from tacit.core import CrossEntropy, Key, Round
from tacit.core.round import client_side
from tacit.core.state import View
from tacit.engine.learners import Fastest
from tacit.engine.waves import StackedClients
from tacit.pieces.trainers import BestOf, Sgd
from tacit.wire.frames import Part

SGD = Sgd(lr=0.1, steps=2, sends="weights")
NOW = Round(0, 5, 3.0, 3, Key.from_seed(0, "shared"), Key.from_seed(0, "secret"))


def wave(loss=None) -> tuple[StackedClients, torch.Tensor]:
    torch.manual_seed(0)
    models = [zoo.mlp() for _ in range(3)]
    learner = Fastest(models[0], loss or CrossEntropy())
    weights = torch.stack([torch.cat([p.detach().flatten() for p in model.parameters()]) for model in models])
    return StackedClients(torch.arange(5), zoo.population([4, 9, 3, 7, 5]), learner), weights


def test_losses_are_those_of_each_client_alone():
    data, weights = wave()
    model = zoo.mlp()
    for number, flat in enumerate(weights):
        torch.nn.utils.vector_to_parameters(flat, model.parameters())
        for client in range(5):
            x, y = data.population[client]
            alone = torch.nn.functional.cross_entropy(model(x), y)
            torch.testing.assert_close(data.losses(weights)[client, number].float(), alone)


def test_every_client_trains_what_fits_it_best():
    data, weights = wave()
    view, choice = View(weights, {}), data.losses(weights).argmin(1)
    assert len(set(choice.tolist())) > 1  # or there is nothing to see
    assert torch.equal(BestOf(SGD).choose(view, data), choice)
    rows = BestOf(SGD).train(view, data, NOW).dense()
    for client, number in enumerate(choice.tolist()):
        alone = SGD.train(View(weights[number], {}), data.only(torch.arange(5) == client), NOW).dense()[0]
        torch.testing.assert_close(rows[client], alone)


def test_one_hypothesis_leaves_no_choice():
    data, weights = wave()
    one = View(weights[1], {})
    assert BestOf(SGD).choose(one, data).tolist() == [0] * 5
    assert torch.equal(BestOf(SGD).train(one, data, NOW).dense(), SGD.train(one, data, NOW).dense())


def test_the_choice_is_never_sent():
    data, weights = wave()
    messages = client_side(methods.ifca(models=3, batch_size=None), View(weights, {}), data, NOW)
    assert messages.samples is None
    assert messages.parts(0).keys() == {Part.ROW}
    assert messages.rows.dim == weights.shape[1]
