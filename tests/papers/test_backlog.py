"""The backlog runs what is missing, makes room for whoever needs the machine, and loses no round.

Most of these tests are slow: only real processes can be killed, paused and started again.
"""

import importlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from experiments import busy

from tacit.cli import main
from tacit.runs import checkpoint
from tacit.runs.directory import CHECKPOINT, ROUNDS

EXPERIMENTS = Path(__file__).resolve().parents[2] / "experiments"
SLOW = """
import os, time
import tacit, torch
from torch import nn

class Slow(nn.Linear):
    def forward(self, x):
        time.sleep(0.05 * ("AT_ONCE" not in os.environ))
        return super().forward(x)

def slow() -> tacit.Task:
    source = torch.Generator().manual_seed(0)
    *parts, test = [(torch.randn(6, 3, generator=source), torch.arange(6) % 2) for _ in range(5)]
    return tacit.Task(model=lambda: Slow(3, 2), clients=parts, test=test)

def broken() -> tacit.Task:
    raise RuntimeError("the disk is gone")
"""
STUDY = """
title = "A tiny table"
[[rows]]
name = "slow"
method = "fedavg"
task = "experiments/tiny/slow.py:slow"
args = { rounds = 10, cohort = 4, epochs = 1 }
[[rows]]
name = "endless"
method = "fedavg"
task = "experiments/tiny/slow.py:slow"
args = { rounds = 100000, cohort = 4, epochs = 1 }
[[rows]]
name = "quick"
method = "fedavg"
task = "synthetic"
seeds = [0, 1]
args = { rounds = 2, cohort = 4, epochs = 1 }
task-args = { clients = 8 }
[[rows]]
name = "broken"
method = "fedavg"
task = "experiments/tiny/slow.py:broken"
args = { rounds = 2 }
"""
SCRIPT = """
import argparse, sys
from dataclasses import dataclass
from pathlib import Path
sys.path.insert(0, {shared!r})
from trials import Progress, TrialFile

@dataclass(frozen=True)
class Roll:
    die: int

def progress(argv):
    return TrialFile.open(Path("experiments/tiny/rolls.json")).progress([Roll(1), Roll(2)])

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=Path)
    file = TrialFile.open(Path("experiments/tiny/rolls.json"), parser.parse_args().runs)
    for die in (1, 2):
        file.measure(Roll(die), lambda: {{"value": 4.0, "cpu_seconds": 36.0}})
"""


def entry(title: str, group: int, *command: str, hours: float = 0.5, needs: str = "") -> str:
    given = f"needs = {json.dumps(needs)}" if needs else f"command = {json.dumps(command)}\nhours = {hours}"
    return f"[[entries]]\ntitle = {json.dumps(title)}\ngroup = {group}\n{given}\n"


def row(name: str, *more: str) -> tuple[str, ...]:
    return ("tacit", "reproduce", "tiny/table-1", "--rows", name, *more)


@pytest.fixture
def backlog(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(EXPERIMENTS)
    return importlib.import_module("backlog")


@pytest.fixture(autouse=True)
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tree with a tiny study, and a cache of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "experiments" / "tiny"
    folder.mkdir(parents=True)
    (folder / "slow.py").write_text(SLOW)
    (folder / "table-1.toml").write_text(STUDY)
    (folder / "rolls.py").write_text(SCRIPT.format(shared=str(EXPERIMENTS)))
    return tmp_path


@pytest.fixture
def start(tree: Path) -> Iterator[Callable[..., "subprocess.Popen[str]"]]:
    """Start the backlog of a list; what still runs at the end of the test is killed."""
    started: list[subprocess.Popen[str]] = []

    def begin(*entries: str) -> "subprocess.Popen[str]":
        (tree / "experiments" / "backlog.toml").write_text("\n".join(entries))
        command = [sys.executable, str(EXPERIMENTS / "backlog.py"), "--list", "experiments/backlog.toml"]
        command += ["--nice", "0"]  # the other tests leave no time over
        started.append(subprocess.Popen(command, stderr=subprocess.PIPE, text=True))
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()


@pytest.fixture
def status(
    backlog: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., str]:
    """What the status prints, from this interpreter: importing PyTorch takes longer than the answer."""

    def printed(*options: str) -> str:
        monkeypatch.setattr(sys, "argv", ["backlog.py", "--list", "experiments/backlog.toml", "--status", *options])
        capsys.readouterr()
        assert backlog.main() == 0
        return capsys.readouterr().out

    return printed


def directory(name: str, seed: int = 0) -> Path:
    return busy.cache() / "backlog" / "tiny" / "table-1" / name / f"seed-{seed}"


def rounds(name: str) -> bytes:
    file = directory(name) / ROUNDS
    return file.read_bytes() if file.exists() else b""


def until(what: Callable[[], Any], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


def saved() -> dict[str, list[dict[str, Any]]]:
    """The values of the saved results, by row; without times."""
    document = json.loads(Path("experiments/tiny/results/table-1.json").read_text())
    values = {each["name"]: [trial["values"] for trial in each["trials"]] for each in document["rows"]}
    return {name: [{**each, "seconds": None} for each in trials] for name, trials in values.items()}


def test_groups_come_in_order_and_entries_in_that_of_the_file(backlog: ModuleType, tree: Path) -> None:
    file = tree / "list.toml"
    file.write_text("\n".join(entry(title, group, *row("quick")) for title, group in (("c", 2), ("a", 1), ("b", 1))))
    assert [each.title for each in backlog.read_entries(file)] == ["a", "b", "c"]


def test_an_entry_has_a_command_or_says_what_it_needs(backlog: ModuleType, tree: Path) -> None:
    (tree / "list.toml").write_text('[[entries]]\ntitle = "neither"\ngroup = 1\n')
    with pytest.raises(Exception, match="either command or needs in 'neither'"):
        backlog.read_entries(tree / "list.toml")


def test_every_entry_of_the_list_can_be_counted(backlog: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(EXPERIMENTS.parent)
    entries = backlog.read_entries(EXPERIMENTS / "backlog.toml")
    assert [each.group for each in entries] == sorted(each.group for each in entries)
    for each in entries:
        state = backlog.state_of(each, Path("nowhere"))
        assert each.needs or state.done + len(state.left) > 0, each.title
        assert each.needs or each.hours > 0, each.title


def test_what_is_done_is_read_from_saved_results(backlog: ModuleType, tree: Path) -> None:
    (tree / "list.toml").write_text(entry("seeds", 1, *row("quick", "--seeds", "0,1,2"), hours=0.5))
    (one,) = backlog.read_entries(tree / "list.toml")
    before = backlog.state_of(one, tree / "runs")
    assert (before.done, [run.hours for run in before.left]) == (0, [0.5] * 3)
    assert main([*row("quick", "--seeds", "1", "--workers", "1", "--save")[1:]]) == 0
    after = backlog.state_of(one, tree / "runs")
    assert (after.done, [run.label.partition(", ")[2] for run in after.left]) == (1, ["quick, seed 0", "quick, seed 2"])
    assert all(0 < run.hours < 0.01 for run in after.left), "measured by the seed that is saved"
    study = tree / "experiments/tiny/table-1.toml"
    study.write_text(STUDY.replace("rounds = 2, cohort = 4", "rounds = 1, cohort = 4"))
    assert backlog.state_of(one, tree / "runs").done == 0, "the row is another one now"


@pytest.mark.law("interrupted runs")
def test_all_that_can_be_run_is_run_and_failures_are_reported(start: Any, status: Any) -> None:
    entries = (
        entry("no such row", 1, *row("qiuck")),
        entry("will fail", 1, *row("broken", "--trust")),
        entry("two seeds", 1, *row("quick")),
        entry("rolls", 2, "python", "experiments/tiny/rolls.py"),
        entry("later", 2, needs="more code"),
    )
    process = start(*entries)
    said = process.communicate(timeout=120)[1]
    assert process.returncode == 1, said
    assert "Failed: no such row: " in said
    assert "Failed: will fail: tiny/table-1, broken, seed 0: RuntimeError: the disk is gone\n" in said
    assert "Not yet runnable: later: needs more code" in said
    assert said.index("broken") < said.index("quick, seed 0") < said.index("quick, seed 1") < said.index("rolls")
    assert "Done. Entries that failed: 2." in said
    assert len(saved()["quick"]) == 2
    assert len(json.loads(Path("experiments/tiny/rolls.json").read_text())) == 2
    assert not directory("quick").exists(), "checkpoints are kept only until results are saved"

    document = json.loads(status("--json"))
    assert [(each["title"], each["done"], each["left"], each["hours"]) for each in document["entries"]] == [
        ("no such row", 0, 0, 0),
        ("will fail", 0, 1, 0.5),
        ("two seeds", 2, 0, 0),
        ("rolls", 2, 0, 0),
        ("later", 0, 0, 0),
    ]
    assert (document["hours"], document["running"]) == (0.5, None)
    text = status()
    assert "Not yet runnable: later (group 2) needs more code." in text
    assert "Failed: no such row: " in text
    assert "Left: 0.5 hours" in text
    assert "The backlog is not running." in text


@pytest.mark.law("interrupted runs")
def test_after_sigterm_a_run_goes_on_with_its_next_round(start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    one = entry("one", 1, *row("slow", "--trust"))
    first = start(one)
    until(lambda: rounds("slow").count(b"\n") >= 2)
    first.send_signal(signal.SIGTERM)
    assert "Stopped" in first.communicate(timeout=60)[1]
    assert first.returncode == 128 + signal.SIGTERM
    state, before = checkpoint.read(directory("slow") / CHECKPOINT), rounds("slow")
    assert state is not None
    assert 2 <= state.round == before.count(b"\n") < 10

    second = start(one)
    until(lambda: rounds("slow").count(b"\n") > state.round)
    assert rounds("slow").startswith(before), "no round was repeated: their times are the same"
    second.communicate(timeout=60)
    assert second.returncode == 0
    assert not directory("slow").exists()
    monkeypatch.setenv("AT_ONCE", "1")
    assert main([*row("slow", "--trust", "--workers", "1", "--save", "whole.json")[1:]]) == 0
    (whole,) = json.loads(Path("whole.json").read_text())["rows"]
    assert saved()["slow"] == [{**trial["values"], "seconds": None} for trial in whole["trials"]]


@pytest.mark.law("interrupted runs")
def test_after_kill_9_a_run_goes_on_from_its_checkpoint_and_a_paused_one_stops_at_once(start: Any) -> None:
    one = entry("one", 1, *row("endless", "--trust"))
    first = start(one)
    until(lambda: (directory("endless") / CHECKPOINT).exists())  # one is written every few seconds
    first.kill()
    first.communicate()
    descriptor = busy.open_lock("backlog.lock")
    until(lambda: busy.try_lock(descriptor, shared=False))  # its run ends, too
    os.close(descriptor)
    state = checkpoint.read(directory("endless") / CHECKPOINT)
    assert state is not None
    assert state.round > 0
    before = b"".join(rounds("endless").splitlines(keepends=True)[: state.round])
    second, then = start(one), (directory("endless") / CHECKPOINT).stat().st_mtime
    until(lambda: (directory("endless") / CHECKPOINT).stat().st_mtime > then)
    with busy.holding():
        until(is_paused)
        second.send_signal(signal.SIGINT)
        second.communicate(timeout=60)
    assert second.returncode == 128 + signal.SIGINT
    assert rounds("endless").startswith(before)
    state, written = checkpoint.read(directory("endless") / CHECKPOINT), rounds("endless").count(b"\n")
    assert state is not None
    assert (
        len(before.splitlines()) < written - 1 <= state.round <= written
    )  # a round that was written and not yet saved is repeated


def is_paused() -> bool:
    return ", paused" in (busy.cache() / "backlog.lock").read_text()


@pytest.mark.law("interrupted runs")
def test_there_is_one_at_a_time_which_pauses_while_somebody_needs_the_machine(start: Any, status: Any) -> None:
    one = entry("one", 1, *row("slow", "--trust"))
    process = start(one)
    until(lambda: rounds("slow"))
    with busy.holding():
        began = time.monotonic()
        with busy.holding():
            assert time.monotonic() - began < 1, "who needs the machine does not wait for the backlog"
        until(is_paused)
        held = rounds("slow")
        running = f"tiny/table-1, slow, seed 0, paused (process {process.pid})."
        assert f"Running: {running}" in status()
        assert json.loads(status("--json"))["running"] == running
        refused = start(one)
        assert f"The backlog is already running: {running}" in refused.communicate(timeout=60)[1]
        assert refused.returncode == 1
        assert main([*row("quick", "--workers", "1", "--save")[1:]]) == 0  # somebody else saves in the same file
        assert rounds("slow") == held
        assert held.count(b"\n") < 10
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 0
    assert "Paused: tests, a benchmark or make are running.\nContinued." in said
    assert {name: len(trials) for name, trials in saved().items()} == {"slow": 1, "quick": 2}


def test_several_hold_the_lock_and_a_killed_holder_releases_it() -> None:
    assert not busy.busy()
    sleep = [sys.executable, str(EXPERIMENTS / "busy.py"), sys.executable, "-c", "import time; time.sleep(60)"]
    with subprocess.Popen(sleep) as other:
        until(busy.busy)
        with busy.holding():
            other.kill()
            other.wait()
            assert busy.busy()
    assert not busy.busy()


def test_tests_hold_the_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # the user's own cache
    if not os.access(busy.cache(), os.W_OK):
        pytest.skip("the cache cannot be written")
    assert busy.busy()
