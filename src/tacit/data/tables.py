"""Users' tables: CSV and Parquet files, frames of pandas, Polars or pyarrow, folders with one per client.

CSV files are read without any other library: with commas, semicolons (and then decimal commas), tabs or bars, with a
byte-order mark or without, compressed by gzip or not. Parquet files need pyarrow, which is in the extra `data`. Names
of folders may hold columns, as Hive and Spark write them: `hospital=3/part.parquet`.
"""

import csv
import gzip
import io
import math
import re
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
from numpy.typing import NDArray

from tacit.core.schema import list_names
from tacit.data.data_frames import (
    Columns,
    check_columns,
    columns_of,
    find_column,
    is_columns,
    is_frame,
    is_number,
    replace_missing,
)
from tacit.data.parquet_files import read_parquet
from tacit.data.written_numbers import EXACT, plain_column, plain_number, read_numbers
from tacit.errors import DataError

MISSING = ("", "?", "na", "n/a", "nan", "null", "none", "-", ".")
_LONGEST_MISSING = max(map(len, MISSING))
_ROWS_AT_ONCE = 4096  # rows of a CSV file
MAX_BYTES = 1 << 32  # of a CSV file, decompressed
MAX_RATIO, MIN_UNPACKED = 200, 1 << 24  # bytes for each byte of a compressed file, and in any case
HIVE_MISSING = "__HIVE_DEFAULT_PARTITION__"
SEPARATORS = ",;\t|"
PARQUET = (".parquet", ".pq")
SUFFIXES = (".csv", ".tsv", ".txt", ".csv.gz", ".tsv.gz", *PARQUET)
OTHERS = (".json", ".jsonl", ".feather", ".arrow", ".zip", ".bz2", ".xz", ".zst", ".7z", ".pkl", ".h5", ".sav", ".dta")
DESCRIPTION = "population.json"  # of a population on disk
CLIENT = "client"  # the column that names the file, where a folder has one per client
_NO_DAY = int(np.datetime64("NaT", "D").astype(np.int64))
_DATE = re.compile(r"\d{4}-\d\d-\d\d([ T]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:?\d\d)?)?")


@dataclass(frozen=True, eq=False)
class Table:
    """Columns of equal length: numbers (NaN: missing), dates, or strings (None: missing).

    Attributes:
        name: for error messages.
        columns: by name.
        client: the column that names the client, if the table comes from one file per client.
        ambiguous_columns: columns of strings that may be numbers, each with the error message for such a use.
        lacking: columns that some of its files do not have, each with these files; their values there are missing.
    """

    name: str
    columns: Columns
    client: str = ""
    ambiguous_columns: Mapping[str, str] = field(default_factory=dict)
    lacking: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def check_complete(self, besides: Collection[str] = ()) -> None:
        """Raise `DataError`, which names all of them, if some of its files lack a column that is not among these."""
        lacking = {name: files for name, files in self.lacking.items() if name not in besides}
        if lacking:
            named = "; ".join(f"{name} is not in {_some_of(files)}" for name, files in lacking.items())
            raise DataError(
                f"Expected the same columns in all files of {self.name}, but {named}. Leave such columns out (drop), "
                "or declare them in an encoding: then they are missing values in these files."
            )

    @property
    def rows(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    def column(self, name: str, role: str) -> NDArray[Any]:
        """An unchanged column; raises `DataError`, which names its role, if there is no such column."""
        return self.columns[find_column(self.columns, name, self.name, role)]

    def has_dates(self, name: str) -> bool:
        return bool(self.columns[name].dtype.kind == "M")

    def with_dates(self, name: str) -> "Table":
        """The same, with a column of strings that are all dates converted to dates, as in a CSV file."""
        if self.column(name, "input").dtype.kind != "O":
            return self
        texts = self.texts(name)
        values = dict.fromkeys(texts)
        column = _infer_type(texts, values, [text for text in values if not _is_gone(text)])
        return replace(self, columns={**self.columns, name: column})

    def texts(self, name: str) -> list[str]:
        """A column as categories; missing values are empty."""
        return as_texts(self.columns[name])

    def numbers(self, name: str) -> NDArray[np.float64]:
        """A column of numbers, or of dates as days since 1970; missing values are NaN."""
        column = self.column(name, "input")
        if self.has_dates(name):
            return np.where(np.isnat(column), np.nan, column.astype("M8[D]").astype(np.float64))
        if column.dtype.kind == "O":
            self.check_readable(name)
            example = next((value for value in column if value is not None), None)
            raise DataError(f"Expected numbers in column {name!r} of {self.name}, got texts such as {example!r}.")
        self.check_finite(name)
        return column.astype(np.float64)

    def check_known(self, name: str, role: str) -> None:
        """Raise `DataError` if a column has missing values."""
        absent = np.flatnonzero(is_missing(self.column(name, role)))
        if len(absent):
            raise DataError(
                f"Expected the {role} {name!r} in every row of {self.name}, but {len(absent)} of {self.rows} rows have "
                f"none (the first is row {absent[0] + 1}). Remove or fill them."
            )

    def check_readable(self, name: str) -> None:
        """Raise `DataError` if the values of a column may be numbers in more than one way."""
        if name in self.ambiguous_columns:
            raise DataError(self.ambiguous_columns[name])

    def check_finite(self, name: str) -> None:
        """Raise `DataError` if a column of numbers has infinite ones."""
        if problem := self.infinity(name):
            raise DataError(problem)

    def infinity(self, name: str) -> str:
        """Where a column of numbers has infinite ones, a sentence; empty: it has none."""
        column = self.columns[name]
        if column.dtype.kind != "f" or not np.isinf(column).any():
            return ""
        row = int(np.flatnonzero(np.isinf(column))[0]) + 1
        return f"Expected finite numbers in column {name!r} of {self.name}, got infinity in row {row}."


def read_table(source: Any, name: str = "the table", *, partial: bool = False) -> Table:
    """A table from a file or a folder, a frame, a dictionary of columns or of tables, or a list of rows.

    `partial`: whether some of several files may lack columns, which the caller then checks (`Table.check_complete`).

    Example:
        >>> read_table({"age": [40, None], "sex": ["f", "m"]}).columns["age"].tolist()
        [40.0, nan]
    """
    if isinstance(source, Table):
        return source
    table = _read(source, name)
    if not partial:
        table.check_complete()
    return table


def _read(source: Any, name: str) -> Table:
    if isinstance(source, str | Path):
        return _from_path(Path(source))
    if is_frame(source):
        return _make_table(name, columns_of(source, name))
    if is_columns(source) and all(is_frame(part) or isinstance(part, str | Path) for part in source.values()):
        return _of_clients(name, {key: read_table(part, f"the table of {key!r}") for key, part in source.items()})
    if isinstance(source, Sequence) and source and all(isinstance(row, Mapping) for row in source):
        keys = list(dict.fromkeys(key for row in source for key in row))
        source = {key: [row.get(key) for row in source] for key in keys}
        check_columns(list(map(str, source)), name)
        source = {str(key): values for key, values in source.items()}
    if is_columns(source):
        columns = {key: np.array(list(values), dtype=object) for key, values in source.items()}
        return _make_table(name, {key: replace_missing(column) for key, column in columns.items()})
    if isinstance(source, list | tuple) and source and all(map(is_frame, source)):
        raise DataError(
            f"Expected the clients' names with their tables, got a {type(source).__name__} of {len(source)} tables. "
            "Write a dictionary: {'Rome': table0, 'Oslo': table1}."
        )
    raise DataError(
        f"Expected a table: a CSV or Parquet file, a folder of them, a frame of pandas or Polars, or a dictionary of "
        f"columns, got {type(source).__name__}."
    )


def is_missing(column: NDArray[Any]) -> NDArray[np.bool_]:
    """A mask of the missing values of a column."""
    if column.dtype.kind == "f":
        return np.asarray(np.isnan(column))
    if column.dtype.kind == "M":
        return np.asarray(np.isnat(column))
    if column.dtype.kind == "O":
        return np.fromiter((value is None for value in column.tolist()), np.bool_, len(column))
    return np.zeros(len(column), dtype=bool)


def as_texts(column: NDArray[Any]) -> list[str]:
    """The values of a column as categories; missing ones are empty."""
    if column.dtype.kind == "O":
        return ["" if value is None else value if type(value) is str else text_of(value) for value in column.tolist()]
    values, which = np.unique(column, return_inverse=True)
    texts = values.astype(str) if column.dtype.kind == "M" else values
    distinct = [
        "" if absent else text_of(text) for text, absent in zip(texts.tolist(), is_missing(values), strict=True)
    ]
    return [distinct[place] for place in which.tolist()]


def factorize(column: NDArray[Any]) -> tuple[list[str], NDArray[np.int64]]:
    """The distinct texts of a column in order, and for each row the index of its text.

    Example:
        >>> factorize(np.array([10.0, 9.0, np.nan, 9.0]))
        (['', '10', '9'], array([1, 2, 0, 2]))
    """
    if column.dtype.kind == "O":
        places: dict[Any, int] = {}
        which = np.fromiter((places.setdefault(value, len(places)) for value in column.tolist()), np.int64, len(column))
        distinct = np.fromiter(places, object, len(places))
    else:
        distinct, which = np.unique(column, return_inverse=True)
    texts = as_texts(distinct)
    values = sorted(set(texts))
    code = {value: index for index, value in enumerate(values)}
    return values, np.array([code[text] for text in texts], dtype=np.int64)[which]


def _from_path(path: Path) -> Table:
    if path.is_dir():
        return _from_folder(path)
    if not path.exists():
        raise DataError(f"Expected a CSV or Parquet file or a folder of them, got {path}, which does not exist.")
    if path.suffix in PARQUET:
        return _make_table(str(path), columns_of(read_parquet(path), str(path)))
    if path.suffix in (".xlsx", ".xls"):
        raise DataError(f"Expected a CSV or Parquet file, got the spreadsheet {path}. Save it as CSV.")
    if path.suffix in OTHERS:
        raise DataError(
            f"Expected a CSV or Parquet file, got {path}. Convert it, or read it yourself and give the frame: "
            "tacit.Task.from_table(frame, ...)."
        )
    parsed = parse_table(_content(path), str(path))
    return replace(_make_table(parsed.name, parsed.columns), ambiguous_columns=parsed.ambiguous_columns)


def _from_folder(folder: Path) -> Table:
    if is_partitioned(folder):
        return _from_partitions(folder)
    if (folder / DESCRIPTION).exists():
        raise DataError(
            f"Expected a table, got the population on disk {folder}. Give it to tacit.Task.from_table or --data, as it "
            "is, if tacit data convert wrote it; otherwise use tacit.Population.open."
        )
    files = table_files(folder)
    return _of_clients(str(folder), {client: _from_path(path) for client, path in clients_of(files).items()})


def table_files(folder: Path) -> list[Path]:
    """The tables directly in a folder, one per client."""
    files = sorted(path for path in folder.iterdir() if path.name.endswith(SUFFIXES) and not path.name.startswith("."))
    if not files:
        raise DataError(
            f"Expected one CSV or Parquet file per client in {folder}, got none ({', '.join(SUFFIXES)}). Folders in it "
            "are read if they are named COLUMN=VALUE, such as hospital=3."
        )
    return files


def clients_of(paths: Sequence[Path]) -> dict[str, Path]:
    """The file of each client; raises `DataError` if two files are one client's, of which one would be lost."""
    by_client: dict[str, Path] = {}
    for path in paths:
        other = by_client.setdefault(path.name.split(".")[0], path)
        if other is not path:
            raise DataError(
                f"Expected one file per client in {path.parent}, but {other.name} and {path.name} have the same name "
                "before the first dot, which is the client. Rename one of them, or join them."
            )
    return by_client


def _from_partitions(folder: Path) -> Table:
    """One table of all files in folders named COLUMN=VALUE, with these columns."""
    files = find_tables(folder, SUFFIXES)
    if not files:
        raise DataError(f"Expected CSV or Parquet files in the folders of {folder}, got none ({', '.join(SUFFIXES)}).")
    return _join(str(folder), [_from_path(path) for path in files], partition_columns(folder, files))


def check_not_in_files(keys: Iterable[str], table: Table) -> None:
    """Raise `DataError` if a file has a column of the same name as one from its folder or its name."""
    for key in keys:
        if key in table.columns:
            source = "the file's name is the client" if key == CLIENT else "a folder's name says it"
            raise DataError(f"Expected no column {key!r} in {table.name}: {source}. Rename it.")


def _of_clients(name: str, tables: Mapping[str, Table]) -> Table:
    """Tables of clients as one, with a column for the client."""
    return _join(name, list(tables.values()), {CLIENT: np.array(list(tables), dtype=object)}, CLIENT)


def _join(name: str, tables: Sequence[Table], more: Columns, client: str = "") -> Table:
    """Join tables, whose values in columns that they lack are missing, and add columns with one value for each."""
    for table in tables:
        check_not_in_files(more, table)
    rows = [table.rows for table in tables]
    names = dict.fromkeys(key for table in tables for key in table.columns)
    columns = {key: stack_columns([table.columns.get(key, _absent(table)) for table in tables]) for key in names}
    columns |= {key: np.repeat(values, rows) for key, values in more.items()}
    without = {key: tuple(table.name for table in tables if key not in table.columns) for key in names}
    return Table(
        name,
        columns,
        client,
        {key: text for table in tables for key, text in table.ambiguous_columns.items()},
        {key: files for key, files in without.items() if files},
    )


def _some_of(files: Sequence[str]) -> str:
    more = f" and {len(files) - 3} more" if len(files) > 3 else ""
    return f"{list_names([Path(file).name for file in files[:3]])}{more}"


def _absent(table: Table) -> NDArray[np.float64]:
    return np.full(table.rows, np.nan)


def check_same_columns(first: Table, table: Table) -> None:
    """Raise `DataError` unless two tables have the same columns, in any order."""
    lacking, more = set(first.columns) - set(table.columns), set(table.columns) - set(first.columns)
    if lacking or more:
        wrong = f"lacks {list_names(sorted(lacking))}" if lacking else f"also has {list_names(sorted(more))}"
        raise DataError(f"Expected the columns of {first.name} in {table.name}, but it {wrong}.")


def stack_columns(parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """One column from those of several tables; where they differ in kind, all values are strings."""
    kinds = {part.dtype for part in parts if not is_missing(part).all()} or {np.dtype(np.float64)}
    if len(kinds) > 1:
        return np.concatenate([_as_strings(part) for part in parts])
    (kind,) = kinds
    blank = {"O": None, "M": np.datetime64("NaT")}.get(kind.kind, np.nan)
    return np.concatenate([np.full(len(part), blank, kind) if is_missing(part).all() else part for part in parts])


def _as_strings(part: NDArray[Any]) -> NDArray[Any]:
    texts = [None if absent else text for text, absent in zip(as_texts(part), is_missing(part), strict=True)]
    return np.array(texts, dtype=object)


def text_of(value: object) -> str:
    """A value as a category: whole numbers without a fraction.

    Example:
        >>> text_of(3.0), text_of(2.5), text_of(True), text_of("m")
        ('3', '2.5', '1', 'm')
    """
    if isinstance(value, bool | np.bool_):
        return str(int(value))
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _content(path: Path) -> bytes:
    try:
        packed = path.suffix == ".gz"
        most = min(MAX_BYTES, MAX_RATIO * path.stat().st_size + MIN_UNPACKED) if packed else MAX_BYTES
        with gzip.open(path) if packed else path.open("rb") as stream:
            content = stream.read(most + 1)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise DataError(f"Expected a readable table, got {path}: {error}.") from error
    if len(content) > MAX_BYTES:
        raise DataError(f"Expected at most {MAX_BYTES >> 30} GiB in {path}. Use memory-mapped arrays: numpy.load.")
    if len(content) > most:
        raise DataError(
            f"Expected {path} to have at most {MAX_RATIO} times its size when it is decompressed, got more. If you "
            f"trust it, decompress it: gunzip {path.name}."
        )
    if content[:2] == b"\x1f\x8b":
        raise DataError(f"Expected a CSV file, got {path}, which is compressed. Name it {path.name}.gz.")
    if content[:4] == b"PAR1":
        raise DataError(f"Expected a CSV file, got {path}, a Parquet file. Name it {path.stem}.parquet.")
    return content


def parse_table(content: bytes, name: str) -> Table:
    r"""The columns of a CSV file; separators, decimal commas, numbers and dates are recognised.

    Example:
        >>> table = parse_table(b"\xef\xbb\xbfage;sex\n40,5;f\n;m\n", "patients.csv").columns
        >>> table["age"].tolist(), table["sex"].tolist()
        ([40.5, nan], ['f', 'm'])
    """
    text = _decode(content, name)
    texts = _columns(text, name)
    values = {title: dict.fromkeys(column) for title, column in texts.items()}
    present = {title: [text for text in each if not _is_gone(text)] for title, each in values.items()}
    numbers, ambiguous_columns = read_numbers(present, name, semicolons=_separator(text) == ";")
    columns = {title: _infer_type(texts[title], values[title], present[title], numbers.get(title)) for title in texts}
    return Table(name, columns, ambiguous_columns=ambiguous_columns)


def parse_texts(content: bytes, name: str) -> dict[str, list[str]]:
    """The columns of a CSV file as strings, without surrounding spaces."""
    return _columns(_decode(content, name), name)


def original_texts(source: Any) -> dict[str, list[str]]:
    """The columns of a CSV file as strings; of any other source, none."""
    path = Path(source) if isinstance(source, str | Path) else Path()
    return parse_texts(_content(path), str(path)) if path.is_file() and not path.name.endswith(PARQUET) else {}


def _separator(text: str) -> str:
    return max(SEPARATORS, key=text.partition("\n")[0].count)


def _columns(text: str, name: str) -> dict[str, list[str]]:
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=_separator(text))
    columns: list[list[str]] = []
    line = 2
    try:
        names = [cell.strip() for cell in next(rows, [])]
        _check_header(names, name)
        columns = [[] for _ in names]
        while some := list(islice(rows, _ROWS_AT_ONCE)):  # transposed at once: many long-lived rows would be slow
            full = [row for row in some if any(map(str.strip, row))]
            _check_cells(full, len(names), line, name)
            for column, cells in zip(columns, zip(*full, strict=True), strict=False):
                column.extend(map(str.strip, cells))
            line += len(full)
    except csv.Error as error:
        raise DataError(f"Expected {name} to be a table with commas, semicolons or tabs: {error}.") from error
    return dict(zip(names, columns, strict=True))


def _check_cells(rows: Sequence[Sequence[str]], width: int, line: int, name: str) -> None:
    """Raise `DataError` unless all rows have as many cells as the header; `line` is the number of the first of them."""
    wrong = next((number for number, row in enumerate(rows, start=line) if len(row) != width), None)
    if wrong is not None:
        got = len(rows[wrong - line])
        raise DataError(f"Expected {width} cells in line {wrong} of {name}, as in its header, got {got}.")


def _decode(content: bytes, name: str) -> str:
    wide = content[:2] in (b"\xff\xfe", b"\xfe\xff")
    try:
        return content.decode("utf-16" if wide else "utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(
            f"Expected {name} in UTF-8, got another encoding (byte {error.start}). Convert it: iconv -f latin1 "
            f"-t utf-8 {name}."
        ) from error


def _check_header(names: Sequence[str], name: str) -> None:
    if not any(names):
        raise DataError(f"Expected {name} to have a header and rows, got an empty file.")
    if all(plain_number(cell) is not None for cell in names):
        raise DataError(f"Expected the names of the columns in the first line of {name}, got numbers. Add a header.")
    check_columns(names, name)


def _is_gone(text: str) -> bool:
    return len(text) <= _LONGEST_MISSING and text.lower() in MISSING


def _infer_type(
    texts: Sequence[str],
    values: dict[str, Any],
    present: Sequence[str],
    numbers: Sequence[float] | None = None,
) -> NDArray[Any]:
    """A column of strings, as dates if all that are present are, or with these numbers for those that are.

    Args:
        texts: the column.
        values: its different texts, as keys, with the value None; overwritten.
        present: those of them that are not missing.
        numbers: the number of each of those; None: they are no numbers.
    """
    gone = filter(_is_gone, values)
    if numbers is not None:
        values.update(dict.fromkeys(gone, math.nan))
        values.update(zip(present, numbers, strict=True))
        return np.fromiter(map(values.__getitem__, texts), np.float64, len(texts))
    if all(map(_DATE.fullmatch, present)):
        with suppress(ValueError):  # such as the 31st of February
            days = np.array([text[:10] for text in present], "M8[D]").astype(np.int64)
            values.update(dict.fromkeys(gone, _NO_DAY))
            values.update(zip(present, days.tolist(), strict=True))
            return np.fromiter(map(values.__getitem__, texts), np.int64, len(texts)).astype("M8[D]")
    values.update(zip(present, present, strict=True))
    return np.fromiter(map(values.__getitem__, texts), object, len(texts))


def _make_table(name: str, columns: Columns) -> Table:
    lengths = {len(column) for column in columns.values()}
    if not columns or lengths == {0}:
        raise DataError(f"Expected {name} to have rows, got {len(columns)} columns and no rows.")
    if len(lengths) > 1:
        raise DataError(f"Expected columns of equal length in {name}, got {sorted(lengths)}.")
    for key, column in columns.items():
        example = next((value for value in column if value is not None), None) if column.dtype.kind == "O" else None
        if isinstance(example, list | tuple | dict | set | np.ndarray) or column.ndim > 1:
            raise DataError(
                f"Expected a number, a date or a text in every row of column {key!r} of {name}, got "
                f"{type(example).__name__} such as {str(example)[:40]}. Make columns of its parts, or drop it: "
                f"drop=[{key!r}]."
            )
    return Table(name, {key: _plain(column) for key, column in columns.items()})


def _plain(column: NDArray[Any]) -> NDArray[Any]:
    """Numbers as float64, dates as days, anything else as strings."""
    if column.dtype.kind in "iu" and len(column) and max(int(column.max()), -int(column.min())) > EXACT:
        return column.astype(str).astype(object)  # identifiers, which are not distinct as numbers
    if column.dtype.kind in "biuf":
        return column.astype(np.float64)
    if column.dtype.kind == "M":
        return column.astype("M8[D]")
    if column.dtype.kind == "m":  # durations, in days
        return np.where(np.isnat(column), np.nan, column / np.timedelta64(1, "D"))
    if {str} <= set(map(type, column.tolist())) <= {str, type(None)}:
        return column
    present = [value for value in column if value is not None]
    if all(map(is_number, present)) and not any(isinstance(value, int) and abs(value) > EXACT for value in present):
        return np.array([np.nan if value is None else value for value in column], dtype=np.float64)
    if present and all(hasattr(value, "isoformat") and hasattr(value, "year") for value in present):
        return np.array(["NaT" if value is None else value.isoformat()[:10] for value in column], "M8[D]")
    return np.array([None if value is None else text_of(value) for value in column], dtype=object)


def is_partitioned(folder: Path) -> bool:
    """Whether a folder has folders named COLUMN=VALUE."""
    return any("=" in path.name and path.is_dir() for path in folder.iterdir())


def find_tables(folder: Path, endings: tuple[str, ...]) -> list[Path]:
    """The tables in a folder and in its folders named COLUMN=VALUE, at any depth, in the order of their paths."""
    paths: list[Path] = []
    for path in sorted(folder.iterdir()):
        if path.name.startswith((".", "_")):  # such as _SUCCESS, which Spark writes
            continue
        if path.is_dir() and "=" in path.name:
            paths += find_tables(path, endings)
        elif path.is_file() and path.name.endswith(endings):
            paths.append(path)
    return paths


def partition_columns(folder: Path, files: Sequence[Path]) -> Columns:
    """The columns in the names of folders, with one value for every file: numbers, if all of them are."""
    values = [_values_in(path.relative_to(folder)) for path in files]
    for path, each in zip(files, values, strict=True):
        if each.keys() != values[0].keys():
            raise DataError(
                f"Expected folders of the same names in {folder}, but {files[0].relative_to(folder)} has "
                f"{list_names(values[0]) or 'none'} and {path.relative_to(folder)} has {list_names(each) or 'none'}."
            )
    texts = {key: [each[key] for each in values] for key in values[0]} if values else {}
    columns: Columns = {}
    for key, column in texts.items():
        numbers = plain_column([text for text in column if text is not None])
        remaining = iter(numbers or ())
        if numbers is None:
            columns[key] = np.array(column, dtype=object)
        else:
            columns[key] = np.array([np.nan if text is None else next(remaining) for text in column])
    return columns


def _values_in(path: Path) -> dict[str, str | None]:
    parts = [part.partition("=") for part in path.parts[:-1]]
    check_columns([unquote(key) for key, _, _ in parts], f"the folders of {path}")
    return {unquote(key): None if value == HIVE_MISSING else unquote(value) for key, _, value in parts}
