"""A site that sends another row than its own through secure aggregation: nobody sees it, but the released sum shows it.

The simulation says what the federation does, because there, too, nobody checks the liar's row.
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

import acme
from federation.consortium import Consortium, server, transport
from tacit.core import GridStep, Messages, Round, SeededKeys, State
from tacit.core.prices import Unit
from tacit.core.rows import DenseRows
from tacit.data import Task
from tacit.engine import Simulation
from tacit.federation.channels.interface import SiteReply
from tacit.federation.channels.secure_sum import SecureSumSite
from tacit.federation.messages import SiteRequest
from tacit.federation.plan import entry_points
from tacit.federation.plan.plan import FederationPlan
from tacit.pieces.channels import SecureSum
from tacit.runs.training import follow

SITES, LIAR = 5, 3
DP = {"rounds": 4, "size": 4, "noise": 1.5, "epsilon": "none"}
Lie = Callable[[Tensor, GridStep], Tensor]  # another row on this grid


def uniform(row: Tensor, grid: GridStep) -> Tensor:
    source = torch.Generator().manual_seed(3)
    return torch.randint(-(2**31), 2**31, row.shape, generator=source).double() * grid.size


LIES: dict[str, Lie] = {
    "times -100": lambda row, _: row * -100,
    "wrap-around": lambda row, grid: row + grid.size * 2.0 ** ((grid.bits or 32) - 2),
    "uniform": uniform,
}


def lying(messages: Messages, lie: Lie) -> Messages:
    """The messages, with another row of the liar."""
    assert messages.grid_step is not None
    rows = messages.rows.dense().clone()
    for place, client in enumerate(messages.clients.tolist()):
        if client == LIAR:
            rows[place] = lie(rows[place], messages.grid_step)
    return replace(messages, rows=DenseRows(rows))


def simulated(plan: FederationPlan, lie: Lie | None, task: Task | None = None) -> tuple[State, list[bool]]:
    """The end of the simulation, and which of its rounds were dropped."""

    @dataclass(frozen=True, kw_only=True)
    class LyingSum(SecureSum):
        bounded_for: ClassVar[tuple[Unit, ...]] = SecureSum.bounded_for

        def send(self, messages: Messages, now: Round) -> Messages:
            honest = SecureSum.send(self, messages, now)
            return honest if lie is None else lying(honest, lie)

    channel = plan.method.channel
    assert isinstance(channel, SecureSum)
    liar = LyingSum(**{field.name: getattr(channel, field.name) for field in fields(channel)})
    method = replace(plan.method, channel=liar)
    task = task or Task(model=acme.net, clients=[acme.samples(number) for number in range(SITES)])
    simulation = Simulation(method, task, seed=acme.SEED, waves="single")
    steps = [*simulation.rounds(workers=1, keys=SeededKeys(plan.seed))]
    return steps[-1][0], [report.dropped for _, report in steps]


@dataclass(frozen=True)
class LyingSite(SecureSumSite):
    lie: Lie

    def reply(self, asked: SiteRequest, found: Messages, now: Round) -> SiteReply:
        own = replace(found, clients=torch.tensor([LIAR]))
        return SecureSumSite.reply(self, asked, replace(lying(own, self.lie), clients=found.clients), now)


def federation(folder: Path, **args: Any) -> tuple[Consortium, FederationPlan]:
    consortium = Consortium.at(folder, SITES, methods=["dp-fedsgd", "fl-std"], channels=["secure-sum/active_server"])
    name = args.pop("method", "dp-fedsgd")
    plan = consortium.plan(name, args={**(DP if name == "dp-fedsgd" else {}), **args})
    consortium.accept(plan)
    return consortium, plan


def deployed(consortium: Consortium, plan: FederationPlan, lie: Lie, until: int = 99) -> tuple[Any, Any]:
    """The run of a federation in which one site lies up to a round, and its server."""
    sites = consortium.sites(seeded=True)
    liar = sites[consortium.names[LIAR]]
    accepted = liar._find_accepted(plan.digest)
    honest = accepted.channel
    assert isinstance(honest, SecureSumSite)
    accepted.channel = LyingSite(honest.channel, honest.member, lie)
    here = server(plan, transport(sites), seeded=True)
    run = None
    for run in follow(here.run_spec, source=here):
        if run.state.round >= until:
            accepted.channel = honest
    return run, here


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_a_row_that_is_not_clipped_ends_the_run_within_three_rounds(tmp_path: Path, lie: Lie) -> None:
    """It ruined the model, while the simulation said that it did nothing, because it let the liar check itself."""
    consortium, plan = federation(tmp_path)
    run, _ = deployed(consortium, plan, lie)
    begun = run.spec.simulation.initial_state.weights
    assert torch.equal(run.state.weights, begun)
    assert [report.dropped for report in run.history] == [True] * 3
    assert (run.ended, run.disrupted) == (True, True)
    state, dropped = simulated(plan, lie)
    assert dropped[:3] == [True] * 3
    assert torch.equal(state.weights, begun)


def test_a_site_that_lies_once_costs_its_rounds_only(tmp_path: Path) -> None:
    consortium, plan = federation(tmp_path)
    run, here = deployed(consortium, plan, LIES["uniform"], until=2)
    assert [report.dropped for report in run.history] == [True, True, False, False]
    assert (run.state.round, run.disrupted) == (4, False)
    assert not torch.equal(run.state.weights, run.spec.simulation.initial_state.weights)
    assert not here.sites.problems  # nobody is named: nobody can know who it was
    for name in consortium.names:
        assert len(consortium.site(name).files.charges()) == 4


def test_an_honest_federation_is_the_simulation_and_drops_nothing(tmp_path: Path) -> None:
    consortium, plan = federation(tmp_path)
    here = server(plan, transport(consortium.sites(seeded=True)), seeded=True)
    *_, run = follow(here.run_spec, source=here)
    state, dropped = simulated(plan, None)
    assert dropped == [report.dropped for report in run.history] == [False] * 4
    assert torch.equal(run.state.weights, state.weights)


@pytest.mark.parametrize("factor", [-1.0, 20.0])
def test_a_lie_that_nobody_can_see_is_the_same_in_the_simulation(tmp_path: Path, factor: float) -> None:
    consortium, plan = federation(tmp_path)
    lie: Lie = lambda row, _: row * factor  # noqa: E731
    run, _ = deployed(consortium, plan, lie)
    state, dropped = simulated(plan, lie)
    assert dropped[: len(run.history)] == [report.dropped for report in run.history]
    if not any(dropped):
        assert torch.equal(run.state.weights, state.weights)


def test_without_noise_the_plan_s_limit_of_rows_bounds_the_sum(tmp_path: Path) -> None:
    args: Mapping[str, Any] = {"channel": "SecureSum()", "cohort": SITES, "rounds": 4}
    consortium, plan = federation(tmp_path, method="fl-std", **args, max_row_norm=10.0)
    run, _ = deployed(consortium, plan, LIES["uniform"])
    assert [report.dropped for report in run.history] == [True] * 3
    assert plan.method.max_row_norm == 10.0


EIGHT = 8
VECTORS: dict[str, Lie] = {**LIES, "times -1": lambda row, _: -row, "times 20": lambda row, _: row * 20}


def accuracy(state: State) -> float:
    task = acme.digits()
    assert task.test is not None
    model = acme.digits_net()
    torch.nn.utils.vector_to_parameters(state.weights.float(), model.parameters())
    with torch.no_grad():
        return float((model(task.test[0]).argmax(1) == task.test[1]).float().mean())


@pytest.mark.campaign  # minutes
@pytest.mark.parametrize("name", ["honest", *VECTORS])
def test_on_digits_the_simulation_s_accuracy_is_the_federation_s(tmp_path: Path, name: str) -> None:
    """The table of the threat model, which `pytest -s` prints: one of eight sites lies in each of 30 rounds."""
    allowed = {"acme:digits_net": entry_points.pin("acme:digits_net", "the model")}
    consortium = Consortium.at(
        tmp_path, EIGHT, methods=["dp-fedsgd"], channels=["secure-sum/active_server"], models=allowed
    )
    for number, site in enumerate(consortium.names):
        consortium.change(site, f"acme:load_{number}", f"acme:digits_{number}")
    args = {"rounds": 30, "size": 188, "noise": 1.0, "epsilon": "none"}
    plan = consortium.plan("dp-fedsgd", args=args, model="acme:digits_net")
    consortium.accept(plan)
    lie = VECTORS.get(name, lambda row, _: row)
    run, _ = deployed(consortium, plan, lie)
    state, dropped = simulated(plan, lie, acme.digits())
    rounds = len(run.history)
    both = accuracy(state), accuracy(run.state)
    ended = f"ended after {rounds}" if run.disrupted else f"{rounds}"
    sys.stdout.write(f"| {name} | {both[0]:.3f} | {both[1]:.3f} | {ended} |\n")
    assert abs(both[0] - both[1]) < 0.03
    assert dropped[:rounds] == [report.dropped for report in run.history]
    assert not run.disrupted or rounds == 3
    assert run.disrupted == (name in LIES)
