"""Persons with several records at sites: plan, data, guarantee and ledgers are about the same unit."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from federation.consortium import Consortium, server, transport
from tacit import cli
from tacit.core.prices import Unit
from tacit.errors import CompositionError, DataError, UserError
from tacit.federation.journal import read_journal
from tacit.federation.plan.explain import explain_plan
from tacit.federation.plan.plan import FederationPlan
from tacit.federation.site.data import OwnSamples, hold_out, read_returned
from tacit.federation.site.policy import charge_of_round, review
from tacit.privacy.guarantee import AT_SEVERAL, PERSONS, Guarantee
from tacit.privacy.ledger import Ledger
from tacit.privacy.unit_accounting import Charge
from tacit.runs.run import Run
from tacit.runs.training import follow

ARGS = {"rounds": 2, "noise": 2.0, "epsilon": "none", "size": 4}
SECURE = ["secure-sum/active_server"]
PATIENT = 'person = "person_id"'
TABLE = {"encoding": "encoding.json"}


def consortium_at(folder: Path, *lines: str) -> Consortium:
    made = Consortium.at(folder, 5, methods=["dp-fedsgd", "fl-std"], channels=SECURE, epsilon=9.0)
    made.give_tables(*lines)
    return made


def trained(consortium: Consortium, plan: FederationPlan) -> Run:
    consortium.accept(plan)
    here = server(plan, transport(consortium.sites()))
    *_, run = follow(here.run_spec, source=here)
    return run


def text_of(capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 0) -> str:
    assert cli.main([*map(str, arguments)]) == code
    return capsys.readouterr().out


def test_guarantee_ledgers_and_commands_name_the_person(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    consortium = consortium_at(tmp_path, PATIENT)
    plan = consortium.plan("dp-fedsgd", args=ARGS, **TABLE, unit="person")
    run, site = trained(consortium, plan), consortium.home("site-0") / "site.toml"
    (found,) = run.guarantees.values()
    assert isinstance(found, Guarantee)
    assert (found.unit, found.rounds) == (Unit.PERSON, 2)
    assert AT_SEVERAL.format(unit="person") in found.not_covered
    assert PERSONS not in found.not_covered
    with Ledger.open(site.parent / "state" / "ledger.db") as ledger:
        assert [entry.unit for entry in ledger.entries] == [Unit.PERSON] * 2
    charged = [entry for entry in read_journal(site.parent / "state" / "log.jsonl") if entry["event"] == "charged"]
    assert [entry["unit"] for entry in charged] == ["person"] * 2
    file = tmp_path / "plan.toml"
    explained, reviewed = (
        text_of(capsys, *words) for words in (("federation", "explain", file), ("site", "review", site, file))
    )
    assert "for every person of a site that takes part in all rounds" in explained
    assert "for every person, against the server" in reviewed
    for text in (explained, reviewed):  # no site knows who is at another
        assert AT_SEVERAL.format(unit="person") in text
    assert "for every person, of ε = 9" in text_of(capsys, "site", "ledger", site)
    assert json.loads(text_of(capsys, "site", "ledger", site, "--json"))["epsilons"].keys() == {"person"}
    assert "5 rows of 3 persons with the columns x0, x1" in text_of(capsys, "site", "init", site)


def test_rates_and_charges_of_a_site_are_over_its_persons(tmp_path: Path) -> None:
    consortium = Consortium.at(tmp_path, 5, methods=["dp-sgd"], epsilon=float("inf"))
    consortium.give_tables(PATIENT)
    args = {"rounds": 1, "noise": 1.0, "epsilon": "none", "batch_size": 2}
    plan = consortium.plan("dp-sgd", args=args, **TABLE, unit="person", records=3)
    site = consortium.site("site-3").files  # eight records of four persons
    charge = charge_of_round(plan, 0, site.load_data(plan).units)
    assert isinstance(charge, Charge)
    assert charge.clients[0].release.sampling.rate == 2 / 4
    found, of_four, of_eight = site.review(plan), review(plan, site.allow, (), 4), review(plan, site.allow, (), 8)
    assert (found.cost.unit, found.cost.epsilon) == (Unit.PERSON, of_four.cost.epsilon)
    assert found.cost.epsilon > of_eight.cost.epsilon
    assert explain_plan(plan).unit is Unit.PERSON


def test_a_plan_that_counts_more_persons_than_a_site_has_is_refused_there(tmp_path: Path) -> None:
    """Its noise is sized for batches of two in five, and here each person would be in two of four."""
    consortium = Consortium.at(tmp_path, 5, methods=["dp-sgd"], epsilon=100.0)
    consortium.give_tables(PATIENT)
    args = {"rounds": 1, "noise": 1.0, "epsilon": "none", "batch_size": 2}
    site = consortium.site("site-3")  # of four persons
    fits, exceeds = (
        consortium.plan("dp-sgd", args=args, **TABLE, unit="person", records=records) for records in (4, 5)
    )
    assert site.files.review(fits).accepted
    assert "at least 5 persons (records), and this site trains on fewer" in site.files.review(exceeds).objections[0]
    with pytest.raises(UserError, match="policy refuses the plan"):
        consortium.accept(exceeds, "site-3")


@pytest.mark.parametrize("method", ["dp-fedsgd", "fl-std"])
def test_a_site_that_allows_any_epsilon_keeps_account_of_what_it_released(tmp_path: Path, method: str) -> None:
    """A limit that is set later counts what was released before; after a plan without a proof, no ε is left."""
    consortium = consortium_at(tmp_path)
    for name in consortium.names:
        consortium.change(name, "epsilon = 9.0", "epsilon = inf")
    args = ARGS if method == "dp-fedsgd" else {"cohort": 5, "channel": "SecureSum()"}
    trained(consortium, consortium.plan(method, args=args, **TABLE))
    consortium.change("site-0", "epsilon = inf", "epsilon = 9.0")
    again = consortium.plan("dp-fedsgd", name="again.toml", args={**ARGS, "rounds": 1}, **TABLE)
    found = consortium.site("site-0").files.review(again)
    assert found.cost.used > found.cost.epsilon
    assert math.isinf(found.cost.used) == (method == "fl-std") == (not found.accepted)
    if not found.accepted:
        assert "let an earlier plan run for which no ε is proved (epsilon = inf)" in found.objections[0]


@pytest.mark.parametrize(
    ("lines", "unit", "words"),
    [
        ((PATIENT,), "record", "would be protected as that many records. Ask for a plan with unit"),
        ((), "person", "do not say which records are one person's. Name the column with their ids"),
    ],
)
def test_a_plan_for_another_unit_than_the_site_knows_is_refused(
    tmp_path: Path, lines: tuple[str, ...], unit: str, words: str
) -> None:
    consortium = consortium_at(tmp_path, *lines)
    plan = consortium.plan("dp-fedsgd", args=ARGS, **TABLE, unit=unit)
    found = consortium.site("site-0").files.review(plan)
    assert words in found.objections[0]
    with pytest.raises(UserError, match="This site's policy refuses the plan"):
        consortium.accept(plan, "site-0")


def test_a_plan_that_protects_sites_may_run_where_persons_are_known(tmp_path: Path) -> None:
    consortium = consortium_at(tmp_path, PATIENT)
    for name in consortium.names:
        consortium.change(name, "epsilon = 9.0", "epsilon = inf")
    plan = consortium.plan("fl-std", args={"cohort": 5, "channel": "SecureSum()"}, **TABLE)
    assert consortium.site("site-0").files.review(plan).accepted


def test_a_site_whose_file_has_changed_since_it_accepted_refuses_to_train(tmp_path: Path) -> None:
    consortium = consortium_at(tmp_path, PATIENT)
    plan = consortium.plan("dp-fedsgd", args=ARGS, **TABLE, unit="person")
    consortium.accept(plan)
    consortium.change("site-2", PATIENT, "")
    here = server(plan, transport(consortium.sites()))
    *_, run = follow(here.run_spec, source=here)
    assert [len(report.clients) for report in run.history] == [4, 4]
    log = read_journal(consortium.home("site-2") / "state" / "log.jsonl")
    refused = [entry for entry in log if entry["event"] == "refused"]
    assert {entry["code"] for entry in refused} == {"policy"}
    assert "do not say which records are one person's" in str(refused[0]["reason"])
    assert not (consortium.home("site-2") / "state" / "ledger.db").exists()


def test_a_ledger_for_records_is_not_continued_for_persons(tmp_path: Path) -> None:
    consortium = consortium_at(tmp_path)
    trained(consortium, consortium.plan("dp-fedsgd", args=ARGS, **TABLE))
    consortium.change("site-0", 'data = "visits.csv"', f'data = "visits.csv"\n{PATIENT}')
    found = consortium.site("site-0").files.review(consortium.plan("dp-fedsgd", args=ARGS, **TABLE, unit="person"))
    assert found.objections[0].startswith(
        "This site's ledger has charges for records, and the plan would charge persons"
    )


def test_a_plan_for_persons_needs_a_method_that_protects_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    consortium = consortium_at(tmp_path, PATIENT)
    with pytest.raises(UserError, match='protects records for unit = "person", got fl-std'):
        _ = consortium.plan("fl-std", args={"cohort": 5}, unit="person").method
    with pytest.raises(UserError, match="unit"):
        consortium.plan("dp-fedsgd", args=ARGS, **TABLE, unit="patient")
    with pytest.raises(UserError, match="depends on the number of a site's persons"):
        _ = consortium.plan("dp-sgd", unit="person").method
    monkeypatch.setattr("tacit.pieces.trainers.RecordGradient.draws_persons", False)
    with pytest.raises(CompositionError, match="draws and clips single records"):
        _ = consortium.plan("dp-fedsgd", args=ARGS, **TABLE, unit="person").method


def test_persons_are_held_out_as_a_whole() -> None:
    ids = [f"P{row % 10}" for row in range(40)]
    found = OwnSamples(torch.arange(40.0)[:, None], torch.arange(40) % 10, ids)  # the class is the person
    data = hold_out(found, 0.35, bytes(32), "the table")
    assert data.held_out is not None
    assert (data.unit, data.units, len(data.train[1]), len(data.held_out[1])) == (Unit.PERSON, 7, 28, 12)
    assert not {*data.train[1].tolist()} & {*data.held_out[1].tolist()}
    again = hold_out(found, 0.35, bytes(32), "the table")
    assert torch.equal(again.train[0], data.train[0])
    assert data.own.persons is not None
    assert len({*zip(data.own.persons.tolist(), data.train[1].tolist(), strict=True)}) == 7


@pytest.mark.parametrize("ids", [["a", "b"], torch.tensor([4, 7])])
def test_a_function_can_return_the_persons_of_its_samples(ids: Any) -> None:
    x, y = torch.zeros(2, 3), torch.tensor([0, 1])
    found = read_returned((x, y, ids), "acme:visits")
    assert hold_out(found.own, 0.0, bytes(32), "acme:visits").unit is Unit.PERSON
    both = read_returned(((x, y, ids), (x, y)), "acme:visits")
    assert both.held_out is not None
    with pytest.raises(DataError, match=r"return \(x, y\) or \(x, y, persons\), got 4 values"):
        read_returned((x, y, ids, ids), "acme:visits")
    with pytest.raises(DataError, match="Expected 2 person ids for acme:visits"):
        hold_out(OwnSamples(x, y, ids[:1]), 0.0, bytes(32), "acme:visits")


def test_tables_without_the_column_or_without_an_id(tmp_path: Path) -> None:
    consortium = consortium_at(tmp_path, PATIENT)
    plan = consortium.plan("dp-fedsgd", args=ARGS, **TABLE, unit="person")
    table = consortium.home("site-0") / "visits.csv"
    whole = table.read_text()
    for text, words in (
        (whole.replace("person_id", "who"), "to have the column 'person_id', given as person"),
        (whole.replace("P1", ""), "Expected the person 'person_id' in every row of"),
    ):
        table.write_text(text)
        assert words in consortium.site("site-0").files.review(plan).problems[0]


def test_a_column_of_persons_is_not_ignored_where_a_function_has_the_data(tmp_path: Path) -> None:
    consortium = Consortium.at(tmp_path, 3)
    consortium.change("site-0", 'data = "acme:load_0"', f'data = "acme:load_0"\n{PATIENT}')
    with pytest.raises(DataError, match=r"Let it return \(x, y, persons\)"):
        _ = consortium.site("site-0").files.source
