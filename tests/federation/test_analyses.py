"""Analyses between sites: they end where the simulation ends, survive a lost site, and stop at the budget."""

from pathlib import Path
from typing import Any

import pytest
import torch

import tacit
from federation.consortium import Consortium, server, transport
from tacit.analyses.questions import question_of
from tacit.core.keys import SeededKeys
from tacit.data.encoding import Encoding
from tacit.data.sum_task import sum_task
from tacit.data.tables import read_table
from tacit.engine import Simulation
from tacit.errors import TacitError, UserError
from tacit.federation.plan.explain import explain_plan
from tacit.federation.plan.plan import FederationPlan
from tacit.report.page import run_page
from tacit.report.run_data import RunData
from tacit.runs.analyses import result_of_run
from tacit.runs.training import follow

SITES = 8
RANGES = Encoding(numbers={"days": (0.0, 100.0), "age": (0.0, 100.0)}, categories={"arm": ("x", "y")}, indicators=None)
COLUMNS = ["days", "age", "arm"]
MANY = {"persons": 100_000}  # so that the rule chooses Newton's method
ASKED: dict[str, dict[str, object]] = {
    "survival": {"time": "days", "event": "died", "by": "arm", "step": 10.0},
    "describe": {"columns": COLUMNS, "bins": 8},
    "metrics": {"score": "score", "event": "died"},
    "regress": {"target": "died", "columns": COLUMNS, **MANY},
    "regress with few": {"target": "died", "columns": COLUMNS, "persons": 2000},  # standardised steps
    "regress linear": {"family": "linear", "target": "days", "columns": ["age", "arm"], **MANY},
    "regress poisson": {"family": "poisson", "target": "days", "columns": ["age", "arm"], **MANY},
    "regress cox": {"family": "cox", "time": "days", "event": "died", "columns": ["age", "arm"], "step": 25.0},
    "regress ebm": {"family": "ebm", "target": "died", "columns": COLUMNS, "persons": 5000},
}


SLOW = ("regress with few", "regress poisson", "regress cox", "regress ebm")  # of many rounds
EVERY = [pytest.param(name, marks=pytest.mark.campaign) if name in SLOW else name for name in ASKED]


def question(name: str) -> Any:
    return question_of(name.split()[0], {key: value for key, value in ASKED[name].items() if key != "persons"})


def rows(site: int) -> list[str]:
    return [
        f"{(7 * i + 13 * site) % 100},{20 + (11 * i + site) % 60},{i % 2},{'xy'[(i + site) % 2]},{(7 * i) % 50 / 50}"
        for i in range(30)
    ]


def consortium_at(folder: Path, name: str, **policy: Any) -> tuple[Consortium, Encoding]:
    channels = ["secure-sum/active_server"]
    made = Consortium.at(folder, SITES, methods=name.split()[:1], channels=channels, **{"epsilon": 9.0, **policy})
    for number, site in enumerate(made.names):
        (made.home(site) / "patients.csv").write_text("\n".join(["days,age,died,arm,score", *rows(number)]))
        made.change(site, f'data = "acme:load_{number}"', 'data = "patients.csv"')
    encoding = question(name).encode(read_table(made.home(made.names[0]) / "patients.csv"), RANGES)
    (folder / "encoding.json").write_bytes(encoding.to_bytes())
    return made, encoding


def plan_of(consortium: Consortium, name: str, **changes: Any) -> FederationPlan:
    args = {**ASKED[name], "epsilon": 2.0, "units": 40, **changes.pop("args", {})}
    return consortium.plan("", model="", analysis=name.split()[0], encoding="encoding.json", args=args, **changes)


def simulated(plan: FederationPlan, encoding: Encoding) -> torch.Tensor:
    lines = [f"{site},{row}" for site in range(SITES) for row in rows(site)]
    names = ("site", "days", "age", "died", "arm", "score")
    columns = {
        name: list(each)
        for name, each in zip(names, zip(*(line.split(",") for line in lines), strict=True), strict=True)
    }
    table = read_table(
        {name: each if name in ("site", "arm") else list(map(float, each)) for name, each in columns.items()}
    )
    task = sum_task(table, encoding, plan.method.trainer.query.length, client="site", name="all")  # type: ignore[attr-defined]
    simulation = Simulation(plan.method, task, seed=plan.seed, waves="single")
    *_, (state, _) = simulation.rounds(workers=1, keys=SeededKeys(plan.seed))
    return state.weights


@pytest.mark.law
@pytest.mark.parametrize("name", EVERY)
def test_sites_end_where_the_simulation_ends(tmp_path: Path, name: str) -> None:
    consortium, encoding = consortium_at(tmp_path, name)
    plan = plan_of(consortium, name)
    consortium.accept(plan)
    here = server(plan, transport(consortium.sites(seeded=True)), seeded=True)
    *_, run = follow(here.run_spec, source=here, out=tmp_path / "run")
    assert not here.sites.problems
    assert torch.equal(run.state.weights, simulated(plan, encoding))
    assert result_of_run(run).tables
    assert result_of_run(run).title in run_page(RunData.read(tmp_path / "run"))
    assert list(run.epsilons.values()) == pytest.approx([2.0], abs=2e-2)


@pytest.mark.law
@pytest.mark.parametrize("name", EVERY)
def test_a_lost_site_costs_its_rows_and_no_privacy(name: str, tmp_path: Path) -> None:
    consortium, _ = consortium_at(tmp_path, name)
    plan = plan_of(consortium, name)
    consortium.accept(plan)
    lost = {name: each for name, each in consortium.sites().items() if name != "site-2"}
    here = server(plan, transport(lost))
    *_, run = follow(here.run_spec, source=here)
    assert run.privacy.proved
    assert list(run.epsilons.values()) == pytest.approx([2.0], abs=2e-2)


@pytest.mark.law
@pytest.mark.parametrize("name", EVERY)
def test_a_second_analysis_is_refused_when_the_budget_of_sites_is_used_up(name: str, tmp_path: Path) -> None:
    """Each costs 2; two with Gaussian noise cost less than 3 together."""
    consortium, _ = consortium_at(tmp_path, name, epsilon=2.5)
    first = plan_of(consortium, name)
    consortium.accept(first)
    here = server(first, transport(consortium.sites()))
    *_, run = follow(here.run_spec, source=here)
    assert run.state.round == first.method.rounds
    second = plan_of(consortium, name, seed=1)
    with pytest.raises(UserError, match=r"This site allows 2\.5"):
        consortium.accept(second)


def test_a_plan_is_explained(tmp_path: Path) -> None:
    consortium, _ = consortium_at(tmp_path, "survival")
    explained = explain_plan(plan_of(consortium, "survival"))
    assert explained.method == "survival"
    assert explained.epsilon == pytest.approx(2.0, abs=2e-2)
    assert any("'days'" in line for line in explained.reads)
    assert (
        FederationPlan.from_canonical(__import__("json").loads(plan_of(consortium, "survival").canonical)).digest
        == plan_of(consortium, "survival").digest
    )


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"args": {"time": "weeks"}}, "encoding made for the analysis"),
        ({"args": {"colour": "red"}}, "colour"),
        ({"model": "mlp"}, "nothing is trained"),
        ({"method": "fedavg"}, "either method or analysis"),
    ],
)
def test_what_no_plan_can_ask(tmp_path: Path, changes: dict[str, Any], sentence: str) -> None:
    consortium, _ = consortium_at(tmp_path, "survival")
    given = dict(changes)
    args = {**ASKED["survival"], "epsilon": 2.0, "units": 40, **given.pop("args", {})}
    method, model = given.pop("method", ""), given.pop("model", "")
    with pytest.raises(TacitError, match=sentence):
        consortium.plan(method, model=model, analysis="survival", encoding="encoding.json", args=args)


def test_the_most_units_of_a_site_are_declared(tmp_path: Path) -> None:
    consortium, _ = consortium_at(tmp_path, "survival")
    args = {**ASKED["survival"], "epsilon": 2.0}
    plan = consortium.plan("", model="", analysis="survival", encoding="encoding.json", args=args)
    with pytest.raises(tacit.UserError, match="units = "):
        _ = plan.method
