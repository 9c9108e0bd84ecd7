"""Columns that a model should not have: named before a run, whoever started it."""

import numpy as np
import pytest

import tacit

ROWS = 400


@pytest.fixture(scope="module")
def notes() -> tuple[str, ...]:
    source = np.random.default_rng(0)
    died = source.integers(0, 2, ROWS)
    table = {
        "hospital": [f"H{row % 4}" for row in range(ROWS)],
        "age": source.normal(50, 10, ROWS) + 5 * died,
        "stay": np.arange(ROWS) + 1000,
        "discharged": died + source.normal(0, 0.1, ROWS),
        "died": died,
    }
    return tacit.Task.from_table(table, client="hospital", target="died").notes


def test_an_id_and_a_column_that_alone_predicts_are_named(notes: tuple[str, ...]) -> None:
    said = " ".join(notes)
    assert "'stay' looks like an id" in said
    assert "'discharged' alone predicts 'died' (AUROC 1.000)" in said


def test_honest_columns_are_not_doubted(notes: tuple[str, ...]) -> None:
    assert not any("'age'" in note for note in notes)
    few = {"site": ["a", "b"] * 10, "age": list(range(20)), "died": [0, 1, 1, 0] * 5}
    assert not any("id" in note.split() for note in tacit.Task.from_table(few, client="site", target="died").notes)
