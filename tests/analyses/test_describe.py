"""Description of columns: exact without noise; with noise, intervals that cover; bad input ends in a sentence."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tacit
from tacit.analyses.describe import ColumnMoments, DescribeTerms, quantile_of, summaries
from tacit.analyses.sums import Released, SumNoise
from tacit.errors import DataError, UserError

RANDOM = np.random.default_rng(0)
AGES = RANDOM.integers(20, 90, 600).astype(float)
ROWS: dict[str, Any] = {
    "hospital": [f"h{i % 6}" for i in range(600)],
    "age": AGES,
    "weight": np.where(RANDOM.random(600) < 0.1, np.nan, RANDOM.normal(75, 12, 600).round(1)),
    "sex": ["f" if each else "m" for each in RANDOM.random(600) < 0.4],
}


def estimates(found: tacit.Analysis, column: str, title: str = "columns") -> dict[str, tuple[float, float, float]]:
    table = found.table(title)
    rows = zip(*(table[name] for name in ("column", "what", "estimate", "from", "to")), strict=True)
    return {what: (value, low, high) for name, what, value, low, high in rows if name == column}


def test_without_noise_it_is_exact() -> None:
    found = tacit.describe(ROWS, client="hospital", epsilon=None)
    age, weight = estimates(found, "age"), estimates(found, "weight")
    assert age["count"][0] == 600
    assert age["mean"][0] == pytest.approx(AGES.mean(), abs=1e-5)
    assert age["standard deviation"][0] == pytest.approx(AGES.std(), abs=1e-5)
    known = ROWS["weight"][~np.isnan(ROWS["weight"])]
    assert (weight["count"][0], weight["missing"][0]) == (len(known), 600 - len(known))
    assert weight["mean"][0] == pytest.approx(known.mean(), abs=1e-5)
    for part in (5, 25, 50, 75, 95):
        value, low, high = weight[f"{part} % quantile"]
        assert low <= np.quantile(known, part / 100, method="inverted_cdf") <= high + 1e-5
        assert low <= value <= high
    assert {what: each[0] for what, each in estimates(found, "sex", "cells").items()} == {
        sex: ROWS["sex"].count(sex) for sex in ("f", "m")
    }
    assert "exact pooled" in found.result.sentences[0]
    assert not found.guarantee.proved


def test_intervals_cover_what_is_true() -> None:
    """Every cell of 150 releases: counts, moments and histograms between 93 and 98 %; quantiles are to cells' edges."""
    query = DescribeTerms(numbers=(0, 2), missing=(1, 3), categories=((4, 5),), cells=10)
    exact = tacit.describe(ROWS, client="hospital", epsilon=None, bins=10)
    total, names = exact.run.state.weights.numpy(), ("age", "weight", "sex")
    truth = summaries(query, Released(total), names)
    noise, covered, quantiles = SumNoise(9.0), [], []
    for _ in range(150):
        released = Released(total + noise.draw(RANDOM, len(total)), noise)
        for found, true in zip(summaries(query, released, names), truth, strict=True):
            pairs = [
                (found.count, true.count),
                (found.missing, true.missing),
                *zip(found.cells, true.cells, strict=True),
            ]
            if found.moments is not None and true.moments is not None:
                pairs += [(found.moments.mean, true.moments.mean), (found.moments.deviation, true.moments.deviation)]
            covered += [each.lower <= real.value <= each.upper for each, real in pairs]
            quantiles += [
                found.quantiles[part].lower <= real.value <= found.quantiles[part].upper
                for part, real in true.quantiles.items()
            ]
    assert 0.93 <= np.mean(covered) <= 0.98
    assert np.mean(quantiles) >= 0.93


def test_a_description_costs_what_it_says(tmp_path: Path) -> None:
    file = tmp_path / "ranges.toml"
    file.write_text('[numbers]\nage = [0, 110]\nweight = [30, 200]\n[categories]\nsex = ["f", "m"]\n')
    options: dict[str, Any] = {"client": "hospital", "epsilon": 1.0, "randomness": "seeded"}
    found = tacit.describe(ROWS, encoding=file, out=tmp_path / "run", **options)
    assert list(found.run.epsilons.values()) == pytest.approx([1.0], abs=2e-3)
    assert "Preprocessing" not in str(found.guarantee)
    value, low, high = estimates(found, "age")["count"]
    assert low <= value <= high
    assert low < 600 < high
    loose = tacit.describe(ROWS, client="hospital", epsilon=1.0)
    assert "Preprocessing used the clients' rows" in str(loose.guarantee)


def test_persons_count_once() -> None:
    rows = {"hospital": list("AABBCC"), "age": [10, 30, 50, 50, 70, 70], "id": list("aabbcc")}
    found = estimates(tacit.describe(rows, client="hospital", person="id", epsilon=None), "age")
    assert found["count"][0] == 3
    assert found["mean"][0] == pytest.approx((20 + 50 + 70) / 3, abs=1e-5)


def test_a_unit_is_within_the_bound() -> None:
    """For any rows, hostile ones included, the query needs no clipping."""
    import torch

    query = DescribeTerms(numbers=(0, 2), missing=(1, 3), categories=((4, 5),), cells=7)
    x = torch.rand(200, 6)
    x[:100] = x[:100].round()
    x[0] = torch.tensor([1.0, 1.0, 0.0, 0.0, 1.0, 1.0])
    norms = query.terms(torch.zeros(query.length), x, x).norm(dim=1)
    assert float(norms.max()) <= query.bound + 1e-9
    assert math.isclose(query.bound, math.sqrt(1 + 2 * 2.25 + 1))


def test_sampling_widens_intervals() -> None:
    sums = np.array([10.0, 20.0])
    alone, both = (ColumnMoments.of(sums, 100.0, 0.5, sampling=sampling) for sampling in (False, True))
    assert both.mean.upper - both.mean.lower > 2 * (alone.mean.upper - alone.mean.lower)
    cells = np.full(20, 5.0)
    assert quantile_of(cells, 0.5, 0.0, sampling=True).upper > quantile_of(cells, 0.5, 0.0, sampling=False).upper


def test_more_cells_than_patients_are_a_sentence() -> None:
    rows = {"hospital": list("ABC"), "age": [20, 30, 40], "sex": list("fmf")}
    found = tacit.describe(rows, client="hospital", epsilon=0.1, randomness="seeded")
    assert "cannot be told from zero" in " ".join(found.result.sentences)
    value, low, high = estimates(found, "age")["mean"]
    assert (low, high) == (20.0, 40.0)
    assert low <= value <= high


def test_a_constant_column_is_described() -> None:
    rows = {"hospital": list("ABC") * 2, "age": [40] * 6, "sex": ["f"] * 6}
    found = estimates(tacit.describe(rows, client="hospital", epsilon=None), "age")
    assert found["mean"][0] == pytest.approx(40, abs=1e-6)
    assert found["standard deviation"][0] == pytest.approx(0, abs=1e-6)


def test_values_that_are_not_declared_are_counted_as_other(tmp_path: Path) -> None:
    file = tmp_path / "ranges.toml"
    file.write_text('[categories]\nsex = ["f"]\n')
    found = tacit.describe(ROWS, client="hospital", columns=["sex"], epsilon=None, encoding=file)
    assert estimates(found, "sex")["other"][0] == ROWS["sex"].count("m")
    assert any("none of those that the encoding has" in each for each in found.run.spec.task.notes)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"columns": ["height"]}, "height"),
        ({"drop": ["age", "weight", "sex"]}, "1 to 1000 columns"),
        ({"bins": 1}, "bins=1"),
        ({"epsilon": 0.0}, "epsilon=0.0 > 0"),
        ({"delta": 2.0}, "delta"),
        ({"client": None}, "names the client"),
    ],
)
def test_what_cannot_be_asked(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises((DataError, UserError), match=sentence):
        tacit.describe(ROWS, **{"client": "hospital", **options})


def test_training_takes_ranges_from_a_description(tmp_path: Path) -> None:
    """From what was released alone: the guarantee of training has nothing to add about preprocessing."""
    file = tmp_path / "ranges.toml"
    file.write_text('[numbers]\nage = [0, 110]\nweight = [30, 200]\n[categories]\nsex = ["f", "m", "x"]\n')
    options: dict[str, Any] = {"client": "hospital", "epsilon": 5.0, "randomness": "seeded", "encoding": file}
    encoding = tacit.describe(ROWS, **options).encoding
    low, high = encoding.numbers["age"]
    assert 15 < float(low) < 35
    assert 75 < float(high) < 100
    assert set(encoding.categories["sex"]) >= {"f", "m"}
    (tmp_path / "released.json").write_bytes(encoding.to_bytes())
    rows = {**ROWS, "died": [i % 2 for i in range(600)]}
    released = str(tmp_path / "released.json")
    task = tacit.Task.from_table(rows, client="hospital", target="died", encoding=released, classes=("0", "1"))
    assert task.preprocessing.not_covered == ""
    private = tacit.describe(ROWS, client="hospital", epsilon=5.0).encoding
    assert private.preprocessing.source == "private"
