"""A site that scales its update up where the server sees it: the simulation says what the federation does."""

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

import acme
from federation.consortium import SERVER, Consortium, transport
from tacit.core import ClientRound, Messages, Method, Round, SeededKeys, View, Wave
from tacit.core.client_half import make_messages
from tacit.core.rows import DenseRows
from tacit.data import Task
from tacit.engine import Simulation, worker
from tacit.federation.channels.interface import SiteReply
from tacit.federation.channels.plain import PlainSite
from tacit.federation.journal import AuditLog, read_journal
from tacit.federation.messages import SiteRequest
from tacit.federation.server.server import FederationServer
from tacit.runs.training import follow

SITES, LIAR = 5, 3


@dataclass(frozen=True)
class Scaling(PlainSite):
    factor: float

    def reply(self, asked: SiteRequest, messages: Messages, now: Round) -> SiteReply:
        return PlainSite.reply(self, asked, scaled_up(messages, self.factor), now)


def scaled_up(messages: Messages, factor: float) -> Messages:
    return replace(messages, rows=DenseRows(messages.rows.dense() * factor))


@pytest.mark.parametrize("factor", [-5.0, 20.0])
@pytest.mark.parametrize("name", ["fedavg", "ifca"])
def test_a_scaled_update_is_the_same_in_both(tmp_path: Path, monkeypatch, name: str, factor: float) -> None:
    consortium = Consortium.at(tmp_path, SITES)
    plan = consortium.plan(name, args={"rounds": 3, "cohort": SITES})
    consortium.accept(plan)
    sites = consortium.sites(seeded=True)
    accepted = sites[consortium.names[LIAR]]._find_accepted(plan.digest)
    assert isinstance(accepted.channel, PlainSite)
    accepted.channel = Scaling(accepted.channel.channel, factor)
    log = AuditLog(tmp_path / "log")
    here = FederationServer(plan, transport(sites), SERVER, log, randomness="seeded", sleep=lambda _: None)
    *_, run = follow(here.run_spec, source=here)

    def hostile(method: Method, view: View, data: Wave, now: ClientRound) -> Messages:
        messages = make_messages(method, view, data, now)
        return scaled_up(messages, factor) if data.clients.tolist() == [LIAR] else messages

    monkeypatch.setattr(worker, "make_messages", hostile)
    task = Task(model=acme.net, clients=[acme.samples(number) for number in range(SITES)])
    simulation = Simulation(plan.method, task, seed=acme.SEED, waves="single")
    *_, (state, _) = simulation.rounds(workers=1, keys=SeededKeys(plan.seed))
    assert torch.equal(run.state.weights, state.weights)
    shortened = [entry["sites"] for entry in read_journal(log.path) if entry["event"] == "shortened"]
    assert shortened == [[consortium.names[LIAR]]] * 3
