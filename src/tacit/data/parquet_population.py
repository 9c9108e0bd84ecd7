"""A population on disk from Parquet files that need not fit into memory: two passes, some rows at a time.

The first pass computes the place of every row (`row_places`) and a sketch of the columns for the encoding
(`_sketch`). The second encodes the rows and writes them to their places in the files that `population_files`
describes. Memory depends neither on the number of rows nor on that of clients. Beside the population are the encoding
of the rows, `encoding.json`, and the clients' names in order, `names.jsonl`.
"""

import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.core import files
from tacit.core.keys import Key
from tacit.core.schema import check_names
from tacit.core.serialization import write_json
from tacit.data.data_frames import Columns
from tacit.data.encoding import ENCODING, Encoding
from tacit.data.parquet_files import count_rows, record_batches
from tacit.data.population import Population
from tacit.data.population_files import PERSON_IDS, PopulationForm, form_of, open_population
from tacit.data.row_places import RowPlaces, digests
from tacit.data.table_task import (
    MAX_CATEGORIES,
    TableSettings,
    build_model,
    client_column,
    input_columns,
    make_encoding,
    public_samples,
)
from tacit.data.tables import (
    CLIENT,
    DESCRIPTION,
    PARQUET,
    Table,
    check_not_in_files,
    check_same_columns,
    clients_of,
    find_tables,
    is_missing,
    is_partitioned,
    partition_columns,
    read_table,
    stack_columns,
    table_files,
)
from tacit.errors import DataError, expect

_KEPT = 2 * MAX_CATEGORIES  # different values of a column, more than any limit on them
BATCH = 1 << 16  # rows that are in memory at a time
NAMES = "names.jsonl"
OPTIONS = ("public", "drop", "categories", "encoding", "kind", "classes", "person")  # those of `Task.from_table`
FIXED = ("client", "split", *OPTIONS[1:])  # settings that a task of a converted table cannot change


@dataclass(frozen=True, eq=False)
class ParquetRows:
    """The rows of Parquet files, some at a time.

    Attributes:
        name: what error messages call them.
        paths: the files.
        keys: columns from the names of folders or files, with one value for every file.
        client: the one of them that is the client, if every file is one.
    """

    name: str
    paths: list[Path]
    keys: Columns
    client: str = ""

    @classmethod
    def at(cls, source: Path) -> "ParquetRows":
        """A file, a folder with one file per client, or folders named COLUMN=VALUE."""
        if not source.is_dir():
            expect(source.name.endswith(PARQUET), f"a Parquet file ({', '.join(PARQUET)}) or a folder, got {source}")
            return cls(str(source), [source], {})
        if is_partitioned(source):
            paths = find_tables(source, PARQUET)
            expect(len(paths) > 0, f"Parquet files in the folders of {source}, got none")
            return cls(str(source), paths, partition_columns(source, paths))
        paths = [path for path in table_files(source) if path.name.endswith(PARQUET)]
        expect(len(paths) > 0, f"Parquet files in {source}, got none")
        clients = np.array(list(clients_of(paths)), dtype=object)
        return cls(str(source), paths, {CLIENT: clients}, CLIENT)

    def count(self) -> int:
        return sum(map(count_rows, self.paths))

    def batches(self) -> Iterator[Table]:
        """Tables of at most `BATCH` rows, with the same columns."""
        first: Table | None = None
        for number, path in enumerate(self.paths):
            begin = 0
            for batch in record_batches(path, BATCH):
                rows = read_table(batch, f"{path}, rows {begin + 1} to {begin + batch.num_rows}")
                check_not_in_files(self.keys, rows)
                first = first or rows
                check_same_columns(first, rows)
                repeated = {key: np.repeat(values[number : number + 1], rows.rows) for key, values in self.keys.items()}
                yield Table(rows.name, rows.columns | repeated, self.client)
                begin += rows.rows


def convert_parquet(
    folder: Path | str, source: Path | str, *, target: str, client: str | None = None, **options: Any
) -> Population:
    """Write the rows of Parquet files to a new folder, encoded and sorted by client; `Population.from_parquet`."""
    check_names(options, OPTIONS, "Population.from_parquet")
    settings = TableSettings(target=target, client=client, **options)
    rows = ParquetRows.at(Path(source))
    with _new_folder(Path(folder)) as place, tempfile.TemporaryDirectory(dir=place, prefix="sorting-") as scratch:
        sketch, places, name = _first_pass(rows, settings, Path(scratch), place)
        inputs = [each for each in sketch.columns if each not in (name, settings.target)]
        encoding = make_encoding(sketch, name, inputs, settings, np.arange(sketch.rows), settings.public_table)
        form = _second_pass(rows, encoding, places, place)
        del places
    files.write(place / ENCODING, encoding.to_bytes())
    files.write(place / DESCRIPTION, write_json(asdict(form)))
    return open_population(place)


@contextmanager
def _new_folder(folder: Path) -> Iterator[Path]:
    """A new folder, which is removed if something fails."""
    expect(not folder.exists(), f"a new folder for a population, but {folder} exists", "Choose another one.")
    folder.mkdir(parents=True)
    try:
        yield folder
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _first_pass(
    rows: ParquetRows, settings: TableSettings, scratch: Path, place: Path
) -> tuple[Table, NDArray[np.int64], str]:
    """The sketch of all rows, the place of each row, and the column of the client."""
    places, client = RowPlaces(scratch, rows.count()), ""
    inputs: list[str] = []
    sketch: Columns = {}
    try:
        for table in rows.batches():
            if not client:
                client = client_column(table, settings.client)
                inputs = input_columns(table, client, settings)
            for role, name in (("target", settings.target), ("client", client)):
                table.check_known(name, role)
            if settings.person is not None:
                _check_persons(table, settings.person)
            places.add(table.texts(client))
            for name in (*inputs, settings.target):
                table.check_finite(name)
                before = [sketch[name]] if name in sketch else []
                sketch[name] = _sketch(stack_columns([*before, table.columns[name]]))
    finally:
        places.close()
    expect(bool(client), f"{rows.name} to have rows, got none")
    longest = max(map(len, sketch.values()))  # shorter columns repeat their values
    table = Table(rows.name, {name: np.resize(column, longest) for name, column in sketch.items()})
    return table, places.finish(place / "offsets"), client


def _second_pass(rows: ParquetRows, encoding: Encoding, places: NDArray[np.int64], place: Path) -> PopulationForm:
    """Encode all rows and write them to their places."""
    client, person = encoding.client, encoding.person
    offsets: NDArray[np.int64] = np.memmap(place / "offsets", np.int64, "r")
    arrays: dict[str, NDArray[Any]] = {}
    begin = 0
    with (place / NAMES).open("w") as names, (place / "indices").open("wb") as indices:
        for table in rows.batches():
            parts: dict[str, NDArray[Any]] = dict(
                zip("xy", (part.numpy() for part in encoding.samples(table)), strict=True)
            )
            if person:
                parts[PERSON_IDS] = digests(table.texts(person))[:, 0].view(np.int64)
            end = begin + table.rows
            targets = places[begin:end]
            for name, part in parts.items():
                if name not in arrays:
                    arrays[name] = np.memmap(place / name, part.dtype, "w+", shape=(len(places), *part.shape[1:]))
                arrays[name][targets] = part
            first = offsets[np.searchsorted(offsets, targets)] == targets
            texts = table.texts(client)
            names.writelines(f"{json.dumps(texts[row])}\n" for row in np.flatnonzero(first))
            indices.write(np.arange(begin, end).tobytes())
            begin = end
    if person:
        _number_persons(arrays[PERSON_IDS], offsets)
    for array in arrays.values():
        array.flush()  # type: ignore[attr-defined]
    return PopulationForm(len(offsets) - 1, begin, form_of(arrays["x"]), form_of(arrays["y"]), persons=bool(person))


def _check_persons(table: Table, person: str) -> None:
    """Raise `DataError` unless every row has a person."""
    table.check_known(person, "person")
    if "" in table.texts(person):
        raise DataError(f"Expected the person {person!r} in every row of {table.name}, but some are empty. Fill them.")


def _number_persons(ids: NDArray[np.int64], offsets: NDArray[np.int64]) -> None:
    """Replace 64 bits of the ids of persons by numbers within their client, in the order in which they appear.

    Two persons of a client whose bits are the same would be protected as one.
    """
    for begin, end in pairwise(offsets):  # numbers on disk, of which few are in memory
        _, first, which = np.unique(ids[begin:end], return_index=True, return_inverse=True)
        ids[begin:end] = np.argsort(np.argsort(first))[which]


def is_converted(source: object) -> bool:
    """Whether this is a folder with a converted table."""
    return isinstance(source, str | Path) and all((Path(source) / name).is_file() for name in (ENCODING, DESCRIPTION))


def population_arguments(source: Any, settings: TableSettings) -> dict[str, Any]:
    """The arguments of a task from a converted table; no rows are held out."""
    folder, encoding = Path(source), Encoding.read(Path(source) / ENCODING)
    _check_fixed(folder, settings, encoding.known_target.name)
    population = open_population(folder)
    test = settings.test_table
    loss = encoding.known_target.loss if settings.loss is None else settings.loss
    return {
        "model": build_model(settings.model, population.x.shape[1], encoding.known_target.outputs),
        "clients": population,
        "test": None if test is None else encoding.samples(test),
        "loss": loss,
        "public": public_samples(encoding, settings.public_table, Key.from_seed(settings.seed, "table"), None),
        "name": settings.name or folder.name,
        "preprocessing": encoding.preprocessing,
        "test_overlap": "coincidental",
        "encoding": encoding,
        "notes": (
            f"{folder}: {len(population)} clients with {len(population.x)} rows; {population.x.shape[1]} inputs.",
            "No rows of these clients are held out: metrics need a table of their own (test=...).",
        ),
    }


def _check_fixed(folder: Path, settings: TableSettings, target: str) -> None:
    if settings.target != target:
        raise DataError(
            f"Expected the target {target!r}, for which {folder} was converted, got {settings.target!r}. "
            "Convert the table again."
        )
    for field in fields(TableSettings):
        if field.name in FIXED and getattr(settings, field.name) != field.default:
            raise DataError(
                f"Expected no {field.name} for {folder}, got {getattr(settings, field.name)!r}: its rows are encoded "
                "already. Leave it out, or convert the table again."
            )


def _sketch(column: NDArray[Any]) -> NDArray[Any]:
    """The values on which an encoding depends: all, or of many the least ones and the largest, and a missing one."""
    absent = is_missing(column)
    values = np.unique(column[~absent])
    if len(values) > _KEPT:
        fractions = values[values != np.round(values)][:1] if values.dtype.kind == "f" else values[:0]
        values = np.unique(np.concatenate([values[:_KEPT], values[-1:], fractions]))
    return np.concatenate([values, column[absent][:1]])
