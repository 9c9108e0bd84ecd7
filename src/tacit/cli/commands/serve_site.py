"""`tacit site serve`: keep a site connected to its federation's server."""

import argparse

from tacit.cli._console import note
from tacit.cli.commands.site import kit_of
from tacit.federation.site.files import read_site
from tacit.federation.transport.process import keep_running, site_command

OPENER = "tacit.federation.transport.process:open_site"


def run(args: argparse.Namespace) -> int:
    """Run until interrupted; restart a process that ends by itself."""
    site, kit = read_site(args.config), kit_of(args)
    identity = args.config.parent / site.table.identity
    kit.validate(identity, site.directory.server)
    note(*site.problems())
    return keep_running(site_command(kit.folder, identity, args.config, OPENER, args.max_message << 20))
