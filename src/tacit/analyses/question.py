"""What a question to a table is, and what questions share: columns of events and of times, and the choice of columns.

A question makes an encoding and a query. It is what a command, a function in Python and a plan have in common.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol, Self

import numpy as np

from tacit.analyses.sums import SumRelease, method_of
from tacit.core import Method, Query
from tacit.data.encoding import Encoding, Limits, Scale
from tacit.data.sum_task import choose_encoding
from tacit.data.table_task import MAX_CATEGORIES
from tacit.data.tables import Table
from tacit.errors import DataError, expect, positive, whole

DECLARE = "Declare them in a file with [numbers] and [categories]: encoding=... (on the command line --encoding)."
MAX_INTERVALS = 20_000
MAX_ASKED = 1000
LEFT_OUT = "are left out with their rows"


class Question(Protocol):
    """What is asked of a table.

    Attributes:
        name: of the analysis.
        cells: whether each unit is in one cell of the query at most.
    """

    name: ClassVar[str]
    cells: ClassVar[bool] = False

    def make_exact(self, table: Table) -> Self:
        """The same question where no noise is added, which a finer grid would enlarge."""
        return self

    def encode(self, table: Table, declared: Encoding | None) -> Encoding:
        """How the columns become inputs: with declared constants or, where there are none, those of the rows."""

    def notes(self, encoding: Encoding, table: Table) -> Iterator[str]:
        """What is lost of the rows of a table in this encoding, as sentences."""
        return encoding.remarks(table)

    def query(self, encoding: Encoding) -> Query:
        """The query on rows in this encoding, which a plan may have brought."""

    def method(self, encoding: Encoding, release: SumRelease) -> Method:
        """The method that answers it, on rows in this encoding."""
        return method_of(self.name, self.query(encoding), release, cells=self.cells)


@dataclass(frozen=True)
class Event:
    """A column of outcomes, and its value that is an event; any other value is none, and a missing one is unknown.

    Example:
        >>> Event.of("status=dead"), Event.of("died").value
        (Event(column='status', value='dead'), '1')
    """

    column: str
    value: str

    @classmethod
    def of(cls, text: str) -> Self:
        """The event that `died` (where it is 1) or `died=yes` names."""
        column, _, value = text.partition("=")
        return cls(column, value or "1")

    @property
    def categories(self) -> dict[str, tuple[str, str]]:
        """Its column in an encoding: an input that marks events, and one that marks unknown outcomes."""
        return {self.column: (self.value, "")}

    def inputs(self, encoding: Encoding) -> tuple[int, int]:
        """The numbers of these inputs."""
        names = encoding.names
        return names.index(f"{self.column}={self.value}"), names.index(f"{self.column}=")

    def notes(self, remarks: Iterator[str], table: Table) -> Iterator[str]:
        """The remarks but those on other values, which are no event, and one on unknown outcomes."""
        yield from (each for each in remarks if not each.startswith(f"{self.column}: "))
        unknown = sum(not text for text in table.texts(self.column))
        if unknown:
            yield f"{self.column}: {unknown} of {table.rows} values are missing and {LEFT_OUT}."

    def check_among(self, table: Table, role: str) -> None:
        """Raise unless some row has the event."""
        expect(
            self.value in {*table.texts(self.column)},
            f"{self.value!r} among the values of {self.column!r}, got none",
            f"Is an event another value? Give {role} as {self.column}=VALUE.",
        )


@dataclass(frozen=True, kw_only=True)
class TimeGrid:
    """A declared grid of times since the start, in an encoding whose range has one interval more at both ends.

    Attributes:
        column: of times.
        horizon: the end of the grid; None: as declared by an encoding, or the largest time.
        step: the length of an interval; None: the horizon over `intervals`.
        intervals: how many there are by default.
        every_time: each whole number is a point of the grid, so that nothing is approximated.
    """

    column: str
    horizon: float | None = None
    step: float | None = None
    intervals: int = 30
    every_time: bool = False

    def __post_init__(self) -> None:
        positive(horizon=self.horizon, step=self.step)

    def limits_of(self, declared: Encoding | None) -> Limits | None:
        """The range of times before the grid is made; None: it is that of the rows."""
        if self.horizon is not None:
            return 0.0, self.horizon
        return None if declared is None else declared.numbers.get(self.column)

    def widen(self, limits: Limits) -> tuple[float, float]:
        """The range of times with an interval before and after the grid."""
        low, high = limits
        if isinstance(low, str) or isinstance(high, str):
            raise DataError(f"Expected {self.column!r} as numbers of days since the start, got dates.")
        expect(high > 0, f"a horizon of {self.column!r} above 0, got {high:g}", "Give horizon (--horizon).")
        step = 1.0 if self.every_time else self.step or high / self.intervals
        first = -1.0 if self.every_time else 0.0  # so that what happens at 0 is an interval of its own
        count = math.ceil((high - first) / step - 1e-9)
        whole(1, MAX_INTERVALS, intervals=count)
        return first - step, first + (count + 1) * step

    def count(self, encoding: Encoding) -> int:
        """The number of intervals in an encoding."""
        scale = Scale.of(encoding.numbers[self.column], self.column)
        step = 1.0 if self.every_time else -scale.low
        return round((scale.high - scale.low) / step) - 2

    def notes(self, remarks: Iterator[str], table: Table) -> Iterator[str]:
        """The remarks but those on times, and one on times that are no patient's."""
        yield from (each for each in remarks if not each.startswith(f"{self.column}: "))
        times = table.numbers(self.column)
        lost = int((~(times >= 0)).sum())
        if lost:
            yield f"{self.column}: {lost} of {table.rows} values are missing or below 0 and {LEFT_OUT}."


def choose_columns(
    table: Table, columns: Sequence[str], drop: Sequence[str], others: Sequence[str], declared: Encoding | None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Columns of numbers and of categories: texts, and what is declared to have categories.

    Args:
        table: the rows.
        columns: those that were asked about; empty: all.
        drop: columns to leave out.
        others: columns that have another role.
        declared: constants.
    """
    chosen = [each for each in columns or table.columns if each not in (*drop, *others)]
    expect(0 < len(chosen) <= MAX_ASKED, f"1 to {MAX_ASKED} columns to {'depend on' if others else 'describe'}, "
                                         f"got {len(chosen)}")  # fmt: skip
    for name in chosen:
        table.check_known(name, "input") if name not in table.columns else table.check_readable(name)
    kinds = declared.categories if declared is not None else ()
    texts = tuple(name for name in chosen if name in kinds or table.columns[name].dtype.kind == "O")
    return tuple(name for name in chosen if name not in texts), texts


def encode_columns(
    table: Table, numbers: tuple[str, ...], texts: tuple[str, ...], declared: Encoding | None
) -> Encoding:
    """The encoding of these columns, with few categories, and ranges of a positive width also for constant columns."""
    encoding = choose_encoding(table, numbers, texts, declared, DECLARE)
    for name in texts:
        count = len(encoding.categories[name])
        expect(
            count <= MAX_CATEGORIES,
            f"at most {MAX_CATEGORIES} categories of {name!r}, got {count}",
            f"Is it an identifier? Leave it out: drop={name!r} (--drop {name}).",
        )
    constant = [name for name, limits in encoding.numbers.items() if len({*limits}) == 1]
    widened = {name: (low, low + 1.0) for name, (low, _) in encoding.numbers.items() if name in constant}  # type: ignore[operator]
    return replace(encoding, numbers={**encoding.numbers, **widened})


def notes_on_gaps(table: Table, numbers: Iterable[str]) -> Iterator[str]:
    """A note for each column of numbers that lacks some, for questions that leave such rows out."""
    for name in numbers:
        lacking = int(np.isnan(table.numbers(name)).sum())
        if lacking:
            yield f"{name}: {lacking} of {table.rows} values are missing and {LEFT_OUT}."


def has_whole_times(table: Table, column: str) -> bool:
    """Whether all times are whole numbers."""
    times = table.numbers(column)
    times = times[~np.isnan(times)]
    return bool((times == np.round(times)).all())
