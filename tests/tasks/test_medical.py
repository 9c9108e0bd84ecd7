from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from tacit.core.keys import Key
from tacit.data.encoding import Encoding
from tacit.data.tables import Table
from tacit.data.task import Task
from tacit.errors import DataError, UserError
from tacit.tasks import medical
from tacit.tasks.medical import ClientSplit, Column, PatientTable


def counts(task: Task) -> tuple[int, int, int, int]:
    """Clients, features, rows for training, rows for testing."""
    assert task.test is not None
    return len(task.population), task.population.x.shape[1], len(task.population.x), len(task.test[0])


def positives(task: Task) -> int:
    assert task.test is not None
    return int(task.population.y.sum() + task.test[1].sum())


def patients(rows: int = 200) -> PatientTable:
    generator = np.random.default_rng(0)
    return PatientTable(
        name="invented",
        table={"age": [str(age) for age in generator.integers(20, 90, rows)]},
        numbers=("age",),
        categories=(),
        positive=np.arange(rows) % 5 == 0,
        hospital=np.arange(rows) % 4,
        person=np.arange(rows) // 2,
    )


def split(clients: int | None = 10, public: int = 0, balanced: bool = False) -> ClientSplit:
    return ClientSplit(clients=clients, public=public, balanced=balanced, seed=0)


def test_all_rows_of_a_person_are_on_one_side():
    train, test = medical._train_test_rows(patients())
    assert len(train) == 160
    assert set(train.tolist()) | set(test.tolist()) == set(range(200))
    assert not set((train // 2).tolist()) & set((test // 2).tolist())


def test_no_client_owns_public_rows():
    task = medical._make_task(patients(), split(public=20))
    assert int(task.population.sizes.sum()) == 140
    assert task.public is not None
    assert len(task.public[0]) == 20


def test_balanced_clients_have_as_many_rows_of_both_outcomes():
    task = medical._make_task(patients(), split(clients=None, public=30, balanced=True))
    for _, y in task.population:
        assert float(y.mean()) == 0.5
    assert task.public is not None
    assert float(task.public[1].mean()) == 0.5


def test_a_client_with_one_outcome_keeps_a_row():
    part = medical._downsample(torch.arange(5), torch.zeros(5, dtype=torch.bool), Key.from_seed(0))
    assert len(part) == 1


def test_natural_clients_must_be_known():
    with pytest.raises(DataError, match="clients=<number> for invented"):
        medical._make_task(replace(patients(), hospital=None), split(clients=None))


def encoded(
    table: dict[str, Column], numbers: tuple[str, ...], categories: tuple[str, ...], train: NDArray[np.int64]
) -> tuple[tuple[str, ...], torch.Tensor]:
    """The names of the inputs, and the inputs of all rows."""
    chosen = replace(patients(), table=table, numbers=numbers, categories=categories)
    found = medical._encoding(medical._inputs(chosen), chosen, "training", train, train[:0])
    return found.names, found.inputs(medical._inputs(chosen))


def test_ranges_and_categories_come_from_the_training_rows(monkeypatch):
    monkeypatch.setattr(medical, "_RARE", 2)
    table: dict[str, Column] = {
        "age": ["20", "60", "?", "100"],
        "kind": ["a", "b", "a", "b"],
        "code": np.array([1, 1, 2, 97]),
    }
    names, x = encoded(table, ("age",), ("kind", "code"), np.array([0, 1, 2]))
    assert names == ("age", "age missing", "kind=a", "code=1")  # b and 2 are rare in training
    assert x[:, 0].tolist() == [0, 1, 0, 1]  # 100 is beyond the range of training
    assert x[:, 1].tolist() == [0, 0, 1, 0]
    assert x[:, 2].tolist() == [1, 0, 1, 0]
    assert x[:, 3].tolist() == [1, 1, 0, 0]


def test_a_category_with_one_value_is_no_feature(monkeypatch):
    monkeypatch.setattr(medical, "_RARE", 1)
    names, _ = encoded({"x": ["1", "2"], "same": ["a", "a"]}, ("x",), ("same",), np.array([0, 1]))
    assert names == ("x",)


LATER = {
    "covid_mx": ("DATE_DIED", "INTUBED", "ICU", "PATIENT_TYPE", "CLASIFFICATION_FINAL", "PNEUMONIA"),
    "ist": ("D", "F", "EXP", "ID14", "TD", "OCCODE", "SET14D", "H14", "ISC14", "NK14", "STRK14", "CMPL"),
    "gusto": ("day30",),
    "diabetes_130": ("readmitted", "encounter_id", "patient_nbr"),
    "support2": ("death", "hospdead", "slos", "d.time", "charges", "tot", "avtisst", "surv", "prg", "dnr", "sfdm2"),
}


@pytest.fixture
def inputs(data_folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The columns that a task encodes as inputs; filled when one is made from the real data."""
    columns: list[str] = []

    def spy(self: Encoding, table: Table) -> torch.Tensor:
        columns.extend(self.columns)
        return encode(self, table)

    encode = Encoding.inputs
    monkeypatch.setattr(Encoding, "inputs", spy)
    return columns


def assert_nothing_later(name: str, inputs: list[str]) -> None:
    """No input is known only after the time of the prediction."""
    assert inputs
    assert not [column for column in inputs if column.startswith(LATER[name])]


@pytest.mark.law("real data")
def test_ist(inputs):
    task = medical.ist()
    assert counts(task) == (463, 56, 15_548, 3_887)
    assert positives(task) == 4370
    assert positives(medical.ist(outcome="fourteen-days", clients=20)) == 1781
    assert_nothing_later("ist", inputs)


@pytest.mark.law("real data")
def test_the_largest_countries_of_ist(data_folder):
    assert len(medical.ist(by="country").population) == 36
    sizes = medical.ist(by="country", largest=10).population.sizes
    assert (len(sizes), int(sizes.min()), int(sizes.max())) == (10, 394, 5000)  # of 478 in Spain and 6257 in the UK
    with pytest.raises(UserError, match=r"Expected largest=37 in 1, ..., 36"):
        medical.ist(by="country", largest=37)


@pytest.mark.law("real data")
def test_gusto(inputs):
    assert counts(medical.gusto()) == (16, 37, 32_664, 8_166)
    assert len(medical.gusto(groups="grps").population) == 121
    assert positives(medical.gusto(clients=100)) == 2851
    assert_nothing_later("gusto", inputs)


@pytest.mark.law("real data")
def test_support2(inputs):
    task = medical.support2()
    assert counts(task) == (40, 62, 7_284, 1_821)
    assert positives(task) == 2360
    assert_nothing_later("support2", inputs)


@pytest.mark.law("real data")
def test_diabetes_130(inputs):
    """Only this test reads a table in which patients have several rows and some stays are excluded."""
    assert counts(medical.diabetes_130()) == (100, 500, 79_596, 19_747)
    assert_nothing_later("diabetes_130", inputs)


@pytest.mark.law("real data")
def test_covid_mx(inputs):
    """Only this test parses the table of a million rows, which has a parser of its own."""
    task = medical.covid_mx()
    assert counts(task) == (5010, 37, 838_860, 209_715)
    assert positives(task) == 76_942
    assert task.public is not None
    assert len(task.public[0]) == 356
    model = task.make_model(Key.from_seed(0))
    assert model(task.population.x[:3]).shape == (3, 1)
    assert_nothing_later("covid_mx", inputs)


def table_with_gaps() -> PatientTable:
    rows = patients()
    sex: Column = ["f" if row % 3 else "m" for row in range(200)]
    return replace(rows, table={**rows.table, "sex": sex}, categories=("sex",))


CODEBOOK = """
[numbers]
age = [0, 100]
[categories]
sex = ["f", "m", "x"]
"""


def test_ranges_from_training_rows_are_declared_private() -> None:
    task = medical._make_task(patients(), split(public=20))
    assert task.preprocessing.source == "private"
    (sentence,) = task.not_covered
    assert sentence.startswith("Preprocessing used the clients' rows: minima, maxima and categories are those of all")


def test_public_rows_decide_ranges_and_categories() -> None:
    table, chosen = table_with_gaps(), replace(split(public=5), encoding="public")
    task = medical._make_task(table, chosen)
    assert task.preprocessing.source == "public"
    assert task.not_covered == ()
    assert task.public is not None
    ages = task.public[0][:, 0]
    assert (float(ages.min()), float(ages.max())) == (0.0, 1.0)
    assert task.population.x[:, 0].max() == 1.0  # what is outside the range is clipped
    with pytest.raises(UserError, match=r"public rows for encoding=public, got none\. Set public"):
        medical._make_task(table, replace(split(), encoding="public"))


def test_a_change_of_private_rows_does_not_change_public_encodings(tmp_path: Path) -> None:
    """The features of all other rows stay the same if a private row takes an extreme value."""
    file = tmp_path / "codebook.toml"
    file.write_text(CODEBOOK)
    table = table_with_gaps()
    train, _ = medical._train_test_rows(table)
    key = Key.from_seed(0, "patients")
    _, owned = medical._public_and_owned(len(train), split(public=20), key.child("public"))
    victim = int(train[int(owned[0])])
    ages, sexes = list(table.table["age"]), list(table.table["sex"])
    ages[victim], sexes[victim] = "500", "never seen"
    changed = replace(table, table={"age": ages, "sex": sexes})
    others = train != victim
    for encoding, same in (("training", False), ("public", True), (str(file), True)):
        chosen = replace(split(public=20), encoding=encoding)
        one, other = (medical._make_task(each, chosen).population.x[others] for each in (table, changed))
        assert torch.equal(one, other) == same


def test_declared_ranges_and_categories(tmp_path: Path) -> None:
    file = tmp_path / "codebook.toml"
    file.write_text(CODEBOOK)
    table = table_with_gaps()
    nobody = np.arange(0)
    found = medical._encoding(medical._inputs(table), table, str(file), nobody, nobody)
    assert found.names == ("age", "age missing", "sex=f", "sex=m", "sex=x")
    assert found.inputs(medical._inputs(table))[0].tolist() == pytest.approx(
        [int(table.table["age"][0]) / 100, 0, 0, 1, 0]
    )
    task = medical._make_task(table, replace(split(), encoding=str(file)))
    assert task.preprocessing.detail.endswith("are declared to be public in codebook.toml.")


def test_the_encoding_of_another_run_s_rows_is_not_called_public(tmp_path: Path) -> None:
    file, table = tmp_path / "encoding.json", table_with_gaps()
    everybody = np.arange(len(table.positive))
    file.write_bytes(medical._encoding(medical._inputs(table), table, "training", everybody, everybody[:0]).to_bytes())
    assert medical._make_task(table, replace(split(), encoding=str(file))).preprocessing.source == "private"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            "[numbers]\nage = [0, 100]\n",
            r"Expected .*codebook.toml to declare the inputs of invented, age, sex, but it lacks sex",
        ),
        (CODEBOOK.replace("sex =", "sex = ['f']\nheight ="), r"but it has height, which are not inputs"),
        (CODEBOOK.replace("[0, 100]", "[5, 5]"), r"Expected minimum < maximum of age in .*, got 5 and 5"),
        (CODEBOOK.replace("[0, 100]", "[5]"), r"Expected numbers.age of .* to be a list of length 2"),
    ],
)
def test_wrong_codebooks_are_refused(tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / "codebook.toml"
    file.write_text(content)
    with pytest.raises(UserError, match=message):
        medical._make_task(table_with_gaps(), replace(split(), encoding=str(file)))
