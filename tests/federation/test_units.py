"""Plans that protect clients and plans that protect records, at one site: a record has one budget for all of them."""

import json
import time
from pathlib import Path

import pytest

from federation.consortium import Consortium, server, transport
from tacit.cli import main
from tacit.core.prices import Unit
from tacit.errors import TooFewClientsError
from tacit.federation.plan.plan import FederationPlan
from tacit.federation.site.files import read_site
from tacit.privacy.ledger import Ledger
from tacit.runs.training import follow

ALLOWED = 4.0
CLIENTS = {
    "rounds": 4,
    "cohort": 5,
    "noise": 2.25,
    "epsilon": "none",
    "clip": 1.0,
}  # 3.8 for the site, 8.7 for a record
RECORDS = {"rounds": 4, "noise": 0.95, "epsilon": "none", "size": 8}


def consortium(folder: Path) -> Consortium:
    return Consortium.at(folder, methods=["fl-std-dp", "dp-fedsgd"], epsilon=ALLOWED)


def plans(here: Consortium) -> tuple[FederationPlan, FederationPlan]:
    """One for each unit: each costs almost all that the site allows."""
    return here.plan("fl-std-dp", "clients.toml", args=CLIENTS), here.plan("dp-fedsgd", "records.toml", args=RECORDS)


def run(here: Consortium, plan: FederationPlan) -> None:
    found = server(plan, transport(here.sites()))
    assert [len(each.history) for each in follow(found.run_spec, source=found)][-1] == 4


@pytest.mark.parametrize("first", [0, 1])
def test_what_plans_for_both_units_cost_is_added_up_for_a_record(tmp_path: Path, first: int) -> None:
    here = consortium(tmp_path)
    ordered = plans(here) if first == 0 else plans(here)[::-1]
    site = read_site(here.home("site-0") / "site.toml")
    for plan in ordered:
        assert site.review(plan).objections == ()
        assert 3.5 < site.review(plan).cost.total <= ALLOWED
    here.accept(ordered[0])
    run(here, ordered[0])
    found = site.review(ordered[1])
    assert found.cost.unit is Unit.RECORD
    assert found.cost.total > 5.42
    (objection,) = found.objections
    assert "for a record against the server, together with ε = " in objection
    assert "What is released about the whole site counts for a record, too, at twice its distance." in objection


@pytest.mark.parametrize("first", [0, 1])
def test_plans_that_were_accepted_before_either_ran_are_stopped_by_the_ledger(tmp_path: Path, first: int) -> None:
    here = consortium(tmp_path)
    ordered = plans(here) if first == 0 else plans(here)[::-1]
    for plan in ordered:
        here.accept(plan)
    run(here, ordered[0])
    with pytest.raises(TooFewClientsError, match=r"site-0: refused \(budget\)"):
        run(here, ordered[1])
    with Ledger.open(here.home("site-0") / "state" / "ledger.db") as ledger:
        assert {entry.label for entry in ledger.entries} == {ordered[0].method_name}


def test_the_review_of_a_plan_for_clients_says_what_it_costs_a_record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here = consortium(tmp_path)
    plans(here)
    site, plan = str(here.home("site-0") / "site.toml"), str(tmp_path / "clients.toml")
    assert main(["site", "review", site, plan]) == 0
    out = capsys.readouterr().out
    assert "for this site as a whole, against the server, of 4 that this site allows. That a site takes part" in out
    assert "(zero-out). For a single record of it, ε = " in out
    assert main(["site", "review", site, plan, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["unit"] == "client"
    assert found["within"] > 2 * found["epsilon"]


def test_the_ledger_says_that_nothing_holds_for_a_client_after_a_plan_for_records(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here = Consortium.at(tmp_path, methods=["fl-std-dp", "dp-fedsgd"], epsilon=20.0)
    site = str(here.home("site-0") / "site.toml")
    for plan in plans(here):
        here.accept(plan)
        run(here, plan)
    assert main(["site", "ledger", site]) == 0
    assert "Nothing is guaranteed for a client as a whole" in capsys.readouterr().out
    assert main(["site", "ledger", site, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["epsilons"]
    assert found["client"] is None
    assert found["record"] > 8.8


@pytest.mark.parametrize("rounds", [10_001, 1_000_000])
def test_a_plan_of_endless_rounds_is_refused_at_once(tmp_path: Path, rounds: int) -> None:
    """Its cost is not computed: for a million rounds that takes minutes."""
    here = consortium(tmp_path)
    plan = here.plan("fl-std-dp", args={**CLIENTS, "rounds": rounds})
    began = time.process_time()
    found = read_site(here.home("site-0") / "site.toml").review(plan)
    assert time.process_time() - began < 5
    assert not found.accepted
    assert f"The plan has {rounds} rounds. This site reviews at most 10000: ask for several plans." in found.objections
    assert found.cost.reason
