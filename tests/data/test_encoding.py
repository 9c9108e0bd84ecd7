"""The encoding of a table as a value: its file form, hostile files, and what does not fit."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tacit
from tacit.data import encoding as encodings
from tacit.data.encoding import Encoding, Preprocessing, TargetColumn
from tacit.data.tables import Table, read_table
from tacit.errors import DataError, UserError

ROWS = (
    "hospital;age;day;ward;sex;died\nA;40,5;2020-01-31;01;f;no\nB;;2021-03-01;7;?;yes\nA;71;?;7;m;no\nB;50;;01;f;yes\n"
)
FULL = Encoding(
    numbers={"age": (20.0, 90.0), "day": ("2020-01-01", "2024-12-31")},
    categories={"sex": ("", "f"), "empty": ()},
    indicators=("age",),
    target=TargetColumn("died", ("0", "1")),
    client="hospital",
    person="person",
    dropped=("name",),
    preprocessing=Preprocessing("private", "ages."),
)


def written(folder: Path, text: str, name: str = "new.csv") -> Path:
    (folder / name).write_text(text)
    return folder / name


@pytest.fixture
def encoding(tmp_path: Path) -> Encoding:
    """That of a table with semicolons, decimal commas, dates, texts and missing values."""
    path = written(tmp_path, ROWS, "patients.csv")
    task = tacit.Task.from_table(path, client="hospital", target="died", categories=["ward"], test=0)
    assert task.encoding is not None
    return task.encoding


@pytest.mark.parametrize("each", [FULL, replace(FULL, target=TargetColumn("days", limits=(0.0, 30.0))), Encoding()])
def test_the_file_form_is_read_back(each: Encoding, tmp_path: Path) -> None:
    (tmp_path / "encoding.json").write_bytes(each.to_bytes())
    found = Encoding.read(tmp_path / "encoding.json")
    assert found == each
    assert found.digest == each.digest
    assert Encoding.from_plain(json.loads(json.dumps(each.to_plain())), "it") == each


def test_the_digest_covers_every_field_and_the_order_of_columns() -> None:
    others = [
        replace(FULL, numbers={"day": FULL.numbers["day"], "age": FULL.numbers["age"]}),
        replace(FULL, numbers={**FULL.numbers, "age": (20.0, 90.5)}),
        replace(FULL, categories={**FULL.categories, "sex": ("f", "")}),
        replace(FULL, indicators=()),
        replace(FULL, target=TargetColumn("died", ("1", "0"))),
        replace(FULL, client="site"),
        replace(FULL, person="id"),
        replace(FULL, dropped=()),
        replace(FULL, preprocessing=Preprocessing("public")),
    ]
    assert len({each.digest for each in [FULL, *others]}) == len(others) + 1


def test_a_file_that_a_person_writes_and_one_of_a_run_are_one_form(tmp_path: Path, encoding: Encoding) -> None:
    patients = tmp_path / "patients.csv"
    (tmp_path / "encoding.json").write_bytes(encoding.to_bytes())
    again = tacit.Task.from_table(patients, target="died", encoding=tmp_path / "encoding.json", test=0)
    assert again.encoding == encoding  # also the client
    assert again.preprocessing.source == "private"  # a file does not make the constants of rows public
    toml = """
        [numbers]
        age = [0, 110]
        day = ["2020-01-01", "2024-12-31"]
        [categories]
        ward = ["1", "7"]
        sex = ["f", "m"]
        [target]
        name = "died"
        classes = ["no", "yes"]
    """
    declared = written(tmp_path, toml, "ranges.toml")
    task = tacit.Task.from_table(patients, client="hospital", target="died", encoding=declared, test=0)
    assert task.preprocessing.source == "public"
    assert not any("Preprocessing" in sentence for sentence in task.not_covered)
    assert task.encoding is not None
    assert task.encoding.names == ("age", "age missing", "day", "day missing", "ward=1", "ward=7", "sex=f", "sex=m")
    written(tmp_path, toml.replace('"died"', '"other"'), "ranges.toml")
    with pytest.raises(DataError, match=r"Expected the target 'other', which .*ranges.toml has, got 'died'"):
        tacit.Task.from_table(patients, client="hospital", target="died", encoding=declared)


def test_new_rows_are_read_as_in_training(encoding: Encoding, tmp_path: Path) -> None:
    assert encoding.names == (
        *("age", "age missing", "day", "day missing", "ward=1", "ward=7", "sex=", "sex=f", "sex=m"),
    )
    new = read_table(written(tmp_path, "age;day;ward;sex;name\n30,75;2025-01-01;1;d;Ann\n;;8;;Bob\n"))
    assert encoding.problems(new, training=False) == []
    first, second = encoding.inputs(new).tolist()
    assert first == [0.0, 0, 1, 0, 1, 0, 0, 0, 0]  # below the smallest age, after the last day, an unknown sex
    assert second == [0, 1, 0, 1, 0, 0, 1, 0, 0]  # an unknown ward, and all else missing
    remarks = list(encoding.remarks(new))
    assert remarks[0] == "age: 1 of 2 values are outside 40.5 to 71 and encoded as the nearer of the two."
    assert "ward: 1 of 2 values are none of those that the encoding has (8) and set no input." in remarks
    assert "sex: 1 of 2 values are none of those that the encoding has (d) and set no input." in remarks


def test_codes_that_only_some_files_show_as_texts(tmp_path: Path) -> None:
    """`01` is a text beside `A1` and a number alone: both are the same category."""
    whole = {"code": ["01", "A1", "02"] * 4, "y": [0, 1, 1] * 4, "client": ["a", "b"] * 6}
    task = tacit.Task.from_table(whole, client="client", target="y", test=0)
    assert task.encoding is not None
    alone = read_table(written(tmp_path, "code,age\n01,1\n02,2\n3,3\n"))
    assert task.encoding.inputs(alone).tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 0]]


def test_everything_that_does_not_fit_is_listed(encoding: Encoding, tmp_path: Path) -> None:
    wrong = "age,day,sex,died\nold,3,f,no\nyoung,4,f,perhaps\n"
    assert encoding.problems(written(tmp_path, wrong)) == [
        f"Expected numbers in column 'age' of {tmp_path}/new.csv, got texts such as 'old'.",
        f"Expected dates in column 'day' of {tmp_path}/new.csv, got numbers.",
        f"Expected {tmp_path}/new.csv to have the column 'ward', given as input; it has age, day, sex, died.",
        f"Expected 'died' of {tmp_path}/new.csv in no, yes, got perhaps.",
    ]
    assert len(encoding.problems(written(tmp_path, wrong), training=False)) == 3
    assert encoding.problems(tmp_path / "patients.csv") == []


def test_targets_fit_the_loss() -> None:
    rows = {"died": [0, 1, 1]}
    assert FULL.targets(rows).tolist() == [[0.0], [1.0], [1.0]]
    assert FULL.targets(rows, tacit.CrossEntropy()).tolist() == [0, 1, 1]
    days = Encoding(target=TargetColumn("days", limits=(0.0, 30.0)))
    assert days.targets({"days": [15.0]}).tolist() == [[0.5]]
    with pytest.raises(DataError, match="Expected dates in column 'days' of the table, got numbers"):
        Encoding(target=TargetColumn("days", limits=("2020-01-01", "2020-01-31"))).targets({"days": [15.0]})


def test_outputs_are_probabilities_or_values_in_the_targets_units() -> None:
    assert TargetColumn("t", ("a", "b")).read(torch.tensor([[0.0, 0.0]])) == {
        "predicted t": ["a"],
        "probability t=a": [0.5],
        "probability t=b": [0.5],
    }
    three = TargetColumn("t", ("a", "b", "c")).read(torch.tensor([[0.0, 5.0, 0.0]]))
    assert three["predicted t"] == ["b"]
    assert sum(three[f"probability t={name}"][0] for name in "abc") == pytest.approx(1.0)
    dates = TargetColumn("t", limits=("2020-01-01", "2020-01-31")).read(torch.tensor([[0.5], [2.0]]))
    assert dates == {"predicted t": ["2020-01-16", "2020-03-01"]}
    with pytest.raises(UserError, match="Expected 3 outputs for 't', got 2"):
        TargetColumn("t", ("a", "b", "c")).read(torch.zeros(1, 2))


SAME = {"numbers": {"a": [0, 1]}, "target": {"name": "a", "limits": [0, 1]}}
HOSTILE: dict[str, tuple[dict[str, Any], str]] = {
    "another format": ({"format": 2}, "to have format 1, got 2, of another version"),
    "an unknown key": ({"format": 1, "number": {}}, "got 'number'. Did you mean 'numbers'"),
    "a range of NaN": ({"format": 1, "numbers": {"a": [float("nan"), 1]}}, "minimum <= maximum of 'a', two finite"),
    "an infinite range": ({"format": 1, "numbers": {"a": [0, float("inf")]}}, "two finite numbers or dates"),
    "a range that overflows": ({"format": 1, "numbers": {"a": [-1.7e308, 1.7e308]}}, "two finite numbers or dates"),
    "a range from right to left": ({"format": 1, "numbers": {"a": [2, 1]}}, "got 2.0 and 1.0"),
    "a date and a number": ({"format": 1, "numbers": {"a": ["2020-01-01", 1]}}, "two finite numbers or dates"),
    "no date": ({"format": 1, "numbers": {"a": ["soon", "later"]}}, "dates YYYY-MM-DD, got soon and later"),
    "one column twice": ({"format": 1, "numbers": {"a": [0, 1]}, "categories": {"a": []}}, "got a more than once"),
    "the target as input": ({"format": 1, **SAME}, "got a more than once"),
    "equal categories": ({"format": 1, "categories": {"a": ["x", "x"]}}, "different categories of 'a', got x more"),
    "a million categories": ({"format": 1, "categories": {"a": [*map(str, range(10**6))]}}, "at most 131072 inputs"),
    "one class": ({"format": 1, "target": {"name": "t", "classes": ["a"]}}, "at least 2 classes of 't', got 1"),
    "classes and limits": ({"format": 1, "target": {"name": "t", "classes": ["a", "b"], "limits": [0, 1]}}, "either"),
    "an indicator of nothing": ({"format": 1, "indicators": ["a"]}, "indicators of columns of numbers, got a"),
    "a silent private source": ({"format": 1, "preprocessing": {"source": "private"}}, "a sentence that says what"),
    "numbers for texts": ({"format": 1, "categories": {"a": [1, 2]}}, "to be a string, got 1"),
}  # fmt: skip


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_files_get_one_sentence(kind: str, tmp_path: Path) -> None:
    content, words = HOSTILE[kind]
    path = written(tmp_path, json.dumps(content), "encoding.json")
    with pytest.raises(UserError, match=words) as caught:
        Encoding.read(path)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1000


def test_a_huge_file_is_not_parsed(tmp_path: Path) -> None:
    path = written(tmp_path, json.dumps({"format": 1, "dropped": ["x" * 100] * 200_000}), "encoding.json")
    with pytest.raises(UserError, match="at most"):
        Encoding.read(path)


def test_dates_of_a_column_are_written_as_dates() -> None:
    table = Table("t", {"day": np.array(["2020-05-01", "NaT", "1969-12-31"], "M8[D]")})
    found = Encoding.of(table, ["day"], [], np.arange(3))
    assert found.numbers["day"] == ("1969-12-31", "2020-05-01")
    assert found.inputs(table)[:, 0].tolist() == [1, 0, 0]
    assert encodings.limits_of(np.array([np.nan]), dates=False) == (0.0, 1.0)
