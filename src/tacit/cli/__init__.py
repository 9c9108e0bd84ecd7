"""Federated learning with few bytes on the wire and proved privacy.

Examples:
  tacit run fedavg                      train on the embedded digits, in seconds
  tacit run fl-std --rounds 20 --set descent.lr=0.1
  tacit run experiment.toml             an experiment described in a file
  tacit run fl-top-dp --data patients.csv --client hospital --target died
  tacit run mine.py:fedprox             a method of your own; tacit new method fedprox writes one
  tacit methods                         list all methods; tacit tasks lists the tasks
  tacit report runs/fedavg-digits-0     a page about a run: guarantee, curves, bytes, settings
  tacit predict runs/private new.csv    predictions for new rows of a table
  tacit watch                           a live page of all runs in runs/
  tacit compare runs                    runs in a table, with intervals over seeds
  tacit card fedavg                     what each party sees, and what is guaranteed
  tacit calibrate --epsilon 1 --delta 1e-5 --rate 1/60 --rounds 200
  tacit attack dlg fedavg               reconstruct training data from updates
  tacit audit geyer                     an empirical lower bound on ε, compared with the claimed ε

ε bounds what a run reveals about one client, record or person: the smaller, the better the protection.
tacit card METHOD shows whom it protects, and from whom.
"""

# `parsers` has a module per command, discovered by listing: its docstring is the command's help (the first line is the
# summary), and `configure(parser)` declares its arguments and calls. `commands` has the called functions, imported one
# by one: names are checked before any import of PyTorch.

import argparse
import importlib
import os
import pkgutil
import re
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

from tacit import __version__
from tacit.cli import parsers
from tacit.cli._console import escape_streams, note, warn
from tacit.core.schema import suggestion
from tacit.errors import TacitError, one_line, shorten

_MAX_DETAILS = 40_000  # characters of a traceback
STOPPED = 128  # plus the signal's number: the exit codes that shells expect, 130 after Ctrl-C and 143 after SIGTERM


_SENTENCES = {  # for argparse's messages
    r"argument (.*): invalid choice: ('.*') \(choose from (.*)\)": r"expected \1 in \3, got \2",
    r"argument (.*): invalid int value: ('.*')": r"expected \1 as a whole number, got \2",
    r"argument (.*): not allowed with argument (.*)": r"expected either \1 or \2, got both",
    r"argument (.*): expected (?:one|at least one) argument": r"expected a value after \1",
    r"argument (.*): expected (.*, got .*)": r"expected \1 as \2",
    r"argument .*: (Expected .*)": r"\1",
    r"the following arguments are required: (.*)": r"expected \1",
}


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line and suggest the nearest name."""

    def error(self, message: str) -> NoReturn:
        near = ""
        if choices := re.search(r"invalid choice: '(.*)' \(choose from (.*)\)", message):
            names = choices[2].replace("'", "")
            message, near = message.replace(choices[2], names), suggestion(choices[1], names.split(", "))
        for pattern, sentence in _SENTENCES.items():
            message = re.sub(f"^{pattern}$", sentence, message)
        self.exit(2, f"tacit: {message[:1].upper()}{message[1:].rstrip('.')}.{near} See {self.prog} --help.\n")

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        argparse.ArgumentParser.exit(self, status, message and f"{one_line(message.rstrip())}\n")

    def parse_known_args(self, args: Iterable[str] | None = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Refuse unknown options here, where the command's options are declared, not in its parent."""
        parsed, unknown = argparse.ArgumentParser.parse_known_args(self, args, namespace)
        if unknown:
            options = (option for action in self._actions for option in action.option_strings)
            near = suggestion(unknown[0], options) if unknown[0].startswith("-") else ""
            self.exit(2, f"tacit: Unknown argument {unknown[0]!r}.{near} See {self.prog} --help.\n")
        return parsed, unknown


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Help as wide as this project's lines; examples keep their line breaks."""

    def __init__(self, prog: str) -> None:
        argparse.RawDescriptionHelpFormatter.__init__(self, prog, max_help_position=30, width=120)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line.

    Returns:
        The exit code: 0; 2 for a mistake of the user; 1 for any other failure; 130 after Ctrl-C, 143 after SIGTERM.
    """
    with escape_streams():
        args = make_parser().parse_args(argv)
        with _termination_interrupts() as signals, _short_warnings():
            return _run(args, signals)


def _run(args: argparse.Namespace, signals: Sequence[int]) -> int:
    try:
        code = call(args)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader of our output has closed it
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115, for the flush at exit
        return 1
    except KeyboardInterrupt as interrupt:
        note(f"tacit: {interrupt}" if interrupt.args else "tacit: Interrupted.")
        return STOPPED + (signals[0] if signals else signal.SIGINT)
    except Exception as error:
        return _exit_code(error)


def call(args: argparse.Namespace) -> int:
    """Call the command's functions in order; the first exit code that one returns is the command's."""
    for declared in args.calls:
        module, _, function = declared.partition(":")
        code: int | None = getattr(importlib.import_module(f"{__name__}.commands.{module}"), function)(args)
        if code is not None:
            return code
    return 0


@contextmanager
def _termination_interrupts() -> Iterator[Sequence[int]]:
    """Inside this block SIGTERM raises `KeyboardInterrupt`, as Ctrl-C does; yields the list of received signals."""
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
    """Inside this block, print each warning once, as one line on standard error without its location."""
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        seen: set[str] = set()

        def show(message: Warning | str, *_: object, **__: object) -> None:
            if str(message) not in seen:
                seen.add(str(message))
                warn(str(message))

        warnings.showwarning = show
        yield


def make_parser() -> Parser:
    """The parser for all command lines."""
    parser = Parser(prog="tacit", description=__doc__, formatter_class=_Formatter)
    parser.add_argument("--version", action="version", version=f"tacit {__version__}", help="print the version")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name in command_names():
        module = importlib.import_module(f"{parsers.__name__}.{name}")
        summary, _, _ = (module.__doc__ or "").partition("\n")
        text = summary.rstrip(".").replace("%", "%%")
        module.configure(commands.add_parser(name, help=text, description=module.__doc__, formatter_class=_Formatter))
    return parser


def command_names() -> list[str]:
    """The names of all commands."""
    return sorted(module.name for module in pkgutil.iter_modules(parsers.__path__) if not module.name.startswith("_"))


def _exit_code(error: Exception) -> int:
    """Report an error: one sentence if its cause is known, the traceback otherwise."""
    if isinstance(error, TacitError):
        note(f"tacit: {error}")
        _print_details("".join(getattr(error, "__notes__", ())))
        return error.exit_code
    if isinstance(error, OSError) and error.filename:
        advice = " Run as its owner, or choose another path." if isinstance(error, PermissionError) else ""
        note(f"tacit: Could not open {error.filename}: {error.strerror}.{advice}")
        return 2
    if isinstance(error, MemoryError) or "can't allocate memory" in str(error):  # the latter is PyTorch's
        note("tacit: Out of memory. Use fewer workers, smaller batches or a smaller model.")
        return 1
    _print_details("".join(traceback.format_exception(error)))
    return 1


def _print_details(text: str) -> None:
    """Print what helps to find a defect, such as a traceback, on standard error."""
    sys.stderr.write(shorten(text, _MAX_DETAILS))
