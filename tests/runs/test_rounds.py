"""The loop in the user's hands: it charges, reports ε and stops exactly as `train` does."""

from pathlib import Path

import pytest
import torch

import tacit
import zoo
from tacit import methods
from tacit.core.prices import Unit
from tacit.errors import BudgetError, UserError
from tacit.privacy.ledger import Ledger


def task() -> tacit.Task:
    return tacit.Task(model=zoo.softmax, clients=zoo.population([4] * 20), test=zoo.population([30], seed=9)[0])


def geyer(**changes: object) -> tacit.Method:
    return methods.geyer(**{"cohort": 5, "noise": 1.0, "rounds": 200, "epsilon": 6.0, "delta": 1e-3, **changes})


def test_a_budget_of_a_few_rounds_does_not_let_all_of_them_be_played() -> None:
    run = tacit.train(geyer(), task(), workers=1, randomness="seeded")
    played = list(tacit.rounds(geyer(), task(), workers=1, randomness="seeded"))
    assert 0 < len(played) == run.state.round < 40
    assert [report.epsilons[Unit.CLIENT] for _, report in played] == [
        report.epsilons[Unit.CLIENT] for report in run.history
    ]
    assert torch.equal(played[-1][0].weights, run.state.weights)
    assert played[-1][1].metrics == run.metrics  # the last round is evaluated, also if the budget decides which it is


def test_noise_is_sized_from_the_budget_and_the_population() -> None:
    uncalibrated = methods.make("fl-std-dp", {"cohort": 16, "rounds": 4, "clip": 0.5, "epsilon": 6.0, "delta": 1e-3})
    *_, (state, report) = tacit.rounds(uncalibrated, task(), workers=1, randomness="seeded")
    run = tacit.train(uncalibrated, task(), workers=1, randomness="seeded")
    assert report.epsilons[Unit.CLIENT] == run.history[-1].epsilons[Unit.CLIENT]
    assert report.epsilons[Unit.CLIENT] is not None
    assert 5.9 < report.epsilons[Unit.CLIENT] <= 6.0
    assert torch.equal(state.weights, run.state.weights)


def test_leakage_is_reported_and_ends_the_loop() -> None:
    method = methods.make("ifca-dp", {"rounds": 30, "models": 2, "noise": 5.0, "limit": 0.8})
    data = tacit.tasks.make_task("synthetic", clients=20)
    run = tacit.train(method, data, workers=1, randomness="seeded")
    reports = [report for _, report in tacit.rounds(method, data, workers=1, randomness="seeded")]
    assert len(reports) == run.state.round < 30
    assert [report.leakage for report in reports] == [report.leakage for report in run.history]


def test_closing_early_leaves_what_was_played_in_the_ledger(tmp_path: Path) -> None:
    loop = tacit.rounds(geyer(), task(), workers=1, randomness="seeded", ledger=tmp_path / "shared.db")
    next(loop)
    _, second = next(loop)
    loop.close()
    with Ledger.open(tmp_path / "shared.db") as ledger:  # it was closed, so that others can open it
        assert [(entry.round, bool(entry.digest)) for entry in ledger.entries] == [(1, True), (2, True)]
        assert ledger.accounts.clients.epsilon(1e-3) == pytest.approx(second.epsilons[Unit.CLIENT])


def test_a_round_that_fails_remains_charged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = tacit.rounds(geyer(), task(), workers=1, randomness="seeded", ledger=tmp_path / "shared.db")
    next(loop)
    monkeypatch.setattr("tacit.engine.simulation.RoundRunner.round", _interrupted)
    with pytest.raises(KeyboardInterrupt):
        next(loop)
    with Ledger.open(tmp_path / "shared.db") as ledger:
        assert [(entry.round, bool(entry.digest)) for entry in ledger.entries] == [(1, True), (2, False)]


def _interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_shared_ledger_ends_the_loop_and_refuses_the_next(tmp_path: Path) -> None:
    shared = tmp_path / "shared.db"
    train = tacit.train(geyer(rounds=3), task(), workers=1, randomness="seeded", ledger=shared)
    rest = list(tacit.rounds(geyer(), task(), seed=1, workers=1, randomness="seeded", ledger=str(shared)))
    alone = list(tacit.rounds(geyer(), task(), seed=1, workers=1, randomness="seeded"))
    assert train.state.round == 3
    assert 0 < len(rest) <= len(alone) - 3 + 1
    with pytest.raises(BudgetError, match="would exceed the budget"):
        next(tacit.rounds(geyer(), task(), seed=2, workers=1, randomness="seeded", ledger=shared))


def test_a_budget_that_allows_no_round_refuses_to_start() -> None:
    with pytest.raises(UserError, match="Not even the first round fits"):
        next(tacit.rounds(geyer(noise=0.3, epsilon=0.1), task(), workers=1, randomness="seeded"))


def test_a_cohort_larger_than_the_population_is_refused_before_the_first_round() -> None:
    with pytest.raises(UserError, match="Use a smaller cohort"):
        tacit.rounds(methods.fedavg(cohort=50), task())
