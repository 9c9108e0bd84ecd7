"""A run is charged before every round, stops before its budget is passed, and forgets no release when killed."""

import multiprocessing
import random
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import tacit
import zoo
from tacit import methods
from tacit.books.accountants import RUNNING
from tacit.books.ledger import Ledger
from tacit.books.privacy import PrivacyBook
from tacit.core import Budget, BudgetError, CompositionError, LedgerError, StorageError, Task, UserError
from tacit.results import LEDGER
from tacit.training import Plan, follow

SIZES = [4] * 20


def task() -> Task:
    return Task(model=zoo.softmax, clients=zoo.population(SIZES), test=zoo.population([30], seed=9)[0])


def geyer(**changes: object) -> tacit.Method:
    return methods.geyer(**{"cohort": 5, "noise": 1.0, "rounds": 40, "epsilon": 6.0, "delta": 1e-3, **changes})


def test_it_stops_before_the_round_that_would_pass_the_budget() -> None:
    run = tacit.train(geyer(), task(), workers=1)
    assert run.spending is not None
    assert 0 < run.state.round < 40
    assert run.privacy.epsilon == run.history[-1].epsilon == run.spending.epsilon
    assert run.spending.epsilon <= 6.0 < run.spending.reserve().epsilon
    assert run.spending.delta_at_budget is not None
    assert run.spending.delta_at_budget <= 1e-3
    assert run.history[-1].metrics


def test_the_books_law() -> None:
    """ε of the folded rounds is ε of the composed event."""
    run = tacit.train(geyer(rounds=5), task(), workers=1)
    assert run.spending is not None
    event = run.plan.method.sampler.amplify(run.plan.method.mechanism.event(0), 20, 0)
    at_once = PrivacyBook.of(RUNNING).charge(event, times=5)
    assert run.spending.epsilon == pytest.approx(at_once.epsilon(1e-3), rel=1e-3)
    spent = [report.epsilon for report in run.history]
    assert spent == sorted(spent)


def test_growing_cohorts_are_charged_as_they_are() -> None:
    plans = (geyer(rounds=4, growth=growth) for growth in ((), ((2, 5), (2, 15))))
    small, grown = (tacit.train(plan, task(), workers=1) for plan in plans)
    assert small.history[1].epsilon == pytest.approx(grown.history[1].epsilon)
    assert grown.history[3].epsilon > 1.5 * small.history[3].epsilon


def test_the_median_has_no_guarantee_but_a_nominal_figure() -> None:
    run = tacit.train(geyer(clipping="median", rounds=3), task(), workers=1)
    assert not run.privacy.proved
    assert "median" in run.privacy.reason
    assert any("Nominal ε" in sentence for sentence in run.privacy.unaccounted)


def test_a_run_without_noise_has_no_guarantee() -> None:
    run = tacit.train(methods.fedavg(rounds=1, cohort=3), task(), workers=1)
    assert run.spending is None
    assert run.privacy.epsilon is None
    assert "nothing is blurred" in run.privacy.reason


def test_a_budget_that_allows_no_round() -> None:
    with pytest.raises(UserError, match="Not even the first round fits"):
        tacit.train(geyer(noise=0.3, epsilon=0.1), task(), workers=1)


def test_a_budget_needs_noise() -> None:
    with pytest.raises(CompositionError, match="needs noise, but NoNoise adds none"):
        replace(methods.fedavg(), budget=Budget(1.0, 1e-5))


def test_every_round_is_in_the_ledger(tmp_path: Path) -> None:
    run = tacit.train(geyer(rounds=4), task(), workers=1, out=tmp_path / "run")
    with Ledger.open(tmp_path / "run" / LEDGER) as ledger:
        assert [entry.round for entry in ledger.entries] == [1, 2, 3, 4]
        assert all(entry.digest for entry in ledger.entries)
        assert ledger.spent.epsilon(1e-3) == pytest.approx(run.privacy.epsilon)


def test_a_shared_ledger_ends_the_second_run_early(tmp_path: Path) -> None:
    shared = tmp_path / "shared.db"
    first = tacit.train(geyer(), task(), workers=1, ledger=shared)
    with pytest.raises(BudgetError, match="would pass the budget"):
        tacit.train(geyer(), task(), seed=1, workers=1, ledger=shared)
    again = tacit.train(geyer(), task(), workers=1, ledger=shared)  # the same run releases the same: no new charge
    assert torch.equal(first.state.weights, again.state.weights)
    with Ledger.open(shared) as ledger:
        assert len(ledger.entries) == first.state.round


def test_two_runs_share_a_budget(tmp_path: Path) -> None:
    shared = tmp_path / "shared.db"
    short = tacit.train(geyer(rounds=3), task(), workers=1, ledger=shared)
    rest = tacit.train(geyer(), task(), seed=1, workers=1, ledger=shared)
    alone = tacit.train(geyer(), task(), seed=1, workers=1)
    assert short.state.round == 3
    assert rest.state.round <= alone.state.round - 3 + 1


def test_a_resumed_run_needs_the_ledger_it_began_with(tmp_path: Path) -> None:
    plan = Plan(method=geyer(rounds=4), task=task())
    steps = follow(plan, workers=1, out=tmp_path / "run", ledger=tmp_path / "shared.db")
    for step in steps:
        if step.state.round == 2:
            steps.close()
            break
    with pytest.raises(LedgerError, match="never charged to it"):
        tacit.train(geyer(rounds=4), task(), workers=1, out=tmp_path / "run", resume=True)
    run = tacit.train(
        geyer(rounds=4), task(), workers=1, out=tmp_path / "run", resume=True, ledger=tmp_path / "shared.db"
    )
    assert run.state.round == 4


def test_no_ledger_without_noise(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nothing to charge"):
        tacit.train(methods.fedavg(rounds=1, cohort=3), task(), workers=1, ledger=tmp_path / "ledger.db")
    assert not (tmp_path / "ledger.db").exists()


def test_a_ledger_that_cannot_be_written_releases_nothing(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="Nothing was released"):
        tacit.train(geyer(rounds=2), task(), workers=1, ledger=tmp_path / "missing" / "ledger.db")


def _private() -> tacit.Method:
    return methods.geyer(cohort=5, noise=4.0, rounds=60, epsilon=30.0, delta=1e-3)


def _open() -> tacit.Method:
    return methods.fedavg(cohort=5, rounds=60)


def _go_on(method: tacit.Method, where: Path) -> None:
    """What is killed: begin the run, or go on with it, with a checkpoint now and then."""
    tacit.results.SECONDS_BETWEEN_CHECKPOINTS = 0.02
    tacit.train(method, task(), workers=1, out=where, resume=(where / "manifest.json").exists())


def _until_done(method: tacit.Method, where: Path, kills: int, chance: random.Random) -> list[int]:
    """Run, kill a few rounds later at a random moment, run on; how many rounds were charged after each."""
    charged = [0]
    for attempt in range(kills + 1):
        process = multiprocessing.get_context("fork").Process(target=_go_on, args=(method, where))
        process.start()
        if attempt < kills:
            _wait_for(process, where, _noted(where) + chance.randrange(3))
            process.join(chance.uniform(0.0, 0.02))
            process.kill()
        process.join()
        if (where / LEDGER).exists():
            charged.append(_charged(where))
    assert process.exitcode == 0
    return charged


def _wait_for(process: multiprocessing.process.BaseProcess, where: Path, rounds: int) -> None:
    """Until so many rounds are noted, or the process has ended."""
    while process.is_alive() and _noted(where) < rounds:
        time.sleep(0.001)


def _noted(where: Path) -> int:
    file = where / "rounds.jsonl"
    return file.read_bytes().count(b"\n") if file.exists() else 0


def _charged(where: Path) -> int:
    """How many rounds the ledger has; none of those that are noted as done may be missing from it."""
    with Ledger.open(where / LEDGER) as ledger:
        rounds = {entry.round for entry in ledger.entries}
    assert set(range(1, _noted(where) + 1)) <= rounds
    return len(rounds)


def test_kills_spend_nothing_twice_and_forget_nothing(tmp_path: Path) -> None:
    """30 kills at random moments: released implies charged, what is spent never decreases, no round is paid twice."""
    charged = _until_done(_private(), tmp_path / "run", 30, random.Random(1))
    assert charged == sorted(charged)
    assert charged[-1] == 60
    assert len(set(charged)) > 5  # the kills did fall into the run
    whole = tacit.train(_private(), task(), workers=1, out=tmp_path / "whole")
    killed = tacit.train(_private(), task(), workers=1, out=tmp_path / "run", resume=True)
    assert torch.equal(killed.state.weights, whole.state.weights)


def test_kills_without_noise_give_the_same_bits(tmp_path: Path) -> None:
    """30 more, with noise off: bitwise the uninterrupted run."""
    _until_done(_open(), tmp_path / "run", 30, random.Random(2))
    whole = tacit.train(_open(), task(), workers=1)
    killed = tacit.train(_open(), task(), workers=1, out=tmp_path / "run", resume=True)
    assert torch.equal(killed.state.weights, whole.state.weights)
