"""NbAFL, noise by importance, and their variant with a guarantee: defaults, cards, runs and client traces."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import tacit
from tacit import methods
from tacit.cli import main
from tacit.core import DenseRows, Messages
from tacit.core.interfaces import Mechanism
from tacit.errors import UserError
from tacit.methods.priority import Formula, priority
from tacit.pieces.mechanisms.nbafl import NOMINAL
from tacit.privacy.guarantee import Guarantee
from tacit.report.cards import card
from tacit.runs.directory import read_manifest
from tacit.runs.experiment import parse
from zoo import server_side

SMALL = ["--rounds", "2", "--set", "samples=15", "--task", "digits", "--workers", "1"]


def by_importance(**args: Any) -> tacit.pieces.ByImportance:
    mechanism = methods.make("priority", args).mechanism
    assert isinstance(mechanism, tacit.pieces.ByImportance)
    return mechanism


def nbafl(mechanism: Mechanism) -> tacit.pieces.NbaflGaussian:
    assert isinstance(mechanism, tacit.pieces.NbaflGaussian)
    return mechanism


def epsilon_of(run: tacit.Run) -> float:
    assert isinstance(run.privacy, Guarantee)
    assert run.privacy.epsilon is not None
    return run.privacy.epsilon


def test_the_paper_s_figures_are_the_defaults():
    method = priority()
    assert (method.rounds, method.sampler) == (25, tacit.pieces.Everyone())
    assert method.trainer == tacit.pieces.Sgd(lr=0.02, epochs=1, batch_size=32, sends="weights")
    assert by_importance().allocation == tacit.pieces.TwoLevel(20.0, 0.2, "least")
    base = nbafl(by_importance().base)
    assert (base.epsilon, base.delta, base.clip, base.samples, base.rounds) == (10.0, 0.01, 5.0, 1120, 25)
    assert base.exposures == 25
    assert nbafl(by_importance(exposures=1).base).exposures == 1


def test_their_default_task_is_the_paper_s():
    for name in ("nbafl", "priority"):
        found = parse({"method": name}, "here")
        assert found.task == "mnist"
        assert found.task_args == {"clients": 30, "samples": 1120, "pool": 42000, "held_out": 8400, "model": "mlp"}
    changed = parse({"method": "nbafl", "task": "mnist", "task-args": {"clients": 10}}, "here")
    assert (changed.task_args["clients"], changed.task_args["pool"]) == (10, 42000)
    assert parse({"method": "nbafl", "task": "digits"}, "here").task_args == {}
    assert parse({"method": "fl-std"}, "here").task == "digits"


def test_the_default_task_has_the_paper_s_sizes(data_folder):
    """Only this test loads the paper's MNIST split."""
    task = parse({"method": "priority"}, "here").build_task()
    assert task.test is not None
    assert set(task.population.sizes.tolist()) == {1120}
    assert (len(task.population), len(task.test[1])) == (30, 8400)
    held_out = {row.tobytes() for row in task.test[0][:500].numpy()}
    owned = {row.tobytes() for row in task.population.x[task.population.sample_indices].numpy()}
    assert len(held_out & owned) <= 2  # MNIST contains a few images twice; no client owns a held-out sample
    assert sum(p.numel() for p in task.make_model(tacit.core.Key.from_seed(0)).parameters()) == 203_530


@pytest.mark.parametrize(
    ("clipping", "gradients", "weights"), [("weights", None, True), ("gradients", 5.0, False), ("none", None, False)]
)
def test_what_is_clipped(clipping, gradients, weights):
    method = methods.make("nbafl", {"clipping": clipping})
    assert isinstance(method.trainer, tacit.pieces.Sgd)
    assert (method.trainer.clip, nbafl(method.mechanism).clips) == (gradients, weights)


def test_variants():
    assert by_importance(share=None).allocation == tacit.pieces.Graded(20.0, "least")
    assert by_importance(**{"mechanism.groups": "SingleWeights()"}).groups == tacit.pieces.SingleWeights()
    assert by_importance(method="sensitivity").importance == tacit.pieces.AccuracySensitivity(20.0)
    high = by_importance(method="sensitivity", **{"mechanism.importance.noise_factor": 1})
    assert high.importance == tacit.pieces.AccuracySensitivity(1.0)
    with pytest.raises(UserError, match="epsilon_low=2 <= epsilon_high=1"):
        priority(epsilon_low=2.0, epsilon_high=1.0)
    with pytest.raises(UserError, match="clipping='both' in weights, gradients, none"):
        Formula(clipping="both")  # type: ignore[arg-type]


def test_cards_show_nominal_figures_and_why_there_is_no_guarantee():
    shown = card("nbafl", {"epsilon": 1, "exposures": 1})
    assert shown.nominal[NOMINAL] == 1.0
    assert shown.guarantee.startswith("none: NbAFL assumes")
    assert shown.event == "none"
    assert card("geyer").nominal == {}
    assert "depends on private data" in card("priority").guarantee


def test_runs_show_them_too(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["run", "priority", *SMALL]) == 0
    printed = capsys.readouterr().out
    assert f"{NOMINAL}, 20% least important: 0.5" in printed
    assert "NbAFL assumes that one sample" in printed
    assert read_manifest(Path("runs/priority-digits-0")).method.nominal[f"{NOMINAL}, all others"] == 10.0
    assert main(["run", "nbafl", *SMALL, "--json"]) == 0
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    assert run["privacy"]["guarantees"]["client"]["guarantee"] is False
    assert run["privacy"]["nominal"][NOMINAL] == 1.0
    assert main(["card", "nbafl"]) == 0
    assert f"  {NOMINAL}: 1\n" in capsys.readouterr().out


def test_an_error_names_the_number_of_samples_to_set(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["run", "nbafl", "--rounds", "1", "--task", "digits", "--workers", "1"]) != 0
    assert "at least samples=1120" in capsys.readouterr().err
    assert not Path("runs/nbafl-digits-0").exists()


@pytest.mark.parametrize("ball", [False, True])
@pytest.mark.parametrize("importance", [tacit.pieces.ReleasedMovement(), tacit.pieces.PublicMovement()])
def test_with_a_guarantee_epsilon_does_not_depend_on_the_axes(importance, ball):
    task = tacit.tasks.make_task("digits")
    epsilons = []
    for power in (0.0, 0.5, -0.5):
        ellipsoid = tacit.pieces.EllipsoidClip(value=0.4, importance=importance, power=power, ball=ball)
        method = methods.priority_dp(ellipsoid, epsilon=None, noise=1.0, rounds=2, cohort=20)
        run = tacit.train(method, task, workers=1, randomness="seeded")
        epsilons.append(epsilon_of(run))
        assert not torch.isnan(run.state.weights).any()
    assert epsilons[0] == epsilons[1] == epsilons[2]


def test_with_a_guarantee_the_noise_fits_the_budget():
    run = tacit.train(
        methods.priority_dp(rounds=2, cohort=20, delta=1e-3),
        tacit.tasks.make_task("digits"),
        workers=1,
        randomness="seeded",
    )
    assert 7.9 < epsilon_of(run) <= 8.0
    assert run.privacy.unit == "client"


def test_client_traces_are_what_the_run_sends():
    """With the noise of the client's mechanism, a trace is the message of its round."""
    task = tacit.tasks.make_task("digits", clients=5)
    method = priority(rounds=3, formula=Formula(samples=300, exposures=1))
    traces = [*tacit.engine.client_traces(method, task, client=2, at=[3, 1], seed=4, workers=1)]
    assert [trace.now.index for trace in traces] == [0, 2]
    states = {state.round: state for state, _ in tacit.rounds(method, task, seed=4, workers=1, randomness="seeded")}
    all_five = [next(tacit.engine.client_traces(method, task, client=c, at=[3], seed=4, workers=1)) for c in range(5)]
    rows = [method.mechanism.at_client(t.messages, t.view, t.data, t.now).rows.dense() for t in all_five]
    messages = Messages(torch.arange(5), DenseRows(torch.cat(rows)))
    after = server_side(method, states[2], messages, traces[1].now)
    torch.testing.assert_close(states[3].weights, after.weights, rtol=1e-4, atol=1e-6)
    with pytest.raises(UserError, match=r"client=7 in \[0, 5\)"):
        next(tacit.engine.client_traces(method, task, client=7, at=[1]))
    with pytest.raises(UserError, match="counted from 1"):
        next(tacit.engine.client_traces(method, task, client=0, at=[0]))
