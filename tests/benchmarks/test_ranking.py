"""The ranking is timed from end to end, on few clients."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "ranking.py"


@pytest.mark.usefixtures("data_folder")
def test_every_round_is_timed_with_and_without_the_ranking() -> None:
    command = [sys.executable, str(SCRIPT), "--rounds=2", "--clients=3", "--samples=60", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert [each["round"] for each in record["rounds"]] == [1, 2]
    assert all(each["epoch"] > 0 and each["ranked"] > 0 for each in record["rounds"])
    assert record["most"] == max(each["ratio"] for each in record["rounds"])
