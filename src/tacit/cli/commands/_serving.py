"""`tacit site serve`: keep a site connected to its federation's server."""

import argparse
from pathlib import Path

OPENER = "tacit.federation.transport.nvflare.process:open_site"


def configure_site_serve(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("config", type=Path, metavar="SITE.toml", help="the site's file")
    parser.add_argument("--kit", type=Path, help="the site's start-up kit (default: the folder kit beside the file)")
    parser.set_defaults(do=serve_site)


def serve_site(args: argparse.Namespace) -> int:
    """Run until interrupted; a process that ends by itself is started again."""
    check_installed()
    from tacit.errors import UserError
    from tacit.federation.site.files import read_site
    from tacit.federation.transport.nvflare.kits import name_in_kit
    from tacit.federation.transport.nvflare.process import keep_running, site_command

    site, kit = read_site(args.config), args.config.parent / "kit" if args.kit is None else args.kit
    found = name_in_kit(kit)
    if found != site.name:
        raise UserError(
            f"Expected the start-up kit of {site.name}, which has this site's key in the directory, got that of "
            f"{found} in {kit}. Ask the server's operator for the right one."
        )
    return keep_running(site_command(kit, args.config, OPENER))


def check_installed() -> None:
    """Raise `UserError` unless NVFLARE is installed."""
    from importlib.util import find_spec

    from tacit.errors import UserError

    if find_spec("nvflare") is None:
        raise UserError("A federation needs NVFLARE. Install it with: pip install 'tacit[federation]'.")
