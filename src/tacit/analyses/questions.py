"""Questions to a table: which columns are asked about, and with which declared constants, as plain values.

A question makes an encoding and a query. It is what a command, a function in Python and a plan have in common.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol, Self

import numpy as np

from tacit.analyses.describe import DescribeTerms
from tacit.analyses.fit_rule import plan_fit
from tacit.analyses.fitting import FitPlan
from tacit.analyses.metrics import ScoreCells
from tacit.analyses.regression import FAMILIES, Design, Family, RegressionTerms
from tacit.analyses.sums import SumRelease, method_of
from tacit.analyses.survival import SurvivalCells
from tacit.core import Method, Query
from tacit.core.schema import list_names
from tacit.data.encoding import Encoding, Preprocessing, Scale
from tacit.data.sum_task import choose_encoding
from tacit.data.table_task import MAX_CATEGORIES
from tacit.data.tables import Table
from tacit.errors import DataError, UserError, expect, one_of, positive, whole

DECLARE = "Declare them in a file with [numbers] and [categories]: encoding=... (on the command line --encoding)."
INTERVALS = 30  # of a grid by default: fewer have less noise
MAX_INTERVALS = 20_000
MAX_ASKED = 1000


class Question(Protocol):
    """What is asked of a table."""

    @property
    def name(self) -> str:
        """Of the analysis."""

    @property
    def cells(self) -> bool:
        """Whether each unit is in one cell of the query at most."""

    @property
    def silent(self) -> tuple[str, ...]:
        """The beginnings of remarks on the table that say nothing new."""

    def make_exact(self, table: Table) -> Self:
        """The same question where no noise is added, which a finer grid would enlarge."""
        return self

    def encode(self, table: Table, declared: Encoding | None) -> Encoding:
        """How the columns become inputs: with declared constants or, where there are none, those of the rows."""

    def query(self, encoding: Encoding) -> Query:
        """The query on rows in this encoding, which a plan may have brought."""

    def method(self, encoding: Encoding, release: SumRelease) -> Method:
        """The method that answers it, on rows in this encoding."""


@dataclass(frozen=True, kw_only=True)
class SurvivalQuestion:
    """Survival by time, event and arm.

    Args:
        time: the column of times since the start.
        event: the column of events, as `died` (where it is 1) or `died=yes`.
        by: the column of arms; empty: one curve of all patients.
        horizon: the end of the grid; None: as declared by the encoding, or the largest time.
        step: the length of an interval; None: a thirtieth of the horizon.
        every_time: times are whole numbers, and each is a point of the grid, so that nothing is approximated.
        sampling: whether intervals include sampling.
    """

    time: str
    event: str
    by: str = ""
    horizon: float | None = None
    step: float | None = None
    every_time: bool = False
    sampling: bool = False
    name = "survival"
    cells = True

    def __post_init__(self) -> None:
        positive(horizon=self.horizon, step=self.step)
        expect(bool(self.time) and bool(self.event_column), "the columns of time and event")
        columns = [self.time, self.event_column, *([self.by] if self.by else [])]
        expect(len({*columns}) == len(columns), f"different columns of time, event and arm, got {list_names(columns)}")

    @property
    def event_column(self) -> str:
        """The column of events."""
        return self.event.partition("=")[0]

    @property
    def event_value(self) -> str:
        """Its value that is an event."""
        return self.event.partition("=")[2] or "1"

    @property
    def silent(self) -> tuple[str, ...]:
        return (f"{self.event_column}: ",)  # other values are no event

    def make_exact(self, table: Table) -> Self:
        """With every time in the grid, if times are whole numbers and no step was chosen."""
        times = table.numbers(self.time)
        times = times[~np.isnan(times)]
        return replace(self, every_time=self.step is None and bool((times == np.round(times)).all()))

    def encode(self, table: Table, declared: Encoding | None) -> Encoding:
        arms = (self.by,) if self.by else ()
        known = declared
        if self.horizon is not None:
            base = Encoding() if declared is None else declared
            known = replace(base, numbers={**base.numbers, self.time: (0.0, self.horizon)}, indicators=None)
        lacking = known is None or self.time not in known.numbers or any(arm not in known.categories for arm in arms)
        table.check_known(self.event_column, "event")
        encoding = choose_encoding(table, (self.time,), arms, None if lacking else known, DECLARE)
        if lacking and self.horizon is not None:
            encoding = replace(encoding, numbers={self.time: (0.0, self.horizon)})
        low, high = encoding.numbers[self.time]
        if isinstance(low, str) or isinstance(high, str):
            raise DataError(f"Expected {self.time!r} as numbers of days since the start, got dates.")
        step = 1.0 if self.every_time else self.step or high / INTERVALS
        expect(step > 0, f"a horizon of {self.time!r} above 0, got {high:g}", "Give horizon (--horizon).")
        first = -1.0 if self.every_time else 0.0  # so that what happens at 0 is an interval of its own
        count = math.ceil((high - first) / step - 1e-9)
        whole(1, MAX_INTERVALS, intervals=count)
        return replace(
            encoding,
            numbers={self.time: (first - step, first + (count + 1) * step)},
            categories={self.event_column: (self.event_value,), **encoding.categories},
            indicators=None,
        )

    def query(self, encoding: Encoding) -> Query:
        scale, names = Scale.of(encoding.numbers[self.time], self.time), encoding.names
        step = 1.0 if self.every_time else -scale.low
        return SurvivalCells(
            time=names.index(self.time),
            missing=names.index(f"{self.time} missing"),
            event=names.index(f"{self.event_column}={self.event_value}"),
            arms=tuple(i for i, name in enumerate(names) if self.by and name.startswith(f"{self.by}=")),
            intervals=round((scale.high - scale.low) / step) - 2,
            actuarial=not self.every_time,
            sampling=self.sampling,
        )

    def method(self, encoding: Encoding, release: SumRelease) -> Method:
        return method_of(self.name, self.query(encoding), release, cells=self.cells)


@dataclass(frozen=True, kw_only=True)
class DescribeQuestion:
    """Counts, missing values, means, histograms and quantiles of columns.

    Args:
        columns: which; empty: all but those of client and person.
        drop: those to leave out.
        bins: cells of a number's histogram.
        sampling: whether intervals include sampling.
    """

    columns: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    bins: int = 20
    sampling: bool = False
    name = "describe"
    cells = False

    def __post_init__(self) -> None:
        whole(2, 1000, bins=self.bins)

    @property
    def silent(self) -> tuple[str, ...]:
        return ()

    def make_exact(self, table: Table) -> Self:
        return self

    def encode(self, table: Table, declared: Encoding | None) -> Encoding:
        chosen = [each for each in self.columns or table.columns if each not in self.drop]
        expect(0 < len(chosen) <= MAX_ASKED, f"1 to {MAX_ASKED} columns to describe, got {len(chosen)}")
        numbers, texts = _kinds(table, chosen, declared)
        encoding = choose_encoding(table, numbers, texts, declared, DECLARE)
        for name in texts:
            _check_few(name, len(encoding.categories[name]))
        return _widen(encoding)

    def query(self, encoding: Encoding) -> Query:
        names, at = encoding.names, 0
        numbers = tuple(names.index(name) for name in encoding.numbers)
        missing = tuple(names.index(f"{name} missing") for name in encoding.numbers)
        at, categories = 2 * len(numbers), []
        for values in encoding.categories.values():
            categories.append(tuple(range(at, at + len(values))))
            at += len(values)
        return DescribeTerms(
            numbers=numbers, missing=missing, categories=tuple(categories), cells=self.bins, sampling=self.sampling
        )

    def method(self, encoding: Encoding, release: SumRelease) -> Method:
        return method_of(self.name, self.query(encoding), release, cells=self.cells)


@dataclass(frozen=True, kw_only=True)
class MetricsQuestion:
    """AUROC and calibration of scores, such as the probabilities that `tacit predict` writes.

    Args:
        score: the column of scores from 0 to 1.
        event: the column of outcomes, as `died` (where it is 1) or `died=yes`.
        intervals: of the histogram of scores.
    """

    score: str
    event: str
    intervals: int = 50
    name = "metrics"
    cells = True

    def __post_init__(self) -> None:
        whole(2, 1000, intervals=self.intervals)
        columns = [self.score, self.event_column]
        different = len({*columns}) == 2 and all(columns)
        expect(different, f"different columns of score and outcome, got {list_names(columns)}")

    @property
    def event_column(self) -> str:
        """The column of outcomes."""
        return self.event.partition("=")[0]

    @property
    def event_value(self) -> str:
        """Its value that is an event."""
        return self.event.partition("=")[2] or "1"

    @property
    def silent(self) -> tuple[str, ...]:
        return (f"{self.event_column}: ",)

    def make_exact(self, table: Table) -> Self:
        return self

    def encode(self, table: Table, declared: Encoding | None) -> Encoding:
        for role, name in (("score", self.score), ("event", self.event_column)):
            table.check_known(name, role) if name not in table.columns else None
        return Encoding(
            numbers={self.score: (0.0, 1.0)},
            categories={self.event_column: (self.event_value,)},
            preprocessing=Preprocessing("public", "Scores are from 0 to 1."),
        )

    def query(self, encoding: Encoding) -> Query:
        names = encoding.names
        return ScoreCells(
            score=names.index(self.score),
            missing=names.index(f"{self.score} missing"),
            event=names.index(f"{self.event_column}={self.event_value}"),
            intervals=self.intervals,
        )

    def method(self, encoding: Encoding, release: SumRelease) -> Method:
        return method_of(self.name, self.query(encoding), release, cells=self.cells)


@dataclass(frozen=True, kw_only=True)
class RegressionQuestion:
    """How an outcome depends on other columns.

    Args:
        target: the column of the outcome; for logistic regression `died` (where it is 1) or `died=yes`.
        family: `logistic`, `linear` or `poisson`.
        columns: what it may depend on; empty: all columns but those of client, person and outcome.
        drop: columns to leave out.
    """

    target: str
    family: Family = "logistic"
    columns: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    name = "regress"
    cells = False

    def __post_init__(self) -> None:
        one_of(FAMILIES, family=self.family)
        expect(bool(self.target_column), "the column of the target")

    @property
    def target_column(self) -> str:
        """The column of the outcome."""
        return self.target.partition("=")[0] if self.family == "logistic" else self.target

    @property
    def outcome(self) -> str:
        """The value of the outcome that is an event."""
        return self.target.partition("=")[2] or "1"

    @property
    def silent(self) -> tuple[str, ...]:
        return (f"{self.target_column}: ",) if self.family == "logistic" else ()

    def make_exact(self, table: Table) -> Self:
        return self

    def encode(self, table: Table, declared: Encoding | None) -> Encoding:
        target, logistic = self.target_column, self.family == "logistic"
        table.check_known(target, "target")
        chosen = [each for each in self.columns or table.columns if each not in (*self.drop, target)]
        expect(0 < len(chosen) <= MAX_ASKED, f"1 to {MAX_ASKED} columns to depend on, got {len(chosen)}")
        numbers, texts = _kinds(table, chosen, declared)
        encoding = _widen(choose_encoding(table, (*numbers, *([] if logistic else [target])), texts, declared, DECLARE))
        for name in texts:
            _check_few(name, len(encoding.categories[name]))
        if logistic:
            expect(
                declared is not None or self.outcome in {*table.texts(target)},
                f"{self.outcome!r} among the values of {target!r}, got none",
                f"Is an event another value? Give target as {target}=VALUE.",
            )
            return replace(encoding, categories={**encoding.categories, target: (self.outcome, "")})
        low, high = encoding.numbers[target]
        if isinstance(low, str) or isinstance(high, str):
            raise DataError(f"Expected {target!r} as numbers, got dates.")
        if self.family == "poisson":
            expect(low >= 0 < high, f"counts of {target!r} from 0, got numbers from {low:g} to {high:g}")
            low = 0.0
        return replace(encoding, numbers={**encoding.numbers, target: (low, high)})

    def query(self, encoding: Encoding) -> RegressionTerms:
        names, target = encoding.names, self.target_column
        inputs = {name: place for place, name in enumerate(names)}
        numbers = [name for name in encoding.numbers if name != target]
        categories = {name: values for name, values in encoding.categories.items() if name != target}
        logistic = self.family == "logistic"
        largest = Scale.of(encoding.numbers[target], target).high if self.family == "poisson" else 1.0
        return RegressionTerms(
            family=self.family,
            design=Design(
                numbers=tuple(inputs[name] for name in numbers),
                missing=tuple(inputs[f"{name} missing"] for name in numbers),
                categories=tuple(
                    tuple(inputs[f"{name}={value}"] for value in values) for name, values in categories.items()
                ),
            ),
            target=inputs[f"{target}={self.outcome}" if logistic else target],
            unknown=inputs[f"{target}=" if logistic else f"{target} missing"],
            plan=FitPlan(1),
            largest=largest,
        )

    def method(self, encoding: Encoding, release: SumRelease) -> Method:
        query = plan_fit(self.query(encoding), release)
        return method_of(self.name, query, release, rounds=query.plan.releases, server=query.step)


def _kinds(table: Table, chosen: Sequence[str], declared: Encoding | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The columns of numbers, and those of categories: texts, and what is declared to have categories."""
    for name in chosen:
        table.check_known(name, "input") if name not in table.columns else table.check_readable(name)
    kinds = declared.categories if declared is not None else ()
    texts = tuple(name for name in chosen if name in kinds or table.columns[name].dtype.kind == "O")
    return tuple(name for name in chosen if name not in texts), texts


def _check_few(name: str, count: int) -> None:
    expect(
        count <= MAX_CATEGORIES,
        f"at most {MAX_CATEGORIES} categories of {name!r}, got {count}",
        f"Is it an identifier? Leave it out: drop={name!r} (--drop {name}).",
    )


def _widen(encoding: Encoding) -> Encoding:
    """The encoding with ranges of a positive width, for constant columns."""
    constant = [name for name, limits in encoding.numbers.items() if len({*limits}) == 1]
    widened = {name: (low, low + 1.0) for name, (low, _) in encoding.numbers.items() if name in constant}  # type: ignore[operator]
    return replace(encoding, numbers={**encoding.numbers, **widened})


QUESTIONS: Mapping[str, type[Any]] = MappingProxyType(
    {
        "describe": DescribeQuestion,
        "metrics": MetricsQuestion,
        "regress": RegressionQuestion,
        "survival": SurvivalQuestion,
    }
)


def read_declared(encoding: str | Path | Encoding | None) -> Encoding | None:
    """The constants in a file, or as given."""
    return encoding if encoding is None or isinstance(encoding, Encoding) else Encoding.read(encoding)


def public_constants(encoding: Encoding) -> Encoding:
    """The same constants, as they are known to all parties of a plan."""
    return replace(encoding, preprocessing=Preprocessing("public", "They are part of the plan."))


def question_of(name: str, args: Mapping[str, object]) -> Question:
    """The question of this name, from plain values, as in a plan."""
    if name not in QUESTIONS:
        raise UserError(f"Expected an analysis, one of {', '.join(QUESTIONS)}, got {name!r}.")
    kind = QUESTIONS[name]
    known = [each.name for each in fields(kind)]
    unknown = [key for key in args if key not in known]
    expect(not unknown, f"arguments of {name} among {', '.join(known)}, got {list_names(unknown)}")
    question: Question = kind(
        **{key: tuple(value) if isinstance(value, list) else value for key, value in args.items()}
    )
    return question
