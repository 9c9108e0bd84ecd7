"""Take part in a federation as one of its sites: its file and key, plans, what was spent, and its log.

Examples:
  tacit site init site.toml                     write a commented file, the identity key and the kit; check the data
  tacit site renew site.toml                    the site's next certificate
  tacit site pin acme.models:net                the pin of installed code, for models that a site allows
  tacit site review site.toml plan.toml         what this plan would cost and reveal here
  tacit site review site.toml plan.toml --accept
  tacit site serve site.toml                    keep the site connected; restarts by itself
  tacit site ledger site.toml                   what has been spent on these data, by whom
  tacit site log site.toml                      what the site received, answered, charged and refused
"""

import argparse
from pathlib import Path

from tacit.cli.parsers._options import add_commands, add_days, add_max_message, does


def configure(parser: argparse.ArgumentParser) -> None:
    add_commands(parser, _init, _renew, _pin, _review, _serve, _ledger, _log)


def _init(parser: argparse.ArgumentParser) -> None:
    """Write the site's file, its identity key and its kit, and check the data."""
    _add_site(parser)
    _add_kit(parser)
    does(parser, "site:init")


def _renew(parser: argparse.ArgumentParser) -> None:
    """Make the site's next certificate, and the enrolment for the server's operator."""
    _add_site(parser)
    _add_kit(parser)
    add_days(parser)
    parser.add_argument("--now", action="store_true", help="keep only the new one, as others may have the kit")
    does(parser, "site:renew")


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
        "--accept", action="store_true", help="accept the plan: recorded, and signed with the site's key"
    )
    verdict.add_argument("--refuse", action="store_true", help="refuse the plan, also one that was accepted before")
    does(parser, "site:review")


def _serve(parser: argparse.ArgumentParser) -> None:
    """Keep the site connected to the server."""
    parser.add_argument("config", type=Path, metavar="SITE.toml", help="the site's file")
    _add_kit(parser)
    add_max_message(parser, "request")
    does(parser, "names:grpc", "serve_site:run", json=False)


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


def _add_kit(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kit", type=Path, help="the folder of the site's kit (default: kit, beside the file)")
