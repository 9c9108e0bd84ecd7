"""Analyses for readers: a result with its guarantee, its tables and its picture, and its part of a run's page."""

import math
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from tacit.analyses.questions import DescribeQuestion, Question, SurvivalQuestion, question_of
from tacit.analyses.results import Cell, Effect, Result, ResultTable, Shape, StepCurve, make_ranges
from tacit.data.encoding import Encoding
from tacit.errors import one_line
from tacit.privacy.guarantee import AnyGuarantee
from tacit.report.labels import number
from tacit.report.markup import Html, details, element, join, table
from tacit.report.style import COLOURS, INK
from tacit.runs.analyses import Setting, result_of_run, spec_of
from tacit.runs.run import Run
from tacit.runs.training import follow

SVG_WIDTH, SVG_HEIGHT, MARGIN_LEFT, MARGIN_BELOW, MARGIN_RIGHT, MARGIN_ABOVE = 720, 360, 46, 46, 130, 14  # of a picture
LONG = 60  # lines of a table above which a click opens it
MAX_CURVES = 8
MAX_EFFECTS = 40


@dataclass(frozen=True, eq=False)
class Analysis:
    """The answer to a question about a table, with what it cost.

    Attributes:
        run: the run that answered it, with its bytes, charges and directory.
    """

    run: Run

    @cached_property
    def result(self) -> Result:
        """All tables, curves and sentences."""
        return result_of_run(self.run)

    @property
    def guarantee(self) -> AnyGuarantee:
        """What is proved about the persons, or records, of the table."""
        return self.run.privacy

    @property
    def frame(self) -> dict[str, list[Cell]]:
        """The main table by columns, as `pandas.DataFrame` takes them: `columns`, `curves` or `coefficients`."""
        return self.table(self.result.main.title)

    def table(self, title: str) -> dict[str, list[Cell]]:
        """Another table by columns: `cells`; `medians`, `log-rank test`; `discrimination`, `calibration`."""
        return self.result.table(title)

    @property
    def encoding(self) -> Encoding:
        """Ranges and categories for `Task.from_table(encoding=...)`, from the description's noisy sums alone."""
        assert self.run.spec.task.encoding is not None  # an analysis is of a table
        return make_ranges(self.run.spec.method, self.run.spec.task.encoding, self.run.state)

    @property
    def figure(self) -> str:
        """The curves with their bands, or the coefficients, as a picture in SVG; empty: there are none."""
        return draw(self.result)

    def _repr_svg_(self) -> str | None:
        return self.figure or None

    def _repr_html_(self) -> str:
        """The result for notebooks."""
        return result_section(self.result)

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        return "\n".join((*lines_of(self.result), "", str(self.guarantee)))


def describe(
    table: Any,
    *,
    client: str | None = None,
    epsilon: float | None = 1.0,
    delta: float = 1e-5,
    columns: Sequence[str] = (),
    drop: Sequence[str] = (),
    bins: int = 20,
    person: str = "",
    encoding: Any = None,
    sampling: bool = False,
    **options: Any,
) -> Analysis:
    """Counts, missing values, means, deviations, histograms and quantiles of a table's columns, with intervals.

    Args:
        table: a CSV or Parquet file, a frame, or a dictionary of columns, as for `Task.from_table`.
        client: the column that names the client, such as a hospital.
        epsilon: the privacy budget ε of every person; None: the exact pooled result, without privacy.
        delta: the δ of ε; it should be well below one over the number of persons.
        columns: which; empty: all but those of client and person.
        drop: columns to leave out.
        bins: cells of a number's histogram.
        person: the column of person ids, whose rows count as one; empty: each row is a person of its own.
        encoding: the file that declares ranges and categories; None: those of the rows, which no guarantee covers.
        sampling: whether intervals include sampling.
        **options: `out`, `ledger` and `workers` as for `tacit.train`; `seed`, `randomness` and `dropouts`.

    Example:
        >>> rows = {"hospital": ["A", "B", "C"] * 40, "age": list(range(120))}
        >>> described = describe(rows, client="hospital", epsilon=None)
        >>> described.frame["what"][:3], [round(each, 3) for each in described.frame["estimate"][:3]]
        (['count', 'missing', 'mean'], [120.0, 0.0, 59.5])
    """
    question = DescribeQuestion(columns=tuple(columns), drop=_names(drop), bins=bins, sampling=sampling)
    return _answer(table, question, client, person, epsilon, delta, encoding, options)


def survival(
    table: Any,
    *,
    time: str,
    event: str,
    by: str = "",
    client: str | None = None,
    epsilon: float | None = 1.0,
    delta: float = 1e-5,
    horizon: float | None = None,
    step: float | None = None,
    person: str = "",
    encoding: Any = None,
    sampling: bool = False,
    **options: Any,
) -> Analysis:
    """Kaplan–Meier curves with bands, medians, and the log-rank test between arms.

    Args:
        table: as for `describe`.
        time: the column of times since the start, as numbers.
        event: the column of events, as `died` (an event where it is 1) or `died=yes`.
        by: the column of arms; empty: one curve.
        client: the column that names the client.
        epsilon: the privacy budget ε of every person; None: the exact pooled result, without privacy.
        delta: the δ of ε. The noise itself needs none.
        horizon: the end of the grid of times; None: the largest time, which no guarantee covers, or as declared.
        step: the length of an interval of the grid; None: a thirtieth of the horizon.
        person: the column of person ids, of whom the first row counts.
        encoding: the file that declares the range of times and the arms.
        sampling: whether bands include sampling.
        **options: as for `describe`.

    Example:
        >>> rows = {"site": ["A", "B", "C"] * 2, "days": [1, 2, 3, 4, 5, 6], "died": [1, 0, 1, 1, 0, 1]}
        >>> exact = survival(rows, time="days", event="died", client="site", epsilon=None)
        >>> [round(value, 4) for value in exact.frame["survival"]][1:]
        [0.8333, 0.8333, 0.625, 0.4167, 0.4167, 0.0]
    """
    question = SurvivalQuestion(time=time, event=event, by=by, horizon=horizon, step=step, sampling=sampling)
    return _answer(table, question, client, person, epsilon, delta, encoding, options)


def regress(
    table: Any,
    *,
    target: str = "",
    family: Literal["logistic", "linear", "poisson", "cox", "ebm"] = "logistic",
    time: str = "",
    event: str = "",
    client: str | None = None,
    epsilon: float | None = 1.0,
    delta: float = 1e-5,
    horizon: float | None = None,
    step: float | None = None,
    columns: Sequence[str] = (),
    drop: Sequence[str] = (),
    person: str = "",
    encoding: Any = None,
    **options: Any,
) -> Analysis:
    """Regression: coefficients with intervals, or a curve for each column; for events calibration and AUROC.

    Rounds and steps follow from a public rule of ε and the numbers of persons and coefficients, which the result
    states. Rows with a missing value are left out, except by `ebm`, for which it is a value.

    Args:
        table: as for `describe`.
        target: the column of the outcome; for `logistic` and `ebm` as `died` (an event where it is 1) or `died=yes`.
        family: `logistic`, `linear` or `poisson`; `cox` for times to an event, by hazards that are constant in pieces
            of a grid; or `ebm` for an additive model of curves by boosting.
        time: the column of times since the start, of `cox`, which has no target.
        event: that of its events, as `died` or `died=yes`.
        client: the column that names the client.
        epsilon: the privacy budget ε of every person, for all rounds; None: the exact pooled result, without privacy.
        delta: the δ of ε.
        horizon: the end of the grid of `cox`; None: the largest time, which no guarantee covers, or as declared.
        step: the length of a piece of the grid; None: a fifth of the horizon.
        columns: on which the outcome depends; empty: all but those of client, person and outcome.
        drop: columns to leave out.
        person: the column of person ids, whose rows count as one together.
        encoding: the file that declares ranges and categories, also that of the outcome; None: those of the rows.
        **options: as for `describe`.

    Example:
        >>> rows = {"site": ["A", "B", "C"] * 40, "age": [i % 60 + 20 for i in range(120)]}
        >>> rows["died"] = [int((7 * i) % 100 < age) for i, age in enumerate(rows["age"])]
        >>> exact = regress(rows, target="died", client="site", epsilon=None)
        >>> exact.frame["column"], round(exact.frame["odds ratio"][1], 3)
        (['intercept', 'age'], 1.039)
    """
    asked = {
        "target": target, "family": family, "time": time, "event": event, "horizon": horizon, "step": step,
        "columns": tuple(columns), "drop": _names(drop),
    }  # fmt: skip
    return _answer(table, question_of("regress", asked), client, person, epsilon, delta, encoding, options)


def _answer(
    source: Any,
    question: Question,
    client: str | None,
    person: str,
    epsilon: float | None,
    delta: float,
    encoding: Any,
    options: Mapping[str, Any],
) -> Analysis:
    training = {key: options[key] for key in ("out", "ledger", "workers") if key in options}
    more = {key: value for key, value in options.items() if key not in training}
    setting = Setting(client=client, person=person, epsilon=epsilon, delta=delta, encoding=encoding, **more)
    return run_analysis(source, question, setting, **training)


def run_analysis(
    source: Any,
    question: Question,
    setting: Setting,
    *,
    out: Path | str | None = None,
    ledger: Path | str | None = None,
    workers: Any = 1,
) -> Analysis:
    """The answer to a question, whose run is charged and, with `out`, kept."""
    spec = spec_of(source, question, setting)
    directory, shared = (None if path is None else Path(path) for path in (out, ledger))
    (run,) = deque(follow(spec, workers=workers, out=directory, ledger=shared), maxlen=1)
    return Analysis(run)


def _names(names: Sequence[str]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


def lines_of(result: Result) -> list[str]:
    """A result as text: its short tables, aligned, and its sentences."""
    lines = []
    for each in result.tables:
        rows = [list(each.columns), *(map(_format, row) for row in zip(*each.columns.values(), strict=True))]
        if len(rows) > LONG:
            continue
        texts = [[str(cell) for cell in row] for row in rows]
        widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
        lines += [each.title, *("  ".join(map(str.ljust, row, widths)).rstrip() for row in texts), ""]
    return [*lines, *result.sentences]


def result_section(result: Result) -> Html:
    """The result on a page: picture, tables, and what they mean."""
    drawn = draw(result)
    picture = element("figure", Html(drawn)) if drawn else None
    return join([picture, *(element("p", each) for each in result.sentences), *map(_table, result.tables)])


def _table(content: ResultTable) -> Html:
    names = list(content.columns)
    rows = [list(map(_format, row)) for row in zip(*content.columns.values(), strict=True)]
    texts = sum(any(isinstance(value, str) for value in content.columns[name]) for name in names)
    shown = table(f"{content.title[:1].upper()}{content.title[1:]}", names, rows, numbers=len(names) - texts)
    return details(f"Table: {content.title}", shown) if len(rows) > LONG else shown


def _format(value: Cell) -> str:
    if value is None:
        return "–"
    return value if isinstance(value, str) else number(value)


def draw(result: Result) -> str:
    """The picture of a result, in SVG; empty: there is none."""
    if result.curves:
        return draw_curves(result.curves, result.unit)
    if result.shapes:
        return draw_shapes(result.shapes)
    return draw_effects(result.effects[:MAX_EFFECTS]) if result.effects else ""


def draw_effects(effects: Sequence[Effect]) -> str:
    """Coefficients as points with their intervals, the inner one of the pooled estimate, in SVG."""
    ends = [0.0, *(end for each in effects for end in each.of_truth)]
    low, high = min(ends), max(ends)
    left, right, height = 210, SVG_WIDTH - 20, 24
    bottom = MARGIN_ABOVE + height * len(effects)

    def across(value: float) -> float:
        return left + (right - left) * (value - low) / max(high - low, 1e-12)

    parts = [element("path", d=f"M{across(0):.1f} {MARGIN_ABOVE}V{bottom}", stroke="#999999", fill="none")]
    step = nice_step(high - low)
    marks = [step * i for i in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]
    parts += [_text(f"{mark:g}", across(mark), bottom + 18, "middle") for mark in marks]
    for row, each in enumerate(effects):
        y = MARGIN_ABOVE + height * (row + 0.5)
        parts.append(_text(one_line(each.name, 28), left - 10, y + 4, "end"))
        for limits, thick in ((each.of_truth, "1.5"), (each.of_pooled, "5")):
            line = f"M{across(limits[0]):.1f} {y:.1f}H{across(limits[1]):.1f}"
            parts.append(element("path", d=line, stroke=COLOURS[0], stroke_width=thick, fill="none"))
        parts.append(element("circle", cx=f"{across(each.value):.1f}", cy=f"{y:.1f}", r="4", fill=INK))
    words = "; ".join(f"{one_line(each.name, 28)}: {each.value:.3g}" for each in effects)
    return element(
        "svg",
        *parts,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {SVG_WIDTH} {bottom + 30}",
        role="img",
        aria_label=f"Coefficients, with intervals of 95 % of the pooled estimate (thick) and the population. {words}.",
        font_family="sans-serif",
        font_size="13",
    )


def draw_curves(curves: Sequence[StepCurve], unit: str) -> str:
    """Survival curves as steps over their bands, in SVG, with a name beside each."""
    shown = curves[:MAX_CURVES]
    last = max((max(each.times, default=1.0) for each in shown), default=1.0)
    step = nice_step(last)
    marks = [step * i for i in range(math.floor(last / step + 1e-9) + 1)]
    parts: list[Html] = []
    for value in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = _y(value)
        parts.append(element("path", d=f"M{MARGIN_LEFT} {y:.1f}H{SVG_WIDTH - MARGIN_RIGHT}", stroke="#dddddd"))
        parts.append(_text(f"{value:g}", MARGIN_LEFT - 6, y + 4, "end"))
    parts += [_text(f"{mark:g}", _x(mark, last), SVG_HEIGHT - MARGIN_BELOW + 18, "middle") for mark in marks]
    parts.append(_text(unit, (MARGIN_LEFT + SVG_WIDTH - MARGIN_RIGHT) / 2, SVG_HEIGHT - 8, "middle"))
    for i, curve in enumerate(shown):
        colour = COLOURS[i % len(COLOURS)]
        above, below = _steps(curve.times, curve.upper, last), _steps(curve.times, curve.lower, last)
        band = "M" + "L".join([*above, *reversed(below)]) + "Z"
        parts.append(element("path", d=band, fill=colour, fill_opacity="0.18", stroke="none"))
        line = "M" + "L".join(_steps(curve.times, curve.values, last))
        parts.append(element("path", d=line, fill="none", stroke=colour, stroke_width="2"))
    ends = _apart([_y(curve.values[-1]) + 4 for curve in shown])
    for i, (curve, y) in enumerate(zip(shown, ends, strict=True)):
        parts.append(_text(curve.name, SVG_WIDTH - MARGIN_RIGHT + 8, y, "start", COLOURS[i % len(COLOURS)]))
    if len(curves) > len(shown):
        more = f"and {len(curves) - len(shown)} more"
        parts.append(_text(more, SVG_WIDTH - MARGIN_RIGHT + 8, SVG_HEIGHT - 8, "start"))
    words = "; ".join(f"{each.name}: {each.values[-1]:.2f} at the end" for each in shown)
    return element(
        "svg",
        *parts,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {SVG_WIDTH} {SVG_HEIGHT}",
        role="img",
        aria_label=f"Part of the patients without the event over {unit}, with bands of 95 %. {words}.",
        font_family="sans-serif",
        font_size="13",
    )


def draw_shapes(shapes: Sequence[Shape]) -> str:
    """The scores of every column with the interval of their noise, a panel each, in SVG, all with one axis."""
    ends = [0.0, *(value + side * spread for each in shapes for value, spread in zip(each.values, each.spread,
            strict=True) for side in (-1, 1) if math.isfinite(value))]  # fmt: skip
    low, high = min(ends), max(ends)
    left, right, line, y = 210, SVG_WIDTH - 20, 16, 0.0

    def across(value: float) -> float:
        return left + (right - left) * (value - low) / max(high - low, 1e-12)

    parts: list[Html] = []
    for shape in shapes:
        y += 24
        parts.append(_text(one_line(shape.name, 60), 10, y, "start"))
        labels = shape.labels or tuple(f"{begin:.4g} to {end:.4g}" for begin, end in pairwise(shape.edges))
        rows = list(zip((*labels, "missing" if shape.edges else "other"), shape.values, shape.spread, strict=True))
        top, points = y + 6, list[str]()
        for label, value, spread in rows[:MAX_EFFECTS]:
            y += line
            parts.append(_text(one_line(label, 28), left - 10, y, "end"))
            if not math.isfinite(value):
                continue
            limits = f"M{across(value - spread):.1f} {y - 4:.1f}H{across(value + spread):.1f}"
            parts.append(element("path", d=limits, stroke=COLOURS[0], stroke_width="5", fill="none", opacity="0.4"))
            parts.append(element("circle", cx=f"{across(value):.1f}", cy=f"{y - 4:.1f}", r="3", fill=INK))
            points.append(f"{across(value):.1f} {y - 4:.1f}")
        if shape.edges:  # the last is that of missing values
            parts.append(element("path", d="M" + "L".join(points[: len(shape.edges) - 1]), stroke=INK, fill="none"))
        parts.append(element("path", d=f"M{across(0):.1f} {top:.1f}V{y:.1f}", stroke="#999999", fill="none"))
        y += 6
    step = nice_step(high - low)
    marks = [step * i for i in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]
    parts += [_text(f"{mark:g}", across(mark), y + 18, "middle") for mark in marks]
    names = ", ".join(one_line(each.name, 28) for each in shapes)
    return element(
        "svg",
        *parts,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {SVG_WIDTH} {y + 30:.0f}",
        role="img",
        aria_label=f"Scores, in log odds, of the values of {names}, with intervals of 95 % of the noise.",
        font_family="sans-serif",
        font_size="13",
    )


def nice_step(last: float) -> float:
    """A step between marks of an axis up to `last`: one, two or five times a power of ten, with four to nine of them.

    Example:
        >>> nice_step(1022), nice_step(36), nice_step(0.9)
        (200.0, 5.0, 0.2)
    """
    power = 10.0 ** math.floor(math.log10(max(last, 1e-9) / 4))
    return max(step for step in (power, 2 * power, 5 * power) if step <= max(last, 1e-9) / 4 * (1 + 1e-9))


def _apart(heights: Sequence[float], gap: float = 15.0) -> list[float]:
    """Heights moved down until they are `gap` apart, or up from the lower edge, in the same order."""
    order = sorted(range(len(heights)), key=heights.__getitem__)
    placed, below = dict.fromkeys(order, 0.0), -math.inf
    for i in order:
        placed[i] = below = max(heights[i], below + gap)
    above = SVG_HEIGHT - MARGIN_BELOW + 8.0
    for i in reversed(order):
        placed[i] = above = min(placed[i], above)
        above -= gap
    return [placed[i] for i in range(len(heights))]


def _x(time: float, last: float) -> float:
    return MARGIN_LEFT + (SVG_WIDTH - MARGIN_LEFT - MARGIN_RIGHT) * max(time, 0.0) / last


def _y(value: float) -> float:
    return MARGIN_ABOVE + (SVG_HEIGHT - MARGIN_ABOVE - MARGIN_BELOW) * (1 - value)


def _steps(times: Sequence[float], values: Sequence[float], last: float) -> list[str]:
    """The corners of a curve that is 1 at first and falls at these times."""
    points, before = [f"{_x(0, last):.1f} {_y(1):.1f}"], 1.0
    for time, value in zip(times, values, strict=True):
        points += [f"{_x(time, last):.1f} {_y(before):.1f}", f"{_x(time, last):.1f} {_y(value):.1f}"]
        before = value
    return points


def _text(words: str, x: float, y: float, anchor: str, colour: str = INK) -> Html:
    return element("text", words, x=f"{x:.1f}", y=f"{y:.1f}", text_anchor=anchor, fill=colour)
