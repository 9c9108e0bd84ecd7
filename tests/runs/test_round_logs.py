import csv
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

import tacit
from tacit.cli import main
from tacit.core.prices import Unit
from tacit.errors import UserError
from tacit.runs.directory import ROUNDS, read_manifest, read_rounds
from tacit.runs.round_logs import LogHeader, columns, rounds_csv, scalars

TASK = tacit.Task(
    model=lambda: torch.nn.Linear(3, 2), clients=[(torch.randn(n, 3), torch.arange(n) % 2) for n in (8, 5, 9)]
)
METHOD = tacit.methods.fedavg(rounds=4, cohort=3)


@dataclass
class MadeLog:
    """A log in memory, which fails where it is told to."""

    fails: tuple[str, ...] = ()
    label: str = "Made"
    option: str = "made"
    header: LogHeader | None = None
    calls: list[str] = field(default_factory=list)
    rounds: list[int] = field(default_factory=list)

    def validate(self, directory: Path | None) -> None:
        self._do("check")

    def open(self, header: LogHeader) -> "MadeLog":
        self.header = header
        self._do("open")
        return self

    def write(self, reports: Sequence[tacit.Report]) -> None:
        for report in reports:
            self._do(f"write {report.round}")
            self.rounds.append(report.round)

    def finish(self, guarantee: str) -> None:
        self._do(f"finish {guarantee.partition(':')[0]}")

    def close(self) -> None:
        self._do("close")

    def _do(self, what: str) -> None:
        self.calls.append(what)
        if what.split()[0] in self.fails or what in self.fails:
            raise OSError("the disk is full")


def stop_after(last: int) -> Callable[[tacit.State, tacit.Report], bool]:
    return lambda state, _: state.round == last


def test_a_log_gets_every_round_once_the_first_one_is_done(tmp_path: Path) -> None:
    log = MadeLog()
    tacit.train(METHOD, TASK, workers=1, out=tmp_path / "run", logs=[log])
    assert log.calls == ["check", "open", *(f"write {n}" for n in range(1, 5)), "finish none", "close"]
    assert log.header is not None
    assert log.header.name == "run"
    assert log.header.parameters["method"] == "fedavg"


@pytest.mark.parametrize("fails", ["open", "write 2", "finish", "close"])
def test_a_log_that_fails_is_a_warning_and_the_run_goes_on(fails: str, tmp_path: Path) -> None:
    broken, other = MadeLog(fails=(fails,)), MadeLog()
    with pytest.warns(UserWarning, match=r"OSError: the disk is full") as warned:
        run = tacit.train(METHOD, TASK, workers=1, out=tmp_path / "run", logs=[broken, other])
    assert len(warned) == 1
    if fails != "close":
        assert f"tacit export {tmp_path / 'run'} --to made" in str(warned[0].message)
    assert len(run.history) == 4
    assert read_manifest(tmp_path / "run").status == "finished"
    assert other.rounds == [1, 2, 3, 4]
    assert broken.rounds == ([1] if fails == "write 2" else [] if fails == "open" else [1, 2, 3, 4])


def test_a_log_that_cannot_be_written_is_refused_before_any_training(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="disk"):
        tacit.train(METHOD, TASK, workers=1, out=tmp_path / "run", logs=[MadeLog(fails=("check",))])
    assert not (tmp_path / "run").exists()


def test_a_run_that_stops_is_closed_and_not_finished(tmp_path: Path) -> None:
    log = MadeLog()
    tacit.train(METHOD, TASK, workers=1, out=tmp_path / "run", logs=[log], on_round=stop_after(2))
    assert log.calls[-2:] == ["write 2", "close"]
    again = MadeLog()
    tacit.train(METHOD, TASK, workers=1, out=tmp_path / "run", logs=[again], resume=True)
    assert again.rounds == [1, 2, 3, 4]  # all of them: each log knows what it has
    assert log.header is not None
    assert again.header == log.header


def test_two_runs_are_never_taken_for_one(tmp_path: Path) -> None:
    logs = [MadeLog() for _ in range(4)]
    for log, out in zip(logs, (tmp_path / "a", tmp_path / "b", None, None), strict=True):
        tacit.train(METHOD, TASK, workers=1, out=out, randomness="seeded", logs=[log])
    assert len({log.header.identity for log in logs if log.header is not None}) == 4


def test_logs_have_no_names_of_clients_and_no_norms() -> None:
    report = tacit.Report(
        7, (3, 11), (11,), (10, 10), (20, 20), 0.123, 0.456, 0.789, {"loss": 2.0}, 0.5,
        epsilons={Unit.CLIENT: 1.0, Unit.RECORD: 3.0}, timings={"train": 0.4},
    )  # fmt: skip
    assert scalars(report) == {
        "clients/cohort": 2, "clients/delivered": 1, "bytes/up": 20, "bytes/down": 40, "privacy/epsilon_client": 1.0,
        "privacy/epsilon_record": 3.0, "time/seconds": 0.5, "metrics/loss": 2.0, "time/train": 0.4,
    }  # fmt: skip
    assert columns(report)["leakage"] is None
    (row,) = csv.DictReader(rounds_csv([report], "a warning").decode().splitlines())
    assert (row["epsilon_record"], row["seconds_train"], row["caveat"]) == ("3.0", "0.4", "a warning")
    assert not {"clients", "rejected", "norm", "variance", "scale"} & set(row)


def test_the_directory_of_a_finished_run_has_its_rounds_as_a_table(tmp_path: Path) -> None:
    tacit.train(METHOD, TASK, workers=1, out=tmp_path / "run")
    assert (tmp_path / "run" / "rounds.csv").read_bytes() == rounds_csv(read_rounds(tmp_path / "run"))
    assert (tmp_path / "run" / ROUNDS).exists()


@pytest.mark.parametrize(("option", "package"), [("tensorboard", "tensorboard"), ("mlflow", "mlflow")])
def test_without_the_package_a_sentence_says_how_to_install_it(
    option: str, package: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, package, None)
    assert main(["run", "fedavg", "--log", option]) == 2
    assert capsys.readouterr().err.endswith(f"Install it with: pip install 'tacit-fl[{option}]'\n")
    log = tacit.TensorBoardLog() if option == "tensorboard" else tacit.MlflowLog()
    with pytest.raises(UserError, match="to be installed"):
        tacit.train(METHOD, TASK, workers=1, out=tmp_path / "run", logs=[log])
    assert list(tmp_path.iterdir()) == []
