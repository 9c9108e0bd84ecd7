"""Federated learning with few bytes on the wire and proved privacy.

Examples:
  tacit run fedavg                      train on the embedded digits, in seconds
  tacit run fl-std --rounds 20 --set descent.lr=0.1
  tacit run experiment.toml             an experiment described in a file
  tacit run fl-top-dp --data patients.csv --client hospital --target died
  tacit run mine.py:fedprox             a method of your own; tacit new method fedprox writes one
  tacit methods                         list all methods; tacit tasks lists the tasks
  tacit report runs/fedavg-digits-0     a page about a run: guarantee, curves, bytes, settings
  tacit watch                           a live page of all runs in runs/
  tacit compare runs                    runs in a table, with intervals over seeds
  tacit card fedavg                     what each party sees, and what is guaranteed
  tacit plan --epsilon 1 --delta 1e-5 --rate 1/60 --rounds 200
  tacit attack dlg fedavg               reconstruct training data from updates
  tacit audit geyer                     an empirical lower bound on ε, compared with the claimed ε

Terms are explained in docs/glossary.md.
"""

# One module per command, found by listing. Its docstring is the command's help (the first line is the summary),
# `configure(parser)` declares its arguments, `run(args)` executes it and returns the exit code. Only the chosen command
# is imported, and no command imports PyTorch before it has checked the names that it was given.

import argparse
import ast
import importlib
import os
import pkgutil
import re
import signal
import sys
import threading
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

FOLDER = Path(__file__).with_name("commands")
STOPPED = 128  # plus the number of the signal: the exit codes that shells expect, 130 after Ctrl-C and 143 after a TERM


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line and suggest the nearest name."""

    def error(self, message: str) -> NoReturn:
        choices = re.search(r"invalid choice: (\S+) \(choose from (.*)\)", message)
        near = _nearest(choices[1].strip("'"), choices[2].replace("'", "").split(", ")) if choices else ""
        self.exit(2, f"tacit: {message[:1].upper()}{message[1:].rstrip('.')}.{near} See {self.prog} --help.\n")

    def parse_known_args(self, args: Iterable[str] | None = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Refuse unknown options here, where those of the command are known; its parent knows none of them."""
        known, unknown = argparse.ArgumentParser.parse_known_args(self, args, namespace)
        if unknown:
            options = (option for action in self._actions for option in action.option_strings)
            near = _nearest(unknown[0], options) if unknown[0].startswith("-") else ""
            self.exit(2, f"tacit: Unknown argument {unknown[0]!r}.{near} See {self.prog} --help.\n")
        return known, unknown


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Help as wide as this project's lines; examples keep their line breaks."""

    def __init__(self, prog: str) -> None:
        argparse.RawDescriptionHelpFormatter.__init__(self, prog, max_help_position=30, width=120)


class _Version(argparse.Action):
    """Print the version of the installed package."""

    def __call__(self, parser: argparse.ArgumentParser, *args: object) -> None:
        from importlib.metadata import version

        parser.exit(0, f"tacit {version('tacit')}\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line.

    Returns:
        The exit code: 0; 2 for a mistake of the user; 1 for any other failure; 130 after Ctrl-C, 143 after SIGTERM.
    """
    line = sys.argv[1:] if argv is None else list(argv)
    args = make_parser(line[0] if line else "").parse_args(line)
    with _termination_interrupts() as signals, _short_warnings():
        return _run(args, signals)


def _run(args: argparse.Namespace, signals: Sequence[int]) -> int:
    try:
        code = int(args.run(args))
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader of our output has closed it
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115, for the flush at exit
        return 1
    except KeyboardInterrupt as interrupt:
        print(f"tacit: {interrupt}" if interrupt.args else "tacit: Interrupted.", file=sys.stderr)
        return STOPPED + (signals[0] if signals else signal.SIGINT)
    except Exception as error:
        return _exit_code(error)


@contextmanager
def _termination_interrupts() -> Iterator[Sequence[int]]:
    """Inside this block SIGTERM raises `KeyboardInterrupt`, as Ctrl-C does; yields the list of signals that arrived."""
    signals: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield signals
        return

    def interrupt(number: int, _: FrameType | None) -> None:
        signals.append(number)
        if len(signals) == 1:  # a second one must not interrupt the writing of the checkpoint
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield signals
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _short_warnings() -> Iterator[None]:
    """Inside this block, each warning is one line on standard error, once, without the place that raised it."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("default")
        seen: set[str] = set()

        def show(message: Warning | str, *_: object, **__: object) -> None:
            if str(message) not in seen:
                seen.add(str(message))
                print(f"Warning: {message}", file=sys.stderr)

        warnings.showwarning = show
        yield


def make_parser(chosen: str) -> Parser:
    """The parser for a command line with the chosen command; of the other commands it knows only the summaries."""
    parser = Parser(prog="tacit", description=__doc__, formatter_class=_Formatter)
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    names = command_names()
    if chosen in names:
        _add_command(commands, chosen)
        return parser
    for name in names:
        commands.add_parser(name, help=_summary(FOLDER / f"{name}.py"))
    return parser


def command_names() -> list[str]:
    """The names of all commands."""
    return sorted(found.name for found in pkgutil.iter_modules([str(FOLDER)]) if not found.name.startswith("_"))


def _add_command(commands: "argparse._SubParsersAction[Parser]", name: str) -> None:
    module = importlib.import_module(f"{__name__}.commands.{name}")
    parser = commands.add_parser(name, description=module.__doc__, formatter_class=_Formatter)
    module.configure(parser)
    parser.set_defaults(run=module.run)


def _summary(path: Path) -> str:
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return docstring.partition("\n")[0].rstrip(".").replace("%", "%%")


def _nearest(word: str, names: Iterable[str]) -> str:
    from tacit.core.schema import suggestion

    return suggestion(word, names)


def _exit_code(error: Exception) -> int:
    """Report an error: one sentence if its cause is known, the traceback otherwise."""
    from tacit.errors import TacitError

    if isinstance(error, TacitError):
        print(f"tacit: {error}", file=sys.stderr)
        return error.exit_code
    if isinstance(error, OSError) and error.filename:
        advice = " Run as the user to whom it belongs." if isinstance(error, PermissionError) else ""
        print(f"tacit: Could not open {error.filename}: {error.strerror}.{advice}", file=sys.stderr)
        return 2
    if isinstance(error, MemoryError) or "can't allocate memory" in str(error):  # the latter is PyTorch's
        print("tacit: The memory of this machine does not suffice. Use fewer or smaller clients.", file=sys.stderr)
        return 1
    traceback.print_exception(error)
    return 1
