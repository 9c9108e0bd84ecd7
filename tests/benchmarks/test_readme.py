from collections.abc import Callable
from types import ModuleType

import pytest


@pytest.mark.parametrize("name", ["bench", "few-weights", "secure-sum"])
def test_the_page_shows_the_newest_results(name: str, script: Callable[[str], ModuleType]) -> None:
    readme = script("readme")
    _, shown, _ = readme.split(name, readme.PAGE.read_text())
    assert shown == readme.table(name)


def test_the_share_of_the_roofline_stands_beside_the_ratio(script: Callable[[str], ModuleType]) -> None:
    readme = script("readme")
    seconds = {"tacit": 0.5, "flower": 2.0, "pfl-research": 1.0, "plain-loop": 1.0}
    results = [{"workload": w, "framework": name, "seconds": taken, "peak_mib": 100}
               for w in readme.SHOWN for name, taken in seconds.items()]  # fmt: skip
    record = {"cpu": "Some CPU", "cores": 2, "date": "2026-11-17T00:00:00+00:00", "peak_gflops": 100.0,
              "gflop": dict.fromkeys(readme.SHOWN, 20.0), "results": results}  # fmt: skip
    first, _, _, _, ours, flower, *_ = readme.rounds_table(record)
    assert first.startswith("CPU: Some CPU, 2 cores, 100 GFLOP/s in products of matrices")
    assert ours.startswith("| Tacit | 0.5 (40%) | 100 |")
    assert flower.startswith("| Flower 1.41 (Ray) | 2 (4.0×, 10%) | 100 |")


def test_a_workload_on_which_another_wins_is_shown(script: Callable[[str], ModuleType]) -> None:
    readme = script("readme")
    seconds = {"tacit": 0.5, "tacit-fl-top": 0.6, "plain-loop": 0.4}
    results = [
        {"workload": w, "framework": name, "seconds": taken} for w in readme.ALL for name, taken in seconds.items()
    ]
    lines = list(readme.few_weights_table({"cpu": "Some CPU", "cores": 2, "date": "2026-11-17", "results": results}))
    assert lines[0] == "CPU: Some CPU, 2 cores. Measured on 2026-11-17."
    assert lines[-1] == "| G2 | 0.5 | 0.6 (1.20×) | 0.4 (0.80×) |"
