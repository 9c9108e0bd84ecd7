"""A run is charged before every round, stops before it exceeds its budget, and loses no charge when killed."""

import multiprocessing
import random
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import tacit
import zoo
from played import played
from tacit import methods
from tacit.core import Budget, DenseRows, Messages, Method, Turnout
from tacit.core.interfaces import Channel
from tacit.core.prices import Adjacency, ClientUnits, Gaussian, Release, Sampling, Unit
from tacit.core.server_half import reject_unusable
from tacit.core.state import WaveReport
from tacit.data import Task
from tacit.engine import worker
from tacit.errors import BudgetError, CompositionError, LedgerError, StorageError, TrainingError, UserError
from tacit.pieces.mechanisms import CentralGaussian
from tacit.pieces.samplers import Poisson
from tacit.pieces.trainers import Sgd
from tacit.privacy.accountants import FAST_PLD, Accounting
from tacit.privacy.charging import Charges
from tacit.privacy.guarantee import NO_NOISE_INSIDE, Guarantee
from tacit.privacy.ledger import Ledger
from tacit.privacy.ledger_head import ONE_EACH
from tacit.privacy.planned_charges import accountant_for, calibrate, release_of
from tacit.runs.directory import LEDGER, read_manifest
from tacit.runs.run import RunSpec
from tacit.runs.training import follow

SIZES = [4] * 20


def task() -> Task:
    return Task(model=zoo.softmax, clients=zoo.population(SIZES), test=zoo.population([30], seed=9)[0])


def geyer(**changes: object) -> tacit.Method:
    return methods.geyer(**{"cohort": 5, "noise": 1.0, "rounds": 40, "epsilon": 6.0, "delta": 1e-3, **changes})


def epsilon_of(run: tacit.Run) -> float:
    """The proved ε of a run."""
    assert isinstance(run.privacy, Guarantee)
    assert run.privacy.epsilon is not None
    return run.privacy.epsilon


def test_a_run_stops_before_the_round_that_would_exceed_its_budget() -> None:
    run = tacit.train(geyer(), task(), workers=1, randomness="seeded")
    assert 0 < run.state.round < 40
    assert epsilon_of(run) == run.history[-1].epsilons[Unit.CLIENT] == run.charges[Unit.CLIENT].epsilon
    assert run.charges[Unit.CLIENT].epsilon <= 6.0
    with pytest.raises(BudgetError, match=r"would exceed the budget of ε = 6 at δ = 0.001\. Nothing was released"):
        run.charges[Unit.CLIENT].reserve()
    delta = run.charges[Unit.CLIENT].delta_at_budget
    assert delta is not None
    assert delta <= 1e-3
    assert run.history[-1].metrics


def test_the_privacy_law() -> None:
    """ε of the folded rounds is ε of the composed releases."""
    run = tacit.train(geyer(rounds=5), task(), workers=1, randomness="seeded")
    release = release_of(run.spec.method, 20, 0)
    assert release is not None
    at_once = Accounting.of(FAST_PLD).compose(release, count=5)
    assert run.charges[Unit.CLIENT].epsilon == pytest.approx(at_once.epsilon(1e-3), rel=1e-3)
    epsilons = [report.epsilons[Unit.CLIENT] for report in run.history if report.epsilons[Unit.CLIENT] is not None]
    assert len(epsilons) == 5
    assert epsilons == sorted(epsilons)


def test_growing_cohorts_are_charged_at_their_own_rates() -> None:
    growing = tacit.pieces.Growing(((2, tacit.pieces.Poisson(5)), (2, tacit.pieces.Poisson(15))))
    small, grown = (
        tacit.train(replace(geyer(rounds=4), sampler=sampler), task(), workers=1, randomness="seeded")
        for sampler in (tacit.pieces.Poisson(5), growing)
    )
    assert small.history[1].epsilons[Unit.CLIENT] == pytest.approx(grown.history[1].epsilons[Unit.CLIENT])
    assert epsilon_of(grown) > 1.5 * epsilon_of(small)


def test_noise_for_some_rounds_of_everyone_suffices_for_all_of_them() -> None:
    """Sums over everyone are one sum: ε of rounds that are charged one by one is that of the plan."""
    method = calibrate(
        replace(methods.fl_std_dp(rounds=5, epsilon=1.0), sampler=tacit.pieces.Everyone()), ClientUnits.whole(20)
    )
    charges = Charges.begin(method, ClientUnits.whole(20), [])
    for number in range(5):
        charges = charges.reserve(str(number)).settle(Turnout(20, 20))
    planned = Accounting.of(accountant_for(method, 20)).compose(_release_of(method), 5).epsilon(1e-5)
    assert charges.epsilon == pytest.approx(planned, rel=1e-9)
    assert charges.epsilon <= 1.0


def _release_of(method: Method) -> Release:
    release = release_of(method, 20, 0)
    assert release is not None
    return release


def test_a_median_bound_has_a_nominal_epsilon_and_no_guarantee() -> None:
    method = replace(geyer(clipping="median", rounds=3), budget=None)
    run = tacit.train(method, task(), workers=1, randomness="seeded")
    assert not run.privacy.proved
    assert "median" in run.privacy.reason
    assert any("Nominal ε" in sentence for sentence in run.privacy.not_covered)


def test_a_budget_that_nothing_proves_is_refused_before_anything_is_released(tmp_path: Path) -> None:
    with pytest.raises(CompositionError, match=r"cannot be kept, because nothing is proved: the clipping bound is the"):
        tacit.train(geyer(clipping="median", rounds=3), task(), workers=1, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with pytest.raises(CompositionError, match=r"rests on your trainer `Own`.*Nothing was released"):
        tacit.rounds(replace(geyer(), trainer=Own(lr=0.1, steps=1)), task())


class Own(Sgd):
    """A trainer that is not Tacit's own."""


@pytest.mark.parametrize("shared", [False, True])
def test_a_failed_attempt_remains_charged_and_the_next_one_is_charged_again(shared: bool, tmp_path: Path) -> None:
    method, release = geyer(rounds=10), release_of(geyer(), 20, 0)
    assert release is not None
    with Ledger.open(tmp_path / "ledger.db", Budget(6.0, 1e-3)) as opened:
        ledger = opened if shared else None
        charges = Charges.begin(method, ClientUnits.whole(20), [], ledger, "run").reserve("a").settle(Turnout(5, 5))
        charges = charges.reserve("b").fail().reserve("c").fail().reserve("d").settle(Turnout(5, 5))
        assert (charges.rounds, charges.retries) == (2, 2)
        assert charges.epsilon == pytest.approx(Accounting.of(FAST_PLD).compose(release, 4).epsilon(1e-3))
        assert "ε includes 2 further attempts" in str(charges.guarantee())
        if ledger is not None:
            assert ledger.accounts.clients.rounds == 4
            assert Charges.begin(
                method, ClientUnits.whole(20), played(*[Turnout(5, 5)] * 2), ledger, "run"
            ).epsilon == pytest.approx(charges.epsilon)


def test_attempts_before_a_crash_are_counted_unless_they_are_repeated_with_their_key(tmp_path: Path) -> None:
    method = geyer(rounds=10)
    with Ledger.open(tmp_path / "ledger.db", Budget(6.0, 1e-3)) as ledger:
        Charges.begin(method, ClientUnits.whole(20), [], ledger, "run").reserve("a")
        resumed = Charges.begin(method, ClientUnits.whole(20), [], ledger, "run")
        assert (resumed.reserve("a").accounting.rounds, ledger.accounts.clients.rounds) == (1, 1)
        fresh = resumed.reserve("b")
        assert (fresh.rounds, fresh.retries, fresh.accounting.rounds, ledger.accounts.clients.rounds) == (1, 1, 2, 2)


def test_a_guarantee_says_whether_floating_point_is_covered() -> None:
    for exact in (True, False):
        method = geyer(rounds=2)
        mechanism = method.mechanism
        assert isinstance(mechanism, CentralGaussian)
        run = tacit.train(replace(method, mechanism=replace(mechanism, exact=exact)), task(), workers=1)
        assert run.privacy.proved
        assert any("floating-point" in sentence for sentence in run.privacy.not_covered) != exact
        assert isinstance(run.privacy, Guarantee)
        assert (run.privacy.noise_error > 0) == exact


def test_a_run_without_noise_has_no_guarantee() -> None:
    run = tacit.train(methods.fedavg(rounds=1, cohort=3), task(), workers=1, randomness="seeded")
    assert not run.charges
    assert not run.privacy.proved
    assert "no noise is added" in run.privacy.reason


def test_a_budget_that_allows_no_round() -> None:
    with pytest.raises(UserError, match="Not even the first round fits"):
        tacit.train(geyer(noise=0.3, epsilon=0.1), task(), workers=1, randomness="seeded")


def test_a_budget_needs_noise() -> None:
    with pytest.raises(CompositionError, match="which NoNoise does not add"):
        replace(methods.fedavg(), budget=Budget(1.0, 1e-5))


def test_every_round_is_in_the_ledger(tmp_path: Path) -> None:
    run = tacit.train(geyer(rounds=4), task(), workers=1, out=tmp_path / "run", randomness="seeded")
    with Ledger.open(tmp_path / "run" / LEDGER) as ledger:
        assert [entry.round for entry in ledger.entries] == [1, 2, 3, 4]
        assert all(entry.digest for entry in ledger.entries)
        assert ledger.accounts.clients.epsilon(1e-3) == pytest.approx(epsilon_of(run))


def test_a_shared_ledger_without_budget_left_refuses_the_second_run(tmp_path: Path) -> None:
    """Only this repeats a whole run with a ledger, which must not charge it again."""
    shared = tmp_path / "shared.db"
    first = tacit.train(geyer(), task(), workers=1, ledger=shared, randomness="seeded")
    with pytest.raises(BudgetError, match="would exceed the budget"):
        tacit.train(geyer(), task(), seed=1, workers=1, ledger=shared, randomness="seeded")
    again = tacit.train(
        geyer(), task(), workers=1, ledger=shared, randomness="seeded"
    )  # repeating a run releases the same models: no new charge
    assert torch.equal(first.state.weights, again.state.weights)
    with Ledger.open(shared) as ledger:
        assert len(ledger.entries) == first.state.round


def test_two_runs_share_a_budget(tmp_path: Path) -> None:
    """Only this lets a ledger end a run whose own budget would allow more rounds."""
    shared = tmp_path / "shared.db"
    short = tacit.train(geyer(rounds=3), task(), workers=1, ledger=shared, randomness="seeded")
    rest = tacit.train(geyer(), task(), seed=1, workers=1, ledger=shared, randomness="seeded")
    alone = tacit.train(geyer(), task(), seed=1, workers=1, randomness="seeded")
    assert short.state.round == 3
    assert rest.state.round <= alone.state.round - 3 + 1


def test_a_resumed_run_needs_the_ledger_with_which_it_was_started(tmp_path: Path) -> None:
    plan = RunSpec(method=geyer(rounds=4), task=task(), randomness="seeded")
    steps = follow(plan, workers=1, out=tmp_path / "run", ledger=tmp_path / "shared.db")
    for step in steps:
        if step.state.round == 2:
            steps.close()
            break
    with pytest.raises(LedgerError, match="never charged to it"):
        tacit.train(geyer(rounds=4), task(), workers=1, out=tmp_path / "run", resume=True, randomness="seeded")
    run = tacit.train(
        geyer(rounds=4),
        task(),
        workers=1,
        out=tmp_path / "run",
        resume=True,
        ledger=tmp_path / "shared.db",
        randomness="seeded",
    )
    assert run.state.round == 4


def test_a_run_that_is_resumed_before_its_first_round_keeps_its_ledger(tmp_path: Path) -> None:
    steps = follow(
        RunSpec(method=geyer(rounds=2), task=task()), workers=1, out=tmp_path / "a", ledger=tmp_path / "shared.db"
    )
    next(steps)
    steps.close()
    with pytest.raises(LedgerError, match=r"Expected the ledger with which the run in .* was started"):
        tacit.train(geyer(rounds=2), task(), workers=1, out=tmp_path / "a", resume=True)


def test_no_ledger_without_noise(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nothing to charge"):
        tacit.train(
            methods.fedavg(rounds=1, cohort=3), task(), workers=1, ledger=tmp_path / "ledger.db", randomness="seeded"
        )
    assert not (tmp_path / "ledger.db").exists()


def test_a_ledger_that_cannot_be_written_releases_nothing(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="Nothing was released"):
        tacit.train(geyer(rounds=2), task(), workers=1, ledger=tmp_path / "missing" / "ledger.db", randomness="seeded")


@pytest.mark.parametrize("name", ["geyer", "fl-std-dp"])
def test_clients_without_a_finite_update_do_not_end_a_run(name: str) -> None:
    """Its end would depend on private data; without noise, training that diverged is reported."""
    parts = [(x * 1e30, y) for x, y in zoo.population(SIZES)]
    diverging = Task(model=zoo.softmax, clients=parts)
    method = geyer(rounds=3) if name == "geyer" else distributed_noise(rounds=3)
    run = tacit.train(method, diverging, workers=1)
    assert run.state.round == 3
    assert torch.isfinite(run.state.weights).all()
    assert run.state.weights.std() > 0  # the noise
    with pytest.raises(TrainingError, match="training diverged"):
        tacit.train(methods.fedavg(rounds=1, cohort=3), diverging, workers=1)


def test_a_ledger_takes_noise_in_shares_whatever_is_lost_and_whoever_colludes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those who receive the models see the same noise for every cohort and every number of losses."""
    shared = tmp_path / "shared.db"
    tacit.train(geyer(rounds=1, epsilon=30.0), task(), workers=1, ledger=shared)
    tacit.train(distributed_noise(rounds=1, colluding=0.1), task(), workers=1, ledger=shared)
    lose(monkeypatch, *range(10))
    tacit.train(distributed_noise(dropouts=0.0, rounds=1), task(), seed=2, workers=1, ledger=shared)
    with Ledger.open(shared) as ledger:
        assert [bool(entry.digest) for entry in ledger.entries] == [True, True, True]
        assert ledger.accounts.clients.adjacency is Adjacency.ADD_OR_REMOVE
        assert len({entry.event for entry in ledger.entries[1:]}) == 1


@pytest.mark.parametrize(
    ("channel", "dropouts", "colluding"),
    [
        (tacit.pieces.SecureSum(), 0.1, 0.1),
        (tacit.pieces.IdealSum(), 0.0, 0.0),
        (tacit.pieces.IdealSum(), 0.1, 0.1),
    ],
)
def test_amplification_is_never_decided_after_the_fact(channel: Channel, dropouts: float, colluding: float) -> None:
    arithmetic = tacit.pieces.Grid() if isinstance(channel, tacit.pieces.SecureSum) else tacit.pieces.Reals()
    fields = {"channel": channel, "mechanism.arithmetic": arithmetic}
    method = distributed_noise(dropouts=dropouts, colluding=colluding, **fields)
    assert accountant_for(method, 200).adjacency is Adjacency.ADD_OR_REMOVE
    reserved = Charges.begin(replace(method, sampler=Poisson(100)), ClientUnits.whole(200), []).reserve()
    for delivered in (100, 90, 50, 0):
        assert reserved.settle(Turnout(100, delivered)) is reserved


def distributed_noise(**changes: object) -> tacit.Method:
    """Distributed noise, with more than enough budget for all rounds."""
    options = {"cohort": 10, "rounds": 5, "clip": 0.5, "noise": 2.0, "epsilon": 30.0, "delta": 1e-3}
    ideal = {"channel": tacit.pieces.IdealSum(), "mechanism.arithmetic": tacit.pieces.Reals()}
    fields = {f"mechanism.{name}" if name in ("dropouts", "colluding") else name: changes[name] for name in changes}
    return methods.make("fl-std-dp", {**options, **ideal, **fields})


def lose(patch: pytest.MonkeyPatch, *clients: int) -> None:
    """From now on, messages of these clients are lost, so that their noise is missing."""

    def without_lost(messages: Messages, reach: float = torch.inf) -> tuple[Messages, WaveReport]:
        lost = torch.isin(messages.clients, torch.tensor(clients))
        rows = DenseRows(messages.rows.dense().masked_fill(lost[:, None], torch.nan))
        return reject_unusable(replace(messages, rows=rows), reach)

    patch.setattr(worker, "reject_unusable", without_lost)


def noise_for_records(**changes: object) -> tacit.Method:
    """Noise for records in the clients' sum, of random cohorts: against the server, missing noise costs more."""
    options = {"rounds": 5, "rate": 0.25, "noise": 2.0, "epsilon": 30.0, "delta": 1e-3}
    ideal = {
        "channel": tacit.pieces.IdealSum(),
        "mechanism.arithmetic": tacit.pieces.Reals(),
        "mechanism.dropouts": 0.0,
    }
    return replace(methods.make("dp-fedsgd", {**options, **ideal, **changes}), sampler=Poisson(10))


def against_the_server(method: tacit.Method, *turnouts: Turnout) -> float | None:
    """The ε against the server and clients of the same rounds, in which client 0 always took part."""
    history = played(*turnouts)
    return Charges.begin(method, ClientUnits.whole(20), history).guarantee(history).server_epsilon


def in_full(*noises: float) -> float:
    releases = [Release(Gaussian(noise)) for noise in noises]
    return Accounting.of(FAST_PLD, releases).epsilon(1e-3)


def test_missing_noise_costs_more_against_those_who_know_the_cohort() -> None:
    """Up to two of ten losses, the others' noise is that declared without any one share; beyond, it is less.

    Cohorts have ten clients on average, of whom eight have to deliver: the noise is 8/7 of the declared one.
    """
    method = distributed_noise(dropouts=0.2)
    for delivered in (8, 9, 10):
        assert against_the_server(method, Turnout(10, delivered)) == pytest.approx(in_full(2.0))
    assert against_the_server(method, Turnout(10, 5)) == pytest.approx(in_full(2.0 * (8 / 7 * 5 / 8 * 4 / 5) ** 0.5))
    assert against_the_server(method, Turnout(5, 4)) == pytest.approx(in_full(2.0 * (8 / 7 * 3 / 4) ** 0.5))
    both = against_the_server(method, Turnout(10, 10), Turnout(10, 5))
    assert both == pytest.approx(in_full(2.0, 2.0 * (8 / 7 * 4 / 8) ** 0.5))


def test_colluding_clients_are_counted_where_they_know_the_cohort_and_only_there() -> None:
    """Three of ten may disclose their shares: sampling amplifies for those who receive the models, nevertheless."""
    method = distributed_noise(colluding=0.3, dropouts=0.0)
    history = played(Turnout(10, 10))
    found = Charges.begin(method, ClientUnits.whole(20), history).guarantee(history)
    amplified = Release(Gaussian(2.0), sampling=Sampling("poisson", 0.5))
    assert (found.adjacency, found.amplified) == ("add-or-remove", True)
    assert found.epsilon == pytest.approx(Accounting.of(FAST_PLD, [amplified]).epsilon(1e-3), rel=1e-3)
    assert found.server_epsilon == pytest.approx(in_full(2.0))
    assert "Against the server and the other clients of a round, who know who took part" in str(found)
    assert "(zero-out; worst client, 1 round)" in str(found)


@pytest.mark.parametrize(("clients", "lost", "colluding", "honest"), [(3, 0, 0.0, 2), (5, 1, 0.0, 3), (10, 1, 0.3, 6)])
def test_the_noise_of_all_but_one_client_suffices_where_all_take_part(
    clients: int, lost: int, colluding: float, honest: int
) -> None:
    """What is claimed holds against each client, which knows its own share: its ε is not larger."""
    method = distributed_noise(colluding=colluding, cohort=clients, dropouts=lost / clients)
    assert method.mechanism.honest_clients(clients) == honest
    method = replace(method, sampler=tacit.pieces.Everyone())
    for delivered in range(clients - lost, clients + 1):
        history = played(Turnout(clients, delivered))
        found = Charges.begin(method, ClientUnits.whole(clients), history).guarantee(history)
        assert (found.server_epsilon, found.honest_clients) == (None, honest)
        assert f"It assumes noise from at least {honest} honest clients in every round" in str(found)
        assert found.epsilon == pytest.approx(in_full(2.0), rel=1e-3)
    smaller = played(Turnout(clients, clients), Turnout(clients - 1, clients - 1))  # as if a site was absent
    found = Charges.begin(method, ClientUnits.whole(clients), smaller).guarantee(smaller)
    counts = [method.mechanism.honest_clients(cohort) or 0 for cohort in (clients - 1, clients)]
    assert found.honest_clients == min(counts)
    history = played(Turnout(clients, clients - lost - 1))
    found = Charges.begin(method, ClientUnits.whole(clients), history).guarantee(history)
    assert found.server_epsilon is not None
    assert found.epsilon is not None
    assert found.server_epsilon > found.epsilon


def test_noise_for_dropouts_that_do_not_happen_is_removed_and_costs_the_same() -> None:
    spare, bare = (
        tacit.train(distributed_noise(dropouts=dropouts), task(), workers=1, randomness="seeded")
        for dropouts in (0.3, 0.0)
    )
    assert 0 < epsilon_of(spare) == epsilon_of(bare)


def test_a_round_without_any_honest_noise_protects_nobody_against_those_who_know_the_cohort() -> None:
    history = played(Turnout(10, 0))
    found = Charges.begin(distributed_noise(colluding=0.3), ClientUnits.whole(20), history).guarantee(history)
    assert (found.proved, found.server_epsilon) == (True, None)
    assert NO_NOISE_INSIDE in found.not_covered
    reserved = Charges.begin(noise_for_records(), ClientUnits((4,) * 20)).reserve(cohort=range(10))
    with pytest.raises(BudgetError, match="has no noise at all: no honest client delivered"):
        reserved.settle(Turnout(10, 0))


def test_with_too_few_noise_shares_for_the_budget_nothing_is_released() -> None:
    units = ClientUnits((4,) * 20)
    planned = Charges.begin(noise_for_records(), units).reserve(cohort=range(10)).epsilon
    tight = Charges.begin(noise_for_records(epsilon=planned * 1.05), units).reserve(cohort=range(10))
    with pytest.raises(BudgetError, match=r"because too few clients delivered their noise\. Nothing"):
        tight.settle(Turnout(10, 5))


def test_missing_noise_ends_a_run_before_it_exceeds_its_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """The budget is that of all rounds with the noise of all clients; half of them are always lost."""
    whole = tacit.train(noise_for_records(), task(), workers=1, randomness="seeded")
    method = noise_for_records(epsilon=whole.epsilons[Unit.RECORD])
    lose(monkeypatch, *range(10))
    run = tacit.train(method, task(), workers=1, randomness="seeded")
    assert any(report.rejected for report in run.history)
    assert 0 < run.state.round < 5
    assert run.history[-1].epsilons[Unit.RECORD] <= whole.epsilons[Unit.RECORD]


def test_the_cost_of_missing_noise_is_in_the_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lose(monkeypatch, 0)
    run = tacit.train(noise_for_records(), task(), workers=1, randomness="seeded", out=tmp_path / "run")
    fewer = [report.round for report in run.history if report.rejected]
    assert 0 < len(fewer) < 5
    with Ledger.open(tmp_path / "run" / LEDGER) as ledger:
        assert [entry.round for entry in ledger.entries] == [1, 2, 3, 4, 5]
        noises = {
            entry.round: {release.loss.noise_multiplier for release in entry.charge.releases}  # type: ignore[union-attr]
            for entry in ledger.entries
        }
        assert all((max(noises[number]) < 2.0) == (number in fewer) for number in noises)
        assert all(entry.digest for entry in ledger.entries)
        assert ledger.accounts[Unit.RECORD].epsilon(1e-3) == pytest.approx(epsilon_of(run), rel=1e-3)


@pytest.mark.parametrize("moment", ["before the release", "after the release"])
def test_a_kill_around_the_release_of_a_costlier_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """The round was charged more than planned, and is then repeated without a new charge, bitwise equal."""
    faulty = noise_for_records()
    lose(monkeypatch, 0, 1, 2)
    whole = tacit.train(faulty, task(), workers=1, randomness="seeded", out=tmp_path / "whole")
    costlier = next(report.round for report in whole.history if report.rejected)
    release = Charges.release

    def killed(self: Charges, state: tacit.State) -> None:
        if state.round != costlier or moment == "after the release":
            release(self, state)
        if state.round == costlier:
            raise SystemExit(9)

    with monkeypatch.context() as patch:
        patch.setattr(Charges, "release", killed)
        with pytest.raises(SystemExit):
            tacit.train(faulty, task(), workers=1, randomness="seeded", out=tmp_path / "run")
    with Ledger.open(tmp_path / "run" / LEDGER) as ledger:
        assert (ledger.entries[-1].round, bool(ledger.entries[-1].digest)) == (costlier, moment == "after the release")
    resumed = tacit.train(
        faulty, task(), workers=1, randomness="seeded", out=tmp_path / "run", resume=(tmp_path / "run").exists()
    )
    assert torch.equal(resumed.state.weights, whole.state.weights)
    with Ledger.open(tmp_path / "run" / LEDGER) as ledger, Ledger.open(tmp_path / "whole" / LEDGER) as other:
        assert ledger.entries == other.entries
        assert ledger.accounts[Unit.RECORD].epsilon(1e-3) == pytest.approx(epsilon_of(whole), rel=1e-3)


def _private() -> tacit.Method:
    return methods.geyer(cohort=5, noise=4.0, rounds=60, epsilon=30.0, delta=1e-3)


def _without_noise() -> tacit.Method:
    return methods.fedavg(cohort=5, rounds=60)


def _start_or_resume(method: tacit.Method, path: Path) -> None:
    """The process that is killed; it writes checkpoints often."""
    tacit.runs.directory.SECONDS_BETWEEN_CHECKPOINTS = 0.02
    tacit.train(method, task(), workers=1, out=path, resume=(path / "manifest.json").exists(), randomness="seeded")


def _until_done(method: tacit.Method, path: Path, kills: int, generator: random.Random) -> list[int]:
    """Run, kill a few rounds later at a random moment, resume; the number of charged rounds after each kill."""
    charged = [0]
    for attempt in range(kills + 1):
        process = multiprocessing.get_context("fork").Process(target=_start_or_resume, args=(method, path))
        process.start()
        if attempt < kills:
            _wait_for(process, path, _recorded(path) + generator.randrange(3))
            process.join(generator.uniform(0.0, 0.02))
            process.kill()
        process.join()
        if (path / LEDGER).exists():
            charged.append(_charged(path))
    assert process.exitcode == 0
    return charged


def _wait_for(process: multiprocessing.process.BaseProcess, path: Path, rounds: int) -> None:
    """Wait until this many rounds are recorded, or the process has ended."""
    while process.is_alive() and _recorded(path) < rounds:
        time.sleep(0.001)


def _recorded(path: Path) -> int:
    file = path / "rounds.jsonl"
    return file.read_bytes().count(b"\n") if file.exists() else 0


def _charged(path: Path) -> int:
    """The number of rounds in the ledger, which include all recorded ones."""
    with Ledger.open(path / LEDGER) as ledger:
        rounds = {entry.round for entry in ledger.entries}
    assert set(range(1, _recorded(path) + 1)) <= rounds
    return len(rounds)


def test_kills_lose_no_charge_and_charge_nothing_twice(tmp_path: Path) -> None:
    """Released implies charged, charges never decrease, and no round is charged twice.

    Only this kills a whole run, between any two of its files.
    """
    whole = tacit.train(
        _private(), task(), workers=1, out=tmp_path / "whole", randomness="seeded"
    )  # first: forks inherit what it caches
    charged = _until_done(_private(), tmp_path / "run", 30, random.Random(1))
    assert charged == sorted(charged)
    assert charged[-1] == 60
    assert len(set(charged)) > 5  # the kills happened during the run
    killed = tacit.train(_private(), task(), workers=1, out=tmp_path / "run", resume=True, randomness="seeded")
    assert torch.equal(killed.state.weights, whole.state.weights)


def test_killed_runs_without_noise_are_bitwise_equal(tmp_path: Path) -> None:
    """Only this compares a killed run without a ledger bitwise with an uninterrupted one."""
    whole = tacit.train(_without_noise(), task(), workers=1, randomness="seeded")
    _until_done(_without_noise(), tmp_path / "run", 30, random.Random(2))
    killed = tacit.train(_without_noise(), task(), workers=1, out=tmp_path / "run", resume=True, randomness="seeded")
    assert torch.equal(killed.state.weights, whole.state.weights)


def test_without_noise_there_is_no_release():
    plain = Method(name="plain", rounds=1, sampler=Poisson(3), trainer=Sgd(lr=0.1, steps=1))
    assert release_of(plain, 10, 0) is None


def stopped_run(tmp_path: Path, rounds: int) -> None:
    """A run on a shared ledger that is stopped after this many rounds."""
    steps = follow(
        RunSpec(method=geyer(rounds=6), task=task()), workers=1, out=tmp_path / "a", ledger=tmp_path / "shared.db"
    )
    for step in steps:
        if step.state.round == rounds:
            steps.close()


def rolled_back(tmp_path: Path) -> None:
    """Both files of the shared ledger are as they were before a run was charged to it."""
    for name in ("shared.db", "shared.db.head"):
        (tmp_path / name).unlink()
        (tmp_path / f"old {name}").rename(tmp_path / name)


def backed_up(tmp_path: Path) -> None:
    for name in ("shared.db", "shared.db.head"):
        shutil.copy(tmp_path / name, tmp_path / f"old {name}")


def test_the_manifest_notes_the_head_of_the_ledger(tmp_path: Path) -> None:
    tacit.train(geyer(rounds=3), task(), workers=1, out=tmp_path / "own")
    tacit.train(geyer(rounds=3), task(), workers=1, out=tmp_path / "a", ledger=tmp_path / "shared.db")
    for run, file in (("own", tmp_path / "own" / LEDGER), ("a", tmp_path / "shared.db")):
        with Ledger.open(file) as ledger:
            assert read_manifest(tmp_path / run).ledger == ledger.head
            assert ledger.head.row == 6
    tacit.train(methods.fedavg(rounds=1, cohort=3), task(), workers=1, out=tmp_path / "plain")
    assert read_manifest(tmp_path / "plain").ledger is None


def test_a_rolled_back_ledger_is_noticed_on_resuming_and_by_a_new_run(tmp_path: Path) -> None:
    tacit.train(geyer(rounds=1), task(), seed=9, workers=1, ledger=tmp_path / "shared.db")
    backed_up(tmp_path)
    stopped_run(tmp_path, 2)
    rolled_back(tmp_path)
    noticed = (
        r"Expected row 6 .* in .*shared\.db, as noted in .*manifest\.json, but it ends at row 2: it was rolled back"
    )
    with pytest.raises(LedgerError, match=noticed):
        tacit.train(geyer(rounds=6), task(), workers=1, out=tmp_path / "a", resume=True, ledger=tmp_path / "shared.db")
    with pytest.raises(LedgerError, match=noticed):
        tacit.train(geyer(rounds=6), task(), seed=1, workers=1, out=tmp_path / "b", ledger=tmp_path / "shared.db")
    assert not (tmp_path / "b").exists()
    (tmp_path / "elsewhere").mkdir()
    fresh = tmp_path / "elsewhere" / "fresh.db"
    assert tacit.train(geyer(rounds=1), task(), workers=1, out=tmp_path / "b", ledger=fresh).state.round == 1


def test_a_run_on_a_shared_ledger_shows_what_all_runs_have_used(tmp_path: Path) -> None:
    shared = tmp_path / "shared.db"
    tacit.train(geyer(rounds=3), task(), seed=1, workers=1, ledger=shared)
    run = tacit.train(geyer(rounds=2), task(), workers=1, out=tmp_path / "run", ledger=shared)
    assert run.ledger is not None
    assert (run.ledger.runs, run.ledger.rounds, run.ledger.budget) == (2, 5, Budget(6.0, 1e-3))
    assert run.ledger.epsilons.keys() == {Unit.CLIENT}
    assert (run.ledger.epsilons[Unit.CLIENT] or 0.0) > epsilon_of(run)
    assert "of 6 at δ = 0.001 is used by all runs together (2 runs, 5 rounds)." in str(run.ledger)
    assert str(run.ledger).endswith(ONE_EACH)  # which another partition of the same data contradicts
    assert tacit.train(geyer(rounds=2), task(), workers=1, out=tmp_path / "own").ledger is None
