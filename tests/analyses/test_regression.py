"""Regression: equal to statsmodels without noise; with noise, intervals that cover; bad input ends in a sentence."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import statsmodels.api as sm
import torch
from numpy.typing import NDArray

import tacit
from tacit.analyses.fit_rule import plan_fit
from tacit.analyses.fitting import FitPlan, FitState
from tacit.analyses.questions import RegressionQuestion
from tacit.analyses.regression import Design, Family, RegressionTerms
from tacit.analyses.regression_results import discrimination
from tacit.analyses.sums import SumRelease
from tacit.core import Method
from tacit.data.encoding import Encoding
from tacit.errors import TacitError, UserError
from tacit.report.page import run_page
from tacit.report.run_data import RunData

FAMILIES = {"logistic": sm.families.Binomial(), "linear": sm.families.Gaussian(), "poisson": sm.families.Poisson()}
OUTCOMES = {"logistic": "died", "linear": "pressure", "poisson": "visits"}
DESIGN = Design(numbers=(0, 1, 2), categories=((3, 4), (5, 6, 7)))
EFFECTS = np.array([-1.0, 0.8, -0.5, 0.3, 0.6, -0.4, 0.2])


def patients(count: int = 400) -> dict[str, list[Any]]:
    random = np.random.default_rng(0)
    age, sex = random.integers(20, 90, count), random.choice(["f", "m"], count)
    stage = random.choice(["I", "II", "III"], count)
    score = -4 + 0.05 * age + 0.5 * (sex == "m") + 0.4 * (stage == "II") - 0.3 * (stage == "III")
    return {
        "hospital": random.choice(list("ABCDE"), count).tolist(),
        "age": age.tolist(),
        "sex": sex.tolist(),
        "stage": stage.tolist(),
        "died": (random.random(count) < 1 / (1 + np.exp(-score))).astype(int).tolist(),
        "pressure": (120 + 5 * score + random.normal(0, 10, count)).tolist(),
        "visits": random.poisson(np.exp(score / 2)).tolist(),
    }


def matrix(rows: dict[str, list[Any]]) -> NDArray[np.float64]:
    sex, stage = np.array(rows["sex"]), np.array(rows["stage"])
    columns: NDArray[np.float64] = np.c_[np.ones(len(sex)), rows["age"], sex == "m", stage == "II", stage == "III"]
    return columns.astype(float)


def regress(rows: dict[str, Any], target: str = "died", **options: Any) -> Any:
    given = {"client": "hospital", "columns": ("age", "sex", "stage"), **options}
    return tacit.regress(rows, target=target, **given)


@pytest.mark.parametrize("family", ["logistic", "linear", "poisson"])
def test_without_noise_it_equals_statsmodels(family: Family) -> None:
    rows = patients()
    found = regress(rows, OUTCOMES[family], family=family, epsilon=None)
    outcome = np.array(rows[OUTCOMES[family]], dtype=float)
    expected = sm.GLM(outcome, matrix(rows), family=FAMILIES[family]).fit(tol=1e-12, maxiter=100)
    assert found.frame["column"] == ["intercept", "age", "sex=m against f", "stage=II against I", "stage=III against I"]
    assert np.abs(np.array(found.frame["coefficient"]) - expected.params).max() < 1e-6
    limits = np.c_[found.frame["population from"], found.frame["population to"]]
    assert np.abs(limits - expected.conf_int()).max() < 1e-5
    assert found.frame["pooled from"] == pytest.approx(found.frame["coefficient"])
    assert not found.guarantee.proved


def test_rows_of_a_person_count_as_one_together() -> None:
    rows = patients()
    rows["id"] = [i // 2 for i in range(400)]
    rows["hospital"] = [rows["hospital"][i // 2 * 2] for i in range(400)]
    kept = slice(0, 300)  # 100 persons of two rows, then 100 of one
    rows = {name: column[:300] for name, column in rows.items()}
    rows["id"][200:] = range(1000, 1100)
    weights = np.r_[np.full(200, 0.5), np.ones(100)]
    found = regress(rows, epsilon=None, person="id")
    expected = sm.GLM(np.array(rows["died"])[kept], matrix(rows), family=FAMILIES["logistic"], freq_weights=weights)
    assert np.abs(np.array(found.frame["coefficient"]) - expected.fit(tol=1e-12).params).max() < 1e-6


def test_auroc_and_calibration_are_those_of_the_scores() -> None:
    from sklearn.metrics import roc_auc_score

    rows = patients()
    found = regress(rows, epsilon=None)
    scores = matrix(rows) @ np.array(found.frame["coefficient"])
    quality, cells = found.table("discrimination"), found.table("calibration")
    assert quality["AUROC"][0] == pytest.approx(roc_auc_score(rows["died"], scores), abs=0.01)
    assert quality["from"][0] < quality["AUROC"][0] < quality["to"][0]
    assert quality["events"][0] == sum(rows["died"])
    assert sum(cells["persons"]) == pytest.approx(400)
    inside = [
        low <= predicted <= high
        for low, predicted, high in zip(cells["from"], cells["predicted"], cells["to"], strict=True)
    ]
    assert np.mean(inside) >= 0.8


def query_of(family: Family, **changes: Any) -> RegressionTerms:
    query = RegressionTerms(family=family, design=DESIGN, target=8, unknown=9, plan=FitPlan(8, 4, histogram=True))
    return replace(query, **changes)


@pytest.mark.parametrize("family", ["logistic", "linear", "poisson"])
@pytest.mark.parametrize("second_order", [True, False])
def test_no_row_adds_more_than_the_bound(family: Family, second_order: bool) -> None:
    """For any coefficients and rows within the ranges; for linear regression where its only release is made."""
    query = query_of(family, largest=6.0 if family == "poisson" else 1.0)
    query = query if second_order else replace(query, plan=FitPlan(8, lr=0.1))
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(4000, 10, generator=generator).round(decimals=1)
    x[:, 3:8] = torch.cat([torch.eye(2)[torch.arange(4000) % 2], torch.eye(3)[torch.arange(4000) % 3]], 1)
    x[:, 8], x[:, 9] = (x[:, 8] > 0.5) if family == "logistic" else x[:, 8], 0
    x[:2000, :3] = x[:2000, :3].round()  # corners
    for scale in (0.0, 1.0, 30.0) if family != "linear" else (0.0,):
        state = torch.zeros(query.length, dtype=torch.float64)
        state[0] = 1
        state[query.layout.coefficients] = scale * torch.randn(7, generator=generator, dtype=torch.float64)
        norms = query.terms(state, x, x).norm(dim=1)
        assert float(norms.max()) <= query.bound * (1 + 1e-9)
        assert float(norms.max()) > query.bound / 20


def test_incomplete_rows_add_nothing() -> None:
    query = query_of("logistic")
    x = torch.zeros(4, 10)
    x[:, 3] = x[:, 5] = 1
    x[1, 5] = 0  # a category that is not listed
    x[2, 9] = 1  # no outcome
    design = replace(DESIGN, missing=(1,))
    x[3, 1] = 1
    terms = replace(query, design=design).terms(torch.zeros(query.length, dtype=torch.float64), x, x)
    assert (terms.norm(dim=1) > 0).tolist() == [True, False, False, False]


def sample(random: np.random.Generator, count: int) -> torch.Tensor:
    numbers, sex = np.clip(random.normal(0.5, 0.22, (count, 3)), 0, 1), random.random(count) < 0.4
    stage = random.choice(3, count, p=[0.5, 0.3, 0.2])
    x = np.c_[numbers, ~sex, sex, stage == 0, stage == 1, stage == 2, np.zeros((count, 2))]
    rows, _ = DESIGN.rows(torch.from_numpy(x))
    x[:, 8] = random.random(count) < 1 / (1 + np.exp(-(rows.numpy() @ EFFECTS)))
    return torch.from_numpy(x)


def fit(query: RegressionTerms, x: torch.Tensor, noise: float, random: np.random.Generator) -> FitState:
    state = np.zeros(query.length)
    for _ in range(query.plan.rounds):
        total = query.terms(torch.from_numpy(state), x, x).sum(0).numpy()
        state = query.step.step(state, total + noise * random.standard_normal(len(total)))
    return FitState(state, query.step)


def test_intervals_cover_the_pooled_estimate_and_reject_more_noise() -> None:
    """The noise-only interval of 60 fits to the same rows; with three halves of the noise it fails."""
    random = np.random.default_rng(1)
    x = sample(random, 4000)
    release = SumRelease(epsilon=3.0, clients=10, units=400)
    query = plan_fit(query_of("logistic"), release)
    assert query.second_order
    pooled = fit(plan_fit(query, replace(release, epsilon=None)), x, 0.0, random).estimate
    deviation = 4.0 * query.bound
    covered: dict[float, list[NDArray[np.bool_]]] = {1.0: [], 1.5: []}
    for factor, found in covered.items():
        for _ in range(60):
            state = fit(query, x, factor * deviation, random)
            spread = 1.96 * np.sqrt(np.diag(state.noise_covariance(deviation)))
            found.append(np.abs(state.estimate - pooled) < spread)
    assert 0.90 < float(np.mean(covered[1.0])) < 0.99
    assert float(np.mean(covered[1.5])) < 0.88


def test_the_rule_is_public_and_says_why() -> None:
    release = SumRelease(epsilon=1.0, clients=10, units=100)
    few, many = (plan_fit(query_of("logistic"), replace(release, persons=each)).plan for each in (1000.0, 1e6))
    assert few.lr > 0
    assert "20 steps along the gradient for about 1,000 persons, 7 coefficients and ε = 1" in few.why
    assert many.second_order
    assert (many.rounds, many.averaged, many.releases) == (8, 4, 9)
    richer = plan_fit(query_of("logistic"), replace(release, persons=5e3, epsilon=3.0)).plan
    assert richer.second_order
    with pytest.raises(UserError, match="Nothing was released"):
        plan_fit(query_of("logistic"), replace(release, persons=9.0))


def test_a_private_regression_costs_what_it_says(tmp_path: Path) -> None:
    ranges = Encoding(numbers={"age": (18, 100)}, categories={"sex": ("f", "m"), "stage": ("I", "II", "III")})
    options: dict[str, Any] = {"epsilon": 3.0, "encoding": ranges, "ledger": tmp_path / "ledger.db"}
    seeded: dict[str, Any] = {
        "randomness": "seeded",
        "seed": 1,
    }  # by chance, one run in forty has fewer intervals that contain it
    found = regress(patients(3000), out=tmp_path / "run", **options, **seeded)
    assert list(found.run.epsilons.values()) == pytest.approx([3.0], abs=1e-2)
    assert "over 9 rounds" in str(found.guarantee)
    assert "Preprocessing" not in str(found.guarantee)
    assert found.figure.startswith("<svg")
    assert "The rule chose 8 rounds of Newton" in str(found)
    pooled = regress(patients(3000), epsilon=None).frame["coefficient"]
    inside = [
        low < each < high
        for low, each, high in zip(found.frame["pooled from"], pooled, found.frame["pooled to"], strict=True)
    ]
    assert sum(inside) >= 4
    assert "Logistic regression of died" in run_page(RunData.read(tmp_path / "run"))
    assert Method.from_plain(found.run.spec.method.to_plain()) == found.run.spec.method
    with pytest.raises(TacitError, match="budget"):
        regress(patients(3000), **options)


COUNT = 60
COLUMN = list(range(COUNT))
BAD: dict[str, tuple[dict[str, list[Any]], dict[str, Any], str]] = {
    "separation": ({"a": COLUMN, "y": [int(i > 30) for i in COLUMN]}, {}, "separate events"),
    "a constant column": (
        {"a": COLUMN, "c": [5] * COUNT, "y": [i % 2 for i in COLUMN]},
        {},
        "do not determine intercept, c",
    ),
    "no events": ({"a": COLUMN, "y": [0] * COUNT}, {}, "'1' among the values of 'y'"),
    "no counts": ({"a": COLUMN, "y": [0] * COUNT}, {"family": "poisson"}, "there are no events"),
    "negative counts": ({"a": COLUMN, "y": [-1] * COUNT}, {"family": "poisson"}, "counts of 'y' from 0"),
    "texts": ({"a": COLUMN, "y": ["no"] * COUNT}, {"family": "linear"}, "Expected numbers"),
    "nothing complete": ({"a": [None] * COUNT, "y": [i % 2 for i in COLUMN]}, {}, "do not determine intercept, a"),
    "no columns": ({"y": [i % 2 for i in COLUMN]}, {}, "columns to depend on"),
    "an identifier": ({"a": [f"n{i}" for i in range(150)], "y": [i % 2 for i in range(150)]}, {}, "identifier"),
}  # fmt: skip


@pytest.mark.parametrize("case", list(BAD))
def test_bad_input_is_a_sentence(case: str) -> None:
    columns, options, sentence = BAD[case]
    rows = {"hospital": ["A", "B", "C"] * (len(columns["y"]) // 3), **columns}
    assert sentence in answer(rows, **options)


def answer(rows: dict[str, list[Any]], **options: Any) -> str:
    """The result, which lacks what cannot be told, or the sentence that refuses the question."""
    try:
        found = tacit.regress(rows, target="y", client="hospital", epsilon=None, **options)
    except TacitError as error:
        return str(error)
    assert None in found.frame["coefficient"]
    return str(found)


@pytest.mark.parametrize("rows", [1, 3])
def test_too_few_persons_are_refused_before_anything_is_spent(rows: int, tmp_path: Path) -> None:
    table = {"hospital": list("ABC")[:rows], **{f"c{i}": [i, 2 * i, 3][:rows] for i in range(6)}, "y": [1, 0, 1][:rows]}
    with pytest.raises(UserError, match="at least 3 clients" if rows == 1 else "Nothing was released"):
        tacit.regress(table, target="y", client="hospital", epsilon=1.0, ledger=tmp_path / "ledger.db")
    assert not (tmp_path / "ledger.db").exists()
    exact = tacit.regress(table, target="y", client="hospital", epsilon=None)
    assert set(exact.frame["coefficient"]) == {None}


def test_private_coefficients_of_no_rows_are_not_shown() -> None:
    rows = {"hospital": ["A", "B", "C"] * 20, "a": [None] * COUNT, "y": [i % 2 for i in COLUMN]}
    found = tacit.regress(rows, target="y", client="hospital", epsilon=1.0, randomness="seeded")
    assert set(found.frame["coefficient"]) == {None}
    assert "cannot be told from zero" in str(found)


def test_a_private_constant_column_has_no_interval() -> None:
    """In the Hessian it looks like the intercept, but for noise."""
    rows = {**patients(6000), "c": [7] * 6000}
    ranges = Encoding(numbers={"age": (18, 100), "c": (0, 14)}, categories={"sex": ("f", "m")})
    found = regress(rows, columns=("age", "sex", "c"), epsilon=3.0, encoding=ranges, randomness="seeded")
    shown = dict(zip(found.frame["column"], found.frame["coefficient"], strict=True))
    assert shown["c"] is None
    assert shown["age"] == pytest.approx(0.05, abs=0.03)
    assert "do not determine" in str(found)


def test_a_category_outside_the_list_is_reported_and_left_out() -> None:
    ranges = Encoding(numbers={"age": (18, 100)}, categories={"stage": ("I", "II")})
    found = regress(patients(), columns=("age", "stage"), epsilon=None, encoding=ranges)
    kept = sum(stage != "III" for stage in patients()["stage"])
    assert found.table("discrimination")["persons"] == [kept]
    assert any("III" in note for note in found.run.spec.task.notes)


def test_auroc_needs_events_that_can_be_told_from_noise() -> None:
    cells = np.zeros((2, 20))
    cells[0], cells[1, 10:] = 50, 3
    assert not np.isnan(discrimination(cells, 0.5).auroc)
    assert np.isnan(discrimination(cells, 5.0).auroc)


def test_what_no_question_can_ask() -> None:
    with pytest.raises(UserError, match="family"):
        RegressionQuestion(target="died", family="probit")  # type: ignore[arg-type]
    with pytest.raises(TacitError, match="weight"):
        regress(patients(), target="weight")
    with pytest.raises(TacitError, match="height"):
        regress(patients(), columns=("height",))
