import json
from pathlib import Path

import pytest

from cli.refusals import assert_refused
from tacit.cli import main

SMOOTH = ["--task-set", "model=digits-sigmoid-lenet"]


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_dlg_prints_scores_and_saves_a_picture(capsys):
    options = ["--images", "2", "--steps", "80", "--set", "descent.steps=1", "cohort=5"]
    assert main(["attack", "dlg", "fl-std", *options, *SMOOTH]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Observed by the server: the models before and after the round, 2 single messages."
    assert lines[1].split() == ["image", "MSE", "PSNR,", "dB", "SSIM", "label"]
    assert [line.split()[-1] for line in lines[2:4]] == ["correct", "correct"]
    assert lines[4].startswith("2 of 2 images recovered (SSIM > 0.9), 0 unrecognisable")
    assert lines[5] == "Picture: runs/attacks/dlg-fl-std-digits-server-0.png"
    assert Path("runs/attacks/dlg-fl-std-digits-server-0.png").read_bytes().startswith(b"\x89PNG")


def test_dlg_reports_that_a_sum_cannot_be_attacked(capsys):
    noise = ["--set", "noise=1", "epsilon=none", "clip=1"]
    assert main(["attack", "dlg", "fl-std-dp", "--images", "5", *noise, *SMOOTH]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "Observed by the server: the models before and after the round, the sum of 5 messages.",
        "No message of a single client is observed, so there is nothing to attack.",
    ]
    assert not Path("runs").exists()
    assert main(["attack", "dlg", "fl-std-dp", "--images", "5", "--json", *noise, *SMOOTH]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["attacked"], document["images"], document["recovered"], document["picture"]) == (0, 0, 0, None)


def test_dlg_as_json_with_a_path_for_the_picture(capsys):
    options = ["--images", "2", "--batch", "2", "--steps", "5", "--published", "--picture", "a/b.png", "--json"]
    assert main(["attack", "dlg", "fl-std", "--set", "descent.steps=1", *options, *SMOOTH]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["adversary"] == "server"
    assert document["observed"] == "server: the models before and after the round, 1 single message"
    assert [len(document[name]) for name in ("mse", "psnr", "ssim", "labels_correct")] == [2] * 4
    assert Path("a/b.png").exists()


def test_membership_prints_both_attacks(capsys):
    options = ["--rounds", "2", "--models", "4", "--set", "cohort=5", "epochs=1"]
    assert main(["attack", "membership", "fedavg", *options]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:2] == ["attack", "AUC"]
    assert [line.split("  ")[0] for line in lines[1:4]] == ["random guess", "likelihood ratio", "loss"]
    assert lines[4] == (
        "Each attack infers for every client whether it took part in training "
        "(4 models, each trained on half of the clients)."
    )
    assert main(["attack", "membership", "fedavg", "--level", "record", "--json", *options]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["level"] == "record"
    assert 0 <= document["attacks"]["loss"]["auc"] <= 1


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("attack dlg fl-std --batch 9", "batch=9 in [1, 8]"),
        ("attack dlg fl-std --task synthetic", "a task with images"),
        ("attack dlg fl-stt", "Did you mean"),
        ("attack dlg fl-std --images 0", "images=0 >= 1"),
        ("attack membership fedavg --models 2", "models=2 >= 4"),
    ],
)
def test_wrong_arguments_get_one_clear_sentence(line, words, capsys):
    assert_refused(line, words, capsys)


STUDY = """
title = "An attack"
[attack]
images = 4
[[rows]]
name = "plain"
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


def write_study(text=STUDY):
    file = Path("experiments/tiny/figure-1.toml")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def test_a_study_of_attacks_runs_once_and_is_drawn_from_its_results(capsys):
    """Only this test runs attacks as a study: results are saved, compared with the study's file, and drawn again."""
    write_study()
    command = ["reproduce", "tiny/figure-1", "--fast", "--save", "saved.json"]
    assert main(command) == 0
    out, err = capsys.readouterr()
    names, first, second = out.splitlines()[1:4]
    assert names.split()[:5] == ["row", "images", "recovered", "unrecognisable", "SSIM"]
    assert first.split()[:6] == ["plain", "(one", "seed)", "3", "3", "0"]
    assert second.split()[:6] == ["summed", "(one", "seed)", "0", "0", "0"]
    assert "plain, seed 0" in err or "client" not in err  # progress is printed only on slow machines
    picture = Path("saved.png").read_bytes()
    assert main(command) == 0  # the attacks are not repeated
    assert "client" not in capsys.readouterr().err
    Path("saved.png").unlink()
    assert main(["reproduce", "--from", "saved.json"]) == 0
    assert Path("saved.png").read_bytes() == picture
    write_study(STUDY.replace("steps = 1", "steps = 2"))
    assert main(command) == 2
    assert "is not the attack that tiny/figure-1 describes now" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("images = 4", "pictures = 4", "got 'pictures'"),
        ("batch = 2", "batch = 3", "images=4 in batches of 3"),
        ("[attack]\nimages = 4", "", "whose file has no [attack]"),
    ],
)
def test_a_wrong_study_gets_one_clear_sentence(old, new, words, capsys):
    write_study(STUDY.replace(old, new))
    assert main(["reproduce", "tiny/figure-1", "--fast"]) == 2
    assert words in capsys.readouterr().err
