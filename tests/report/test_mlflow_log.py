"""What MLflow itself reads from the logs of runs, in a store of files, which needs no database."""

from pathlib import Path
from typing import Any

import pytest

import tacit
from report.made import PROVED, made_run
from runs.test_round_logs import METHOD, TASK, stop_after
from tacit.cli import main
from tacit.report.mlflow_log import MlflowLog
from tacit.report.run_data import RunData


@pytest.fixture
def uri(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    return (tmp_path / "mlruns").as_uri()


def client(uri: str) -> Any:
    from mlflow.tracking import MlflowClient

    return MlflowClient(uri)


def runs_of(uri: str, experiment: str = "tacit") -> list[Any]:
    found = client(uri)
    return list(found.search_runs([found.get_experiment_by_name(experiment).experiment_id]))


def steps(uri: str, run: Any, name: str = "bytes/up") -> list[int]:
    return [metric.step for metric in client(uri).get_metric_history(run.info.run_id, name)]


def test_mlflow_reads_settings_rounds_and_the_guarantee(uri: str, tmp_path: Path) -> None:
    made = made_run(tmp_path / "run", 60, guarantee=PROVED, caveat="a warning")
    assert main(["export", str(made), "--to", "mlflow"]) == 0
    (run,) = runs_of(uri)
    assert run.info.run_name == "run"
    assert run.info.status == "FINISHED"
    assert run.data.params == {
        "method": "fedavg",
        "task": "digits",
        "seed": "0",
        "randomness": "secret",
        "method.rounds": "60",
    }
    assert run.data.tags["caveat"] == "a warning"
    assert run.data.tags["guarantee"] == str(RunData.read(made).guarantee)
    assert run.data.metrics["privacy/epsilon_client"] == 1.25
    assert steps(uri, run, "metrics/accuracy") == list(range(1, 61))
    assert main(["export", str(made), "--to", "mlflow"]) == 0
    (again,) = runs_of(uri)
    assert steps(uri, again, "metrics/accuracy") == list(range(1, 61))


def test_a_run_that_is_resumed_appends_to_the_same_run_of_mlflow(uri: str, tmp_path: Path) -> None:
    for last, resume, status in ((2, False, "KILLED"), (9, True, "FINISHED")):
        tacit.train(METHOD, TASK, workers=1, out=tmp_path / "run", resume=resume, logs=[MlflowLog("mine")],
                    on_round=stop_after(last))  # fmt: skip
        (run,) = runs_of(uri, "mine")
        assert run.info.status == status
    assert steps(uri, run) == [1, 2, 3, 4]


def test_a_round_of_which_half_was_written_is_completed(uri: str, tmp_path: Path) -> None:
    made = made_run(tmp_path / "run", 3, status="running")
    assert main(["export", str(made), "--to", "mlflow"]) == 0
    (run,) = runs_of(uri)
    (file,) = (tmp_path / "mlruns").rglob("metrics/metrics/loss")
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:2]))
    assert main(["export", str(made), "--to", "mlflow"]) == 0
    assert steps(uri, run, "metrics/loss") == [1, 2, 3]
    assert steps(uri, run) == [1, 2, 3]


def test_a_store_that_is_not_there_is_refused_before_any_training(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "nowhere://x")
    assert main(["run", "fedavg", "--log", "mlflow"]) == 2
    assert "Could not open MLflow at nowhere://x" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_names_that_mlflow_refuses_are_changed(uri: str, tmp_path: Path) -> None:
    made = made_run(tmp_path / "run", 2)
    rounds = made / "rounds.jsonl"
    rounds.write_text(rounds.read_text().replace('"accuracy"', '"accuracy (é) %"'))
    assert main(["export", str(made), "--to", "mlflow"]) == 0
    (run,) = runs_of(uri)
    assert steps(uri, run, "metrics/accuracy _é_ _") == [1, 2]
