"""`tacit federation`: certificates and start-up kits, the server, runs with its sites, and a demonstration."""

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path

from tacit.cli._console import answer
from tacit.cli._progress import follow_to_end
from tacit.cli._results import show
from tacit.core import files
from tacit.errors import UserError, expect
from tacit.federation.demonstration import demonstration, say
from tacit.federation.journal import AuditLog
from tacit.federation.plan.plan import FederationPlan, read_plan
from tacit.federation.server.server import FederationServer
from tacit.federation.transport.nvflare.kits import PARTICIPANTS, SERVER_KIT, TEMPLATE, Participants, make_kits
from tacit.federation.transport.nvflare.process import keep_running, server_command
from tacit.federation.transport.relay import SOCKET, RelayTransport
from tacit.runs.run import Run
from tacit.runs.training import follow

MIN_SITES, MIN_ROUNDS = 5, 6


def init(args: argparse.Namespace) -> int:
    """Write the list of participants, unless there is one, and make the missing kits."""
    file = args.folder / PARTICIPANTS
    if not file.exists():
        expect(
            bool(args.host and args.sites),
            f"--host and --sites for a new federation, as there is no {file}",
            "Give them, for example: --host fl.example.org --sites hospital-a hospital-b.",
        )
        Participants(args.host, args.port, tuple(args.sites))  # validate before writing
        files.make_private(args.folder)
        sites = ", ".join(f'"{name}"' for name in args.sites)
        files.write(file, TEMPLATE.format(host=args.host, port=args.port, sites=sites).encode())
    else:
        expect(not (args.host or args.sites), f"--host and --sites only for a new federation: edit {file} instead")
    kits = make_kits(args.folder)
    print("\n".join(f"kit  {kit}" for kit in kits) or f"There is a kit for everybody in {file}. Nothing was made.")
    if kits:
        print(
            "Give each site its folder of sites/ over a channel that you trust: it holds the site's TLS key.\n"
            f"Keep {args.folder / 'authority'} offline: whoever has it can add sites.\n"
            f"Next: tacit federation serve {args.folder}, and at each site: tacit site serve site.toml --kit KIT"
        )
    return 0


def serve(args: argparse.Namespace) -> int:
    """Run the server until interrupted; restart a process that ends by itself."""
    Participants.load(args.folder)
    return keep_running(server_command(args.folder / SERVER_KIT))


def status(args: argparse.Namespace) -> int:
    """Exit code 0 if all sites are connected, 1 if not."""
    participants = Participants.load(args.folder)
    transport = RelayTransport(args.folder / SERVER_KIT / SOCKET)
    transport.validate()
    connected = {site: site in transport.sites() for site in participants.sites}
    server = f"{participants.host}:{participants.port}"
    lines = [f"site    {site}  {'connected' if yes else 'absent'}" for site, yes in connected.items()]
    answer(args, {"server": server, "connected": connected}, [f"server  {server}", *lines])
    return 0 if all(connected.values()) else 1


def run(args: argparse.Namespace) -> int:
    """Train with the sites, or resume a run with them."""
    expect(args.resume is None or args.out is None, "--resume without --out: a resumed run keeps its directory")
    plan = read_plan(args.plan, trusted=args.trust)
    plan.check_trusted(args.plan)
    folder = args.plan.parent if args.folder is None else args.folder
    directory = args.resume or args.out or _new_directory(folder / "runs", plan.method_name)
    command = f"tacit federation run {args.plan} --trust --resume {directory}"
    result = _train(plan, folder, directory, command, resume=args.resume is not None, ledger=args.ledger)
    return show([result], args)


def _new_directory(folder: Path, name: str) -> Path:
    """A directory that does not exist yet."""
    names = (name, *(f"{name}-{number}" for number in range(2, 1_000_000)))
    return next(folder / each for each in names if not (folder / each).exists())


def _train(
    plan: FederationPlan,
    folder: Path,
    directory: Path,
    command: str,
    *,
    resume: bool = False,
    ledger: Path | None = None,
    watch: Callable[[Run], None] = lambda _: None,
) -> Run:
    """Train with the sites connected to the federation's server; call `watch` after every round."""
    transport = RelayTransport(folder / "server" / SOCKET)
    transport.validate()
    _check_names(plan, folder)
    server = FederationServer(plan, transport, AuditLog(folder / "log.jsonl"))
    steps = follow(server.run_spec, out=directory, resume=resume, ledger=ledger, source=server)
    return follow_to_end(steps, server.run_spec, directory, command, watch)


def _check_names(plan: FederationPlan, folder: Path) -> None:
    """Raise `UserError` if the plan's directory names sites that have no start-up kit."""
    if not (folder / PARTICIPANTS).exists():
        return
    unknown = [name for name in plan.directory.names if name not in Participants.load(folder).sites]
    if unknown:
        raise UserError(
            f"Expected the names in the plan's directory to be those of {folder / PARTICIPANTS}, got {unknown[0]}. "
            "Sites connect with the names of their start-up kits: use the same in directory.toml."
        )


def demo(args: argparse.Namespace) -> int:
    """Set up a federation in a folder, run it with real processes, and kill one of them on the way."""
    expect(args.sites >= MIN_SITES, f"--sites={args.sites} >= {MIN_SITES}, so that secure aggregation survives a loss")
    expect(args.rounds >= MIN_ROUNDS, f"--rounds={args.rounds} >= {MIN_ROUNDS}, so that a site can come back")
    folder = args.folder or Path(tempfile.mkdtemp(prefix="tacit-demo-"))
    demo = demonstration(folder, args.sites, args.rounds)
    victim, number = demo.names[1], 1
    with demo.running():
        watch = demo.killing(victim, after=2, back=args.rounds - 2)
        directory = folder / "runs" / demo.plan.method_name
        result = _train(demo.plan, folder, directory, f"tacit federation demo --folder {folder}", watch=watch)
    missed = [str(each.round) for each in result.history if number not in set(each.clients) - set(each.rejected)]
    say(f"{victim} missed the rounds {', '.join(missed)} of {len(result.history)}, and took part in all others.")
    say(f"All files are in {folder}: remove them when you have seen enough.")
    return show([result], args)
