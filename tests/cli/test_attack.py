import json
from pathlib import Path

import pytest

from tacit.cli import main

SMOOTH = ["--task-set", "model=digits-sigmoid-lenet"]


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_dlg_tells_figures_and_draws(capsys):
    options = ["--images", "2", "--steps", "150", "--set", "steps=1", "cohort=5"]
    assert main(["attack", "dlg", "fl-std", *options, *SMOOTH]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Seen by the server: the models before and after the round, 2 single messages."
    assert lines[1].split() == ["image", "MSE", "PSNR,", "dB", "SSIM", "label"]
    assert lines[4].startswith("2 of 2 images recovered (SSIM > 0.9), 0 beyond recognition")
    assert lines[5] == "Picture: runs/attacks/dlg-fl-std-digits-server-0.png"
    assert Path("runs/attacks/dlg-fl-std-digits-server-0.png").read_bytes().startswith(b"\x89PNG")


def test_behind_a_sum_there_is_nothing_to_attack_and_it_says_so(capsys):
    noise = ["--set", "noise=1", "epsilon=none", "clip=1"]
    assert main(["attack", "dlg", "fl-std-dp", "--images", "5", *noise, *SMOOTH]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said == [
        "Seen by the server: the models before and after the round, the sum of 5 messages.",
        "No single message is among it: there is nothing to attack.",
    ]
    assert not Path("runs").exists()
    assert main(["attack", "dlg", "fl-std-dp", "--images", "5", "--json", *noise, *SMOOTH]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["attacked"], told["images"], told["recovered"], told["picture"]) == (0, 0, 0, None)


def test_dlg_as_json_goes_where_it_is_told(capsys):
    options = ["--images", "2", "--batch", "2", "--steps", "5", "--published", "--picture", "a/b.png", "--json"]
    assert main(["attack", "dlg", "fl-std", "--set", "steps=1", *options, *SMOOTH]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["seen"] == "server: the models before and after the round, 1 single message"
    assert [len(told[name]) for name in ("mse", "psnr", "ssim", "labels")] == [2] * 4
    assert Path("a/b.png").exists()


def test_membership_tells_both_tests(capsys):
    options = ["--rounds", "2", "--models", "4", "--set", "cohort=5", "epochs=1"]
    assert main(["attack", "membership", "fedavg", *options]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:2] == ["test", "AUC"]
    assert [line.split("  ")[0] for line in lines[1:4]] == ["guessing", "likelihood ratio", "loss"]
    assert lines[4] == "Against the final model, for every client; 4 models, each on half of all clients."
    assert main(["attack", "membership", "fedavg", "--level", "record", "--json", *options]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["level"] == "record"
    assert 0 <= told["tests"]["loss"]["auc"] <= 1


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("attack dlg fl-std --batch 9", "batch=9 from 1 to 8"),
        ("attack dlg fl-std --task synthetic", "a task with images"),
        ("attack dlg fl-stt", "Did you mean"),
        ("attack dlg fl-std --images 0", "images=0 >= 1"),
        ("attack membership fedavg --models 2", "models=2 >= 4"),
        ("audit geyer --runs 3", "runs=3 >= 20"),
        ("audit geyer --dropouts 2", "dropouts=2.0 in [0, 1)"),
        ("audit geyer --canaries 100000", "canaries=100000 <= 4810"),
    ],
)
def test_bad_input_gets_one_clear_sentence(line, words, capsys):
    assert main(line.split()) == 2
    said = capsys.readouterr()
    assert words in said.err
    assert said.err.count("\n") == 1
    assert said.out == ""


def test_an_audit_stands_beside_the_claim(capsys):
    small = ["--task-set", "clients=10", "--set", "noise=1", "cohort=10"]
    assert main(["audit", "geyer", "--runs", "60", *small]) == 0
    said = capsys.readouterr().out
    assert "claimed ε" in said
    assert "ε is at least (Clopper-Pearson)" in said
    assert said.rstrip().endswith("The claim is not exceeded. That proves nothing about other adversaries.")
    assert main(["audit", "geyer", "--canaries", "50", "--json", *small]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["guesses"]["canaries"] == 50
    assert told["exceeded"] is False
    assert told["claimed"] > 0


def test_without_a_claim_the_bound_is_told_all_the_same(capsys):
    assert main(["audit", "fl-std", "--runs", "40", "--set", "cohort=5", "--task-set", "clients=10"]) == 0
    said = capsys.readouterr().out
    assert "none: nothing is blurred" in said
    assert said.rstrip().endswith("Nothing is claimed, so nothing is exceeded.")


def test_an_exceeded_claim_is_exit_code_1(capsys, monkeypatch):
    """A mechanism that forgets its noise."""
    from tacit.pieces.mechanisms import CentralGaussian

    def forgets(mechanism, total, now):
        return total

    monkeypatch.setattr(CentralGaussian, "after_sum", forgets)
    small = ["--task-set", "clients=10", "--set", "noise=3", "cohort=10"]
    assert main(["audit", "geyer", "--runs", "120", *small]) == 1
    assert "The claim is exceeded" in capsys.readouterr().out


STUDY = """
title = "Attacked"
[attack]
images = 4
[[rows]]
name = "open"
method = "fl-std"
args = { steps = 1, rounds = 1 }
task-args = { model = "digits-sigmoid-lenet" }
[[rows]]
name = "summed"
method = "fl-std-dp"
args = { noise = 1.0, epsilon = "none", clip = 1.0, rounds = 1 }
task-args = { model = "digits-sigmoid-lenet" }
attack = { batch = 2 }
"""


def study(text=STUDY):
    file = Path("experiments/tiny/figure-1.toml")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def test_a_study_of_attacks_is_made_once_saved_and_drawn_again(capsys):
    study()
    command = ["reproduce", "tiny/figure-1", "--fast", "--save", "saved.json"]
    assert main(command) == 0
    said = capsys.readouterr()
    names, first, second = said.out.splitlines()[1:4]
    assert names.split()[:5] == ["row", "images", "recovered", "unrecognisable", "SSIM"]
    assert first.split()[:4] == ["open", "3", "3", "0"]
    assert second.split()[:4] == ["summed", "0", "0", "0"]
    assert "open, seed 0" in said.err or "client" not in said.err  # only slow machines hear of every client
    picture = Path("saved.png").read_bytes()
    assert main(command) == 0  # nothing is attacked again
    assert "client" not in capsys.readouterr().err
    Path("saved.png").unlink()
    assert main(["reproduce", "--from", "saved.json"]) == 0
    assert Path("saved.png").read_bytes() == picture
    study(STUDY.replace("steps = 1", "steps = 2"))
    assert main(command) == 2
    assert "is not what tiny/figure-1 describes now" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("images = 4", "pictures = 4", "got 'pictures'"),
        ("batch = 2", "batch = 3", "images=4 in batches of 3"),
        ("[attack]\nimages = 4", "", "whose file has no [attack]"),
    ],
)
def test_a_study_that_cannot_be_gets_one_clear_sentence(old, new, words, capsys):
    study(STUDY.replace(old, new))
    assert main(["reproduce", "tiny/figure-1", "--fast"]) == 2
    assert words in capsys.readouterr().err
