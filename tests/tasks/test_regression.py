from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import torch

from tacit.core.losses import MeanSquared, RootMeanSquared
from tacit.errors import UserError
from tacit.tasks import regression
from tacit.tasks.regression import THETA, hospital_charges, synthetic


def test_clients_follow_one_of_two_lines():
    population = synthetic().population
    assert (len(population), set(population.sizes.tolist())) == (100, {10})
    for client in (0, 1, 98, 99):
        x, y = population[client]
        noise = y[:, 0] - x @ THETA[client % 2]
        assert bool(((noise >= -1e-5) & (noise <= 1 + 1e-5)).all())


def test_held_out_clients_have_other_samples():
    task = synthetic()
    assert task.test is not None
    assert task.test[0].shape == task.population.x.shape
    assert not torch.equal(task.test[0], task.population.x)
    assert task.owners is not None
    assert task.owners.bincount().tolist() == [10] * 100
    assert task.loss == RootMeanSquared()
    assert synthetic(loss="mean-squared").loss == MeanSquared()


def test_wrong_sizes():
    with pytest.raises(UserError, match="samples=0 >= 1"):
        synthetic(samples=0)
    with pytest.raises(UserError, match="clients=10000000 times samples=10 <= 10000000"):
        synthetic(clients=10**7)


@pytest.fixture(scope="module")
def hospital_data(real_data: Path) -> Iterator[None]:
    """The real tables, parsed once for all tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TACIT_DATA", str(real_data))
        for name in ("read", "parse_texts"):
            patch.setattr(regression, name, cache(getattr(regression, name)))
        yield


@pytest.mark.law("real data")
@pytest.mark.parametrize(("by", "train", "rows"), [("hospital", 2206, 11_915), ("zip", 2064, 11_915)])
def test_hospital_charges(hospital_data, by, train, rows):
    """Only this test reads the real table of payments (27 MB): its columns, ZIP codes and dollar amounts."""
    task = hospital_charges(by=by)
    population = task.population
    assert len(population) == train  # 70 % of 3,151 hospitals, or of 2,948 ZIP codes
    assert task.test is not None
    assert len(population.x) + len(task.test[0]) == rows  # 3023 + 2989 + 2953 + 2950
    assert task.owners is not None
    all_clients = {"hospital": 3151, "zip": 2948}[by]  # the paper has 2,947 clients
    assert len(population) + len(task.owners.unique()) == all_clients
    assert population.x[:, 0].unique().tolist() == [0, 1, 2, 3]
    assert -1.8 < float(population.x[:, 1].min()) < float(population.x[:, 1].max()) < -0.6
    assert 0.18 < float(population.x[:, 2].min()) < float(population.x[:, 2].max()) < 0.72
    assert 0.2 < float(population.y.min()) < float(population.y.mean()) < 1
