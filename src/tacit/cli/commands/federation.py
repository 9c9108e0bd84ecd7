"""Train between organisations: certificates, a server, and runs with sites that do not trust one another.

Examples:
  tacit federation demo                         a server and eight sites as real processes on this machine
  tacit federation init study/ --host fl.example.org --sites hospital-a hospital-b hospital-c
  tacit federation check study/plan.toml        what a plan trains, who learns what and ε, in plain words
  tacit federation check study/plan.toml --trust    the same with bytes: runs the functions that the plan names
  tacit federation serve study/                 keep the server running
  tacit federation status study/                which sites are connected
  tacit federation run study/plan.toml --trust  train with the sites that have accepted the plan
  tacit federation run study/plan.toml --trust --resume study/runs/fl-top-dp

A plan names functions of installed packages: its model, and perhaps public data. Whoever wrote the plan chose them, and
to import a module is to execute it. Without --trust nothing that a plan names is imported.
"""

import argparse
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from tacit.cli._console import TRUST_PLAN, Declare, add_commands, add_trust, print_json, run_command
from tacit.cli.commands._plan_check import configure_check
from tacit.cli.commands._serving import check_installed

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from tacit.federation.plan.plan import FederationPlan
    from tacit.runs.records import Run


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    commands: dict[str, tuple[str, Declare]] = {
        "check": ("explain a plan: what is trained, who learns what, ε and bytes", configure_check),
        "init": ("make certificates and start-up kits", _configure_init),
        "serve": ("keep the server running", _configure_serve),
        "run": ("train with the sites that have accepted a plan", _configure_run),
        "status": ("list the sites and whether they are connected", _configure_status),
        "demo": ("a server and eight sites as real processes on this machine", _configure_demo),
    }
    add_commands(parser, commands)


run = run_command


def _configure_init(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("study", type=Path, help="the study's folder, on the server's machine")
    parser.add_argument("--host", help="the server's name in the network")
    parser.add_argument("--port", type=int, default=8002, help="the server's port (default: 8002)")
    parser.add_argument("--sites", nargs="+", metavar="NAME", help="the sites' names")
    parser.set_defaults(do=_init)


def _configure_serve(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("study", type=Path, help="the study's folder")
    parser.set_defaults(do=_serve)


def _configure_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("plan", type=Path, metavar="PLAN.toml", help="what is trained")
    parser.add_argument("--resume", metavar="RUN", type=Path, help="continue the run in this directory")
    parser.add_argument("--study", type=Path, help="the study's folder (default: that of the plan)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="directory of the run (default: a new one in runs/)")
    parser.add_argument("--ledger", type=Path, metavar="FILE", help="a privacy ledger that several runs may share")
    add_trust(parser, TRUST_PLAN)
    parser.add_argument("--json", action="store_true", help="print one JSON document on standard output")
    parser.set_defaults(do=_run)


def _configure_demo(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sites", type=int, default=8, metavar="N", help="number of sites (default: 8)")
    parser.add_argument("--rounds", type=int, default=30, metavar="N", help="number of rounds (default: 30)")
    parser.add_argument("--folder", type=Path, help="where to leave all files (default: a new temporary folder)")
    parser.set_defaults(do=_demo)


def _configure_status(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("study", type=Path, help="the study's folder")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.set_defaults(do=_status)


def _init(args: argparse.Namespace) -> int:
    """Write the list of participants, unless there is one, and make the kits that are missing."""
    check_installed()
    from tacit.core import files
    from tacit.errors import expect
    from tacit.federation.transport.nvflare.kits import PARTICIPANTS, TEMPLATE, Participants, make_kits

    file = args.study / PARTICIPANTS
    if not file.exists():
        expect(
            bool(args.host and args.sites),
            f"--host and --sites for a new study, as there is no {file}",
            "Give them, for example: --host fl.example.org --sites hospital-a hospital-b.",
        )
        Participants(args.host, args.port, tuple(args.sites))  # nothing is written that cannot be used
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
    from tacit.federation.transport.nvflare.kits import SERVER, Participants
    from tacit.federation.transport.nvflare.process import keep_running, server_command

    Participants.load(args.study)
    return keep_running(server_command(args.study / SERVER))


def _status(args: argparse.Namespace) -> int:
    """Exit code 0 if all sites are connected, 1 if not."""
    check_installed()
    from tacit.federation.transport.nvflare.kits import SERVER, Participants
    from tacit.federation.transport.relay import SOCKET, RelayTransport

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


def _run(args: argparse.Namespace) -> int:
    from tacit.cli._results import show
    from tacit.errors import expect
    from tacit.federation.plan.plan import read_plan

    expect(args.resume is None or args.out is None, "--resume without --out: a resumed run keeps its directory")
    plan = read_plan(args.plan, trusted=args.trust)
    plan.check_trusted(args.plan)
    study = args.plan.parent if args.study is None else args.study
    directory = args.resume or args.out or _new_directory(study / "runs", plan.method_name)
    command = f"tacit federation run {args.plan} --trust --resume {directory}"
    done = _train(plan, study, directory, command, resume=args.resume is not None, ledger=args.ledger)
    return show([done], as_json=args.json)


def _new_directory(folder: Path, name: str) -> Path:
    """A directory that does not exist yet."""
    names = (name, *(f"{name}-{number}" for number in range(2, 1_000_000)))
    return next(folder / each for each in names if not (folder / each).exists())


def _train(
    plan: "FederationPlan",
    study: Path,
    directory: Path,
    command: str,
    *,
    resume: bool = False,
    ledger: Path | None = None,
    watch: "Callable[[Run], None] | None" = None,
) -> "Run":
    """Train with the sites that are connected to the study's server; `watch` is called after every round."""
    from tacit.cli.commands.run import follow_to_end
    from tacit.federation.journal import AuditLog
    from tacit.federation.server.server import FederationServer
    from tacit.federation.transport.relay import SOCKET, RelayTransport
    from tacit.runs.training import follow

    transport = RelayTransport(study / "server" / SOCKET)
    transport.check()
    _check_names(plan, study)
    server = FederationServer(plan, transport, AuditLog(study / "log.jsonl"))
    steps = follow(server.run_plan, out=directory, resume=resume, ledger=ledger, source=server)
    return follow_to_end(_watched(steps, watch), server.run_plan, directory, command)


def _check_names(plan: "FederationPlan", study: Path) -> None:
    """Raise `UserError` if the plan's directory names sites that have no start-up kit."""
    from tacit.errors import UserError
    from tacit.federation.transport.nvflare.kits import PARTICIPANTS, Participants

    if not (study / PARTICIPANTS).exists():
        return
    unknown = [name for name in plan.directory.names if name not in Participants.load(study).sites]
    if unknown:
        raise UserError(
            f"Expected the names in the plan's directory to be those of {study / PARTICIPANTS}, got {unknown[0]}. "
            "Sites connect with the names of their start-up kits: use the same in directory.toml."
        )


def _watched(steps: "Generator[Run]", watch: "Callable[[Run], None] | None") -> "Generator[Run]":
    with closing(steps):
        for step in steps:
            if watch is not None:
                watch(step)
            yield step


def _demo(args: argparse.Namespace) -> int:
    """Set up a federation in a folder, run it with real processes, and kill one of them on the way."""
    check_installed()
    import tempfile

    from tacit.errors import expect

    expect(args.sites >= MIN_SITES, f"--sites={args.sites} >= {MIN_SITES}, so that secure aggregation survives a loss")
    expect(args.rounds >= MIN_ROUNDS, f"--rounds={args.rounds} >= {MIN_ROUNDS}, so that a site can come back")
    return _demo_in(args.folder or Path(tempfile.mkdtemp(prefix="tacit-demo-")), args)


MIN_SITES, MIN_ROUNDS = 5, 6


def _demo_in(folder: Path, args: argparse.Namespace) -> int:
    from tacit.cli._results import show
    from tacit.federation.demonstration import demonstration, talk

    demo = demonstration(folder, args.sites, args.rounds)
    victim, number = demo.names[1], 1
    with demo.running():
        watch = demo.killing(victim, after=2, back=args.rounds - 2)
        directory = folder / "runs" / demo.plan.method_name
        done = _train(demo.plan, folder, directory, f"tacit federation demo --folder {folder}", watch=watch)
    missed = [str(each.round) for each in done.history if number not in set(each.clients) - set(each.rejected)]
    talk(f"{victim} missed the rounds {', '.join(missed)} of {len(done.history)}, and took part in all others.")
    talk(f"All files are in {folder}: remove them when you have seen enough.")
    return show([done], as_json=False)
