import csv
from pathlib import Path

import pytest
import safetensors.torch
import torch

from report.made import PROVED, made_run
from tacit.cli import main
from tacit.runs.directory import MODEL


def test_rounds_become_a_table_without_the_names_of_clients(tmp_path: Path) -> None:
    run = made_run(tmp_path / "mine", 14, guarantee=PROVED)
    assert main(["export", str(run), "--to", "csv"]) == 0
    with (run / "rounds.csv").open() as file:
        rows = [*csv.DictReader(file)]
    assert [int(row["round"]) for row in rows] == list(range(1, 15))
    assert (rows[6]["cohort"], rows[6]["delivered"], rows[6]["up"]) == ("5", "4", "5000")
    assert float(rows[-1]["epsilon"]) == 1.25
    assert float(rows[0]["loss"]) == 2.0
    assert float(rows[0]["seconds_train"]) == 0.2
    assert not {"clients", "rejected", "norm"} & set(rows[0])


def test_a_model_becomes_a_state_dict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = made_run(tmp_path / "mine", 1)
    assert main(["export", str(run), "--to", "state-dict"]) == 2
    assert "Finish it with tacit run --resume" in capsys.readouterr().err
    (run / MODEL).write_bytes(b"no model")
    assert main(["export", str(run), "--to", "state-dict"]) == 2
    assert "Could not read the model" in capsys.readouterr().err
    safetensors.torch.save_file({"weight": torch.eye(2)}, run / MODEL)
    assert main(["export", str(run), "--to", "state-dict", "--out", str(tmp_path / "m.pt")]) == 0
    assert torch.equal(torch.load(tmp_path / "m.pt", weights_only=True)["weight"], torch.eye(2))
