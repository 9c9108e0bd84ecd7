"""Parquet files become populations on disk, in two passes: the task of the table in memory, and the same refusals."""

import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pyarrow
import pytest
import torch
from pyarrow import parquet

import tacit
from tacit.core.prices import Unit
from tacit.data import parquet_population, row_places
from tacit.data.encoding import Encoding
from tacit.data.population_files import StoredTensor
from tacit.data.row_places import RowPlaces

ROWS = 300
RANDOM = np.random.default_rng(7)
FRAME = pandas.DataFrame(
    {
        "hospital": RANDOM.integers(0, 11, ROWS) * 3,
        "age": np.where(RANDOM.random(ROWS) < 0.1, np.nan, RANDOM.integers(20, 90, ROWS)),
        "sex": np.array(["f", "m", None], dtype=object)[RANDOM.integers(0, 3, ROWS)],
        "seen": pandas.to_datetime("2024-01-01") + pandas.to_timedelta(RANDOM.integers(0, 99, ROWS), unit="D"),
        "ward": RANDOM.integers(1, 5, ROWS),
        "name": [f"P{number}" for number in range(ROWS)],
        "died": RANDOM.integers(0, 2, ROWS),
    }
)
OPTIONS: dict[str, Any] = {"target": "died", "drop": ["name"], "categories": ["ward"]}


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several batches, buckets and chunks."""
    monkeypatch.setattr(parquet_population, "BATCH", 64)
    monkeypatch.setattr(row_places, "ROWS_OF_A_BUCKET", 50)
    monkeypatch.setattr(row_places, "_CHUNK", 70)


def one_file(folder: Path, rows: pandas.DataFrame = FRAME) -> Path:
    parquet.write_table(pyarrow.Table.from_pandas(rows), folder / "visits.parquet", row_group_size=100)
    return folder / "visits.parquet"


def partitioned(folder: Path) -> Path:
    parquet.write_to_dataset(pyarrow.Table.from_pandas(FRAME), folder / "visits", partition_cols=["hospital", "ward"])
    return folder / "visits"


def file_per_client(folder: Path) -> Path:
    (folder / "visits").mkdir()
    for hospital, rows in FRAME.groupby("hospital"):
        rows.drop(columns="hospital").to_parquet(folder / "visits" / f"H{hospital}.parquet")
    return folder / "visits"


SOURCES = {"a file": one_file, "partitions": partitioned, "a file per client": file_per_client}


@pytest.mark.parametrize("kind", SOURCES)
def test_rows_are_those_of_the_table_in_memory(kind: str, tmp_path: Path) -> None:
    source = SOURCES[kind](tmp_path)
    client = None if kind == "a file per client" else "hospital"
    stored = tacit.Population.from_parquet(tmp_path / "clients", source, client=client, **OPTIONS)
    memory = tacit.Task.from_table(source, client=client, test=0, **OPTIONS)
    names = [json.loads(line) for line in (tmp_path / "clients" / "names.jsonl").read_text().splitlines()]
    assert sorted(names) == sorted(memory.population.names)
    for number, name in enumerate(names):
        x, y = memory.population[memory.population.names.index(name)]
        assert torch.equal(stored[number][0], x)
        assert torch.equal(stored[number][1], y)
    assert Encoding.read(tmp_path / "clients" / "encoding.json").preprocessing == memory.preprocessing
    assert {path.name for path in (tmp_path / "clients").iterdir()} == {
        *("x", "y", "offsets", "indices", "names.jsonl", "population.json", "encoding.json")
    }


def test_persons_are_those_of_the_table_in_memory(tmp_path: Path) -> None:
    frame = FRAME.assign(name=[f"P{number}" for number in RANDOM.integers(0, 40, ROWS)])
    options = {"target": "died", "client": "hospital", "person": "name"}
    stored = tacit.Population.from_parquet(tmp_path / "clients", one_file(tmp_path, frame), **options)
    memory = tacit.Task.from_table(frame, test=0, **options).population
    names = [json.loads(line) for line in (tmp_path / "clients" / "names.jsonl").read_text().splitlines()]
    assert stored.persons is not None
    assert memory.persons is not None
    assert stored.unit is memory.unit is Unit.PERSON
    assert stored.x.shape == memory.x.shape  # the ids are no input
    own = dict(zip(memory.names, torch.split(memory.persons, memory.sizes.tolist()), strict=True))
    for name, numbers in zip(names, torch.split(stored.persons, stored.sizes.tolist()), strict=True):
        assert torch.equal(numbers, own[name])
    task = tacit.Task.from_table(tmp_path / "clients", target="died", test=frame[:20])
    method = tacit.methods.dp_fedsgd(rounds=1, size=20, epsilon=3, delta=1e-5)
    assert "every person" in str(tacit.train(method, task, workers=1).privacy)


def test_rows_of_nobody_are_refused(tmp_path: Path) -> None:
    frame = FRAME.assign(name=["", *FRAME["name"][1:]])
    with pytest.raises(tacit.DataError, match="the person 'name' in every row"):
        tacit.Population.from_parquet(
            tmp_path / "p", one_file(tmp_path, frame), client="hospital", target="died", person="name"
        )
    assert not (tmp_path / "p").exists()


def test_a_task_of_the_folder_trains_from_disk(tmp_path: Path) -> None:
    folder = tmp_path / "clients"
    tacit.Population.from_parquet(folder, one_file(tmp_path), client="hospital", **OPTIONS)
    task = tacit.Task.from_table(folder, target="died", test=FRAME[:50], public=FRAME[:20])
    assert isinstance(task.population.x, StoredTensor)
    run = tacit.train(tacit.methods.fedavg(rounds=1, cohort=5), task, workers=1)
    assert "balanced_accuracy" in run.metrics
    assert task.encoding is not None
    assert run.model(task.encoding.inputs(FRAME[:3])).shape == (3, 1)
    assert task.not_covered[0].startswith("Preprocessing used the clients' rows")
    assert tacit.Task.from_table(folder, target="died").test is None


def test_clients_keep_the_order_in_which_they_appear(tmp_path: Path) -> None:
    rows = pandas.DataFrame({"id": ["b", "a", "b", "c", "a"], "n": [1, 2, 3, 4, 5], "y": [0, 1, 0, 1, 0]})
    rows.to_parquet(tmp_path / "t.parquet")
    found = tacit.Population.from_parquet(tmp_path / "p", tmp_path / "t.parquet", client="id", target="y")
    assert (tmp_path / "p" / "names.jsonl").read_text() == '"b"\n"a"\n"c"\n'
    assert [round(4 * float(n)) + 1 for n in found.x[:, 0]] == [1, 3, 2, 5, 4]


def test_identifiers_that_float64_mixes_up_are_different_clients(tmp_path: Path) -> None:
    """Also in memory: 2**60 and 2**60 + 1 were one client."""
    ids = [2**60, 2**60 + 1] * 3
    rows = pandas.DataFrame({"id": ids, "n": range(6), "y": [0, 1, 0, 1, 1, 0]})
    rows.to_parquet(tmp_path / "t.parquet")
    rows.to_csv(tmp_path / "t.csv", index=False)
    found = tacit.Population.from_parquet(tmp_path / "p", tmp_path / "t.parquet", client="id", target="y")
    assert found.sizes.tolist() == [3, 3]
    for source in (rows, tmp_path / "t.csv", tmp_path / "t.parquet", {name: rows[name].tolist() for name in rows}):
        task = tacit.Task.from_table(source, client="id", target="y", test=0)
        assert task.population.names == tuple(map(str, ids[:2]))


@pytest.mark.parametrize("rows", [1, 50, 51, 999])
def test_places(rows: int, tmp_path: Path) -> None:
    clients = [f"c{number}" for number in RANDOM.integers(0, max(1, rows // 7), rows)]
    order = RowPlaces(tmp_path, rows)
    for begin in range(0, rows, 64):
        order.add(clients[begin : begin + 64])
    places = order.finish(tmp_path / "offsets")
    offsets = np.fromfile(tmp_path / "offsets", np.int64)
    expected = sorted(range(rows), key=lambda row: (clients.index(clients[row]), row))
    assert np.argsort(places).tolist() == expected
    sizes = [clients.count(name) for name in dict.fromkeys(clients)]
    assert np.diff(offsets).tolist() == sizes


@pytest.mark.parametrize(
    ("change", "options", "words"),
    [
        ({"died": [None, *FRAME["died"][1:]]}, {}, r"the target 'died' in every row .*rows 1 to 64, but 1 of 64 rows"),
        ({"hospital": [*FRAME["hospital"][:-1], None]}, {}, "the client 'hospital' in every row"),
        (
            {"age": [*FRAME["age"][:-1], np.inf]},
            {},
            r"numbers in column 'age' of .*rows 257 to 300, got infinity",
        ),
        ({}, {"drop": []}, "at most 100 categories in column 'name'"),
        ({"died": [1] * ROWS}, {}, "different values of 'died' .*got only '1'"),
        ({}, {"client": "hospitl"}, "Did you mean 'hospital'"),
        ({}, {"client": None}, "that names the client, got none"),
        ({}, {"test": 0.2}, "got 'test'"),
        ({"parts": [[1, 2]] * ROWS}, {}, "column 'parts' .*got "),
    ],
)
def test_refusals_leave_no_folder(change: dict[str, Any], options: dict[str, Any], words: str, tmp_path: Path) -> None:
    source = one_file(tmp_path, FRAME.assign(**change))
    with pytest.raises(tacit.UserError, match=words):
        tacit.Population.from_parquet(tmp_path / "p", source, **{"client": "hospital", **OPTIONS, **options})
    assert not (tmp_path / "p").exists()


def test_other_sources_are_refused(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,b\n1,2\n")
    (tmp_path / "t.parquet").write_text("x")
    for name, words in (
        ("t.csv", "a Parquet file"),
        ("t.parquet", "Expected a readable Parquet file"),
        ("u.parquet", "u"),
    ):
        with pytest.raises(tacit.UserError, match=words):
            tacit.Population.from_parquet(tmp_path / "p", tmp_path / name, client="a", target="b")
    with pytest.raises(tacit.UserError, match="Expected a new folder"):
        tacit.Population.from_parquet(tmp_path, tmp_path / "t.parquet", client="a", target="b")


def test_what_is_encoded_cannot_be_encoded_otherwise(tmp_path: Path) -> None:
    folder = tmp_path / "clients"
    tacit.Population.from_parquet(folder, one_file(tmp_path), client="hospital", **OPTIONS)
    with pytest.raises(tacit.DataError, match=r"Expected the target 'died', .*got 'age'"):
        tacit.Task.from_table(folder, target="age")
    for option in ({"client": "hospital"}, {"drop": ["age"]}, {"kind": "number"}, {"split": "clients"}):
        with pytest.raises(tacit.DataError, match=f"Expected no {next(iter(option))} for .*encoded already"):
            tacit.Task.from_table(folder, target="died", **option)
    (folder / "encoding.json").unlink()
    with pytest.raises(tacit.DataError, match=r"the population on disk .*Population\.open"):
        tacit.Task.from_table(folder, target="died")


def test_constants_may_be_declared(tmp_path: Path) -> None:
    book = tmp_path / "book.toml"
    book.write_text('[numbers]\nage = [0, 200]\n[categories]\nsex = ["f", "m"]\n')
    source = one_file(tmp_path, FRAME[["hospital", "age", "sex", "died"]])
    options: dict[str, Any] = {"client": "hospital", "target": "died", "encoding": book, "classes": ["0", "1"]}
    found = tacit.Population.from_parquet(tmp_path / "p", source, **options)
    assert Encoding.read(tmp_path / "p" / "encoding.json").preprocessing.source == "public"
    assert 0.05 < float(found.x[:, 0].max()) <= 0.45


@pytest.mark.law("memory and time")
def test_memory_depends_neither_on_rows_nor_on_clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight times as many rows, each a client of its own: their places alone would take 280 kB more."""
    monkeypatch.setattr(parquet_population, "BATCH", 1000)
    monkeypatch.setattr(row_places, "ROWS_OF_A_BUCKET", 500)
    monkeypatch.setattr(row_places, "_CHUNK", 1000)
    peaks = []
    for rows in (5_000, 40_000):
        table = pyarrow.table({"id": np.arange(rows) * 7, "n": np.arange(rows) % 50, "y": np.arange(rows) % 2})
        parquet.write_table(table, tmp_path / f"{rows}.parquet", row_group_size=1000)
        del table
        tracemalloc.start()
        found = tacit.Population.from_parquet(
            tmp_path / str(rows), tmp_path / f"{rows}.parquet", client="id", target="y"
        )
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert len(found) == rows
    assert peaks[1] < peaks[0] + 40_000  # bytes
