"""Maps of what matters to a client: light where an input matters, dark where it does not."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tacit.errors import UserError
from tacit.report.comparison import Comparison, Curves
from tacit.report.plots import Maps
from tacit.report.style import ABOVE, BELOW, INK

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Picture = NDArray[np.float64]
SIDE, GAP = 1.45, 0.35  # inches: of a map, between two
MEAN = "mean"


def draw(comparison: Comparison, plot: Maps) -> "Figure":
    """The first row's first seed: its mean sample to the left, to the right a line of maps per measure."""
    from matplotlib.figure import Figure

    lines, columns = len(plot.importance), len(plot.at) + 1
    width, height = GAP + columns * (SIDE + GAP), ABOVE + lines * (SIDE + GAP) + BELOW / 2
    figure = Figure(figsize=(width, height))
    for line, column, title, picture in _pictures(pictures(comparison), plot):
        left, top = GAP + column * (SIDE + GAP), ABOVE + line * (SIDE + GAP)
        axis = figure.add_axes((left / width, 1 - (top + SIDE) / height, SIDE / width, SIDE / height))
        axis.imshow(picture, cmap="gray", interpolation="nearest")
        axis.set_title(title, size=8.5, color=INK, loc="left", pad=3)
        axis.set_axis_off()
    figure.text(GAP / width, 1 - 0.14 / height, comparison.title, size=11, color=INK, va="top")
    said = f"Client {plot.client}. Light: important; each map from its own least to its own most."
    figure.text(GAP / width, 0.1 / height, said, size=8, color=INK, va="bottom")
    return figure


def pictures(comparison: Comparison) -> dict[str, Picture]:
    """Each map of the first row's first seed, in the inputs' own shape."""
    trials = comparison.rows[0].trials if comparison.rows else ()
    curves: Curves = trials[0].curves if trials else {}
    if "shape" not in curves:
        raise UserError(f"Expected {comparison.name} to have maps. Save it anew.")
    shape = [int(side or 0) for side in curves["shape"]]
    return {
        name: np.array(values, dtype=np.float64).reshape(shape) for name, values in curves.items() if name != "shape"
    }


def name_of(measure: str, number: int) -> str:
    """What a map is called among a trial's curves."""
    return f"{measure}, round {number}"


def _pictures(found: Mapping[str, Picture], plot: Maps) -> Iterator[tuple[int, int, str, Picture]]:
    """Line, column, title and picture of each."""
    yield 0, 0, "mean of all samples", found[MEAN]
    for line, measure in enumerate(plot.importance):
        for column, number in enumerate(plot.at, start=1):
            name = name_of(measure, number)
            if name in found:  # a short version ends before the last rounds
                yield line, column, name, found[name]
