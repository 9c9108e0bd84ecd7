"""Predictions for new rows, from a run and from its directory alone."""

import csv
import json
from pathlib import Path
from typing import Any

import pandas
import pytest
import torch
from torch import nn

import tacit
from tacit.cli import main
from tacit.data.table_task import TableModel
from tacit.runs.directory import read_manifest
from tacit.runs.predict import predict_from

ROWS = 60
HEADER = "id;hospital;age;admitted;ward;sex;died"
PATIENTS = [
    f"{row:04};H{row % 3};{'' if row == 7 else f'{20 + row},5'};2020-01-{1 + row % 28:02};{1 + row % 2};"
    f"{'?' if row == 5 else 'fm'[row % 2]};{'yes' if row % 4 == 0 else 'no'}"
    for row in range(ROWS)
]
NEW = "id;age;admitted;ward;sex;note\n0007;33,5;2021-05-05;1;m;first\n0010;;;9;d;second\n"
LINE = ["run", "fedavg", "--rounds", "2", "--data", "patients.csv", "--client", "hospital", "--target", "died"]
LINE += ["--drop", "id", "--workers", "1", "--randomness", "seeded", "--task-set", "categories=ward"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the table to train on and one with new rows."""
    monkeypatch.chdir(tmp_path)
    Path("patients.csv").write_text("\n".join([HEADER, *PATIENTS]) + "\n")
    Path("new.csv").write_text(NEW)
    return tmp_path


def task(**options: Any) -> tacit.Task:
    given = {"client": "hospital", "target": "died", "drop": ["id"], "categories": ["ward"], "name": "table"}
    return tacit.Task.from_table("patients.csv", **given | options)


def trained(made: tacit.Task, **options: Any) -> Any:
    return tacit.train(tacit.methods.fedavg(rounds=2, cohort=3), made, workers=1, randomness="seeded", **options)


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("model", [[], ["model=logistic"], ["hidden=5"]])
def test_the_directory_alone_predicts_what_the_model_in_memory_computes(
    model: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*LINE, *model, "--out", "run"]) == 0
    words = dict(word.split("=") for word in model)
    chosen = TableModel(words.get("model", "mlp"), int(words.get("hidden", 32)))  # type: ignore[arg-type]
    made = task(model=chosen)
    run = trained(made)
    Path("patients.csv").unlink()
    capsys.readouterr()
    assert main(["predict", "run", "new.csv", "--out", "p.csv"]) == 0
    printed = capsys.readouterr()
    assert printed.out == "Written: p.csv, 2 rows\n"
    assert "Note: ward: 1 of 2 values are none of those that the encoding has (9) and set no input." in printed.err
    with Path("p.csv").open() as file:
        found = list(csv.DictReader(file))
    assert [row["id"] for row in found] == ["0007", "0010"]  # as they are written
    assert [row["note"] for row in found] == ["first", "second"]
    assert made.encoding is not None
    expected = run.model.eval()(made.encoding.inputs("new.csv")).double().sigmoid()[:, 0].tolist()
    assert [float(row["probability died=yes"]) for row in found] == expected
    assert [float(row["probability died=no"]) for row in found] == [1 - each for each in expected]
    assert [row["predicted died"] for row in found] == [("no", "yes")[each > 0.5] for each in expected]
    assert run.predict("new.csv") == run.predict(Path("new.csv")) == predict_from(Path("run"), "new.csv").predicted


@pytest.mark.usefixtures("folder")
def test_output_for_pipes_and_programs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*LINE, "--out", "run"]) == 0
    capsys.readouterr()
    assert main(["predict", "run", "new.csv"]) == 0
    header, *lines = capsys.readouterr().out.splitlines()
    assert header == "id,note,predicted died,probability died=no,probability died=yes"
    assert len(lines) == 2
    day = pandas.to_datetime(["2020-01-05"])
    pandas.DataFrame({"age": [30.0], "admitted": day, "ward": [1], "sex": ["f"]}).to_parquet("new.parquet")
    assert main(["predict", "run", "new.parquet", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["rows"] == 1
    assert list(document["columns"]) == ["predicted died", "probability died=no", "probability died=yes"]


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("table", "words"),
    [
        (NEW.replace("age", "years"), "to have the column 'age', given as input; it has id, years"),
        (NEW.replace("33,5", "old"), "Expected numbers in column 'age' of new.csv, got texts such as 'old'"),
        (NEW.replace("2021-05-05", "44321"), "Expected dates in column 'admitted' of new.csv, got numbers"),
        ("sex;age\nm;old\n", "And 2 more columns do not fit."),
        ("", "got an empty file"),
    ],
)
def test_a_wrong_table_gets_one_sentence(table: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*LINE, "--out", "run"]) == 0
    Path("new.csv").write_text(table)
    capsys.readouterr()
    assert main(["predict", "run", "new.csv"]) == 2
    printed = capsys.readouterr()
    assert words in printed.err
    assert printed.err.count("\n") == 1
    assert printed.out == ""


@pytest.mark.usefixtures("folder")
def test_numbers_are_predicted_in_their_own_units() -> None:
    run = trained(task(target="age", drop=["id", "died"], test=0, kind="number", encoding=ages()), out="run")
    found = predict_from(Path("run"), {"admitted": ["2020-01-05"], "ward": [1], "sex": ["f"]}).predicted
    assert found == run.predict({"admitted": ["2020-01-05"], "ward": [1], "sex": ["f"]})
    with torch.no_grad():
        part = float(run.model(run.spec.task.encoding.inputs({"admitted": ["2020-01-05"], "ward": [1], "sex": ["f"]})))
    assert found == {"predicted age": [pytest.approx(200 * part)]}


def ages() -> Path:
    """A file that declares the encoding of a table with the age as target; its missing age is filled."""
    Path("patients.csv").write_text(Path("patients.csv").read_text().replace(";;", ";27,5;"))
    Path("ages.toml").write_text("""
        [numbers]
        admitted = ["2020-01-01", "2020-12-31"]
        [categories]
        ward = ["1", "2"]
        sex = ["f", "m"]
        [target]
        name = "age"
        limits = [0, 200]
    """)
    return Path("ages.toml")


@pytest.mark.usefixtures("folder")
def test_several_models_need_a_choice(capsys: pytest.CaptureFixture[str]) -> None:
    made = task()
    run = tacit.train(tacit.methods.ifca(rounds=1, models=2, cohort=3), made, workers=1, out="run", randomness="seeded")
    with pytest.raises(tacit.UserError, match=r"trained 2\. Choose one of 0 to 1 with model="):
        run.predict("new.csv")
    assert main(["predict", "run", "new.csv"]) == 2
    assert "Choose one of 0 to 1 with --model" in capsys.readouterr().err
    assert predict_from(Path("run"), "new.csv", 1).predicted == run.predict("new.csv", model=1)
    assert run.predict("new.csv", model=0) != run.predict("new.csv", model=1)


@pytest.mark.usefixtures("folder")
def test_a_model_of_ones_own_is_built_by_the_file_that_is_trusted(capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine.py").write_text(
        "import tacit\nfrom torch import nn\n\n\ndef hospitals() -> tacit.Task:\n"
        "    return tacit.Task.from_table('patients.csv', client='hospital', target='died', drop=['id'],\n"
        "        model=lambda inputs: nn.Linear(inputs, 2), name='mine')\n"
    )
    line = ["run", "fedavg", "--task", "mine.py:hospitals", "--rounds", "1", "--workers", "1", "--out", "run"]
    assert main(line) == 0
    assert read_manifest(Path("run")).task.model is None
    capsys.readouterr()
    assert main(["predict", "run", "new.csv"]) == 2
    assert "--trust" in capsys.readouterr().err
    assert main(["predict", "run", "new.csv", "--trust"]) == 0
    assert "probability died=yes" in capsys.readouterr().out
    trained(task(model=lambda inputs: nn.Linear(inputs, 2)), out="python")
    assert main(["predict", "python", "new.csv"]) == 2
    assert "Predict there, with run.predict(rows)." in capsys.readouterr().err


def test_other_tasks_say_what_to_do(tmp_path: Path) -> None:
    run = trained(tacit.tasks.make_task("digits"), out=tmp_path / "run")
    with pytest.raises(tacit.UserError, match=r"trained on a table. Its inputs are not the rows of a table"):
        run.predict({"age": [3]})
    with pytest.raises(tacit.UserError, match=r"was not trained on a table\. Its inputs .* tacit export the model"):
        predict_from(tmp_path / "run", {"age": [3]})


@pytest.mark.usefixtures("folder")
def test_the_encoding_beside_a_model_is_that_of_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*LINE, "--out", "run"]) == 0
    assert main(["export", "run", "--to", "torch-export", "--out", "sent/model.pt2"]) == 0
    assert Path("sent/model.encoding.json").read_bytes() == Path("run/encoding.json").read_bytes()
    encoding = tacit.data.Encoding.read("sent/model.encoding.json")
    program = torch.export.load("sent/model.pt2").module()
    outputs = encoding.known_target.read(program(encoding.inputs("new.csv")).detach())
    expected = predict_from(Path("run"), "new.csv").predicted
    assert outputs["probability died=yes"] == pytest.approx(expected["probability died=yes"])
    run = trained(task())
    run.export("own/model.safetensors")
    assert tacit.data.Encoding.read("own/model.encoding.json") == run.spec.task.encoding
    text = Path("run/encoding.json").read_text()
    Path("run/encoding.json").write_text(text.replace('"yes"', '"Yes"'))
    capsys.readouterr()
    for line in (["predict", "run", "new.csv"], ["run", "--resume", "run"]):
        assert main(line) == 2
        assert "encoding.json was changed" in capsys.readouterr().err


@pytest.mark.usefixtures("folder")
def test_a_resumed_run_keeps_its_encoding_and_its_columns(capsys: pytest.CaptureFixture[str]) -> None:
    """Options that describe the table are refused: they would be ignored."""
    made = task()
    tacit.train(
        tacit.methods.fedavg(rounds=2, cohort=3), made, workers=1, out="run", randomness="seeded", on_round=stop
    )
    other = task(encoding=Path("run/encoding.json"), classes=["yes", "no"])
    with pytest.raises(tacit.UserError, match="another encoding of its table"):
        trained(other, out="run", resume=True)
    assert trained(made, out="run", resume=True).state.round == 2
    for option in (["--person", "id"], ["--client", "hospital"], ["--public", "new.csv"]):
        assert main(["run", "--resume", "run", *option]) == 2
        assert f"Expected --resume without {option[0]}" in capsys.readouterr().err


def stop(*_: object) -> bool:
    return True
