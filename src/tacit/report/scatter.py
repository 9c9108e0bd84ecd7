"""What came out over an argument of the method: the mean of the seeds with their deviation, joined in lines."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tacit.report.comparison import Comparison, Row
from tacit.report.plots import Points
from tacit.report.style import ABOVE, BELOW, COLOURS, INK, ONE, WIDTH, plain

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Numbers = NDArray[np.float64]
APART = 0.012  # of the axis, between error bars that would lie upon each other


@dataclass(frozen=True, eq=False)
class Series:
    """Rows that agree in one argument, in the order of another."""

    name: str
    x: Numbers
    mean: Numbers
    deviation: Numbers


def draw(comparison: Comparison, plot: Points) -> "Figure":
    """One panel, with a line for each value of the argument that joins rows."""
    from matplotlib.figure import Figure

    height = ABOVE + ONE + BELOW
    figure = Figure(figsize=(WIDTH, height))
    panel = figure.add_axes((0.115, BELOW / height, 0.7, ONE / height))
    drawn = [*series(comparison.rows, plot)]
    reach = max((float(line.x.max()) for line in drawn), default=1.0) or 1.0
    for number, line in enumerate(drawn):
        shift = (number - (len(drawn) - 1) / 2) * APART * reach
        colour = COLOURS[number % len(COLOURS)]
        panel.errorbar(line.x + shift, line.mean, line.deviation, label=line.name, capsize=3, color=colour, marker="o")
    panel.set_xlabel(plot.labels.get(plot.x, plot.x), color=INK)
    panel.set_title(plot.labels.get(plot.y, plot.y), loc="left", size=9.5, color=INK)
    plain(panel)
    if drawn:
        panel.legend(frameon=False, fontsize=8.5, labelcolor="linecolor", loc="center left", bbox_to_anchor=(1.0, 0.5))
    figure.text(0.115, 1 - 0.18 / height, comparison.title, size=12, color=INK, va="top")
    figure.text(0.115, 0.12 / height, _caption(comparison), size=8, color=INK, va="bottom")
    return figure


def series(rows: Sequence[Row], plot: Points) -> Iterator[Series]:
    """The lines in the order of their argument; rows in which the quantity was not measured are left out."""
    groups: dict[float, list[tuple[float, Numbers]]] = {}
    for row in rows:
        values = [trial.values.get(plot.y) for trial in row.trials]
        if values and all(value is not None for value in values):
            place = (_number(row, plot.x), np.array(values, dtype=np.float64))
            groups.setdefault(_number(row, plot.lines), []).append(place)
    for value in sorted(groups):
        found = sorted(groups[value], key=lambda pair: pair[0])
        means, spread = ([float(f(v)) for _, v in found] for f in (np.mean, _deviation))
        name = f"{plot.labels.get(plot.lines, plot.lines)} {value:g}"
        yield Series(name, np.array([x for x, _ in found]), np.array(means), np.array(spread))


def _number(row: Row, name: str) -> float:
    value = row.args.get(name, 0.0)
    return float(value) if isinstance(value, int | float) else 0.0


def _deviation(values: Numbers) -> float:
    return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0


def _caption(comparison: Comparison) -> str:
    most = max((len(row.trials) for row in comparison.rows), default=1)
    said = [f"Point: mean of {most} seeds; bar: one standard deviation each way."] * (most > 1)
    said += ["Short version: not for comparison."] * comparison.fast
    return " ".join(said)
