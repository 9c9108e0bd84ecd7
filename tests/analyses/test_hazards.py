"""Piecewise-exponential hazards: equal to statsmodels without noise; bounded terms; bad input ends in a sentence."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import statsmodels.api as sm
import torch
from numpy.typing import NDArray

import tacit
from tacit.analyses.fit_rule import plan_fit
from tacit.analyses.fitting import FitPlan, FitState
from tacit.analyses.hazards import HazardTerms
from tacit.analyses.regression import Design
from tacit.analyses.sums import SumRelease
from tacit.core import Method
from tacit.data.encoding import Encoding
from tacit.engine.learners.records.term_sums import term_sum
from tacit.errors import TacitError, UserError

PIECES, STEP = 4, 300
EFFECTS = np.array([0.9, -0.6])
QUERY = HazardTerms(
    design=Design(numbers=(0,), categories=((1, 2),)), time=3, missing=4, event=5, unknown=6, pieces=5, plan=FitPlan(1)
)


def patients(count: int = 300) -> dict[str, list[Any]]:
    random = np.random.default_rng(0)
    age, sex = random.integers(20, 90, count), random.choice(["f", "m"], count)
    until = random.exponential(np.exp(8 - 0.03 * age - 0.5 * (sex == "m")))
    censored = random.integers(0, PIECES * STEP + 200, count)
    return {
        "hospital": random.choice(list("ABCDE"), count).tolist(),
        "age": age.tolist(),
        "sex": sex.tolist(),
        "days": np.minimum(np.ceil(until), censored).astype(int).tolist(),
        "died": (np.ceil(until) <= censored).astype(int).tolist(),
    }


def fit_cox(rows: dict[str, Any], **options: Any) -> Any:
    given = {"family": "cox", "time": "days", "event": "died", "client": "hospital", "horizon": PIECES * STEP}
    return tacit.regress(rows, **{**given, "step": STEP, **options})


def expanded(rows: dict[str, list[Any]]) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """A row for every patient and piece: outcome, inputs and exposure."""
    outcomes, inputs, exposures = [], [], []
    for age, sex, days, died in zip(rows["age"], rows["sex"], rows["days"], rows["died"], strict=True):
        for piece in range(PIECES):
            exposure = min(max(days - piece * STEP, 0), STEP)
            if exposure:
                of_piece = np.arange(PIECES) == piece
                inputs.append([*of_piece, age, sex == "m"])
                outcomes.append(died and (days - 1) // STEP == piece)
                exposures.append(exposure)
    return np.array(outcomes, dtype=float), np.array(inputs, dtype=float), np.array(exposures, dtype=float)


def test_without_noise_it_equals_poisson_regression_with_exposure() -> None:
    rows = patients()
    found = fit_cox(rows, epsilon=None)
    outcomes, inputs, exposures = expanded(rows)
    model = sm.GLM(outcomes, inputs, family=sm.families.Poisson(), exposure=exposures)
    expected = model.fit(tol=1e-13, maxiter=100)
    assert found.frame["column"] == ["age", "sex=m against f"]
    assert np.abs(np.array(found.frame["coefficient"]) - expected.params[PIECES:]).max() < 1e-6
    baseline = np.log(np.array(found.table("baseline hazard")["hazard"]))
    assert np.abs(baseline - expected.params[:PIECES]).max() < 1e-6
    limits = np.c_[found.frame["population from"], found.frame["population to"]]
    assert np.abs(limits - expected.conf_int()[PIECES:]).max() < 1e-5
    assert not found.guarantee.proved


def test_with_a_piece_for_every_time_it_is_cox_regression() -> None:
    rows = patients(200)
    weeks = [1 + days // 100 for days in rows["days"]]
    found = fit_cox({**rows, "days": weeks}, epsilon=None, horizon=14.0, step=1.0)
    inputs = np.c_[rows["age"], np.array(rows["sex"]) == "m"].astype(float)
    expected = sm.PHReg(np.array(weeks, dtype=float), inputs, status=np.array(rows["died"]), ties="breslow").fit(
        disp=0, method="newton", tol=1e-12
    )
    assert np.abs(np.array(found.frame["coefficient"]) - expected.params).max() < 1e-6


def encoded(random: np.random.Generator, count: int, followed: float = 0.6) -> torch.Tensor:
    """Encoded patients of a population: hazards of 0.2 in each of five pieces, and two effects."""
    age, sex = random.random(count), random.random(count) < 0.4
    rows = np.c_[2 * age - 1, sex]
    until, censored = random.exponential(5 * np.exp(-rows @ EFFECTS)), random.uniform(0, 5 / followed, count)
    place = np.minimum(until, censored)
    x = np.c_[age, ~sex, sex, np.clip((place + 1) / 7, 0, 1), np.zeros(count), until <= censored, np.zeros(count)]
    return torch.from_numpy(x)


def fit(query: HazardTerms, x: torch.Tensor, noise: float, random: np.random.Generator) -> FitState:
    state = np.zeros(query.length)
    for _ in range(query.plan.fitted):
        total = term_sum(query, torch.from_numpy(state), x, x, None).numpy()
        state = query.step.step(state, total + noise * random.standard_normal(len(total)))
    return FitState(state, query.step)


@pytest.mark.parametrize("plan", [FitPlan(8, 4, preliminary=True), FitPlan(20, lr=1.0, preliminary=True)])
def test_no_row_adds_more_than_the_bound(plan: FitPlan) -> None:
    query = replace(QUERY, plan=plan)
    x = encoded(np.random.default_rng(0), 4000)
    x[:2000, 0] = x[:2000, 0].round()  # corners
    generator = torch.Generator().manual_seed(0)
    for done, scale in ((0, 0.0), (1, 0.0), (1, 1.0), (1, 30.0)):
        state = torch.zeros(query.length, dtype=torch.float64)
        state[0] = done
        state[query.layout.coefficients] = scale * torch.randn(query.layout.size, generator=generator).double()
        norms = query.terms(state, x, x).norm(dim=1)
        assert float(norms.max()) <= query.bound * (1 + 1e-9)
        assert float(norms.max()) > query.bound / 20


def test_intervals_cover_the_pooled_estimate_and_reject_more_noise() -> None:
    random = np.random.default_rng(1)
    x, release = encoded(random, 2000), SumRelease(epsilon=40.0, clients=10, units=5000)
    query = plan_fit(QUERY, release)
    deviation = query.plan.noise
    assert query.second_order
    pooled = fit(plan_fit(QUERY, replace(release, epsilon=None)), x, 0.0, random).estimate
    covered: dict[float, list[NDArray[np.bool_]]] = {1.0: [], 1.7: []}
    for factor, found in covered.items():
        for _ in range(25):
            state = fit(query, x, factor * deviation, random)
            spread = 1.96 * np.sqrt(np.diag(state.noise_covariance(deviation)))
            found.append(np.abs(state.estimate - pooled) < spread)
    assert 0.89 < float(np.mean(covered[1.0])) < 0.99
    assert float(np.mean(covered[1.7])) < 0.88


def test_a_private_fit_costs_what_it_says_and_needs_few_persons() -> None:
    ranges = Encoding(numbers={"age": (18, 100)}, categories={"sex": ("f", "m")})
    found = fit_cox(patients(), epsilon=3.0, encoding=ranges)
    assert list(found.run.epsilons.values()) == pytest.approx([3.0], abs=1e-2)
    assert "steps along the gradient for about 300 persons" in str(found)
    assert "Preprocessing" not in str(found.guarantee)
    assert Method.from_plain(found.run.spec.method.to_plain()) == found.run.spec.method
    with pytest.raises(UserError, match="Nothing was released"):
        fit_cox({name: column[:12] for name, column in patients().items()}, epsilon=0.1, encoding=ranges)


COUNT = 60
DAYS = [i * 17 % 1000 for i in range(COUNT)]
BAD: dict[str, tuple[dict[str, list[Any]], str]] = {
    "no events": ({"days": DAYS, "died": [0] * COUNT, "a": list(range(COUNT))}, "'1' among the values of 'died'"),
    "negative times": ({"days": [-1] * COUNT, "died": [1] * COUNT, "a": list(range(COUNT))}, "do not determine"),
    "missing times": ({"days": [None] * COUNT, "died": [1] * COUNT, "a": list(range(COUNT))}, "do not determine"),
    "a constant column": ({"days": DAYS, "died": [1] * COUNT, "a": [3] * COUNT}, "do not determine a"),
    "no column": ({"days": DAYS, "died": [1] * COUNT}, "columns to depend on"),
    "texts as times": ({"days": ["soon"] * COUNT, "died": [1] * COUNT, "a": list(range(COUNT))}, "Expected numbers"),
    "an arm without events": (
        {"days": DAYS, "died": [i % 2 for i in range(COUNT)], "a": list("xy" * (COUNT // 2))},
        "did not converge",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", list(BAD))
def test_bad_input_is_a_sentence(case: str) -> None:
    columns, sentence = BAD[case]
    assert sentence in answer({"hospital": list("ABC") * (COUNT // 3), **columns})


def answer(rows: dict[str, list[Any]]) -> str:
    """The result, which lacks what cannot be told, or the sentence that refuses the question."""
    try:
        found = fit_cox(rows, epsilon=None)
    except TacitError as error:
        return str(error)
    assert None in found.frame["coefficient"]
    return str(found)


def test_lost_rows_are_said() -> None:
    rows = patients(60)
    rows["days"][:3], rows["age"][5] = [-1, None, -2], None
    notes = fit_cox(rows, epsilon=None).run.spec.task.notes
    assert "days: 3 of 60 values are missing or below 0 and are left out with their rows." in notes
    assert "age: 1 of 60 values are missing and are left out with their rows." in notes
    assert not any("nearer of the two" in each for each in notes)


def test_what_no_question_can_ask() -> None:
    rows = patients(30)
    with pytest.raises(UserError, match="arguments of regress with family=cox among"):
        fit_cox(rows, target="died")
    with pytest.raises(UserError, match="event of regress with family=cox"):
        fit_cox(rows, event="")
    with pytest.raises(UserError, match="arguments of regress with family=linear among"):
        tacit.regress(rows, target="days", family="linear", event="died", client="hospital")
    with pytest.raises(UserError, match="different columns"):
        fit_cox(rows, event="days")
    with pytest.raises(TacitError, match="weeks"):
        fit_cox(rows, time="weeks")
