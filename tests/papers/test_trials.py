"""Experiments go on where they stopped, and give every method the same trials."""

import json
import math
import runpy
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import tacit

EXPERIMENTS = Path(__file__).resolve().parents[2] / "experiments"


@cache
def script(name: str) -> Any:
    """The names of an experiment's module."""
    before = list(sys.path)
    try:
        return SimpleNamespace(**runpy.run_path(str(EXPERIMENTS / name)))
    finally:
        sys.path[:] = before


@dataclass(frozen=True)
class Roll:
    die: int


def test_a_trial_is_made_once_and_survives_a_restart(tmp_path: Path) -> None:
    path, made = tmp_path / "rolls.json", []

    def roll() -> dict[str, float]:
        made.append(1)
        return {"value": 4.0}

    file = script("trials.py").TrialFile.open(path)
    assert file.get(Roll(1)) is None
    assert file.measure(Roll(1), roll) == file.measure(Roll(1), roll) == {"value": 4.0}
    again = script("trials.py").TrialFile.open(path)
    assert again.measure(Roll(1), roll) == {"value": 4.0}
    assert len(made) == 1
    assert again.get(Roll(2)) is None


def test_a_trial_that_fails_leaves_what_was_found(tmp_path: Path) -> None:
    path = tmp_path / "rolls.json"
    file = script("trials.py").TrialFile.open(path)
    file.measure(Roll(1), lambda: {"value": 1.0})
    with pytest.raises(ZeroDivisionError):
        file.measure(Roll(2), lambda: {"value": 1 / 0})
    assert list(json.loads(path.read_text()).values()) == [{"value": 1.0}]


def test_trials_of_two_processes_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "rolls.json"
    one, other = (script("trials.py").TrialFile.open(path) for _ in range(2))
    one.measure(Roll(1), lambda: {"value": 1.0})
    other.measure(Roll(2), lambda: {"value": 2.0})
    assert sorted(each["value"] for each in json.loads(path.read_text()).values()) == [1.0, 2.0]
    assert other.get(Roll(1)) == {"value": 1.0}


def test_an_interrupted_trial_goes_on_with_its_next_round(tmp_path: Path) -> None:
    trials = script("trials.py")
    method, task = tacit.methods.fedavg(rounds=4, cohort=3), tacit.tasks.make_task("synthetic", clients=6)
    file = trials.TrialFile.open(tmp_path / "rolls.json", tmp_path / "runs")
    place = file.place(Roll(1))
    options: dict[str, Any] = {"seed": 0, "workers": 1, "evaluate_every": 4, "randomness": "seeded"}
    begun = tacit.train(method, task, out=place, on_round=lambda state, _: state.round == 2, **options)
    assert begun.state.round == 2

    def go_on() -> dict[str, float]:
        whole, run = tacit.train(method, task, **options), trials.train(method, task, 0, place, randomness="seeded")
        assert run.history[:2] == begun.history
        assert torch.equal(run.state.weights, whole.state.weights)
        return dict(run.metrics)

    file.measure(Roll(1), go_on)
    assert not place.exists(), "it is kept only until there is a result"


def test_methods_are_compared_over_the_seeds_that_both_have() -> None:
    tuning = script("frontier/tuning.py")
    one, other = ({0: 0.5, 2: 0.7}, {1: 0.9, 2: 0.4, 3: 0.1})
    cells = [tuning.Cell(name, 1.0, {}, values, ()) for name, values in (("one", one), ("other", other))]
    assert tuning.differences(cells, "one").splitlines()[-1] == "| other | 0.3 |"


def contender(name: str, *tuned: str) -> Any:
    return script("frontier/tuning.py").Contender(name, lambda *_: None, tuned)


def test_every_contender_and_every_budget_has_the_same_settings() -> None:
    tuning = script("frontier/tuning.py")
    problem = tuning.PROBLEMS["covid-mx"]
    few, all_of_them = contender("few", "bound", "length"), contender("all", *tuning.NAMES)
    for epsilon in (0.25, 8.0):
        pairs = zip(few.tuning(epsilon, 8, problem), all_of_them.tuning(1.0, 8, problem), strict=True)
        assert all(set(one.settings) <= set(two.settings) for one, two in pairs)
    assert few.tuning(1.0, 3, problem) == few.tuning(1.0, 8, problem)[:3]


@pytest.mark.parametrize(("name", "ends"), [("length", "LENGTHS"), ("ratio", "RATIOS"), ("bound", "BOUNDS")])
def test_settings_are_spread_over_their_range_and_not_at_its_ends(name: str, ends: str) -> None:
    tuning = script("frontier/tuning.py")
    low, high = getattr(tuning, ends)
    settings = [dict(contender("all", name).settings(number, tuning.PROBLEMS["covid-mx"])) for number in range(8)]
    at = sorted(math.log(each[name] / low) / math.log(high / low) for each in settings)
    assert 0 < at[0] < 0.3
    assert 0.7 < at[-1] < 1
    assert len(set(at)) == 8


def test_the_best_on_the_validation_part_is_chosen_and_what_diverged_is_not(tmp_path: Path) -> None:
    tuning, one = script("frontier/tuning.py"), contender("one", "length")
    problem, file = tuning.PROBLEMS["covid-mx"], script("trials.py").TrialFile.open(tmp_path / "trials.json")
    made = tuning.Results(problem, file, file, 3, seeds=4)
    trials = one.tuning(1.0, 3, problem)
    results: list[dict[str, float]] = [{"auroc": 0.6}, {"auroc": 0.7}, {"diverged": 1.0}]
    for trial, result in zip(trials[:2], results[:2], strict=True):
        file.measure(trial, lambda result=result: result)
    assert made.chosen(one, 1.0) is None, "one trial is missing"
    file.measure(trials[2], lambda: results[2])
    best = made.chosen(one, 1.0)
    assert best == trials[1]
    assert {trial.part for trial in tuning.finals(best, 4)} == {"test"}
    assert [trial.seed for trial in tuning.finals(best, 4)] == [0, 1, 2, 3]
    assert best.seed not in {trial.seed for trial in tuning.finals(best, 99)}


def test_a_large_problem_has_the_settings_that_a_small_one_has_chosen(tmp_path: Path) -> None:
    tuning, one, store = script("frontier/tuning.py"), contender("one", "length"), script("trials.py").TrialFile
    large = tuning.PROBLEMS["fashion-mnist-cnn"]
    assert large.tuned_as in tuning.PROBLEMS
    small, own = (store.open(tmp_path / name) for name in ("small.json", "own.json"))
    results = tuning.Results(large, own, small, 2)
    for trial, accuracy in zip(one.tuning(1.0, 2, large), (0.8, 0.7), strict=True):
        small.measure(trial, lambda accuracy=accuracy: {"accuracy": accuracy})
    best = results.chosen(one, 1.0)
    assert best == one.tuning(1.0, 2, large)[0]
    assert results.cells([one], [1.0]) == []
    own.measure(tuning.finals(best, 3)[0], lambda: {"accuracy": 0.9})
    (cell,) = results.cells([one], [1.0])
    assert (cell.values, cell.settings) == ({0: 0.9}, dict(best.settings))
    assert results.progress([(one, 1.0)]) == script("trials.py").Progress(done=1, left=2)
