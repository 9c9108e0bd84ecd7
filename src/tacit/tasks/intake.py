"""From a table with a column that names the client to a task: roles of columns, encoding, split, model.

Numbers are scaled to [0, 1] between a minimum and a maximum, with a column for missing ones; categories get a column
for each value; dates are numbers of days. These constants come from the clients' own rows (then no guarantee covers
them, and every guarantee says so), from public rows, or from a file that declares them (`Codebook`). Held-out rows are
the clients' own unless whole clients are held out, so their metrics are not covered either.
"""

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tacit.core.data_frames import find_column
from tacit.core.keys import Key
from tacit.core.losses import BinaryCrossEntropy, CrossEntropy, MeanSquared
from tacit.core.schema import listed
from tacit.core.task import Population, Preprocessing, Samples, Task
from tacit.errors import DataError, expect
from tacit.tasks.medical import Codebook, PatientTable
from tacit.tasks.models import mlp
from tacit.tasks.partition import by_key
from tacit.tasks.tables import Table, as_dates, missing, read_table, text_of

__all__ = ["Table", "TableEncoder", "read_table", "table", "task_from_table"]

MOST_CATEGORIES = 100  # different values of a column that is not an identifier
MOST_CLASSES = 20  # different whole numbers of a target that is a class
PUBLIC_ROWS = 100  # random ones, if there are no public rows
HIDDEN = 32  # units of the default model
Kind = Literal["auto", "classes", "number"]


@dataclass(frozen=True, kw_only=True, eq=False)
class TableEncoder:
    """Rows of a table as inputs and targets, with constants that are fixed.

    Attributes:
        numbers: the columns of numbers; dates are days since 1970.
        categories: the columns of categories.
        codebook: minima, maxima and categories.
        target: the column to predict.
        classes: its values, in the order of their numbers; empty: it is a number, scaled between `limits`.
        limits: minimum and maximum of a target that is a number.
    """

    numbers: tuple[str, ...]
    categories: tuple[str, ...]
    codebook: Codebook
    target: str
    classes: tuple[str, ...]
    limits: tuple[float, float] = (0.0, 1.0)

    def __call__(self, source: Any) -> Tensor:
        """The inputs of new rows, for the trained model."""
        return self.inputs(read_table(source))

    def inputs(self, table: Table) -> Tensor:
        """One row of numbers per row of the table."""
        for name in (*self.numbers, *self.categories):
            find_column(table.columns, name, table.name, "input")
        columns = {name: _as_numbers(table, name) for name in self.numbers}
        texts = {name: _as_texts(table.columns[name]) for name in self.categories}
        return self.codebook.encode({**columns, **texts}).x  # type: ignore[dict-item]

    def samples(self, table: Table) -> Samples:
        """Inputs and targets."""
        return self.inputs(table), self.targets(table)

    def targets(self, table: Table) -> Tensor:
        """Class numbers (as 0.0 and 1.0 for two classes), or scaled numbers."""
        column = table.columns[find_column(table.columns, self.target, table.name, "target")]
        _check_known(table, self.target, "target")
        if not self.classes:
            low, high = self.limits
            return torch.tensor((_as_numbers(table, self.target) - low) / max(high - low, 1e-12)).float()[:, None]
        number = {value: code for code, value in enumerate(self.classes)}
        texts = _as_texts(column)
        unknown = sorted({text for text in texts if text not in number})
        if unknown:
            raise DataError(
                f"Expected {self.target!r} of {table.name} in {listed(self.classes)}, got {listed(unknown[:5])}."
            )
        codes = torch.tensor([number[text] for text in texts])
        return codes.float()[:, None] if len(self.classes) == 2 else codes

    @property
    def outputs(self) -> int:
        """The number of outputs that a model needs."""
        return len(self.classes) if len(self.classes) > 2 else 1

    @property
    def loss(self) -> object:
        """The loss that fits the target."""
        if not self.classes:
            return MeanSquared()
        return BinaryCrossEntropy() if len(self.classes) == 2 else CrossEntropy()

    def random(self, rows: int, key: Key) -> Samples:
        """Random rows within the constants, which depend on no data."""
        generator = key.public_generator()
        columns: list[Tensor] = []
        for name in self.codebook.numbers:
            columns.append(torch.rand(rows, 1, generator=generator))
            if self.codebook.indicators is None or name in self.codebook.indicators:
                columns.append(torch.zeros(rows, 1))
        for values in self.codebook.categories.values():
            chosen = torch.randint(max(len(values), 1), (rows,), generator=generator)
            columns.append(nn.functional.one_hot(chosen, max(len(values), 1))[:, : len(values)].float())
        classes = torch.randint(max(len(self.classes), 2), (rows,), generator=generator)
        y = classes if len(self.classes) > 2 else classes.float()[:, None]
        return torch.cat(columns, 1), y if self.classes else torch.rand(rows, 1, generator=generator)


def task_from_table(
    source: Any,
    *,
    client: str | None = None,
    target: str,
    test: Any = 0.2,
    public: Any = None,
    model: Any = None,
    loss: Any = None,
    drop: Sequence[str] = (),
    categories: Sequence[str] = (),
    encoding: str | Path | None = None,
    split: Literal["rows", "clients"] = "rows",
    kind: Kind = "auto",
    classes: Sequence[str] = (),
    patient: str | None = None,
    name: str = "",
    seed: int = 0,
) -> Task:
    """A task from a table; `Task.from_table` describes the arguments."""
    table = read_table(source)
    client = _client_column(table, client)
    given = {name: find_column(table.columns, name, table.name, "drop") for name in drop}
    for column, role in ((target, "target"), (client, "client"), *(((patient, "patient"),) if patient else ())):
        find_column(table.columns, column, table.name, role)
        _check_known(table, column, role)
    inputs = [each for each in table.columns if each not in (client, target, patient) and each not in given]
    if not inputs:
        raise DataError(f"Expected {table.name} to have columns beside {client!r} and {target!r}, got none.")
    names, parts = _clients(table, client)
    key = Key.from_seed(seed, "table")
    persons = np.array(_as_texts(table.columns[patient])) if patient else None
    rows = _split_rows(parts, test, split, key, persons) if isinstance(test, int | float) else _whole(parts)
    public_table = None if public is None else read_table(public, "the public table")
    values = _target(table if public_table is None else public_table, target, kind, tuple(map(str, classes)))
    encoder, found = _encoder(table, target, inputs, categories, values, rows.training, public_table, encoding)
    preprocessing = found if classes or public_table is not None else _with_target(found, target)
    x, y = encoder.samples(table)
    held, overlap = _held_out(rows, test, encoder, x, y, split)
    public_samples: Samples | None = (
        encoder.random(PUBLIC_ROWS, key) if public_table is None else encoder.samples(public_table)
    )
    sized = _sized_model(model, x.shape[1], encoder.outputs)
    loss = encoder.loss if loss is None else loss
    if isinstance(loss, BinaryCrossEntropy) and model is not None and _outputs_of(sized, x) == 2:
        loss = CrossEntropy()  # a model with an output for each of the two classes
    if not isinstance(loss, BinaryCrossEntropy) and len(encoder.classes) == 2:
        y, held, public_samples = y[:, 0].long(), _as_classes(held), _as_classes(public_samples)
    return Task(
        model=sized,
        clients=Population.split(x, y, rows.clients, [names[each] for each in rows.numbers]),
        test=held,
        owners=rows.owners if held is not None and isinstance(test, int | float) else None,
        loss=loss,
        public=public_samples,
        name=name or Path(table.name).name.split(".")[0],
        preprocessing=preprocessing,
        test_overlap=overlap,
        patient=None if persons is None else [persons[part.numpy()] for part in rows.clients],
        encoder=encoder,
        notes=tuple(_notes(table, encoder, rows, x, random_public=public_table is None)),
    )


def table(
    data: str = "",
    target: str = "",
    client: str | None = None,
    test: float = 0.2,
    public: str | None = None,
    drop: str = "",
    categories: str = "",
    encoding: str | None = None,
    split: Literal["rows", "clients"] = "rows",
    kind: Literal["auto", "classes", "number"] = "auto",
    classes: str = "",
    patient: str | None = None,
    hidden: int = HIDDEN,
    seed: int = 0,
) -> Task:
    """Your own table: a CSV or Parquet file with a column that names the client, or a folder with one file per client.

    Args:
        data: the file or the folder.
        target: the column to predict.
        client: the column that names the client; not for a folder.
        test: the fraction of each client's rows (or of the clients) that is held out.
        public: a file with public rows of the same columns; none: random rows, which depend on no data.
        drop: columns that are left out, separated by commas.
        categories: columns of numbers that are categories, separated by commas.
        encoding: a TOML file that declares minima, maxima and categories; `public`: those of the public rows; none:
            those of the clients' rows, which no guarantee covers.
        split: hold out `rows` of each client, or whole `clients`.
        kind: whether the target is one of several `classes` or a `number`; `auto`: by its values.
        classes: the values of a target with classes, separated by commas; empty: those in the rows, which no guarantee
            covers.
        patient: the column that says which rows are one person's; none: every row is a person of its own.
        hidden: units of the hidden layer of the model; 0: a linear model.
        seed: seed of the split.
    """
    expect(hidden >= 0, f"hidden={hidden} >= 0")
    expect(data != "", "a CSV or Parquet file or a folder of them", "Add --data FILE --client COLUMN --target COLUMN.")
    expect(target != "", f"the column of {data} to predict", "Add --target COLUMN.")

    def model(inputs: int, outputs: int) -> nn.Module:
        return mlp(inputs=inputs, hidden=hidden, outputs=outputs) if hidden else nn.Linear(inputs, outputs)

    return task_from_table(
        data,
        client=client,
        target=target,
        test=test,
        public=public,
        model=model,
        drop=_names(drop),
        categories=_names(categories),
        encoding=encoding,
        split=split,
        kind=kind,
        classes=_names(classes),
        patient=patient,
        name="table",
        seed=seed,
    )


@dataclass(frozen=True, eq=False)
class _Split:
    """The rows of each client that trains, and the held-out ones with the number of their client."""

    clients: list[Tensor]
    numbers: list[int]
    held_out: Tensor | None
    owners: Tensor | None

    @property
    def training(self) -> NDArray[np.int64]:
        rows: NDArray[np.int64] = torch.cat(self.clients).numpy()
        return rows


def _whole(parts: list[Tensor]) -> _Split:
    return _Split(parts, list(range(len(parts))), None, None)


def _as_classes(samples: Samples | None) -> Samples | None:
    """Two classes as the numbers 0 and 1."""
    return None if samples is None else (samples[0], samples[1][:, 0].long())


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _client_column(table: Table, client: str | None) -> str:
    if table.client:
        if client is not None:
            raise DataError(f"Expected no client column for {table.name}: each of its files is a client. Leave it out.")
        return table.client
    if client is None:
        raise DataError(
            f"Expected the column of {table.name} that names the client, got none; it has {listed(table.columns)}. Add "
            "client='...' (on the command line --client ...)."
        )
    return client


def _clients(table: Table, column: str) -> tuple[list[str], list[Tensor]]:
    texts = np.array(_as_texts(table.columns[column]))
    return [str(name) for name in np.unique(texts)], by_key(texts)


def _split_rows(
    parts: list[Tensor], test: float, split: str, key: Key, persons: NDArray[np.str_] | None = None
) -> _Split:
    """The rows of every client, without those of some; with `persons`, all rows of a person are held out or none."""
    expect(0 <= test < 1, f"test={test} to be a fraction in [0, 1)", "For a table of its own, give a file or a frame.")
    expect(split in ("rows", "clients"), f"split={split!r} to be 'rows' or 'clients'")
    if test == 0:
        return _whole(parts)
    generator = key.public_generator()
    if split == "clients":
        expect(len(parts) > 1, "several clients to hold out some of them, got one", "Use split='rows'.")
        order = torch.randperm(len(parts), generator=generator).tolist()
        count = min(max(1, round(test * len(parts))), len(parts) - 1)
        held, kept = sorted(order[:count]), sorted(order[count:])
        owners = torch.arange(count).repeat_interleave(torch.tensor([len(parts[each]) for each in held]))
        return _Split([parts[each] for each in kept], kept, torch.cat([parts[each] for each in held]), owners)
    divided = [_divided(part, test, None if persons is None else persons[part.numpy()], generator) for part in parts]
    rest, held = [each for each, _ in divided], [each for _, each in divided]
    held_out, counts = torch.cat(held), torch.tensor([len(each) for each in held])
    if len(held_out) == 0:
        return _whole(rest)
    return _Split(rest, list(range(len(parts))), held_out, torch.arange(len(parts)).repeat_interleave(counts))


def _divided(
    part: Tensor, test: float, persons: NDArray[np.str_] | None, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """The rows of a client that train, and those that are held out."""
    numbers = (
        torch.arange(len(part)) if persons is None else torch.from_numpy(np.unique(persons, return_inverse=True)[1])
    )
    order = torch.randperm(int(numbers.max()) + 1, generator=generator)
    count = min(round(test * len(order)), len(order) - 1)
    if persons is None:
        return part[order[count:]].sort().values, part[order[:count]]
    held = torch.isin(numbers, order[:count])
    return part[~held], part[held]


def _held_out(
    rows: _Split, test: Any, encoder: TableEncoder, x: Tensor, y: Tensor, split: str
) -> tuple[Samples | None, Literal["coincidental", "intended"]]:
    """The held-out samples, and whether they are the clients' own."""
    if not isinstance(test, int | float):
        return (None if test is None else encoder.samples(read_table(test, "the test table"))), "coincidental"
    if rows.held_out is None:
        return None, "coincidental"
    return (x[rows.held_out], y[rows.held_out]), "coincidental" if split == "clients" else "intended"


def _encoder(
    table: Table,
    target: str,
    inputs: Sequence[str],
    categories: Sequence[str],
    values: tuple[tuple[str, ...], tuple[float, float]],
    training: NDArray[np.int64],
    public: Table | None,
    encoding: str | Path | None,
) -> tuple[TableEncoder, Preprocessing]:
    """How rows become inputs and targets, and what that was computed from."""
    for name in categories:
        find_column(inputs, name, table.name, "categories")
    coded = tuple(name for name in inputs if name in categories or table.columns[name].dtype.kind == "O")
    numbers = tuple(name for name in inputs if name not in coded)
    source = public if public is not None and encoding in (None, "public") else table
    expect(encoding != "public" or public is not None, "public rows for encoding='public', got none", "Give public.")
    rows = training if source is table else np.arange(source.rows)
    classes, limits = values
    records = _records(source, numbers, coded)
    if encoding in (None, "public"):
        _check_categories(source, coded)
        book = Codebook.of_public(records, rows)
        gone = tuple(name for name in numbers if np.isnan(_as_numbers(source, name)[rows]).any())
        book = msgspec.structs.replace(book, indicators=gone)
        where = f"{len(rows)} public rows" if source is public else "all training rows"
    else:
        book, where = Codebook.declared(Path(encoding or ""), records), ""
    encoder = TableEncoder(
        numbers=numbers, categories=coded, codebook=book, target=target, classes=classes, limits=limits
    )
    if not where:
        detail = f"Minima, maxima and categories are declared to be public in {Path(encoding or '').name}."
        return encoder, Preprocessing("public", detail)
    detail = f"minima, maxima and categories are those of {where}."
    if source is public:
        return encoder, Preprocessing("public", detail.capitalize())
    return encoder, Preprocessing("private", f"{detail} A file that declares them (encoding=...) avoids it.")


def _records(table: Table, numbers: tuple[str, ...], coded: tuple[str, ...]) -> PatientTable:
    """The inputs as the codebook reads them."""
    columns: dict[str, Any] = {name: _as_numbers(table, name) for name in numbers}
    columns |= {name: _as_texts(table.columns[find_column(table.columns, name, table.name, "input")]) for name in coded}
    positive = np.zeros(table.rows, dtype=bool)
    return PatientTable(name=table.name, table=columns, numbers=numbers, categories=coded, positive=positive)


def _with_target(found: Preprocessing, target: str) -> Preprocessing:
    """The same, with the values of the target, which are those of the clients' rows."""
    more = f"the values of {target!r} are those of all rows (classes=... declares them)."
    return Preprocessing("private", f"{found.detail} T{more[1:]}" if found.source == "private" else more)


def _target(
    table: Table, target: str, kind: Kind, declared: tuple[str, ...]
) -> tuple[tuple[str, ...], tuple[float, float]]:
    """The classes of the target, or none and its limits."""
    if len(declared) > 1:
        return declared, (0.0, 1.0)
    find_column(table.columns, target, table.name, "target")
    expect(kind in ("auto", "classes", "number"), f"kind={kind!r} to be one of auto, classes, number")
    column = table.columns[target]
    values = sorted(set(_as_texts(column)), key=_order)
    whole = column.dtype.kind == "f" and bool((column == np.round(column)).all())
    classes = column.dtype.kind == "O" or (whole and len(values) <= MOST_CLASSES)
    if len(values) < 2:
        raise DataError(
            f"Expected different values of {target!r} in {table.name}, got only {values[0]!r} in {table.rows} rows: "
            "there is nothing to learn."
        )
    if kind == "number" or (kind == "auto" and not classes):
        numbers = _as_numbers(table, target)
        return (), (float(numbers.min()), float(numbers.max()))
    if len(values) > MOST_CATEGORIES:
        raise DataError(
            f"Expected at most {MOST_CATEGORIES} classes of {target!r} in {table.name}, got {len(values)}. Is it a "
            "number (kind='number'), or another column?"
        )
    return tuple(values), (0.0, 1.0)


def _order(text: str) -> tuple[float, str]:
    """Numbers by their size, then texts."""
    try:
        return float(text), text
    except ValueError:
        return float("inf"), text


def _check_categories(table: Table, names: Iterable[str]) -> None:
    for name in names:
        values = {text for text in _as_texts(table.columns[name]) if text}
        if len(values) > MOST_CATEGORIES:
            example = sorted(values)[0]
            raise DataError(
                f"Expected at most {MOST_CATEGORIES} categories in column {name!r} of {table.name}, got {len(values)} "
                f"different texts such as {example!r}: is it a name or a number of a person? Leave it out: "
                f"drop=[{name!r}] (on the command line --drop {name})."
            )


def _check_known(table: Table, name: str, role: str) -> None:
    gone = np.flatnonzero(missing(table.columns[name]))
    if len(gone):
        raise DataError(
            f"Expected the {role} {name!r} in every row of {table.name}, but {len(gone)} of {table.rows} rows have "
            f"none (the first is row {gone[0] + 1}). Remove or fill them."
        )


def _as_numbers(table: Table, name: str) -> NDArray[np.float64]:
    column = table.columns[find_column(table.columns, name, table.name, "input")]
    if as_dates(column):
        days = column.astype("M8[D]").astype(np.float64)
        return np.where(np.isnat(column), np.nan, days)
    if column.dtype.kind == "O":
        example = next((value for value in column if value is not None), None)
        raise DataError(f"Expected numbers in column {name!r} of {table.name}, got texts such as {example!r}.")
    if np.isinf(column).any():
        row = int(np.flatnonzero(np.isinf(column))[0]) + 1
        raise DataError(f"Expected finite numbers in column {name!r} of {table.name}, got infinity in row {row}.")
    return column.astype(np.float64)


def _as_texts(column: NDArray[Any]) -> list[str]:
    if as_dates(column):
        return [str(value) for value in column]
    return ["" if gone else text_of(value) for value, gone in zip(column.tolist(), missing(column), strict=True)]


def _sized_model(model: Any, inputs: int, outputs: int) -> nn.Module | Callable[[], nn.Module]:
    """The model that was given, or a function of the numbers of inputs and outputs; none: one hidden layer."""
    if isinstance(model, nn.Module):
        return model
    make = mlp if model is None else model
    try:
        wanted = inspect.signature(make).parameters
    except (TypeError, ValueError):
        return make
    sizes = {name: size for name, size in (("inputs", inputs), ("outputs", outputs)) if name in wanted}
    hidden = {"hidden": HIDDEN} if model is None else {}
    return (lambda: make(**sizes, **hidden)) if sizes else make


def _outputs_of(model: nn.Module | Callable[[], nn.Module], x: Tensor) -> int:
    """How many outputs a model has for a sample; 0 if it does not accept it."""
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        try:
            made = model if isinstance(model, nn.Module) else model()
            return int(made(x[:2]).shape[-1])
        except Exception:  # a user's model may fail in any way; the task reports it
            return 0


def _notes(table: Table, encoder: TableEncoder, rows: _Split, x: Tensor, *, random_public: bool) -> Iterable[str]:
    sizes = sorted(len(part) for part in rows.clients)
    held = 0 if rows.held_out is None else len(rows.held_out)
    spread = f"{sizes[0]}" if sizes[0] == sizes[-1] else f"{sizes[0]} to {sizes[-1]}"
    yield (
        f"{table.name}: {len(sizes)} clients with {spread} rows to train on, {held} held out; {x.shape[1]} inputs from "
        f"{len(encoder.numbers) + len(encoder.categories)} columns."
    )
    dates = [name for name in encoder.numbers if as_dates(table.columns[name])]
    if dates:
        yield f"Dates are numbers of days: {listed(dates)}."
    if encoder.classes == tuple(map(str, range(len(encoder.classes)))):
        pass  # the numbers themselves
    elif encoder.classes:
        yield f"Classes of {encoder.target}: {', '.join(f'{v} is {n}' for n, v in enumerate(encoder.classes))}."
    else:
        low, high = encoder.limits
        yield f"{encoder.target} is a number: {low:g} to {high:g} are scaled to 0 to 1, and so are its errors."
    if random_public:
        yield (
            f"No public rows were given: methods that need them choose coordinates and clipping bounds on "
            f"{PUBLIC_ROWS} random rows, which depend on no data and fit less well."
        )
