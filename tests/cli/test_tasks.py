"""Tables on the command line, and the list of tasks."""

import json
from pathlib import Path

import pytest

from cli.refusals import assert_refused
from tacit.cli import main

LINE = "run fedavg --data patients.csv --client hospital --target died --rounds 2 --workers 1"


@pytest.fixture(autouse=True)
def _table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [f"H{n % 5},{20 + n},{'fm'[n % 2]},P{n},{n // 3 % 2}" for n in range(60)]
    (tmp_path / "patients.csv").write_text("\n".join(["hospital,age,sex,name,died", *rows]))
    monkeypatch.chdir(tmp_path)


def test_one_command_from_a_table_to_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(f"{LINE} --drop name".split()) == 0
    out, err = capsys.readouterr()
    assert "fedavg  table" in out
    assert "patients.csv: 5 clients with 10 rows to train on, 10 held out; 3 inputs from 2 columns." in err
    assert err.count("Warning: fedavg samples 20 clients a round by default, but there are 5") == 1
    manifest = json.loads(Path("runs/fedavg-table-0/manifest.json").read_text())
    assert manifest["task"]["args"] == {"data": "patients.csv", "client": "hospital", "target": "died", "drop": "name"}
    assert main(["run", "--resume", "runs/fedavg-table-0"]) == 0


def test_a_guarantee_for_five_hospitals_is_told_what_sampling_does_not_do(capsys: pytest.CaptureFixture[str]) -> None:
    line = LINE.replace("fedavg", "fl-top-dp")
    assert main(f"{line} --drop name --set epsilon=8".split()) == 0
    out, err = capsys.readouterr()
    assert "differential privacy for every client" in out
    assert "Preprocessing used the clients' rows" in out
    assert "Sampling does not lower ε then" in err
    assert "100 random rows, which depend on no data" in err


def test_a_cohort_that_was_chosen_is_not_changed(capsys: pytest.CaptureFixture[str]) -> None:
    assert_refused(f"{LINE} --drop name --set cohort=50", "cohort of size=50 <= population=5", capsys)


def test_refusals_name_the_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert_refused("run fedavg --target died", "Expected --data FILE with --target", capsys)
    assert_refused("run fedavg --task digits --data patients.csv", "either --data or --task", capsys)
    assert_refused("run fedavg --data patients.csv --client hospital", "Add --target COLUMN", capsys)
    assert_refused("run fedavg --task table", "Add --data FILE --client COLUMN --target COLUMN", capsys)
    assert_refused(LINE.replace("hospital", "hopital"), "Did you mean 'hospital'?", capsys)
    assert_refused("tasks tabel", "Did you mean 'table'?", capsys)


def test_tasks_are_listed_and_described(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tasks"]) == 0
    assert "digits" in capsys.readouterr().out
    assert main(["tasks", "table"]) == 0
    out = capsys.readouterr().out
    assert "drop        ''      columns that are left out, separated by commas." in out
    assert main(["tasks", "digits", "--json"]) == 0
    described = json.loads(capsys.readouterr().out)
    assert {"option": "clients", "default": "100"}.items() <= described["options"][0].items()
    assert main(["tasks", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["task"] == "digits"
