"""Clustered federated learning: groups get their own models; metric privacy, patience, and the files of a run."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import nn

import tacit
from scale import scaled
from tacit import methods
from tacit.core import SimulatedRound
from tacit.core.keys import Key
from tacit.core.state import BEST, LOSS, STALE, View, final_weights, out_of_patience, track_best
from tacit.engine.simulation import PARTICIPATIONS
from tacit.engine.waves import AutoLearner, StackedClients
from tacit.errors import ModelError
from tacit.runs.directory import CHECKPOINT, LEAKAGE, MODEL, read_rounds
from tacit.runs.run import RunSpec
from tacit.runs.training import follow
from tacit.tasks.regression import THETA

TASK = tacit.tasks.make_task("synthetic", clients=20)
SEEDS = range(scaled(1, campaign=10))
NOW = SimulatedRound.of(0, 5, 3.0, 3, Key.from_seed(0, "shared"), Key.from_seed(0, "secret"))


def worst_distance(run: tacit.Run) -> float:
    """The larger of the distances from an optimum to its nearest hypothesis."""
    return float(torch.cdist(THETA, final_weights(run.state)).min(1).values.max())


def groups(run: tacit.Run) -> list[set[int]]:
    """The choices of even and of odd clients."""
    task = run.spec.task
    data = StackedClients(torch.arange(len(task.population)), task.population, AutoLearner(run.models[0], task.loss))
    trainer = run.spec.method.trainer
    assert isinstance(trainer, tacit.pieces.BestOf)
    choice = trainer.choose(View(final_weights(run.state), {}), data)
    return [set(choice[group::2].tolist()) for group in (0, 1)]


@pytest.mark.parametrize("seed", SEEDS)
def test_with_a_warm_up_both_optima_are_found(seed: int) -> None:
    """With and without noise, every client ends in the right group; ten seeds in a campaign.

    The only test in which a whole run must converge to the groups' optima.
    """
    task = tacit.tasks.make_task("synthetic")
    plain = tacit.train(
        methods.ifca(rounds=500, warm_up=10, patience=30), task, seed=seed, workers=1, randomness="seeded"
    )
    noisy = tacit.train(
        methods.ifca_dp(rounds=500, warm_up=10, patience=30), task, seed=seed, workers=1, randomness="seeded"
    )
    assert worst_distance(plain) < 0.2
    assert worst_distance(noisy) < 0.6
    for run in (plain, noisy):
        one, other = groups(run)
        assert len(one) == len(other) == 1
        assert one != other
    assert noisy.leakage is not None
    assert noisy.leakage.per_round == pytest.approx(0.4)
    assert plain.metrics["rmse"] < noisy.metrics["rmse"] < 1.0


def test_one_hypothesis_ends_between_the_groups() -> None:
    run = tacit.train(methods.ifca(models=1, rounds=120), TASK, workers=1, randomness="seeded")
    assert run.state.weights.shape == (2,)
    assert float(torch.dist(THETA[0], run.state.weights)) > 2
    assert run.metrics["rmse"] > 3
    assert isinstance(run.model, nn.Module)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tacit.Run:
    method = methods.ifca_dp(
        rounds=8, mechanism=tacit.pieces.MetricLaplace(noise_multiplier=5.0, radius=0.05, limit=0.8)
    )
    return tacit.train(
        method, TASK, seed=3, workers=1, out=tmp_path_factory.mktemp("runs") / "run", randomness="seeded"
    )


def test_a_run_with_several_models_has_no_single_model(run: tacit.Run) -> None:
    with pytest.raises(tacit.UserError, match=r"ifca-dp trains 2\. Use run\.models, or run\.model_for"):
        _ = run.model
    assert len(run.models) == 2
    for model, weights in zip(run.models, run.state.weights, strict=True):
        assert torch.equal(nn.utils.parameters_to_vector(model.parameters()), weights)


def test_a_client_s_model_is_the_one_with_its_smallest_loss(run: tacit.Run) -> None:
    x, y = TASK.population[0]
    losses = [float((model(x) - y).detach().square().mean()) for model in run.models]
    assert run.model_for((x, y)) is run.models[losses.index(min(losses))]


def test_held_out_clients_are_evaluated_with_their_best_hypothesis(run: tacit.Run) -> None:
    assert TASK.test is not None
    assert TASK.owners is not None
    x, y = TASK.test
    total = 0.0
    for client in range(20):
        own = TASK.owners == client
        total += min(float((model(x[own]) - y[own]).detach().square().sum()) for model in run.models)
    assert run.metrics["rmse"] == pytest.approx((total / len(y)) ** 0.5, rel=1e-5)


def test_clients_decline_above_the_limit(run: tacit.Run) -> None:
    """Two rounds of 0.4 are within 0.8, a third is not; the engine's counts agree with the accounting."""
    assert run.leakage is not None
    assert max(run.leakage.by_client.values()) == pytest.approx(0.8)
    assert run.leakage.declined == sum(len(report.declined) for report in run.history) > 0
    for report in run.history:
        assert not set(report.clients) & set(report.declined)
        assert len(report.clients) + len(report.declined) == 7
        assert len(report.up) == len(report.clients)
    clients, taken = run.state.memory[PARTICIPATIONS].tolist()
    assert dict(zip(clients, taken, strict=True)) == dict(run.leakage.participations)
    assert run.history[-1].leakage == run.leakage.maximum


def test_a_run_ends_when_all_clients_would_decline() -> None:
    run = tacit.train(methods.make("ifca-dp", {"rounds": 50, "limit": 0.4}), TASK, workers=1, randomness="seeded")
    assert run.leakage is not None
    assert run.leakage.exhausted
    assert run.state.round < 50
    assert set(run.leakage.by_client) == set(range(20))


def test_the_files_report_every_client(run: tacit.Run) -> None:
    assert run.directory is not None
    assert run.leakage is not None
    stored = json.loads((run.directory / LEAKAGE).read_text())
    assert stored == json.loads(json.dumps(run.leakage.to_json()))
    assert {int(client): leaked for client, leaked in stored["clients"].items()} == run.leakage.by_client
    tensors = safetensors.torch.load_file(run.directory / MODEL)
    assert tensors.keys() == {"0.0.weight", "1.0.weight"}
    reports = read_rounds(run.directory)
    assert [report.declined for report in reports] == [report.declined for report in run.history]


def test_no_ledger_is_charged(tmp_path: Path) -> None:
    with pytest.raises(tacit.UserError, match="d-privacy is accounted for each client separately"):
        tacit.train(methods.ifca_dp(rounds=1), TASK, workers=1, ledger=tmp_path / "ledger.db", randomness="seeded")


def test_patience_keeps_the_best_models_also_in_a_resumed_run(tmp_path: Path) -> None:
    method = methods.ifca_dp(rounds=200, patience=4)
    whole = tacit.train(method, TASK, seed=1, workers=1, randomness="seeded")
    losses = [report.metrics["loss"] for report in whole.history]
    best = losses.index(min(losses))
    assert len(losses) == best + 1 + 4 < 200
    assert whole.metrics["loss"] == min(losses)
    shorter = tacit.train(replace(method, rounds=best + 1, patience=None), TASK, seed=1, workers=1, randomness="seeded")
    assert torch.equal(final_weights(whole.state), shorter.state.weights)
    steps = follow(RunSpec(method=method, task=TASK, seed=1, randomness="seeded"), workers=1, out=tmp_path / "run")
    for _ in range(4):
        next(steps)
    steps.close()
    resumed = tacit.train(method, TASK, seed=1, workers=1, out=tmp_path / "run", resume=True, randomness="seeded")
    assert torch.equal(resumed.state.weights, whole.state.weights)
    assert torch.equal(final_weights(resumed.state), final_weights(whole.state))
    assert resumed.leakage == whole.leakage
    assert (tmp_path / "run" / CHECKPOINT).exists()


def test_patience_by_hand() -> None:
    method, state = methods.ifca(patience=2), tacit.State(1, torch.ones(2, 3))
    assert track_best(methods.ifca().patience, state, {"loss": 1.0}) is state
    for loss, stale in ((3.0, 0), (2.0, 0), (2.0, 1), (5.0, 2)):
        assert not out_of_patience(method.patience, state)
        state = track_best(method.patience, replace(state, weights=state.weights + 1), {"loss": loss})
        assert int(state.memory[STALE]) == stale
    assert out_of_patience(method.patience, state)
    assert float(state.memory[LOSS]) == 2.0
    assert torch.equal(state.memory[BEST], torch.full((2, 3), 3.0))


def test_patience_needs_held_out_data() -> None:
    task = replace(TASK, test=None, owners=None)
    with pytest.raises(tacit.UserError, match="Expected held-out data for ifca: patience=3"):
        tacit.train(methods.ifca(patience=3), task, workers=1, randomness="seeded")


def test_hypotheses_must_have_different_initial_weights() -> None:
    task = replace(TASK, model=nn.Linear(2, 1, bias=False))
    with pytest.raises(ModelError, match="Expected 2 hypotheses with different initial weights"):
        tacit.train(methods.ifca(), task, workers=1, randomness="seeded")
    assert tacit.train(methods.ifca(models=1, rounds=1), task, workers=1, randomness="seeded").state.round == 1


def test_a_card_states_the_leakage_within_the_radius() -> None:
    card = tacit.card("ifca-dp", {"noise": 5.0, "radius": 0.05, "limit": 2.4})
    leakage = "within the public radius 0.05, the leakage is at most n·0.2 for n weights (0.4 for 2, 2.2 for 11"
    assert leakage in card.guarantee
    assert "A client declines before it would leak more than 2.4." in card.guarantee
    assert tacit.card("ifca-dp", {"radius": None}).guarantee.startswith("none: ")
    assert card.sees["the server"] == "every client's message, with noise; in each round, who takes part"
