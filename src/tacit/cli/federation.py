"""Train between organisations: certificates, a server, and runs with sites that do not trust one another.

Examples:
  tacit federation init study/                  write who takes part; then certificates and start-up kits
  tacit federation serve study/                 keep the server running
  tacit federation status study/                which sites are connected
"""

import argparse
from pathlib import Path

from tacit.cli._console import print_json


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _configure_init(commands.add_parser("init", help="make certificates and start-up kits"))
    _configure_serve(commands.add_parser("serve", help="keep the server running"))
    _configure_status(commands.add_parser("status", help="list the sites and whether they are connected"))


def run(args: argparse.Namespace) -> int:
    """Execute the chosen command."""
    return int(args.do(args))


def _configure_init(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("study", type=Path, help="the study's folder, on the server's machine")
    parser.add_argument("--host", help="the server's name in the network")
    parser.add_argument("--port", type=int, default=8002, help="the server's port (default: 8002)")
    parser.add_argument("--sites", nargs="+", metavar="NAME", help="the sites' names")
    parser.set_defaults(do=_init)


def _configure_serve(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("study", type=Path, help="the study's folder")
    parser.set_defaults(do=_serve)


def _configure_status(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("study", type=Path, help="the study's folder")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.set_defaults(do=_status)


def _init(args: argparse.Namespace) -> int:
    """Write the list of participants, unless there is one, and make the kits that are missing."""
    check_installed()
    from tacit.core import files
    from tacit.errors import expect
    from tacit.federation.nvflare.kits import PARTICIPANTS, TEMPLATE, make_kits

    file = args.study / PARTICIPANTS
    if not file.exists():
        expect(
            bool(args.host and args.sites),
            f"--host and --sites for a new study, as there is no {file}",
            "Give them, for example: --host fl.example.org --sites hospital-a hospital-b.",
        )
        files.make_private(args.study)
        sites = ", ".join(f'"{name}"' for name in args.sites)
        files.write(file, TEMPLATE.format(host=args.host, port=args.port, sites=sites).encode())
    else:
        expect(not (args.host or args.sites), f"--host and --sites only for a new study: edit {file} instead")
    made = make_kits(args.study)
    print("\n".join(f"kit  {kit}" for kit in made) or f"There is a kit for everybody in {file}. Nothing was made.")
    if made:
        print(
            "Give each site its folder of sites/ over a channel that you trust: it holds the site's TLS key.\n"
            f"Keep {args.study / 'authority'} off line: who has it can add sites.\n"
            f"Next: tacit federation serve {args.study}, and at each site: tacit site serve site.toml --kit KIT"
        )
    return 0


def _serve(args: argparse.Namespace) -> int:
    check_installed()
    from tacit.federation.nvflare.kits import SERVER, Participants
    from tacit.federation.nvflare.process import keep_running, server_command

    Participants.load(args.study)
    return keep_running(server_command(args.study / SERVER))


def _status(args: argparse.Namespace) -> int:
    """Exit code 0 if all sites are connected, 1 if not."""
    check_installed()
    from tacit.federation.nvflare.kits import SERVER, Participants
    from tacit.federation.relay import SOCKET, RelayTransport

    participants = Participants.load(args.study)
    transport = RelayTransport(args.study / SERVER / SOCKET)
    transport.check()
    connected = {site: site in transport.sites() for site in participants.sites}
    if args.json:
        print_json({"server": f"{participants.host}:{participants.port}", "connected": connected})
    else:
        print(f"server  {participants.host}:{participants.port}")
        print("\n".join(f"site    {site}  {'connected' if yes else 'absent'}" for site, yes in connected.items()))
    return 0 if all(connected.values()) else 1


def serve_site(args: argparse.Namespace) -> int:
    """`tacit site serve`: keep a site connected."""
    check_installed()
    from tacit.core import files
    from tacit.federation.nvflare.process import keep_running, site_command

    kit = args.config.parent / "kit" if args.kit is None else args.kit
    files.read(kit / "startup" / "fed_client.json", "the start-up kit's")
    return keep_running(site_command(kit, args.config, OPENER))


OPENER = "tacit.federation.site:open_site"  # makes a site from its file


def check_installed() -> None:
    """Raise `UserError` unless NVFLARE is installed."""
    from importlib.util import find_spec

    from tacit.errors import UserError

    if find_spec("nvflare") is None:
        raise UserError("A federation needs NVFLARE. Install it with: pip install 'tacit[federation]'.")
