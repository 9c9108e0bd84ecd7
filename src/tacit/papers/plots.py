"""What a study's file says about its picture and its columns."""

from collections.abc import Callable, Sequence

from tacit.core.schema import choose, listed, suggestion
from tacit.errors import UserError
from tacit.papers.files import Table, check_keys, count, entries, text, texts
from tacit.papers.quantities import KNOWN
from tacit.pieces.mechanisms.importance import MEASURES
from tacit.report.plots import Histogram, Maps, Panel, Picture, Plot, Points

FIGURE = "figure"
_LINES, _HISTOGRAM = ("kind", "y", "labels", "log"), ("kind", "bins", "panels")
_MAPS, _POINTS = ("kind", "client", "at", "importance", "noise"), ("kind", "x", "y", "lines", "labels")


def read_plot(study: Table, rows: Sequence[str], label: str) -> Picture | None:
    """The picture of a study that has these rows; None if it is a table."""
    if FIGURE not in study:
        return None
    figure, label = study[FIGURE], f"figure of {label}"
    check_keys(figure, tuple(dict.fromkeys((*_LINES, *_HISTOGRAM, *_MAPS, *_POINTS))), label)
    kinds: dict[str, Callable[[], Picture]] = {
        "lines": lambda: _lines(figure, label),
        "histogram": lambda: _histogram(figure, rows, label),
        "maps": lambda: _maps(figure, label),
        "points": lambda: _points(figure, label),
    }
    return choose(kinds, str(figure.get("kind", "lines")), f"kind of {label}")()


def read_columns(study: Table, label: str) -> tuple[str, ...]:
    """The columns of a study's table; none: a line per quantity."""
    if "columns" not in study:
        return ()
    columns = texts(study, "columns", label, "quantities, for example ['best_accuracy', 'cost_up']")
    for name in columns:
        if name not in KNOWN:
            raise UserError(f"Expected columns of {label} in {listed(KNOWN)}, got {name!r}.{suggestion(name, KNOWN)}")
    return columns


def _lines(figure: Table, label: str) -> Plot:
    check_keys(figure, _LINES, label)
    y = texts(figure, "y", label, "quantities, for example ['accuracy']")
    return Plot(y=y, labels=figure.get("labels", {}), log=tuple(figure.get("log", ())))


def _points(figure: Table, label: str) -> Points:
    check_keys(figure, _POINTS, label)
    x, y, lines = (text(figure, key, label) for key in ("x", "y", "lines"))
    return Points(x=x, y=y, lines=lines, labels=figure.get("labels", {}))


def _histogram(figure: Table, rows: Sequence[str], label: str) -> Histogram:
    check_keys(figure, _HISTOGRAM, label)
    panels = tuple(_panel(panel, rows, label) for panel in entries(figure, "figure.panels", label))
    return Histogram(panels=panels, bins=count(figure, "bins", 60, label))


def _maps(figure: Table, label: str) -> Maps:
    check_keys(figure, _MAPS, label)
    measures = texts(figure, "importance", label, "measures, for example ['variance']")
    for name in measures:
        choose(MEASURES, name, f"importance of {label}")
    at, noise, client = figure.get("at"), figure.get("noise"), figure.get("client", 0)
    if not isinstance(at, list) or not at or not all(isinstance(number, int) and number >= 1 for number in at):
        raise UserError(f"Expected at of {label} to be a list of rounds, for example [1, 5], got {at!r}.")
    if not isinstance(noise, int | float) or noise <= 0:
        raise UserError(f"Expected noise of {label} to be a number > 0, got {noise!r}.")
    if isinstance(client, bool) or not isinstance(client, int) or client < 0:
        raise UserError(f"Expected client of {label} to be a client's number, got {client!r}.")
    return Maps(client=client, at=tuple(at), importance=measures, noise=float(noise))


def _panel(panel: Table, rows: Sequence[str], label: str) -> Panel:
    check_keys(panel, ("title", "rows", "mask"), f"a panel of {label}")
    title = text(panel, "title", f"a panel of {label}")
    label, names = f"panel {title!r} of {label}", {name: name for name in rows}
    drawn = texts(panel, "rows", label, "rows of this file")
    chosen = tuple(choose(names, name, f"rows of {label}") for name in drawn)
    return Panel(title=title, rows=chosen, mask=choose(names, text(panel, "mask", label), f"mask of {label}"))
