"""The convolutions are timed from end to end."""

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "convolutions.py"


def test_a_mask_touches_some_filters_and_all_products_are_timed() -> None:
    command = [sys.executable, str(SCRIPT), "--repeats=1", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert (record["inputs"], record["rectangles"]) == (23, [[24, 32], [6, 6]])  # as benchmarks/README.md says
    assert record["all"].keys() == record["masked"].keys()
    assert all(taken > 0 for taken in (*record["all"].values(), *record["masked"].values()))
    assert record["evaluation"].keys() == {"module", "chain"}
