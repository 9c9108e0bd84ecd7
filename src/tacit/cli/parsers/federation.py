"""Train between organisations: a server, its sites, and runs with sites that do not trust one another.

Examples:
  tacit federation demo                         a server and eight sites as real processes on this machine
  tacit federation init consortium/ --host fl.example.org      the server's certificate, and server.toml for every site
  tacit federation add consortium/ hospital-a enrolment.toml   let a site connect, or renew its certificate
  tacit federation remove consortium/ hospital-a               let it connect no longer
  tacit federation renew consortium/                           the server's next certificate
  tacit federation plan runs/private --sites consortium/directory.toml --out consortium/plan.toml     from a simulation
  tacit federation explain consortium/plan.toml        what a plan trains, who learns what and ε, in plain words
  tacit federation explain consortium/plan.toml --trust    the same with bytes: runs the functions that the plan names
  tacit federation serve consortium/                 keep the server running
  tacit federation status consortium/                which sites are connected
  tacit federation run consortium/plan.toml --trust  train with the sites that have accepted the plan
  tacit federation run consortium/plan.toml --trust --resume consortium/runs/fl-top-dp

A plan names functions of installed packages: its model, and perhaps public data. Whoever wrote the plan chose them, and
to import a module is to execute it. Without --trust nothing that a plan names is imported.
"""

import argparse
from pathlib import Path

from tacit.cli.parsers._options import TRUST_PLAN, add_commands, add_days, add_max_message, add_trust, does


def configure(parser: argparse.ArgumentParser) -> None:
    add_commands(parser, _explain, _plan, _init, _add, _remove, _renew, _serve, _run, _status, _demo)


def _explain(parser: argparse.ArgumentParser) -> None:
    """Explain a plan: what is trained, who learns what, ε and bytes."""
    parser.add_argument("plan", type=Path, metavar="PLAN.toml", help="what is trained")
    add_trust(parser, f"{TRUST_PLAN}; without it, bytes and parameters are not counted")
    does(parser, "federation_plan:run")


def _plan(parser: argparse.ArgumentParser) -> None:
    """Write a plan from a finished simulation on a table."""
    parser.add_argument("simulation", type=Path, metavar="RUN", help="the directory of a finished run on a table")
    parser.add_argument("--sites", type=Path, required=True, metavar="DIRECTORY.toml", help="everybody's public keys")
    parser.add_argument("--out", type=Path, required=True, metavar="PLAN.toml", help="the plan's file, a new one")
    does(parser, "federation_plan:make_plan")


def _init(parser: argparse.ArgumentParser) -> None:
    """Make the server's certificate, and the file with which sites find the server."""
    _add_folder(parser)
    parser.add_argument("--host", help="the server's name in the network, as sites reach it")
    parser.add_argument("--port", type=int, help="the server's port (default: 8002)")
    add_days(parser)
    does(parser, "names:grpc", "federation:init")


def _add(parser: argparse.ArgumentParser) -> None:
    """Let a site connect, or replace its certificates with those of a newer enrolment."""
    _add_folder(parser)
    parser.add_argument("name", metavar="NAME", help="the site's name, as in directory.toml")
    parser.add_argument("enrolment", type=Path, metavar="enrolment.toml", help="what tacit site init made at the site")
    does(parser, "names:grpc", "federation:add")


def _remove(parser: argparse.ArgumentParser) -> None:
    """Let a site connect no longer, and close its connection."""
    _add_folder(parser)
    parser.add_argument("name", metavar="NAME", help="the site's name")
    does(parser, "names:grpc", "federation:remove")


def _renew(parser: argparse.ArgumentParser) -> None:
    """Make the server's next certificate: the present one stays in use until shortly before it expires."""
    _add_folder(parser)
    add_days(parser)
    parser.add_argument("--now", action="store_true", help="use only the new one at once, as others may have the key")
    does(parser, "names:grpc", "federation:renew")


def _serve(parser: argparse.ArgumentParser) -> None:
    """Keep the server running."""
    _add_folder(parser)
    parser.add_argument(
        "--listen",
        default="",
        metavar="ADDRESS:PORT",
        help="where sites connect (default: all addresses of this machine)",
    )
    add_max_message(parser, "reply")
    does(parser, "names:grpc", "federation:serve", json=False)


def _add_folder(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, help="the folder of the federation, on the server's machine")


def _run(parser: argparse.ArgumentParser) -> None:
    """Train with the sites that have accepted a plan."""
    parser.add_argument("plan", type=Path, metavar="PLAN.toml", help="what is trained")
    parser.add_argument("--resume", metavar="RUN", type=Path, help="continue the run in this directory")
    parser.add_argument("--folder", type=Path, help="the folder of the federation (default: that of the plan)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="directory of the run (default: a new one in runs/)")
    parser.add_argument("--ledger", type=Path, metavar="FILE", help="a privacy ledger that several runs may share")
    add_trust(parser, TRUST_PLAN)
    does(parser, "names:grpc", "federation:run")


def _demo(parser: argparse.ArgumentParser) -> None:
    """A server and eight sites as real processes on this machine."""
    parser.add_argument("--sites", type=int, default=8, metavar="N", help="number of sites (default: 8)")
    parser.add_argument("--rounds", type=int, default=30, metavar="N", help="number of rounds (default: 30)")
    parser.add_argument("--folder", type=Path, help="where to leave all files (default: a new temporary folder)")
    does(parser, "names:grpc", "federation:demo")


def _status(parser: argparse.ArgumentParser) -> None:
    """List the sites, whether they are connected, and when certificates expire."""
    _add_folder(parser)
    does(parser, "names:grpc", "federation:status")
