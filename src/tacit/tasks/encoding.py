"""From a table of patients to numbers between 0 and 1.

Numbers are scaled by the smallest and largest value among the training rows; a missing one becomes 0, and a
column says so. Categories become one column per value that at least `RARE` training rows have (the rule of
FL-TOP's medical data); a missing category is a value like any other.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

RARE = 100
MISSING = ("", "?")

Column = list[str] | NDArray[np.int64]


@dataclass(frozen=True)
class Encoded:
    """Features of all rows, and what each column means."""

    x: Tensor
    names: tuple[str, ...]


def encode(
    table: dict[str, Column], numbers: Sequence[str], categories: Sequence[str], train: NDArray[np.int64]
) -> Encoded:
    """Features of all rows, with ranges and values learnt from the training rows only.

    Example:
        >>> table = {"age": ["20", "60", "?"], "sex": ["f", "m", "f"]}
        >>> encode(table, ["age"], [], np.array([0, 1, 2])).x.tolist()
        [[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]]
    """
    columns: dict[str, NDArray[np.float32]] = {}
    for name in numbers:
        columns |= _scaled(name, table[name], train)
    for name in categories:
        columns |= _one_hot(name, table[name], train)
    return Encoded(torch.from_numpy(np.stack(list(columns.values()))).T.contiguous(), tuple(columns))


def _scaled(name: str, column: Column, train: NDArray[np.int64]) -> dict[str, NDArray[np.float32]]:
    """One number in [0, 1], and whether it is missing if it ever is."""
    values = _floats(column)
    low, high = np.nanmin(values[train]), np.nanmax(values[train])
    scaled = np.clip((values - low) / max(high - low, 1e-12), 0, 1)
    missing = np.isnan(values)
    columns = {name: np.nan_to_num(scaled).astype(np.float32)}
    return columns | ({f"{name} missing": missing.astype(np.float32)} if missing[train].any() else {})


def _one_hot(name: str, column: Column, train: NDArray[np.int64]) -> dict[str, NDArray[np.float32]]:
    """One column per value that is not rare; none if there is no choice."""
    values, codes = _codes(column)
    counts = np.bincount(codes[train], minlength=len(values))
    kept = [number for number, count in enumerate(counts) if RARE <= count < len(train)]
    return {f"{name}={values[number]}": (codes == number).astype(np.float32) for number in kept}


def _codes(column: Column) -> tuple[list[str], NDArray[np.int64]]:
    """The distinct values in order, and for each row the number of its value."""
    if not isinstance(column, list):
        distinct, codes = np.unique(column, return_inverse=True)
        return [str(value) for value in distinct], codes.astype(np.int64)
    values = sorted(set(column))
    number = {value: index for index, value in enumerate(values)}
    return values, np.array([number[value] for value in column], dtype=np.int64)


def _floats(column: Column) -> NDArray[np.float64]:
    if not isinstance(column, list):
        return column.astype(np.float64)
    return np.array([np.nan if value in MISSING else float(value) for value in column])
