"""A run is charged before every round, stops before its budget is passed, and forgets no release when killed."""

import multiprocessing
import random
import time
from dataclasses import replace
from pathlib import Path

import dp_accounting as dp
import pytest
import torch

import tacit
import zoo
from tacit import methods
from tacit.core import Budget, Task, Turnout
from tacit.errors import BudgetError, CompositionError, LedgerError, StorageError, UserError
from tacit.privacy.accountants import RUNNING
from tacit.privacy.accounting import Accounting
from tacit.privacy.charging import Charges, sized
from tacit.privacy.ledger import Ledger
from tacit.runs.directory import LEDGER
from tacit.runs.run import Plan
from tacit.runs.training import follow

SIZES = [4] * 20


def task() -> Task:
    return Task(model=zoo.softmax, clients=zoo.population(SIZES), test=zoo.population([30], seed=9)[0])


def geyer(**changes: object) -> tacit.Method:
    return methods.geyer(**{"cohort": 5, "noise": 1.0, "rounds": 40, "epsilon": 6.0, "delta": 1e-3, **changes})


def test_it_stops_before_the_round_that_would_pass_the_budget() -> None:
    run = tacit.train(geyer(), task(), workers=1)
    assert run.charges is not None
    assert 0 < run.state.round < 40
    assert run.privacy.epsilon == run.history[-1].epsilon == run.charges.epsilon
    assert run.charges.epsilon <= 6.0
    with pytest.raises(BudgetError, match=r"would pass the budget of ε = 6 at δ = 0.001\. Nothing was released"):
        run.charges.reserve()
    assert run.charges.delta_at_budget is not None
    assert run.charges.delta_at_budget <= 1e-3
    assert run.history[-1].metrics


def test_the_books_law() -> None:
    """ε of the folded rounds is ε of the composed event."""
    run = tacit.train(geyer(rounds=5), task(), workers=1)
    assert run.charges is not None
    event = run.plan.method.sampler.amplify(run.plan.method.mechanism.event(0), 20, 0)
    at_once = Accounting.of(RUNNING).charge(event, times=5)
    assert run.charges.epsilon == pytest.approx(at_once.epsilon(1e-3), rel=1e-3)
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
    assert run.charges is None
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


def shared_noise(**changes: object) -> tacit.Method:
    """Noise in shares, with more than enough for all rounds."""
    options = {"cohort": 10, "rounds": 5, "clip": 0.5, "noise": 2.0, "epsilon": 30.0, "delta": 1e-3, "channel": "ideal"}
    return methods.fl_std_dp(**{**options, **changes})


def broken(*clients: int) -> Task:
    """These clients' messages are never finite, so that their noise is missing."""
    good = zoo.population(SIZES)
    parts = [(x * (1e30 if i in clients else 1), y) for i, (x, y) in enumerate(good)]
    return Task(model=zoo.softmax, clients=parts)


def test_fewer_shares_cost_more_and_more_of_them_less() -> None:
    method = shared_noise(dropouts=0.2)
    reserved = Charges.begin(method, 20, [Turnout(10, 9)]).reserve()
    as_promised, all_came, few = (reserved.settle(Turnout(10, delivered)) for delivered in (8, 10, 5))
    assert all_came.epsilon < as_promised.epsilon == reserved.epsilon < few.epsilon
    assert few.book.rounds == 2
    by_hand = dp.GaussianDpEvent(2.0 * (0.5 / 0.8) ** 0.5)
    first = dp.GaussianDpEvent(2.0 * (0.9 / 0.8) ** 0.5)
    events = [dp.PoissonSampledDpEvent(0.5, event) for event in (first, by_hand)]
    assert few.epsilon == pytest.approx(Accounting.of(RUNNING, events).epsilon(1e-3))


def test_nobody_drops_out_of_cohorts_with_noise_to_spare() -> None:
    spare = tacit.train(shared_noise(dropouts=0.3), task(), workers=1)
    exact = tacit.train(shared_noise(), task(), workers=1)
    assert spare.charges is not None
    assert 0 < spare.charges.epsilon < 0.9 * exact.charges.epsilon


def test_a_round_without_any_honest_noise_is_never_released() -> None:
    reserved = Charges.begin(shared_noise(colluding=0.3), 20, []).reserve()
    for delivered in (0, 3):
        with pytest.raises(BudgetError, match="has no noise at all: no honest client delivered"):
            reserved.settle(Turnout(10, delivered))


def test_too_few_shares_for_the_budget_release_nothing() -> None:
    reserved = Charges.begin(shared_noise(epsilon=2.5, rounds=1), 20, []).reserve()
    with pytest.raises(BudgetError, match=r"because too few clients delivered their noise\. Nothing"):
        reserved.settle(Turnout(10, 1))


def test_a_round_is_not_reserved_if_earlier_ones_cost_too_much() -> None:
    """Though it would itself cost no more than was promised, and no ledger is there to say so."""
    method = sized(shared_noise(noise=None, epsilon=4.0, rounds=3), 20)
    assert Charges.begin(method, 20, [Turnout(10, 10)] * 2).reserve().epsilon <= 4.0
    with pytest.raises(BudgetError, match="Round 3 would pass the budget"):
        Charges.begin(method, 20, [Turnout(10, 9), Turnout(10, 10)]).reserve()


@pytest.mark.parametrize("files", [False, True])
def test_missing_noise_ends_a_run_before_its_budget_is_passed(tmp_path: Path, files: bool) -> None:
    """Sized for six rounds of everybody's noise; of clients 0 to 3 there is none, so that not all six can be paid."""
    method, work = shared_noise(noise=None, epsilon=4.0, rounds=6), broken(0, 1, 2, 3)
    run = tacit.train(method, work, workers=1, out=tmp_path / "run" if files else None)
    assert any(report.refused for report in run.history)
    assert 0 < run.state.round < 6
    assert run.privacy.epsilon == run.history[-1].epsilon <= 4.0
    played = [state for state, _ in tacit.rounds(run.plan.method, work, workers=1)]
    assert torch.equal(run.state.weights, played[run.state.round - 1].weights)
    again = Charges.begin(run.plan.method, 20, [report.turnout for report in run.history])
    assert again.epsilon == pytest.approx(run.privacy.epsilon)


def test_a_first_round_that_cannot_be_paid_is_said() -> None:
    with pytest.raises(BudgetError, match="too few clients delivered"):
        tacit.train(shared_noise(noise=None, epsilon=1.0, rounds=1), broken(*range(15)), workers=1)


def test_what_missing_noise_costs_is_in_the_ledger(tmp_path: Path) -> None:
    run = tacit.train(shared_noise(), broken(0), workers=1, out=tmp_path / "run")
    fewer = [report.round for report in run.history if report.refused]
    assert 0 < len(fewer) < 5
    with Ledger.open(tmp_path / "run" / LEDGER) as ledger:
        assert [entry.round for entry in ledger.entries] == [1, 2, 3, 4, 5]
        promised = {entry.event for entry in ledger.entries if entry.round not in fewer}
        assert len(promised) == 1
        assert not promised & {entry.event for entry in ledger.entries if entry.round in fewer}
        assert all(entry.digest for entry in ledger.entries)
        assert ledger.spent.epsilon(1e-3) == pytest.approx(run.privacy.epsilon)


@pytest.mark.parametrize("moment", ["before the release", "after the release"])
def test_a_kill_around_a_dearer_round_s_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    """The round was charged again, and is then repeated at no new charge, to the same bits."""
    work = broken(0, 1, 2)
    whole = tacit.train(shared_noise(), work, workers=1, out=tmp_path / "whole")
    dear = next(report.round for report in whole.history if report.refused)
    kept = Charges.release

    def killed(self: Charges, state: tacit.State) -> None:
        if state.round != dear or moment == "after the release":
            kept(self, state)
        if state.round == dear:
            raise SystemExit(9)

    with monkeypatch.context() as patch:
        patch.setattr(Charges, "release", killed)
        with pytest.raises(SystemExit):
            tacit.train(shared_noise(), work, workers=1, out=tmp_path / "run")
    with Ledger.open(tmp_path / "run" / LEDGER) as ledger:
        assert (ledger.entries[-1].round, bool(ledger.entries[-1].digest)) == (dear, moment == "after the release")
    on = tacit.train(shared_noise(), work, workers=1, out=tmp_path / "run", resume=(tmp_path / "run").exists())
    assert torch.equal(on.state.weights, whole.state.weights)
    with Ledger.open(tmp_path / "run" / LEDGER) as ledger, Ledger.open(tmp_path / "whole" / LEDGER) as other:
        assert ledger.entries == other.entries
        assert ledger.spent.epsilon(1e-3) == pytest.approx(whole.privacy.epsilon)


def _private() -> tacit.Method:
    return methods.geyer(cohort=5, noise=4.0, rounds=60, epsilon=30.0, delta=1e-3)


def _open() -> tacit.Method:
    return methods.fedavg(cohort=5, rounds=60)


def _go_on(method: tacit.Method, where: Path) -> None:
    """What is killed: begin the run, or go on with it, with a checkpoint now and then."""
    tacit.runs.directory.SECONDS_BETWEEN_CHECKPOINTS = 0.02
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
