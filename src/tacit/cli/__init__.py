"""Federated learning that says little and gives nothing away.

Examples:
  tacit run fedavg                          train on embedded data, in seconds
  tacit run fl-std --rounds 20 --set lr=0.1
  tacit run experiment.toml
  tacit methods                             what there is
  tacit card fedavg                         who sees what, and what is (not) guaranteed
  tacit attack dlg fedavg                   what an adversary makes of what it sees
  tacit audit geyer                         a lower bound on epsilon beside the claim
"""

# One module per verb, found by listing. A verb's docstring is its help (the first line in the list of verbs),
# `configure(parser)` declares its arguments, `run(args)` does it and returns the exit code. Modules of this
# package import nothing heavy at their top, so that help is quick.

import argparse
import importlib
import os
import pkgutil
import sys
import traceback
from collections.abc import Sequence
from types import ModuleType
from typing import NoReturn

INTERRUPTED = 130  # what shells expect after Ctrl-C


class Parser(argparse.ArgumentParser):
    """A parser that complains in one line."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong, and where to read on."""
        self.exit(2, f"tacit: {message[:1].upper()}{message[1:].rstrip('.')}. See {self.prog} --help.\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line; returns the exit code: 0, 2 for the user's fault, 1 for ours, 130 if interrupted."""
    args = make_parser().parse_args(argv)
    try:
        code = int(args.run(args))
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # whoever read our output has seen enough
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115, for the flush at exit
        return 1
    except KeyboardInterrupt as interrupt:
        print(f"tacit: {interrupt}" if interrupt.args else "tacit: Interrupted.", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:
        return _exit_code(error)


def make_parser() -> argparse.ArgumentParser:
    """The parser of all verbs."""
    parser = Parser(prog="tacit", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", required=True)
    for name in sorted(found.name for found in pkgutil.iter_modules(__path__) if not found.name.startswith("_")):
        _add_verb(verbs, name, importlib.import_module(f"{__name__}.{name}"))
    return parser


def _add_verb(verbs: "argparse._SubParsersAction[Parser]", name: str, module: ModuleType) -> None:
    doc = (module.__doc__ or "").strip()
    parser = verbs.add_parser(
        name,
        help=doc.partition("\n")[0].rstrip("."),
        description=doc,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    module.configure(parser)
    parser.set_defaults(run=module.run)


def _exit_code(error: Exception) -> int:
    """Report an error: one sentence if it was raised on purpose, everything there is if not."""
    from tacit.errors import TacitError

    if isinstance(error, TacitError):
        print(f"tacit: {error}", file=sys.stderr)
        return error.exit_code
    traceback.print_exception(error)
    return 1
