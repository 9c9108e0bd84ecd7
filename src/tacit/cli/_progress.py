"""How a run is shown while it goes: a bar on a terminal, a line now and then elsewhere. All of it on stderr."""

import sys
import time
from collections.abc import Generator, Iterable
from typing import TYPE_CHECKING, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tacit.report.labels import size

if TYPE_CHECKING:
    from tacit.core import Report
    from tacit.runs.run import Run

SECONDS_BETWEEN_LINES = 5.0
T = TypeVar("T")


def shown(runs: "Iterable[Run]", label: str) -> "Generator[Run]":
    """The same runs, shown as they pass."""
    return _with_bar(runs, label) if sys.stderr.isatty() else _with_lines(runs, label)


def counted(steps: "Iterable[T]", total: int, label: str) -> "Generator[T]":
    """The same steps, counted as they pass."""
    if sys.stderr.isatty():
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=12),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=Console(stderr=True)) as bar:
            yield from bar.track(steps, total=total, description=label)
        return
    spoken = time.monotonic()
    for number, step in enumerate(steps, start=1):
        if time.monotonic() - spoken >= SECONDS_BETWEEN_LINES:
            print(f"{label} {number}/{total}", file=sys.stderr, flush=True)
            spoken = time.monotonic()
        yield step


def _with_bar(runs: "Iterable[Run]", label: str) -> "Generator[Run]":
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=12),
        MofNCompleteColumn(),
        TextColumn("{task.fields[figures]}"),
        TimeRemainingColumn(compact=True),
        TextColumn("left"),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(label, total=None, figures="")
        for run, figures in _figures(runs):
            bar.update(task, total=run.rounds, completed=run.state.round, figures=figures)
            yield run


def _with_lines(runs: "Iterable[Run]", label: str) -> "Generator[Run]":
    spoken = time.monotonic()
    for run, figures in _figures(runs):
        total = run.rounds
        if time.monotonic() - spoken >= SECONDS_BETWEEN_LINES or run.state.round == total:
            print(f"{label}: round {run.state.round}/{total} {figures}", file=sys.stderr, flush=True)
            spoken = time.monotonic()
        yield run


def _figures(runs: "Iterable[Run]") -> "Generator[tuple[Run, str]]":
    """Each run with its last measured figure and the bytes so far, kept as running sums."""
    seen, up, down, metric = 0, 0, 0, ""
    for run in runs:
        for report in run.history[seen:]:
            up, down, metric = up + sum(report.up), down + sum(report.down), _metric(report) or metric
        seen = len(run.history)
        epsilon = "" if run.charges is None else f" ε {run.charges.epsilon:.3f}"
        yield run, f"{metric}{epsilon} up {size(up)} down {size(down)}"


def _metric(report: "Report") -> str:
    """The most telling held-out figure, if the round was measured."""
    return next((f"{name} {value:.3f}" for name, value in report.metrics.items()), "")
