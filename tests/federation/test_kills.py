"""Processes that are killed: what is released was charged at both sides, and nobody else's work is lost.

Each death costs seconds, so that `make test` has one of them (`test_real_federation`). TACIT_LONG=1 has those here: a
site at ten moments of a round, the run at three random ones, NVFLARE's server at one. TACIT_KILLS=20 has 20 times as
many.
"""

import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from federation.consortium import Consortium
from federation.mortal import DEATH, FRESH, SEED, deadly
from federation.processes import Processes, processes, until
from tacit.federation.accepted_plan import seeded_secrets
from tacit.federation.federation_plan import FederationPlan
from tacit.federation.journal import AuditLog, Entry, read_journal
from tacit.federation.server import FederationServer
from tacit.federation.site_service import Site
from tacit.federation.transport import Handler, InProcess
from tacit.privacy.ledger import Ledger
from tacit.runs.checkpoint import read as read_checkpoint
from tacit.runs.records import Run
from tacit.runs.training import follow

pytestmark = pytest.mark.skipif(not os.environ.get("TACIT_LONG"), reason="minutes: set TACIT_LONG=1")
COUNT, ROUNDS = 5, 3
KILLS = int(os.environ.get("TACIT_KILLS", "1"))
POINTS = [
    f"{phase} {when}" for phase in ("train 1", "talk 1", "talk 2", "talk 3", "talk 4") for when in ("before", "after")
]
DEATHS = [(point, number) for number in range(KILLS) for point in POINTS]
NAMES = tuple(f"site-{number}" for number in range(COUNT))
VICTIM = "site-1"
PRIVATE = {"cohort": COUNT, "noise": 2.0, "epsilon": 1e4, "delta": 1e-5, "rounds": ROUNDS}
FIRST_OF_RUNS, FIRST_OF_SERVERS = 1000, 2000  # their plans' numbers
ENTRIES = 1 + COUNT + 2 * ROUNDS  # of the server's log of an undisturbed run: started, joined; asked and closed


def make(folder: Path) -> Consortium:
    return Consortium.at(folder, COUNT, epsilon=1e6, trust_server=False)


def make_plan(consortium: Consortium, number: int) -> FederationPlan:
    """One of several plans that train the same, each of which a site answers once."""
    plan = consortium.plan("fl-std-dp", file(number), args=PRIVATE, retries=10 + number, public="acme:public")
    consortium.accept(plan)
    return plan


def file(number: int) -> str:
    return f"plan-{number}.toml"


@pytest.fixture(scope="module")
def started() -> Iterator[tuple[Processes, Consortium]]:
    with processes(*NAMES) as running:
        consortium = make(running.study / "consortium")
        start(running, consortium, "server", *NAMES)
        running.wait_for(NAMES)
        yield running, consortium


def start(running: Processes, consortium: Consortium, *names: str) -> None:
    configs = {name: consortium.home(name) / "site.toml" for name in NAMES}
    running.start(*names, opener="federation.mortal:open_mortal", configs=configs)


def seed(consortium: Consortium, text: str) -> None:
    for name in NAMES:
        consortium.home(name).joinpath(SEED).write_text(text)


def played(server: FederationServer, out: Path) -> Run:
    *_, run = follow(server.run_plan, source=server, out=out)
    return run


def undisturbed(folder: Path, point: str, number: int) -> Run:
    """The same in one process, where the victim is lost for the whole run at the same point."""
    consortium = make(folder)
    plan = make_plan(consortium, 0)
    handlers: dict[str, Handler] = {name: site.handle for name, site in sites(consortium, number).items()}
    deadly(handlers, VICTIM, point)
    server = FederationServer(plan, InProcess(handlers), noise="seeded", sleep=lambda _: None)
    return played(server, folder / "run")


def sites(consortium: Consortium, chosen: int) -> dict[str, Site]:
    return {
        name: Site.open(consortium.home(name) / "site.toml", seeded_secrets(chosen, number))
        for number, name in enumerate(NAMES)
    }


def delivered(run: Run) -> list[set[str]]:
    return [{NAMES[number] for number in set(each.clients) - set(each.rejected)} for each in run.history]


def entries(consortium: Consortium, name: str, plan: FederationPlan) -> list[Entry]:
    """What a site logged about a plan."""
    log = read_journal(consortium.home(name) / "state" / "log.jsonl")
    return [each for each in log if each.get("plan") == plan.digest.hex()]


def check_charges(consortium: Consortium, plan: FederationPlan, out: Path, log: list[Entry]) -> None:
    """Every sum that the server has seen was charged before: to its own ledger, and to those of the sites in it."""
    sums = [each for each in log if each["event"] == "closed"]
    with Ledger.open(out / "ledger.db") as ledger:
        attempts = Counter(entry.round for entry in ledger.entries)
        released = Counter(entry.round for entry in ledger.entries if entry.digest is not None)
    assert set(released) == set(range(1, ROUNDS + 1))
    assert not Counter(int(str(each["round"])) for each in sums) - attempts
    for name in NAMES:
        charged = charges(consortium.home(name) / "state" / "ledger.db")
        seen = {(f"{plan.digest.hex()[:16]} {run_of(log, each)}", each["round"]) for each in sums if names(each, name)}
        assert seen <= charged
        events = [(each["event"], each.get("round"), each.get("attempt")) for each in entries(consortium, name, plan)]
        for number, (event, *attempt) in enumerate(events):
            assert event != "trained" or ("charged", *attempt) in events[:number]


def charges(path: Path) -> set[tuple[str, int]]:
    """What a site has charged: the plan and run of the server, and the round; nothing if it was never asked."""
    if not path.exists():
        return set()
    with Ledger.open(path) as ledger:
        return {(entry.run, entry.round) for entry in ledger.entries}


def names(entry: Entry, name: str) -> bool:
    found = entry["delivered"]
    assert isinstance(found, list)
    return name in found


def run_of(log: list[Entry], entry: Entry) -> str:
    """The random bytes of the start of the server that wrote an entry."""
    starts = [each["run"] for each in log[: log.index(entry)] if each["event"] == "started"]
    return str(starts[-1])


@pytest.mark.parametrize(
    ("point", "number"), DEATHS, ids=[f"{point}-{number}".replace(" ", "-") for point, number in DEATHS]
)
def test_a_site_killed_in_any_phase(started, tmp_path, point, number):
    running, consortium = started
    chosen = number * len(POINTS) + POINTS.index(point)
    plan = make_plan(consortium, chosen)
    consortium.home(VICTIM).joinpath(DEATH).write_text(point)
    seed(consortium, str(chosen))
    log = AuditLog(tmp_path / "run.log")
    run = played(FederationServer(plan, running.transport, log, noise="seeded"), tmp_path / "run")
    start(running, consortium, VICTIM)
    running.wait_for(NAMES)
    assert run.state.round == ROUNDS
    others = set(NAMES) - {VICTIM}
    assert all(others <= each for each in delivered(run))
    expected = undisturbed(tmp_path / "undisturbed", point, chosen)
    assert delivered(run) == delivered(expected)
    assert torch.equal(run.state.weights, expected.state.weights)
    check_charges(consortium, plan, tmp_path / "run", read_journal(log.path))
    for name in NAMES:
        charged = [each["round"] for each in entries(consortium, name, plan) if each["event"] == "charged"]
        assert charged.count(1) == (0 if (name, point) == (VICTIM, "train 1 before") else 1)


def begin(running: Processes, plan: Path, out: Path, number: int) -> None:
    """Start a run, and return at a random moment before its last round ends."""
    source, log = random.Random(number), out.with_suffix(".log")
    wanted = source.randrange(1, ENTRIES)
    running.start_run(plan, out)
    until(lambda: log.exists() and log.read_bytes().count(b"\n") >= wanted, running.output)
    time.sleep(source.uniform(0.0, 0.15))  # in a phase of the round, or between two


def rounds_at_end(running: Processes, out: Path) -> int:
    """The rounds of a run that has ended by itself."""
    running.wait_for_run()
    state = read_checkpoint(out / "checkpoint.safetensors")
    assert state is not None, running.output()
    return state.round


def began(started: tuple[Processes, Consortium], out: Path, first: int, number: int) -> tuple[FederationPlan, Path]:
    """A run with fresh secrets, as it is at a random moment: its plan, and the plan's file."""
    running, consortium = started
    plan, path = make_plan(consortium, first + number), consortium.folder / file(first + number)
    seed(consortium, FRESH)
    begin(running, path, out, number)
    return plan, path


@pytest.mark.parametrize("number", range(3 * KILLS))
def test_a_run_killed_at_a_random_moment_is_resumed(started, tmp_path, number):
    (running, consortium), out = started, tmp_path / "run"
    plan, path = began(started, out, FIRST_OF_RUNS, number)
    running.kill("run")
    running.start_run(path, out)
    assert rounds_at_end(running, out) == ROUNDS, running.output()
    check_charges(consortium, plan, out, read_journal(out.with_suffix(".log")))


@pytest.mark.parametrize("number", range(KILLS))
def test_nvflare_s_server_killed_at_a_random_moment_loses_nothing(started, tmp_path, number):
    (running, consortium), out = started, tmp_path / "run"
    plan, _ = began(started, out, FIRST_OF_SERVERS, number)
    running.kill("server")
    start(running, consortium, "server")
    assert rounds_at_end(running, out) == ROUNDS, running.output()
    check_charges(consortium, plan, out, read_journal(out.with_suffix(".log")))
