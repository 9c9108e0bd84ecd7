"""Pictures and pages of runs in memory: `run.plot()` and `run.report()`."""

from dataclasses import dataclass
from math import isfinite
from pathlib import Path

import numpy as np

from tacit.core import files
from tacit.report.charts import Line, LinePanel, draw_lines
from tacit.report.page import run_page
from tacit.report.run_data import RunData, metric_names
from tacit.report.style import COLOURS
from tacit.runs.run import Run

MAX_PANELS = 3  # of metrics


@dataclass(frozen=True, repr=False)
class Picture:
    """A PNG image, which notebooks show."""

    content: bytes

    def _repr_png_(self) -> bytes:
        return self.content

    def __repr__(self) -> str:
        return f"Picture({len(self.content)} bytes; save(path) writes it)"

    def save(self, path: Path | str) -> Path:
        """Write the image to a file."""
        files.write(Path(path), self.content, parents=True)
        return Path(path)


def plot(run: Run) -> Picture:
    """Metrics and ε over rounds."""
    reports = run.history
    panels = [
        LinePanel(name.replace("_", " "), [_line(name, COLOURS[0], [(r.round, r.metrics.get(name)) for r in reports])])
        for name in metric_names(report.metrics for report in reports)[:MAX_PANELS]
    ]
    units = dict.fromkeys(unit for report in reports for unit in report.epsilons)
    lines = [
        _line(f"ε for every {unit}", COLOURS[number + 1], [(r.round, r.epsilons.get(unit)) for r in reports])
        for number, unit in enumerate(units)
    ]
    panels += [LinePanel("privacy loss ε", lines)] if lines else []
    shown = [panel for panel in panels if all(len(line.x) for line in panel.lines)]
    title, guarantee = f"{run.spec.method.name} on {run.spec.task.name}", str(run.privacy).splitlines()[0]
    return Picture(draw_lines(title, guarantee[:160], shown or [LinePanel("no figures yet", [])], names=1))


def _line(name: str, colour: str, points: list[tuple[int, float | None]]) -> Line:
    measured = [(number, value) for number, value in points if value is not None and isfinite(value)]
    x, y = (np.array([point[axis] for point in measured], dtype=np.float64) for axis in (0, 1))
    return Line(name, colour, x, y, y, y, dot=bool(measured))


def write_page(run: Run, path: Path | None) -> Path:
    """Write the page of a run, for its owner only."""
    out = path or (run.directory or Path()) / "report.html"
    files.write(out, run_page(RunData.of(run)).encode(), parents=True, private=True)
    return out
