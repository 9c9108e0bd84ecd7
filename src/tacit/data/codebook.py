"""The constants by which tables are encoded: minima and maxima of numbers, values of categories.

A number is scaled to [0, 1] between its limits; a missing one becomes 0, and an indicator column marks it. Categories
become one column per value; a missing category is a value like any other. Constants that are computed from clients'
rows are not private; those of public rows or of a file that declares them are.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.core.schema import listed
from tacit.core.serialization import read_toml
from tacit.errors import UserError, expect

RARE = 100  # training rows
MISSING = ("", "?")

Column = list[str] | NDArray[np.int64]


class InputColumns(Protocol):
    """A table, and the columns of it that are inputs."""

    @property
    def name(self) -> str:
        """What error messages call it."""
        ...

    @property
    def table(self) -> Mapping[str, Column]:
        """All columns."""
        ...

    @property
    def numbers(self) -> tuple[str, ...]:
        """The columns of numbers."""
        ...

    @property
    def categories(self) -> tuple[str, ...]:
        """The columns of categories."""
        ...


@dataclass(frozen=True)
class EncodedTable:
    """Features of all rows, and the names of the columns."""

    x: Tensor
    names: tuple[str, ...]


class Codebook(msgspec.Struct, frozen=True, kw_only=True):
    """The constants by which a table is encoded.

    Attributes:
        numbers: minimum and maximum of each column of numbers.
        categories: the values of each categorical column that get a column of their own.
        indicators: the columns of numbers with an indicator of missing values; None: all of them.
    """

    numbers: Mapping[str, tuple[float, float]] = msgspec.field(default_factory=dict)
    categories: Mapping[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    indicators: tuple[str, ...] | None = None

    @classmethod
    def of(
        cls, table: Mapping[str, Column], numbers: Sequence[str], categories: Sequence[str], rows: NDArray[np.int64]
    ) -> "Codebook":
        """The constants of these rows: values that are not rare, and indicators where a number is missing."""
        floats = {name: _floats(table[name])[rows] for name in numbers}
        return cls(
            numbers={name: (float(np.nanmin(values)), float(np.nanmax(values))) for name, values in floats.items()},
            categories={name: _frequent(table[name], rows) for name in categories},
            indicators=tuple(name for name, values in floats.items() if np.isnan(values).any()),
        )

    @classmethod
    def of_public(cls, patients: InputColumns, rows: NDArray[np.int64]) -> "Codebook":
        """The constants of public rows, however few: all values in them, and an indicator for every number."""
        table = patients.table
        return cls(
            numbers={name: _range(_floats(table[name])[rows]) for name in patients.numbers},
            categories={name: _present(table[name], rows) for name in patients.categories},
        )

    @classmethod
    def declared(cls, file: Path, patients: InputColumns) -> "Codebook":
        """The constants in a TOML file; raises `UserError` unless it has all columns of the table, and no others."""
        found = read_toml(file, cls)
        wanted = {"numbers": patients.numbers, "categories": patients.categories}
        for kind, names in wanted.items():
            given: Mapping[str, object] = getattr(found, kind)
            missing, unknown = [name for name in names if name not in given], [n for n in given if n not in names]
            if missing or unknown:
                wrong = f"lacks {listed(missing)}" if missing else f"has {listed(unknown)}, which are not inputs"
                raise UserError(
                    f"Expected {kind} of {file} to declare the inputs of {patients.name}, {listed(names)}, "
                    f"but it {wrong}."
                )
        for name, (low, high) in found.numbers.items():
            expect(low < high, f"minimum < maximum of {name} in {file}, got {low:g} and {high:g}")
        return found

    def encode(self, table: Mapping[str, Column]) -> EncodedTable:
        """Features of all rows of a table."""
        columns: dict[str, NDArray[np.float32]] = {}
        for name, limits in self.numbers.items():
            indicator = self.indicators is None or name in self.indicators
            columns |= _scale(name, table[name], limits, indicator=indicator)
        for name, values in self.categories.items():
            columns |= _one_hot(name, table[name], values)
        return EncodedTable(torch.from_numpy(np.stack(list(columns.values()))).T.contiguous(), tuple(columns))


def encode(
    table: dict[str, Column], numbers: Sequence[str], categories: Sequence[str], train: NDArray[np.int64]
) -> EncodedTable:
    """Features of all rows, with ranges and category values from the training rows only.

    Example:
        >>> table = {"age": ["20", "60", "?"], "sex": ["f", "m", "f"]}
        >>> encode(table, ["age"], [], np.array([0, 1, 2])).x.tolist()
        [[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]]
    """
    return Codebook.of(table, numbers, categories, train).encode(table)


def _scale(
    name: str, column: Column, limits: tuple[float, float], *, indicator: bool
) -> dict[str, NDArray[np.float32]]:
    """A number scaled to [0, 1] between its limits, and an indicator column of missing ones."""
    values, (low, high) = _floats(column), limits
    scaled = np.clip((values - low) / max(high - low, 1e-12), 0, 1)
    columns = {name: np.nan_to_num(scaled).astype(np.float32)}
    return columns | ({f"{name} missing": np.isnan(values).astype(np.float32)} if indicator else {})


def _one_hot(name: str, column: Column, values: Sequence[str]) -> dict[str, NDArray[np.float32]]:
    """One column per value; one that the table does not have is zero."""
    distinct, codes = _codes(column)
    code_of = {value: code for code, value in enumerate(distinct)}
    return {f"{name}={value}": (codes == code_of.get(value, -1)).astype(np.float32) for value in values}


def _frequent(column: Column, rows: NDArray[np.int64]) -> tuple[str, ...]:
    """The values that are not rare in these rows; none if all rows have the same value."""
    values, codes = _codes(column)
    counts = np.bincount(codes[rows], minlength=len(values))
    return tuple(value for value, count in zip(values, counts, strict=True) if RARE <= count < len(rows))


def _present(column: Column, rows: NDArray[np.int64]) -> tuple[str, ...]:
    values, codes = _codes(column)
    return tuple(values[code] for code in np.unique(codes[rows]))


def _range(values: NDArray[np.float64]) -> tuple[float, float]:
    """Minimum and maximum of the known values; 0 and 1 if there are none."""
    known = values[~np.isnan(values)]
    return (float(known.min()), float(known.max())) if len(known) else (0.0, 1.0)


def _codes(column: Column) -> tuple[list[str], NDArray[np.int64]]:
    """The distinct values in order, and for each row the index of its value."""
    if not isinstance(column, list):
        distinct, codes = np.unique(column, return_inverse=True)
        return [str(value) for value in distinct], codes.astype(np.int64)
    values = sorted(set(column))
    code = {value: index for index, value in enumerate(values)}
    return values, np.array([code[value] for value in column], dtype=np.int64)


def _floats(column: Column) -> NDArray[np.float64]:
    if not isinstance(column, list):
        return column.astype(np.float64)
    return np.array([np.nan if value in MISSING else float(value) for value in column])
