"""Progress on standard error: a bar on a terminal, a line every few seconds elsewhere; also for whole runs."""

import sys
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import closing
from pathlib import Path
from typing import TypeVar

from tacit.cli._console import note, terminal, warn
from tacit.core import Report
from tacit.errors import one_line
from tacit.privacy.guarantee import delta_warning
from tacit.report.labels import size
from tacit.runs import checkpoint
from tacit.runs.directory import CHECKPOINT, MANIFEST
from tacit.runs.outlook import outlook
from tacit.runs.run import Run, RunSpec

SECONDS_BETWEEN_LINES = 5.0
_T = TypeVar("_T")
_Progress = tuple[int, int, str]  # finished steps, all steps, and figures to show with them


def track(steps: Iterable[_T], total: int, label: str) -> Generator[_T]:
    """The same steps, with a progress bar on a terminal or a line every few seconds elsewhere."""
    return _show(((step, (number, total, "")) for number, step in enumerate(steps, start=1)), label)


def track_run(steps: Iterable[Run], label: str) -> Generator[Run]:
    """The same steps of a run, with rounds, last metric, ε and bytes so far."""
    shown = ((run, (run.state.round, run.rounds, text)) for run, text in _with_figures(steps))
    return _show(shown, f"{label}: round")


def follow_to_end(
    steps: Generator[Run], spec: RunSpec, directory: Path, command: str, watch: Callable[[Run], None] = lambda _: None
) -> Run:
    """Run to the end with a progress display, and `watch` each step; an interrupt prints the command that resumes."""
    latest: Run | None = None
    try:
        with closing(steps):
            for step in track_run(steps, spec.method.name):
                if latest is None:
                    _warn(step)
                latest = step
                watch(step)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(_interruption(spec, directory, command)) from None
    assert latest is not None  # a run is yielded as it starts
    return latest


def _interruption(spec: RunSpec, directory: Path, command: str) -> str:
    """The progress of an interrupted run, and how to resume it; an unstarted run leaves no files."""
    if not (directory / MANIFEST).exists():
        return "Interrupted before the first round. Nothing was written."
    state = checkpoint.read(directory / CHECKPOINT)  # the interrupt may follow the last shown step
    done = f" after {state.round} of {spec.method.rounds} rounds" if state else ""
    return f"Interrupted{done}. Resume with: {command}"


def _warn(run: Run) -> None:
    """Print notes and warnings before the first round, while stopping still costs nothing."""
    if run.state.round == 0:
        note(*run.spec.task.notes)
        warn(outlook(run))
    if not run.spec.task.population.is_remote and not run.spec.method.terms.protects_records:
        note(run.spec.simulation.learner.why_slow)
    warn(run.spec.method.channel.caveat)
    for unit, charges in run.charges.items():
        population = run.spec.task.population
        units = population.unit_sizes.sum() if unit.within_client else len(population)
        warn(delta_warning(charges.delta, int(units), unit))


def _show(steps: Iterable[tuple[_T, _Progress]], label: str) -> Generator[_T]:
    return _with_bar(steps, label) if sys.stderr.isatty() else _with_lines(steps, label)


def _with_bar(steps: Iterable[tuple[_T, _Progress]], label: str) -> Generator[_T]:
    from rich.console import Console  # only where there is a terminal
    from rich.markup import escape
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=12),
        MofNCompleteColumn(),
        TextColumn("{task.fields[figures]}"),
        TimeRemainingColumn(compact=True),
        TextColumn("left"),
    )
    with Progress(*columns, console=Console(file=terminal())) as bar:
        task = bar.add_task(escape(one_line(label)), total=None, figures="")
        for step, (done, total, text) in steps:
            bar.update(task, total=total, completed=done, figures=escape(one_line(text)))
            yield step


def _with_lines(steps: Iterable[tuple[_T, _Progress]], label: str) -> Generator[_T]:
    printed = time.monotonic()
    for step, (done, total, text) in steps:
        if time.monotonic() - printed >= SECONDS_BETWEEN_LINES or done == total:
            note(f"{label} {done}/{total} {text}".rstrip())
            printed = time.monotonic()
        yield step


def _with_figures(steps: Iterable[Run]) -> Generator[tuple[Run, str]]:
    """Each step with its last metric, ε, and the bytes so far, by running sums."""
    seen, up, down, metric = 0, 0, 0, ""
    for run in steps:
        for report in run.history[seen:]:
            up, down, metric = up + sum(report.up), down + sum(report.down), _first_metric(report) or metric
        seen = len(run.history)
        units = run.epsilons
        epsilon = " ".join(f"ε {units[unit]:.3f}{'' if len(units) == 1 else f' ({unit})'}" for unit in units)
        yield run, " ".join(filter(None, (metric, epsilon, f"up {size(up)} down {size(down)}")))


def _first_metric(report: Report) -> str:
    return next((f"{name} {value:.3f}" for name, value in report.metrics.items()), "")
