"""A few rows that have all that the encoding of a table depends on, collected some rows at a time.

Minima and maxima of numbers, whether some are missing or not whole, and different values as far as their number
matters: the encoder of this sketch is that of all rows.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.data.data_frames import Columns
from tacit.data.table_task import MOST_CATEGORIES
from tacit.data.tables import Table, missing, stack_columns

KEPT = 2 * MOST_CATEGORIES  # different values of a column: more than any limit on their number


class TableSketch:
    """Collects tables with the same columns."""

    def __init__(self) -> None:
        self._columns: Columns = {}

    def add(self, table: Table, names: Iterable[str]) -> None:
        """More rows, of which these columns matter."""
        for name in names:
            table.check_finite(name)
            before = [self._columns[name]] if name in self._columns else []
            self._columns[name] = _sketched(stack_columns([*before, table.columns[name]]))

    def table(self, name: str) -> Table:
        """The sketch; shorter columns repeat their values."""
        rows = max(map(len, self._columns.values()))
        return Table(name, {key: np.resize(column, rows) for key, column in self._columns.items()})


def _sketched(column: NDArray[Any]) -> NDArray[Any]:
    gone = missing(column)
    values = np.unique(column[~gone])
    if len(values) > KEPT:
        fractions = values[values != np.round(values)][:1] if values.dtype.kind == "f" else values[:0]
        values = np.unique(np.concatenate([values[:KEPT], values[-1:], fractions]))
    return np.concatenate([values, column[gone][:1]])
