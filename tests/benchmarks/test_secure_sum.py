"""The benchmark of secure sums, end to end, on a sum of milliseconds and without peers."""

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest


@pytest.mark.law("benchmarks")
def test_measurements_are_recorded(
    script: Callable[[str], ModuleType], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Slow, because each case is a process; only this runs Tacit's secure sum and noise as the benchmark does."""
    out = tmp_path / "results.json"
    options = ["--cases=tiny,sigma-3", "--frameworks=tacit", "--rounds=2", f"--out={out}"]
    status = script("secure_sum").main(options)
    printed = capsys.readouterr()
    assert status == 0, printed.err
    record = json.loads(out.read_text())
    total, noise = record["results"]
    assert record["cases"]["tiny"]["clients"] == 8
    assert [measured["error"] for measured in total["rounds"]] == [0, 0]
    assert 0 < total["medians"]["client_pads"] < total["medians"]["seconds"]
    assert 2.9 < noise["medians"]["deviation"] < 3.1
    assert "ns/sample" in printed.out


def test_unknown_cases_are_named(script: Callable[[str], ModuleType]) -> None:
    with pytest.raises(SystemExit, match="Unknown case huge"):
        script("secure_sum").main(["--cases=tiny,huge"])
