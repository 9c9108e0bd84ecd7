"""AUROC and calibration from a histogram of scores: near the exact ones, with intervals that cover."""

from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from tacit.analyses.metrics import ScoreCells, auroc_of, score_metrics
from tacit.analyses.questions import MetricsQuestion
from tacit.analyses.sums import Released, SumNoise
from tacit.cli import main
from tacit.errors import TacitError
from tacit.report.analyses import run_analysis
from tacit.runs.analyses import Setting

RANDOM = np.random.default_rng(0)
SCORES = RANDOM.random(3000)
OUTCOMES = (RANDOM.random(3000) < SCORES).astype(int)
ROWS = {"site": ["A", "B", "C"] * 1000, "score": SCORES, "died": OUTCOMES}
QUERY = ScoreCells(score=0, missing=1, event=2, unknown=3)


def cells() -> np.ndarray:
    places = np.minimum((SCORES * 50).astype(int), 49) + 50 * OUTCOMES
    return np.bincount(places, minlength=100).astype(float)


def test_without_noise_it_is_nearly_exact() -> None:
    asked = MetricsQuestion(score="score", event="died")
    outcome = run_analysis(ROWS, asked, Setting(client="site", epsilon=None))
    table = outcome.frame
    assert table["what"] == ["AUROC", "rows", "events"]
    assert table["estimate"][0] == pytest.approx(roc_auc_score(OUTCOMES, SCORES), abs=2e-3)
    assert table["estimate"][1:] == [3000, OUTCOMES.sum()]
    calibration = outcome.table("calibration")
    rates = [value for value, what in zip(calibration["estimate"], calibration["what"], strict=True) if what != "rows"]
    tenths = [OUTCOMES[(low / 10 <= SCORES) & ((low + 1) / 10 > SCORES)].mean() for low in range(10)]
    assert np.array(rates, dtype=float) == pytest.approx(np.array(tenths))


def test_intervals_cover_the_exact_histogram() -> None:
    exact = float(auroc_of(cells().reshape(1, 2, 50))[0])
    noise, covered = SumNoise(5.0), []
    for _ in range(150):
        metrics = score_metrics(QUERY, Released(cells() + noise.draw(RANDOM, 100), noise))
        covered.append(metrics.auroc.lower <= exact <= metrics.auroc.upper)
    assert 0.9 <= np.mean(covered) <= 1


def test_nothing_is_known_of_few_rows() -> None:
    metrics = score_metrics(QUERY, Released(np.zeros(100), SumNoise(5.0)))
    assert (metrics.auroc.lower, metrics.auroc.upper) == (0.0, 1.0)


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    lines = [f"{'ABC'[i % 3]},{SCORES[i]:.4f},{OUTCOMES[i]}" for i in range(300)]
    Path("scored.csv").write_text("\n".join(["site,score,died", *lines]))
    assert main(["metrics", "scored.csv", "--client", "site", "--score", "score", "--event", "died"]) == 0
    printed = capsys.readouterr().out
    assert "AUROC" in printed
    assert "differential privacy" in printed.replace("-", " ")


def test_what_cannot_be_asked() -> None:
    with pytest.raises(TacitError, match="different columns"):
        MetricsQuestion(score="score", event="score")
    with pytest.raises(TacitError, match="risk"):
        run_analysis(ROWS, MetricsQuestion(score="risk", event="died"), Setting(client="site"))
