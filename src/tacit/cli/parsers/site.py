"""Take part in a federation as one of its sites: its file and key, plans, what was spent, and its log.

Examples:
  tacit site init site.toml                     write a commented file and the site's identity key; check the data
  tacit site pin acme.models:net                the pin of installed code, for models that a site allows
  tacit site review site.toml plan.toml         what this plan would cost and reveal here
  tacit site review site.toml plan.toml --accept
  tacit site serve site.toml                    keep the site connected; restarts by itself
  tacit site ledger site.toml                   what has been spent on these data, by whom
  tacit site log site.toml                      what the site received, answered, charged and refused
"""

import argparse
from pathlib import Path

from tacit.cli.parsers._options import add_commands, does


def configure(parser: argparse.ArgumentParser) -> None:
    add_commands(parser, _init, _pin, _review, _serve, _ledger, _log)


def _init(parser: argparse.ArgumentParser) -> None:
    """Write the site's file and identity key, and check the data."""
    _add_site(parser)
    does(parser, "site:init")


def _pin(parser: argparse.ArgumentParser) -> None:
    """Print the pin of installed code."""
    parser.add_argument("function", metavar="PACKAGE.MODULE:FUNCTION", help="the function that makes a model")
    does(parser, "site:print_pin", json=False)


def _review(parser: argparse.ArgumentParser) -> None:
    """What a plan would cost and reveal here; accept or refuse it."""
    _add_site(parser)
    parser.add_argument("plan", type=Path, metavar="PLAN.toml", help="what is to be trained")
    verdict = parser.add_mutually_exclusive_group()
    verdict.add_argument(
        "--accept", action="store_true", help="accept the plan: recorded, and signed by the site's key"
    )
    verdict.add_argument("--refuse", action="store_true", help="refuse the plan, also one that was accepted before")
    does(parser, "site:review")


def _serve(parser: argparse.ArgumentParser) -> None:
    """Keep the site connected to the server."""
    parser.add_argument("config", type=Path, metavar="SITE.toml", help="the site's file")
    parser.add_argument("--kit", type=Path, help="the site's start-up kit (default: the folder kit beside the file)")
    does(parser, "names:nvflare", "serve_site:run", json=False)


def _ledger(parser: argparse.ArgumentParser) -> None:
    """What has been spent on the site's data."""
    _add_site(parser)
    does(parser, "site:show_ledger")


def _log(parser: argparse.ArgumentParser) -> None:
    """What the site received, answered, charged and refused."""
    _add_site(parser)
    does(parser, "site:show_log")


def _add_site(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", type=Path, metavar="SITE.toml", help="the site's file")
