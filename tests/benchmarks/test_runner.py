"""A contestant that dies or hangs is reported, and the others are measured to the end."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

READY = 'print(\'{"ready": true, "versions": {}}\', flush=True)'
ANSWER = "print('{\"seconds\": 0.25}', flush=True)"
GOOD = f"""
import sys
{READY}
for _ in iter(sys.stdin.readline, ""):
    {ANSWER}
"""
OUTLIVED = "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(300)'])"  # it keeps the output open
BAD = {
    "dies at start": (f"import subprocess, sys; {OUTLIVED}; sys.exit('no token')",
                      "flower ended at start, with exit status 1:\nno token"),
    "hangs at start": ("import time; print('hello', flush=True); time.sleep(300)",
                       "flower did not answer within 1 s at start, and was ended:\n"),
    "dies in a round": (f"import subprocess, sys; {OUTLIVED}\n{READY}\nsys.stdin.readline()\nsys.exit(3)",
                        "flower ended in a round, with exit status 3:\n"),
    "hangs in a round": (f"import sys, time\n{READY}\nsys.stdin.readline()\ntime.sleep(300)",
                         "flower did not answer within 1 s in a round, and was ended:\n"),
}  # fmt: skip


@pytest.mark.parametrize("kind", BAD)
def test_a_contestant_that_dies_or_hangs_is_reported_and_the_others_continue(
    kind: str, script: Callable[[str], ModuleType], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runner, reporting = script("runner"), script("reporting")
    source, expected = BAD[kind]
    made = []
    for name, text, environment in (("flower", source, runner.PROJECT), ("plain-loop", GOOD, runner.PROJECT)):
        (tmp_path / f"{name}.py").write_text(text)
        made.append(replace(runner.FRAMEWORKS[name], script=str(tmp_path / f"{name}.py"), environment=environment))
    settings = runner.Settings(rounds=2, warm_ups=1, workers=1, timeout=1.0 if "hangs" in kind else 60.0)
    good, bad = runner.measure("tiny", made, settings)
    assert (good.framework, good.rounds, good.failure) == ("plain-loop", [0.25, 0.25], None)
    assert (bad.framework, bad.seconds) == ("flower", None)
    assert bad.failure.startswith(expected)
    assert expected in capsys.readouterr().err
    assert any(line.split()[:2] == ["flower", "failed"] for line in reporting.table([good, bad]))


def test_the_table_names_the_cpu_and_the_share_of_the_roofline(script: Callable[[str], ModuleType]) -> None:
    runner, reporting, roofline = script("runner"), script("reporting"), script("roofline")
    result = replace(runner.Result.failed("W3", "tacit", ""), seconds=0.5, rounds=[0.5], failure=None)
    record = {"cpu": "Some CPU", "cores": 2, "peak_gflops": 100.0, "gflop": {"W3": 5.0}}
    first, *_, row = reporting.table([result], record)
    assert first == "Some CPU, 2 cores, 100 GFLOP/s in float32 products"
    assert row.split()[-1] == "10%"
    mlp = script("workloads").WORKLOADS["W1"]
    products = 784 * 200 + 200 * 200 + 200 * 10
    expected = 2 * mlp.clients * mlp.samples * (3 * products - 784 * 200)  # no gradient at the inputs
    assert roofline.gflop(mlp) == pytest.approx(expected / 1e9)
