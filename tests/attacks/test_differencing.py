"""Differencing: exact sums give every record back; private ones do not."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from tacit.analyses.sums import SumNoise
from tacit.attacks.differencing import NewtonTerms, attack_sums
from tacit.cli import main
from tacit.data import Population
from tacit.errors import DataError


def population(classes: int = 2) -> Population:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(40, 5, generator=generator)
    y = torch.randint(classes, (40, 1), generator=generator).float()
    return Population.split(x, y, [torch.arange(25), torch.arange(25, 40)])


def test_exact_sums_give_every_record_back() -> None:
    exact = attack_sums(population(), SumNoise(), np.random.default_rng(0))
    assert exact.recovered == 40
    assert exact.outcomes_right == 1
    assert float(exact.errors.max()) < 1e-9
    assert np.allclose(exact.read_records, exact.records, atol=1e-9)


def test_noise_for_patients_hides_them() -> None:
    private = attack_sums(population(), SumNoise(2.0), np.random.default_rng(0))
    assert private.recovered == 0
    assert 0.2 < private.outcomes_right < 0.8


def test_the_terms_are_within_their_bound() -> None:
    query, x = NewtonTerms(5), torch.rand(50, 5).round()
    norms = query.terms(torch.zeros(query.length), x, torch.ones(50, 1)).norm(dim=1)
    assert float(norms.max()) <= query.bound + 1e-12
    full = query.terms(torch.zeros(query.length), torch.ones(1, 5), torch.ones(1, 1))
    assert full.shape == (1, query.length)


def test_an_outcome_of_three_classes_is_refused() -> None:
    with pytest.raises(DataError, match="two classes"):
        attack_sums(population(3), SumNoise(), np.random.default_rng(0))


def test_the_command_draws_a_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [f"{'ABC'[i % 3]},{20 + i},{i % 7},{i % 2}" for i in range(30)]
    Path("patients.csv").write_text("\n".join(["hospital,age,visits,died", *rows]))
    asked = ["attack", "differencing", "patients.csv", "--client", "hospital", "--target", "died", "--json"]
    assert main(asked) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["exact"]["recovered"] == document["patients"] == 30
    assert document["private"]["recovered"] < 3
    picture = Path(document["picture"]).read_text()
    assert picture.startswith("<svg")
    assert "30 of 30 recovered" in picture
