"""Boosted additive models: they find curves, their terms are bounded, all parties group alike, bad input is said."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tacit
from tacit.analyses.boosting import BoostTerms, Columns, group_bins, merge_cells
from tacit.analyses.fit_rule import plan_boosting
from tacit.analyses.fitting import FitPlan
from tacit.analyses.questions import BoostQuestion
from tacit.analyses.results import interpret
from tacit.analyses.sums import Released, SumNoise, SumRelease
from tacit.core import Method
from tacit.data.encoding import Encoding
from tacit.data.tables import read_table
from tacit.engine.learners.records.term_sums import term_sum
from tacit.errors import TacitError, UserError
from tacit.report.page import run_page
from tacit.report.run_data import RunData

RANGES = Encoding(numbers={"age": (20, 90)}, categories={"sex": ("f", "m")})
QUERY = BoostTerms(
    columns=Columns(numbers=(0,), missing=(1,), categories=((2, 3),)), target=4, unknown=5, plan=FitPlan(1)
)


def patients(count: int = 900) -> dict[str, list[Any]]:
    """The young and the old are ill; nothing else matters."""
    random = np.random.default_rng(0)
    age, sex = random.integers(20, 90, count), random.choice(["f", "m"], count)
    score = 4 * ((age - 55) / 35) ** 2 - 1.5
    return {
        "hospital": random.choice(list("ABCDE"), count).tolist(),
        "age": age.tolist(),
        "sex": sex.tolist(),
        "ill": (random.random(count) < 1 / (1 + np.exp(-score))).astype(int).tolist(),
    }


def boost(rows: dict[str, Any], **options: Any) -> Any:
    return tacit.regress(
        rows, **{"family": "ebm", "target": "ill", "client": "hospital", "encoding": RANGES, **options}
    )


def test_a_curve_that_no_line_is() -> None:
    found = boost(patients(), epsilon=None)
    rows = list(zip(*(found.frame[name] for name in ("column", "value", "score")), strict=True))
    ages = [score for column, value, score in rows if column == "age" and value != "missing"]
    assert min(ages[0], ages[-1]) > 0.8
    assert min(ages) < -0.8
    assert max(abs(score) for column, value, score in rows if column == "sex" and value != "other") < 0.25
    linear: Any = tacit.regress(patients(), target="ill", client="hospital", encoding=RANGES, epsilon=None)
    curved, straight = (float(each.table("discrimination")["AUROC"][0]) for each in (found, linear))
    assert curved > straight + 0.1
    assert found.figure.startswith("<svg")
    assert not found.guarantee.proved


def test_a_private_model_costs_what_it_says(tmp_path: Path) -> None:
    found = boost(patients(), epsilon=3.0, out=tmp_path / "run", randomness="seeded")
    assert list(found.run.epsilons.values()) == pytest.approx([3.0], abs=1e-2)
    assert "The rule chose 60 rounds" in str(found)
    quality = found.table("discrimination")
    assert quality["from"][0] < quality["AUROC"][0] <= quality["to"][0]
    rows = [
        row for row in zip(*(found.frame[name] for name in ("from", "score", "to")), strict=True) if row[1] is not None
    ]
    assert all(low <= score <= high for low, score, high in rows)
    assert len(rows) >= 8
    assert "Additive model of ill" in run_page(RunData.read(tmp_path / "run"))
    assert Method.from_plain(found.run.spec.method.to_plain()) == found.run.spec.method


def sample(count: int = 2000) -> torch.Tensor:
    random = np.random.default_rng(0)
    gone, sex = random.random(count) < 0.1, random.integers(3, size=count)  # the third is not declared
    x = np.c_[random.random(count), gone, sex == 0, sex == 1, random.random(count) < 0.3, random.random(count) < 0.1]
    return torch.from_numpy(x).float()


def test_no_row_adds_more_than_the_bound() -> None:
    query = plan_boosting(QUERY, SumRelease(epsilon=1.0, clients=10, units=1000))
    state, x = torch.zeros(query.length, dtype=torch.float64), sample()
    for done in (0, 1, 30, query.plan.fitted):
        state[0] = done
        norms = query.terms(state, x, x).norm(dim=1)
        assert float(norms.max()) <= query.bound * (1 + 1e-9)
        assert float(norms.max()) > query.bound / 4
        assert torch.equal(norms == 0, x[:, 5] > 0.5)  # unknown outcomes
        state[query.parts.counts] = 10
        state[query.parts.scores] = 1.0


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1e300, 1e300])
def test_a_hostile_state_makes_no_row_longer(value: float) -> None:
    query = plan_boosting(QUERY, SumRelease(epsilon=1.0, clients=10, units=1000))
    state, x = torch.full((query.length,), value, dtype=torch.float64), sample(50)
    for done in (1, query.plan.fitted):
        state[0] = done
        for row in range(10):
            total = term_sum(query, state, x[row : row + 1], x[row : row + 1], None)
            assert float(total.norm()) <= query.bound * (1 + 1e-9)


def test_noise_in_scores_is_what_intervals_say() -> None:
    """Scores of fits without any signal, whose only source is noise, stay within their intervals."""
    query = plan_boosting(QUERY, SumRelease(epsilon=1.0, clients=10, units=1000))
    random, x, drawn = np.random.default_rng(0), sample(), []
    start = query.terms(torch.zeros(query.length, dtype=torch.float64), x, x).sum(0).numpy()
    deviation = query.plan.noise
    for _ in range(30):
        state = query.step.step(np.zeros(query.length), start)
        for _ in range(query.plan.rounds):
            state = query.step.step(state, deviation * random.standard_normal(query.length))
        drawn.append(state[query.parts.scores])
    variance = np.zeros(query.parts.cells)
    counts, base = state[query.parts.counts], float(state[1])
    for done in range(1, query.plan.fitted):
        for of_column, group in zip(
            query.columns.slices, query.parts.groups(counts, done, query.step.merging), strict=True
        ):
            persons = np.bincount(group, counts[of_column]).astype(float)
            variance[of_column] += ((query.step.moves(base, persons, done) * deviation) ** 2)[group]
    moved = variance > 0
    assert np.std(drawn, 0)[moved] / np.sqrt(variance[moved]) == pytest.approx(1, abs=0.45)
    assert float(np.mean(np.std(drawn, 0)[moved] / np.sqrt(variance[moved]))) == pytest.approx(1, abs=0.12)


def test_groups_are_public_and_of_neighbours() -> None:
    merged = merge_cells(np.array([5.0] * 20 + [3.0]), 4.0)
    assert merged.tolist() == [*sorted(merged[:-1]), merged.max()]
    seen = set()
    for number in range(12):
        groups = group_bins(merged, (number, 0), ordered=True)
        assert (np.diff(groups) >= 0).all()
        assert groups.max() == 3
        seen.add(tuple(groups))
    assert len(seen) > 6
    assert group_bins(np.arange(2), (1, 1), ordered=False).max() == 1
    assert group_bins(np.array([0, 0, 1]), (1, 1), ordered=True).tolist() == [0, 0, 1]


def test_a_state_in_float32_has_the_same_groups() -> None:
    query = plan_boosting(QUERY, SumRelease(epsilon=1.0, clients=10, units=1000))
    total = np.random.default_rng(0).uniform(-50, 9000, query.length)
    state = query.step.step(np.zeros(query.length), total)
    counts = state[query.parts.counts]
    assert (counts == counts.astype(np.float32)).all()
    assert (counts >= 0).all()


COUNT = 60
COLUMN = list(range(COUNT))
BAD: dict[str, tuple[dict[str, list[Any]], str]] = {
    "no events": ({"a": COLUMN, "ill": [0] * COUNT}, "'1' among the values of 'ill'"),
    "only events": ({"a": COLUMN, "ill": [1] * COUNT}, "too few persons without one"),
    "no columns": ({"ill": [i % 2 for i in COLUMN]}, "columns to depend on"),
    "unknown outcomes": ({"a": COLUMN, "ill": [None] * 58 + [0, 1]}, "58 of 60 rows have none"),
    "separation": ({"a": COLUMN, "ill": [int(i > 30) for i in COLUMN]}, "AUROC"),
    "a constant column": ({"a": [1] * COUNT, "ill": [i % 2 for i in COLUMN]}, "log odds"),
    "nothing known": ({"a": [None] * COUNT, "ill": [i % 2 for i in COLUMN]}, "log odds"),
    "an identifier": ({"a": [f"n{i}" for i in range(150)], "ill": [i % 2 for i in range(150)]}, "identifier"),
}  # fmt: skip


@pytest.mark.parametrize("case", list(BAD))
def test_bad_input_is_a_sentence(case: str) -> None:
    columns, sentence = BAD[case]
    rows = {"hospital": list("ABC") * (len(columns["ill"]) // 3), **columns}
    assert sentence in answer(rows)


def answer(rows: dict[str, list[Any]]) -> str:
    """The result, or the sentence that refuses the question."""
    try:
        found = boost(rows, encoding=None, epsilon=None)
    except TacitError as error:
        return str(error)
    scores = [each for each in found.frame["score"] if each is not None]
    assert max(map(abs, scores), default=0.0) < 20  # separation has large scores, and no infinite ones
    return str(found)


@pytest.mark.parametrize("count", [1, 3])
def test_too_few_persons_are_refused_before_anything_is_spent(count: int, tmp_path: Path) -> None:
    rows = {name: column[:count] for name, column in patients().items()}
    rows["hospital"] = list("ABC")[:count]
    with pytest.raises(UserError, match="at least 3 clients" if count == 1 else "Nothing was released"):
        boost(rows, epsilon=1.0, ledger=tmp_path / "ledger.db")
    assert not (tmp_path / "ledger.db").exists()


def test_an_empty_table_shows_no_curves() -> None:
    """Sums without any row, of which the noise makes none."""
    table, question = read_table(patients(900)), BoostQuestion(target="ill", drop=("hospital",))
    encoding = question.encode(table, RANGES)
    method = question.method(encoding, SumRelease(epsilon=1.0, clients=5, units=200))
    total = np.random.default_rng(0).standard_normal(method.trainer.query.length)  # type: ignore[attr-defined]
    deviation = method.trainer.query.plan.noise  # type: ignore[attr-defined]
    found = interpret(method.trainer.query, Released(deviation * total, SumNoise(deviation)), encoding)  # type: ignore[attr-defined]
    assert found is not None
    assert set(found.table("scores")["score"]) == {None}
    assert any("cannot be told from zero" in each for each in found.sentences)
    assert not found.shapes


def test_the_rule_needs_persons() -> None:
    release = SumRelease(epsilon=1.0, clients=10, units=10)
    with pytest.raises(UserError, match="more persons"):
        plan_boosting(QUERY, release)
    few, many = (plan_boosting(QUERY, replace(release, persons=each)).plan for each in (400.0, 1e5))
    assert few.lr < many.lr == 0.2
