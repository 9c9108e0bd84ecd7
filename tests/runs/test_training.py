import errno
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import nn

import tacit
from tacit.core import Report
from tacit.errors import RunError, StorageError, UserError
from tacit.runs import checkpoint
from tacit.runs.directory import CHECKPOINT, MODEL, read_manifest, read_rounds
from tacit.runs.run import RunSpec
from tacit.runs.training import follow

ROUNDS = 6
METHOD = tacit.Method(
    name="mine",
    rounds=ROUNDS,
    sampler=tacit.pieces.FixedSize(3),
    trainer=tacit.pieces.Sgd(lr=0.1, steps=2, batch_size=4),
    server=tacit.pieces.Momentum(0.5),
)


def linear() -> nn.Module:
    return nn.Linear(4, 3)


def make_task(shift: float = 0.0, model: Callable[[], nn.Module] = linear) -> tacit.Task:
    generator = torch.Generator().manual_seed(0)
    sizes = (5, 3, 9, 4, 6)
    parts = [(torch.randn(n, 4, generator=generator) + shift, torch.arange(n) % 3) for n in sizes]
    test = (torch.randn(20, 4, generator=generator), torch.arange(20) % 3)
    return tacit.Task(model=model, clients=parts, test=test, name="tiny")


TASK = make_task()


def timeless(history: tuple[Report, ...]) -> list[Report]:
    return [replace(report, seconds=0.0) for report in history]


@pytest.fixture(scope="module")
def whole() -> tacit.Run:
    return tacit.train(METHOD, TASK, seed=5, workers=1, randomness="seeded")


def assert_same(run: tacit.Run, other: tacit.Run) -> None:
    assert run.state.round == other.state.round == ROUNDS
    assert torch.equal(run.state.weights, other.state.weights)
    assert run.state.memory.keys() == other.state.memory.keys()
    assert all(torch.equal(run.state.memory[name], other.state.memory[name]) for name in run.state.memory)
    assert timeless(run.history) == timeless(other.history)
    assert run.bytes == other.bytes


def test_a_run_holds_model_history_and_bytes(whole):
    assert [report.round for report in whole.history] == [1, 2, 3, 4, 5, 6]
    assert isinstance(whole.model, nn.Linear)
    assert not whole.model.training
    weights = torch.cat([whole.model.weight.flatten(), whole.model.bias]).detach()
    assert torch.equal(weights, whole.state.weights)
    assert TASK.test is not None
    right = (whole.model(TASK.test[0]).argmax(1) == TASK.test[1]).float().mean()
    assert whole.metrics["accuracy"] == pytest.approx(float(right))
    frame = 24 + 12 + 15 * 4  # a header, a part's header, the weights in float32
    assert whole.bytes.up == whole.bytes.down == ROUNDS * 3 * frame
    assert whole.directory is None


def test_a_run_builds_its_model_once(tmp_path: Path) -> None:
    built = 0

    def counted() -> nn.Module:
        nonlocal built
        built += 1
        return nn.Linear(4, 3)

    run = tacit.train(METHOD, make_task(model=counted), workers=1, out=tmp_path / "run", randomness="seeded")
    assert isinstance(run.model, nn.Linear)
    assert built == 1


def test_rounds_are_what_train_folds(whole):
    steps = list(tacit.rounds(METHOD, TASK, seed=5, workers=1, randomness="seeded"))
    assert timeless(tuple(report for _, report in steps)) == timeless(whole.history)
    assert torch.equal(steps[-1][0].weights, whole.state.weights)


def test_files_change_nothing_and_hold_everything(whole, tmp_path):
    directory = tmp_path / "run"
    run = tacit.train(METHOD, TASK, seed=5, workers=1, out=directory, randomness="seeded")
    assert run.directory == directory
    assert_same(run, whole)
    assert timeless(read_rounds(directory)) == timeless(whole.history)
    fresh = nn.Linear(4, 3)
    fresh.load_state_dict(safetensors.torch.load_file(directory / MODEL))
    assert torch.equal(fresh.weight, whole.model.weight)
    manifest = read_manifest(directory)
    assert manifest.status == "finished"
    assert manifest.method.read() == METHOD
    assert str(tmp_path) not in (directory / "manifest.json").read_text()


@pytest.mark.parametrize("done", range(ROUNDS + 1))
@pytest.mark.parametrize("how", ["interrupt", "close"])
def test_a_stopped_run_resumes_to_the_same_result(whole, tmp_path, done, how):
    steps = follow(RunSpec(method=METHOD, task=TASK, seed=5, randomness="seeded"), workers=1, out=tmp_path / "run")
    for _ in range(done + 1):
        next(steps)
    if how == "interrupt":
        with pytest.raises(KeyboardInterrupt):
            steps.throw(KeyboardInterrupt)
    steps.close()
    assert read_manifest(tmp_path / "run").status == "interrupted"
    assert_same(
        tacit.train(METHOD, TASK, seed=5, workers=1, out=tmp_path / "run", resume=True, randomness="seeded"), whole
    )
    assert timeless(read_rounds(tmp_path / "run")) == timeless(whole.history)


def test_resuming_a_finished_run_changes_nothing(whole, tmp_path):
    directory = tmp_path / "run"
    tacit.train(METHOD, TASK, seed=5, workers=1, out=directory, randomness="seeded")
    files = {path.name: path.read_bytes() for path in directory.iterdir()}
    assert_same(
        tacit.train(METHOD, TASK, seed=5, workers=1, out=tmp_path / "run", resume=True, randomness="seeded"), whole
    )
    assert {path.name: path.read_bytes() for path in directory.iterdir()} == files


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"seed": 6}, "another seed: 5, not 6"),
        ({"evaluate_every": 2}, "another evaluate_every"),
        ({"method": replace(METHOD, rounds=9)}, "another method"),
        ({"task": make_task(shift=1.0)}, "another task"),
        ({"task": make_task(model=lambda: nn.Sequential(nn.Linear(4, 2), nn.Linear(2, 3)))}, "another task"),
    ],
)
def test_another_run_cannot_resume_here(tmp_path, changes, word):
    plan = RunSpec(method=METHOD, task=TASK, seed=5, randomness="seeded")
    steps = follow(plan, workers=1, out=tmp_path / "run")
    next(steps)
    next(steps)
    steps.close()
    with pytest.raises(RunError, match=word):
        next(follow(replace(plan, **changes), workers=1, out=tmp_path / "run", resume=True))
    assert read_manifest(tmp_path / "run").status == "interrupted"


def test_evaluate_every_n_rounds_and_after_the_last():
    run = tacit.train(METHOD, TASK, workers=1, evaluate_every=4, randomness="seeded")
    assert [report.round for report in run.history if report.metrics] == [4, ROUNDS]
    assert run.metrics == run.history[-1].metrics


@pytest.mark.parametrize(
    ("method", "options", "error"),
    [
        (replace(METHOD, sampler=tacit.pieces.FixedSize(6)), {}, "Expected a cohort of size=6 <= population=5"),
        (METHOD, {"evaluate_every": 0}, "evaluate_every=0 >= 1"),
        (METHOD, {"resume": True, "out": None}, "directory of the run to resume"),
    ],
)
def test_a_run_that_cannot_start_leaves_no_files(tmp_path, method, options, error):
    with pytest.raises(UserError, match=error):
        tacit.train(method, TASK, workers=1, **{"out": tmp_path / "run", **options}, randomness="seeded")
    assert list(tmp_path.iterdir()) == []


def test_a_diverged_run_keeps_its_last_good_state(tmp_path):
    x = torch.randn(8, 2, generator=torch.Generator().manual_seed(0))
    task = tacit.Task(model=lambda: nn.Linear(2, 1), clients=[(x, x[:, :1])] * 3, loss=tacit.MeanSquared())
    wild = replace(METHOD, rounds=200, trainer=tacit.pieces.Sgd(lr=1.2, steps=2))
    with pytest.raises(tacit.TrainingError, match="diverged"):
        tacit.train(wild, task, workers=1, out=tmp_path / "run", randomness="seeded")
    assert read_manifest(tmp_path / "run").status == "failed"
    last = checkpoint.read(tmp_path / "run" / CHECKPOINT)
    assert last is not None
    assert last.round == len(read_rounds(tmp_path / "run")) > 0
    assert torch.isfinite(last.weights).all()


def test_a_full_disk_leaves_a_run_that_can_be_resumed(whole, tmp_path, monkeypatch):
    plan = RunSpec(method=METHOD, task=TASK, seed=5, randomness="seeded")
    steps = follow(plan, workers=1, out=tmp_path / "run")
    for _ in range(4):
        next(steps)
    with monkeypatch.context() as patch:

        def no_space(*args: object) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        patch.setattr(os, "fsync", no_space)
        with pytest.raises(StorageError, match="No space left"):
            list(steps)
    assert not (tmp_path / "run" / MODEL).exists()
    assert not (tmp_path / "run" / CHECKPOINT).exists()
    assert_same(
        tacit.train(METHOD, TASK, seed=5, workers=1, out=tmp_path / "run", resume=True, randomness="seeded"), whole
    )


@pytest.mark.parametrize(
    "weights",
    [torch.zeros(14), torch.zeros(2, 15), torch.zeros(15, dtype=torch.int64), torch.full((15,), torch.inf)],
    ids=["shorter", "two models", "integers", "infinite"],
)
def test_a_checkpoint_of_another_model_is_refused(tmp_path, weights):
    steps = follow(RunSpec(method=METHOD, task=TASK, seed=5, randomness="seeded"), workers=1, out=tmp_path / "run")
    for _ in range(4):
        next(steps)
    steps.close()
    done = checkpoint.read(tmp_path / "run" / CHECKPOINT)
    assert done is not None
    checkpoint.write(tmp_path / "run" / CHECKPOINT, replace(done, weights=weights))
    with pytest.raises(RunError, match=r"Expected finite weights of shape \(15,\) in the checkpoint"):
        tacit.train(METHOD, TASK, seed=5, workers=1, out=tmp_path / "run", resume=True, randomness="seeded")
