import csv
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch

from report.made import PROVED, TASK, made_run
from tacit.cli import main
from tacit.runs.directory import MODEL


def test_rounds_become_a_table_without_the_names_of_clients(tmp_path: Path) -> None:
    run = made_run(tmp_path / "mine", 14, guarantee=PROVED)
    assert main(["export", str(run), "--to", "csv"]) == 0
    with (run / "rounds.csv").open() as file:
        rows = [*csv.DictReader(file)]
    assert [int(row["round"]) for row in rows] == list(range(1, 15))
    assert (rows[6]["cohort"], rows[6]["delivered"], rows[6]["up"]) == ("5", "4", "5000")
    assert float(rows[-1]["epsilon_client"]) == 1.25
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


def test_the_model_of_a_directory_is_built_again_and_exported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(MINE)
    assert main(["run", "fedavg", "--task", "mine.py:small", "--rounds", "1", "--set", "cohort=2", "--workers", "1",
                 "--out", "run"]) == 0  # fmt: skip
    assert main(["export", "run", "--to", "torch-export"]) == 2
    assert "if you trust it, add --trust" in capsys.readouterr().err
    assert main(["export", "run", "--to", "torch-export", "--trust"]) == 0
    assert main(["export", "run", "--to", "safetensors", "--out", "copy.safetensors"]) == 0
    tensors = safetensors.torch.load_file("copy.safetensors")
    x = torch.randn(5, 3)
    found = torch.export.load("run/model.pt2").module()(x)
    assert torch.allclose(found, x @ tensors["weight"].T + tensors["bias"], atol=1e-6)
    Path("mine.py").write_text(MINE.replace("Linear(3, 2)", "Linear(3, 2, bias=False)"))
    assert main(["export", "run", "--to", "torch-export", "--trust"]) == 2
    assert "The task's code has changed since." in capsys.readouterr().err


MINE = """
import torch, tacit

def small():
    parts = [(torch.arange(12.0).view(4, 3) / n, torch.arange(4) % 2) for n in (7, 9)]
    return tacit.Task(model=lambda: torch.nn.Linear(3, 2), clients=parts)
"""


def test_a_run_from_python_is_exported_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = made_run(tmp_path / "run", 1, task=replace(TASK, args=None))
    safetensors.torch.save_file({"weight": torch.eye(2)}, run / MODEL)
    assert main(["export", str(run), "--to", "onnx"]) == 2
    assert "Export it there, with run.export('model.onnx')." in capsys.readouterr().err
    assert main(["export", str(run), "--to", "tensorboard", "--out", "x"]) == 2
    assert "without --out" in capsys.readouterr().err
    assert main(["export", str(run), "--to", "state-dict", "--model", "1"]) == 2
    assert "Expected a model from 0 to 0, got 1." in capsys.readouterr().err
