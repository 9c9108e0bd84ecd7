"""`tacit federation`: the server's kit, its sites, its process, runs, and a demonstration."""

import argparse
import tempfile
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

from tacit.cli._console import align, answer
from tacit.cli._progress import follow_to_end
from tacit.cli._results import show
from tacit.errors import UserError, expect
from tacit.federation.demonstration import demonstration, say
from tacit.federation.journal import AuditLog
from tacit.federation.plan.directory import SERVER_KEY, read_server_key
from tacit.federation.plan.plan import FederationPlan, read_plan
from tacit.federation.server.server import FederationServer
from tacit.federation.transport.kits import DAYS_TO_CHANGE, PORT, ServerKit
from tacit.federation.transport.process import keep_running, server_command
from tacit.federation.transport.relay import SOCKET, RelayTransport
from tacit.runs.run import Run
from tacit.runs.training import follow

MIN_SITES, MIN_ROUNDS = 5, 6


def init(args: argparse.Namespace) -> int:
    """Make the server's certificate and the file for its sites."""
    kit = ServerKit(args.folder)
    if kit.address_file.exists():
        address = kit.address()
        expect(
            args.host in (None, address.host),
            f"--host {address.host}, as in {kit.address_file}, got {args.host}",
            "Edit the file if the server has moved; its certificate stays valid.",
        )
        kit.make(address.host, address.port, args.days)
    else:
        expect(bool(args.host), "--host for a new federation", "Give the server's name in the network.")
        kit.make(args.host, args.port or PORT, args.days)
    public = kit.address().identity.hex()
    lines = [
        f"for the sites  {kit.address_file}",
        f"certificate    valid until {_day(kit.address().certificates[0].ends)}",
        f"Sites answer only what {args.folder / SERVER_KEY} signs. Its public half, for directory.toml:",
        f'server = "{public}"',
        f"Next: give {kit.address_file} to every site; it is not secret. Add each with the enrolment that it sends:",
        f"  tacit federation add {args.folder} NAME enrolment.toml",
    ]
    return answer(args, {"file": str(kit.address_file), "server": public, "sites": [*kit.enrolments()]}, lines)


def add(args: argparse.Namespace) -> int:
    """Let a site connect, or replace its certificates."""
    enrolment = ServerKit(args.folder).add(args.name, args.enrolment)
    identity, ends = enrolment.identity.hex(), _day(enrolment.ends)
    lines = [
        f"added        {args.name}",
        f"public key   {identity}",
        f"certificate  valid until {ends}",
        "Compare the public key with the site's operator over a channel that you trust. It belongs in directory.toml.",
    ]
    return answer(args, {"added": args.name, "public_key": identity, "valid_until": ends}, lines)


def remove(args: argparse.Namespace) -> int:
    """Let a site connect no longer."""
    ServerKit(args.folder).remove(args.name)
    lines = [
        f"removed  {args.name}",
        "A running server closes its connection within seconds.",
        "Plans whose directory lists it stay as they are: make new ones without it.",
    ]
    return answer(args, {"removed": args.name}, lines)


def renew(args: argparse.Namespace) -> int:
    """Make the server's next certificate."""
    kit = ServerKit(args.folder)
    kit.renew(args.days, only=args.now)
    new, earlier = kit.address().certificates[0], kit.keyring.to_present().certificate
    lines = [f"certificate  valid until {_day(new.ends)}"]
    if new == earlier:
        lines.append(f"Next: give {kit.address_file} to every site now: without it, none connects again.")
    else:
        lines.append(
            f"Next: give {kit.address_file} to every site before {_day(earlier.ends - timedelta(DAYS_TO_CHANGE))}. "
            "The server then changes to its new certificate."
        )
    return answer(args, {"file": str(kit.address_file), "valid_until": _day(new.ends)}, lines)


def _day(time: datetime) -> str:
    return f"{time:%Y-%m-%d}"


def serve(args: argparse.Namespace) -> int:
    """Run the server until interrupted; restart a process that ends by itself."""
    kit = ServerKit(args.folder)
    kit.address()
    kit.keyring.to_present()
    return keep_running(server_command(args.folder, args.listen, args.max_message << 20))


def status(args: argparse.Namespace) -> int:
    """Exit code 0 if all sites are connected, 1 if not."""
    kit = ServerKit(args.folder)
    address, enrolments = kit.address(), kit.enrolments()
    transport = RelayTransport(kit.private / SOCKET)
    transport.validate()
    present = transport.sites()
    connected = {site: site in present for site in enrolments}
    ends = {site: _day(enrolment.ends) for site, enrolment in enrolments.items()}
    own = _day(address.certificates[0].ends)
    rows = [["", "", "", "certificate until"], ["server", address.target, "", own]]
    rows += [["site", site, "connected" if yes else "absent", ends[site]] for site, yes in connected.items()]
    answer(args, {"server": address.target, "connected": connected, "valid_until": {**ends, "": own}}, align(rows))
    return 0 if connected and all(connected.values()) else 1


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
    transport = RelayTransport(ServerKit(folder).private / SOCKET)
    transport.validate()
    _check_sites(plan, folder)
    server = FederationServer(plan, transport, read_server_key(folder), AuditLog(folder / "log.jsonl"))
    steps = follow(server.run_spec, out=directory, resume=resume, ledger=ledger, source=server)
    return follow_to_end(steps, server.run_spec, directory, command, watch)


def _check_sites(plan: FederationPlan, folder: Path) -> None:
    """Raise `UserError` if the plan's directory lists sites that cannot connect with these names and keys."""
    enrolled = ServerKit(folder).enrolments()
    for name, identity in plan.directory.identities.items():
        if name not in enrolled:
            raise UserError(
                f"Expected the sites of the plan's directory to be enrolled in {folder}, but {name} is not. "
                f"Add it with tacit federation add {folder} {name} and the enrolment that it sends."
            )
        if enrolled[name].identity != identity:
            raise UserError(
                f"Expected {name} to be enrolled in {folder} with its public key in the plan's directory, "
                f"{identity.hex()[:16]}, got {enrolled[name].identity.hex()[:16]}. Ask the site which one is right."
            )


def demo(args: argparse.Namespace) -> int:
    """Set up a federation in a folder, run it with real processes, and kill one of them on the way."""
    expect(args.sites >= MIN_SITES, f"--sites={args.sites} >= {MIN_SITES}, so that secure aggregation survives a loss")
    expect(args.rounds >= MIN_ROUNDS, f"--rounds={args.rounds} >= {MIN_ROUNDS}, so that a site can come back")
    folder = args.folder or Path(tempfile.mkdtemp(prefix="tacit-demo-"))
    demo = demonstration(folder, args.sites, args.rounds)
    victim, number = demo.names[1], 1
    with demo.run_processes():
        watch = demo.kill_and_await(victim, after=2, back=args.rounds - 2)
        directory = folder / "runs" / demo.plan.method_name
        result = _train(demo.plan, folder, directory, f"tacit federation demo --folder {folder}", watch=watch)
    missed = [str(each.round) for each in result.history if number not in set(each.clients) - set(each.rejected)]
    say(f"{victim} missed the rounds {', '.join(missed)} of {len(result.history)}, and took part in all others.")
    say(f"All files are in {folder}: remove them when you have seen enough.")
    return show([result], args)
