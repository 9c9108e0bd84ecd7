"""Law *federation*: in test mode, sites end bitwise where the simulation of the same method ends."""

import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from io import BufferedRWPair
from pathlib import Path

import pytest
import torch
from torch import Tensor

import acme
from federation.consortium import Consortium, server, transport, visits_encoding
from tacit import methods
from tacit.core.keys import SeededKeys
from tacit.data import Task
from tacit.engine import Simulation
from tacit.federation.plan.plan import FederationPlan
from tacit.federation.transport.endpoints import InProcess, Transport
from tacit.pieces.channels import Enclave
from tacit.runs.run import Run
from tacit.runs.training import follow

SITES = 5
SMALL = {
    "rounds": 2,
    "cohort": SITES,
    "ratio": 0.3,
    "chunks": 5,
    "samples": 3,
    "noise": 2.0,
    "epsilon": "none",
    "size": 8,
}
PLAIN, SECURE = {"channel": "Plain()"}, {"channel": "SecureSum()"}
IN_ENCLAVES = tuple(name for name in methods.definitions() if isinstance(methods.make(name).channel, Enclave))
CASES = {
    **{name: (name, {}) for name in methods.definitions() if name not in IN_ENCLAVES},  # of which test_enclave_law is
    "esmfl without an enclave": ("esmfl", PLAIN),
    "fedavg in a secure sum": ("fl-std", SECURE),
    "fl-top in a secure sum": ("fl-top", SECURE),
    "geyer with cohorts that vary": ("geyer", {"cohort": 4, "rounds": 4}),
    "fl-top-dp against a semi-honest server": ("fl-top-dp", {"channel.level": "semi_honest"}),
}
FRESH = ("fedavg", "fl-top-dp", "ifca")


def arguments(name: str, args: Mapping[str, object]) -> dict[str, object]:
    """Small ones; d-privacy and the papers' own noise are not sized by a budget."""
    known = methods.options(name)
    small = {key: value for key, value in SMALL.items() if key in known}
    if name in ("nbafl", "priority"):
        small.pop("epsilon", None)
    if name in ("geyer", "priority-dp"):
        small["epsilon"] = 1e6
    return {**small, **args}


def simulated(plan: FederationPlan, sites: int = SITES) -> Tensor:
    return _final(plan, Task(model=acme.net, clients=[acme.samples(n) for n in range(sites)], public=acme.public()))


def _final(plan: FederationPlan, task: Task) -> Tensor:
    simulation = Simulation(plan.method, task, seed=plan.seed, waves="single")
    *_, (state, _) = simulation.rounds(workers=1, keys=SeededKeys(plan.seed))
    return state.weights


def played(plan: FederationPlan, way: Transport) -> Run:
    here = server(plan, way, seeded=True)
    *_, run = follow(here.run_spec, source=here)
    assert not here.sites.problems
    return run


@pytest.mark.law
@pytest.mark.parametrize(("name", "args"), CASES.values(), ids=CASES)
def test_sites_end_where_the_simulation_ends(tmp_path: Path, name: str, args: Mapping[str, object]) -> None:
    consortium = Consortium.at(tmp_path, SITES, methods=[name], channels=EVERY_CHANNEL)
    plan = consortium.plan(name, args=arguments(name, args), public="acme:public", records=min(acme.SIZES))
    consortium.accept(plan)
    run = played(plan, transport(consortium.sites(seeded=True)))
    assert torch.equal(run.state.weights, simulated(plan))
    assert not torch.equal(run.state.weights, run.spec.simulation.initial_state.weights)


@pytest.mark.parametrize("name", ["dp-sgd", "dp-fedsgd"])
def test_sites_that_know_persons_end_there_too(tmp_path: Path, name: str) -> None:
    consortium = Consortium.at(tmp_path, SITES, methods=[name], channels=EVERY_CHANNEL)
    consortium.give_tables('person = "person_id"')
    args = arguments(name, {})
    plan = consortium.plan(name, args=args, encoding="encoding.json", records=3, unit="person")
    consortium.accept(plan)
    run = played(plan, transport(consortium.sites(seeded=True)))
    persons = [[f"P{row // 2}" for row in range(size)] for size in acme.SIZES[:SITES]]
    tables = [visits_encoding().samples(consortium.home(site) / "visits.csv") for site in consortium.names]
    assert torch.equal(run.state.weights, _final(plan, Task(model=acme.net, clients=tables, person=persons)))
    assert not torch.equal(run.state.weights, _final(plan, Task(model=acme.net, clients=tables)))


EVERY_CHANNEL = ["plain", "secure-sum/semi_honest", "secure-sum/active_server"]


@pytest.mark.law
@pytest.mark.parametrize("name", FRESH)
def test_sites_in_processes_of_their_own_end_there_too(tmp_path: Path, name: str) -> None:
    consortium = Consortium.at(tmp_path, 3, methods=[name])
    with processes_of(consortium) as sites:
        plan = consortium.plan(name, args=arguments(name, {"cohort": 3}), public="acme:public")
        consortium.accept(plan)
        assert torch.equal(played(plan, InProcess(sites)).state.weights, simulated(plan, 3))


@contextmanager
def processes_of(consortium: Consortium) -> Iterator[dict[str, Callable[[str, bytes], bytes]]]:
    """Sites in processes of their own, each of which has its file and nothing else of this process."""
    script = str(Path(__file__).with_name("site_process.py"))
    pairs = {name: socket.socketpair() for name in consortium.names}
    descriptors = {name: there.fileno() for name, (_, there) in pairs.items()}
    sites = [
        f"{descriptors[name]}={number}={consortium.home(name) / 'site.toml'}"
        for number, name in enumerate(consortium.names)
    ]
    command = [sys.executable, script, *sites]
    with subprocess.Popen(command, pass_fds=tuple(descriptors.values())) as process:
        for _, there in pairs.values():
            there.close()
        try:
            yield {name: partial(handle, here.makefile("rwb")) for name, (here, _) in pairs.items()}
        finally:  # or the processes would wait for requests, and this one for them
            for here, _ in pairs.values():
                here.shutdown(socket.SHUT_RDWR)
                here.close()
        assert process.wait(timeout=60) == 0


def handle(link: BufferedRWPair, verb: str, request: bytes) -> bytes:
    for part in (verb.encode(), request):
        link.write(len(part).to_bytes(8, "little") + part)
    link.flush()
    return read_part(link)


def read_part(stream: BufferedRWPair) -> bytes:
    return stream.read(int.from_bytes(stream.read(8), "little"))
