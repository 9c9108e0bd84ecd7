"""What TensorBoard itself reads from the logs of runs."""

from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import tacit
from report.made import PROVED, add_round, made_report, made_run
from runs.test_round_logs import METHOD, TASK, stop_after
from tacit.cli import main
from tacit.report.tensorboard_log import TensorBoardLog
from tacit.runs.directory import ROUNDS
from tacit.runs.round_logs import scalars

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:tensorboard")


def read(folder: Path) -> Any:
    found = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
    found.Reload()
    return found


def steps(folder: Path, tag: str = "metrics/loss") -> list[int]:
    return [event.step for event in read(folder).Scalars(tag)]


def text(folder: Path, tag: str) -> list[str]:
    return [event.tensor_proto.string_val[0].decode() for event in read(folder).Tensors(f"{tag}/text_summary")]


def test_tensorboard_reads_every_figure_of_every_round(tmp_path: Path) -> None:
    run = made_run(tmp_path / "run", 14, guarantee=PROVED, caveat="a warning")
    assert main(["export", str(run), "--to", "tensorboard"]) == 0
    found = read(run / "tensorboard")
    expected = [scalars(made_report(n, epsilon=1.25 * n / 14)) for n in range(1, 15)]
    assert set(found.Tags()["scalars"]) == set(expected[0])
    for tag in expected[0]:
        events = found.Scalars(tag)
        assert [event.step for event in events] == list(range(1, 15))
        assert [event.value for event in events] == pytest.approx([each[tag] for each in expected], rel=1e-6)
    assert text(run / "tensorboard", "guarantee")[0].startswith("(ε = 1.25, δ = 1e-05)-differential privacy")
    assert text(run / "tensorboard", "caveat") == ["a warning"]
    assert "- method: fedavg" in text(run / "tensorboard", "settings")[0]
    assert "clients: 20" not in text(run / "tensorboard", "settings")[0]  # an argument of the task


def test_a_run_that_is_resumed_appends_without_repeating_a_step(tmp_path: Path) -> None:
    out = tmp_path / "run"
    for last, resume in ((2, False), (3, True), (9, True)):
        tacit.train(METHOD, TASK, workers=1, out=out, resume=resume, logs=[TensorBoardLog()],
                    on_round=stop_after(last))  # fmt: skip
        assert steps(out / "tensorboard", "bytes/up") == list(range(1, min(last, 4) + 1))
    assert len(text(out / "tensorboard", "guarantee")) == 1
    assert main(["export", str(out), "--to", "tensorboard"]) == 0
    assert steps(out / "tensorboard", "bytes/up") == [1, 2, 3, 4]
    assert len(text(out / "tensorboard", "guarantee")) == 1


def test_rounds_after_a_kill_are_written_once(tmp_path: Path) -> None:
    """The log may be ahead of the checkpoint, and end within a record; rounds are repeated with the same result."""
    run = made_run(tmp_path / "run", 5, status="running")
    assert main(["export", str(run), "--to", "tensorboard"]) == 0
    (file,) = (run / "tensorboard").iterdir()
    file.write_bytes(file.read_bytes()[:-7])  # of round 5
    assert steps(run / "tensorboard") == [1, 2, 3, 4]
    (run / ROUNDS).write_bytes(b"".join((run / ROUNDS).read_bytes().splitlines(keepends=True)[:3]))
    for number in (4, 5, 6):
        add_round(run, number)
        assert main(["export", str(run), "--to", "tensorboard"]) == 0
    assert steps(run / "tensorboard") == [1, 2, 3, 4, 5, 6]


def test_a_folder_that_cannot_be_written_is_a_warning_or_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.warns(UserWarning, match="Logging to TensorBoard failed in round 1"):
        run = tacit.train(METHOD, TASK, workers=1, logs=[TensorBoardLog(tmp_path / "file")])
    assert len(run.history) == 4
    made = made_run(tmp_path / "run", 1)
    (made / "tensorboard").write_text("")
    assert main(["export", str(made), "--to", "tensorboard"]) == 1
    assert "Could not write" in capsys.readouterr().err


def test_a_run_without_files_needs_a_folder(tmp_path: Path) -> None:
    with pytest.raises(tacit.UserError, match="Expected a folder for TensorBoard"):
        tacit.train(METHOD, TASK, workers=1, logs=[TensorBoardLog()])
    tacit.train(METHOD, TASK, workers=1, logs=[TensorBoardLog(tmp_path / "here")])
    assert steps(tmp_path / "here", "clients/cohort") == [1, 2, 3, 4]


def test_the_machine_is_not_named(tmp_path: Path) -> None:
    import socket

    run = made_run(tmp_path / "run", 1)
    assert main(["export", str(run), "--to", "tensorboard"]) == 0
    (file,) = (run / "tensorboard").iterdir()
    assert socket.gethostname() not in file.name
    assert file.stat().st_mode & 0o777 == 0o600
