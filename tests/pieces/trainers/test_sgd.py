import pytest
import torch

import zoo
from tacit.core import CrossEntropy, Key, Round, View
from tacit.engine.layout import Layout
from tacit.engine.learners import Fastest
from tacit.engine.waves import StackedClients
from tacit.errors import UserError
from tacit.pieces.trainers import Sgd


def now(index: int = 0) -> Round:
    return Round(index, 3, 3.0, 3, Key.from_seed(0), Key.from_seed(1))


def test_weights_are_the_view_plus_the_update() -> None:
    model, clients = zoo.mlp(), zoo.population([4, 6, 5])
    weights = Layout.of(model).flatten(model)
    wave, view = StackedClients(torch.arange(3), clients, Fastest(model, CrossEntropy())), View(weights, {})
    updates = Sgd(lr=0.1, steps=2).train(view, wave, now()).dense()
    trained = Sgd(lr=0.1, steps=2, sends="weights").train(view, wave, now()).dense()
    torch.testing.assert_close(trained, weights + updates)


def test_the_learning_rate_decays_with_the_rounds() -> None:
    model, clients = zoo.mlp(), zoo.population([4])
    weights = Layout.of(model).flatten(model)
    wave, view = StackedClients(torch.arange(1), clients, Fastest(model, CrossEntropy())), View(weights, {})
    early, late = (Sgd(lr=0.1, steps=1, decay=0.5).train(view, wave, now(i)).dense() for i in (0, 3))
    torch.testing.assert_close(late, early / 8)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"lr": 0.0, "steps": 1}, r"lr=0\.0 > 0"),
        ({"lr": 0.1}, "either steps or epochs"),
        ({"lr": 0.1, "steps": 1, "epochs": 1}, "not both"),
        ({"lr": 0.1, "steps": 0}, "steps=0"),
        ({"lr": 0.1, "epochs": -1}, "epochs=-1"),
        ({"lr": 0.1, "steps": 1, "batch_size": 0}, "batch_size=0 >= 1"),
        ({"lr": 0.1, "steps": 1, "decay": 1.5}, r"decay=1\.5 in \(0, 1\]"),
        ({"lr": 0.1, "steps": 1, "momentum": 1.0}, r"momentum=1\.0 in \[0, 1\)"),
        ({"lr": 0.1, "steps": 1, "weight_decay": -1.0}, "weight_decay"),
        ({"lr": 0.1, "steps": 1, "sends": "gradients"}, "sends='gradients'"),
    ],
)
def test_bad_arguments(arguments: dict[str, object], words: str) -> None:
    with pytest.raises(UserError, match=words):
        Sgd(**arguments)
