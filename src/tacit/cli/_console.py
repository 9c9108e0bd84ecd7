"""What commands share: `KEY=VALUE` options, JSON and aligned tables, and progress on standard error."""

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from tacit.report.labels import size

if TYPE_CHECKING:
    from tacit.core import Report
    from tacit.runs.records import Run

SECONDS_BETWEEN_LINES = 5.0
T = TypeVar("T")
Declare = Callable[[argparse.ArgumentParser], None]


def add_commands(parser: argparse.ArgumentParser, commands: Mapping[str, tuple[str, Declare]]) -> None:
    """Declare the commands of a command: each one's help, and what declares its arguments and, as `do`, its action."""
    added = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, (summary, declare) in commands.items():
        declare(added.add_parser(name, help=summary))


def run_command(args: argparse.Namespace) -> int:
    """Execute the one of these commands that was chosen."""
    return int(args.do(args))


def add_options(parser: argparse.ArgumentParser, flag: str, owner: str) -> None:
    """Declare a flag that takes one or more `KEY=VALUE` and may be repeated; `owner` is what they are arguments of."""
    parser.add_argument(
        flag, nargs="+", action="extend", default=[], metavar="KEY=VALUE", type=_pair, help=f"arguments of the {owner}"
    )


def add_method(parser: argparse.ArgumentParser) -> None:
    """Declare a method with its arguments; `method_args` are those, after a check."""
    parser.add_argument("method", help="a method's name (tacit methods lists them) or FILE.py:FUNCTION")
    add_options(parser, "--set", "method")
    parser.add_argument("--json", action="store_true", help="print one JSON document on standard output")


def method_args(args: argparse.Namespace) -> dict[str, str]:
    """The arguments of the method; its name and theirs are checked before PyTorch is imported."""
    from tacit import methods

    given = to_dict(args.set)
    methods.check(args.method, given)
    return given


def add_adjacency(parser: argparse.ArgumentParser, meaning: str) -> None:
    """Declare the choice of an adjacency."""
    parser.add_argument("--adjacency", choices=("add-or-remove", "zero-out", "replace-one"), help=meaning)


def add_table(parser: argparse.ArgumentParser) -> None:
    """Declare the options that describe a table of one's own; `table_args` are the task's arguments."""
    group = parser.add_argument_group("your own table", "More options: tacit tasks table; give them with --task-set.")
    group.add_argument("--data", metavar="FILE", help="a CSV or Parquet file, or a folder of them")
    group.add_argument("--client", metavar="COLUMN", help="the column that names the client; not for a folder")
    group.add_argument("--target", metavar="COLUMN", help="the column to predict")
    group.add_argument("--patient", metavar="COLUMN", help="the column that says which rows are one person's")
    group.add_argument("--drop", metavar="COLUMN", nargs="+", default=[], help="columns to leave out, such as names")
    group.add_argument("--public", metavar="FILE", help="public rows, for methods that choose something from them")


def table_args(args: argparse.Namespace) -> dict[str, str]:
    """The arguments of the task `table` that these options give; empty: there is no table."""
    from tacit.errors import UserError

    given = {name: getattr(args, name) for name in ("data", "client", "target", "patient", "public")}
    found = {name: value for name, value in given.items() if value is not None}
    found |= {"drop": ",".join(args.drop)} if args.drop else {}
    if found and args.data is None:
        raise UserError(f"Expected --data FILE with --{next(iter(found))}: it is a column of your own table.")
    if found and args.task is not None:
        raise UserError("Expected either --data or --task: a table is a task of its own.")
    return found


def add_trust(
    parser: argparse.ArgumentParser, meaning: str = "run the Python file that a manifest or TOML file names"
) -> None:
    """Declare the flag without which Python code that only a file names is not run."""
    parser.add_argument("--trust", action="store_true", help=meaning)


TRUST_PLAN = "import and call the functions that the plan names: model, public data, a method of another package"


def add_workers(parser: argparse.ArgumentParser, meaning: str) -> None:
    """Declare `--workers`."""
    spellings = "N; ray, ray:N: actors of a Ray cluster that is started here; ray://HOST:PORT: of a running one"
    parser.add_argument("--workers", type=_workers, metavar="N", help=f"{meaning} ({spellings})")


def _workers(text: str) -> int | str:
    from tacit.core.worker_choice import read_workers
    from tacit.errors import UserError

    if text.isdigit():
        return int(text)
    try:
        read_workers(text)
    except UserError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def to_dict(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """The pairs as a dictionary; of equal keys the last one counts."""
    return dict(pairs)


def print_json(document: object) -> None:
    """Print one JSON document; infinite numbers and NaN, which JSON does not have, are null."""
    print(json.dumps(_finite(document), indent=2, ensure_ascii=False, allow_nan=False))


def aligned(rows: Sequence[Sequence[str]], left: int = 2) -> list[str]:
    r"""Rows as lines of equal columns; the first `left` are aligned left, all others right.

    Example:
        >>> print("\n".join(aligned([["a", "name", "x"], ["bb", "b", "10"]])))
        a   name   x
        bb  b     10
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    aligns = [f"{'<' if column < left else '>'}{width}" for column, width in enumerate(widths)]
    return ["  ".join(map(format, row, aligns)).rstrip() for row in rows]


def figures(named: Mapping[str, float]) -> list[str]:
    """Named figures, one per line.

    Example:
        >>> figures({"nominal epsilon": 0.50001})
        ['nominal epsilon: 0.5']
    """
    return [f"{name}: {value:.4g}" for name, value in named.items()]


def track(steps: Iterable[T], total: int, label: str) -> Generator[T]:
    """The same steps, with a progress bar on a terminal or a line every few seconds elsewhere."""
    return _shown(((step, _Progress(number, total)) for number, step in enumerate(steps, start=1)), label)


def track_run(steps: "Iterable[Run]", label: str) -> "Generator[Run]":
    """The same steps of a run, with rounds, last metric, ε and bytes so far."""
    shown = ((run, _Progress(run.state.round, run.rounds, text)) for run, text in _with_figures(steps))
    return _shown(shown, f"{label}: round")


@dataclass(frozen=True)
class _Progress:
    """How many steps are done, of how many, and figures to show with them."""

    done: int
    total: int
    figures: str = ""


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise argparse.ArgumentTypeError(f"expected KEY=VALUE, got {text!r}")
    return key.replace("-", "_"), value


def _finite(value: object) -> object:
    match value:
        case float() if not math.isfinite(value):
            return None
        case dict():
            return {key: _finite(part) for key, part in value.items()}
        case list() | tuple():
            return [_finite(part) for part in value]
    return value


def _shown(steps: Iterable[tuple[T, _Progress]], label: str) -> Generator[T]:
    return _with_bar(steps, label) if sys.stderr.isatty() else _with_lines(steps, label)


def _with_bar(steps: Iterable[tuple[T, _Progress]], label: str) -> Generator[T]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

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
        for step, now in steps:
            bar.update(task, total=now.total, completed=now.done, figures=now.figures)
            yield step


def _with_lines(steps: Iterable[tuple[T, _Progress]], label: str) -> Generator[T]:
    printed = time.monotonic()
    for step, now in steps:
        if time.monotonic() - printed >= SECONDS_BETWEEN_LINES or now.done == now.total:
            print(f"{label} {now.done}/{now.total} {now.figures}".rstrip(), file=sys.stderr, flush=True)
            printed = time.monotonic()
        yield step


def _with_figures(steps: "Iterable[Run]") -> "Generator[tuple[Run, str]]":
    """Each step with its last metric, ε, and the bytes so far; sums are continued, not recomputed."""
    seen, up, down, metric = 0, 0, 0, ""
    for run in steps:
        for report in run.history[seen:]:
            up, down, metric = up + sum(report.up), down + sum(report.down), _first_metric(report) or metric
        seen = len(run.history)
        units = run.epsilons
        epsilon = " ".join(f"ε {units[unit]:.3f}{'' if len(units) == 1 else f' ({unit})'}" for unit in units)
        yield run, " ".join(filter(None, (metric, epsilon, f"up {size(up)} down {size(down)}")))


def _first_metric(report: "Report") -> str:
    return next((f"{name} {value:.3f}" for name, value in report.metrics.items()), "")
