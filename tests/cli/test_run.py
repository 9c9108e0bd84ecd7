import errno
import json
import os
import re
import signal
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from tacit.cli import _progress, main
from tacit.engine.simulation import Simulation
from tacit.pieces.trainers import Sgd
from tacit.runs import checkpoint, directory
from tacit.runs.directory import (
    CHECKPOINT,
    GUARANTEE,
    LEAKAGE,
    LEDGER,
    MANIFEST,
    MODEL,
    ROUNDS,
    TABLE,
    read_manifest,
    read_rounds,
)
from tacit.runs.manifest import MANIFEST_FORMAT

SMALL = ["--set", "cohort=2", "epochs=1", "--workers", "1"]
LONG = ["run", "fedavg", "--rounds", "60", "--set", "cohort=10", "epochs=1", "--seed", "4", "--randomness", "seeded"]


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def weights(run: Path) -> dict[str, torch.Tensor]:
    return safetensors.torch.load_file(run / MODEL)


def assert_same(run: Path, other: Path) -> None:
    one, two = weights(run), weights(other)
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)
    for mine, theirs in zip(read_rounds(run), read_rounds(other), strict=True):
        assert (mine.clients, mine.up, mine.down, mine.norm) == (theirs.clients, theirs.up, theirs.down, theirs.norm)
        assert mine.metrics == theirs.metrics


def test_a_run_prints_a_table_and_its_directory(capsys):
    assert main(["run", "fedavg", "--rounds", "2", *SMALL]) == 0
    printed = capsys.readouterr()
    names, figures, guarantee, directory, report = printed.out.splitlines()
    assert guarantee == "No privacy guarantee: no noise is added, so updates can reveal training data."
    assert names.split() == ["method", "task", "seed", "rounds", "accuracy", "loss", "ε", "up", "down", "seconds"]
    assert figures.split()[:4] == ["fedavg", "digits", "0", "2"]
    assert directory == "Results: runs/fedavg-digits-0"
    assert report == "Next: tacit report runs/fedavg-digits-0"
    assert printed.err.splitlines()[-1].startswith("fedavg: round 2/2 accuracy ")
    assert {path.name for path in Path("runs/fedavg-digits-0").iterdir()} == {
        MANIFEST,
        ROUNDS,
        CHECKPOINT,
        MODEL,
        GUARANTEE,
        TABLE,
    }


def test_leakage_is_in_the_table_in_json_and_in_the_directory(capsys):
    groups = ["run", "ifca-dp", "--task", "synthetic", "--task-set", "clients=12", "--workers", "1"]
    assert main([*groups, "--set", "rounds=99", "limit=0.4", "--out", "here"]) == 0
    names, figures, *notes = capsys.readouterr().out.splitlines()
    assert figures.split()[names.split().index("leakage")] == "0.4"
    assert notes[0].startswith("Guarantee: d-privacy for every client")
    declined = r"Clients declined to take part \d+ times: the leakage limit is 0\.4\."
    stopped = r"Stopped after \d+ of 99 rounds: every client has reached its leakage limit\."
    assert all(any(re.fullmatch(sentence, line) for line in notes) for sentence in (declined, stopped))
    assert main([*groups, "--set", "rounds=2", "--json", "--out", "there"]) == 0
    (document,) = json.loads(capsys.readouterr().out)["runs"]
    assert document["privacy"]["guarantees"]["client"]["kind"] == "d-privacy"
    assert document["leakage"] == json.loads((Path("there") / LEAKAGE).read_text())
    assert sum(document["leakage"]["clients"].values()) == pytest.approx(14 * 0.4)


def test_early_stopping_is_reported(capsys):
    assert (
        main(["run", "ifca", "--task", "synthetic", "--set", "models=1", "lr=5", "patience=2", "--workers", "1"]) == 0
    )
    printed = capsys.readouterr().out
    assert re.search(r"Stopped after \d+ of 200 rounds: the loss on held-out data did not improve in 2 ", printed)
    assert "evaluations; the best model is kept." in printed


def test_methods_are_compared_with_the_bytes_they_save(capsys):
    options = ["--rounds", "2", "--workers", "1", "--set", "cohort=5", "ratio=0.1", "noise=1", "epsilon=none"]
    assert main(["run", "fl-std", "fl-top-dp", *options, "channel=IdealSum()", "mechanism.arithmetic=Reals()"]) == 0
    printed = capsys.readouterr().out
    standard, top = printed.splitlines()[1:3]
    assert standard.startswith("fl-std ")
    assert "less than" not in standard
    up, down = (float(factor) for factor in re.findall(r"([\d.]+)× less than fl-std", top))
    assert 8 < down < up < 10  # 481 of 4810 weights, with 36 bytes of header; the mask and the bound go down as well
    assert "No privacy guarantee for fl-std: no noise is added" in printed
    assert "Guarantee of fl-top-dp: (" in printed
    assert {path.name for path in Path("runs").iterdir()} == {"fl-std-digits-0", "fl-top-dp-digits-0"}
    assert read_manifest(Path("runs/fl-std-digits-0")).method.args == {
        "rounds": 2,
        "cohort": 5,
        "channel": "IdealSum()",
    }


def test_the_overhead_of_secure_aggregation_is_reported_by_phase(capsys):
    options = ["--rounds", "2", "--workers", "1", "--set", "cohort=12", "ratio=0.1", "noise=1", "epsilon=none"]
    assert main(["run", "fl-std", "fl-top-dp", *options, "channel.level=semi_honest", "sampler=FixedSize(12)"]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"Secure aggregation overhead: [\d.]+ .B \(\d+ % of the payload\)\.", printed)
    assert re.search(r"Overhead by phase: set-up .*, upload .*, open ", printed)
    assert re.search(r"Values are rounded to multiples of \S+ and summed modulo 2\^(17|18|19|20|21|22)\.", printed)
    assert re.search(r"Rounding to integers costs \d+(\.\d\d)? % more noise\.", printed)
    assert main(["run", "fl-top-dp", *options, "sampler=FixedSize(12)", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["runs"][0]["bytes"]["phases"]["agree"]["up"] == 2 * 12 * 104


def test_a_cohort_too_small_for_secure_aggregation_is_refused(capsys):
    options = ["--rounds", "2", "--set", "cohort=2", "noise=1", "epsilon=none", "sampler=FixedSize(2)"]
    assert main(["run", "fl-std-dp", *options]) == 2
    assert "Expected cohorts of at least 3 clients for SecureSum, got 2. Use larger cohorts." in capsys.readouterr().err
    options[-1] = "sampler=Poisson(4)"
    assert main(["run", "fl-std-dp", *options]) == 2
    assert "a Poisson cohort can have fewer than the 3 clients that secure aggregation needs" in capsys.readouterr().err


def test_a_pruning_method_reports_every_layer(capsys):
    options = ["--rounds", "2", "--set", "cohort=2", "epochs=1", "compression=10", "--workers", "1"]
    assert main(["run", "esmfl", *options, "--set", "cohort=4"]) == 0  # an enclave releases no sum of two clients
    names, _, first, second, guarantee, *others = capsys.readouterr().out.splitlines()
    assert names.split()[4:9] == ["accuracy", "loss", "density", "pruned_accuracy", "pruned_loss"]
    assert first.startswith("Layer 1.weight: clients send 340 of 4096 weights (91.70 % zeros); the trained model has ")
    assert second.startswith("Layer 3.weight: clients send 134 of 640 weights (79.06 % zeros); the trained model has ")
    assert guarantee.startswith("No privacy guarantee: ")
    assert any(line.startswith("  Simulated enclave (insecure): ") for line in others)
    assert any(re.fullmatch(r"Time: train .* attestation .* aggregate .*", line) for line in others)
    assert main(["run", "esmfl", "masked-pruning", *options, "--set", "channel=Plain(wire=Compact())", "--json"]) == 0
    for document in json.loads(capsys.readouterr().out)["runs"]:
        layers = document["sparsity"]
        assert [layer["sent"] for layer in layers.values()] == [340, 134]
        assert all(layer["sent"] <= layer["held"] <= 2 * layer["sent"] for layer in layers.values())


def test_an_option_that_no_method_has_is_refused(capsys):
    assert main(["run", "fl-std", "fl-top", "--set", "ration=0.1"]) == 2
    assert "got 'ration'" in capsys.readouterr().err
    assert not Path("runs").exists()


def test_an_experiment_file_is_the_only_argument(capsys):
    Path("one.toml").write_text('method = "fl-std"')
    assert main(["run", "one.toml", "fl-top"]) == 2
    assert "to be the only argument" in capsys.readouterr().err


def test_directories_are_numbered_when_taken():
    for _ in range(3):
        assert main(["run", "fedavg", "--rounds", "1", *SMALL, "--randomness", "seeded"]) == 0
    names = {path.name for path in Path("runs").iterdir()}
    assert names == {"fedavg-digits-0", "fedavg-digits-0-2", "fedavg-digits-0-3"}
    assert_same(Path("runs/fedavg-digits-0"), Path("runs/fedavg-digits-0-3"))


def test_json_is_one_document_that_agrees_with_the_files(capsys):
    line = ["run", "fl-std", "--rounds", "2", "--set", "cohort=3", "--task-set", "clients=30", "partition=shards"]
    assert main([*line, "--seed", "7", "--out", "here", "--workers", "1", "--evaluate-every", "2", "--json"]) == 0
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    reports = read_rounds(Path("here"))
    assert run["metrics"] == reports[-1].metrics
    assert reports[0].metrics == {}
    assert run["bytes"]["up"] == sum(sum(report.up) for report in reports)
    assert (run["method"], run["seed"], run["rounds"], run["directory"]) == ("fl-std", 7, 2, "here")
    manifest = read_manifest(Path("here"))
    assert manifest.method.args == {"cohort": 3, "rounds": 2}
    assert manifest.task.args == {"clients": 30, "partition": "shards"}
    assert manifest.task.clients == 30


def test_an_experiment_runs_every_seed_and_yields_to_the_command_line(capsys):
    head = 'method = "fedavg"\nseeds = [1, 2]\nrandomness = "seeded"\n'
    toml = f"{head}[args]\nrounds = 9\ncohort = 2\nepochs = 1\n[task-args]\nclients = 10\n"
    Path("mine.toml").write_text(toml)
    assert main(["run", "mine.toml", "--rounds", "1", "--set", "cohort=3", "--out", "two", "--workers", "1"]) == 0
    assert [line.split()[2] for line in capsys.readouterr().out.splitlines()[1:3]] == ["1", "2"]
    for seed in (1, 2):
        run = Path("two") / f"seed-{seed}"
        assert (read_manifest(run).seed, read_manifest(run).randomness) == (seed, "seeded")
        assert [len(report.clients) for report in read_rounds(run)] == [3]


def test_the_number_of_workers_does_not_matter():
    for workers in ("1", "2"):
        line = ["run", "fedavg", "--rounds", "2", "--set", "cohort=5", "epochs=1", "--randomness", "seeded"]
        assert main([*line, "--workers", workers, "--out", workers]) == 0
    assert_same(Path("1"), Path("2"))


BAD = [
    ("fl-sdt", ["Expected method", "'fl-sdt'", "Did you mean 'fl-std'?"]),
    ("fedavg --task digit", ["Expected task", "'digit'", "Did you mean 'digits'?"]),
    ("fedavg --set epoch=2", ["method fedavg", "'epoch'", "Did you mean 'epochs'?"]),
    ("fedavg --set lr=fast", ["lr of method fedavg", "'fast'"]),
    ("fedavg --task-set client=2", ["task digits", "'client'", "Did you mean 'clients'?"]),
    ("fedavg --task-set model=digit-net", ["'digit-net'", "digits-net"]),
    ("fedavg --rounds 0", ["rounds=0 >= 1"]),
    ("fedavg --rounds many", ["rounds of method fedavg", "'many'"]),
    ("fedavg --set cohort=101", ["size=101 <= population=100", "smaller cohort"]),
    ("fedavg --evaluate-every 0", ["evaluate_every=0 >= 1"]),
    ("fedavg --workers 0", ["workers=0"]),
    ("fedavg --device abacus", ["'abacus'", "cpu"]),
    ("fedavg --out taken", ["taken is not empty", "--resume taken", "--out"]),
    ("fedavg --out taken/mine", ["is a file", "--out"]),
    ("none.toml", ["none.toml", "No such file"]),
    ("bad.toml", ["bad.toml", "'methd'", "Did you mean 'method'?"]),
    ("", ["method's name", "--resume"]),
    ("--resume nowhere", ["got nowhere, which has no manifest.json"]),
    ("--resume taken", ["got taken, which has no manifest.json"]),
    ("--resume taken --rounds 3", ["--resume", "without --rounds"]),
    ("--resume taken --set cohort=3", ["--resume", "without --set"]),
    ("--resume taken --patient person", ["--resume", "without --person"]),
    ("fedavg --resume taken", ["--resume", "without fedavg"]),
]


@pytest.mark.parametrize(("line", "words"), BAD, ids=[line or "nothing" for line, _ in BAD])
def test_bad_input_gets_one_sentence_and_leaves_no_files(line, words, capsys):
    Path("taken").mkdir()
    Path("taken/mine").write_text("keep")
    Path("bad.toml").write_text("methd = 'fedavg'")
    before = sorted(Path().rglob("*"))
    assert main(["run", *line.split()]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("tacit: ")
    assert printed.err.count("\n") == 1
    assert all(word in printed.err for word in words), printed.err
    assert sorted(Path().rglob("*")) == before


def no_space(*args: object, **options: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize(("where", "call"), [(os, "fsync"), (Path, "mkdir")])
def test_a_full_disk_is_reported_in_one_sentence(monkeypatch, capsys, where, call):
    monkeypatch.setattr(where, call, no_space)
    assert main(["run", "fedavg", "--rounds", "1", *SMALL]) == 1
    printed = capsys.readouterr().err
    assert printed.startswith("tacit: Could not write runs/fedavg-digits-0")
    assert printed.endswith("(No space left on device). Free some space.\n")
    assert list(Path().iterdir()) == []


def test_all_directories_are_checked_before_the_first_run(capsys):
    Path("mine.toml").write_text('method = "fedavg"\nseeds = [1, 2]\n')
    Path("two/seed-2").mkdir(parents=True)
    Path("two/seed-2/mine").write_text("keep")
    assert main(["run", "mine.toml", "--rounds", "1", *SMALL, "--out", "two"]) == 2
    assert "two/seed-2 is not empty" in capsys.readouterr().err
    assert not Path("two/seed-1").exists()


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-10])


def tamper(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


def other_format(path: Path) -> None:
    path.write_text(path.read_text().replace(f'"format": {MANIFEST_FORMAT}', '"format": 99'))


def other_method(path: Path) -> None:
    path.write_text(path.read_text().replace('"size": 2', '"size": 3'))


@pytest.mark.parametrize(
    ("file", "damage", "words"),
    [
        (CHECKPOINT, cut, "cut or changed"),
        (CHECKPOINT, tamper, "checksum"),
        (MANIFEST, cut, "to be JSON"),
        (MANIFEST, other_format, "another version"),
        (MANIFEST, other_method, "another method"),
        (ROUNDS, cut, "line 2"),
    ],
)
def test_damaged_runs_are_not_resumed(file, damage, words, capsys):
    assert main(["run", "fedavg", "--rounds", "2", *SMALL, "--out", "run"]) == 0
    damage(Path("run") / file)
    before = {path.name: path.read_bytes() for path in Path("run").iterdir()}
    capsys.readouterr()
    assert main(["run", "--resume", "run"]) == 2
    printed = capsys.readouterr().err
    assert words in printed
    assert printed.count("\n") == 1
    assert {path.name: path.read_bytes() for path in Path("run").iterdir()} == before


def test_runs_from_python_are_resumed_in_python(capsys):
    import tacit

    tacit.train(
        tacit.methods.fedavg(rounds=1, cohort=2),
        tacit.tasks.make_task("digits"),
        workers=1,
        out="run",
        randomness="seeded",
    )
    assert main(["run", "--resume", "run"]) == 2
    assert "resume=True" in capsys.readouterr().err


SLOW = 0.05  # seconds that a wave takes in a run that is to be stopped: it then stops within a round, not after all


@dataclass
class Process:
    """The command in a forked process and process group, as a shell would start it."""

    pid: int
    stderr: int

    def wait(self) -> tuple[int, str]:
        """Exit code (negative: the signal) and standard error."""
        with open(self.stderr) as stream:
            text = stream.read()
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1]), text


def start(*line: str, seconds_between_checkpoints: float) -> Process:
    stderr, write = os.pipe()
    pid = os.fork()
    if pid:
        os.close(write)
        return Process(pid, stderr)
    try:
        os.setsid()
        os.dup2(write, 2)
        os.close(write)
        sys.stdout, sys.stderr = open(os.devnull, "w"), open(2, "w")  # noqa: SIM115
        signal.signal(signal.SIGINT, signal.default_int_handler)  # even where Ctrl-C is ignored around us
        directory.SECONDS_BETWEEN_CHECKPOINTS = seconds_between_checkpoints
        slow_down()
        code = main(line)
        sys.stderr.flush()
        os._exit(code)
    finally:
        os._exit(99)


def slow_down() -> None:
    train = Sgd.train

    def slow_train(*args: Any, **options: Any) -> Any:
        time.sleep(SLOW)
        return train(*args, **options)

    pytest.MonkeyPatch().setattr(Sgd, "train", slow_train)


def wait_for_rounds(run: Path, count: int) -> None:
    deadline = time.monotonic() + 60
    while not (run / ROUNDS).exists() or (run / ROUNDS).read_bytes().count(b"\n") < count:
        assert time.monotonic() < deadline, "the run does not get on"
        time.sleep(0.005)


def wait_until_gone(group: int) -> None:
    """Worker processes must not outlive their parent."""
    deadline = time.monotonic() + 30
    with suppress(ProcessLookupError):
        while time.monotonic() < deadline:
            os.killpg(group, 0)
            time.sleep(0.02)
        pytest.fail("worker processes are still there")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("whole") / "run"
    assert main([*LONG, "--out", str(out), "--workers", "1"]) == 0
    return out


@pytest.mark.law("interrupted runs")
@pytest.mark.parametrize("between", [0.0, 3600.0], ids=["with a checkpoint", "before any checkpoint"])
def test_a_killed_run_is_resumed_with_the_same_result(whole, between):
    """Only this catches worker processes that survive a kill, and rounds that are written but not in a checkpoint."""
    process = start(*LONG, "--out", "run", "--workers", "2", seconds_between_checkpoints=between)
    wait_for_rounds(Path("run"), 5)
    os.kill(process.pid, signal.SIGKILL)
    code, _ = process.wait()
    assert code == -signal.SIGKILL
    wait_until_gone(process.pid)
    assert read_manifest(Path("run")).status == "running"
    assert (Path("run") / CHECKPOINT).exists() == (between == 0.0)
    assert main(["run", "--resume", "run", "--workers", "1"]) == 0
    assert_same(Path("run"), whole)


@pytest.mark.law("interrupted runs")
@pytest.mark.parametrize(
    ("workers", "number", "exit_code"),
    [("1", signal.SIGINT, 130), ("2", signal.SIGINT, 130), ("1", signal.SIGTERM, 143), ("2", signal.SIGTERM, 143)],
)
def test_ctrl_c_and_termination_print_how_to_resume(whole, workers, number, exit_code):
    """Only this catches an interrupt that loses rounds, prints tracebacks or leaves worker processes behind."""
    process = start(*LONG, "--out", "run", "--workers", workers, seconds_between_checkpoints=3600.0)
    wait_for_rounds(Path("run"), 5)
    os.killpg(process.pid, number)
    code, printed = process.wait()
    assert code == exit_code, printed
    wait_until_gone(process.pid)
    assert printed.splitlines()[-1].startswith("tacit: Interrupted after ")  # progress may have been printed before
    assert printed.endswith("of 60 rounds. Resume with: tacit run --resume run\n")
    assert printed.count("Interrupted") == 1
    assert "Traceback" not in printed
    state = checkpoint.read(Path("run") / CHECKPOINT)
    assert state is not None
    done = state.round
    assert 5 <= done < 60
    assert f" after {done} of" in printed
    assert read_manifest(Path("run")).status == "interrupted"
    assert main(["run", "--resume", "run", "--workers", "1"]) == 0
    assert_same(Path("run"), whole)
    assert read_manifest(Path("run")).status == "finished"


def test_progress_on_a_terminal_is_a_bar(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("TERM", "xterm")
    assert main(["run", "fedavg", "--rounds", "3", *SMALL]) == 0
    printed = capsys.readouterr()
    assert all(words in printed.err for words in ("3/3", "accuracy 0.", "up 116 kB", "down 116 kB", "left"))
    assert "3/3" not in printed.out


def test_progress_elsewhere_is_a_line_now_and_then(monkeypatch, capsys):
    monkeypatch.setattr(_progress, "SECONDS_BETWEEN_LINES", 0.0)
    assert main(["run", "fedavg", "--rounds", "3", *SMALL]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[2] for line in lines] == ["0/3", "1/3", "2/3", "3/3"]


def test_an_interrupt_before_the_first_round_names_no_deleted_directory(monkeypatch, capsys):
    monkeypatch.setattr(Simulation, "initial_state", property(lambda _: signal.raise_signal(signal.SIGTERM)))
    assert main(["run", "fedavg", *SMALL, "--out", "here/run"]) == 143
    assert capsys.readouterr().err == "tacit: Interrupted before the first round. Nothing was written.\n"
    assert not Path("here").exists()


def test_a_run_is_private_to_its_user():
    Path("given").mkdir(mode=0o755)
    before = os.umask(0o022)
    try:
        line = ["run", "geyer", "--set", "cohort=3", "epsilon=8", "delta=1e-3", "--workers", "1", "--rounds", "1"]
        assert main([*line, "--out", "given/new/run"]) == 0
        assert main([*line, "--out", "again", "--ledger", "shared.db"]) == 0
    finally:
        os.umask(before)
    modes = {str(path): path.stat().st_mode & 0o777 for path in Path().rglob("*")}
    run = {f"given/new/run/{name}": 0o600 for name in (MANIFEST, ROUNDS, CHECKPOINT, MODEL, LEDGER)}
    assert modes.items() >= {"given": 0o755, "given/new": 0o700, "given/new/run": 0o700, "shared.db": 0o600}.items()
    assert modes.items() >= run.items()


USER_TASK = """
import pathlib, torch, tacit
pathlib.Path("executed").touch()
def mine(count: int = 4) -> tacit.Task:
    data = [(torch.ones(3, 2), torch.zeros(3, dtype=torch.long)) for _ in range(count)]
    return tacit.Task(model=lambda: torch.nn.Linear(2, 2), clients=data)
"""
NAMES_CODE = 'method = "fedavg"\ntask = "code.py:mine"\n[args]\nrounds = 1\ncohort = 2\n'


def assert_code_is_not_run(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A foreign file names Python code: the message shows its path, and the code is not run without --trust."""
    assert main(line.split()) == 2
    message = capsys.readouterr().err
    assert str(Path("code.py").absolute()) in message
    assert "--trust" in message
    assert not Path("executed").exists()
    assert main([*line.split(), "--trust"]) == 0
    assert Path("executed").exists()


def test_an_experiment_file_runs_no_code_that_the_user_did_not_name(capsys):
    Path("code.py").write_text(USER_TASK)
    Path("foreign.toml").write_text(NAMES_CODE)
    assert_code_is_not_run("run foreign.toml --workers 1", capsys)
    assert main(["run", "foreign.toml", "--task", "code.py:mine", "--workers", "1"]) == 0


def test_a_foreign_run_directory_runs_no_code(capsys):
    Path("code.py").write_text(USER_TASK)
    assert main(["run", "fedavg", "--task", "code.py:mine", *SMALL, "--rounds", "1", "--out", "run"]) == 0
    Path("executed").unlink()
    capsys.readouterr()
    assert_code_is_not_run("run --resume run --workers 1", capsys)


def test_a_study_runs_no_code(capsys):
    Path("code.py").write_text(USER_TASK)
    Path("experiments/mine").mkdir(parents=True)
    row = '[[rows]]\nname = "a"\nmethod = "fedavg"\ntask = "code.py:mine"\nargs = { rounds = 1, cohort = 2 }\n'
    Path("experiments/mine/table-1.toml").write_text(f'title = "Mine"\n{row}')
    assert_code_is_not_run("reproduce mine/table-1 --workers 1", capsys)


def test_the_line_that_resumes_a_user_s_task_asks_for_trust(monkeypatch, capsys):
    Path("code.py").write_text(USER_TASK)
    monkeypatch.setattr(Sgd, "train", lambda *_: signal.raise_signal(signal.SIGTERM))
    assert main(["run", "fedavg", "--task", "code.py:mine", *SMALL, "--out", "run"]) == 143
    assert capsys.readouterr().err.endswith("Resume with: tacit run --resume run --trust\n")


def test_runs_on_a_shared_ledger_print_what_all_of_them_have_used(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--set", "cohort=5", "rounds=2", "--ledger", "shared.db", "--workers", "1"]
    assert main(["run", "geyer", *options]) == 0
    alone = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("Ledger"))
    assert alone.endswith("of 8 at δ = 0.001 is used by all runs together (1 run, 2 rounds).")
    assert main(["run", "geyer", *options, "--seed", "1", "--json"]) == 0
    privacy = json.loads(capsys.readouterr().out)["runs"][0]["privacy"]
    assert (privacy["ledger"]["runs"], privacy["ledger"]["rounds"]) == (2, 4)
    assert privacy["ledger"]["epsilons"]["client"] > privacy["guarantees"]["client"]["epsilon"]
