import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import safetensors.torch
import torch

from tacit.cli import main
from tacit.runs.directory import MODEL, ROUNDS, read_manifest, read_rounds

TABLE = """
title = "A tiny table"

[[rows]]
name = "plain"
method = "fedavg"
task = "synthetic"
seeds = [0, 1]
args = { rounds = 3, cohort = 4, epochs = 1 }
task-args = { clients = 8 }
fast = { args = { rounds = 1 } }

[[rows]]
name = "private"
method = "geyer"
task = "digits"
args = { rounds = 2, cohort = 10, noise = 1.2, epsilon = 8, delta = 1e-3 }
task-args = { clients = 20 }
fast = { args = { rounds = 1 } }
"""
EXPECTED = """
["table-1".private]
accuracy = 0.999
rounds = 2
delta = 1e-3
source = "Table 1"
"""
FIGURE = """
title = "A tiny figure"
[[rows]]
from = "table-1"
row = "private"
name = "with a budget"
[figure]
y = ["accuracy", "variance", "scale"]
"""
LONG = """
title = "A longer one"
[[rows]]
name = "long"
method = "fedavg"
seeds = [0, 1]
args = { rounds = 60, cohort = 10, epochs = 2 }
"""
PLAIN = ["reproduce", "tiny/table-1", "--rows", "plain", "--workers", "1"]
RUNS = Path("runs/reproduce/tiny")


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "experiments" / "tiny"
    folder.mkdir(parents=True)
    for name, text in (("table-1", TABLE), ("expected", EXPECTED), ("figure-1", FIGURE), ("table-2", LONG)):
        (folder / f"{name}.toml").write_text(text)


def times() -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in RUNS.rglob("*") if path.is_file()}


def assert_same(run: Path, other: Path) -> None:
    one, two = (safetensors.torch.load_file(place / MODEL) for place in (run, other))
    assert all(torch.equal(one[name], two[name]) for name in one)
    for mine, theirs in zip(read_rounds(run), read_rounds(other), strict=True):
        assert (mine.clients, mine.up, mine.norm, mine.metrics) == (
            theirs.clients,
            theirs.up,
            theirs.norm,
            theirs.metrics,
        )


def test_without_an_argument_it_lists_what_there_is(capsys):
    assert main(["reproduce"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]] == [
        "tiny/figure-1",
        "tiny/table-1",
        "tiny/table-2",
    ]
    assert main(["reproduce", "--json"]) == 0
    second = json.loads(capsys.readouterr().out)[1]
    assert second == {"name": "tiny/table-1", "title": "A tiny table", "rows": ["plain", "private"]}


def test_ours_stand_beside_the_papers_and_nothing_is_run_twice(capsys):
    assert main(["reproduce", "tiny/table-1", "--workers", "1"]) == 0
    said = capsys.readouterr()
    lines = said.out.splitlines()
    assert lines[0] == "A tiny table"
    assert lines[1].split() == ["row", "quantity", "paper", "ours", "least", "to", "most", "seeds", "verdict"]
    (missed,) = (line for line in lines if "0.999" in line)
    assert missed.split()[0] == "private"
    assert missed.endswith("1   missed")
    assert sum(line.endswith("reached") for line in lines) == 2
    assert "  Guarantee: none: nothing is blurred" in said.out
    assert "-differential privacy for every client" in said.out
    assert "  Travelled: 12 messages from clients in a run; measured, " in said.out
    assert "private, seed 0: round 2/2" in said.err

    before = times()
    assert {str(path.parent.relative_to(RUNS)) for path in before} == {
        "table-1/plain/seed-0",
        "table-1/plain/seed-1",
        "table-1/private/seed-0",
    }
    assert main(["reproduce", "tiny/table-1"]) == 0
    again = capsys.readouterr()
    assert again.out == said.out
    assert again.err == "3 of 3 runs were finished before.\n"
    assert main(["reproduce", "tiny/figure-1", "--save", "kept/figure.json"]) == 0
    assert times() == before
    assert Path("kept/figure.png").read_bytes().startswith(b"\x89PNG")

    capsys.readouterr()
    drawn = Path("kept/figure.png").read_bytes()
    Path("kept/figure.png").unlink()
    assert main(["reproduce", "--from", "kept/figure.json"]) == 0
    assert capsys.readouterr().out.endswith("Figure: kept/figure.png\n")
    assert Path("kept/figure.png").read_bytes() == drawn


def test_json_is_one_small_document(capsys):
    assert main([*PLAIN, "--json", "--save", "kept.json"]) == 0
    said = capsys.readouterr()
    assert said.out == Path("kept.json").read_text()
    told = json.loads(said.out)
    assert set(told) == {"format", "name", "title", "fast", "versions", "rows", "plot", "columns", "stand_in", "orders"}
    (row,) = told["rows"]
    assert (row["method"], row["args"]["rounds"], row["proved"], row["spent"]) == ("fedavg", 3, False, False)
    assert [trial["seed"] for trial in row["trials"]] == [0, 1]
    for trial in row["trials"]:
        reports = read_rounds(RUNS / f"table-1/plain/seed-{trial['seed']}")
        values = trial["values"]
        (main_one, *_) = reports[-1].metrics
        assert values[main_one] == float(f"{reports[-1].metrics[main_one]:.6g}")
        assert (values["rounds"], values["cost"], values["epsilon"]) == (3, 12, None)
        assert values["up"] == sum(sum(report.up) for report in reports)
        assert trial["curves"]["round"] == [1, 2, 3]
        assert set(trial["curves"]) == {"round", main_one}
    assert {entry["quantity"] for entry in row["compared"]} >= {"rounds", "cost", "up", "down"}


def test_what_is_kept_grows_by_rows_and_seeds(capsys):
    parts = (["private"], ["plain", "--seeds", "1"], ["plain", "--seeds", "0"])
    for part in parts:
        assert main(["reproduce", "tiny/table-1", "--workers", "1", "--save", "kept.json", "--rows", *part]) == 0
    grown = Path("kept.json").read_bytes()
    capsys.readouterr()
    assert main(["reproduce", "tiny/table-1", "--json"]) == 0
    assert capsys.readouterr().out.encode() == grown


def test_trials_of_other_settings_do_not_stay(capsys):
    assert main([*PLAIN, "--save", "kept.json"]) == 0
    file = Path("experiments/tiny/table-1.toml")
    file.write_text(file.read_text().replace("rounds = 3", "rounds = 4"))
    assert main([*PLAIN, "--save", "kept.json", "--seeds", "7", "--json"]) == 0
    (row,) = json.loads(Path("kept.json").read_text())["rows"]
    assert [(trial["seed"], trial["values"]["rounds"]) for trial in row["trials"]] == [(7, 4)]


@pytest.mark.parametrize(
    ("kept", "words"),
    [
        (["reproduce", "tiny/figure-1", "--fast"], "kept rows of tiny/table-1, got tiny/figure-1, short. Save to"),
        ([*PLAIN, "--fast"], "kept rows of tiny/table-1, got tiny/table-1, short. Save to another file."),
        (None, "Expected kept.json to be what tacit reproduce --save writes."),
    ],
)
def test_nothing_is_run_for_a_file_that_keeps_something_else(kept, words, capsys):
    if kept is None:
        Path("kept.json").write_text("a letter")
    else:
        assert main([*kept, "--save", "kept.json"]) == 0
    before, runs = Path("kept.json").read_bytes(), times()
    capsys.readouterr()
    assert main([*PLAIN, "--save", "kept.json"]) == 2
    assert words in capsys.readouterr().err
    assert (Path("kept.json").read_bytes(), times()) == (before, runs)


def test_saving_is_all_or_nothing(monkeypatch, capsys):
    assert main([*PLAIN, "--save", "kept.json"]) == 0
    before = Path("kept.json").read_bytes()

    def no_space(*args: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", no_space)
    capsys.readouterr()
    assert main([*PLAIN, "--save", "kept.json"]) == 1
    assert "Could not write kept.json" in capsys.readouterr().err
    assert Path("kept.json").read_bytes() == before
    assert not list(Path().glob(".*"))


def test_the_short_version_is_apart_and_not_compared(capsys):
    assert main(["reproduce", "tiny/table-1", "--fast", "--workers", "1", "--out", "here"]) == 0
    said = capsys.readouterr().out
    assert "missed" not in said
    assert "This is the short version" in said
    assert {path.parent.name for path in Path("here").rglob("manifest.json")} == {"seed-0"}
    assert len(read_rounds(Path("here/tiny/table-1/fast/plain/seed-0"))) == 1


def test_other_seeds_can_be_asked_for():
    assert main([*PLAIN, "--fast", "--seeds", "5,6"]) == 0
    assert {path.name for path in (RUNS / "table-1/fast/plain").iterdir()} == {"seed-5", "seed-6"}


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("rounds = 3", "rounds = 4", "rounds was 3, is 4"),
        ("clients = 8", "clients = 9", "clients was 8, is 9"),
        ("clients = 8", "samples = 12", "clients was 8, is left out"),
        ('"synthetic"', '"digits"', "its task was synthetic"),
    ],
)
def test_a_run_of_something_else_is_refused(old, new, words, capsys):
    assert main([*PLAIN, "--seeds", "1"]) == 0
    before = times()
    file = Path("experiments/tiny/table-1.toml")
    file.write_text(file.read_text().replace(old, new))
    capsys.readouterr()
    assert main(PLAIN) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert words in said
    assert "Remove runs/reproduce/tiny/table-1/plain/seed-1 to run it anew." in said
    assert times() == before


BAD = [
    ("tiny/tabel-1", ["tiny/figure-1, tiny/table-1, tiny/table-2", "Did you mean 'tiny/table-1'?"]),
    ("table", ["tiny/table-1", "'table'"]),
    ("tiny/table-1 --rows plian", ["a row of tiny/table-1", "Did you mean 'plain'?"]),
    ("--from none.json", ["none.json", "No such file"]),
    ("--from experiments/tiny/table-1.toml", ["table-1.toml", "--save"]),
    ("tiny/table-1 --from kept.json", ["--from", "without tiny/table-1"]),
    ("--from kept.json --fast", ["--from", "without --fast"]),
]


@pytest.mark.parametrize(("line", "words"), BAD, ids=[line for line, _ in BAD])
def test_bad_input_gets_one_clear_sentence(line, words, capsys):
    assert main(["reproduce", *line.split()]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert all(word in said.err for word in words), said.err
    assert not Path("runs").exists()


@pytest.mark.parametrize("seeds", ["a", "1,1", ""])
def test_seeds_are_different_whole_numbers(seeds, capsys):
    with pytest.raises(SystemExit):
        main([*PLAIN, "--seeds", seeds])
    assert "xpected" in capsys.readouterr().err


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_after_a_kill_or_ctrl_c_the_same_command_goes_on(how):
    line = ["reproduce", "tiny/table-2", "--workers", "1"]
    assert main([*line, "--out", "whole"]) == 0
    code = (
        "import signal, sys, tacit.cli; "
        "signal.signal(signal.SIGINT, signal.default_int_handler); "  # it may be ignored around us
        "sys.exit(tacit.cli.main(sys.argv[1:]))"
    )
    second = RUNS / "table-2/long/seed-1"
    with subprocess.Popen([sys.executable, "-c", code, *line], stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 120
        while not (second / ROUNDS).exists() or (second / ROUNDS).read_bytes().count(b"\n") < 5:
            assert time.monotonic() < deadline, "the run does not get on"
            time.sleep(0.005)
        process.send_signal(how)
        said = process.stderr.read()
    assert read_manifest(RUNS / "table-2/long/seed-0").status == "finished"
    assert read_manifest(second).status != "finished"
    if how == signal.SIGINT:
        assert process.returncode == 130
        assert "tacit: Interrupted long, seed 1 after " in said
        assert said.endswith("of 60 rounds. The same command goes on.\n")
    before = (RUNS / "table-2/long/seed-0" / ROUNDS).stat().st_mtime_ns
    assert main(line) == 0
    assert (RUNS / "table-2/long/seed-0" / ROUNDS).stat().st_mtime_ns == before
    for seed in (0, 1):
        assert_same(RUNS / f"table-2/long/seed-{seed}", Path(f"whole/tiny/table-2/long/seed-{seed}"))


@pytest.mark.parametrize("row", ["K=100 quantile bound", "K=10000 released code"])
def test_a_row_of_geyer_runs_in_short(row, data_folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(Path(__file__).resolve().parents[2])
    line = ["reproduce", "geyer/table-1", "--fast", "--rows", row, "--workers", "1", "--out", str(tmp_path), "--json"]
    assert main(line) == 0
    (told,) = json.loads(capsys.readouterr().out)["rows"]
    assert told["proved"] == (row == "K=100 quantile bound")
    assert told["trials"][0]["values"]["rounds"] == 2
