"""What a figure shows: quantities over rounds or over an argument, histograms of weights, importance maps, images.

A specification is read from a study's `[figure]` table, and saved with the results so that figures are drawn from
them alone.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec import Struct, field, to_builtins

from tacit.core.schema import choose, listed, suggestion
from tacit.errors import UserError
from tacit.papers.study_files import Table, check_keys, count, tables, text, texts
from tacit.report.pictures import Gallery

FIGURE = "figure"
_LINES, _HISTOGRAM = ("kind", "y", "labels", "log"), ("kind", "bins", "panels")
_MAPS, _SCATTER = ("kind", "client", "at", "importance", "noise"), ("kind", "x", "y", "lines", "labels")


class LinePlot(Struct, frozen=True, kw_only=True, tag_field="kind", tag="lines"):
    """Quantities over the rounds: a panel per quantity, with a line per row in each.

    Attributes:
        y: the quantities, from top to bottom.
        labels: titles of the panels, by quantity; default: the quantity's name.
        log: the quantities, or `round`, whose axis is logarithmic.
    """

    y: tuple[str, ...]
    labels: Mapping[str, str] = field(default_factory=dict)
    log: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class HistogramPanel:
    """Rows whose weights are drawn together.

    Attributes:
        title: the panel's title.
        rows: the names of the rows.
        mask: the row whose mask selects the weights, in the run with the same seed.
    """

    title: str
    rows: tuple[str, ...]
    mask: str


class HistogramPlot(Struct, frozen=True, kw_only=True, tag_field="kind", tag="histogram"):
    """The distribution of the final weights in a mask: panels side by side, a histogram per row.

    Attributes:
        panels: from left to right.
        bins: the number of bins.
    """

    panels: tuple[HistogramPanel, ...]
    bins: int = 60


class ImportanceMaps(Struct, frozen=True, kw_only=True, tag_field="kind", tag="maps"):
    """The importance of every input to one client, as images: a line per measure, a column per round.

    Attributes:
        client: the client's index.
        at: the rounds.
        importance: the measures, from top to bottom.
        noise: the standard deviation of the noise that the measures assume.
    """

    client: int
    at: tuple[int, ...]
    importance: tuple[str, ...]
    noise: int | float  # a whole number stays one when a document is read and written again


class ScatterPlot(Struct, frozen=True, kw_only=True, tag_field="kind", tag="scatter"):
    """A quantity over an argument of the method: a point with error bar per row, joined by lines.

    Attributes:
        x: the argument; 0 for a row whose method does not have it.
        y: the quantity.
        lines: the argument that is the same for all rows of a line.
        labels: labels of `x`, `y` and `lines`; default: their names.
    """

    x: str
    y: str
    lines: str
    labels: Mapping[str, str] = field(default_factory=dict)


FigureSpec = LinePlot | HistogramPlot | ImportanceMaps | ScatterPlot | Gallery


# Saved documents do not name the kind of a figure: a key that only this kind has identifies it.
_KINDS = {"client": "maps", "lines": "scatter", "strips": "gallery", "panels": "histogram", "y": "lines"}


def with_kind(figure: Mapping[str, Any]) -> dict[str, Any]:
    """A saved figure with its kind."""
    return {"kind": next((kind for key, kind in _KINDS.items() if key in figure), None), **figure}


def without_kind(figure: FigureSpec) -> dict[str, Any]:
    """Plain values, as they are saved."""
    return {key: value for key, value in to_builtins(figure).items() if key != "kind"}


def read_figure(study: Table, rows: Sequence[str], label: str) -> FigureSpec | None:
    """Read the `[figure]` of a study with these rows; None if it is a table."""
    if FIGURE not in study:
        return None
    figure, label = study[FIGURE], f"figure of {label}"
    check_keys(figure, tuple(dict.fromkeys((*_LINES, *_HISTOGRAM, *_MAPS, *_SCATTER))), label)
    kinds: dict[str, Callable[[], FigureSpec]] = {
        "lines": lambda: _read_lines(figure, label),
        "histogram": lambda: _read_histogram(figure, rows, label),
        "maps": lambda: _read_maps(figure, label),
        "scatter": lambda: _read_scatter(figure, label),
    }
    return choose(kinds, str(figure.get("kind", "lines")), f"kind of {label}")()


def read_columns(study: Table, label: str) -> tuple[str, ...]:
    """Read the columns of a study's table; none: a line per quantity."""
    from tacit.papers.quantities import KNOWN

    if "columns" not in study:
        return ()
    columns = texts(study, "columns", label, "quantities, for example ['best_accuracy', 'cost_up']")
    for name in columns:
        if name not in KNOWN:
            raise UserError(f"Expected columns of {label} in {listed(KNOWN)}, got {name!r}.{suggestion(name, KNOWN)}")
    return columns


def _read_lines(figure: Table, label: str) -> LinePlot:
    check_keys(figure, _LINES, label)
    y = texts(figure, "y", label, "quantities, for example ['accuracy']")
    return LinePlot(y=y, labels=figure.get("labels", {}), log=tuple(figure.get("log", ())))


def _read_scatter(figure: Table, label: str) -> ScatterPlot:
    check_keys(figure, _SCATTER, label)
    x, y, lines = (text(figure, key, label) for key in ("x", "y", "lines"))
    return ScatterPlot(x=x, y=y, lines=lines, labels=figure.get("labels", {}))


def _read_histogram(figure: Table, rows: Sequence[str], label: str) -> HistogramPlot:
    check_keys(figure, _HISTOGRAM, label)
    panels = tuple(_read_panel(panel, rows, label) for panel in tables(figure, "figure.panels", label))
    return HistogramPlot(panels=panels, bins=count(figure, "bins", 60, label))


def _read_panel(panel: Table, rows: Sequence[str], label: str) -> HistogramPanel:
    check_keys(panel, ("title", "rows", "mask"), f"a panel of {label}")
    title = text(panel, "title", f"a panel of {label}")
    label, names = f"panel {title!r} of {label}", {name: name for name in rows}
    drawn = texts(panel, "rows", label, "rows of this file")
    chosen = tuple(choose(names, name, f"rows of {label}") for name in drawn)
    mask = choose(names, text(panel, "mask", label), f"mask of {label}")
    return HistogramPanel(title=title, rows=chosen, mask=mask)


def _read_maps(figure: Table, label: str) -> ImportanceMaps:
    from tacit.pieces.mechanisms.importance import MEASURES

    check_keys(figure, _MAPS, label)
    measures = texts(figure, "importance", label, "measures, for example ['variance']")
    for name in measures:
        choose(MEASURES, name, f"importance of {label}")
    at, noise, client = figure.get("at"), figure.get("noise"), figure.get("client", 0)
    if not isinstance(at, list) or not at or not all(isinstance(index, int) and index >= 1 for index in at):
        raise UserError(f"Expected at of {label} to be a list of rounds, for example [1, 5], got {at!r}.")
    if not isinstance(noise, int | float) or noise <= 0:
        raise UserError(f"Expected noise of {label} to be a number > 0, got {noise!r}.")
    if isinstance(client, bool) or not isinstance(client, int) or client < 0:
        raise UserError(f"Expected client of {label} to be a client's index, got {client!r}.")
    return ImportanceMaps(client=client, at=tuple(at), importance=measures, noise=float(noise))
