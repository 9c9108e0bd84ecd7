"""`tacit methods`: print each method's name and summary."""

import argparse
from collections import ChainMap
from pathlib import Path

from tacit import methods
from tacit.cli._console import align, answer
from tacit.core.discovery import Definition, FileReference
from tacit.errors import UserError


def run(args: argparse.Namespace) -> int:
    """Print the methods of Tacit and of installed packages, or those of files."""
    definitions = methods.definitions() if not args.files else ChainMap(*map(_methods_in, reversed(args.files)))
    summaries = {name: definition.summary for name, definition in definitions.items()}
    document = [{"name": name, "summary": text} for name, text in summaries.items()]
    return answer(args, document, align(list(summaries.items())))


def _methods_in(file: Path) -> dict[str, Definition]:
    """The functions of a file with the return type Method, by the name for running them."""
    functions = FileReference(file, "", "method").definitions()
    definitions = {
        f"{file}:{name}": each for name, each in functions.items() if each.returns.split(".")[-1] == "Method"
    }
    if not definitions:
        raise UserError(f"Expected a function in {file} that is declared to return a Method (def mine() -> Method).")
    return definitions
