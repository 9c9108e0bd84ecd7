"""List all methods, or those that Python files of your own define.

Examples:
  tacit methods
  tacit methods mine.py                 its functions that return a Method; the file is read, not executed
  tacit methods --json
"""

import argparse
from collections import ChainMap
from pathlib import Path
from typing import TYPE_CHECKING

from tacit.cli._console import aligned, print_json

if TYPE_CHECKING:
    from tacit.core.discovery import Definition


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE.py", help="list the methods of these files")
    parser.add_argument("--json", action="store_true", help="print one JSON document on standard output")


def run(args: argparse.Namespace) -> int:
    """Print each method's name and summary."""
    from tacit.methods import definitions

    found = definitions() if not args.files else ChainMap(*map(_methods_in, reversed(args.files)))
    summaries = {name: definition.summary for name, definition in found.items()}
    if args.json:
        print_json([{"name": name, "summary": text} for name, text in summaries.items()])
        return 0
    print("\n".join(aligned(list(summaries.items()))))
    return 0


def _methods_in(file: Path) -> "dict[str, Definition]":
    """The functions of a file that are declared to return a method, by the name with which they are run."""
    from tacit.core.discovery import FileReference
    from tacit.errors import UserError

    functions = FileReference(file, "", "method").outline().factories
    found = {f"{file}:{name}": each for name, each in functions.items() if each.returns.split(".")[-1] == "Method"}
    if not found:
        raise UserError(f"Expected a function in {file} that is declared to return a Method (def mine() -> Method).")
    return found
