"""A comparison as a picture: lines over the rounds, points over an argument, histograms, maps, or images."""

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tacit.errors import UserError
from tacit.report import histograms, maps, pictures, scatter
from tacit.report.comparison import Comparison, Curves, Row
from tacit.report.plots import Gallery, Histogram, Maps, Picture, Plot, Points
from tacit.report.style import ABOVE, BELOW, COLOURS, INK, ONE, WIDTH, caption, plain, require

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Numbers = NDArray[np.float64]
SEVERAL, NAME = 2.1, 0.36  # inches: the height of a panel that is not alone, of a name


@dataclass(frozen=True, eq=False)
class Line:
    """A row's quantity over the rounds: the mean of its seeds, and from least to most."""

    row: Row
    colour: str
    x: Numbers
    mean: Numbers
    least: Numbers
    most: Numbers


def render(comparison: Comparison) -> bytes:
    """The picture, a PNG; equal comparisons give equal bytes."""
    require()
    if comparison.plot is None:
        raise UserError(f"Expected a figure, but {comparison.name} is a table.")
    return png(_drawn(comparison, comparison.plot))


def png(figure: "Figure") -> bytes:
    """The picture's bytes, the same on all machines."""
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=160, metadata={"Software": None})
    return content.getvalue()


def _drawn(comparison: Comparison, plot: Picture) -> "Figure":
    match plot:
        case Histogram():
            return histograms.draw(comparison, plot)
        case Points():
            return scatter.draw(comparison, plot)
        case Maps():
            return maps.draw(comparison, plot)
        case Gallery():
            return pictures.draw(comparison.title, plot)
        case Plot():
            return _figure(comparison, plot)


def _figure(comparison: Comparison, plot: Plot) -> "Figure":
    from matplotlib.figure import Figure

    names = NAME * len(comparison.rows) * (1.3 if len(plot.y) > 1 else 1.0)  # and the space between panels
    height = ABOVE + max(ONE if len(plot.y) == 1 else SEVERAL, names) * len(plot.y) + BELOW
    figure = Figure(figsize=(WIDTH, height))
    edge = {"left": 0.115, "right": 0.75, "top": 1 - ABOVE / height, "bottom": BELOW / height}
    grid = figure.subplots(len(plot.y), 1, sharex=True, squeeze=False, gridspec_kw={"hspace": 0.45, **edge})
    panels: list[Axes] = list(grid[:, 0])
    for panel, quantity in zip(panels, plot.y, strict=True):
        lines = [*_lines(comparison.rows, quantity)]
        _dress(panel, plot, quantity)
        _draw(panel, lines)
        _name(panel, lines, NAME / (panel.get_position().height * height))
    panels[-1].set_xlabel("round", color=INK)
    figure.text(edge["left"], 1 - 0.18 / height, comparison.title, size=12, color=INK, va="top")
    figure.text(edge["left"], 0.12 / height, caption(comparison, "Line", "band"), size=8, color=INK, va="bottom")
    return figure


def _lines(rows: Sequence[Row], quantity: str) -> Iterator[Line]:
    for index, row in enumerate(rows):
        curves = [trial.curves for trial in row.trials if trial.curves.get(quantity)]
        if not curves:
            continue
        points = [_measured(curve, quantity) for curve in curves]
        x = np.unique(np.concatenate([rounds for rounds, _ in points]))
        y = np.array([np.interp(x, *both, left=np.nan) if len(both[0]) else x * np.nan for both in points])
        seen = ~np.isnan(y).any(axis=0)
        x, y = x[seen], y[:, seen]
        if len(x):
            yield Line(row, COLOURS[index % len(COLOURS)], x, y.mean(0), y.min(0), y.max(0))


def _measured(curve: Curves, quantity: str) -> tuple[Numbers, Numbers]:
    """The rounds in which a quantity was measured, and what it was; a run that stops stays at its last value."""
    x, y = (np.array(curve[name], dtype=np.float64) for name in ("round", quantity))  # None becomes NaN
    return x[~np.isnan(y)], y[~np.isnan(y)]


def _draw(panel: "Axes", lines: Sequence[Line]) -> None:
    for line in lines:
        panel.fill_between(line.x, line.least, line.most, color=line.colour, alpha=0.18, linewidth=0)
        panel.plot(line.x, line.mean, color=line.colour, linewidth=1.6, solid_capstyle="round")
        if line.row.spent:
            panel.plot(line.x[-1:], line.mean[-1:], "o", color=line.colour, markersize=7, clip_on=False, zorder=5)


def _name(panel: "Axes", lines: Sequence[Line], apart: float) -> None:
    """Names to the right of the panel, as high as their lines end, led there by a dotted line and kept apart."""
    panel.get_xlim(), panel.get_ylim()  # settles the scales
    to_panel, inside = panel.transData - panel.transAxes, panel.transAxes
    ends = [to_panel.transform((line.x[-1], line.mean[-1])) for line in lines]
    for line, (x, y), at in zip(lines, ends, _spread([float(y) for _, y in ends], apart), strict=True):
        (leader,) = panel.plot([x, 1.0, 1.02], [y, y, at], transform=inside, color=line.colour, linewidth=0.9)
        leader.set(linestyle=(0, (1, 2)), clip_on=False)
        text = f"{line.row.name}\n{line.mean[-1]:.3g} after {line.x[-1]:.0f} rounds"
        panel.text(1.03, at, text, transform=inside, color=line.colour, size=8.5, va="center")


def _spread(heights: Sequence[float], apart: float) -> list[float]:
    """The nearest heights in the same order that are at least so far apart, and within the panel if they fit.

    Example:
        >>> _spread([0.5, 0.1, 0.5], 0.2)
        [0.4, 0.1, 0.6]
    """
    order = sorted(range(len(heights)), key=lambda i: heights[i])
    placed = [heights[i] for i in order]
    for _ in range(200):
        for low in range(len(placed) - 1):
            lack = apart - (placed[low + 1] - placed[low])
            if lack > 1e-9:
                placed[low] -= lack / 2
                placed[low + 1] += lack / 2
    above = min(max(placed[-1] - 1, 0.0), max(placed[0], 0.0)) if placed else 0.0
    placed = [height - above for height in placed]
    result = [0.0] * len(heights)
    for position, index in enumerate(order):
        result[index] = round(placed[position], 6)
    return result


def _dress(panel: "Axes", plot: Plot, quantity: str) -> None:
    panel.set_title(plot.labels.get(quantity, quantity), loc="left", size=9.5, color=INK)
    if "round" in plot.log:
        panel.set_xscale("log")
    else:
        panel.locator_params(axis="x", integer=True)
    if quantity in plot.log:
        panel.set_yscale("log")
    else:
        panel.yaxis.set_major_formatter(lambda value, _: f"{value:.6g}")  # no power of ten apart from its number
    plain(panel)
