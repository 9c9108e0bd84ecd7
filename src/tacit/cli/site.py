"""Take part in a federation as one of its sites.

Examples:
  tacit site serve site.toml                    keep the site connected; restarts by itself
"""

import argparse

from tacit.cli._serving import configure_site_serve


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    configure_site_serve(commands.add_parser("serve", help="keep the site connected to the server"))


def run(args: argparse.Namespace) -> int:
    """Execute the chosen command."""
    return int(args.do(args))
