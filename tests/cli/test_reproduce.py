import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from papers.comparisons import make, row
from tacit.cli import main
from tacit.cli.commands import reproduce
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
title = "A longer table"
[[rows]]
name = "long"
method = "fedavg"
seeds = [0, 1]
args = { rounds = 30, cohort = 10, epochs = 1 }
"""
PLAIN = ["reproduce", "tiny/table-1", "--rows", "plain", "--workers", "1"]
RUNS = Path("runs/reproduce/tiny")


@pytest.fixture(autouse=True)
def _in_a_folder_with_tiny_studies(tmp_path, monkeypatch):
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


def test_without_an_argument_it_lists_the_studies_of_the_package_and_one_s_own(capsys):
    assert main(["reproduce"]) == 0
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]]
    assert names == sorted(names)
    assert {"geyer/table-1", "fl-top/figure-1"} < set(names)
    assert [name for name in names if name.startswith("tiny/")] == ["tiny/figure-1", "tiny/table-1", "tiny/table-2"]
    assert main(["reproduce", "--json"]) == 0
    (table,) = (study for study in json.loads(capsys.readouterr().out) if study["name"] == "tiny/table-1")
    assert table == {"name": "tiny/table-1", "title": "A tiny table", "rows": ["plain", "private"]}


def test_listing_misspelling_and_printing_saved_results_import_neither_torch_nor_matplotlib(tmp_path):
    """Only a new process shows what is imported."""
    (tmp_path / "saved.json").write_bytes(make(row({"accuracy": 0.5})).to_bytes())
    code = (
        "import sys, tacit.cli; "
        "codes = [tacit.cli.main(['reproduce', *line.split()]) for line in sys.argv[1:]]; "
        "sys.exit(codes != [0, 2, 2, 0] or bool({'torch', 'matplotlib'} & sys.modules.keys()))"
    )
    lines = ["", "tiny/tabel-1", "tiny/table-1 --rows plian", "--from saved.json"]
    assert subprocess.run([sys.executable, "-c", code, *lines], capture_output=True).returncode == 0


def test_results_are_compared_with_the_paper_and_nothing_is_run_twice(capsys):
    assert main(["reproduce", "tiny/table-1", "--workers", "1"]) == 0
    said = capsys.readouterr()
    lines = said.out.splitlines()
    assert lines[0] == "A tiny table"
    assert lines[1].split() == ["row", "quantity", "paper", "ours", "range", "one", "more", "seed", "seeds", "verdict"]
    (missed,) = (line for line in lines if "0.999" in line)
    assert missed.split()[0] == "private"
    assert missed.split()[-4:] == ["one", "seed", "1", "missed"]
    assert sum(line.endswith("within reach") for line in lines) == 1  # two seeds
    assert sum(line.endswith("reached") for line in lines) == 1
    assert "  Guarantee: none: no noise is added" in said.out
    assert "-differential privacy for every client" in said.out
    assert "  Traffic: 12 messages from clients per run; measured: " in said.out
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
    assert again.err == "3 of 3 runs were already finished.\n"
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
    document = json.loads(said.out)
    assert set(document) == {
        "format",
        "name",
        "title",
        "fast",
        "versions",
        "rows",
        "plot",
        "columns",
        "stand_in",
        "rankings",
    }
    (row,) = document["rows"]
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


def test_saved_results_grow_by_rows_and_seeds(capsys):
    parts = (["private"], ["plain", "--seeds", "1"], ["plain", "--seeds", "0"])
    for part in parts:
        assert main(["reproduce", "tiny/table-1", "--workers", "1", "--save", "kept.json", "--rows", *part]) == 0
    grown = Path("kept.json").read_bytes()
    capsys.readouterr()
    assert main(["reproduce", "tiny/table-1", "--json"]) == 0
    assert capsys.readouterr().out.encode() == grown


def test_results_that_another_process_saves_meanwhile_are_kept(monkeypatch):
    watch = reproduce._watch

    def with_another(*job: Any) -> None:
        monkeypatch.setattr(reproduce, "_watch", watch)
        assert main(["reproduce", "tiny/table-1", "--rows", "private", "--workers", "1", "--save", "kept.json"]) == 0
        watch(*job)

    monkeypatch.setattr(reproduce, "_watch", with_another)
    assert main([*PLAIN, "--save", "kept.json"]) == 0
    assert {row["name"] for row in json.loads(Path("kept.json").read_text())["rows"]} == {"plain", "private"}


def test_trials_of_other_settings_are_replaced_with_a_notice(capsys):
    assert main([*PLAIN, "--save", "kept.json"]) == 0
    file = Path("experiments/tiny/table-1.toml")
    file.write_text(file.read_text().replace("rounds = 3", "rounds = 4"))
    assert main([*PLAIN, "--save", "kept.json", "--seeds", "7", "--json"]) == 0
    (row,) = json.loads(Path("kept.json").read_text())["rows"]
    assert [(trial["seed"], trial["values"]["rounds"]) for trial in row["trials"]] == [(7, 4)]
    assert "plain: earlier results are replaced (seeds 0, 1)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("kept", "words"),
    [
        (
            ["reproduce", "tiny/figure-1", "--fast"],
            "results of tiny/table-1, got tiny/figure-1, short. Save to",
        ),
        ([*PLAIN, "--fast"], "to have results of tiny/table-1, got tiny/table-1, short. Save to another file."),
        (None, "Expected kept.json to be JSON, got other content. Save it again with tacit reproduce --save."),
    ],
)
def test_nothing_is_run_for_a_file_with_other_results(kept, words, capsys):
    if kept is None:
        Path("kept.json").write_text("a letter")
    else:
        assert main([*kept, "--save", "kept.json"]) == 0
    before, runs = Path("kept.json").read_bytes(), times()
    capsys.readouterr()
    assert main([*PLAIN, "--save", "kept.json"]) == 2
    assert words in capsys.readouterr().err
    assert (Path("kept.json").read_bytes(), times()) == (before, runs)


def test_results_are_saved_and_found_in_experiments_by_default(capsys):
    assert main(["reproduce", "tiny/figure-1", "--fast", "--workers", "1", "--save"]) == 0
    saved = Path("experiments/tiny/results/figure-1.json")
    said = capsys.readouterr().out
    assert said.endswith(f"Saved: {saved}\nFigure: {saved.with_suffix('.png')}\n")
    assert main(["reproduce", "--from", "tiny/figure-1"]) == 0
    assert capsys.readouterr().out == said.replace(f"Saved: {saved}\n", "")


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


def test_the_short_version_is_kept_apart_and_not_compared(capsys):
    assert main(["reproduce", "tiny/table-1", "--fast", "--workers", "1", "--out", "here"]) == 0
    said = capsys.readouterr().out
    assert "missed" not in said
    assert "This is the short version" in said
    assert {path.parent.name for path in Path("here").rglob("manifest.json")} == {"seed-0"}
    assert len(read_rounds(Path("here/tiny/table-1/fast/plain/seed-0"))) == 1


def test_other_seeds_can_be_chosen():
    assert main([*PLAIN, "--fast", "--seeds", "5,6"]) == 0
    assert {path.name for path in (RUNS / "table-1/fast/plain").iterdir()} == {"seed-5", "seed-6"}


def test_a_run_with_other_settings_is_refused(capsys):
    changes = [
        ("rounds = 3", "rounds = 4", "rounds was 3, is 4"),
        ("clients = 8", "clients = 9", "clients was 8, is 9"),
        ("clients = 8", "samples = 12", "clients was 8, is not set"),
        ('"synthetic"', '"digits"', "its task was synthetic"),
    ]
    assert main([*PLAIN, "--seeds", "1"]) == 0
    before = times()
    for old, new, words in changes:
        Path("experiments/tiny/table-1.toml").write_text(TABLE.replace(old, new))
        capsys.readouterr()
        assert main(PLAIN) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1
        assert words in said
        assert "Remove runs/reproduce/tiny/table-1/plain/seed-1 to run it again." in said
        assert times() == before


BAD = [
    ("tiny/tabel-1", ["tiny/figure-1, tiny/table-1, tiny/table-2", "Did you mean 'tiny/table-1'?"]),
    ("table", ["tiny/table-1", "'table'"]),
    ("tiny/table-1 --rows plian", ["a row of tiny/table-1", "Did you mean 'plain'?"]),
    ("--from none.json", ["none.json", "No such file"]),
    ("--from tiny/table-1", ["experiments/tiny/results/table-1.json", "tacit reproduce tiny/table-1 --save"]),
    ("--save", ["a study before --save"]),
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


LINE = ["reproduce", "tiny/table-2", "--workers", "1"]
FIRST, SECOND = RUNS / "table-2/long/seed-0", RUNS / "table-2/long/seed-1"


def assert_resumed(whole: Path) -> None:
    """The second run was stopped; the same command completes it, and leaves the first as it was."""
    assert read_manifest(FIRST).status == "finished"
    assert read_manifest(SECOND).status != "finished"
    before = (FIRST / ROUNDS).stat().st_mtime_ns
    assert main(LINE) == 0
    assert (FIRST / ROUNDS).stat().st_mtime_ns == before
    for run in (FIRST, SECOND):
        assert_same(run, whole / run.relative_to(RUNS.parent))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The runs of tiny/table-2 without an interruption."""
    folder = tmp_path_factory.mktemp("whole")
    (folder / "experiments/tiny").mkdir(parents=True)
    (folder / "experiments/tiny/table-2.toml").write_text(LONG)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(LINE) == 0
    return folder / RUNS.parent


KILLED = """
import os, signal, sys, threading
import tacit.cli.commands.reproduce

def killed(steps, label):
    for step in steps:
        if label == "long, seed 1" and step.state.round == 6:
            threading.Timer(0.01, os.kill, (os.getpid(), signal.SIGKILL)).start()
        yield step

tacit.cli.commands.reproduce.track_run = killed
tacit.cli.main(sys.argv[1:])
"""


@pytest.mark.law("interrupted runs")
def test_after_a_kill_the_same_command_resumes(whole):
    """Only a real kill, at any moment of a round, leaves files as a crash does."""
    done = subprocess.run([sys.executable, "-c", KILLED, *LINE], capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert_resumed(whole)


@pytest.mark.law("interrupted runs")
def test_after_ctrl_c_the_same_command_resumes(whole, capsys):
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # it may be ignored around us
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(reproduce, "track_run", interrupting)
            assert main(LINE) == 130
    finally:
        signal.signal(signal.SIGINT, before)
    said = "tacit: Interrupted long, seed 1 after 5 of 30 rounds. Run the same command to resume.\n"
    assert capsys.readouterr().err.endswith(said)
    assert_resumed(whole)


def interrupting(steps, label):
    """The steps of a run; seed 1 receives an interrupt in its sixth round."""
    for step in steps:
        if label == "long, seed 1" and step.state.round == 6:
            signal.raise_signal(signal.SIGINT)
        yield step


@pytest.mark.law
@pytest.mark.parametrize("row", ["K=100 quantile bound", "K=10000 released code"])
def test_a_row_of_geyer_runs_in_short(row, data_folder, tmp_path, capsys):
    """Only here a study of the package runs from any folder on its real data, with and without a guarantee."""
    line = ["reproduce", "geyer/table-1", "--fast", "--rows", row, "--workers", "1", "--out", str(tmp_path), "--json"]
    assert main(line) == 0
    (result,) = json.loads(capsys.readouterr().out)["rows"]
    assert result["proved"] == (row == "K=100 quantile bound")
    assert result["trials"][0]["values"]["rounds"] == 2
