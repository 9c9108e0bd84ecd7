"""Distributions side by side: a panel per data set, in it a shape per row. Where little was counted, shapes are low."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tacit.report.comparison import Comparison, Row
from tacit.report.plots import Histogram, Panel
from tacit.report.style import ABOVE, BELOW, COLOURS, INK, ONE, WIDTH, caption, plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Numbers = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Shape:
    """A row's density between each two edges: the mean of its seeds, and from least to most."""

    name: str
    colour: str
    edges: Numbers
    mean: Numbers
    least: Numbers
    most: Numbers


def draw(comparison: Comparison, plot: Histogram) -> "Figure":
    """The panels from left to right, each with its own axes."""
    from matplotlib.figure import Figure

    height = ABOVE + ONE + BELOW
    figure = Figure(figsize=(WIDTH, height))
    edge = {"left": 0.09, "right": 0.98, "top": 1 - ABOVE / height, "bottom": BELOW / height}
    grid = figure.subplots(1, len(plot.panels), squeeze=False, gridspec_kw={"wspace": 0.25, **edge})
    axes: list[Axes] = list(grid[0])
    for axis, panel in zip(axes, plot.panels, strict=True):
        _dress(axis, panel)
        _fill(axis, [*shapes(comparison.rows, panel)])
    axes[0].set_ylabel("density", color=INK)
    figure.text(edge["left"], 1 - 0.18 / height, comparison.title, size=12, color=INK, va="top")
    figure.text(edge["left"], 0.12 / height, caption(comparison, "Shape", "shade"), size=8, color=INK, va="bottom")
    return figure


def shapes(rows: Sequence[Row], panel: Panel) -> Iterator[Shape]:
    """What is drawn in a panel, in its order; rows that were not counted are left out."""
    known = {row.name: row for row in rows}
    for index, name in enumerate(panel.rows):
        trials = known[name].trials if name in known else ()
        curves = [trial.curves for trial in trials if "density" in trial.curves]
        if curves:
            y = np.array([curve["density"] for curve in curves], dtype=np.float64)
            x = np.array(curves[0]["weight"], dtype=np.float64)
            yield Shape(name, COLOURS[index % len(COLOURS)], x, y.mean(0), y.min(0), y.max(0))


def _fill(axis: "Axes", drawn: Sequence[Shape]) -> None:
    for shape in drawn:
        axis.stairs(shape.mean, shape.edges, color=shape.colour, linewidth=1.6, label=shape.name)
        axis.stairs(shape.most, shape.edges, baseline=shape.least, fill=True, color=shape.colour, alpha=0.25)
    if drawn:
        axis.legend(frameon=False, fontsize=8.5, labelcolor="linecolor")


def _dress(axis: "Axes", panel: Panel) -> None:
    axis.set_title(panel.title, loc="left", size=9.5, color=INK)
    axis.set_xlabel("weight", color=INK)
    axis.locator_params(axis="x", nbins=5)
    plain(axis)
