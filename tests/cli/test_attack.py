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
    assert told["seen"] == "server: the models before and after the round, 1 single messages"
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
    from tacit.mechanisms import CentralGaussian

    def forgets(mechanism, total, now):
        return total

    monkeypatch.setattr(CentralGaussian, "after_sum", forgets)
    small = ["--task-set", "clients=10", "--set", "noise=3", "cohort=10"]
    assert main(["audit", "geyer", "--runs", "120", *small]) == 1
    assert "The claim is exceeded" in capsys.readouterr().out
