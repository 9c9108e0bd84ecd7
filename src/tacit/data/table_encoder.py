"""Rows of a table as inputs and targets: which columns are numbers and which categories, and their constants.

Numbers are scaled to [0, 1] between a minimum and a maximum, with a column for missing ones; categories get a column
for each value; dates are numbers of days. These constants come from the clients' own rows (then no guarantee covers
them, and every guarantee says so), from public rows, or from a file that declares them (`Codebook`).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tacit.core.keys import Key
from tacit.core.losses import BinaryCrossEntropy, CrossEntropy, MeanSquared
from tacit.core.schema import listed
from tacit.data.codebook import Codebook, Column
from tacit.data.data_frames import find_column
from tacit.data.population import Samples
from tacit.data.preprocessing import Preprocessing
from tacit.data.tables import Table, as_dates, missing, read_table, text_of
from tacit.errors import DataError, expect

MOST_CATEGORIES = 100  # different values of a column that is not an identifier
MOST_CLASSES = 20  # different whole numbers of a target that is a class
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
        texts = {name: as_texts(table.columns[name]) for name in self.categories}
        return self.codebook.encode({**columns, **texts}).x  # type: ignore[dict-item]

    def samples(self, table: Table) -> Samples:
        """Inputs and targets."""
        return self.inputs(table), self.targets(table)

    def targets(self, table: Table) -> Tensor:
        """Class numbers (as 0.0 and 1.0 for two classes), or scaled numbers."""
        column = table.columns[find_column(table.columns, self.target, table.name, "target")]
        check_known(table, self.target, "target")
        if not self.classes:
            low, high = self.limits
            return torch.tensor((_as_numbers(table, self.target) - low) / max(high - low, 1e-12)).float()[:, None]
        number = {value: code for code, value in enumerate(self.classes)}
        texts = as_texts(column)
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


def make_encoder(
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
    for name in inputs:
        if name not in categories:
            check_readable(table, name)
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


def target_values(
    table: Table, target: str, kind: Kind, declared: tuple[str, ...]
) -> tuple[tuple[str, ...], tuple[float, float]]:
    """The classes of the target, or none and its limits."""
    if len(declared) > 1:
        return declared, (0.0, 1.0)
    find_column(table.columns, target, table.name, "target")
    expect(kind in ("auto", "classes", "number"), f"kind={kind!r} to be one of auto, classes, number")
    if kind != "classes":
        check_readable(table, target)
    column = table.columns[target]
    values = sorted(set(as_texts(column)), key=_order)
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


@dataclass(frozen=True)
class _Inputs:
    """The inputs of a table as the codebook reads them."""

    name: str
    table: dict[str, Column]
    numbers: tuple[str, ...]
    categories: tuple[str, ...]


def _records(table: Table, numbers: tuple[str, ...], coded: tuple[str, ...]) -> _Inputs:
    columns: dict[str, Any] = {name: _as_numbers(table, name) for name in numbers}
    columns |= {name: as_texts(table.columns[find_column(table.columns, name, table.name, "input")]) for name in coded}
    return _Inputs(table.name, columns, numbers, coded)


def _order(text: str) -> tuple[float, str]:
    """Numbers by their size, then texts."""
    try:
        return float(text), text
    except ValueError:
        return float("inf"), text


def _check_categories(table: Table, names: Iterable[str]) -> None:
    for name in names:
        values = {text for text in as_texts(table.columns[name]) if text}
        if len(values) > MOST_CATEGORIES:
            example = sorted(values)[0]
            raise DataError(
                f"Expected at most {MOST_CATEGORIES} categories in column {name!r} of {table.name}, got {len(values)} "
                f"different texts such as {example!r}: is it a name or a number of a person? Leave it out: "
                f"drop=[{name!r}] (on the command line --drop {name})."
            )


def check_known(table: Table, name: str, role: str) -> None:
    """Raise `DataError` if a column has missing values."""
    gone = np.flatnonzero(missing(table.columns[name]))
    if len(gone):
        raise DataError(
            f"Expected the {role} {name!r} in every row of {table.name}, but {len(gone)} of {table.rows} rows have "
            f"none (the first is row {gone[0] + 1}). Remove or fill them."
        )


def check_readable(table: Table, name: str) -> None:
    """Raise `DataError` if the values of a column may be numbers, but which ones is not certain."""
    if name in table.doubts:
        raise DataError(table.doubts[name])


def _as_numbers(table: Table, name: str) -> NDArray[np.float64]:
    column = table.columns[find_column(table.columns, name, table.name, "input")]
    if as_dates(column):
        days = column.astype("M8[D]").astype(np.float64)
        return np.where(np.isnat(column), np.nan, days)
    if column.dtype.kind == "O":
        check_readable(table, name)
        example = next((value for value in column if value is not None), None)
        raise DataError(f"Expected numbers in column {name!r} of {table.name}, got texts such as {example!r}.")
    check_finite(table, name)
    return column.astype(np.float64)


def check_finite(table: Table, name: str) -> None:
    """Raise `DataError` if a column of numbers has infinite ones."""
    column = table.columns[name]
    if column.dtype.kind == "f" and np.isinf(column).any():
        row = int(np.flatnonzero(np.isinf(column))[0]) + 1
        raise DataError(f"Expected finite numbers in column {name!r} of {table.name}, got infinity in row {row}.")


def as_texts(column: NDArray[Any]) -> list[str]:
    """The values of a column as categories; missing ones are empty."""
    if as_dates(column):
        return [str(value) for value in column]
    return ["" if gone else text_of(value) for value, gone in zip(column.tolist(), missing(column), strict=True)]
