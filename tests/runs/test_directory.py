import errno
import fcntl
import json
import multiprocessing
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import IO

import pytest
import safetensors.torch
import torch

from tacit.core import Report, State
from tacit.errors import RunError, StorageError
from tacit.runs import directory as results
from tacit.runs.directory import (
    CHECKPOINT,
    MANIFEST,
    MODEL,
    ROUNDS,
    RoundsReader,
    RunDirectory,
    read_manifest,
    read_rounds,
)
from tacit.runs.manifest import MANIFEST_FORMAT, Manifest, MethodEntry, TaskEntry, versions

TASK = TaskEntry(name="t", args={}, clients=2, samples=4, parameters=3, loss="L()", data=f"keyed:{0:08x}:{0:032x}")
RUN = Manifest(
    method=MethodEntry(name="m", args={"lr": 0.1}, form={"type": "Method"}),
    task=TASK,
    seed=1,
    device="cpu",
    evaluate_every=1,
    versions=versions(),
)


def state(done: int) -> State:
    return State(done, torch.full((3,), float(done)))


def report(number: int, norm: float = 1.1, metrics: Mapping[str, float] | None = None) -> Report:
    metrics = {"accuracy": 1 / 3} if metrics is None else metrics
    return Report(number, (1, 4), (4,), (10, 10), (20, 20), norm, 0.3, 0.2, metrics, 0.5)


def checkpointed(directory: RunDirectory) -> State:
    assert directory.state is not None
    return directory.state


def test_a_partial_manifest_that_a_kill_left_is_no_run(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".manifest.json.partial").write_text("{")
    directory = RunDirectory.create(tmp_path / "run", RUN)
    directory.close()
    assert {path.name for path in (tmp_path / "run").iterdir()} == {"manifest.json", "rounds.jsonl"}


@pytest.fixture
def run(tmp_path):
    """A run with three recorded rounds and a checkpoint after the second."""
    directory = RunDirectory.create(tmp_path / "run", RUN)
    for number in (1, 2, 3):
        directory.record(state(number), report(number))
        if number == 2:
            directory.checkpoint(state(2))
    directory.close()
    return tmp_path / "run"


def test_a_finished_run_has_four_files(tmp_path):
    directory = RunDirectory.create(tmp_path / "run", RUN)
    directory.record(state(1), report(1))
    tied = torch.ones(2)
    directory.finish(state(1), {"a.weight": tied, "b.weight": tied, "c": torch.eye(2).T})
    directory.close()
    assert {path.name for path in directory.path.iterdir()} == {MANIFEST, ROUNDS, CHECKPOINT, MODEL}
    assert read_manifest(directory.path) == replace(RUN, status="finished")
    assert set(safetensors.torch.load_file(directory.path / MODEL)) == {"a.weight", "b.weight", "c"}


def test_reports_round_trip_exactly_as_valid_json(tmp_path):
    strange = report(1, norm=float("nan"), metrics={"auroc": float("inf"), "loss": 0.1 + 0.2})
    strange = replace(strange, rejected=())
    directory = RunDirectory.create(tmp_path / "run", RUN)
    directory.record(state(1), strange)
    directory.close()
    (line,) = (directory.path / ROUNDS).read_text().splitlines()
    json.loads(line, parse_constant=pytest.fail)
    (back,) = read_rounds(directory.path)
    assert replace(back, norm=0.0) == replace(strange, norm=0.0)
    assert back.norm != back.norm


@pytest.mark.parametrize("incomplete", [b"", b'{"round": 4, "cli', b'{"round": 4}\n{"round'])
def test_resuming_removes_the_rounds_after_the_checkpoint(run, incomplete):
    with (run / ROUNDS).open("ab") as file:
        file.write(incomplete)
    (run / ".model.safetensors.partial").write_bytes(b"incomplete")
    directory = RunDirectory.open(run)
    directory.record(state(3), report(3, norm=7.0))
    directory.close()
    assert directory.history == (report(1), report(2))
    assert torch.equal(checkpointed(directory).weights, state(2).weights)
    assert read_rounds(run) == (report(1), report(2), report(3, norm=7.0))
    assert not (run / ".model.safetensors.partial").exists()


def test_reading_ignores_an_incomplete_line(run):
    with (run / ROUNDS).open("ab") as file:
        file.write(b'{"round": 4, "cli')
    assert len(read_rounds(run)) == 3


def test_without_a_checkpoint_a_run_resumes_from_the_start(run):
    (run / CHECKPOINT).unlink()
    directory = RunDirectory.open(run)
    directory.close()
    assert directory.state is None
    assert directory.history == ()
    assert (run / ROUNDS).read_bytes() == b""


def test_checkpoints_are_written_seconds_apart(tmp_path, monkeypatch):
    directory = RunDirectory.create(tmp_path / "run", RUN)
    directory.record(state(1), report(1))
    assert not (directory.path / CHECKPOINT).exists()
    monkeypatch.setattr(results, "SECONDS_BETWEEN_CHECKPOINTS", 0.0)
    directory.record(state(2), report(2))
    directory.close()
    assert checkpointed(directory).round == 2
    assert (directory.path / CHECKPOINT).exists()


def without_round(path):
    lines = (path / ROUNDS).read_text().splitlines(keepends=True)
    (path / ROUNDS).write_text("".join(lines[1:]))


def with_manifest(**changes: object):
    def change(path):
        (path / MANIFEST).write_text(json.dumps({**json.loads((path / MANIFEST).read_text()), **changes}))

    return change


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: (path / MANIFEST).unlink(), "which has no manifest.json"),
        (lambda path: (path / MANIFEST).write_text("{"), "to be JSON"),
        (lambda path: (path / MANIFEST).write_text("[]"), f"to have format {MANIFEST_FORMAT}, got None"),
        (
            with_manifest(format=MANIFEST_FORMAT + 1),
            f"format {MANIFEST_FORMAT}, got {MANIFEST_FORMAT + 1}.*the version of Tacit that wrote",
        ),
        (with_manifest(method={"name": "m"}), "Expected method of .* to have the key 'args'"),
        (with_manifest(extra=1), "Expected keys of .*, got 'extra'"),
        (with_manifest(seed="1"), "Expected seed of .* to be a whole number, got '1'"),
        (with_manifest(status="lost"), "Expected status of .* in running, interrupted, failed, finished, got 'lost'"),
        (with_manifest(versions={**versions(), "tacit": "0.0.1"}), "another version, tacit 0.0.1"),
        (with_manifest(versions={**versions(), "torch": "1.0"}), "another version, torch 1.0"),
        (lambda path: (path / CHECKPOINT).write_bytes((path / CHECKPOINT).read_bytes()[:-1]), "cut or changed"),
        (without_round, "line 1 of .* to be of round 1, got round 2"),
        (lambda path: (path / ROUNDS).write_text(""), "line 1 of .* to be JSON"),
    ],
)
def test_damaged_runs_are_refused_and_unchanged(run, damage, message):
    damage(run)
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    with pytest.raises(RunError, match=message):
        RunDirectory.open(run)
    assert {path.name: path.read_bytes() for path in run.iterdir()} == before


def test_directories_that_are_not_empty_are_refused(tmp_path):
    (tmp_path / "mine").write_text("keep")
    with pytest.raises(RunError, match="Resume the run with --resume"):
        RunDirectory.create(tmp_path, RUN)
    with pytest.raises(RunError, match="is a file"):
        RunDirectory.create(tmp_path / "mine", RUN)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def _lock(file: Path, locked: "multiprocessing.Queue[None]", done: "multiprocessing.Queue[None]") -> None:
    with file.open("ab+") as rounds:
        fcntl.lockf(rounds, fcntl.LOCK_EX)
        locked.put(None)
        done.get()


def test_two_processes_cannot_write_one_run(run):
    context = multiprocessing.get_context("fork")
    locked, done = context.Queue(), context.Queue()
    other = context.Process(target=_lock, args=(run / ROUNDS, locked, done))
    other.start()
    locked.get(timeout=30)
    with pytest.raises(RunError, match="by another process"):
        RunDirectory.open(run)
    done.put(None)
    other.join()
    RunDirectory.open(run).close()


def no_space(*args: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_at_the_start_leaves_no_files(tmp_path, monkeypatch):
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
    assert checkpointed(again).round == 2
    assert not any(path.name.endswith(".partial") for path in run.iterdir())


def test_an_incomplete_line_on_a_full_disk_is_removed(run, monkeypatch):
    directory = RunDirectory.open(run)
    before = (run / ROUNDS).read_bytes()
    monkeypatch.setattr(directory, "_rounds", FullDisk(directory._rounds))
    with pytest.raises(StorageError, match="No space left"):
        directory.record(state(3), report(3))
    directory.close()
    assert (run / ROUNDS).read_bytes() == before


class FullDisk:
    """A file on a disk that becomes full in the middle of a line."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file = file

    def write(self, line: bytes) -> None:
        self.file.write(line[: len(line) // 2])
        self.file.flush()
        no_space()

    def __getattr__(self, name: str) -> object:
        return getattr(self.file, name)


def test_rounds_are_read_as_they_are_written(tmp_path):
    """Only what was appended is read; an incomplete line waits; a file that a resumed run cut is read again."""
    directory = RunDirectory.create(tmp_path / "run", RUN)
    reader = RoundsReader(tmp_path / "run")
    assert reader.read() == (False, ())
    directory.record(state(1), report(1))
    directory.record(state(2), report(2))
    assert [each.round for each in reader.read()[1]] == [1, 2]
    assert reader.read() == (False, ())
    directory.record(state(3), report(3))
    directory.close()
    whole = (tmp_path / "run" / ROUNDS).read_bytes()
    (tmp_path / "run" / ROUNDS).write_bytes(whole[:-5])
    assert reader.read() == (False, ())
    (tmp_path / "run" / ROUNDS).write_bytes(whole)
    assert [each.round for each in reader.read()[1]] == [3]
    (tmp_path / "run" / ROUNDS).write_bytes(whole[: whole.index(b"\n") + 1])
    again, reports = reader.read()
    assert again
    assert [each.round for each in reports] == [1]


def test_rounds_that_disappeared_are_an_error_of_tacit(tmp_path):
    with pytest.raises(RunError, match=r"Could not read .*rounds\.jsonl: No such file"):
        RoundsReader(tmp_path).read()
