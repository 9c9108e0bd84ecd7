"""Tables that would fill the memory, take hours or lose a column: refused with a sentence, naming what is wrong."""

import gzip
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tacit.data import Population, Task
from tacit.data.data_frames import MAX_COLUMNS
from tacit.data.parquet_files import read_parquet, record_batches
from tacit.data.tables import parse_table, read_table
from tacit.data.tensors import to_tensor
from tacit.errors import DataError, UserError
from tacit.federation.site.data import TableSource


def parquet(path: Path, columns: dict[str, Any], **options: Any) -> Path:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow.parquet import write_table

    write_table(pyarrow.table(columns), path, **options)
    return path


@pytest.mark.parametrize("dictionary", [True, False])
def test_a_small_parquet_file_that_is_gigabytes_of_text_is_refused(tmp_path: Path, dictionary: bool) -> None:
    """A text of a megabyte in every row: 40 GB with a dictionary, and 4.5 GB that compress well without."""
    pyarrow = pytest.importorskip("pyarrow")
    if dictionary:
        column: Any = pyarrow.DictionaryArray.from_arrays(pyarrow.array(np.zeros(40_000, np.int32)), ["x" * 1_000_000])
    else:
        column = pyarrow.chunked_array([pyarrow.array(["x" * 1_000_000] * 100)] * 45)
    path = parquet(tmp_path / "t.parquet", {"a": column}, use_dictionary=dictionary, compression="zstd")
    assert path.stat().st_size < 4 << 20
    tracemalloc.start()
    before = pyarrow.total_allocated_bytes()
    with pytest.raises(DataError, match="at most 4 GiB in memory"):
        read_table(path)
    assert pyarrow.total_allocated_bytes() - before < 1 << 28
    assert tracemalloc.get_traced_memory()[1] < 1 << 26
    tracemalloc.stop()
    if dictionary:
        with pytest.raises(DataError, match="at most 1 GiB in memory"):
            next(record_batches(path, 1 << 16))


def test_parquet_with_more_numbers_than_fit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = parquet(tmp_path / "t.parquet", {"a": np.zeros(2_000_000), "b": np.zeros(2_000_000)})
    assert path.stat().st_size < 100_000
    monkeypatch.setattr("tacit.data.parquet_files.MAX_TABLE_BYTES", 1 << 21)
    with pytest.raises(DataError, match="Write fewer rows or columns"):
        read_parquet(path)


def test_texts_of_parquet_are_read_as_before(tmp_path: Path) -> None:
    columns = {
        "a": ["x", None, "y", "x"],
        "b": [1.5, 2, None, 4],
        "c": ["2020-01-01", "2020-01-02", None, "2020-01-01"],
    }
    table = read_table(parquet(tmp_path / "t.parquet", columns, row_group_size=2))
    assert table.texts("a") == ["x", "", "y", "x"]
    assert table.columns["b"].tolist()[:2] == [1.5, 2.0]
    assert table.with_dates("c").has_dates("c")


def test_a_gzip_bomb_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.csv.gz"
    path.write_bytes(gzip.compress(b"a,b\n" + b"1,1\n" * (25 << 20)))
    assert path.stat().st_size < 1 << 20
    with pytest.raises(DataError, match="at most 200 times its size when it is decompressed"):
        read_table(path)
    usual = tmp_path / "u.csv.gz"
    usual.write_bytes(gzip.compress(b"a,b\n" + b"1,1\n" * 10_000))
    assert read_table(usual).rows == 10_000


@pytest.mark.law("memory and time")
@pytest.mark.parametrize("cell", ["1.5", "abc", '"1,5"', "7 %", "2020-01-31"])
def test_time_grows_with_the_number_of_columns(cell: str) -> None:
    def seconds(count: int) -> float:
        names = ",".join(f"column-{number}" for number in range(count))
        content = f"{names}\n{','.join([cell] * count)}\n{','.join([cell] * count)}\n".encode()
        times = []
        for _ in range(3):
            began = time.process_time()
            parse_table(content, "t.csv")
            times.append(time.process_time() - began)
        return min(times)

    assert seconds(16_000) < 30 * seconds(2_000)  # the square would be 64


def test_too_many_columns_are_refused_at_once() -> None:
    content = (",".join(f"c{number}" for number in range(10**6)) + "\n" + ",".join(["1"] * 10**6)).encode()
    with pytest.raises(DataError, match=f"at most {MAX_COLUMNS} columns in t.csv, got 1000000"):
        parse_table(content, "t.csv")
    with pytest.raises(DataError, match=r"has a, b more than once\. Rename"):
        parse_table(b"a,b,a,b\n1,2,3,4\n", "t.csv")


def _folder(*names: str) -> Callable[[Path], object]:
    def read(path: Path) -> object:
        for name in names:
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_text("x,y\n1,2\n3,4\n")
        return read_table(path)

    return read


TWICE: dict[str, tuple[Callable[[Path], object], str]] = {
    "names that differ as objects": (lambda _: read_table([{1: 2, "1": 3}]), "has 1 more than once"),
    "clients by their files": (_folder("rome.csv", "rome.b.csv"), r"rome\.b\.csv and rome\.csv have the same name"),
    "folders": (_folder("a=1/a=2/t.csv", "a=1/a=3/t.csv"), "the folders of .* has a more than once"),
    "a folder and a column": (_folder("x=1/t.csv"), "Expected no column 'x'"),
}


@pytest.mark.parametrize("name", TWICE)
def test_no_column_is_lost_because_it_occurs_twice(tmp_path: Path, name: str) -> None:
    read, expected = TWICE[name]
    with pytest.raises(DataError, match=expected):
        read(tmp_path)


def test_parquet_clients_are_not_joined_by_accident(tmp_path: Path) -> None:
    for name in ("rome.parquet", "rome.b.parquet"):
        parquet(tmp_path / name, {"x": [1.0, 2.0], "y": [0, 1]})
    with pytest.raises(DataError, match="have the same name before the first dot"):
        Population.from_parquet(tmp_path / "out", tmp_path, target="y")


def test_a_number_that_is_no_class_is_none() -> None:
    table = {"x": [1.0, 2.0, 3.0, 4.0], "y": [0.0, 1e30, 1.0, 1e30], "c": ["a", "a", "b", "b"]}
    with pytest.raises(UserError, match="classes of 'y' in the table as texts, or as numbers up to 2"):
        Task.from_table(table, target="y", client="c", kind="classes")
    for large in ([0, 10**30], np.array([0, 2**64 - 1], np.uint64)):
        with pytest.raises(DataError, match="Expected whole numbers below 2\\^63 for the targets"):
            to_tensor(large, "the targets")
    assert to_tensor(np.array([0, 7], np.uint64), "the targets").dtype is torch.int64


def test_a_site_says_so_of_its_table(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,b,a\n1,2,3\n")
    with pytest.raises(DataError, match="has a more than once"):
        TableSource(read_table(tmp_path / "t.csv"), "")
