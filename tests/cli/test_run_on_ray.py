"""`tacit run --workers ray:1` as a user sees it: a cluster of its own, closed to others, ended with the command."""

import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tacit import cli

pytest.importorskip("ray", reason="needs Ray: pip install 'tacit-fl[ray]'")
PATIENCE = 120.0
TASK = """
import torch
from torch import nn
from tacit import Task

class Mine(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 2)

    def forward(self, x):
        return self.inner(x).tanh()

def mine():
    return Task(model=Mine, clients=[(torch.randn(4, 3), torch.tensor([0, 1, 0, 1])) for _ in range(5)])
"""


def processes(mark: str) -> set[int]:
    """The processes that have this mark in their environment."""
    found = set()
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and mark.encode() in (entry / "environ").read_bytes():
                found.add(int(entry.name))
        except OSError:
            continue  # of another user, or ended
    return found


def listening(pids: set[int]) -> Iterator[str]:
    """The addresses, in hexadecimal, on which these processes wait for connections."""
    sockets = set()
    for pid in pids:
        try:
            sockets |= {os.readlink(file) for file in Path(f"/proc/{pid}/fd").iterdir()}
        except OSError:
            continue
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
                yield fields[1].partition(":")[0]


@pytest.mark.law("Ray")
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_ctrl_c_ends_the_command_and_its_cluster(tmp_path: Path) -> None:
    """The home folder has a token of another version, which neither hinders the cluster nor changes."""
    mark, token = secrets.token_hex(16), tmp_path / ".ray" / "auth_token"
    token.parent.mkdir()
    token.write_text("left by another version")
    (tmp_path / "mine.py").write_text(TASK)
    command = ["run", "fl-std", "--task", "mine.py:mine", "--workers", "ray:1", "--rounds", "1000000", "--out", "run"]
    options = ["--set", "cohort=2", "--evaluate-every", "1000000"]
    environment = {**os.environ, "HOME": str(tmp_path), "TACIT_MARK": mark}
    with (tmp_path / "errors").open("w") as errors:
        running = subprocess.Popen(
            [sys.executable, "-m", "tacit.cli", *command, *options],
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # even where it is ignored around us
        )
    try:
        rounds = tmp_path / "run" / "rounds.jsonl"
        wait_until(lambda: running.poll() is not None or (rounds.exists() and rounds.stat().st_size > 0))
        assert running.poll() is None, (tmp_path / "errors").read_text()
        open_to = {*listening(processes(mark))}
        assert open_to
        assert open_to <= {"0100007F", "0000000000000000FFFF00000100007F"}
        os.killpg(running.pid, signal.SIGINT)
        assert running.wait(PATIENCE) == 130
        wait_until(lambda: not processes(mark))
    finally:
        for pid in processes(mark):
            os.kill(pid, signal.SIGKILL)
    said = (tmp_path / "errors").read_text()
    assert "tacit run --resume" in said
    assert "Traceback" not in said
    assert token.read_text() == "left by another version"


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_other_spellings_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        cli.main(["run", "fl-std", "--workers", "rays"])
    assert "Expected workers as a number, ray, ray:N" in capsys.readouterr().err
