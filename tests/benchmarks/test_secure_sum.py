"""The race of secure sums runs from end to end, on a sum of milliseconds, without its peers."""

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "secure_sum.py"


def run(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), "--rounds=2", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_race_leaves_a_record(tmp_path: Path) -> None:
    out = tmp_path / "record.json"
    done = run("--cases=tiny,sigma-3", "--contestants=tacit", f"--out={out}")
    assert done.returncode == 0, done.stderr
    record = json.loads(out.read_text())
    total, noise = record["results"]
    assert record["cases"]["tiny"]["clients"] == 8
    assert [said["error"] for said in total["rounds"]] == [0, 0]
    assert 0 < total["medians"]["pads_of_a_client"] < total["medians"]["seconds"]
    assert 2.9 < noise["medians"]["deviation"] < 3.1
    assert "ns/sample" in done.stdout


def test_unknown_cases_are_named() -> None:
    done = run("--cases=tiny,huge")
    assert done.returncode == 1
    assert "huge" in done.stderr
