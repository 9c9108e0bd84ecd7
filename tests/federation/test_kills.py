"""Sites that are killed, over real processes: what is released was charged, and nobody else's work is lost.

Each death costs seconds, so that `make test` has one of them (`test_real_federation`); TACIT_LONG=1 has those here, and
TACIT_KILLS=20 as many in every phase.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from federation.consortium import Consortium
from federation.mortal import DEATH, SEED, deadly
from federation.processes import Processes, processes
from tacit.federation.accepted_plan import seeded_secrets
from tacit.federation.federation_plan import FederationPlan
from tacit.federation.journal import read_journal
from tacit.federation.server import FederationServer
from tacit.federation.site_service import Site
from tacit.federation.transport import Handler, InProcess
from tacit.runs.records import Run
from tacit.runs.training import follow

pytestmark = pytest.mark.skipif(not os.environ.get("TACIT_LONG"), reason="minutes: set TACIT_LONG=1")
COUNT, ROUNDS = 5, 3
KILLS = int(os.environ.get("TACIT_KILLS", "1"))
POINTS = [
    f"{phase} {when}" for phase in ("train 1", "talk 1", "talk 2", "talk 3", "talk 4") for when in ("before", "after")
]
NAMES = tuple(f"site-{number}" for number in range(COUNT))
VICTIM = "site-1"
PRIVATE = {"cohort": COUNT, "noise": 2.0, "epsilon": "none", "rounds": ROUNDS}


def make(folder: Path) -> Consortium:
    return Consortium.at(folder, COUNT, epsilon=1e6, trust_server=False)


def make_plan(consortium: Consortium, number: int) -> FederationPlan:
    """One of several plans that train the same, each of which a site answers once."""
    plan = consortium.plan("fl-std-dp", f"plan-{number}.toml", args=PRIVATE, retries=10 + number, public="acme:public")
    consortium.accept(plan)
    return plan


@pytest.fixture(scope="module")
def started() -> Iterator[tuple[Processes, Consortium, list[FederationPlan]]]:
    with processes(*NAMES) as running:
        consortium = make(running.study / "consortium")
        plans = [make_plan(consortium, number) for number in range(KILLS * len(POINTS))]
        start(running, consortium, "server", *NAMES)
        running.wait_for(NAMES)
        yield running, consortium, plans


def start(running: Processes, consortium: Consortium, *names: str) -> None:
    configs = {name: consortium.home(name) / "site.toml" for name in NAMES}
    running.start(*names, opener="federation.mortal:open_mortal", configs=configs)


def played(server: FederationServer) -> Run:
    *_, run = follow(server.run_plan, source=server)
    return run


def undisturbed(folder: Path, point: str, seed: int) -> Run:
    """The same in one process, where the victim is lost for the whole run at the same point."""
    consortium = make(folder)
    plan = make_plan(consortium, 0)
    handlers: dict[str, Handler] = {name: site.handle for name, site in sites(consortium, seed).items()}
    deadly(handlers, VICTIM, point)
    return played(FederationServer(plan, InProcess(handlers), noise="seeded", sleep=lambda _: None))


def sites(consortium: Consortium, seed: int) -> dict[str, Site]:
    return {
        name: Site.open(consortium.home(name) / "site.toml", seeded_secrets(seed, number))
        for number, name in enumerate(NAMES)
    }


def delivered(run: Run) -> list[set[str]]:
    return [{NAMES[number] for number in set(each.clients) - set(each.rejected)} for each in run.history]


@pytest.mark.parametrize("number", range(KILLS * len(POINTS)))
def test_a_site_killed_in_any_phase(started, tmp_path, number):
    running, consortium, plans = started
    point, plan = POINTS[number % len(POINTS)], plans[number]
    consortium.home(VICTIM).joinpath(DEATH).write_text(point)
    for name in NAMES:
        consortium.home(name).joinpath(SEED).write_text(str(number))
    run = played(FederationServer(plan, running.transport, noise="seeded"))
    start(running, consortium, VICTIM)
    running.wait_for(NAMES)
    assert run.state.round == ROUNDS
    others = set(NAMES) - {VICTIM}
    assert all(others <= each for each in delivered(run))
    expected = undisturbed(tmp_path, point, number)
    assert delivered(run) == delivered(expected)
    assert torch.equal(run.state.weights, expected.state.weights)
    for name in NAMES:
        entries = [
            each
            for each in read_journal(consortium.home(name) / "state" / "log.jsonl")
            if each.get("plan") == plan.digest.hex()
        ]
        charged = [each["round"] for each in entries if each["event"] == "charged"]
        assert {index + 1 for index, each in enumerate(delivered(run)) if name in each} <= set(charged)
        assert charged.count(1) == (0 if (name, point) == (VICTIM, "train 1 before") else 1)
