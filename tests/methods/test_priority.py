import json
from pathlib import Path

import pytest
import torch

import tacit
from tacit import methods
from tacit.cli import main
from tacit.core import DenseRows, Messages
from tacit.core.round import server_side
from tacit.errors import UserError
from tacit.pieces.mechanisms.nbafl import NOMINAL
from tacit.report.cards import card
from tacit.runs.directory import read_manifest
from tacit.runs.experiment import parse

SMALL = ["--rounds", "2", "--set", "samples=15", "--task", "digits", "--workers", "1"]


def test_the_paper_s_figures_are_the_defaults():
    method = methods.priority()
    trainer, mechanism = method.trainer, method.mechanism
    assert (method.rounds, method.sampler) == (25, tacit.Everyone())
    assert (trainer.lr, trainer.epochs, trainer.batch_size, trainer.sends) == (0.02, 1, 32, "weights")
    assert mechanism.allocation == tacit.Share(20.0, 0.2, "least")
    base = mechanism.base
    assert (base.epsilon, base.delta, base.clip, base.samples, base.rounds) == (10.0, 0.01, 5.0, 1120, 25)
    assert base.exposures == 25
    assert methods.priority(exposures=1).mechanism.base.exposures == 1


def test_their_home_is_the_paper_s_task():
    for name in ("nbafl", "priority"):
        found = parse({"method": name}, "here")
        assert found.task == "mnist"
        assert found.task_args == {"clients": 30, "samples": 1120, "pool": 42000, "held_out": 8400, "model": "mlp"}
    changed = parse({"method": "nbafl", "task": "mnist", "task-args": {"clients": 10}}, "here")
    assert (changed.task_args["clients"], changed.task_args["pool"]) == (10, 42000)
    assert parse({"method": "nbafl", "task": "digits"}, "here").task_args == {}
    assert parse({"method": "fl-std"}, "here").task == "digits"


def test_the_home_task_has_the_paper_s_sizes(data_folder):
    task = parse({"method": "priority"}, "here").build_task()
    assert set(task.population.sizes.tolist()) == {1120}
    assert (len(task.population), len(task.test[1])) == (30, 8400)
    held_out = {row.tobytes() for row in task.test[0][:500].numpy()}
    mine = {row.tobytes() for row in task.population.x[task.population.owned].numpy()}
    assert len(held_out & mine) <= 2  # MNIST has a few images twice, and no client owns a held-out one
    assert sum(p.numel() for p in task.make_model(tacit.Key.from_seed(0)).parameters()) == 203_530


def test_ways_of_clipping():
    assert methods.nbafl().mechanism.clips
    assert methods.nbafl().trainer.clip is None
    gradients, free = methods.nbafl(clipping="gradients"), methods.nbafl(clipping="none")
    assert (gradients.trainer.clip, gradients.mechanism.clips) == (5.0, False)
    assert (free.trainer.clip, free.mechanism.clips) == (None, False)


def test_outlooks():
    assert methods.priority(share=None).mechanism.allocation == tacit.Graded(20.0, "least")
    assert methods.priority(groups="weights").mechanism.groups == tacit.EachWeight()
    assert methods.priority(method="sensitivity").mechanism.importance == tacit.Sensitivity(20.0)
    assert methods.priority(method="sensitivity", nudge="high").mechanism.importance == tacit.Sensitivity(1.0)
    with pytest.raises(UserError, match="epsilon_low=2 <= epsilon_high=1"):
        methods.priority(epsilon_low=2.0, epsilon_high=1.0)


def test_cards_tell_what_is_nominal_and_why_nothing_is_proved():
    shown = card("nbafl", {"epsilon": 1, "exposures": 1})
    assert shown.nominal[NOMINAL] == 1.0
    assert shown.guarantee.startswith("none: NbAFL takes 2C/m")
    assert shown.event == "none"
    assert card("geyer").nominal == {}
    assert "chosen from private data" in card("priority").guarantee


def test_runs_tell_it_too(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["run", "priority", *SMALL]) == 0
    said = capsys.readouterr().out
    assert f"{NOMINAL}, 20% least important: 0.5" in said
    assert "Guarantee: none: NbAFL takes 2C/m" in said
    assert read_manifest(Path("runs/priority-digits-0")).method.nominal[f"{NOMINAL}, all others"] == 10.0
    assert main(["run", "nbafl", *SMALL, "--json"]) == 0
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    assert run["privacy"]["guarantee"] is False
    assert run["privacy"]["nominal"][NOMINAL] == 1.0
    assert main(["card", "nbafl"]) == 0
    assert f"  {NOMINAL}: 1\n" in capsys.readouterr().out


def test_a_run_on_smaller_clients_says_what_to_give(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["run", "nbafl", "--rounds", "1", "--task", "digits", "--workers", "1"]) != 0
    assert "samples=1120 or more" in capsys.readouterr().err
    assert not Path("runs/nbafl-digits-0").exists()


@pytest.mark.parametrize("shape", ["ellipsoid", "ball"])
@pytest.mark.parametrize("importance", ["released", "public"])
def test_the_honest_variant_spends_the_same_whatever_its_axes(importance, shape):
    task = tacit.tasks.make_task("digits")
    spent = []
    for power in (0.0, 0.5, -0.5):
        method = methods.priority_dp(importance, power, shape, epsilon=None, noise=1.0, rounds=2, cohort=20)
        run = tacit.train(method, task, workers=1)
        assert run.privacy.proved
        spent.append(run.privacy.epsilon)
        assert not torch.isnan(run.state.weights).any()
    assert spent[0] == spent[1] == spent[2]


def test_the_honest_variant_is_sized_for_its_budget():
    run = tacit.train(methods.priority_dp(rounds=2, cohort=20, delta=1e-3), tacit.tasks.make_task("digits"), workers=1)
    assert 7.9 < run.privacy.epsilon <= 8.0
    assert run.privacy.unit == "client"


def test_glimpses_are_what_the_run_sends():
    """Blurred by the client's mechanism, a glimpse is the message of the round it shows."""
    task = tacit.tasks.make_task("digits", clients=5)
    method = methods.priority(rounds=3, samples=300, exposures=1)
    seen = [*tacit.client_traces(method, task, client=2, at=[3, 1], seed=4, workers=1)]
    assert [glimpse.now.index for glimpse in seen] == [0, 2]
    states = {state.round: state for state, _ in tacit.rounds(method, task, seed=4, workers=1)}
    all_five = [next(tacit.client_traces(method, task, client=c, at=[3], seed=4, workers=1)) for c in range(5)]
    rows = [method.mechanism.at_client(o.messages, o.view, o.data, o.now).rows.dense() for o in all_five]
    messages = Messages(torch.arange(5), DenseRows(torch.cat(rows)))
    after = server_side(method, states[2], messages, seen[1].now)
    torch.testing.assert_close(states[3].weights, after.weights, rtol=1e-4, atol=1e-6)
    with pytest.raises(UserError, match=r"client=7 in \[0, 5\)"):
        next(tacit.client_traces(method, task, client=7, at=[1]))
    with pytest.raises(UserError, match="rounds from 1 on"):
        next(tacit.client_traces(method, task, client=0, at=[0]))
