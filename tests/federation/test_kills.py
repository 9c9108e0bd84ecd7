"""Processes that are killed: what is released was charged at both sides, and nobody else's work is lost.

Each death costs seconds, so that `make test` has one of them (`test_real_federation`). A campaign has
those here: 20 times a site at twelve moments of a round, the run at three random ones, the server's process at one.
TACIT_KILLS_OUT is a folder to which those that passed are written, and are not repeated.

Every run must end, bit for bit, where one in a single process ends that has the same survivors in every phase of every
round and no other disturbance (`federation.replay`).
"""

import json
import os
import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from federation.consortium import SERVER, Consortium
from federation.mortal import DEATH, NOTES, NotedKeys, read_notes
from federation.processes import Processes, is_running, processes, until
from federation.replay import Exchange, RecordingTransport, ReplayTransport, released
from scale import scaled
from tacit.federation.journal import AuditLog, Entry, read_journal
from tacit.federation.plan.plan import FederationPlan
from tacit.federation.server.server import FederationServer
from tacit.federation.site.service import Site
from tacit.federation.transport.endpoints import Handler
from tacit.privacy.ledger import Ledger
from tacit.runs.checkpoint import read as read_checkpoint
from tacit.runs.run import Run
from tacit.runs.training import follow

pytestmark = pytest.mark.campaign
KILLS = scaled(1, campaign=20)
OUT = os.environ.get("TACIT_KILLS_OUT")
POINTS = [
    f"{phase} {when}"
    for phase in ("train 1", "continue 1", "continue 2", "continue 3", "continue 4", "continue 5")
    for when in ("before", "after")
]
COUNT, ROUNDS, DEATHS_OF_A_RUN = 5, len(POINTS), 3
FEW_ROUNDS = 4  # of a run that outlives one death of the server
NAMES = tuple(f"site-{number}" for number in range(COUNT))
PRIVATE = {"cohort": COUNT, "noise": 20.0, "epsilon": 1e4, "delta": 1e-5}
FIRST_OF_RUNS, FIRST_OF_SERVERS = 1000, 2000  # their plans' numbers
ENTRIES = 1 + COUNT + 2 * 2  # in the server's log of a start and two rounds: started, joined; asked and closed


def make(folder: Path) -> Consortium:
    return Consortium.at(folder, COUNT, epsilon=1e6, trust_server=False)


def make_plan(consortium: Consortium, number: int, rounds: int = ROUNDS) -> FederationPlan:
    """One of several plans that train the same, each of which a site answers once."""
    args = {**PRIVATE, "rounds": rounds}
    plan = consortium.plan("fl-std-dp", file(number), args=args, retries=10 + number, public="acme:public")
    consortium.accept(plan)
    return plan


def file(number: int) -> str:
    return f"plan-{number}.toml"


@pytest.fixture(scope="module")
def started() -> Iterator[tuple[Processes, Consortium]]:
    with processes(*NAMES) as running:
        consortium = make(running.study / "consortium")
        for name in NAMES:
            consortium.home(name).joinpath(NOTES).touch()
        start(running, consortium, "server", *NAMES)
        connect(running, consortium)
        yield running, consortium


def start(running: Processes, consortium: Consortium, *names: str) -> None:
    configs = {name: consortium.home(name) / "site.toml" for name in NAMES}
    running.start(*names, opener="federation.mortal:open_mortal", configs=configs)


def connect(running: Processes, consortium: Consortium) -> None:
    """Wait for all sites; one that has ended is started again, as `tacit site serve` does."""

    def connected() -> bool:
        ended = [name for name in NAMES if not is_running(running.pid(name))]
        start(running, consortium, *ended)
        return not ended and set(running.transport.sites()) == set(NAMES)

    until(connected, running.output)


def undisturbed(folder: Path, real: Consortium, rounds: Sequence[Sequence[Exchange]]) -> list[Run]:
    """The run after each round of one in this process, in which the same are lost in the same phases."""
    consortium = make(folder)
    plan = make_plan(consortium, 0, len(rounds))
    handlers = {name: again(consortium, real, name, rounds) for name in NAMES}
    server = FederationServer(
        plan, ReplayTransport(handlers, rounds), SERVER, randomness="seeded", sleep=lambda _: None
    )
    return [*follow(server.run_spec, source=server)][1:]


def again(consortium: Consortium, real: Consortium, name: str, rounds: Sequence[Sequence[Exchange]]) -> Handler:
    """A site with the secrets that it had in those attempts in which it answered."""
    notes = read_notes(real.home(name) / NOTES)
    keys = iter([NotedKeys.from_note(notes[first.attempt]) for first, *_ in rounds if name in first.answered])
    return Site.open(consortium.home(name) / "site.toml", lambda: next(keys)).handle


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
        settled = Counter(entry.round for entry in ledger.entries if entry.digest is not None)
    assert set(settled) == set(range(1, plan.method.rounds + 1))
    assert not Counter(int(str(each["round"])) for each in sums) - attempts
    for name in NAMES:
        charged = charges(consortium.home(name) / "state" / "ledger.db")
        seen = {(f"{plan.digest.hex()} {run_of(log, each)}", each["round"]) for each in sums if names(each, name)}
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


def skip_if_counted(kind: str, number: int) -> None:
    if OUT and result(kind, number).exists():
        pytest.skip(f"counted before: {result(kind, number)}")


def count(kind: str, number: int, killed: Sequence[object], began: float) -> None:
    """Write down what was killed, after everything about it was checked."""
    if OUT:
        content = {"kind": kind, "killed": list(killed), "seconds": round(time.monotonic() - began, 1)}
        result(kind, number).parent.mkdir(parents=True, exist_ok=True)
        result(kind, number).write_text(json.dumps(content))


def result(kind: str, number: int) -> Path:
    return Path(OUT or "") / f"{kind}-{number}.json"


@pytest.mark.parametrize("number", range(KILLS))
def test_sites_killed_in_every_phase(started, tmp_path, number):
    skip_if_counted("site", number)
    (running, consortium), source, began = started, random.Random(number), time.monotonic()
    deaths = [(NAMES[(number + index) % COUNT], point) for index, point in enumerate(source.sample(POINTS, ROUNDS))]
    plan, log = make_plan(consortium, number), AuditLog(tmp_path / "run.log")
    transport = RecordingTransport(running.transport, tmp_path / "run.exchanges")
    server = FederationServer(plan, transport, SERVER, log)
    weights: list[Tensor] = []
    for run in follow(server.run_spec, source=server, out=tmp_path / "run"):
        if run.history:
            weights.append(run.state.weights.clone())
            restart(running, consortium, deaths[run.state.round - 1][0])
        if run.state.round < ROUNDS:
            name, point = deaths[run.state.round]
            consortium.home(name).joinpath(DEATH).write_text(point)
    assert run.state.round == ROUNDS
    for (name, _), those in zip(deaths, delivered(run), strict=True):
        assert set(NAMES) - {name} <= those
    rounds = released(read_journal(log.path), transport.path)
    expected = undisturbed(tmp_path / "undisturbed", consortium, rounds)
    assert delivered(run) == delivered(expected[-1])
    assert all(torch.equal(each.state.weights, found) for each, found in zip(expected, weights, strict=True))
    check_charges(consortium, plan, tmp_path / "run", read_journal(log.path))
    for (victim, point), (first, *_) in zip(deaths, rounds, strict=True):
        for name in NAMES:
            unasked = (name, point) == (victim, "train 1 before")
            assert times_charged(entries(consortium, name, plan), *first.attempt[1:]) == (0 if unasked else 1)
    count("site", number, deaths, began)


def times_charged(log: list[Entry], index: int, attempt: int) -> int:
    """How often a site has charged an attempt at a round."""
    events = [(each["event"], each.get("round"), each.get("attempt")) for each in log]
    return events.count(("charged", index, attempt))


def restart(running: Processes, consortium: Consortium, name: str) -> None:
    """Start a site again, which has died."""
    assert not consortium.home(name).joinpath(DEATH).exists(), f"{name} has not died"
    pid = running.pid(name)
    until(lambda: not is_running(pid), lambda: f"{name} did not end")
    output = running.study / f"{name}.out"
    before = output.read_text().count("the server: connected")
    start(running, consortium, name)
    pid = running.pid(name)
    until(lambda: not is_running(pid) or output.read_text().count("the server: connected") > before, running.output)
    connect(running, consortium)  # not earlier: what is asked before can be lost, which takes time


def begin(running: Processes, plan: Path, out: Path, source: random.Random) -> None:
    """Start or resume a run, and return at a random moment of its next two rounds."""
    log = out.with_suffix(".log")
    wanted = length(log) + source.randrange(1, ENTRIES)
    running.start_run(plan, out)
    until(lambda: length(log) >= wanted, running.output)
    time.sleep(source.uniform(0.0, 0.5))  # in a phase of the round, or between two
    assert is_running(running.pid("run")), running.output()


def length(log: Path) -> int:
    return log.read_bytes().count(b"\n") if log.exists() else 0


def ended(running: Processes, consortium: Consortium, plan: FederationPlan, out: Path) -> tuple[Tensor, Tensor]:
    """The model of a run that has ended, and that of the undisturbed one; its charges are checked."""
    running.wait_for_run()
    state, log = read_checkpoint(out / "checkpoint.safetensors"), read_journal(out.with_suffix(".log"))
    assert state is not None, running.output()
    assert state.round == plan.method.rounds, running.output()
    expected = undisturbed(out.parent / "undisturbed", consortium, released(log, out.with_suffix(".exchanges")))
    check_charges(consortium, plan, out, log)
    return state.weights, expected[-1].state.weights


@pytest.mark.parametrize("number", range(KILLS))
def test_a_run_killed_at_random_moments_is_resumed(started, tmp_path, number):
    skip_if_counted("run", number)
    (running, consortium), out, began = started, tmp_path / "run", time.monotonic()
    connect(running, consortium)
    plan, source = make_plan(consortium, FIRST_OF_RUNS + number), random.Random(number)
    path, moments = consortium.folder / file(FIRST_OF_RUNS + number), []
    for _ in range(DEATHS_OF_A_RUN):
        begin(running, path, out, source)
        running.kill("run")
        moments.append(read_journal(out.with_suffix(".log"))[-1]["event"])
    running.start_run(path, out)
    found, expected = ended(running, consortium, plan, out)
    assert torch.equal(found, expected)
    count("run", number, moments, began)


@pytest.mark.parametrize("number", range(KILLS))
def test_the_server_s_process_killed_at_a_random_moment_loses_nothing(started, tmp_path, number):
    skip_if_counted("server", number)
    (running, consortium), out, began = started, tmp_path / "run", time.monotonic()
    connect(running, consortium)
    plan = make_plan(consortium, FIRST_OF_SERVERS + number, FEW_ROUNDS)
    begin(running, consortium.folder / file(FIRST_OF_SERVERS + number), out, random.Random(number))
    running.kill("server")
    moment = read_journal(out.with_suffix(".log"))[-1]["event"]
    start(running, consortium, "server")
    found, expected = ended(running, consortium, plan, out)
    assert torch.equal(found, expected)
    count("server", number, [moment], began)
