import errno
import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest
import safetensors.torch
import torch

from tacit.core import Report, State
from tacit.errors import RunError, StorageError
from tacit.runs import directory as results
from tacit.runs.directory import CHECKPOINT, MANIFEST, MODEL, ROUNDS, RunDirectory, read_manifest, read_rounds
from tacit.runs.manifest import FORMAT, Manifest, MethodEntry, TaskEntry, versions

TASK = TaskEntry(name="t", args={}, clients=2, samples=4, parameters=3, loss="L()", data="00")
RUN = Manifest(
    method=MethodEntry(name="m", args={"lr": 0.1}, repr="Method()"),
    task=TASK,
    seed=1,
    device="cpu",
    evaluate_every=1,
    versions=versions(),
)
HOLD = """
import fcntl, sys
file = open(sys.argv[1], "ab+")
fcntl.lockf(file, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


def state(done: int) -> State:
    return State(done, torch.full((3,), float(done)))


def report(number: int, **changes: object) -> Report:
    made = Report(number, (1, 4), (4,), (10, 10), (20, 20), 0.1 + number, 0.3, 0.2, {"accuracy": 1 / 3}, 0.5)
    return replace(made, **changes)


def test_what_a_kill_left_of_a_manifest_is_no_run(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".manifest.json.partial").write_text("{")
    directory = RunDirectory.create(tmp_path / "run", RUN)
    directory.close()
    assert {path.name for path in (tmp_path / "run").iterdir()} == {"manifest.json", "rounds.jsonl"}


@pytest.fixture
def run(tmp_path):
    """A run of which three rounds were noted and two checkpointed."""
    directory = RunDirectory.create(tmp_path / "run", RUN)
    for number in (1, 2, 3):
        directory.record(state(number), report(number))
        if number == 2:
            directory.checkpoint(state(2))
    directory.close()
    return tmp_path / "run"


def test_a_finished_run_leaves_four_files(tmp_path):
    directory = RunDirectory.create(tmp_path / "run", RUN)
    directory.record(state(1), report(1))
    tied = torch.ones(2)
    directory.finish(state(1), {"a.weight": tied, "b.weight": tied, "c": torch.eye(2).T})
    directory.close()
    assert {path.name for path in directory.path.iterdir()} == {MANIFEST, ROUNDS, CHECKPOINT, MODEL}
    assert read_manifest(directory.path) == replace(RUN, status="finished")
    assert set(safetensors.torch.load_file(directory.path / MODEL)) == {"a.weight", "b.weight", "c"}


def test_reports_come_back_exactly_as_valid_json(tmp_path):
    strange = report(1, norm=float("nan"), metrics={"auroc": float("inf"), "loss": 0.1 + 0.2}, refused=())
    directory = RunDirectory.create(tmp_path / "run", RUN)
    directory.record(state(1), strange)
    directory.close()
    (line,) = (directory.path / ROUNDS).read_text().splitlines()
    json.loads(line, parse_constant=pytest.fail)
    (back,) = read_rounds(directory.path)
    assert replace(back, norm=0.0) == replace(strange, norm=0.0)
    assert back.norm != back.norm


@pytest.mark.parametrize("torn", [b"", b'{"round": 4, "cli', b'{"round": 4}\n{"round'])
def test_going_on_cuts_the_rounds_behind_the_checkpoint(run, torn):
    with (run / ROUNDS).open("ab") as file:
        file.write(torn)
    (run / ".model.safetensors.partial").write_bytes(b"torn")
    directory = RunDirectory.open(run)
    directory.record(state(3), report(3, norm=7.0))
    directory.close()
    assert directory.history == (report(1), report(2))
    assert torch.equal(directory.state.weights, state(2).weights)
    assert read_rounds(run) == (report(1), report(2), report(3, norm=7.0))
    assert not (run / ".model.safetensors.partial").exists()


def test_a_reader_leaves_out_a_torn_line(run):
    with (run / ROUNDS).open("ab") as file:
        file.write(b'{"round": 4, "cli')
    assert len(read_rounds(run)) == 3


def test_without_a_checkpoint_a_run_goes_on_from_the_start(run):
    (run / CHECKPOINT).unlink()
    directory = RunDirectory.open(run)
    directory.close()
    assert directory.state is None
    assert directory.history == ()
    assert (run / ROUNDS).read_bytes() == b""


def test_checkpoints_are_written_only_now_and_then(tmp_path, monkeypatch):
    directory = RunDirectory.create(tmp_path / "run", RUN)
    directory.record(state(1), report(1))
    assert not (directory.path / CHECKPOINT).exists()
    monkeypatch.setattr(results, "SECONDS_BETWEEN_CHECKPOINTS", 0.0)
    directory.record(state(2), report(2))
    directory.close()
    assert directory.state.round == 2
    assert (directory.path / CHECKPOINT).exists()


def without_round(path):
    lines = (path / ROUNDS).read_text().splitlines(keepends=True)
    (path / ROUNDS).write_text("".join(lines[1:]))


def with_manifest(**changes: object):
    def change(path):
        (path / MANIFEST).write_text(json.dumps({**json.loads((path / MANIFEST).read_text()), **changes}))

    return change


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda path: (path / MANIFEST).unlink(), "holds no run"),
        (lambda path: (path / MANIFEST).write_text("{"), "not a run's manifest"),
        (lambda path: (path / MANIFEST).write_text("[]"), "not a run's manifest"),
        (with_manifest(format=FORMAT + 1), f"another version of Tacit .format {FORMAT + 1}"),
        (with_manifest(method={"name": "m"}), "lacks a part"),
        (with_manifest(extra=1), "lacks a part"),
        (with_manifest(seed="1"), "damaged seed"),
        (with_manifest(status="lost"), "damaged seed or status"),
        (with_manifest(versions={**versions(), "tacit": "0.0.1"}), "another version, tacit 0.0.1"),
        (with_manifest(versions={**versions(), "torch": "1.0"}), "another version, torch 1.0"),
        (lambda path: (path / CHECKPOINT).write_bytes((path / CHECKPOINT).read_bytes()[:-1]), "cut or changed"),
        (without_round, "Line 1 of .* tells of round 2"),
        (lambda path: (path / ROUNDS).write_text(""), "Line 1 of .* missing or damaged"),
    ],
)
def test_damaged_runs_are_refused_and_left_as_they_are(run, damage, words):
    damage(run)
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    with pytest.raises(RunError, match=words):
        RunDirectory.open(run)
    assert {path.name: path.read_bytes() for path in run.iterdir()} == before


def test_directories_with_anything_in_them_are_refused(tmp_path):
    (tmp_path / "mine").write_text("keep")
    with pytest.raises(RunError, match="Go on with --resume"):
        RunDirectory.create(tmp_path, RUN)
    with pytest.raises(RunError, match="is a file"):
        RunDirectory.create(tmp_path / "mine", RUN)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_two_processes_cannot_write_one_run(run):
    held = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(run / ROUNDS)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with held:
        assert held.stdout.readline() == b"held\n"
        with pytest.raises(RunError, match="by another process"):
            RunDirectory.open(run)
        held.stdin.close()
    RunDirectory.open(run).close()


def no_space(*args: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_at_the_start_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(StorageError, match="No space left"):
        RunDirectory.create(tmp_path / "run", RUN)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_later_keeps_the_last_checkpoint(run, monkeypatch):
    directory = RunDirectory.open(run)
    directory.record(state(3), report(3))
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", no_space)
        with pytest.raises(StorageError, match="No space left"):
            directory.checkpoint(state(3))
    directory.close()
    again = RunDirectory.open(run)
    again.close()
    assert again.state.round == 2
    assert not any(path.name.endswith(".partial") for path in run.iterdir())


def test_a_line_that_does_not_fit_is_taken_back(run, monkeypatch):
    directory = RunDirectory.open(run)
    before = (run / ROUNDS).read_bytes()
    monkeypatch.setattr(directory, "_rounds", Short(directory._rounds))
    with pytest.raises(StorageError, match="No space left"):
        directory.record(state(3), report(3))
    directory.close()
    assert (run / ROUNDS).read_bytes() == before


class Short:
    """A file on a disk that fills up in the middle of a line."""

    def __init__(self, file):
        self.file = file

    def write(self, line):
        self.file.write(line[: len(line) // 2])
        self.file.flush()
        no_space()

    def __getattr__(self, name):
        return getattr(self.file, name)
