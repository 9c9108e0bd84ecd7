"""A run for people who work in Python: a table of figures as text and HTML, pictures, and progress in a notebook.

Figures are those that a run may show (metrics, ε, bytes, rounds), never data of clients, and never the weights.
"""

import html
import importlib
import sys
import time
from collections.abc import Generator, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from tacit.core.prices import Unit
from tacit.errors import one_line

if TYPE_CHECKING:
    from tacit.runs.run import Run

SECONDS_BETWEEN = 0.25  # two lines of progress


def rows_of(run: "Run") -> list[tuple[str, str]]:
    """The figures of a run, each with its name."""
    spec = run.spec
    rows = [
        ("method", spec.method.name),
        ("task", spec.task.name),
        ("seed", str(spec.seed)),
        ("rounds", f"{run.state.round} of {spec.method.rounds}"),
        *((name.replace("_", " "), f"{value:.4g}") for name, value in run.metrics.items()),
        ("privacy", "; ".join(_privacy(unit, each) for unit, each in run.guarantees.items())),
        ("bytes", f"{run.bytes.up:,} up, {run.bytes.down:,} down"),
        ("seconds", f"{run.seconds:.3g}"),
    ]
    return [*rows, ("directory", str(run.directory))] if run.directory is not None else rows


def _privacy(unit: Unit, guarantee: Any) -> str:
    if not guarantee.proved:
        return "nothing is proved"
    if guarantee.kind == "d-privacy":
        return f"d-privacy, leakage {guarantee.leakage:.4g} for every {unit}"
    return f"ε = {guarantee.epsilon:.4g} at δ = {guarantee.delta:g} for every {unit}"


def as_text(title: str, rows: Sequence[tuple[str, str]]) -> str:
    """Figures as aligned lines."""
    width = max(len(name) for name, _ in rows)
    return "\n".join([title, *(f"  {name:<{width}}  {one_line(value)}" for name, value in rows)])


def as_html(title: str, rows: Sequence[tuple[str, str]]) -> str:
    """Figures as a table, for notebooks; every text is escaped."""
    cells = "".join(
        f'<tr><th style="text-align:left">{html.escape(name)}</th>'
        f'<td style="text-align:left">{html.escape(one_line(value))}</td></tr>'
        for name, value in rows
    )
    return f"<table><caption>{html.escape(title)}</caption>{cells}</table>"


def presenter() -> Any:
    """The module that draws runs and writes their pages.

    It is above this package, as everything that reads runs; so it is looked up when it is used.
    """
    return importlib.import_module("tacit.report.presenter")


def in_notebook() -> bool:
    """Whether this is the kernel of a notebook, which shows no progress by itself."""
    kernel = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return type(kernel).__name__ == "ZMQInteractiveShell"


def show_progress(steps: Iterable["Run"]) -> Generator["Run"]:
    """The same steps, with one line on standard error that is written over."""
    shown, width = -SECONDS_BETWEEN, 0
    for run in steps:
        if time.monotonic() - shown >= SECONDS_BETWEEN or run.ended:
            line = _progress(run)
            sys.stderr.write(f"\r{line:<{width}}")
            sys.stderr.flush()
            shown, width = time.monotonic(), len(line)
        yield run
    sys.stderr.write("\n")


def _progress(run: "Run") -> str:
    metrics = next((report.metrics for report in reversed(run.history) if report.metrics), {})
    first = [f"{name} {value:.3f}" for name, value in list(metrics.items())[:1]]
    epsilons = [f"ε {value:.3f} ({unit})" for unit, value in run.epsilons.items()]
    return " ".join([f"{run.spec.method.name}: round {run.state.round} of {run.rounds}", *first, *epsilons])
