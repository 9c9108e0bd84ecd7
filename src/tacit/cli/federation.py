"""Train between organisations that do not trust one another.

Examples:
  tacit federation check plan.toml              what a plan trains, who learns what, ε and bytes, in plain words
  tacit federation check plan.toml --json
"""

import argparse

from tacit.cli._checking import configure_check


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    configure_check(commands.add_parser("check", help="explain a plan: what is trained, who learns what, ε and bytes"))


def run(args: argparse.Namespace) -> int:
    """Execute the chosen command."""
    return int(args.do(args))
