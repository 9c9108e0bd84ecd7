import errno
import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
import safetensors.torch
import torch

from tacit.cli import _progress, main
from tacit.runs import checkpoint
from tacit.runs.directory import CHECKPOINT, LEAKAGE, MANIFEST, MODEL, ROUNDS, read_manifest, read_rounds

SMALL = ["--set", "cohort=2", "epochs=1", "--workers", "1"]
LONG = ["run", "fedavg", "--rounds", "250", "--set", "cohort=10", "epochs=2", "--seed", "4"]


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
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


def test_a_run_prints_a_table_and_where_its_files_lie(capsys):
    assert main(["run", "fedavg", "--rounds", "2", *SMALL]) == 0
    said = capsys.readouterr()
    names, figures, guarantee, where = said.out.splitlines()
    assert guarantee.startswith("Guarantee: none: nothing is blurred")
    assert names.split() == ["method", "task", "seed", "rounds", "accuracy", "loss", "ε", "up", "down", "seconds"]
    assert figures.split()[:4] == ["fedavg", "digits", "0", "2"]
    assert where == "Results: runs/fedavg-digits-0"
    assert said.err.startswith("fedavg: round 2/2 accuracy ")
    assert {path.name for path in Path("runs/fedavg-digits-0").iterdir()} == {MANIFEST, ROUNDS, CHECKPOINT, MODEL}


def test_what_clients_leak_stands_in_the_table_in_json_and_in_the_directory(capsys):
    groups = ["run", "ifca-dp", "--task", "synthetic", "--task-set", "clients=12", "--workers", "1"]
    assert main([*groups, "--set", "rounds=99", "limit=0.4", "--out", "here"]) == 0
    names, figures, *said = capsys.readouterr().out.splitlines()
    assert figures.split()[names.split().index("leakage")] == "0.4"
    assert said[0].startswith("Guarantee: d-privacy for every client")
    assert any(re.fullmatch(r"Clients declined \d+ times to leak more than 0\.4\.", line) for line in said)
    assert any(re.fullmatch(r"Every client would decline; \d+ more rounds were planned\.", line) for line in said)
    assert main([*groups, "--set", "rounds=2", "--json", "--out", "there"]) == 0
    (told,) = json.loads(capsys.readouterr().out)["runs"]
    assert told["privacy"]["kind"] == "d-privacy"
    assert told["leakage"] == json.loads((Path("there") / LEAKAGE).read_text())
    assert sum(told["leakage"]["clients"].values()) == pytest.approx(14 * 0.4)


def test_patience_says_why_a_run_stopped(capsys):
    assert (
        main(["run", "ifca", "--task", "synthetic", "--set", "models=1", "lr=5", "patience=2", "--workers", "1"]) == 0
    )
    said = capsys.readouterr().out
    assert "Stopped: no smaller loss on held-out data in 2 measurements; the best is kept." in said


def test_methods_stand_side_by_side_with_what_they_save(capsys):
    options = ["--rounds", "2", "--workers", "1", "--set", "cohort=5", "ratio=0.1", "noise=1", "epsilon=none"]
    assert main(["run", "fl-std", "fl-top-dp", *options, "channel=ideal"]) == 0
    said = capsys.readouterr().out
    standard, top = said.splitlines()[1:3]
    assert standard.startswith("fl-std ")
    assert "FL-STD /" not in standard
    up, down = (float(factor) for factor in re.findall(r"FL-STD / ([\d.]+)", top))
    assert 8 < down < up < 10  # 481 of 4810 weights, with 36 bytes of header; the mask and the bound go down as well
    assert "Guarantee of fl-std: none" in said
    assert "Guarantee of fl-top-dp: (" in said
    assert {path.name for path in Path("runs").iterdir()} == {"fl-std-digits-0", "fl-top-dp-digits-0"}
    assert read_manifest(Path("runs/fl-std-digits-0")).method.args == {"rounds": 2, "cohort": 5}


def test_what_a_secure_sum_takes_is_said_by_phases(capsys):
    options = ["--rounds", "2", "--workers", "1", "--set", "cohort=12", "ratio=0.1", "noise=1", "epsilon=none"]
    assert main(["run", "fl-std", "fl-top-dp", *options, "channel.level=semi_honest", "sampling=fixed"]) == 0
    said = capsys.readouterr().out
    assert re.search(r"Of these bytes SecureSum took .* announce .*, share .*, upload .*, open ", said)
    assert "Sums are of integers modulo 2^32: numbers were rounded to multiples of " in said
    assert main(["run", "fl-top-dp", *options, "sampling=fixed", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["runs"][0]["bytes"]["phases"]["agree"]["up"] == 2 * 12 * 120


def test_a_cohort_too_small_for_a_secure_sum_is_said(capsys):
    options = ["--rounds", "2", "--set", "cohort=2", "noise=1", "epsilon=none", "sampling=fixed"]
    assert main(["run", "fl-std-dp", *options]) == 1
    assert "has 2 of the 3 clients that a secure sum needs. Use larger cohorts." in capsys.readouterr().err


def test_a_pruning_method_tells_every_layer(capsys):
    options = ["--rounds", "2", "--set", "cohort=2", "epochs=1", "compression=10", "--workers", "1"]
    assert main(["run", "esmfl", *options]) == 0
    names, _, first, second, guarantee, *others = capsys.readouterr().out.splitlines()
    assert names.split()[4:9] == ["accuracy", "loss", "density", "pruned_accuracy", "pruned_loss"]
    assert first.startswith("Sparsity: of 1.weight's 4096 weights clients send 340 (91.70% zeros), the model has ")
    assert second.startswith("Sparsity: of 3.weight's 640 weights clients send 134 (79.06% zeros), the model has ")
    assert guarantee.startswith("Guarantee: none: ")
    assert "  enclave: simulated (insecure)" in others
    assert any(re.fullmatch(r"Time by part: train .* attestation .* aggregate .*", line) for line in others)
    assert main(["run", "esmfl", "masked-pruning", *options, "--json"]) == 0
    for told in json.loads(capsys.readouterr().out)["runs"]:
        layers = told["sparsity"]
        assert [layer["sent"] for layer in layers.values()] == [340, 134]
        assert all(layer["sent"] <= layer["held"] <= 2 * layer["sent"] for layer in layers.values())


def test_an_option_that_no_method_has_is_refused(capsys):
    assert main(["run", "fl-std", "fl-top", "--set", "ration=0.1"]) == 2
    assert "got 'ration'" in capsys.readouterr().err
    assert not Path("runs").exists()


def test_an_experiment_stands_alone(capsys):
    Path("one.toml").write_text('method = "fl-std"')
    assert main(["run", "one.toml", "fl-top"]) == 2
    assert "stand alone" in capsys.readouterr().err


def test_directories_are_numbered_when_taken():
    for _ in range(3):
        assert main(["run", "fedavg", "--rounds", "1", *SMALL]) == 0
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
    toml = 'method = "fedavg"\nseeds = [1, 2]\n[args]\nrounds = 9\ncohort = 2\nepochs = 1\n[task-args]\nclients = 10\n'
    Path("mine.toml").write_text(toml)
    assert main(["run", "mine.toml", "--rounds", "1", "--set", "cohort=3", "--out", "two", "--workers", "1"]) == 0
    assert [line.split()[2] for line in capsys.readouterr().out.splitlines()[1:3]] == ["1", "2"]
    for seed in (1, 2):
        run = Path("two") / f"seed-{seed}"
        assert read_manifest(run).seed == seed
        assert [len(report.clients) for report in read_rounds(run)] == [3]


def test_the_number_of_workers_does_not_matter():
    for workers in ("1", "2"):
        line = ["run", "fedavg", "--rounds", "2", "--set", "cohort=5", "epochs=1"]
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
    ("--resume nowhere", ["nowhere holds no run"]),
    ("--resume taken", ["taken holds no run"]),
    ("--resume taken --rounds 3", ["--resume", "without --rounds"]),
    ("fedavg --resume taken", ["--resume", "without fedavg"]),
]


@pytest.mark.parametrize(("line", "words"), BAD, ids=[line or "nothing" for line, _ in BAD])
def test_bad_input_gets_one_clear_sentence_and_leaves_nothing(line, words, capsys):
    Path("taken").mkdir()
    Path("taken/mine").write_text("keep")
    Path("bad.toml").write_text("methd = 'fedavg'")
    before = sorted(Path().rglob("*"))
    assert main(["run", *line.split()]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("tacit: ")
    assert said.err.count("\n") == 1
    assert all(word in said.err for word in words), said.err
    assert sorted(Path().rglob("*")) == before


def no_space(*args: object, **options: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize(("where", "call"), [(os, "fsync"), (Path, "mkdir")])
def test_a_full_disk_is_our_fault_in_one_sentence(monkeypatch, capsys, where, call):
    monkeypatch.setattr(where, call, no_space)
    assert main(["run", "fedavg", "--rounds", "1", *SMALL]) == 1
    said = capsys.readouterr().err
    assert said.startswith("tacit: Could not write runs/fedavg-digits-0")
    assert said.endswith("(No space left on device). Free some space.\n")
    assert list(Path().iterdir()) == []


def test_all_seeds_places_are_checked_before_the_first_run(capsys):
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
    path.write_text(path.read_text().replace('"format": 1', '"format": 99'))


def other_method(path: Path) -> None:
    path.write_text(path.read_text().replace("FixedSize(size=2)", "FixedSize(size=3)"))


@pytest.mark.parametrize(
    ("file", "damage", "words"),
    [
        (CHECKPOINT, cut, "cut or changed"),
        (CHECKPOINT, tamper, "checksum"),
        (MANIFEST, cut, "not a run's manifest"),
        (MANIFEST, other_format, "another version"),
        (MANIFEST, other_method, "another method"),
        (ROUNDS, cut, "Line 2"),
    ],
)
def test_damaged_runs_are_not_resumed(file, damage, words, capsys):
    assert main(["run", "fedavg", "--rounds", "2", *SMALL, "--out", "run"]) == 0
    damage(Path("run") / file)
    before = {path.name: path.read_bytes() for path in Path("run").iterdir()}
    capsys.readouterr()
    assert main(["run", "--resume", "run"]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1
    assert {path.name: path.read_bytes() for path in Path("run").iterdir()} == before


def test_runs_from_python_go_on_in_python(capsys):
    import tacit

    tacit.train(tacit.methods.fedavg(rounds=1, cohort=2), tacit.tasks.make_task("digits"), workers=1, out="run")
    assert main(["run", "--resume", "run"]) == 2
    assert "resume=True" in capsys.readouterr().err


def start(*line: str, seconds_between_checkpoints: float) -> subprocess.Popen[str]:
    """The command in a process group of its own, as a shell would start it, even where Ctrl-C is ignored around us."""
    code = (
        "import signal, sys, tacit.runs.directory, tacit.cli; "
        "signal.signal(signal.SIGINT, signal.default_int_handler); "
        f"tacit.runs.directory.SECONDS_BETWEEN_CHECKPOINTS = {seconds_between_checkpoints!r}; "
        "sys.exit(tacit.cli.main(sys.argv[1:]))"
    )
    return subprocess.Popen(
        [sys.executable, "-c", code, *line], stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def wait_for_rounds(run: Path, count: int) -> None:
    deadline = time.monotonic() + 60
    while not (run / ROUNDS).exists() or (run / ROUNDS).read_bytes().count(b"\n") < count:
        assert time.monotonic() < deadline, "the run does not get on"
        time.sleep(0.005)


def wait_until_gone(group: int) -> None:
    """Worker processes must not outlive the one they work for."""
    deadline = time.monotonic() + 30
    with suppress(ProcessLookupError):
        while time.monotonic() < deadline:
            os.killpg(group, 0)
            time.sleep(0.02)
        pytest.fail("worker processes are still there")


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("whole") / "run"
    assert main([*LONG, "--out", str(out), "--workers", "1"]) == 0
    return out


@pytest.mark.parametrize("between", [0.0, 3600.0], ids=["with a checkpoint", "before any checkpoint"])
def test_a_killed_run_goes_on_to_the_same_result(whole, between):
    with start(*LONG, "--out", "run", "--workers", "2", seconds_between_checkpoints=between) as process:
        wait_for_rounds(Path("run"), 5)
        process.kill()
    assert process.returncode == -signal.SIGKILL
    wait_until_gone(process.pid)
    assert read_manifest(Path("run")).status == "running"
    assert (Path("run") / CHECKPOINT).exists() == (between == 0.0)
    assert main(["run", "--resume", "run", "--workers", "1"]) == 0
    assert_same(Path("run"), whole)


@pytest.mark.parametrize("workers", ["1", "2"])
def test_ctrl_c_says_how_to_go_on(whole, workers):
    with start(*LONG, "--out", "run", "--workers", workers, seconds_between_checkpoints=3600.0) as process:
        wait_for_rounds(Path("run"), 5)
        os.killpg(process.pid, signal.SIGINT)
        said = process.stderr.read()
    assert process.returncode == 130
    wait_until_gone(process.pid)
    assert said.splitlines()[-1].startswith("tacit: Interrupted after ")  # a slow run has told of its progress before
    assert said.endswith("of 250 rounds. Go on with: tacit run --resume run\n")
    assert said.count("Interrupted") == 1
    assert "Traceback" not in said
    done = checkpoint.read(Path("run") / CHECKPOINT).round
    assert 5 <= done < 250
    assert f" after {done} of" in said
    assert main(["run", "--resume", "run", "--workers", "1"]) == 0
    assert_same(Path("run"), whole)
    assert read_manifest(Path("run")).status == "finished"


def test_on_a_terminal_there_is_a_bar(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("TERM", "xterm")
    assert main(["run", "fedavg", "--rounds", "3", *SMALL]) == 0
    said = capsys.readouterr()
    assert all(words in said.err for words in ("3/3", "accuracy 0.", "up 116 kB", "down 116 kB", "left"))
    assert "3/3" not in said.out


def test_elsewhere_there_is_a_line_now_and_then(monkeypatch, capsys):
    monkeypatch.setattr(_progress, "SECONDS_BETWEEN_LINES", 0.0)
    assert main(["run", "fedavg", "--rounds", "3", *SMALL]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[2] for line in lines] == ["0/3", "1/3", "2/3", "3/3"]
