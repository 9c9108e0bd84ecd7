"""Results of analyses: tables of plain values, curves and sentences, from a released sum and its columns' encoding.

A result follows from what a run's directory has: the method with its query, the encoding, and the state.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import singledispatch
from itertools import pairwise

from tacit.analyses.describe import ColumnSummary, DescribeTerms, Estimate, summaries
from tacit.analyses.metrics import ScoreCells, score_metrics
from tacit.analyses.sums import Released, Sums64
from tacit.analyses.survival import Band, SurvivalCells, bands, grid_times, log_rank
from tacit.core import Method, Query, State
from tacit.data.encoding import Encoding, Preprocessing, Scale
from tacit.errors import DataError

Cell = str | float | None
WITHOUT_NOISE = "No noise was added: these are the exact pooled results, and there is no privacy."
ALL = "all"  # the name of the only curve
WIDE = 0.5  # an interval of survival wider than this shows next to nothing


@dataclass(frozen=True)
class ResultTable:
    """A table of a result.

    Attributes:
        title: what it shows.
        columns: equally long columns by name, as `pandas.DataFrame` takes them.
    """

    title: str
    columns: Mapping[str, Sequence[Cell]]


@dataclass(frozen=True)
class StepCurve:
    """A survival curve with its band, as steps.

    Attributes:
        name: of the arm.
        times: where it may fall.
        values: from each time on.
        lower: of the band.
        upper: of the band.
    """

    name: str
    times: tuple[float, ...]
    values: tuple[float, ...]
    lower: tuple[float, ...]
    upper: tuple[float, ...]

    @classmethod
    def of(cls, band: Band, times: Sums64) -> "StepCurve":
        """The curve of an arm."""
        points = (times, band.curve.survival, band.lower, band.upper)
        return cls(band.arm, *(tuple(map(float, values)) for values in points))


@dataclass(frozen=True)
class Effect:
    """A coefficient with its two intervals, as a picture shows it.

    Attributes:
        name: of the column, or its value.
        value: the estimate.
        of_pooled: the interval of the pooled estimate.
        of_truth: the wider one, of the population.
    """

    name: str
    value: float
    of_pooled: tuple[float, float]
    of_truth: tuple[float, float]


@dataclass(frozen=True)
class Shape:
    """The score of each value of a column, as a picture shows it.

    Attributes:
        name: the column.
        edges: of the bins of a number, one more than there are; empty: it is a category.
        labels: of the values of a category.
        values: the scores.
        spread: half of the interval of 95 % of the noise in each.
    """

    name: str
    edges: tuple[float, ...]
    labels: tuple[str, ...]
    values: tuple[float, ...]
    spread: tuple[float, ...]


@dataclass(frozen=True)
class Result:
    """The result of an analysis.

    Attributes:
        title: what was asked.
        tables: the numbers.
        sentences: what they mean, and what they do not show.
        curves: to be drawn; empty: none.
        unit: of the curves' times.
        effects: to be drawn; empty: none.
        shapes: to be drawn; empty: none.
    """

    title: str
    tables: tuple[ResultTable, ...]
    sentences: tuple[str, ...]
    curves: tuple[StepCurve, ...] = ()
    unit: str = ""
    effects: tuple[Effect, ...] = ()
    shapes: tuple[Shape, ...] = ()

    @property
    def main(self) -> ResultTable:
        """The table that answers the question."""
        return next((each for each in self.tables if each.title == "curves"), self.tables[0])

    def table(self, title: str) -> dict[str, list[Cell]]:
        """The columns of the table with this title."""
        for each in self.tables:
            if each.title == title:
                return {name: list(values) for name, values in each.columns.items()}
        raise DataError(f"Expected one of the tables {', '.join(each.title for each in self.tables)}, got {title!r}.")


def result_of(method: Method, encoding: Encoding, state: State) -> Result | None:
    """The result of a method that answers a query; None: it is no analysis."""
    query = getattr(method.trainer, "query", None)
    return None if query is None else interpret(query, Released.of(method, state), encoding)


@singledispatch
def interpret(query: Query, released: Released, encoding: Encoding) -> Result | None:  # noqa: ARG001
    """The result of a released sum; None: nothing is known about such a query.

    An analysis registers its own function: `@interpret.register`.
    """
    return None


@interpret.register
def _(query: SurvivalCells, released: Released, encoding: Encoding) -> Result:
    name = next(iter(encoding.numbers))
    scale = Scale.of(encoding.numbers[name], name)
    step = (scale.high - scale.low) / (query.intervals + 2)
    times = grid_times(scale.low + step, step, query.intervals)
    arms = bands(
        query, released, times, [_category(encoding, place) for place in query.arms] or [ALL],
        actuarial=query.actuarial, sampling=query.sampling,
    )  # fmt: skip
    noisy = released.noise.deviation > 0
    test = log_rank(query, released)
    tables = [_medians(arms), _curves(arms, times)]
    sentences = list(_survival_sentences(query, arms, noisy=noisy))
    if test is not None:
        columns: dict[str, Sequence[Cell]] = {
            "χ²": [finite(test.statistic)],
            "degrees of freedom": [float(test.degrees)],
        }
        columns["p"] = [finite(test.p)]
        tables.insert(1, ResultTable("log-rank test", columns))
        sentences.append(
            "The log-rank test found no events to compare."
            if math.isnan(test.p)
            else f"Log-rank test of equal survival: p = {test.p:.3g}{', the noise included' * noisy}."
        )
    curves = [StepCurve.of(each, times) for each in arms]
    return Result(f"Survival by {name}", tuple(tables), tuple(sentences), tuple(curves), name)


def _medians(arms: Sequence[Band]) -> ResultTable:
    names = ("patients", "patients from", "patients to", "median", "median from", "median to")
    values = [(*each.patients, *map(finite, (each.median[0], each.median[1], each.median[2]))) for each in arms]
    columns: dict[str, Sequence[Cell]] = {"arm": [each.arm for each in arms]}
    for i, name in enumerate(names):
        columns[name] = [row[i] for row in values]
    return ResultTable("medians", columns)


def _curves(arms: Sequence[Band], times: Sums64) -> ResultTable:
    return ResultTable(
        "curves",
        {
            "arm": [each.arm for each in arms for _ in times],
            "time": [float(time) for _ in arms for time in times],
            "survival": [float(value) for each in arms for value in each.curve.survival],
            "survival from": [float(value) for each in arms for value in each.lower],
            "survival to": [float(value) for each in arms for value in each.upper],
            "at risk": [float(value) for each in arms for value in each.curve.at_risk],
            "events": [float(value) for each in arms for value in each.curve.events],
        },
    )


def _survival_sentences(query: SurvivalCells, arms: Sequence[Band], *, noisy: bool) -> list[str]:
    sentences = []
    if not noisy:
        sentences.append(WITHOUT_NOISE)
    else:
        what = "noise and sampling" if query.sampling else "noise, and not sampling"
        sentences.append(f"Intervals of 95 % include {what}.")
    sentences.append("Rows whose time is missing, or before the start, are left out: they count as no patient.")
    for each in arms:
        of = f" of {each.arm}" * bool(query.arms)
        if each.patients[1] <= 0 or not each.patients[0]:
            sentences.append(f"The number of patients{of} cannot be told from zero: the curve shows nothing.")
        elif each.curve.events.sum() < 0.5:
            sentences.append(f"There are no events{of}, or too few to be told from none.")
        elif noisy and float((each.upper - each.lower).mean()) > WIDE:
            sentences.append(
                f"The band{of} is too wide to be useful: use a larger ε, fewer intervals or more patients."
            )
    return sentences


@interpret.register
def _(query: DescribeTerms, released: Released, encoding: Encoding) -> Result:
    noisy = released.noise.deviation > 0
    columns = summaries(query, released, encoding.columns)
    scales = {name: Scale.of(limits, name) for name, limits in encoding.numbers.items()}
    sentences = [WITHOUT_NOISE]
    if noisy:
        what = "noise and sampling" if query.sampling else "noise, and not sampling"
        sentences = [f"Intervals of 95 % include {what}. All cells have noise of the same size.",
                     f"The standard deviation of the noise in a count is {released.noise.deviation:.3g}."]  # fmt: skip
    unknown = [each.name for each in columns if each.count.lower <= 0]
    if unknown:
        sentences.append(
            f"The number of values cannot be told from zero in {', '.join(unknown)}: more cells than patients, for "
            "this ε. Describe fewer columns, or use a larger ε."
        )
    return Result(
        "Description of the columns", (_columns_table(columns, scales), _cells_table(columns, scales, encoding)),
        tuple(sentences),
    )  # fmt: skip


def make_ranges(method: Method, encoding: Encoding, state: State) -> Encoding:
    """Ranges and categories for training, from a description's released sums alone: they cost nothing more.

    A number's range is that of its 5 and 95 % quantiles, and a category counts if its rows can be told from none.
    """
    query = getattr(method.trainer, "query", None)
    if not isinstance(query, DescribeTerms):
        raise DataError("Expected the run of a description (tacit describe), whose quantiles give ranges.")
    numbers, categories = dict(encoding.numbers), dict(encoding.categories)
    for each in summaries(query, Released.of(method, state), encoding.columns):
        if each.moments is None:
            known = zip(categories[each.name], each.cells, strict=True)
            categories[each.name] = tuple(value for value, count in known if count.lower > 0)
            continue
        scale = Scale.of(encoding.numbers[each.name], each.name)
        low, high = (scale.low + (scale.high - scale.low) * each.quantiles[part].value for part in (0.05, 0.95))
        if low < high and not scale.dates:
            numbers[each.name] = (low, high)
    source = encoding.preprocessing
    if source.source == "public":
        source = Preprocessing("public", "They follow from a private description, whose cost is in its own ledger.")
    return Encoding(numbers=numbers, categories=categories, preprocessing=source)


def _columns_table(columns: Sequence[ColumnSummary], scales: Mapping[str, Scale]) -> ResultTable:
    rows: list[tuple[str, str, Estimate]] = []
    for each in columns:
        rows += [(each.name, "count", each.count), (each.name, "missing" if each.moments else "other", each.missing)]
        if each.moments is None:
            continue
        scale = scales[each.name]
        width = scale.high - scale.low
        rows.append((each.name, "mean", each.moments.mean.scaled(width, scale.low)))
        rows.append((each.name, "standard deviation", each.moments.deviation.scaled(width)))
        rows += [
            (each.name, f"{100 * part:g} % quantile", value.scaled(width, scale.low))
            for part, value in each.quantiles.items()
        ]
    return ResultTable("columns", estimates(rows))


def _cells_table(columns: Sequence[ColumnSummary], scales: Mapping[str, Scale], encoding: Encoding) -> ResultTable:
    rows: list[tuple[str, str, Estimate]] = []
    for each in columns:
        if each.name in scales:
            scale, count = scales[each.name], len(each.cells)
            edges = [scale.low + (scale.high - scale.low) * i / count for i in range(count + 1)]
            labels = [f"{low:g} to {high:g}" for low, high in pairwise(edges)]
        else:
            labels = list(encoding.categories[each.name])
        rows += [(each.name, label, cell) for label, cell in zip(labels, each.cells, strict=True)]
    return ResultTable("cells", estimates(rows))


def estimates(rows: Sequence[tuple[str, str, Estimate]]) -> dict[str, Sequence[Cell]]:
    """Numbers with their intervals, as columns of a table."""
    return {
        "column": [name for name, _, _ in rows],
        "what": [what for _, what, _ in rows],
        "estimate": [each.value for _, _, each in rows],
        "from": [each.lower for _, _, each in rows],
        "to": [each.upper for _, _, each in rows],
    }


def _category(encoding: Encoding, place: int) -> str:
    """The category whose input this is."""
    name = encoding.names[place]
    return next(name[len(column) + 1 :] for column in encoding.categories if name.startswith(f"{column}="))


def finite(value: float) -> float | None:
    """The number; None: there is none to show."""
    return value if math.isfinite(value) else None


@interpret.register
def _(query: ScoreCells, released: Released, encoding: Encoding) -> Result:
    metrics = score_metrics(query, released)
    score = next(iter(encoding.numbers))
    rows = [(score, "AUROC", metrics.auroc), (score, "rows", metrics.rows), (score, "events", metrics.events)]
    calibration: list[tuple[str, str, Estimate]] = []
    for count, middle, rate in metrics.calibration:
        name = f"scores about {middle:.3g}"
        calibration += [(name, "rows", count), (name, "with outcome", rate)]
    sentence = WITHOUT_NOISE
    if released.noise.deviation:
        sentence = "Intervals of 95 % include noise, and not sampling."
    tables = (ResultTable("metrics", estimates(rows)), ResultTable("calibration", estimates(calibration)))
    return Result(f"Discrimination and calibration of {score}", tables, (sentence,))
