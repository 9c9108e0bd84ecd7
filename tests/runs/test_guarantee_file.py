import json
from pathlib import Path

import pytest

import tacit
from tacit.core.prices import Unit
from tacit.errors import RunError
from tacit.privacy.guarantee import Guarantee, LeakageGuarantee
from tacit.runs import guarantee_file
from tacit.runs.directory import GUARANTEE


@pytest.mark.parametrize(
    "guarantee",
    [
        Guarantee(epsilon=1.5, delta=1e-5, rounds=3, adjacency="zero-out", not_covered=("This is not covered.",)),
        Guarantee(epsilon=float("inf"), delta=1e-5),
        Guarantee.none("no noise is added"),
        LeakageGuarantee(leakage=2.4, per_round=0.4, radius=0.05, rounds=6),
    ],
)
def test_a_guarantee_is_read_as_it_was_written(guarantee: Guarantee | LeakageGuarantee, tmp_path: Path) -> None:
    guarantee_file.write(tmp_path / "g.json", {guarantee.unit: guarantee})
    assert guarantee_file.read(tmp_path / "g.json") == {guarantee.unit: guarantee}
    assert (tmp_path / "g.json").stat().st_mode & 0o777 == 0o600


def test_no_file_is_no_guarantee_and_another_kind_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "g.json"
    assert guarantee_file.read(file) == {}
    file.write_text(json.dumps({"format": 2, "guarantees": {"client": {"kind": "trust", "guarantee": {}}}}))
    with pytest.raises(RunError, match="to be one of differential privacy, d-privacy, got 'trust'"):
        guarantee_file.read(file)


def test_a_finished_run_keeps_its_guarantee(tmp_path: Path) -> None:
    task = tacit.tasks.make_task("digits", clients=10)
    method = tacit.methods.geyer(rounds=2, cohort=3, noise=4.0, epsilon=3.0, delta=1e-3)
    run = tacit.train(method, task, workers=1, out=tmp_path / "run")
    assert run.privacy.proved
    assert guarantee_file.read(tmp_path / "run" / GUARANTEE) == {Unit.CLIENT: run.privacy}


def test_a_run_keeps_the_guarantees_of_all_units(tmp_path: Path) -> None:
    found = (Guarantee(epsilon=1.5, delta=1e-5), Guarantee(epsilon=0.5, delta=1e-5, unit=Unit.RECORD))
    guarantees = {each.unit: each for each in found}
    guarantee_file.write(tmp_path / GUARANTEE, guarantees)
    assert guarantee_file.read(tmp_path / GUARANTEE) == guarantees
