"""Tiny studies that are really run: what follows from their files."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tacit import checkpoints
from tacit.books.accountants import RdpClassic
from tacit.books.bandwidth import cost
from tacit.books.planning import Cohorts
from tacit.core import Report, RunError
from tacit.core.patience import kept
from tacit.methods import fl_std
from tacit.report.comparison import Comparison
from tacit.reproduction.jobs import Choice, jobs_of
from tacit.reproduction.outcomes import compare
from tacit.reproduction.quantities import Finished, derived
from tacit.reproduction.studies import read_study
from tacit.results import CHECKPOINT, read_rounds
from tacit.samplers import Poisson
from tacit.tasks.synthetic import THETA

N = 8 * 8 * 64 + 64 + 64 * 10 + 10  # weights of digits-net
K = int(0.05 * N)
COLUMNS = ("best_round", "cost_down", "cost_up", "kilobytes_down", "kilobytes_up", "epsilon_classic", "bound")
NOISY = ", ratio = 0.05, epsilon = 'none', noise = 2.0, channel = 'ideal'"
FIXED = NOISY + ", sampling = 'fixed'"
ROW = """
[[rows]]
name = "{name}"
method = "fl-{method}"
args = {{ cohort = 5, rounds = 4, steps = 2{args} }}
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
    """A study in this folder, run as far as it has not been; and where its runs lie."""
    file = folder / "experiments" / "tiny" / f"{name}.toml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    study = read_study(folder / "experiments", f"tiny/{name}")
    jobs = jobs_of(study, Choice(out=folder / "runs"))
    for job in (job for group in jobs for job in group):
        if not job.finished():
            list(job.steps(job.experiment.build_task(), 1))
    return compare(study, jobs, fast=False), folder / "runs" / "tiny" / "table-1"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[Comparison, Path, Path]:
    folder = tmp_path_factory.mktemp("tiny")
    return *run(folder, STUDY), folder


def values(tiny: tuple[Comparison, Path, Path], name: str) -> dict[str, Any]:
    (row,) = (row for row in tiny[0].rows if row.name == name)
    return dict(row.trials[0].values)


@pytest.mark.parametrize(("name", "down", "up"), [("std", N, N), ("basic", N, K), ("top", K, K), ("fixed", K, K)])
def test_costs_are_those_of_the_formula_and_of_the_measured_bytes_without_headers(tiny, name, down, up):
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


def test_epsilon_as_papers_have_it_is_that_of_poisson_cohorts_at_the_best_round(tiny):
    for name in ("top-dp", "fixed"):
        found = values(tiny, name)
        theirs = Cohorts(Poisson(5), 20).epsilon(2.0, found["best_round"], 1e-5, RdpClassic())
        assert found["epsilon_classic"] == pytest.approx(theirs)
    assert values(tiny, "fixed")["epsilon"] > values(tiny, "top-dp")["epsilon"]
    assert values(tiny, "top")["epsilon_classic"] is None


def test_the_bound_is_that_of_the_runs_state(tiny):
    state = checkpoints.read(tiny[1] / "top-dp" / "seed-0" / CHECKPOINT)
    assert state is not None
    assert values(tiny, "top-dp")["bound"] == float(state.memory["mechanism/bound"])
    assert values(tiny, "top")["bound"] is None


def test_only_columns_that_are_asked_for_are_told(tiny):
    told, _ = run(tiny[2], STUDY.replace(STUDY.splitlines()[2] + "\n", ""))
    assert not set(COLUMNS) & set(told.rows[0].quantities())


def test_a_histogram_counts_both_rows_at_the_coordinates_of_one(tiny):
    told, place = run(tiny[2], FIGURE.format(mask="top"), "figure-1")
    top, std = (checkpoints.read(place / name / "seed-0" / CHECKPOINT) for name in ("top", "std"))
    assert top is not None
    assert std is not None
    mask = top.memory["codec/mask"].long()
    for row, state in zip(told.rows, (top, std), strict=True):
        weights, trial = state.weights[mask].double().numpy(), row.trials[0]
        edges, density = (np.array(trial.curves[name]) for name in ("weight", "density"))
        assert (len(edges), len(density)) == (8, 7)
        inside = np.mean((weights >= edges[0]) & (weights <= edges[-1]))
        assert float(density @ np.diff(edges)) == pytest.approx(inside, abs=1.5 / len(weights))
        assert trial.values["magnitude"] == pytest.approx(np.abs(weights).mean(), rel=1e-5)
    assert Comparison.from_bytes(told.to_bytes(), "saved").to_bytes() == told.to_bytes()


def test_a_row_without_a_mask_lends_none(tiny):
    with pytest.raises(RunError, match="Expected the run of 'std' with seed 0 to have a mask"):
        run(tiny[2], FIGURE.format(mask="std"), "figure-1")


def test_a_run_that_was_never_measured_or_never_met_a_client_has_no_best_round(tmp_path):
    silent = Report(1, (), (), (), (), 0.0, 0.0, 0.0, {}, 0.0)
    alone = Report(1, (), (), (), (), 0.0, 0.0, 0.0, {"accuracy": 0.1}, 0.0)
    for reports in ((), (silent,), (alone,)):
        run = Finished(method=fl_std(), clients=6000, parameters=9, reports=reports, directory=tmp_path)
        found = derived(run, COLUMNS)
        assert found["best_round"] == (1 if reports == (alone,) else None)
        assert (found["cost_up"], found["kilobytes_up"]) == (None, 0)


def test_the_first_of_equally_good_rounds_is_the_best_and_losses_are_better_when_lower(tmp_path):
    for metric, best in (("accuracy", 2), ("rmse", 1)):
        reports = [
            Report(number, (0,), (), (36,), (36,), 0.0, 0.0, 0.0, {metric: value}, 0.0)
            for number, value in enumerate((0.1, 0.5, 0.5, 0.1), start=1)
        ]
        run = Finished(method=fl_std(), clients=6000, parameters=9, reports=reports, directory=tmp_path)
        assert derived(run, ["best_round"]) == {"best_round": best}


def test_groups_that_were_found_and_what_clients_leaked(tmp_path):
    folder = tmp_path / "tiny"
    folder.mkdir()
    columns = ("rmse", "leakage", "miss", "found", "right")
    args = "rounds = 5, cohort = 4, scale = 'paper', patience = 3"
    (folder / "figure-1.toml").write_text(
        f'title = "Tiny"\ncolumns = [{", ".join(map(repr, columns))}]\n[[rows]]\nname = "groups"\n'
        f'method = "ifca-dp"\ntask = "synthetic"\nargs = {{ {args} }}\ntask-args = {{ clients = 10 }}\n'
    )
    study = read_study(tmp_path, "tiny/figure-1")
    ((job,),) = groups = jobs_of(study, Choice(out=tmp_path / "runs"))
    *_, run = job.steps(job.experiment.build_task(), 1)
    (row,) = compare(study, groups, fast=False).rows
    values, hypotheses = row.trials[0].values, kept(run.state)
    distances = [min(float((theta - own).norm()) for own in hypotheses) for theta in THETA]
    assert values["miss"] == pytest.approx(max(distances))
    assert values["found"] == float(max(distances) <= 0.6)
    assert 0 <= values["right"] <= 1
    assert values["leakage"] == run.leakage.most == pytest.approx(0.4 * max(run.leakage.taken.values()))
    assert values["rmse"] == pytest.approx(run.metrics["rmse"], rel=1e-5)
    assert row.guarantee.startswith("none: the noise is scaled by the length of the client's own update")
