"""List all methods.

Examples:
  tacit methods
  tacit methods --json
"""

import argparse

from tacit.cli._console import aligned, print_json


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--json", action="store_true", help="print one JSON document on standard output")


def run(args: argparse.Namespace) -> int:
    """Print each method's name and summary."""
    from tacit.methods import definitions

    summaries = {name: definition.summary for name, definition in definitions().items()}
    if args.json:
        print_json([{"name": name, "summary": text} for name, text in summaries.items()])
        return 0
    print("\n".join(aligned(list(summaries.items()))))
    return 0
