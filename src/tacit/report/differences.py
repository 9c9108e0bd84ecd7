"""The picture of a differencing attack: records as they are, and as two sums give them back."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tacit.report.markup import Html, element
from tacit.report.style import INK

SQUARE, SPACE, TOP, LEFT_EDGE = 16, 40, 66, 16  # of a picture
NARROW = 250  # of a panel, at least
MAX_PATIENTS, MAX_SHOWN_INPUTS = 14, 24
OUTCOME_COLOURS = ("#0072B2", "#D55E00")


@dataclass(frozen=True, eq=False)
class RecordPanel:
    """A few patients' records side by side.

    Attributes:
        title: of the panel.
        note: below it.
        records: values from 0 to 1, (patients, inputs).
        outcomes: 0 or 1, (patients,).
    """

    title: str
    note: str
    records: NDArray[np.float64]
    outcomes: NDArray[np.float64]


def draw_records(panels: Sequence[RecordPanel]) -> str:
    """The first patients of each panel, a line each, in SVG: darker is a larger value, a colour the outcome."""
    count = min(min(len(panel.records) for panel in panels), MAX_PATIENTS)
    inputs = min(panels[0].records.shape[1], MAX_SHOWN_INPUTS)
    width = max((inputs + 2) * SQUARE, NARROW)
    parts: list[Html] = []
    for number, panel in enumerate(panels):
        left = LEFT_EDGE + number * (width + SPACE)
        parts.append(element("text", panel.title, x=left, y=24, font_size=15, fill=INK))
        parts.append(element("text", panel.note, x=left, y=44, font_size=13, fill="#777777"))
        for row in range(count):
            shades = [round(235 - 200 * float(value)) for value in panel.records[row, :inputs]]
            colours = [f"rgb({shade},{shade},{shade})" for shade in shades]
            places = [*range(inputs), inputs + 1]
            for column, fill in zip(places, [*colours, OUTCOME_COLOURS[int(panel.outcomes[row])]], strict=True):
                x, y = left + column * SQUARE, TOP + row * SQUARE
                parts.append(element("rect", x=x, y=y, width=SQUARE - 1, height=SQUARE - 1, fill=fill))
    height = TOP + count * SQUARE + 34
    caption = "One line for each patient: darker is a larger value; the last square is the outcome."
    parts.append(element("text", caption, x=LEFT_EDGE, y=height - 12, font_size=13, fill=INK))
    return element(
        "svg",
        *parts,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {2 * LEFT_EDGE + len(panels) * (width + SPACE)} {height}",
        role="img",
        aria_label=". ".join(f"{panel.title}: {panel.note}" for panel in panels),
        font_family="sans-serif",
    )
