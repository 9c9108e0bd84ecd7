"""Methods that protect records protect persons where the task says whose records are whose."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import record_trainers
import tacit
from tacit import cli
from tacit.attacks.membership import members_only
from tacit.core import Key, SimulatedRound, View
from tacit.core.prices import Gaussian, Release, Repeated, Sampling, Unit
from tacit.engine import waves
from tacit.errors import CompositionError, LedgerError
from tacit.privacy.guarantee import AT_SEVERAL, PERSONS, Guarantee
from tacit.privacy.ledger import Ledger
from tacit.privacy.release_json import charge_from_json, charge_to_json
from tacit.privacy.unit_accounting import Charge
from tacit.report.cards import card
from tacit.runs.run import RunSpec

EACH = 3  # records of a person


def hospitals(persons: tuple[int, ...] = (20, 10, 30), *, known: bool = True) -> tacit.Task:
    generator = torch.Generator().manual_seed(0)
    parts = []
    for size in persons:
        y = torch.arange(EACH * size) % 2
        parts.append((torch.randn(EACH * size, 4, generator=generator) + 2 * y[:, None], y))
    ids = [1000 * client + torch.arange(EACH * size) % size for client, size in enumerate(persons)]
    public = (torch.randn(8, 4, generator=generator), torch.arange(8) % 2)
    return tacit.Task(model=lambda: nn.Linear(4, 2), clients=parts, public=public, person=ids if known else None)


def proved(run: Any) -> Guarantee:
    (found,) = run.guarantees.values()
    assert isinstance(found, Guarantee)
    return found


@pytest.mark.parametrize("name", ["dp_sgd", "dp_fedsgd", "fl_top_record_dp", "fl_top_dp_sgd"])
def test_the_guarantee_is_for_persons_and_says_what_it_does_not_cover(name: str) -> None:
    run = tacit.train(getattr(tacit.methods, name)(rounds=2, epsilon=2.0), hospitals(), workers=1)
    found = proved(run)
    assert (found.unit, found.adjacency) == (Unit.PERSON, "add-or-remove")
    assert (found.epsilon or 9.0) <= 2.0
    assert "for every person (add-or-remove)" in str(found)
    assert "if the person were not among the data of its client" in str(found)
    assert "each person with probability" in found.sampling or "contains every person" in found.sampling
    assert found.copies == 1  # by their ids
    assert AT_SEVERAL.format(unit="person") not in found.not_covered
    assert PERSONS not in found.not_covered
    assert {*run.epsilons} == {Unit.PERSON}


def test_rates_are_over_persons() -> None:
    method = tacit.methods.dp_sgd(rounds=1, epsilon=None, noise=1.0, descent=replace(DESCENT, batch_size=5))
    run = tacit.train(method, hospitals(), workers=1)
    rates = {
        client: release.sampling.rate
        for client, released in run.charges[Unit.PERSON].accounting.released.items()
        for release in released
    }
    assert rates == {0: 5 / 20, 1: 5 / 10, 2: 5 / 30}
    assert run.charges[Unit.PERSON].units.sizes == (20, 10, 30)


DESCENT = tacit.pieces.DpSgd(lr=0.1, epochs=1, batch_size=32, clip=1.0)


def test_noise_is_sized_for_as_many_persons_as_for_records() -> None:
    method = tacit.methods.dp_sgd(rounds=2, epsilon=1.0, descent=replace(DESCENT, batch_size=5))
    of_persons, of_records = (
        RunSpec(method=method, task=each).method.trainer
        for each in (hospitals((20, 10, 30)), hospitals((20, 10, 30), known=False))
    )
    alike = tacit.Task(
        model=lambda: nn.Linear(4, 2), clients=[(torch.zeros(n, 4), torch.zeros(n).long()) for n in (20, 10, 30)]
    )
    assert of_persons == RunSpec(method=method, task=alike).method.trainer
    assert of_persons != of_records


@pytest.mark.parametrize("scale", [1e6, float("nan")])
def test_all_records_of_a_person_move_a_row_by_no_more_than_the_bound(scale: float) -> None:
    """The person's records are scaled together, and are present on one side only."""
    task, clip, person = hospitals((6,)), 0.3, 2
    (x, y), persons = task.population[0], task.population.persons
    assert persons is not None
    own = persons == person
    hostile = torch.where(own[:, None], x * scale, x) if scale == scale else x

    def row(x: Tensor, y: Tensor, ids: Tensor) -> Tensor:
        task = tacit.Task(model=lambda: nn.Linear(4, 2), clients=[(x, y)], person=[ids])
        wave, trainer = waves(task, 0)(torch.arange(1)), tacit.pieces.RecordGradient(rate=1.0, clip=clip)
        now = SimulatedRound.of(0, 1, 1.0, 1, Key.from_seed(0), Key.from_seed(1))
        weights = torch.linspace(-1, 1, 10)
        return trainer.train(View(weights), wave, now).dense()[0]

    moved = row(hostile, y, persons) - row(x[~own], y[~own], persons[~own])
    assert 0 < float(moved.norm()) <= clip * (1 + 1e-4)
    if scale == 1e6:
        assert float(moved.norm()) >= 0.99 * clip  # as one person, and not as three records


def test_a_trainer_that_draws_records_is_refused() -> None:
    method = tacit.Method(name="mine", rounds=1, sampler=tacit.pieces.Everyone(), trainer=record_trainers.NoisySteps())
    with pytest.raises(CompositionError, match="NoisySteps draws and clips single records, so that nothing is proved"):
        tacit.train(method, hospitals(), workers=1)


def test_a_ledger_has_charges_for_persons_or_for_records(tmp_path: Path) -> None:
    method = tacit.methods.dp_sgd(rounds=1, epsilon=8.0)
    ledger = tmp_path / "ledger.db"
    run = tacit.train(method, hospitals(), workers=1, ledger=ledger)
    assert "for every person" in str(run.ledger)
    with Ledger.open(ledger) as opened:
        assert {entry.unit for entry in opened.entries} == {Unit.PERSON}
        assert opened.use.epsilons.keys() == {Unit.PERSON}
        used = opened.accounts[Unit.PERSON].epsilon(1e-5)
        assert used > 0
    with pytest.raises(LedgerError, match="has charges for persons, and this run would charge records"):
        tacit.train(method, hospitals(known=False), workers=1, ledger=ledger, seed=1)
    with Ledger.open(ledger) as opened:
        assert opened.accounts[Unit.PERSON].epsilon(1e-5) == used


def test_a_charge_for_persons_is_read_as_it_was_written() -> None:
    release = Release(Gaussian(1.0), sampling=Sampling("poisson", 0.1))
    charge = Charge(Unit.PERSON, {0: Repeated(release, 3), 2: Repeated(release, 3)})
    assert charge_from_json(json.loads(json.dumps(charge_to_json(charge))), Unit.PERSON) == charge
    assert charge != replace(charge, unit=Unit.RECORD)


def test_cards_name_the_person() -> None:
    assert "this then holds for every person of every client" in card("dp-fedsgd").guarantee.replace("all of ", "")
    assert "person" not in card("fl-std-dp").guarantee


def test_members_keep_their_persons() -> None:
    population = hospitals((4, 2)).population
    members = torch.ones(18, dtype=torch.bool)
    members[[0, 4, 8]] = False  # all records of the first person
    kept = members_only(population, "record", members)
    assert (kept.unit, kept.unit_sizes.tolist(), kept.sizes.tolist()) == (Unit.PERSON, [3, 2], [9, 6])
    assert members_only(population, "client", torch.tensor([False, True])).unit_sizes.tolist() == [2]


def table(folder: Path) -> Path:
    rows = ["hospital,person_id,age,died"]
    rows += [f"H{i % 3},P{i // 6},{20 + i % 60},{i % 2}" for i in range(240)]
    (folder / "visits.csv").write_text("\n".join(rows) + "\n")
    return folder / "visits.csv"


def test_persons_of_a_table_are_held_out_as_a_whole(tmp_path: Path) -> None:
    task = tacit.Task.from_table(table(tmp_path), client="hospital", target="died", person="person_id")
    assert task.population.x.shape[1] == 1  # the age alone
    assert task.population.unit is Unit.PERSON
    assert task.population.unit_sizes.tolist() == [32, 32, 32]  # of 40, two rows each
    assert task.population.sizes.tolist() == [64, 64, 64]
    assert len(task.test[1]) == 48


def test_the_command_line_names_the_person(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = f"--data {table(tmp_path)} --client hospital --target died --person person_id --workers 1"
    arguments = f"run dp-sgd --rounds 1 --set epsilon=8 {given} --out {tmp_path / 'run'}"
    assert cli.main(arguments.split()) == 0
    text = capsys.readouterr().out
    assert "for every person (add-or-remove)" in text
    assert "Budget used for every person: ε = " in text
    assert cli.main(["report", str(tmp_path / "run"), "--out", str(tmp_path / "page.html")]) == 0
    assert "for every person" in (tmp_path / "page.html").read_text()
    assert json.loads((tmp_path / "run" / "manifest.json").read_text())["task"]["unit"] == "person"


def test_a_plan_for_persons(capsys: pytest.CaptureFixture[str]) -> None:
    for unit in ("record", "person"):
        assert (
            cli.main(f"calibrate --unit {unit} --size 3000 --batch 64 --epochs 2 --noise 1 --delta 1e-5 --json".split())
            == 0
        )
    record, person = (json.loads(text + "}") for text in capsys.readouterr().out.split("}\n")[:2])
    assert {**record, "unit": "person"} == person
