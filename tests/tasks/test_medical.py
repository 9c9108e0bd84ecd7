from dataclasses import replace

import numpy as np
import pytest
import torch

from tacit.core.keys import Key
from tacit.core.task import Task
from tacit.errors import DataError
from tacit.tasks import medical
from tacit.tasks.medical import Deal, Study


def facts(task: Task) -> tuple[int, int, int, int]:
    """Clients, features, rows for training, rows for testing."""
    assert task.test is not None
    return len(task.population), task.population.x.shape[1], len(task.population.x), len(task.test[0])


def positives(task: Task) -> int:
    assert task.test is not None
    return int(task.population.y.sum() + task.test[1].sum())


def study(rows: int = 200) -> Study:
    chance = np.random.default_rng(0)
    return Study(
        name="made-up",
        table={"age": [str(age) for age in chance.integers(20, 90, rows)]},
        numbers=("age",),
        categories=(),
        positive=np.arange(rows) % 5 == 0,
        hospital=np.arange(rows) % 4,
        person=np.arange(rows) // 2,
    )


def deal(clients: int | None = 10, public: int = 0, balanced: bool = False) -> Deal:
    return Deal(clients=clients, public=public, balanced=balanced, seed=0)


def test_persons_stay_on_one_side():
    train, test = medical._split(study())
    assert len(train) == 160
    assert set(train.tolist()) | set(test.tolist()) == set(range(200))
    assert not set((train // 2).tolist()) & set((test // 2).tolist())


def test_public_rows_belong_to_nobody():
    task = medical._task(study(), deal(public=20))
    assert int(task.population.sizes.sum()) == 140
    assert task.public is not None
    assert len(task.public[0]) == 20


def test_balanced_clients_have_as_many_of_both():
    task = medical._task(study(), deal(clients=None, public=30, balanced=True))
    for _, y in task.population:
        assert float(y.mean()) == 0.5
    assert task.public is not None
    assert float(task.public[1].mean()) == 0.5


def test_a_client_of_one_outcome_keeps_a_row():
    part = medical._balanced(torch.arange(5), torch.zeros(5, dtype=torch.bool), Key.from_seed(0))
    assert len(part) == 1


def test_natural_clients_must_be_known():
    with pytest.raises(DataError, match="clients=<number> for made-up"):
        medical._task(replace(study(), hospital=None), deal(clients=None))


def test_ist(data_folder):
    task = medical.ist()
    assert facts(task) == (463, 56, 15_548, 3_887)
    assert positives(task) == 4370
    assert positives(medical.ist(outcome="fourteen-days", clients=20)) == 1781


def test_gusto(data_folder):
    assert facts(medical.gusto()) == (16, 37, 32_664, 8_166)
    assert len(medical.gusto(groups="grps").population) == 121
    assert positives(medical.gusto(clients=100)) == 2851


def test_support2(data_folder):
    task = medical.support2()
    assert facts(task) == (40, 62, 7_284, 1_821)
    assert positives(task) == 2360


def test_diabetes_130(data_folder):
    assert facts(medical.diabetes_130()) == (100, 500, 79_596, 19_747)


def test_covid_mx(data_folder):
    task = medical.covid_mx()
    assert facts(task) == (5010, 37, 838_860, 209_715)
    assert positives(task) == 76_942
    assert task.public is not None
    assert len(task.public[0]) == 356
    model = task.make_model(Key.from_seed(0))
    assert model(task.population.x[:3]).shape == (3, 1)


LATER = {
    "covid_mx": ("DATE_DIED", "INTUBED", "ICU", "PATIENT_TYPE", "CLASIFFICATION_FINAL", "PNEUMONIA"),
    "ist": ("D", "F", "EXP", "ID14", "TD", "OCCODE", "SET14D", "H14", "ISC14", "NK14", "STRK14", "CMPL"),
    "gusto": ("day30",),
    "diabetes_130": ("readmitted", "encounter_id", "patient_nbr"),
    "support2": ("death", "hospdead", "slos", "d.time", "charges", "tot", "avtisst", "surv", "prg", "dnr", "sfdm2"),
}


@pytest.mark.parametrize("name", LATER)
def test_nothing_of_the_future_is_an_input(name, monkeypatch, data_folder):
    seen: list[str] = []

    class StopError(Exception):
        pass

    def spy(_table: object, numbers: tuple[str, ...], categories: tuple[str, ...], _train: object) -> None:
        seen.extend([*numbers, *categories])
        raise StopError

    monkeypatch.setattr(medical, "encode", spy)
    with pytest.raises(StopError):
        getattr(medical, name)()
    assert seen
    assert not [column for column in seen if column.startswith(LATER[name])]
