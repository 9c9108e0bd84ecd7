import json
import subprocess
import sys
import time

import pytest

from tacit import cli, methods
from tacit.errors import StorageError

VERBS = ("run", "methods", "card", "data")


def test_help_lists_every_verb_and_is_quick():
    command = [sys.executable, "-X", "importtime", "-m", "tacit.cli", "--help"]
    began = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    seconds = time.perf_counter() - began
    assert all(f"    {verb} " in done.stdout for verb in VERBS)
    assert "torch" not in done.stderr
    assert seconds < 2  # 0.1 s on an idle machine; with torch it is far more


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_s_help_teaches_by_example(verb, capsys):
    with pytest.raises(SystemExit, match="0"):
        cli.main([verb, "--help"])
    assert f"tacit {verb}" in capsys.readouterr().out.partition("Examples:")[2]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ([], ["VERB"]),
        (["rnu"], ["'rnu'", "'run'"]),
        (["run", "fedavg", "--set", "lr"], ["KEY=VALUE", "'lr'"]),
        (["run", "fedavg", "--seed", "one"], ["--seed", "'one'"]),
        (["run", "fedavg", "--bogus"], ["--bogus"]),
        (["card"], ["method"]),
    ],
)
def test_wrong_command_lines_get_one_line_and_exit_code_2(line, words, capsys):
    with pytest.raises(SystemExit) as caught:
        cli.main(line)
    said = capsys.readouterr()
    assert caught.value.code == 2
    assert said.out == ""
    assert said.err.startswith("tacit: ")
    assert said.err.count("\n") == 1
    assert all(word in said.err for word in [*words, "--help"])


def raising(error: BaseException):
    def run(*args: object) -> None:
        raise error

    return run


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (StorageError("Disk on fire."), 1, "tacit: Disk on fire.\n"),
        (KeyboardInterrupt(), 130, "tacit: Interrupted.\n"),
    ],
)
def test_errors_on_purpose_are_one_sentence(monkeypatch, capsys, error, code, said):
    monkeypatch.setattr(methods, "catalog", raising(error))
    assert cli.main(["methods"]) == code
    assert capsys.readouterr().err == said


def test_other_errors_show_where_they_come_from(monkeypatch, capsys):
    monkeypatch.setattr(methods, "catalog", raising(ZeroDivisionError("bug")))
    assert cli.main(["methods"]) == 1
    said = capsys.readouterr().err
    assert "Traceback" in said
    assert "ZeroDivisionError: bug" in said


def test_methods_lists_the_catalogue(capsys):
    assert cli.main(["methods"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(methods.catalog())
    assert cli.main(["methods", "--json"]) == 0
    assert [entry["name"] for entry in json.loads(capsys.readouterr().out)] == list(methods.catalog())


def test_card_prints_all_there_is_to_know(capsys):
    assert cli.main(["card", "fl-std", "--set", "rounds=3", "lr=1/8"]) == 0
    said = capsys.readouterr().out
    for words in (
        "Who sees what",
        "Guarantee",
        "none: nothing is blurred",
        "lr=0.125",
        "rounds=3",
        "Kerkouche",
        "tacit run fl-std",
    ):
        assert words in said
    for slot in ("sampler", "trainer", "codec", "mechanism", "channel", "aggregator", "server"):
        assert f"  {slot} " in said
    assert cli.main(["card", "fl-std", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["pieces"]["sampler"] == "FixedSize(size=100)"


@pytest.mark.parametrize(
    ("line", "words"),
    [(["card", "fl-sdt"], "'fl-std'"), (["card", "fl-std", "--set", "step=3"], "Did you mean 'steps'?")],
)
def test_card_refuses_what_there_is_not(line, words, capsys):
    assert cli.main(line) == 2
    assert words in capsys.readouterr().err
