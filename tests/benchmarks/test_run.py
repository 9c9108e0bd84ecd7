"""The benchmark of rounds, end to end, on a workload of milliseconds."""

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

OPTIONS = ("--workloads=tiny", "--workers=1")


@pytest.mark.law("benchmarks")
def test_measurements_are_recorded(
    script: Callable[[str], ModuleType], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Slow, because each framework is a process; only this starts them, interleaves rounds and measures memory."""
    out = tmp_path / "results.json"
    frameworks = "--frameworks=tacit-fl-top,tacit"
    status = script("run").main([*OPTIONS, frameworks, "--rounds=2", "--warm-ups=1", f"--out={out}"])
    printed = capsys.readouterr()
    assert status == 0, printed.err
    results = json.loads(out.read_text())["results"]
    assert [result["framework"] for result in results] == ["tacit", "tacit-fl-top"]
    assert all(len(result["rounds"]) == 2 and result["seconds"] > 0 for result in results)
    assert all(result["versions"]["torch"] for result in results)
    assert "s/round" in printed.out
    record = json.loads(out.read_text())
    assert record["cpu"] in printed.out
    assert record["gflop"] == {"tiny": pytest.approx(2 * 2 * 784 * 10 * 2 * 4 * 6 / 1e9, abs=1e-3)}
    assert record["peak_gflops"] > 0


@pytest.mark.law("benchmarks")
def test_frameworks_compute_the_same(script: Callable[[str], ModuleType], capsys: pytest.CaptureFixture[str]) -> None:
    """Slow, because each framework is a process; only this compares Tacit's update with one that does not use it."""
    frameworks = "--frameworks=plain-loop,tacit,tacit-fl-top"
    status = script("run").main([*OPTIONS, frameworks, "--check"])
    printed = capsys.readouterr()
    assert status == 0, printed.out + printed.err
    assert printed.out.count("relative difference") == 2


def test_unknown_frameworks_are_named(script: Callable[[str], ModuleType]) -> None:
    with pytest.raises(SystemExit, match="Unknown framework fast"):
        script("run").main(["--frameworks=fast"])
