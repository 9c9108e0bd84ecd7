"""Charts with the spread over seeds: lines over rounds, histograms side by side, points with error bars.

Callers pass plain arrays and strings and receive a PNG; only this package imports Matplotlib.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tacit.report.style import (
    ABOVE,
    BELOW,
    COLOURS,
    INK,
    PANEL,
    WIDTH,
    add_title_and_caption,
    new_figure,
    plain,
    to_png,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Numbers = NDArray[np.float64]
STACKED, _NAME = 2.1, 0.36  # inches: height of one panel of several, height of a name beside a panel
SHIFT = 0.012  # of the x axis, between error bars that would overlap


@dataclass(frozen=True, eq=False)
class Line:
    """A quantity over rounds: mean, minimum and maximum over seeds; `dot` marks the last round."""

    name: str
    colour: str
    x: Numbers
    mean: Numbers
    lowest: Numbers
    highest: Numbers
    dot: bool = False


@dataclass(frozen=True, eq=False)
class LinePanel:
    """Lines that share axes; `log` makes the y axis logarithmic."""

    title: str
    lines: Sequence[Line]
    log: bool = False


@dataclass(frozen=True, eq=False)
class Density:
    """A histogram normalised to area 1: mean, minimum and maximum over seeds between each two edges."""

    name: str
    colour: str
    edges: Numbers
    mean: Numbers
    lowest: Numbers
    highest: Numbers


@dataclass(frozen=True, eq=False)
class ErrorBars:
    """Points with their standard deviation over seeds, joined by a line."""

    name: str
    x: Numbers
    mean: Numbers
    deviation: Numbers


def draw_lines(title: str, caption: str, panels: Sequence[LinePanel], *, names: int, log_x: bool = False) -> bytes:
    """Draw panels below each other over one axis of rounds, with space for `names` names beside each."""
    beside = _NAME * names * (1.3 if len(panels) > 1 else 1.0)  # includes the space between panels
    height = ABOVE + max(PANEL if len(panels) == 1 else STACKED, beside) * len(panels) + BELOW
    figure = new_figure(WIDTH, height)
    edge = {"left": 0.115, "right": 0.75, "top": 1 - ABOVE / height, "bottom": BELOW / height}
    grid = figure.subplots(len(panels), 1, sharex=True, squeeze=False, gridspec_kw={"hspace": 0.45, **edge})
    axes: list[Axes] = list(grid[:, 0])
    for axis, panel in zip(axes, panels, strict=True):
        _prepare_line_axis(axis, panel, log_x)
        _draw_lines(axis, panel.lines)
        _name_lines(axis, panel.lines, _NAME / (axis.get_position().height * height))
    axes[-1].set_xlabel("round", color=INK)
    add_title_and_caption(figure, title, caption, edge["left"])
    return to_png(figure)


def draw_histograms(title: str, caption: str, panels: Sequence[tuple[str, Sequence[Density]]]) -> bytes:
    """Draw panels of densities side by side, each with its title and its own axes."""
    height = ABOVE + PANEL + BELOW
    figure = new_figure(WIDTH, height)
    edge = {"left": 0.09, "right": 0.98, "top": 1 - ABOVE / height, "bottom": BELOW / height}
    grid = figure.subplots(1, len(panels), squeeze=False, gridspec_kw={"wspace": 0.25, **edge})
    axes: list[Axes] = list(grid[0])
    for axis, (name, densities) in zip(axes, panels, strict=True):
        axis.set_title(name, loc="left", size=9.5, color=INK)
        axis.set_xlabel("weight", color=INK)
        axis.locator_params(axis="x", nbins=5)
        plain(axis)
        _draw_densities(axis, densities)
    axes[0].set_ylabel("density", color=INK)
    add_title_and_caption(figure, title, caption, edge["left"])
    return to_png(figure)


def draw_error_bars(title: str, caption: str, series: Sequence[ErrorBars], x_label: str, y_label: str) -> bytes:
    """Draw one panel with error bars, slightly shifted so that they do not overlap."""
    height = ABOVE + PANEL + BELOW
    figure = new_figure(WIDTH, height)
    panel = figure.add_axes((0.115, BELOW / height, 0.7, PANEL / height))
    width = max((float(line.x.max()) for line in series), default=1.0) or 1.0
    for position, line in enumerate(series):
        shift = (position - (len(series) - 1) / 2) * SHIFT * width
        colour = COLOURS[position % len(COLOURS)]
        panel.errorbar(line.x + shift, line.mean, line.deviation, label=line.name, capsize=3, color=colour, marker="o")
    panel.set_xlabel(x_label, color=INK)
    panel.set_title(y_label, loc="left", size=9.5, color=INK)
    plain(panel)
    if series:
        panel.legend(frameon=False, fontsize=8.5, labelcolor="linecolor", loc="center left", bbox_to_anchor=(1.0, 0.5))
    add_title_and_caption(figure, title, caption, 0.115)
    return to_png(figure)


def _prepare_line_axis(axis: "Axes", panel: LinePanel, log_x: bool) -> None:
    axis.set_title(panel.title, loc="left", size=9.5, color=INK)
    if log_x:
        axis.set_xscale("log")
    else:
        axis.locator_params(axis="x", integer=True)
    if panel.log:
        axis.set_yscale("log")
    else:
        axis.yaxis.set_major_formatter(lambda value, _: f"{value:.6g}")  # whole numbers, no separate power of ten
    plain(axis)


def _draw_lines(axis: "Axes", lines: Sequence[Line]) -> None:
    for line in lines:
        axis.fill_between(line.x, line.lowest, line.highest, color=line.colour, alpha=0.18, linewidth=0)
        axis.plot(line.x, line.mean, color=line.colour, linewidth=1.6, solid_capstyle="round")
        if line.dot:
            axis.plot(line.x[-1:], line.mean[-1:], "o", color=line.colour, markersize=7, clip_on=False, zorder=5)


def _name_lines(axis: "Axes", lines: Sequence[Line], gap: float) -> None:
    """Write names to the right of the panel, level with the ends of their lines and at least `gap` apart."""
    axis.get_xlim(), axis.get_ylim()  # settles the scales
    to_panel, inside = axis.transData - axis.transAxes, axis.transAxes
    ends = [to_panel.transform((line.x[-1], line.mean[-1])) for line in lines]
    for line, (x, y), at in zip(lines, ends, spread_out([float(y) for _, y in ends], gap), strict=True):
        (leader,) = axis.plot([x, 1.0, 1.02], [y, y, at], transform=inside, color=line.colour, linewidth=0.9)
        leader.set(linestyle=(0, (1, 2)), clip_on=False)
        text = f"{line.name}\n{line.mean[-1]:.3g} after {line.x[-1]:.0f} rounds"
        axis.text(1.03, at, text, transform=inside, color=line.colour, size=8.5, va="center")


def spread_out(heights: Sequence[float], gap: float) -> list[float]:
    """Move heights as little as possible until they are `gap` apart, in the same order and in [0, 1] if they fit.

    Example:
        >>> spread_out([0.5, 0.1, 0.5], 0.2)
        [0.4, 0.1, 0.6]
    """
    order = sorted(range(len(heights)), key=lambda i: heights[i])
    placed = [heights[i] for i in order]
    for _ in range(200):
        for low in range(len(placed) - 1):
            missing = gap - (placed[low + 1] - placed[low])
            if missing > 1e-9:
                placed[low] -= missing / 2
                placed[low + 1] += missing / 2
    excess = min(max(placed[-1] - 1, 0.0), max(placed[0], 0.0)) if placed else 0.0
    placed = [height - excess for height in placed]
    result = [0.0] * len(heights)
    for position, index in enumerate(order):
        result[index] = round(placed[position], 6)
    return result


def _draw_densities(axis: "Axes", densities: Sequence[Density]) -> None:
    for density in densities:
        axis.stairs(density.mean, density.edges, color=density.colour, linewidth=1.6, label=density.name)
        axis.stairs(
            density.highest, density.edges, baseline=density.lowest, fill=True, color=density.colour, alpha=0.25
        )
    if densities:
        axis.legend(frameon=False, fontsize=8.5, labelcolor="linecolor")
