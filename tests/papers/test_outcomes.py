"""Tiny studies that are really run, and the quantities derived from their files."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tacit
from tacit.core import Report
from tacit.core.state import final_weights
from tacit.errors import RunError
from tacit.methods import fl_std
from tacit.papers.comparison import Comparison
from tacit.papers.jobs import Choice, jobs_of
from tacit.papers.outcomes import MAX_POINTS, compare
from tacit.papers.quantities import FinishedRun, derive
from tacit.papers.study import read_study
from tacit.papers.study_files import study_files
from tacit.pieces.samplers import Poisson
from tacit.privacy.accountants import RdpClassic
from tacit.privacy.calibration import CohortSampling
from tacit.report.run_data import thin
from tacit.runs import checkpoint
from tacit.runs.bandwidth import cost
from tacit.runs.directory import CHECKPOINT, read_rounds
from tacit.runs.manifest import TaskEntry
from tacit.tasks.regression import THETA

N = 8 * 8 * 64 + 64 + 64 * 10 + 10  # weights of digits-net
K = int(0.05 * N)
COLUMNS = ("best_round", "cost_down", "cost_up", "kilobytes_down", "kilobytes_up", "epsilon_classic", "bound")
NOISY = ", ratio = 0.05, epsilon = 'none', noise = 2.0, channel = 'IdealSum()', mechanism.arithmetic = 'Reals()'"
FIXED = NOISY + ", sampler = 'FixedSize(5)'"
TASK = TaskEntry(name="tiny", args=None, clients=6000, samples=6000, parameters=9, loss="", data="")
ROW = """
[[rows]]
name = "{name}"
method = "fl-{method}"
args = {{ cohort = 5, rounds = 4, descent.steps = 2{args} }}
task-args = {{ clients = 20 }}
"""
STUDY = (
    f'title = "Tiny"\nevaluate-every = 2\ncolumns = [{", ".join(map(repr, COLUMNS))}, "loss_at_best"]\n'
    + ROW.format(name="std", method="std", args="")
    + ROW.format(name="basic", method="basic", args=", ratio = 0.05")
    + ROW.format(name="top", method="top", args=", ratio = 0.05")
    + ROW.format(name="top-dp", method="top-dp", args=NOISY)
    + ROW.format(name="fixed", method="top-dp", args=FIXED)
)
FIGURE = """
title = "Tiny"
[figure]
kind = "histogram"
bins = 7
[[figure.panels]]
title = "P"
rows = ["top", "std"]
mask = "{mask}"
[[rows]]
from = "table-1"
name = "top"
[[rows]]
from = "table-1"
name = "std"
"""


def run(folder: Path, text: str, name: str = "table-1") -> tuple[Comparison, Path]:
    """A study in this folder, whose unfinished jobs are run; and the folder of the runs of table-1."""
    file = folder / "experiments" / "tiny" / f"{name}.toml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    study = read_study(f"tiny/{name}", study_files(folder / "experiments"))
    jobs = jobs_of(study, Choice(out=folder / "runs"))
    for job in (job for group in jobs for job in group):
        if not job.is_finished():
            list(job.steps(job.experiment.build_task(), 1))
    return compare(study, jobs, fast=False), folder / "runs" / "tiny" / "table-1"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[Comparison, Path, Path]:
    """Five schemes, run once for all tests: derived quantities must agree with the files of real runs."""
    folder = tmp_path_factory.mktemp("tiny")
    return *run(folder, STUDY), folder


def values(tiny: tuple[Comparison, Path, Path], name: str) -> dict[str, Any]:
    (row,) = (row for row in tiny[0].rows if row.name == name)
    return dict(row.trials[0].values)


@pytest.mark.parametrize(("name", "down", "up"), [("std", N, N), ("basic", N, K), ("top", K, K), ("fixed", K, K)])
def test_costs_follow_the_formula_and_equal_the_measured_bytes_without_headers(tiny, name, down, up):
    found = values(tiny, name)
    best = found["best_round"]
    assert best in (2, 4)
    assert found["cost_down"] == pytest.approx(cost(down, best, 5 / 20))
    assert found["cost_up"] == pytest.approx(cost(up, best, 5 / 20))
    assert found["kilobytes_up"] - 36 * best * 5 / 20 / 1000 == pytest.approx(found["cost_up"])
    assert found["kilobytes_down"] >= found["cost_down"]


def test_other_metrics_are_those_of_the_best_round(tiny):
    found = values(tiny, "std")
    report = read_rounds(tiny[1] / "std" / "seed-0")[found["best_round"] - 1]
    assert found["best_accuracy"] == pytest.approx(report.metrics["accuracy"], rel=1e-5)
    assert found["loss_at_best"] == pytest.approx(report.metrics["loss"], rel=1e-5)


def test_epsilon_as_in_papers_is_that_of_poisson_sampling_at_the_best_round(tiny):
    for name in ("top-dp", "fixed"):
        found = values(tiny, name)
        expected = CohortSampling(Poisson(5), 20).epsilon(2.0, found["best_round"], 1e-5, RdpClassic())
        assert found["epsilon_classic"] == pytest.approx(expected)
    assert values(tiny, "fixed")["epsilon"] > values(tiny, "top-dp")["epsilon"]
    assert values(tiny, "top")["epsilon_classic"] is None


def test_the_bound_is_that_of_the_run_s_state(tiny):
    state = checkpoint.read(tiny[1] / "top-dp" / "seed-0" / CHECKPOINT)
    assert state is not None
    assert values(tiny, "top-dp")["bound"] == float(state.memory["mechanism/bound"])
    assert values(tiny, "top")["bound"] is None


def test_only_the_study_s_columns_are_computed(tiny):
    compared, _ = run(tiny[2], STUDY.replace(STUDY.splitlines()[2] + "\n", ""))
    assert not set(COLUMNS) & set(compared.rows[0].quantities())


def test_a_histogram_counts_both_rows_at_the_mask_of_one(tiny):
    compared, place = run(tiny[2], FIGURE.format(mask="top"), "figure-1")
    top, std = (checkpoint.read(place / name / "seed-0" / CHECKPOINT) for name in ("top", "std"))
    assert top is not None
    assert std is not None
    mask = top.memory["codec/mask"].long()
    for row, state in zip(compared.rows, (top, std), strict=True):
        weights, trial = state.weights[mask].double().numpy(), row.trials[0]
        edges, density = (np.array(trial.curves[name]) for name in ("weight", "density"))
        assert (len(edges), len(density)) == (8, 7)
        inside = np.mean((weights >= edges[0]) & (weights <= edges[-1]))
        assert float(density @ np.diff(edges)) == pytest.approx(inside, abs=1.5 / len(weights))
        assert trial.values["magnitude"] == pytest.approx(np.abs(weights).mean(), rel=1e-5)
    assert Comparison.from_bytes(compared.to_bytes(), "saved").to_bytes() == compared.to_bytes()


def test_a_histogram_needs_a_row_with_a_mask(tiny):
    with pytest.raises(RunError, match="Expected the run of 'std' with seed 0 to have a mask"):
        run(tiny[2], FIGURE.format(mask="std"), "figure-1")


PRUNING = """
title = "Tiny"
evaluate-every = 3
columns = ["accuracy", "pruned_accuracy", "density", "volume", "volume_up", "volume_down", "uploads"]
[[rows]]
name = "pruned"
method = "esmfl"
args = { cohort = 5, rounds = 3, warm_up = 1, epochs = 1, compression = 20, channel = "Plain(wire=Compact())" }
task-args = { clients = 20 }
[[rows]]
from = "table-1"
name = "std"
"""


def test_volumes_are_the_bytes_of_the_rounds_after_the_warm_up(tiny):
    compared, place = run(tiny[2], PRUNING, "table-2")
    found = dict(compared.rows[0].trials[0].values)
    reports = read_rounds(place.with_name("table-2") / "pruned" / "seed-0")
    up, down = (sum(sum(getattr(report, way)) for report in reports[1:]) for way in ("up", "down"))
    assert (found["volume_up"], found["volume_down"], found["volume"]) == (up / 1e6, down / 1e6, (up + down) / 1e6)
    assert found["uploads"] == up / 2 / 1e6
    last = reports[-1].metrics
    for name in ("pruned_accuracy", "density"):
        assert found[name] == pytest.approx(last[name], rel=1e-5)
    assert compared.rows[1].trials[0].values["volume"] is None
    assert compared.rows[1].trials[0].values["uploads"] is None


def test_a_run_without_evaluation_or_clients_has_no_best_round_or_no_cost(tmp_path):
    unmeasured = Report(1, (), (), (), (), 0.0, 0.0, 0.0, {}, 0.0)
    without_clients = Report(1, (), (), (), (), 0.0, 0.0, 0.0, {"accuracy": 0.1}, 0.0)
    for reports in ((), (unmeasured,), (without_clients,)):
        run = FinishedRun(method=fl_std(), task=TASK, reports=reports, directory=tmp_path)
        found = derive(run, COLUMNS)
        assert found["best_round"] == (1 if reports == (without_clients,) else None)
        assert (found["cost_up"], found["kilobytes_up"]) == (None, 0)


def test_the_first_of_equally_good_rounds_is_the_best_and_lower_errors_are_better(tmp_path):
    for metric, best in (("accuracy", 2), ("rmse", 1)):
        reports = [
            Report(number, (0,), (), (36,), (36,), 0.0, 0.0, 0.0, {metric: value}, 0.0)
            for number, value in enumerate((0.1, 0.5, 0.5, 0.1), start=1)
        ]
        run = FinishedRun(method=fl_std(), task=TASK, reports=reports, directory=tmp_path)
        assert derive(run, ["best_round"]) == {"best_round": best}


MAPS = """
title = "Tiny"
columns = ["first_accuracy", "mean_accuracy", "accuracy"]
[[rows]]
name = "one"
method = "{method}"
task = "digits"
args = {args}
task-args = {{ clients = 5 }}
[figure]
kind = "maps"
client = 2
at = [1, 3]
importance = ["variance", "sensitivity"]
noise = 0.3
"""


@pytest.mark.parametrize(
    ("method", "args"),
    [("fedavg", "{ cohort = 5, rounds = 3, epochs = 1 }"), ("nbafl", "{ rounds = 3, samples = 300, epsilon = 1e9 }")],
)
def test_maps_are_the_importance_of_inputs_to_the_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, args: str
) -> None:
    """For weights and for updates: the pixels at the edge, nearly always dark, are the least important."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "maps.toml").write_text(MAPS.format(method=method, args=args))
    study = read_study("tiny/maps", study_files(tmp_path))
    jobs = jobs_of(study, Choice())
    for job in jobs[0]:
        list(job.steps(job.experiment.build_task(), 1))
    comparison = compare(study, jobs, fast=False)
    (trial,) = comparison.rows[0].trials
    names = ["variance, round 1", "variance, round 3", "sensitivity, round 1", "sensitivity, round 3"]
    assert set(trial.curves) == {"shape", "mean", *names}
    assert trial.curves["shape"] == (8.0, 8.0)
    task = tacit.tasks.make_task("digits", clients=5)
    assert np.allclose(np.array(trial.curves["mean"]), task.population[2][0].mean(0).flatten(), atol=1e-5)
    variance = np.array(trial.curves["variance, round 1"]).reshape(8, 8)
    assert variance[:, 0].max() < 0.1 * variance[:, 2:6].mean()
    reports = read_rounds(jobs[0][0].directory)
    accuracies = [report.metrics["accuracy"] for report in reports]
    assert trial.values["first_accuracy"] == pytest.approx(accuracies[0])
    assert trial.values["mean_accuracy"] == pytest.approx(np.mean(accuracies))


def test_groups_found_and_leakage_of_clients(tmp_path):
    folder = tmp_path / "tiny"
    folder.mkdir()
    columns = ("rmse", "leakage", "miss", "found", "right")
    args = "rounds = 5, cohort = 4, radius = 'none', patience = 3"
    (folder / "figure-1.toml").write_text(
        f'title = "Tiny"\ncolumns = [{", ".join(map(repr, columns))}]\n[[rows]]\nname = "groups"\n'
        f'method = "ifca-dp"\ntask = "synthetic"\nargs = {{ {args} }}\ntask-args = {{ clients = 10 }}\n'
    )
    study = read_study("tiny/figure-1", study_files(tmp_path))
    ((job,),) = groups = jobs_of(study, Choice(out=tmp_path / "runs"))
    *_, run = job.steps(job.experiment.build_task(), 1)
    (row,) = compare(study, groups, fast=False).rows
    values, hypotheses = row.trials[0].values, final_weights(run.state)
    distances = [min(float((theta - own).norm()) for own in hypotheses) for theta in THETA]
    assert values["miss"] == pytest.approx(max(distances))
    assert values["found"] == float(max(distances) <= 0.6)
    assert values["right"] is not None
    assert 0 <= values["right"] <= 1
    assert run.leakage is not None
    assert values["leakage"] == run.leakage.maximum == pytest.approx(0.4 * max(run.leakage.participations.values()))
    assert values["rmse"] == pytest.approx(run.metrics["rmse"], rel=1e-5)
    assert row.guarantee.startswith("none: the noise is scaled by the norm of the client's own update")


@pytest.mark.parametrize("count", [1, 99, 100, 101, 412, 3000])
def test_curves_are_thinned_between_their_ends(count):
    reports = [Report(r, (), (), (), (), 0.0, 0.0, 0.0, {}, 0.0) for r in range(1, count + 1)]
    rounds = [report.round for report in thin(reports, MAX_POINTS)]
    assert len(rounds) == min(count, 100)
    assert rounds == sorted(set(rounds))
    assert (rounds[0], rounds[-1]) == (1, count)
