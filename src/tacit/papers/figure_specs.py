"""What a figure shows: quantities over rounds or over an argument, histograms of weights, importance maps, images.

A specification is read from a study's `[figure]` table, and saved with the results so that figures are drawn from
them alone.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta, Struct, field

from tacit.papers.study_files import Text, check_distinct, check_known
from tacit.report.pictures import Gallery

Number = int | float  # a whole number stays one when a document is read and written again
Count = Annotated[int, Meta(ge=1, description="a whole number, at least 1")]


class LinePlot(Struct, frozen=True, kw_only=True, tag_field="kind", tag="lines"):
    """Quantities over the rounds: a panel per quantity, with a line per row in each.

    Attributes:
        y: the quantities, from top to bottom.
        labels: titles of the panels, by quantity; default: the quantity's name.
        log: the quantities, or `round`, whose axis is logarithmic.
    """

    y: Annotated[tuple[Text, ...], Meta(min_length=1, description="a list of quantities, for example ['accuracy']")]
    labels: Mapping[str, str] = field(default_factory=dict)
    log: tuple[str, ...] = ()

    def validate(self, rows: Sequence[str], measures: Iterable[str], label: str) -> None:
        """Raise `UserError` if a quantity is drawn twice."""
        check_distinct(self.y, f"figure.y of {label}")


@dataclass(frozen=True, kw_only=True)
class HistogramPanel:
    """Rows whose weights are drawn together.

    Attributes:
        title: the panel's title.
        rows: the names of the rows.
        mask: the row whose mask selects the weights, in the run with the same seed.
    """

    title: Text
    rows: Annotated[tuple[Text, ...], Meta(min_length=1, description="a list of rows of this file")]
    mask: Annotated[Text, Meta(description="the row whose mask selects the weights")]


class HistogramPlot(Struct, frozen=True, kw_only=True, tag_field="kind", tag="histogram"):
    """The distribution of the final weights in a mask: panels side by side, a histogram per row.

    Attributes:
        panels: from left to right.
        bins: the number of bins.
    """

    panels: Annotated[
        tuple[HistogramPanel, ...], Meta(min_length=1, description="panels, each under [[figure.panels]]")
    ]
    bins: Count = 60

    def validate(self, rows: Sequence[str], measures: Iterable[str], label: str) -> None:
        """Raise `UserError` if a panel names a row that does not exist."""
        for panel in self.panels:
            check_known(panel.rows, rows, f"rows of panel {panel.title!r} of {label}")
            check_known([panel.mask], rows, f"mask of panel {panel.title!r} of {label}")


class ImportanceMaps(Struct, frozen=True, kw_only=True, tag_field="kind", tag="maps"):
    """The importance of every input to one client, as images: a line per measure, a column per round.

    Attributes:
        client: the client's index.
        at: the rounds.
        importance: the measures, from top to bottom.
        noise: the standard deviation of the noise that the measures assume.
    """

    at: Annotated[tuple[Count, ...], Meta(min_length=1, description="a list of rounds, for example [1, 5]")]
    importance: Annotated[tuple[Text, ...], Meta(min_length=1, description="a list of measures, like ['variance']")]
    noise: Annotated[Annotated[int, Meta(gt=0)] | Annotated[float, Meta(gt=0)], Meta(description="a number > 0")]
    client: Annotated[int, Meta(ge=0, description="a client's index")] = 0

    def validate(self, rows: Sequence[str], measures: Iterable[str], label: str) -> None:
        """Raise `UserError` if a measure does not exist."""
        check_known(self.importance, measures, f"figure.importance of {label}")


class ScatterPlot(Struct, frozen=True, kw_only=True, tag_field="kind", tag="scatter"):
    """A quantity over an argument of the method: a point with error bar per row, joined by lines.

    Attributes:
        x: the argument; 0 for a row whose method does not have it.
        y: the quantity.
        lines: the argument that is the same for all rows of a line.
        labels: labels of `x`, `y` and `lines`; default: their names.
    """

    x: Text
    y: Text
    lines: Text
    labels: Mapping[str, str] = field(default_factory=dict)

    def validate(self, rows: Sequence[str], measures: Iterable[str], label: str) -> None:
        """Names are those of a method's arguments, which rows without them may lack."""


StudyFigure = LinePlot | HistogramPlot | ImportanceMaps | ScatterPlot
FigureSpec = StudyFigure | Gallery
