"""The benchmark runs from end to end, on a workload of milliseconds."""

import json
import subprocess
import sys
from pathlib import Path

BENCHMARK = Path(__file__).resolve().parents[2] / "benchmarks" / "run.py"


def run(*options: str) -> subprocess.CompletedProcess[str]:
    contestants = "--contestants=plain-loop,tacit,tacit-fl-top"
    command = [sys.executable, str(BENCHMARK), "--workloads=tiny", contestants, *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_race_leaves_a_record(tmp_path: Path) -> None:
    out = tmp_path / "record.json"
    done = run("--rounds=2", "--warm-ups=1", f"--out={out}")
    assert done.returncode == 0, done.stderr
    scores = json.loads(out.read_text())["scores"]
    assert [score["contestant"] for score in scores] == ["tacit", "tacit-fl-top", "plain-loop"]
    assert all(len(score["rounds"]) == 2 and score["seconds"] > 0 for score in scores)
    assert all(score["versions"]["torch"] for score in scores)
    assert "s/round" in done.stdout


def test_contestants_agree() -> None:
    done = run("--check")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("relative difference") == 2
