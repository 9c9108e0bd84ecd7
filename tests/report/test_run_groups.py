import json
from dataclasses import replace
from math import nan
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from report.made import PROVED, made_run
from tacit.cli import main
from tacit.core.prices import Unit
from tacit.report.chart_data import run_charts
from tacit.report.intervals import Interval
from tacit.report.run_data import RunData
from tacit.report.run_groups import group_charts, group_runs, guarantee_lines, rows
from tacit.runs.directory import MANIFEST


@pytest.mark.parametrize("count", [2, 3, 10])
def test_the_interval_is_that_of_student(count: int) -> None:
    values = [float(each) for each in np.random.default_rng(count).normal(5, 2, count)]
    found = Interval.of(values)
    low, high = stats.t.interval(0.95, count - 1, loc=np.mean(values), scale=stats.sem(values))
    assert found is not None
    assert found.half is not None
    assert (found.mean - found.half, found.mean + found.half) == pytest.approx((low, high))


def test_it_covers_the_mean_in_19_of_20_cases() -> None:
    """2,000 times three seeds; an interval with the normal quantile instead of Student's would cover 82 %."""
    draws = np.random.default_rng(0).normal(1.0, 0.1, (2000, 3)).tolist()
    found = [Interval.of(each) for each in draws]
    covered = sum(abs(each.mean - 1.0) <= each.half for each in found if each is not None and each.half is not None)
    assert 0.935 < covered / 2000 < 0.965


def test_one_value_has_no_interval_and_no_number_has_no_mean() -> None:
    assert Interval.of([0.5]) == Interval(0.5, None, 1)
    assert Interval.of([]) is None
    assert Interval.of([0.5, nan]) is None


def test_runs_that_differ_in_their_seed_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for seed in (0, 1, 2):
        made_run(tmp_path / f"fedavg-{seed}", 10, seed=seed)
        made_run(tmp_path / f"geyer-{seed}", 10, method="geyer", args={"noise": 2.0, "cohort": 5, "epsilon": 2.0},
                 seed=seed, guarantee=PROVED)  # fmt: skip
    assert main(["compare", str(tmp_path)]) == 0
    header, one, two, *others = capsys.readouterr().out.splitlines()
    assert header.split() == ["method", "task", "runs", "rounds", "accuracy", "loss", "ε", "up", "down", "seconds"]
    assert one.split()[:6] == ["fedavg", "digits", "3", "10", "±", "0"]
    assert "0.410 ± 0.025" in one  # 1 − 0.9 / 1.5 = 0.4, and one hundredth more with every seed
    assert "1.25" in two
    assert sum("(ε = 1.25, δ = 1e-05)-differential privacy" in line for line in others) == 1
    assert "No privacy guarantee of fedavg: no noise is added" in "\n".join(others)
    assert main(["compare", str(tmp_path), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [group["seeds"] for group in document["groups"]] == [[0, 1, 2]] * 2
    assert document["groups"][0]["metrics"]["accuracy"]["mean"] == pytest.approx(0.41)


def test_settings_that_differ_are_named(tmp_path: Path) -> None:
    runs = [made_run(tmp_path / f"{size}", 2, args={"cohort": size}) for size in (2, 3)]
    groups, _ = group_runs(map(RunData.read, runs))
    assert [group.label for group in groups] == ["fedavg cohort=2", "fedavg cohort=3"]


def test_a_bound_is_not_averaged_and_the_weakest_guarantee_counts(tmp_path: Path) -> None:
    strong = RunData.read(made_run(tmp_path / "a", 4, guarantee=PROVED))
    weak = RunData.read(made_run(tmp_path / "b", 4, guarantee=replace(PROVED, epsilon=3.0), seed=1))
    (group,), _ = group_runs([strong, weak])
    assert "(ε = 3, δ" in guarantee_lines([group])[0]
    (group,), _ = group_runs([strong, replace(weak, stored={})])
    assert guarantee_lines([group])[0].startswith("No privacy guarantee: ")


def test_a_copy_of_a_run_is_counted_once(tmp_path: Path) -> None:
    one = made_run(tmp_path / "a", 2)
    two = made_run(tmp_path / "b", 2)
    (two / MANIFEST).write_bytes((one / MANIFEST).read_bytes())
    (group,), (note,) = group_runs(map(RunData.read, (one, two)))
    assert len(group.runs) == 1
    assert note == f"{two} repeats {one}, with the same seed and noise: it is counted once."


def test_curves_have_the_interval_as_a_band(tmp_path: Path) -> None:
    runs = [RunData.read(made_run(tmp_path / f"{seed}", 5, seed=seed)) for seed in (0, 1)]
    accuracy, *_ = group_charts(group_runs(runs)[0])
    (line,) = accuracy.lines
    assert line.band is not None
    low, high = line.band
    half = float(stats.t.ppf(0.975, 1)) * 0.005
    assert low[0] == pytest.approx((line.values[0] or 0) - half, abs=1e-5)
    assert high[-1] == pytest.approx((line.values[-1] or 0) + half, abs=1e-5)


def test_epsilon_of_records_is_shown_where_only_records_are_protected(tmp_path: Path) -> None:
    run = RunData.read(made_run(tmp_path / "mine", 3))
    reports = tuple(replace(report, epsilons={Unit.RECORD: 0.5 * report.round}) for report in run.reports)
    (group,), _ = group_runs([replace(run, reports=reports)])
    assert group.epsilon == 1.5
    assert "1.5 (record)" in rows([group])[0]
    both = run_charts(
        [replace(report, epsilons={Unit.CLIENT: 2.0, **report.epsilons}) for report in reports], budget=None
    )
    (chart,) = [chart for chart in both if chart.title.startswith("Privacy loss")]
    assert [line.name for line in chart.lines] == ["ε", "ε of records"]
    assert chart.lines[1].values == [0.5, 1.0, 1.5]
