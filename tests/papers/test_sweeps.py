import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import optuna
import pytest
import safetensors.torch
import torch

from tacit import tasks
from tacit.cli import main
from tacit.errors import UserError
from tacit.papers.sweeps import read_sweep
from tacit.papers.validation import divide
from tacit.runs.directory import MANIFEST, MODEL, read_manifest

SMALL = """
method = "fedavg"
seeds = [0, 1]
[args]
rounds = 2
epochs = 1
cohort = 3
[task-args]
clients = 10
"""
TWELVE = SMALL + '[sweep]\nchoose = "loss"\n[sweep.args]\nlr = [0.02, 0.1, 0.3]\ncohort = [2, 4]\n'


def sweep_file(folder: Path, text: str) -> Path:
    file = folder / "rates.toml"
    file.write_text(text)
    return file


def labels(folder: Path, text: str) -> list[str]:
    return [point.label for point in read_sweep(sweep_file(folder, text), folder / "out").points]


def test_a_grid_has_all_combinations_and_each_has_all_seeds(tmp_path: Path) -> None:
    sweep = read_sweep(sweep_file(tmp_path, TWELVE), tmp_path / "out")
    assert [point.label for point in sweep.points][:3] == ["lr=0.02 cohort=2", "lr=0.02 cohort=4", "lr=0.1 cohort=2"]
    assert len(sweep.jobs) == 12
    assert sweep.jobs[1].directory == tmp_path / "out" / "lr=0.02-cohort=2" / "seed-1"
    assert sweep.jobs[-1].experiment.args["cohort"] == 4


def test_random_trials_follow_from_their_seed(tmp_path: Path) -> None:
    ranges = "[sweep.args]\nlr = { low = 0.001, high = 1.0, log = true }\ncohort = { low = 2, high = 9 }\n"
    text = f"{SMALL}[sweep]\ntrials = 40\n{ranges}"
    found = labels(tmp_path, text)
    assert len(found) == 40
    assert labels(tmp_path, text) == found
    assert labels(tmp_path, text.replace("trials = 40", "trials = 40\nseed = 1")) != found
    rates = [float(label.split()[0].removeprefix("lr=")) for label in found]
    assert all(0.001 <= rate <= 1 for rate in rates)
    assert 8 < sum(rate < 0.03 for rate in rates) < 32  # half of them, evenly in logarithms
    assert {label.split()[1] for label in found} <= {f"cohort={size}" for size in range(2, 10)}


@pytest.mark.parametrize(
    ("table", "why"),
    [
        ("", r"Expected a table \[sweep\] in .*rates.toml. Without one, run it with tacit run"),
        ("[sweep]", "Expected values to try in rates"),
        (
            "[sweep]\nvalidation = 0\n[sweep.args]\nlr = [1]",
            r"Expected validation=0 .* both parts of the held-out data",
        ),
        ("[sweep]\nvalidation = 1\n[sweep.args]\nlr = [1]", r"Expected validation=1 of .* in \(0, 1\)"),
        ("[sweep.args]\nlr = { low = 0.1, high = 1 }", "a range needs trials"),
        ("[sweep]\ntrials = 2\n[sweep.args]\nlr = { low = 2, high = 1 }", "Expected low < high for lr of rates"),
        ("[sweep.args]\nlr = []", "Expected a list of values for lr of rates"),
        ("[sweep.args]\nrl = [1]", "got 'rl'. Did you mean 'lr'"),
        ("[sweep.args]\nlr = [1]\n[sweep.task-args]\nclient = [5]", "got 'client'. Did you mean 'clients'"),
        ("[sweep]\ntrails = 3", "got 'trails'. Did you mean 'trials'"),
    ],
)
def test_what_cannot_be_swept_is_refused_before_anything_runs(table: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=why):
        assert read_sweep(sweep_file(tmp_path, SMALL + table), tmp_path / "out").points == []
    assert not (tmp_path / "out").exists()


def test_the_parts_of_the_held_out_data_have_nothing_in_common() -> None:
    task = tasks.make_task("digits", clients=10)
    assert task.test is not None
    one, two = divide(task, 0.25)
    assert one.test is not None
    assert two.test is not None
    assert len(one.test[1]) == round(0.25 * len(task.test[1]))
    both = torch.cat([one.test[0], two.test[0]]).flatten(1)
    assert sorted(both.sum(1).tolist()) == sorted(task.test[0].flatten(1).sum(1).tolist())
    again, _ = divide(task, 0.25)
    assert again.test is not None
    assert torch.equal(again.test[0], one.test[0])


def finished(folder: Path) -> int:
    return sum(read_manifest(file.parent).status == "finished" for file in folder.rglob(MANIFEST))


@pytest.mark.law("interrupted runs")
def test_a_sweep_that_was_killed_goes_on_and_gives_the_same_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Killed half-way in one process and finished in another, or two runs at a time: what is printed is equal.

    The figures on the test part are those of the chosen models, and the validation part chose them.
    """
    monkeypatch.chdir(tmp_path)
    file = sweep_file(tmp_path, TWELVE)
    command = [sys.executable, "-m", "tacit.cli", "sweep", str(file), "--out", "killed", "--workers", "1"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    until = time.monotonic() + 120
    while finished(Path("killed")) < 5 and process.poll() is None and time.monotonic() < until:
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert 5 <= finished(Path("killed")) < 12
    assert main(["sweep", str(file), "--out", "killed", "--workers", "1"]) == 0
    resumed = capsys.readouterr()
    assert "of 12 runs were already finished." in resumed.err
    assert main(["sweep", str(file), "--out", "whole", "--processes", "2"]) == 0
    assert capsys.readouterr().out == resumed.out.replace("killed", "whole")
    assert main(["sweep", str(file), "--out", "whole", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    means = [group["metrics"]["loss"]["mean"] for group in document["groups"]]
    assert means == sorted(means)
    assert document["chosen"] == document["groups"][0]["label"]
    assert "not accounted for" in document["note"]
    assert document["test"]["accuracy"]["mean"] == pytest.approx(accuracy_by_hand(document["groups"][0]["directories"]))


def accuracy_by_hand(directories: list[str]) -> float:
    task = tasks.make_task("digits", clients=10)
    test = divide(task, 0.5)[1].test
    assert test is not None
    accuracies = []
    for directory in directories:
        tensors = safetensors.torch.load_file(Path(directory, MODEL))
        assert callable(task.model)
        model = task.model()
        model.load_state_dict(tensors)
        accuracies.append(float((model.eval()(test[0]).argmax(1) == test[1]).double().mean()))
    return sum(accuracies) / len(accuracies)


def test_another_experiment_in_the_same_folder_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    file = sweep_file(tmp_path, SMALL + "[sweep.args]\nlr = [0.1]\n")
    assert main(["sweep", str(file), "--out", "out", "--workers", "1"]) == 0
    file.write_text(file.read_text().replace("rounds = 2", "rounds = 3"))
    capsys.readouterr()
    assert main(["sweep", str(file), "--out", "out", "--workers", "1"]) == 2
    assert "is not the one that rates describes now: rounds was 2, is 3" in capsys.readouterr().err


OWN = """
import tacit
from tacit import Method, methods

def mine(rounds: int = 1) -> Method:
    return methods.fedavg(rounds=rounds, cohort=2, epochs=1)
"""


def test_the_file_of_a_method_runs_only_with_trust(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.py").write_text(OWN)
    text = f'method = "{tmp_path}/mine.py:mine"\n[task-args]\nclients = 4\n[sweep]\n[sweep.args]\nrounds = [1, 2]\n'
    line = ["sweep", str(sweep_file(tmp_path, text)), "--out", str(tmp_path / "out"), "--workers", "1"]
    assert main(line) == 2
    assert "if you trust it, add --trust" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert main([*line, "--trust"]) == 0
    assert "Chosen by" in capsys.readouterr().out


LEARNING = (
    SMALL
    + """[sweep]
trials = 6
sampler = "tpe"
choose = "loss"
[sweep.args]
lr = { low = 0.001, high = 1.0, log = true }
"""
)


def test_a_sampler_that_learns_and_a_pruner_try_as_many_as_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The study has every trial; one that is stopped early is not chosen, and the same command tries nothing again."""
    monkeypatch.chdir(tmp_path)
    text = LEARNING.replace("trials = 6", 'trials = 6\npruner = "median"')
    line = ["sweep", str(sweep_file(tmp_path, text)), "--out", "out", "--workers", "1", "--json"]
    assert main(line) == 0
    first = json.loads(capsys.readouterr().out)
    trials = optuna.load_study(study_name=None, storage="sqlite:///out/optuna.db").trials
    states = [trial.state.name for trial in trials]
    assert len(states) == 6
    assert len(first["groups"]) == states.count("COMPLETE") >= 5  # the pruner lets five pass
    assert set(states) <= {"COMPLETE", "PRUNED"}
    best = first["groups"][0]["metrics"]["loss"]["mean"]
    assert min(trial.value for trial in trials if trial.value is not None) == pytest.approx(best)
    assert main(line) == 0
    assert json.loads(capsys.readouterr().out) == first
    assert len(optuna.load_study(study_name=None, storage="sqlite:///out/optuna.db").trials) == 6


def test_a_run_of_a_sweep_that_was_removed_is_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    file = sweep_file(tmp_path, SMALL + "[sweep.args]\nlr = [0.1, 0.2]\n")
    line = ["sweep", str(file), "--out", "out", "--workers", "1"]
    assert main(line) == 0
    before = capsys.readouterr().out
    shutil.rmtree("out/lr=0.1/seed-1")
    assert main(line) == 0
    assert capsys.readouterr().out == before


def test_a_metric_that_is_not_evaluated_is_refused_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    file = sweep_file(tmp_path, SMALL + '[sweep]\nchoose = "auc"\n[sweep.args]\nlr = [0.1]\n')
    assert main(["sweep", str(file), "--out", "out"]) == 2
    assert "Expected choose of rates in " in capsys.readouterr().err
    assert not [*Path("out").rglob(MANIFEST)]


def test_without_optuna_there_is_one_sentence(tmp_path: Path) -> None:
    code = (
        "import importlib.util; known = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *more: None if name == 'optuna' else known(name, *more)\n"
        "from tacit.cli import main; raise SystemExit(main(['sweep', 'rates.toml']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 2
    assert (
        done.stderr == "tacit: Expected Optuna, which a sweep needs. Install it with: pip install 'tacit-fl[sweep]'.\n"
    )
