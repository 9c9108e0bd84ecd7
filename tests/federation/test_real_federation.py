"""Runs between real processes, over gRPC on 127.0.0.1: the same model as the simulation's, bit for bit."""

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

import acme
from federation.consortium import SERVER, Consortium
from federation.mortal import DEATH, SEEDS
from federation.processes import Processes, processes
from tacit.core.keys import SeededKeys
from tacit.data import Task
from tacit.engine import Simulation
from tacit.federation.plan.plan import FederationPlan
from tacit.federation.server.server import FederationServer
from tacit.runs.checkpoint import read as read_checkpoint
from tacit.runs.training import follow

COUNT = 4
MORTAL = "federation.mortal:open_mortal"
METHODS: dict[str, tuple[str, dict[str, object]]] = {
    "plain": ("fl-top", {"cohort": COUNT, "ratio": 0.3}),
    "secure": ("fl-std", {"cohort": COUNT, "channel": "SecureSum()"}),
    "secure-private": ("fl-std-dp", {"cohort": COUNT, "noise": 2.0, "epsilon": "none"}),
}
PLANS = {
    **METHODS,
    "a site dies": ("fl-std-dp", {"cohort": COUNT, "noise": 2.0, "epsilon": "none", "rounds": 4}),
    "the run is interrupted": ("fl-std", {"cohort": COUNT, "channel": "SecureSum()", "rounds": 4}),
    "the run is killed": ("fl-std", {"cohort": COUNT, "channel": "SecureSum()", "rounds": 20}),
}
KILLS = 5


@dataclass
class Started:
    """A consortium whose sites run."""

    consortium: Consortium
    processes: Processes
    plans: dict[str, FederationPlan] = field(default_factory=dict)

    def config(self, name: str) -> Path:
        return self.consortium.home(name) / "site.toml"

    def start(self, *names: str) -> None:
        configs = {name: self.config(name) for name in self.consortium.names}
        self.processes.start(*names, opener=MORTAL, configs=configs)

    def make_plan(self, kind: str) -> FederationPlan:
        method, args = PLANS[kind]
        seed = acme.SEED + [*PLANS].index(kind)
        content: dict[str, object] = {"seed": seed, "public": "acme:public", "timeouts": {"message": 60}, "retries": 50}
        plan = self.consortium.plan(method, f"{kind}.toml", args=args, **content)
        self.consortium.accept(plan)
        for name in self.consortium.names:
            with self.config(name).with_name(SEEDS).open("a") as file:
                file.write(f"{plan.digest.hex()} {seed}\n")
        return plan

    def server(self, plan: FederationPlan) -> FederationServer:
        return FederationServer(plan, self.processes.transport, SERVER, randomness="seeded")


@pytest.fixture(scope="module")
def started() -> Iterator[Started]:
    names = tuple(f"site-{number}" for number in range(COUNT))
    with processes(*names) as running:
        found = Started(Consortium.at(running.study / "consortium", COUNT), running)
        found.plans.update({kind: found.make_plan(kind) for kind in PLANS})
        found.start("server", *names)
        running.wait_for(names)
        yield found


def simulated(plan: FederationPlan) -> torch.Tensor:
    task = Task(model=acme.net, clients=[acme.samples(number) for number in range(COUNT)], public=acme.public())
    steps = Simulation(plan.method, task, seed=plan.seed, waves="single").rounds(workers=1, keys=SeededKeys(plan.seed))
    *_, (state, _) = steps
    return state.weights


@pytest.mark.parametrize("kind", METHODS)
def test_the_model_is_that_of_the_simulation(started, kind):
    plan = started.plans[kind]
    server = started.server(plan)
    *_, run = follow(server.run_spec, source=server)
    assert not server.sites.problems
    assert torch.equal(run.state.weights, simulated(plan))


def test_a_site_that_dies_is_a_dropout_and_takes_part_again(started):
    plan = started.plans["a site dies"]
    (started.config("site-1").with_name(DEATH)).write_text("continue 1 before")
    server = started.server(plan)
    delivered: list[set[int]] = []
    for run in follow(server.run_spec, source=server):
        if len(run.history) == 1 and not delivered:
            started.start("site-1")
            started.processes.wait_for(started.consortium.names)
        if run.history:
            last = run.history[-1]
            delivered.append(set(last.clients) - set(last.rejected))
    assert [sorted(each) for each in delivered] == [[0, 2, 3], *[[0, 1, 2, 3]] * 3]


def test_an_interrupted_run_is_resumed_from_its_checkpoint(started, tmp_path):
    plan = started.plans["the run is interrupted"]
    server = started.server(plan)
    steps = follow(server.run_spec, source=server, out=tmp_path / "run")
    for run in steps:
        if run.state.round == 2:
            break
    steps.close()
    again = started.server(plan)
    *_, run = follow(again.run_spec, source=again, out=tmp_path / "run", resume=True)
    assert run.state.round == 4
    assert torch.equal(run.state.weights, simulated(plan))


@pytest.mark.campaign  # half a minute
def test_a_run_that_is_killed_at_random_moments_ends_where_the_simulation_ends(started, tmp_path):
    out, source = tmp_path / "run", random.Random(0)
    running, plan = started.processes, started.consortium.folder / "the run is killed.toml"
    for killed in range(KILLS + 1):
        running.start_run(plan, out)
        if killed < KILLS:
            time.sleep(source.uniform(0.5, 1.5))
            running.kill("run")
    running.wait_for_run()
    state = read_checkpoint(out / "checkpoint.safetensors")
    assert state is not None, running.output()
    assert state.round == 20, running.output()
    assert torch.equal(state.weights, simulated(started.plans["the run is killed"]))
