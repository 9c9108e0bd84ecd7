"""Ids of persons as people have them become numbers, or are refused with the sentence that helps."""

from dataclasses import replace
from typing import Any

import numpy as np
import pandas
import polars
import pyarrow
import pytest
import torch
from torch import nn

from tacit.core.prices import Unit
from tacit.data import Population, Task
from tacit.data.persons import HELD_UNKNOWN, number_persons
from tacit.errors import DataError

X, Y = np.arange(10.0).reshape(5, 2).astype(np.float32), np.array([0, 1, 0, 1, 0])
IDS = ["ann", "bob", "ann", "cid", "bob"]


def task(clients: Any, **options: Any) -> Task:
    return Task(model=lambda: nn.Linear(2, 2), clients=clients, **options)


def frame() -> pandas.DataFrame:
    return pandas.DataFrame({"a": X[:, 0], "person": IDS, "b": X[:, 1], "died": Y})


IN_FRAMES: dict[str, Any] = {
    "pandas": frame,
    "Polars": lambda: polars.DataFrame(frame()),
    "lazy Polars": lambda: polars.DataFrame(frame()).lazy(),
    "pyarrow": lambda: pyarrow.Table.from_pandas(frame()),
}


@pytest.mark.parametrize("kind", IN_FRAMES)
def test_a_column_of_ids_is_no_input(kind: str) -> None:
    found = task([IN_FRAMES[kind]()], target="died", person="person").population
    assert found.persons is not None
    assert found.persons.tolist() == [0, 1, 0, 2, 1]
    assert found.x.tolist() == X.tolist()
    assert (found.unit, found.unit_sizes.tolist(), found.sizes.tolist()) == (Unit.PERSON, [3], [5])


def test_a_column_of_dictionaries() -> None:
    clients = {"Rome": {"x": X, "y": Y, "person": IDS}, "Oslo": {"x": X[:2], "y": Y[:2], "person": [7, 7]}}
    found = task(clients, target="y", person="person").population
    assert found.persons is not None
    assert found.persons.tolist() == [0, 1, 0, 2, 1, 0, 0]
    assert (found.names, found.unit_sizes.tolist()) == (("Rome", "Oslo"), [3, 1])


@pytest.mark.parametrize("ids", [IDS, np.array(IDS), torch.tensor([4, 2, 4, 9, 2]), [1.5, 2.5, 1.5, 3.0, 2.5]])
def test_vectors_of_ids(ids: Any) -> None:
    found = task([(X, Y)], person=[ids]).population
    assert found.persons is not None
    assert found.persons.tolist() == [0, 1, 0, 2, 1]


def test_without_ids_the_unit_is_the_record() -> None:
    found = task([(X, Y)]).population
    assert (found.unit, found.unit_sizes.tolist(), found.persons) == (Unit.RECORD, [5], None)


def test_the_samples_of_some_persons_follow_each_other() -> None:
    x = torch.arange(8.0)[:, None]
    whole = Population.split(x, torch.zeros(8).long(), [torch.tensor([7, 0, 1, 2, 3]), torch.tensor([4, 5, 6])])
    found = task(whole, person=[IDS, [1, 2, 1]]).population
    indices, counts = found.samples_of(0, torch.tensor([1, 2]))
    assert (indices.tolist(), counts.tolist() if counts is not None else None) == ([0, 3, 2], [2, 1])
    indices, counts = found.samples_of(1, torch.tensor([0]))
    assert (indices.tolist(), counts.tolist() if counts is not None else None) == ([4, 6], [2])
    indices, counts = found.samples_of(1, torch.zeros(0).long())
    assert (indices.tolist(), counts.tolist() if counts is not None else None) == ([], [])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"person": [IDS[:4]]}, "Expected 5 person ids for client 0, one per record, got 4."),
        ({"person": [IDS, IDS]}, "Expected the person ids of 1 clients, got those of 2."),
        ({"person": [["ann", None, "b", "c", "d"]]}, "but record 1 has none"),
        ({"person": [["ann", "bob", "b", float("nan"), "d"]]}, "but record 3 has none"),
        ({"person": 3}, "Expected ids of persons, got '3'"),
        ({"person": "person"}, "Expected client 0 to have named columns for person='person', got a tuple."),
    ],
)
def test_ids_that_do_not_fit_are_refused(options: Any, message: str) -> None:
    with pytest.raises(DataError) as caught:
        task([(X, Y)], **options)
    assert message in str(caught.value)


def test_a_column_that_does_not_exist_is_refused() -> None:
    with pytest.raises(DataError, match="Expected client 0 to have the column 'persn', given as person"):
        task([frame()], target="died", person="persn")
    population = task([(X, Y)]).population
    with pytest.raises(DataError, match="'person', which no client has as a column"):
        task(population, person="person")


HELD = "Held-out metrics, which are exact, and what is decided by them: "


@pytest.mark.parametrize(
    ("held", "words"),
    [
        (["eve"] * 5, ""),
        (["eve"] * 4 + ["cid"], "some of the held-out rows are of persons in training"),
        (None, HELD_UNKNOWN),
    ],
)
@pytest.mark.parametrize("form", ["column", "vector", "table"])
def test_held_out_rows_of_persons_in_training_are_in_the_guarantee(
    form: str, held: list[str] | None, words: str
) -> None:
    """Their metrics are exact: a release about persons that no ε covers."""
    test = frame().assign(a=9.0).drop(columns=["person"] * (form == "vector" or held is None))
    if held is not None and form != "vector":
        test["person"] = held
    if form == "column":
        found = task([frame()], target="died", person="person", test=test)
    elif form == "vector":
        found = task([frame().drop(columns="person")], target="died", person=[IDS], test=test, test_person=held)
    else:
        rows = frame().assign(clinic=["A", "A", "B", "B", "B"])
        found = Task.from_table(rows, client="clinic", target="died", person="person", test=test)
    listed = [each for each in found.not_covered if each.startswith(HELD)]
    assert listed == ([f"{HELD}{words}."] if words else [])
    moved = replace(found, public=found.test)
    assert [each for each in moved.not_covered if each.startswith(HELD)] == listed
    assert found.test is not None
    other = replace(found, test=(found.test[0] + 1, found.test[1]))  # of whom nothing is known
    assert HELD_UNKNOWN in other.not_covered[-1]


def test_ids_of_held_out_samples_are_one_each() -> None:
    with pytest.raises(DataError, match="Expected test_person as one id for each of 5 held-out samples, got 2"):
        task([(X, Y)], person=[IDS], test=(X + 9, Y), test_person=["ann", "bob"])


def test_equal_ids_at_two_clients_are_one_person() -> None:
    """Numbers are those within a client; at how many clients a person is, is counted."""
    numbers, clients = number_persons([["ann"], ["bob", "ann"]], ["client 0", "client 1"], [1, 2])
    assert (numbers.tolist(), clients) == ([0, 0, 1], 2)
