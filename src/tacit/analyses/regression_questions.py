"""Questions on how an outcome depends on columns: regressions, hazards, and boosted additive models."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain

from tacit.analyses.boosting import BoostTerms, Columns
from tacit.analyses.fit_rule import plan_boosting, plan_fit
from tacit.analyses.fitting import FitPlan
from tacit.analyses.hazards import HazardTerms
from tacit.analyses.question import LEFT_OUT, Event, Question, TimeGrid, choose_columns, encode_columns, notes_on_gaps
from tacit.analyses.regression import FAMILIES, Design, Family, RegressionTerms
from tacit.analyses.sums import SumRelease, method_of
from tacit.core import Method
from tacit.core.schema import list_names
from tacit.data.encoding import Encoding, Scale
from tacit.data.tables import Table
from tacit.errors import DataError, expect, one_of

DEFAULT_PIECES = 5  # of the grid of hazards by default


@dataclass(frozen=True, kw_only=True)
class RegressionQuestion(Question):
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

    def __post_init__(self) -> None:
        one_of(FAMILIES, family=self.family)
        expect(bool(self._column), "the column of the target")

    @property
    def _event(self) -> Event | None:
        return Event.of(self.target) if self.family == "logistic" else None

    @property
    def _column(self) -> str:
        return self.target if self._event is None else self._event.column

    def encode(self, table: Table, declared: Encoding | None) -> Encoding:
        target = self._column
        table.check_known(target, "target")
        numbers, texts = choose_columns(table, self.columns, self.drop, (target,), declared)
        if self._event is not None:
            encoding = encode_columns(table, numbers, texts, declared)
            if declared is None:
                self._event.check_among(table, "target")
            return replace(encoding, categories={**encoding.categories, **self._event.categories})
        encoding = encode_columns(table, (*numbers, target), texts, declared)
        low, high = encoding.numbers[target]
        if isinstance(low, str) or isinstance(high, str):
            raise DataError(f"Expected {target!r} as numbers, got dates.")
        if self.family == "poisson":
            expect(low >= 0 < high, f"counts of {target!r} from 0, got numbers from {low:g} to {high:g}")
            low = 0.0
        return replace(encoding, numbers={**encoding.numbers, target: (low, high)})

    def notes(self, encoding: Encoding, table: Table) -> Iterator[str]:
        remarks = chain(encoding.remarks(table, unlisted=LEFT_OUT), notes_on_gaps(table, encoding.numbers))
        return remarks if self._event is None else self._event.notes(remarks, table)

    def query(self, encoding: Encoding) -> RegressionTerms:
        target, names = self._column, encoding.names
        if self._event is not None:
            outcome, unknown = self._event.inputs(encoding)
        else:
            outcome, unknown = names.index(target), names.index(f"{target} missing")
        return RegressionTerms(
            family=self.family,
            design=_design(encoding, (target,)),
            target=outcome,
            unknown=unknown,
            plan=FitPlan(1),
            largest=Scale.of(encoding.numbers[target], target).high if self.family == "poisson" else 1.0,
        )

    def method(self, encoding: Encoding, release: SumRelease) -> Method:
        query = plan_fit(self.query(encoding), release)
        return method_of(self.name, query, release, rounds=query.plan.releases, server=query.step)


@dataclass(frozen=True, kw_only=True)
class CoxQuestion(Question):
    """How the hazard of an event depends on other columns.

    Args:
        time: the column of times since the start.
        event: the column of events, as `died` (where it is 1) or `died=yes`.
        family: `cox`.
        horizon: the end of the grid of times; None: as declared by the encoding, or the largest time.
        step: the length of a piece, in which baseline hazards are constant; None: a fifth of the horizon.
        columns: what it may depend on; empty: all columns but those of client, person, time and event.
        drop: columns to leave out.
    """

    time: str
    event: str
    family: str = "cox"
    horizon: float | None = None
    step: float | None = None
    columns: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    name = "regress"

    def __post_init__(self) -> None:
        one_of(("cox",), family=self.family)
        columns = [self.time, self._event.column]
        expect(all(columns), "the columns of time and event")
        expect(len({*columns}) == 2, f"different columns of time and event, got {list_names(columns)}")
        _ = self._grid

    @property
    def _event(self) -> Event:
        return Event.of(self.event)

    @property
    def _grid(self) -> TimeGrid:
        return TimeGrid(column=self.time, horizon=self.horizon, step=self.step, intervals=DEFAULT_PIECES)

    def encode(self, table: Table, declared: Encoding | None) -> Encoding:
        table.check_known(self._event.column, "event")
        others = (self.time, self._event.column)
        numbers, texts = choose_columns(table, self.columns, self.drop, others, declared)
        limits = self._grid.limits_of(declared)
        if declared is not None and limits is not None:
            declared = replace(declared, numbers={**declared.numbers, self.time: limits}, indicators=None)
        encoding = encode_columns(table, (*numbers, self.time), texts, declared)
        if declared is None:
            self._event.check_among(table, "event")
        widened = self._grid.widen(limits or encoding.numbers[self.time])
        return replace(
            encoding,
            numbers={**encoding.numbers, self.time: widened},
            categories={**encoding.categories, **self._event.categories},
        )

    def notes(self, encoding: Encoding, table: Table) -> Iterator[str]:
        remarks = chain(encoding.remarks(table, unlisted=LEFT_OUT), notes_on_gaps(table, encoding.numbers))
        return self._event.notes(self._grid.notes(remarks, table), table)

    def query(self, encoding: Encoding) -> HazardTerms:
        names, (event, unknown) = encoding.names, self._event.inputs(encoding)
        return HazardTerms(
            design=_design(encoding, (self.time, self._event.column)),
            time=names.index(self.time),
            missing=names.index(f"{self.time} missing"),
            event=event,
            unknown=unknown,
            pieces=self._grid.count(encoding),
            plan=FitPlan(1),
        )

    def method(self, encoding: Encoding, release: SumRelease) -> Method:
        query = plan_fit(self.query(encoding), release)
        return method_of(self.name, query, release, rounds=query.plan.releases, server=query.step)


@dataclass(frozen=True, kw_only=True)
class BoostQuestion(Question):
    """How the probability of an event depends on other columns, by a curve for each of them.

    Args:
        target: the column of the outcome, as `died` (where it is 1) or `died=yes`.
        family: `ebm`.
        columns: what it may depend on; empty: all columns but those of client, person and outcome.
        drop: columns to leave out.
    """

    target: str
    family: str = "ebm"
    columns: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    name = "regress"

    def __post_init__(self) -> None:
        one_of(("ebm",), family=self.family)
        expect(bool(self._event.column), "the column of the target")

    @property
    def _event(self) -> Event:
        return Event.of(self.target)

    def encode(self, table: Table, declared: Encoding | None) -> Encoding:
        table.check_known(self._event.column, "target")
        columns = choose_columns(table, self.columns, self.drop, (self._event.column,), declared)
        encoding = encode_columns(table, *columns, declared)
        if declared is None:
            self._event.check_among(table, "target")
        return replace(encoding, categories={**encoding.categories, **self._event.categories})

    def notes(self, encoding: Encoding, table: Table) -> Iterator[str]:
        remarks = encoding.remarks(table, unlisted="count as one further category")
        return self._event.notes(remarks, table)

    def query(self, encoding: Encoding) -> BoostTerms:
        design, (event, unknown) = _design(encoding, (self._event.column,)), self._event.inputs(encoding)
        columns = Columns(numbers=design.numbers, missing=design.missing, categories=design.categories)
        return BoostTerms(columns=columns, target=event, unknown=unknown, plan=FitPlan(1))

    def method(self, encoding: Encoding, release: SumRelease) -> Method:
        query = plan_boosting(self.query(encoding), release)
        return method_of(self.name, query, release, rounds=query.plan.releases, server=query.step)


def _design(encoding: Encoding, others: tuple[str, ...]) -> Design:
    """The inputs of all columns but these."""
    inputs = {name: place for place, name in enumerate(encoding.names)}
    numbers = [name for name in encoding.numbers if name not in others]
    categories = {name: values for name, values in encoding.categories.items() if name not in others}
    return Design(
        numbers=tuple(inputs[name] for name in numbers),
        missing=tuple(inputs[f"{name} missing"] for name in numbers),
        categories=tuple(tuple(inputs[f"{name}={value}"] for value in values) for name, values in categories.items()),
    )
