import pytest
import torch

from tacit.core.losses import MeanSquared, RootMeanSquared
from tacit.errors import UserError
from tacit.tasks.synthetic import THETA, synthetic


def test_clients_lie_on_one_of_two_lines():
    people = synthetic().population
    assert (len(people), set(people.sizes.tolist())) == (100, {10})
    for number in (0, 1, 98, 99):
        x, y = people[number]
        noise = y[:, 0] - x @ THETA[number % 2]
        assert bool(((noise >= -1e-5) & (noise <= 1 + 1e-5)).all())


def test_held_out_clients_are_others():
    task = synthetic()
    assert task.test is not None
    assert task.test[0].shape == task.population.x.shape
    assert not torch.equal(task.test[0], task.population.x)
    assert task.owners is not None
    assert task.owners.bincount().tolist() == [10] * 100
    assert task.loss == RootMeanSquared()
    assert synthetic(loss="mean-squared").loss == MeanSquared()


def test_wrong_sizes():
    with pytest.raises(UserError, match="samples=0 > 0"):
        synthetic(samples=0)
