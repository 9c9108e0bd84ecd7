"""Questions to a table: which columns are asked about, and with which declared constants, as plain values."""

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

from tacit.analyses.describe import DescribeTerms
from tacit.analyses.metrics import ScoreCells
from tacit.analyses.question import (
    DECLARE,
    LEFT_OUT,
    Event,
    Question,
    TimeGrid,
    choose_columns,
    encode_columns,
    has_whole_times,
)
from tacit.analyses.regression_questions import BoostQuestion, CoxQuestion, RegressionQuestion
from tacit.analyses.survival import SurvivalCells
from tacit.core import Query
from tacit.core.schema import list_names
from tacit.data.encoding import Encoding, Preprocessing
from tacit.data.sum_task import choose_encoding
from tacit.data.tables import Table
from tacit.errors import UserError, expect, whole

__all__ = [
    "BoostQuestion",
    "CoxQuestion",
    "DescribeQuestion",
    "MetricsQuestion",
    "Question",
    "RegressionQuestion",
    "SurvivalQuestion",
]


@dataclass(frozen=True, kw_only=True)
class SurvivalQuestion(Question):
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
        columns = [self.time, self._event.column, *([self.by] if self.by else [])]
        expect(all(columns[:2]), "the columns of time and event")
        expect(len({*columns}) == len(columns), f"different columns of time, event and arm, got {list_names(columns)}")
        _ = self._grid

    @property
    def _event(self) -> Event:
        return Event.of(self.event)

    @property
    def _grid(self) -> TimeGrid:
        return TimeGrid(column=self.time, horizon=self.horizon, step=self.step, every_time=self.every_time)

    def make_exact(self, table: Table) -> Self:
        """With every time in the grid, if times are whole numbers and no step was chosen."""
        return replace(self, every_time=self.step is None and has_whole_times(table, self.time))

    def encode(self, table: Table, declared: Encoding | None) -> Encoding:
        arms, known = (self.by,) if self.by else (), declared
        table.check_known(self._event.column, "event")
        limits = self._grid.limits_of(declared)
        lacking = limits is None or (declared is None and arms) or any(arm not in declared.categories for arm in arms)  # type: ignore[union-attr]
        if limits is not None:
            base = Encoding() if declared is None else declared
            known = replace(base, numbers={**base.numbers, self.time: limits}, indicators=None)
        encoding = choose_encoding(table, (self.time,), arms, None if lacking else known, DECLARE)
        return replace(
            encoding,
            numbers={self.time: self._grid.widen(limits or encoding.numbers[self.time])},
            categories={**self._event.categories, **encoding.categories},
            indicators=None,
        )

    def notes(self, encoding: Encoding, table: Table) -> Iterator[str]:
        remarks = encoding.remarks(table, unlisted=LEFT_OUT)
        return self._event.notes(self._grid.notes(remarks, table), table)

    def query(self, encoding: Encoding) -> Query:
        names, (event, unknown) = encoding.names, self._event.inputs(encoding)
        return SurvivalCells(
            time=names.index(self.time),
            missing=names.index(f"{self.time} missing"),
            event=event,
            unknown=unknown,
            arms=tuple(i for i, name in enumerate(names) if self.by and name.startswith(f"{self.by}=")),
            intervals=self._grid.count(encoding),
            actuarial=not self.every_time,
            sampling=self.sampling,
        )


@dataclass(frozen=True, kw_only=True)
class DescribeQuestion(Question):
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

    def __post_init__(self) -> None:
        whole(2, 1000, bins=self.bins)

    def encode(self, table: Table, declared: Encoding | None) -> Encoding:
        return encode_columns(table, *choose_columns(table, self.columns, self.drop, (), declared), declared)

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


@dataclass(frozen=True, kw_only=True)
class MetricsQuestion(Question):
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
        columns = [self.score, self._event.column]
        different = len({*columns}) == 2 and all(columns)
        expect(different, f"different columns of score and outcome, got {list_names(columns)}")

    @property
    def _event(self) -> Event:
        return Event.of(self.event)

    def encode(self, table: Table, declared: Encoding | None) -> Encoding:
        for role, name in (("score", self.score), ("event", self._event.column)):
            table.check_known(name, role) if name not in table.columns else None
        return Encoding(
            numbers={self.score: (0.0, 1.0)},
            categories=self._event.categories,
            preprocessing=Preprocessing("public", "Scores are from 0 to 1."),
        )

    def notes(self, encoding: Encoding, table: Table) -> Iterator[str]:
        return self._event.notes(encoding.remarks(table), table)

    def query(self, encoding: Encoding) -> Query:
        names, (event, unknown) = encoding.names, self._event.inputs(encoding)
        return ScoreCells(
            score=names.index(self.score),
            missing=names.index(f"{self.score} missing"),
            event=event,
            unknown=unknown,
            intervals=self.intervals,
        )


QUESTIONS: Mapping[str, Mapping[str, type[Any]]] = MappingProxyType(
    {
        "describe": {"": DescribeQuestion},
        "metrics": {"": MetricsQuestion},
        "regress": {
            "": RegressionQuestion,
            **dict.fromkeys(("logistic", "linear", "poisson"), RegressionQuestion),
            "cox": CoxQuestion,
            "ebm": BoostQuestion,
        },
        "survival": {"": SurvivalQuestion},
    }
)  # by name, and by the argument `family`


def read_declared(encoding: str | Path | Encoding | None) -> Encoding | None:
    """The constants in a file, or as given."""
    return encoding if encoding is None or isinstance(encoding, Encoding) else Encoding.read(encoding)


def question_of(name: str, args: Mapping[str, object]) -> Question:
    """The question of this name, from plain values, as in a plan or on a command line; empty ones are defaults."""
    if name not in QUESTIONS:
        raise UserError(f"Expected an analysis, one of {', '.join(QUESTIONS)}, got {name!r}.")
    kinds, family = QUESTIONS[name], args.get("family", "")
    of_family = kinds.get(str(family))
    if of_family is None:
        raise UserError(f"Expected family to be one of {', '.join(filter(None, kinds))}, got {family!r}.")
    known = [each.name for each in fields(of_family)]
    given = {key: value for key, value in args.items() if value not in (None, "", (), [])}
    unknown = [key for key in given if key not in known]
    what = f"{name} with family={family}" if family else name
    expect(not unknown, f"arguments of {what} among {', '.join(known)}, got {list_names(unknown)}")
    lacking = [each.name for each in fields(of_family) if _is_required(each) and each.name not in given]
    expect(not lacking, f"{list_names(lacking)} of {what}")
    question: Question = of_family(
        **{key: tuple(value) if isinstance(value, list) else value for key, value in given.items()}
    )
    return question


def _is_required(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING
