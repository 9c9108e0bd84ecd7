"""List the methods there are.

Examples:
  tacit methods
  tacit methods --json
"""

import argparse
import json

from tacit.cli._console import aligned


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(args: argparse.Namespace) -> int:
    """Print every method's name and what it does."""
    from tacit.methods import catalog
    from tacit.report.cards import summary

    lines = {name: summary(factory) for name, factory in catalog().items()}
    if args.json:
        print(json.dumps([{"name": name, "summary": text} for name, text in lines.items()], indent=2))
        return 0
    print("\n".join(aligned(list(lines.items()))))
    return 0
