"""Survival: equal to lifelines without noise; with noise, honest bands and p-values; bad input ends in a sentence."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import kstest

import tacit
from tacit.analyses.sums import Released, SumNoise
from tacit.analyses.survival import Curve, SurvivalCells, bands, grid_times, isotonic, log_rank
from tacit.errors import DataError, UserError

GOLDEN: Mapping[str, Any] = json.loads((Path(__file__).parents[1] / "golden" / "lifelines.json").read_text())
LUNG: dict[str, list[Any]] = {name: list(column) for name, column in GOLDEN["rows"].items()}
LUNG["inst"] = [value or "none" for value in LUNG["inst"]]
LUNG["time"] = [float(value) for value in LUNG["time"]]


def lung(by: str = "") -> dict[str, list[Any]]:
    kept = [i for i in range(len(LUNG["time"])) if not by or LUNG[by][i]]
    return {name: [column[i] for i in kept] for name, column in LUNG.items()}


def noise(epsilon: float) -> SumNoise:
    kept = math.exp(-epsilon)
    return SumNoise(math.sqrt(2 * kept) / (1 - kept), 1 / epsilon)


def cells_of(days: np.ndarray[Any, Any], died: np.ndarray[Any, Any], step: float, count: int) -> np.ndarray[Any, Any]:
    interval = np.maximum(np.ceil(days / step) - 1, 0).astype(int)
    inside = interval < count
    return np.concatenate(
        [
            np.bincount(interval[inside & died], minlength=count),
            np.bincount(interval[inside & ~died], minlength=count),
            [(~inside).sum()],
        ]
    ).astype(float)


@pytest.mark.parametrize("by", ["", "sex", "ph.ecog"])
def test_without_noise_it_equals_lifelines(by: str) -> None:
    found = tacit.survival(lung(by), time="time", event="status", by=by, client="inst", epsilon=None)
    curves, medians = found.frame, found.table("medians")
    expected = GOLDEN[by or "all"]
    for arm, reference in expected["curves"].items():
        own = [i for i, name in enumerate(curves["arm"]) if name == arm]
        times = np.array([curves["time"][i] for i in own], dtype=float)
        values = np.array([curves["survival"][i] for i in own], dtype=float)
        at = np.searchsorted(times, np.array(reference["times"]))
        assert np.abs(values[at] - np.array(reference["survival"])).max() < 1e-6
        assert medians["median"][medians["arm"].index(arm)] == reference["median"]
    if by:
        test = found.table("log-rank test")
        assert test["χ²"][0] == pytest.approx(expected["statistic"], abs=1e-6)
        assert test["p"][0] == pytest.approx(expected["p"], abs=1e-6)
    assert not found.guarantee.proved


def test_a_private_curve_costs_what_it_says(tmp_path: Path) -> None:
    options: dict[str, Any] = {"time": "time", "event": "status", "client": "inst", "horizon": 1022.0, "step": 30.0}
    found = tacit.survival(lung(), epsilon=1.0, out=tmp_path / "run", ledger=tmp_path / "ledger.db", **options)
    assert list(found.run.epsilons.values()) == pytest.approx([1.0], abs=2e-3)
    assert "record" in str(found.guarantee)
    assert "Preprocessing" not in str(found.guarantee)
    assert len(found.frame["time"]) == 35
    assert found.figure.startswith("<svg")
    assert any("include noise" in line for line in str(found).split("\n"))
    with pytest.raises(tacit.TacitError, match="budget"):
        tacit.survival(lung(), epsilon=1.0, ledger=tmp_path / "ledger.db", **options)


def test_of_a_person_the_first_row_counts() -> None:
    rows = {"site": list("AABBCC"), "days": [1, 9, 2, 9, 3, 9], "died": [1, 0, 1, 0, 1, 0], "id": list("aabbcc")}
    found = tacit.survival(rows, time="days", event="died", client="site", person="id", epsilon=None)
    assert found.table("medians")["patients"] == [3]
    assert found.frame["survival"][-1] == 0


def test_accuracy_on_lung_is_that_of_the_figure() -> None:
    """RMSE of the curve at ε = 1, with the noise of 19 institutions' shares, over 200 draws."""
    days, died = np.array(LUNG["time"]), np.array(LUNG["status"]) == "1"
    cells = cells_of(days, died, 30, 35)
    reference = GOLDEN["all"]["curves"]["all"]
    at = np.searchsorted(np.array(reference["times"]), np.minimum(grid_times(0, 30, 35), 1022), side="right") - 1
    exact = np.array(reference["survival"])[at]
    random, of_shares = np.random.default_rng(0), SumNoise(1.3963, 1.0, 18 / 17)
    errors = []
    for _ in range(200):
        curve = Curve.of(cells + of_shares.draw(random, len(cells)), noise=of_shares.deviation)
        errors.append(np.sqrt(np.mean((curve.survival - exact) ** 2)))
    assert 0.025 < np.mean(errors) <= 0.033
    assert np.sqrt(np.mean((Curve.of(cells).survival - exact) ** 2)) < 0.002


def test_bands_cover_the_exact_curve() -> None:
    random, query = np.random.default_rng(1), SurvivalCells(time=0, missing=1, event=2, unknown=3, intervals=20)
    days = random.exponential(400, 400)
    cells = cells_of(days, random.random(400) < 0.7, 60, 20)
    exact, covered = Curve.of(cells).survival, []
    for _ in range(60):
        released = Released(cells + noise(1.0).draw(random, len(cells)), noise(1.0))
        (band,) = bands(query, released, grid_times(0, 60, 20), ["all"], actuarial=True, sampling=False)
        covered.append((band.lower <= exact) & (exact <= band.upper))
        assert (np.diff(band.curve.survival) <= 1e-12).all()
    assert 0.92 < np.mean(covered) <= 1


def test_p_values_include_the_noise() -> None:
    """With equal hazards they are close to uniform, though the noise is larger than sampling."""
    random, query = (
        np.random.default_rng(2),
        SurvivalCells(time=0, missing=1, event=2, unknown=5, intervals=15, arms=(3, 4)),
    )
    found = []
    for _ in range(80):
        arms = [cells_of(random.exponential(300, 250), random.random(250) < 0.8, 60, 15) for _ in range(2)]
        released = Released(np.concatenate(arms) + noise(0.5).draw(random, 62), noise(0.5))
        test = log_rank(query, released)
        assert test is not None
        found.append(test.p)
    assert kstest(found, "uniform").pvalue > 1e-3
    assert np.mean(np.array(found) < 0.05) < 0.15


def test_isotonic_regression() -> None:
    assert isotonic(np.array([3.0, 1.0, 2.0]), np.array([1.0, 3.0, 1.0])).tolist() == [1.5, 1.5, 2.0]
    values = np.random.default_rng(0).normal(size=50)
    assert (np.diff(isotonic(values, np.ones(50))) >= 0).all()


ROWS: dict[str, list[Any]] = {
    "site": list("ABC") * 4,
    "days": list(range(12)),
    "died": [1, 0] * 6,
    "arm": list("xy") * 6,
}


def changed(**columns: list[Any]) -> dict[str, list[Any]]:
    return {**ROWS, **columns}


def test_no_events_are_a_sentence() -> None:
    for epsilon in (None, 1.0):
        rows = changed(died=[0] * 12)
        found = tacit.survival(rows, time="days", event="died", by="arm", client="site", epsilon=epsilon, horizon=20.0)
        assert any("no events" in each or "cannot be told" in each for each in found.result.sentences)
    exact = tacit.survival(changed(died=[0] * 12), time="days", event="died", by="arm", client="site", epsilon=None)
    assert exact.table("log-rank test")["p"] == [None]
    assert "found no events" in " ".join(exact.result.sentences)
    assert set(exact.frame["survival"]) == {1.0}


def test_an_empty_arm_is_a_sentence(tmp_path: Path) -> None:
    file = tmp_path / "arms.toml"
    file.write_text('[numbers]\ndays = [0, 12]\n[categories]\narm = ["x", "y", "z"]\n')
    found = tacit.survival(ROWS, time="days", event="died", by="arm", client="site", epsilon=None, encoding=file)
    assert found.table("medians")["patients"] == [6, 6, 0]
    assert "The number of patients of z cannot be told from zero: the curve shows nothing." in found.result.sentences


def test_times_that_are_none_are_left_out_and_said(tmp_path: Path) -> None:
    rows = changed(days=[-5, None, *range(2, 12)])
    found = tacit.survival(rows, time="days", event="died", client="site", epsilon=None, horizon=20.0, step=1.0)
    assert found.table("medians")["patients"] == [10]
    assert any("2 of 12 values are missing or below 0" in each for each in found.run.spec.task.notes)


def test_an_arm_that_is_not_declared_is_in_no_curve(tmp_path: Path) -> None:
    file = tmp_path / "arms.toml"
    file.write_text('[numbers]\ndays = [0, 12]\n[categories]\narm = ["x"]\n')
    found = tacit.survival(ROWS, time="days", event="died", by="arm", client="site", epsilon=None, encoding=file)
    assert found.table("medians")["patients"] == [6]
    assert any("arm: 6 of 12" in each for each in found.run.spec.task.notes)


def test_one_patient_a_site_is_honest_about_noise() -> None:
    rows = {"site": list("ABC"), "days": [1, 2, 3], "died": [1, 1, 0]}
    found = tacit.survival(
        rows, time="days", event="died", client="site", epsilon=0.1, horizon=10.0, randomness="seeded"
    )
    assert any("cannot be told" in each or "too wide" in each for each in found.result.sentences)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"time": "weeks"}, "weeks"),
        ({"event": "gone"}, "gone"),
        ({"by": "dose"}, "dose"),
        ({"time": "died"}, "different columns"),
        ({"step": -1.0}, "step=-1.0 > 0"),
        ({"horizon": 0.0}, "horizon=0.0 > 0"),
        ({"time": "arm"}, "number"),
        ({"client": "town"}, "town"),
    ],
)
def test_what_cannot_be_asked(options: dict[str, Any], sentence: str) -> None:
    asked: dict[str, Any] = {"time": "days", "event": "died", "client": "site", **options}
    with pytest.raises((DataError, UserError), match=sentence):
        tacit.survival(ROWS, **asked)


def test_rows_with_a_time_before_the_start_are_left_out_and_the_result_says_so() -> None:
    rows = {"hospital": ["A", "B", "C"] * 2, "days": [5, 7, -3, 4, 6, 8], "died": [1, 0, 1, 0, 1, 0]}
    result = tacit.survival(rows, time="days", event="died", client="hospital", epsilon=None, horizon=8, step=1)
    assert result.result.tables[0].columns["patients"] == [5.0]
    assert "Rows whose time is missing, or before the start, are left out" in str(result)
