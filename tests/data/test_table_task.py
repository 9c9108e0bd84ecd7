"""Tables as people have them become tasks, or are refused with the sentence that helps."""

import builtins
import datetime
import gzip
import subprocess
import sys
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import polars
import pyarrow
import pytest
import torch
from torch import nn

import tacit
from tacit.data.tables import read_table

ROWS = 60
RANDOM = np.random.default_rng(0)
COLUMNS: dict[str, list[Any]] = {
    "hospital": [f"H{number % 5}" for number in range(ROWS)],
    "age": RANDOM.integers(20, 90, ROWS).tolist(),
    "sex": ["f", "m", "m"] * 20,
    "died": (RANDOM.random(ROWS) < 0.4).astype(int).tolist(),
}


def frame(**others: Any) -> pandas.DataFrame:
    return pandas.DataFrame({**COLUMNS, **others})


def text(separator: str = ",", **others: Any) -> str:
    columns = {**COLUMNS, **others}
    lines = [separator.join(columns), *(separator.join(map(str, row)) for row in zip(*columns.values(), strict=True))]
    return "\n".join(lines) + "\n"


def written(folder: Path, content: str | bytes, name: str = "patients.csv") -> Path:
    data = content.encode() if isinstance(content, str) else content
    (folder / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return folder / name


def parquet(folder: Path) -> Path:
    frame().to_parquet(folder / "patients.parquet")
    return folder / "patients.parquet"


def folder_of(folder: Path, kind: str) -> Path:
    for name, part in frame().groupby("hospital"):
        rows = part.drop(columns="hospital")
        rows.to_csv(folder / f"{name}.csv", index=False) if kind == "csv" else rows.to_parquet(
            folder / f"{name}.parquet"
        )
    (folder / "readme.md").write_text("not a table")
    return folder


WORKS: dict[str, Callable[[Path], Any]] = {
    "CSV": lambda folder: written(folder, text()),
    "CSV as a string": lambda folder: str(written(folder, text())),
    "CSV with gzip": lambda folder: written(folder, text(), "patients.csv.gz"),
    "semicolons and decimal commas": lambda folder: written(
        folder, text(";", age=[f"{age},5" for age in COLUMNS["age"]])
    ),
    "tabs": lambda folder: written(folder, text("\t"), "patients.tsv"),
    "byte-order mark": lambda folder: written(folder, b"\xef\xbb\xbf" + text().encode()),
    "Windows": lambda folder: written(folder, text().replace("\n", "\r\n")),
    "UTF-16": lambda folder: written(folder, text().encode("utf-16")),
    "quotes": lambda folder: written(folder, text(sex=['"f, ""x"""', '"m"', "m"] * 20)),
    "empty lines": lambda folder: written(folder, text() + "\n\n"),
    "Parquet": parquet,
    "a folder of CSV": lambda folder: folder_of(folder, "csv"),
    "a folder of Parquet": lambda folder: folder_of(folder, "parquet"),
    "pandas": lambda _: frame(),
    "pandas with categories": lambda _: frame().astype({"sex": "category", "died": "boolean"}),
    "pandas with its own types": lambda _: frame().convert_dtypes(),
    "Polars": lambda _: polars.DataFrame(COLUMNS),
    "pyarrow": lambda _: pyarrow.table(COLUMNS),
    "a dictionary": lambda _: COLUMNS,
    "records": lambda _: frame().to_dict("records"),
    "frames by client": lambda _: {str(n): part.drop(columns="hospital") for n, part in frame().groupby("hospital")},
}


@pytest.mark.parametrize("kind", WORKS)
def test_every_kind_of_table_gives_the_same_task(kind: str, tmp_path: Path) -> None:
    source = WORKS[kind](tmp_path)
    client = None if "folder" in kind or kind == "frames by client" else "hospital"
    task = tacit.Task.from_table(source, client=client, target="died")
    same = tacit.Task.from_table(COLUMNS, client="hospital", target="died")
    assert task.population.names == ("H0", "H1", "H2", "H3", "H4")
    assert task.population.x.shape == (ROWS, 3)
    assert torch.equal(task.population[2][1].sort(0).values, same.population[2][1].sort(0).values)
    assert isinstance(task.loss, tacit.BinaryCrossEntropy)
    if "folder" not in kind and "by client" not in kind:  # others have the rows in another order
        assert torch.allclose(task.population.x, same.population.x)


def test_from_a_csv_file_to_a_model_with_a_guarantee_in_five_lines(tmp_path: Path) -> None:
    path = written(tmp_path, text())
    task = tacit.Task.from_table(path, client="hospital", target="died", test=0.2)
    with pytest.warns(UserWarning, match=r"samples 100 clients .* there are 5: .*Sampling does not lower ε"):
        run = tacit.train(tacit.methods.fl_std_dp(rounds=3, epsilon=4.0), task, workers=1)
    assert run.privacy.proved
    assert any("minima, maxima and categories are those of all training rows" in s for s in run.privacy.not_covered)
    assert any(sentence.startswith("Held-out metrics") for sentence in run.privacy.not_covered)
    assert task.encoding is not None
    assert run.model(task.encoding.inputs(frame()[:3])).shape == (3, 1)


def test_missing_values_dates_and_numbers_that_are_categories() -> None:
    rows = frame(
        day=pandas.date_range("2020-01-01", periods=ROWS, tz="UTC"), ward=[1, 2, 3] * 20, weight=[None, 70.5, 80] * 20
    )
    rows.loc[3, "sex"] = None
    task = tacit.Task.from_table(rows, client="hospital", target="died", categories=["ward"], test=0)
    columns = task.population.x.T
    assert len(columns) == 10  # age, day, weight and whether it is missing, sex of three kinds, three wards
    assert float(columns.min()) == 0.0
    assert float(columns.max()) == 1.0
    assert "Dates are numbers of days: day." in task.notes


@pytest.mark.parametrize(
    ("target", "loss", "outputs"),
    [
        (["a", "b", "c"] * 20, tacit.CrossEntropy(), 3),
        ([True, False, True] * 20, tacit.BinaryCrossEntropy(), 1),
        (["yes", "no", "no"] * 20, tacit.BinaryCrossEntropy(), 1),
        ([0.5, 2.25, 7.0] * 20, tacit.MeanSquared(), 1),
        (list(range(ROWS)), tacit.MeanSquared(), 1),
    ],
)
def test_the_target_decides_about_loss_and_model(target: list[Any], loss: object, outputs: int) -> None:
    task = tacit.Task.from_table(frame(died=target), client="hospital", target="died")
    assert task.loss == loss
    assert float(task.population.y.float().max()) == (2 if outputs == 3 else 1)
    run = tacit.train(tacit.methods.fedavg(rounds=1, cohort=5), task, workers=1)
    assert run.model(task.population.x[:2]).shape == (2, outputs)


def test_models_of_ones_own() -> None:
    for model, shape in (
        (lambda inputs, outputs: nn.Linear(inputs, outputs), (2, 1)),
        (nn.Linear(3, 2), (2, 2)),
        (lambda: nn.Linear(3, 2), (2, 2)),
    ):
        task = tacit.Task.from_table(COLUMNS, client="hospital", target="died", model=model)
        run = tacit.train(tacit.methods.fedavg(rounds=1, cohort=5), task, workers=1)
        assert run.model(task.population.x[:2]).shape == shape


def test_constants_may_be_public_or_declared(tmp_path: Path) -> None:
    public = tacit.Task.from_table(COLUMNS, client="hospital", target="died", public=frame()[:20])
    assert public.preprocessing.source == "public"
    assert not any("Preprocessing" in sentence for sentence in public.not_covered)
    (tmp_path / "book.toml").write_text('[numbers]\nage = [0, 200]\n[categories]\nsex = ["f", "m"]\n')
    declared = tacit.Task.from_table(COLUMNS, client="hospital", target="died", encoding=tmp_path / "book.toml")
    assert declared.not_covered[0].startswith("Preprocessing used the clients' rows: the values of 'died'")
    book = tmp_path / "book.toml"
    clean = tacit.Task.from_table(COLUMNS, client="hospital", target="died", encoding=book, classes=["0", "1"])
    assert clean.preprocessing.source == "public"
    assert torch.equal(clean.population.y, declared.population.y)
    assert float(declared.population.x[:, 0].max()) <= 0.45
    (tmp_path / "book.toml").write_text("[numbers]\nage = [0, 200]\n")
    with pytest.raises(tacit.UserError, match="it lacks sex"):
        tacit.Task.from_table(COLUMNS, client="hospital", target="died", encoding=tmp_path / "book.toml")


def test_held_out_rows_are_of_every_client_or_of_whole_clients_or_a_table() -> None:
    rows = tacit.Task.from_table(COLUMNS, client="hospital", target="died", test=0.25)
    assert rows.population.sizes.tolist() == [9] * 5
    assert torch.bincount(torch.as_tensor(rows.owners)).tolist() == [3] * 5
    clients = tacit.Task.from_table(COLUMNS, client="hospital", target="died", split="clients")
    assert len(clients.population) == 4
    assert not any("Held-out" in sentence for sentence in clients.not_covered)
    assert tacit.Task.from_table(COLUMNS, client="hospital", target="died", test=0).test is None
    other = tacit.Task.from_table(COLUMNS, client="hospital", target="died", test=frame()[:7])
    assert len(other.test[1]) == 7
    lonely = tacit.Task.from_table(frame(hospital=["A"] + ["B"] * 59), client="hospital", target="died", test=0.5)
    assert lonely.population.sizes.tolist() == [1, 29]


def test_random_public_rows_depend_on_no_data() -> None:
    one = tacit.Task.from_table(COLUMNS, client="hospital", target="died")
    two = tacit.Task.from_table(frame(age=COLUMNS["age"][::-1]), client="hospital", target="died")
    assert torch.equal(one.public[0], two.public[0])
    assert torch.equal(one.public[1], two.public[1])
    assert any("No public rows were given" in note for note in one.notes)


REFUSED: dict[str, tuple[Callable[[Path], Any], dict[str, Any], str]] = {
    "no client column": (lambda _: frame(), {"client": None}, "that names the client, got none; it has hospital, age"),
    "a client column and a folder": (lambda f: folder_of(f, "csv"), {}, "each of its files is a client"),
    "another column": (lambda _: frame(), {"client": "hospitl"}, "column 'hospitl', .*Did you mean 'hospital'"),
    "a missing target": (
        lambda _: frame(died=[None, *COLUMNS["died"][1:]]),
        {},
        r"1 of 60 rows have none \(.* row 1\)",
    ),
    "a missing client": (lambda _: frame(hospital=[None] * 60), {}, "the client 'hospital' in every row"),
    "one class": (lambda _: frame(died=[0] * 60), {}, "different values of 'died' .*only '0' in 60 rows"),
    "an identifier": (
        lambda _: {k: v * 3 for k, v in COLUMNS.items()} | {"name": [f"P{n}" for n in range(180)]},
        {},
        r"column 'name' .*got 180, .*drop=\['name'\] .*--drop name",
    ),
    "no rows": (lambda _: frame()[:0], {}, "to have rows, got 4 columns and no rows"),
    "no inputs": (lambda _: frame()[["hospital", "died"]], {}, "columns beside 'hospital' and 'died', got none"),
    "equal names": (lambda _: pandas.concat([frame(), frame()], axis=1), {}, "more than once"),
    "equal names in CSV": (lambda f: written(f, "a,a\n1,2\n"), {}, "has a more than once"),
    "no header": (lambda f: written(f, "1,2,3\n4,5,6\n"), {}, "got numbers. Add a header"),
    "an empty file": (lambda f: written(f, ""), {}, "got an empty file"),
    "a short line": (lambda f: written(f, text() + "H1,3\n"), {}, "4 cells in line 62 .* got 2"),
    "Latin-1": (lambda f: written(f, "höhe,b\n1,2\n".encode("latin1")), {}, "in UTF-8, .*iconv"),
    "no such file": (lambda f: f / "nothing.csv", {}, "nothing.csv, which does not exist"),
    "a spreadsheet": (lambda f: written(f, "x", "patients.xlsx"), {}, "Save it as CSV"),
    "a damaged Parquet file": (
        lambda f: written(f, "x", "patients.parquet"),
        {},
        "Expected a readable Parquet file",
    ),
    "damaged gzip": (lambda f: Path(f / "a.csv.gz").write_bytes(b"no") and f / "a.csv.gz", {}, "a readable table"),
    "gzip without its name": (
        lambda f: written(f, gzip.compress(b"a,b"), "a.csv"),
        {},
        "which is compressed. Name it a.csv.gz",
    ),
    "an empty folder": (lambda f: f, {"client": None}, "one CSV or Parquet file per client .*got none"),
    "infinity": (lambda _: frame(age=[np.inf] * 60), {}, "column 'age' of the table, got infinity in row 1"),
    "person and target": (lambda _: frame(), {"person": "died"}, "different columns as person and target .*'died'"),
    "one column as both": (lambda _: frame(), {"client": "died"}, "different columns as client and target .*'died' as"),
    "a target that is dropped": (
        lambda _: frame(),
        {"drop": ["died"]},
        "'died' of the table either as target or in drop",
    ),
    "lists": (lambda _: frame(parts=[[1, 2]] * 60), {}, r"column 'parts' of the table, got list .*drop=\['parts'\]"),
    "a list of tables": (lambda _: [frame(), frame()], {"client": None}, "a list of 2 tables. Write a dictionary"),
    "an index": (lambda _: frame().set_index("hospital"), {}, r"column 'hospital', .*frame.reset_index\(\)"),
    "JSON": (lambda f: written(f, "{}", "patients.json"), {}, r"CSV or Parquet file, got .*patients.json. Convert it"),
    "an option that is misspelt": (lambda _: frame(), {"tset": 0.3}, "got 'tset'. Did you mean 'test'"),
    "a number": (lambda _: 3, {}, "Expected a table: .* got int"),
    "a fraction": (lambda _: frame(), {"test": 1.5}, "test=1.5 to be a fraction"),
    "encoding without public rows": (lambda _: frame(), {"encoding": "public"}, "Give public"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_refused(kind: str, tmp_path: Path) -> None:
    make, options, words = REFUSED[kind]
    with pytest.raises(tacit.UserError, match=words):
        tacit.Task.from_table(make(tmp_path), **{"client": "hospital", "target": "died", **options})


def test_clients_with_other_columns_are_named(tmp_path: Path) -> None:
    folder_of(tmp_path, "csv")
    (tmp_path / "H3.csv").write_text("age,died\n3,1\n")
    with pytest.raises(tacit.DataError, match=r"the same columns in all files of .*, but sex is not in H3\.csv\."):
        tacit.Task.from_table(tmp_path, target="died")


def test_no_library_of_frames_is_imported_for_csv(tmp_path: Path) -> None:
    path = written(tmp_path, text())
    code = (
        f"import sys, tacit; tacit.Task.from_table({str(path)!r}, client='hospital', target='died'); "
        "sys.exit(any(name in sys.modules for name in ('pandas', 'polars', 'pyarrow')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_parquet_without_pyarrow_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = builtins.__import__

    def without(name: str, *args: Any, **options: Any) -> Any:
        if name.startswith("pyarrow"):
            raise ImportError(name)
        return original(name, *args, **options)

    path = parquet(tmp_path)
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(tacit.DataError, match=r"pip install 'tacit-fl\[data\]'"):
        read_table(path)


@pytest.mark.parametrize(
    ("column", "inputs"),
    [
        (pandas.to_timedelta([12.0, None] * 30, unit="h"), 2),
        (pandas.Categorical(["low", "high", None] * 20, categories=["low", "high"], ordered=True), 3),
        ([datetime.time(3, number % 2) for number in range(60)], 2),
        ([Decimal("1.5"), Decimal(2)] * 30, 1),
        (pandas.date_range("2020-01-01", periods=60, tz="Europe/Rome"), 1),
    ],
    ids=["durations", "ordered categories", "times", "exact numbers", "dates with a time zone"],
)
def test_columns_of_other_kinds(column: Any, inputs: int) -> None:
    task = tacit.Task.from_table(frame(more=column), client="hospital", target="died")
    assert task.population.x.shape[1] == 3 + inputs
    assert float(task.population.x.min()) == 0
    assert float(task.population.x.max()) == 1


def test_columns_that_differ_in_kind_between_files_are_texts(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("seen,died\n2020-01-01,0\n,1\n")
    (tmp_path / "b.csv").write_text("seen,died\n3,0\n4,1\n")
    (tmp_path / "c.csv").write_text("seen,died\n,0\n")
    assert read_table(tmp_path).columns["seen"].tolist() == ["2020-01-01", None, "3", "4", None]


def test_durations_are_days() -> None:
    table = read_table({"stay": np.array([36, "NaT"], "m8[h]"), "age": [1, 2]})
    found = read_table(pandas.DataFrame({"stay": pandas.to_timedelta([36, None], unit="h")})).columns["stay"]
    assert found[0] == 1.5
    assert np.isnan(found[1])
    assert table.rows == 2


def test_names_that_are_numbers_and_single_names() -> None:
    table = frame(name="x").set_axis([0, 1, 2, 3, "name"], axis=1)
    task = tacit.Task.from_table(table, client=0, target=3, drop="name")  # type: ignore[arg-type]
    assert task.population.x.shape[1] == 3
    assert any("Categories: 2 (2 values)." in note for note in task.notes)


def test_a_record_batch() -> None:
    batch = pyarrow.Table.from_pandas(frame()).to_batches()[0]
    assert len(tacit.Task.from_table(batch, client="hospital", target="died").population) == 5


def _folder(path: Path, **contents: str) -> Path:
    for name, content in contents.items():
        (path / f"{name}.csv").write_text(content)
    return path


def test_all_problems_of_a_table_are_reported_together(tmp_path: Path) -> None:
    """Two columns with hundreds of values, and an infinite number: one error."""
    rows = "\n".join(f"code{row},ward{row % 150},{'inf' if row == 7 else row % 60},{row % 2}" for row in range(300))
    folder = _folder(tmp_path, A=f"code,ward,age,died\n{rows}\n", B=f"code,ward,age,died\n{rows}\n")
    with pytest.raises(tacit.DataError) as caught:
        tacit.Task.from_table(folder, target="died")
    said = str(caught.value)
    assert "column 'code' of" in said
    assert "got 300, such as 'code0', 0 of them in at least 10 rows. Declare those that matter in an encoding" in said
    assert "column 'ward' of" in said
    assert "infinity" in said


def test_dropped_columns_need_not_be_in_all_files(tmp_path: Path) -> None:
    first, second = "age,died,note\n50,0,a\n60,1,b\n70,0,c\n", "age,died\n40,1\n30,0\n20,1\n"
    folder = _folder(tmp_path, A=first, B=second, C=second)
    with pytest.raises(tacit.DataError, match=r"but note is not in B\.csv, C\.csv\."):
        tacit.Task.from_table(folder, target="died")
    assert len(tacit.Task.from_table(folder, target="died", drop=["note"]).population) == 3


def test_a_declared_column_that_some_files_lack_is_missing_there(tmp_path: Path) -> None:
    """The encoding declares it, so that a misspelt name is not taken for missing values."""
    folder = _folder(tmp_path, A="age,bp,died\n50,120,0\n60,130,1\n70,110,0\n", B="age,died\n40,1\n30,0\n20,1\n")
    with pytest.raises(tacit.DataError, match=r"bp is not in B\.csv\. Leave such columns out \(drop\), or declare"):
        tacit.Task.from_table(folder, target="died")
    book = tmp_path / "book.toml"
    book.write_text('indicators = ["bp"]\n[numbers]\nage = [0, 100]\nbp = [50, 250]\n')
    task = tacit.Task.from_table(folder, target="died", encoding=book, test=None)
    assert task.encoding is not None
    column = task.encoding.names.index("bp")
    assert task.population[1][0][:, column].unique().numel() == 1
    _folder(tmp_path, B="age,pressure,died\n40,120,1\n30,110,0\n")
    with pytest.raises(tacit.DataError, match=r"but pressure is not in A\.csv"):
        tacit.Task.from_table(folder, target="died", encoding=book)
