"""Shared by parsers: a command's functions, its subcommands, and common options."""

import argparse
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from tacit.core.worker_choice import read_workers
from tacit.errors import UserError

_T = TypeVar("_T")
Declare = Callable[[argparse.ArgumentParser], None]
LOGS = ("tensorboard", "mlflow")
TABLE_OPTIONS = ("data", "client", "target", "person", "drop", "public")  # the options of `add_table`
TRUST_PLAN = "import and call the functions that the plan names: model, public data, a method of another package"


def does(parser: argparse.ArgumentParser, *calls: str, json: bool = True) -> None:
    """Declare a command's functions: `MODULE:FUNCTION` of `tacit.cli.commands`, called in order with the arguments.

    Each module is imported just before its call, so the first ones can refuse wrong names before any import of PyTorch.
    The first function that returns an exit code is the last call. With `json`, the command takes `--json`.
    """
    if json:
        parser.add_argument("--json", action="store_true", help="print one JSON document on standard output")
    parser.set_defaults(calls=calls)


def add_commands(parser: argparse.ArgumentParser, *commands: Declare, kind: str = "command") -> None:
    """Declare a command's subcommands; each function declares the arguments of the subcommand with its name.

    The first line of a function's docstring is the subcommand's summary; the rest is its description.
    """
    added = parser.add_subparsers(title=f"{kind}s", metavar=kind.upper(), required=True)
    for declare in commands:
        summary, _, description = inspect.cleandoc(declare.__doc__ or "").partition("\n")
        text = f"{summary[:1].lower()}{summary[1:].rstrip('.')}"
        declare(
            added.add_parser(
                declare.__name__.strip("_"),
                help=text,
                description=description.strip() or summary,
                formatter_class=parser.formatter_class,
            )
        )


def add_options(parser: argparse.ArgumentParser, flag: str, owner: str) -> None:
    """Declare a repeatable flag for one or more `KEY=VALUE`, which are arguments of `owner`."""
    parser.add_argument(
        flag, nargs="+", action="extend", default=[], metavar="KEY=VALUE", type=_pair, help=f"arguments of the {owner}"
    )


def add_method(parser: argparse.ArgumentParser) -> None:
    """Declare a method with its arguments."""
    parser.add_argument("method", help="a method's name (tacit methods lists them) or FILE.py:FUNCTION")
    add_options(parser, "--set", "method")


def add_experiment(parser: argparse.ArgumentParser, task: str) -> None:
    """Declare a method on a task, with their arguments and a seed; `task` is the purpose of the task."""
    parser.add_argument("method", help="name of a method; tacit methods lists them")
    parser.add_argument("--task", default="digits", help=f"{task} (default: digits)")
    add_options(parser, "--set", "method; tacit card METHOD shows them")
    add_options(parser, "--task-set", "task")
    parser.add_argument("--seed", type=int, default=0, help="seed of all randomness (default: 0)")


def add_rounds(parser: argparse.ArgumentParser, meaning: str) -> None:
    """Declare `--rounds N`, which is `--set rounds=N`."""
    parser.add_argument(
        "--rounds", dest="set", action="append", metavar="N", type=_rounds, help=f"{meaning}; short for --set rounds=N"
    )


def add_adjacency(parser: argparse.ArgumentParser, meaning: str) -> None:
    """Declare the choice of an adjacency."""
    parser.add_argument("--adjacency", choices=("add-or-remove", "zero-out", "replace-one"), help=meaning)


def add_table(parser: argparse.ArgumentParser) -> None:
    """Declare the options that describe a table of your own."""
    group = parser.add_argument_group("your own table", "More options: tacit tasks table; give them with --task-set.")
    group.add_argument("--data", metavar="FILE", help="a CSV or Parquet file, or a folder of them")
    group.add_argument("--client", metavar="COLUMN", help="the column of client names; not for a folder")
    group.add_argument("--target", metavar="COLUMN", help="the column to predict")
    group.add_argument(
        "--person", "--patient", metavar="COLUMN", help="the column of person ids: rows with one id are one person's"
    )
    group.add_argument("--drop", metavar="COLUMN", nargs="+", default=[], help="columns to leave out, such as names")
    group.add_argument("--public", metavar="FILE", help="public rows, for methods that need public data")


def add_analysis(parser: argparse.ArgumentParser, *, sampling: bool = True) -> None:
    """Declare the table of an analysis, its roles, the budget, and where its run is kept."""
    parser.add_argument("table", metavar="TABLE", help="a CSV or Parquet file, or a folder of them")
    parser.add_argument("--client", metavar="COLUMN", help="the column of client names; not for a folder")
    parser.add_argument(
        "--person", "--patient", metavar="COLUMN", help="the column of person ids: rows with one id are one person's"
    )
    budget = reader(lambda text: None if text == "none" else float(text), "a number or none")
    parser.add_argument(
        "--epsilon", type=budget, default=1.0, help="the privacy budget of every person (default: 1); none: no privacy"
    )
    parser.add_argument("--delta", type=float, default=1e-5, help="the δ of ε (default: 1e-5)")
    parser.add_argument("--encoding", metavar="FILE", help="a TOML file that declares ranges and categories as public")
    if sampling:
        parser.add_argument("--sampling", action="store_true", help="intervals include sampling, not the noise alone")
    parser.add_argument("--seed", type=int, default=0, help="seed of public randomness (default: 0)")
    parser.add_argument(
        "--randomness", choices=("secret", "seeded"), default="secret", help="seeded: the noise follows from the seed"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="directory of the run (default: a new one in runs/)")
    parser.add_argument("--ledger", type=Path, metavar="FILE", help="a privacy ledger that several analyses share")


def add_runs(parser: argparse.ArgumentParser) -> None:
    """Declare directories of runs."""
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="directories of runs, or folders of them")


def add_logs(parser: argparse.ArgumentParser) -> None:
    """Declare `--log`, which is repeatable."""
    parser.add_argument(
        "--log",
        action="append",
        default=[],
        choices=LOGS,
        help="also write every round for TensorBoard or MLflow; may be repeated",
    )


def add_trust(
    parser: argparse.ArgumentParser, meaning: str = "run the Python file that a manifest or TOML file names"
) -> None:
    """Declare the flag that allows Python code that only a file names."""
    parser.add_argument("--trust", action="store_true", help=meaning)


def add_workers(parser: argparse.ArgumentParser, meaning: str) -> None:
    """Declare `--workers`."""
    ray = "ray or ray:N starts a Ray cluster on this machine, ray://HOST:PORT joins a running one"
    parser.add_argument("--workers", type=_workers, metavar="N", help=f"{meaning}; {ray}")


def reader(read: Callable[[str], _T], expected: str) -> Callable[[str], _T]:
    """The type of an argument: the value of `read`, which raises `ValueError` for a wrong form."""

    def convert(text: str) -> _T:
        try:
            return read(text)
        except (ValueError, ZeroDivisionError):
            raise argparse.ArgumentTypeError(f"expected {expected}, got {text!r}") from None

    return convert


def _workers(text: str) -> int | str:
    if text.isdigit():
        return int(text)
    try:
        read_workers(text)
    except UserError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text


def _rounds(text: str) -> tuple[str, str]:
    return "rounds", text


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise argparse.ArgumentTypeError(f"expected KEY=VALUE, got {text!r}")
    return key.replace("-", "_"), value


def add_days(parser: argparse.ArgumentParser) -> None:
    """Declare how long a new certificate is valid."""
    parser.add_argument("--days", type=int, default=360, metavar="N", help="days that it is valid (default: 360)")


def add_max_message(parser: argparse.ArgumentParser, what: str) -> None:
    """Declare the length of the longest message that is accepted."""
    parser.add_argument(
        "--max-message", type=int, default=128, metavar="MB", help=f"the longest {what} that is accepted (default: 128)"
    )
