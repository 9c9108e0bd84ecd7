"""`tacit site serve`: keep a site connected to its federation's server."""

import argparse

from tacit.cli._console import note
from tacit.errors import UserError
from tacit.federation.site.files import read_site
from tacit.federation.transport.nvflare.kits import name_in_kit
from tacit.federation.transport.nvflare.process import keep_running, site_command

OPENER = "tacit.federation.transport.nvflare.process:open_site"


def run(args: argparse.Namespace) -> int:
    """Run until interrupted; restart a process that ends by itself."""
    site, kit = read_site(args.config), args.config.parent / "kit" if args.kit is None else args.kit
    kit_name = name_in_kit(kit)
    if kit_name != site.name:
        raise UserError(
            f"Expected the start-up kit of {site.name}, which has this site's key in the directory, got that of "
            f"{kit_name} in {kit}. Ask the server's operator for the right one."
        )
    note(*site.problems())
    return keep_running(site_command(kit, args.config, OPENER))
