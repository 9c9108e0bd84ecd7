"""A comparison as a PNG figure: lines over rounds, histograms, points over an argument, importance maps or images."""

from collections.abc import Iterator, Mapping, Sequence
from functools import singledispatch

import numpy as np

from tacit import methods
from tacit.errors import UserError
from tacit.papers.comparison import Comparison, ComparisonRow, Curves
from tacit.papers.figure_specs import FigureSpec, HistogramPanel, HistogramPlot, ImportanceMaps, LinePlot, ScatterPlot
from tacit.report import charts
from tacit.report.charts import Density, ErrorBars, Line, LinePanel, Numbers
from tacit.report.pictures import Gallery, ValueMap, draw_gallery, draw_maps
from tacit.report.style import COLOURS, require_matplotlib

MEAN = "mean"
_NO_MEAN = ("", "1")  # seeds of a comparison whose lines are not means
SHORT_VERSION = "Short version: not for comparison."


def render(comparison: Comparison) -> bytes:
    """Draw the figure as PNG; equal comparisons give equal bytes."""
    require_matplotlib()
    if comparison.plot is None:
        raise UserError(f"Expected a figure, but {comparison.name} is a table.")
    return _draw(comparison.plot, comparison)


@singledispatch
def _draw(plot: FigureSpec, comparison: Comparison) -> bytes:
    raise AssertionError(f"{comparison.name} is of no kind below: {type(plot).__name__}.")


@_draw.register
def _draw_histograms(plot: HistogramPlot, comparison: Comparison) -> bytes:
    panels = [(panel.title, [*densities(comparison.rows, panel)]) for panel in plot.panels]
    return charts.draw_histograms(comparison.title, caption(comparison, "Outline", "shade"), panels)


@_draw.register
def _draw_scatter(plot: ScatterPlot, comparison: Comparison) -> bytes:
    x, y = (plot.labels.get(name, name) for name in (plot.x, plot.y))
    bars = [*error_bars(comparison.rows, plot)]
    return charts.draw_error_bars(comparison.title, _scatter_caption(comparison), bars, x, y)


@_draw.register
def _draw_maps(plot: ImportanceMaps, comparison: Comparison) -> bytes:
    note = f"Client {plot.client}. Light: important; each map is scaled to its own minimum and maximum."
    maps = _grid(importance_maps(comparison), plot)
    return draw_maps(comparison.title, note, maps, len(plot.importance), len(plot.at) + 1)


@_draw.register
def _draw_images(plot: Gallery, comparison: Comparison) -> bytes:
    return draw_gallery(comparison.title, plot)


@_draw.register
def _draw_lines(plot: LinePlot, comparison: Comparison) -> bytes:
    panels = [
        LinePanel(plot.labels.get(name, name), [*lines(comparison.rows, name)], log=name in plot.log) for name in plot.y
    ]
    names, log_x = len(comparison.rows), "round" in plot.log
    return charts.draw_lines(comparison.title, caption(comparison, "Line", "band"), panels, names=names, log_x=log_x)


def lines(rows: Sequence[ComparisonRow], quantity: str) -> Iterator[Line]:
    """A line per row in which the quantity was measured, with the spread over seeds."""
    for index, row in enumerate(rows):
        curves = [trial.curves for trial in row.trials if trial.curves.get(quantity)]
        if not curves:
            continue
        points = [_points(curve, quantity) for curve in curves]
        x = np.unique(np.concatenate([rounds for rounds, _ in points]))
        y = np.array([np.interp(x, *both, left=np.nan) if len(both[0]) else x * np.nan for both in points])
        complete = ~np.isnan(y).any(axis=0)
        x, y = x[complete], y[:, complete]
        if len(x):
            yield Line(row.name, COLOURS[index % len(COLOURS)], x, y.mean(0), y.min(0), y.max(0), dot=row.spent)


def _points(curve: Curves, quantity: str) -> tuple[Numbers, Numbers]:
    """The rounds in which a quantity was measured, and its values."""
    x, y = (np.array(curve[name], dtype=np.float64) for name in ("round", quantity))  # None becomes NaN
    return x[~np.isnan(y)], y[~np.isnan(y)]


def densities(rows: Sequence[ComparisonRow], panel: HistogramPanel) -> Iterator[Density]:
    """The histograms of a panel, in its order; rows without one are omitted."""
    by_name = {row.name: row for row in rows}
    for index, name in enumerate(panel.rows):
        trials = by_name[name].trials if name in by_name else ()
        curves = [trial.curves for trial in trials if "density" in trial.curves]
        if curves:
            y = np.array([curve["density"] for curve in curves], dtype=np.float64)
            x = np.array(curves[0]["weight"], dtype=np.float64)
            yield Density(name, COLOURS[index % len(COLOURS)], x, y.mean(0), y.min(0), y.max(0))


def error_bars(rows: Sequence[ComparisonRow], plot: ScatterPlot) -> Iterator[ErrorBars]:
    """The lines in the order of their argument; rows without a measured quantity are omitted."""
    groups: dict[float, list[tuple[float, Numbers]]] = {}
    for row in rows:
        values = [trial.values.get(plot.y) for trial in row.trials]
        if values and all(value is not None for value in values):
            point = (_argument(row, plot.x), np.array(values, dtype=np.float64))
            groups.setdefault(_argument(row, plot.lines), []).append(point)
    for value in sorted(groups):
        points = sorted(groups[value], key=lambda pair: pair[0])
        deviations = [np.std(y, ddof=1) if len(y) > 1 else 0.0 for _, y in points]
        name = f"{plot.labels.get(plot.lines, plot.lines)} {value:g}"
        x, means = ([x for x, _ in points], [y.mean() for _, y in points])
        yield ErrorBars(name, np.array(x), np.array(means), np.array(deviations))


def _argument(row: ComparisonRow, name: str) -> float:
    value = row.args.get(methods.short_names(row.method).get(name, name), 0.0)
    return float(value) if isinstance(value, int | float) else 0.0


def importance_maps(comparison: Comparison) -> dict[str, Numbers]:
    """Each map of the first row's first seed, in the shape of the inputs."""
    trials = comparison.rows[0].trials if comparison.rows else ()
    curves: Curves = trials[0].curves if trials else {}
    if "shape" not in curves:
        raise UserError(f"Expected {comparison.name} to have importance maps. Save it again.")
    shape = [int(side or 0) for side in curves["shape"]]
    return {
        name: np.array(values, dtype=np.float64).reshape(shape) for name, values in curves.items() if name != "shape"
    }


def map_name(measure: str, number: int) -> str:
    """The name of a map among a trial's curves."""
    return f"{measure}, round {number}"


def _grid(maps: Mapping[str, Numbers], plot: ImportanceMaps) -> Iterator[ValueMap]:
    yield ValueMap(0, 0, "mean of all samples", maps[MEAN])
    for line, measure in enumerate(plot.importance):
        for column, number in enumerate(plot.at, start=1):
            name = map_name(measure, number)
            if name in maps:  # the short version has fewer rounds
                yield ValueMap(line, column, name, maps[name])


def caption(comparison: Comparison, line: str, band: str) -> str:
    """Explain dots, lines and bands, as far as they are drawn; caveats follow."""
    sentences = []
    if line == "Line" and any(row.spent for row in comparison.rows):
        sentences.append("Dot: the privacy budget allows no further round.")
    if comparison.seeds not in _NO_MEAN:
        sentences.append(f"{line}: mean of {comparison.seeds} seeds; {band}: minimum to maximum.")
    lengths = [{trial.values.get("rounds") for trial in row.trials} for row in comparison.rows]
    if line == "Line" and any(len(each) > 1 for each in lengths):
        sentences.append("A run that stopped earlier keeps its last value.")
    sentences += dict.fromkeys(row.caveat for row in comparison.rows if row.caveat)
    if comparison.fast:
        sentences.append(SHORT_VERSION)
    return " ".join(sentences)


def _scatter_caption(comparison: Comparison) -> str:
    means = comparison.seeds not in _NO_MEAN
    sentences = [f"Point: mean of {comparison.seeds} seeds; bar: one standard deviation each way."] * means
    return " ".join([*sentences, *[SHORT_VERSION] * comparison.fast])
