"""Charts of a page as plain data: lines over rounds for the script that draws them, and a table of the same numbers."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import isfinite

from tacit.core import Report
from tacit.report.labels import number, size
from tacit.report.markup import Html, data, details, element, table
from tacit.report.run_data import ERRORS, charged_epsilon, metric_names, thin

_MAX_POINTS = 1200  # of a line
SPAN = 0.1  # the least part of an axis that is shown
MAX_ROWS = 21  # of the table beside a chart
COLOUR_COUNT = 7  # of the style sheet: --c0 to --c6
ChartValues = list[float | None]


@dataclass(frozen=True)
class ChartLine:
    """A line of a chart: a value for every round, None where there is none.

    Attributes:
        name: what it is; empty for the edges of a band.
        values: its values.
        colour: the name of a colour of the style sheet.
        dash: whether it is dashed.
        band: lowest and highest values around it; None: there is no band.
    """

    name: str
    values: ChartValues
    colour: str = "--c0"
    dash: bool = False
    band: tuple[ChartValues, ChartValues] | None = None

    def specs(self) -> list[dict[str, object]]:
        main = {"name": self.name, "y": self.values, "colour": self.colour, "dash": self.dash}
        if self.band is None:
            return [main]
        low, high = self.band
        edge = {"name": "", "colour": self.colour, "faint": True}
        return [{**main, "band": True}, {**edge, "y": high}, {**edge, "y": low}]


@dataclass(frozen=True)
class Chart:
    """Lines over rounds.

    Attributes:
        title: what is drawn.
        rounds: the rounds, in order.
        lines: the lines.
        unit: `bytes`, or nothing.
        zero: whether the axis begins at zero.
        span: what the axis shows at least, so that noise does not look like change.
    """

    title: str
    rounds: list[int]
    lines: Sequence[ChartLine]
    unit: str = ""
    zero: bool = False
    span: float = 0.0

    def spec(self) -> dict[str, object]:
        """The data of the script."""
        lines = [each for line in self.lines for each in line.specs()]
        return {"x": self.rounds, "lines": lines, "unit": self.unit, "zero": self.zero, "span": self.span}

    def figure(self) -> Html:
        """The chart with its readout and table."""
        return element(
            "figure",
            element("figcaption", self.title),
            element("p", "", class_="readout"),
            element("div", "", class_="plot", role="img", aria_label=self._in_words()),
            self._table(),
            data(self.spec()),
            class_="chart",
        )

    def _in_words(self) -> str:
        parts = []
        for line in self.lines:
            measured = [value for value in line.values if value is not None]
            if measured:
                parts.append(f"{line.name} from {self._write(measured[0])} to {self._write(measured[-1])}")
        rounds = f"rounds {self.rounds[0]} to {self.rounds[-1]}" if self.rounds else "no rounds"
        return f"Chart of {self.title} over {rounds}: {'; '.join(parts) or 'no values'}."

    def _table(self) -> Html:
        which = [i for i in range(len(self.rounds)) if any(line.values[i] is not None for line in self.lines)]
        rows = [[self.rounds[i], *(self._write(line.values[i]) for line in self.lines)] for i in thin(which, MAX_ROWS)]
        header = ["round", *(line.name for line in self.lines)]
        whole = table(f"{self.title}, by round", header, rows, numbers=len(header), hidden=True)
        return details("Numbers", whole)

    def _write(self, value: float | None) -> str:
        if value is None:
            return "–"
        return size(value) if self.unit == "bytes" else number(value)


def run_charts(reports: Sequence[Report], budget: float | None, word: str = "client") -> list[Chart]:
    """The charts of a run: its metrics, ε or leakage, and bytes; `word`: what a client is called."""
    shown = thin(reports, _MAX_POINTS)
    rounds = [report.round for report in shown]
    names = metric_names(report.metrics for report in reports)
    charts = [_metric_chart(name, names, shown) for name in names if not _is_variant(name, names)]
    return [*charts, *_privacy_charts(shown, budget), *([bytes_chart(reports, rounds, word)] if reports else [])]


def finite(values: Iterable[float | None]) -> ChartValues:
    """The values to six digits, enough for a plot; None in place of non-finite ones."""
    return [None if value is None or not isfinite(value) else float(f"{value:.6g}") for value in values]


def _metric_chart(name: str, names: Sequence[str], reports: Sequence[Report]) -> Chart:
    """A metric, with those of the model's variants (`pruned_accuracy`)."""
    together = [name, *(other for other in names if other.endswith(f"_{name}") and other != name)]
    lines = [
        ChartLine(
            each.replace("_", " "),
            finite(report.metrics.get(each) for report in reports),
            f"--c{i % COLOUR_COUNT}",
        )
        for i, each in enumerate(together)
    ]
    values = [value for line in lines for value in line.values if value is not None]
    return Chart(metric_title(name), [each.round for each in reports], lines, span=min_span(name, values))


def min_span(name: str, values: Sequence[float]) -> float:
    """How much of its axis a metric's chart shows at least: a tenth of the range of a share, or of the largest value.

    Example:
        >>> min_span("accuracy", [0.5, 0.51]), min_span("loss", [2.0, 1.9])
        (0.1, 0.2)
    """
    is_share = not name.endswith(ERRORS) and all(0 <= value <= 1 for value in values)
    return SPAN if is_share else SPAN * max(map(abs, values), default=0.0)


def metric_title(name: str) -> str:
    """The title of a metric's chart."""
    return f"{name.replace('_', ' ').capitalize()} on held-out data"


def _is_variant(name: str, names: Sequence[str]) -> bool:
    return any(name.endswith(f"_{other}") for other in names if other != name)


def _privacy_charts(reports: Sequence[Report], budget: float | None) -> list[Chart]:
    rounds, charts = [report.round for report in reports], []
    if any(charged_epsilon(report) is not None for report in reports):
        units = dict.fromkeys(unit for report in reports for unit in report.epsilons)
        lines = [
            ChartLine(
                f"ε of {unit}s" if unit.within_client else "ε",
                finite(report.epsilons.get(unit) for report in reports),
                f"--c{colour}",
            )
            for colour, unit in enumerate(units, start=3)
        ]
        if budget is not None:
            lines.append(ChartLine("budget", [budget] * len(rounds), "--limit", dash=True))
        charts.append(Chart("Privacy loss ε of all rounds so far", rounds, lines, zero=True))
    if any(report.leakage is not None for report in reports):
        line = ChartLine("largest leakage", finite(report.leakage for report in reports), "--c3")
        charts.append(Chart("Leakage of the client that leaked most (d-privacy)", rounds, [line], zero=True))
    return charts


def bytes_chart(reports: Sequence[Report], rounds: Sequence[int], word: str = "client") -> Chart:
    """Bytes of all clients up to each round, in both directions."""
    up = accumulate(sum(report.up) for report in reports)
    down = accumulate(sum(report.down) for report in reports)
    wanted = set(rounds)
    kept = [total for report, *total in zip(reports, up, down, strict=True) if report.round in wanted]
    lines = [
        ChartLine(name, [float(total[way]) for total in kept], f"--c{way}")
        for way, name in enumerate((f"{word}s to server", f"server to {word}s"))
    ]
    return Chart("Bytes of all rounds so far", list(rounds), lines, unit="bytes", zero=True)
