"""The benchmark of large secure sums, on a small one."""

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest


@pytest.mark.law("benchmarks")
def test_counts_are_those_of_the_formulas(
    script: Callable[[str], ModuleType], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The sum is compared within; only a process is missing, which would take seconds to start."""
    out, options = tmp_path / "results.json", ["--clients=70", "--dim=50", "--workers=1"]
    for _ in range(2):  # the second result replaces the first
        assert script("secure_sum_at_size").main([*options, f"--out={out}"]) == 0
    (record,) = json.loads(out.read_text())
    assert (record["lost"], record["client_pads"]) == (7, record["neighbours"] + 1)
    assert 63 < record["server_pads"] <= 63 + 7 * record["neighbours"]
    printed = capsys.readouterr().out
    assert "| 70 × 50 | 7 |" in printed
    assert f"({sum(record['up'].values()):,.0f} measured)" in printed
    assert script("secure_sum_at_size").main(["--table", f"--out={out}"]) == 0
