import argparse
import ast
import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tacit import cli, methods
from tacit.errors import StorageError

COMMANDS = ("run", "methods", "card", "data", "calibrate", "attack", "audit", "enclave", "reproduce")
WITHOUT_TORCH = [
    ("--version", 0, "tacit "),
    ("--help", 0, "ε bounds"),
    ("methods", 0, "fl-top-dp"),
    ("methods --json", 0, '"fl-top-dp"'),
    ("data list", 0, "fashion-mnist"),
    ("reproduce", 0, "geyer/table-1"),
    ("run --help", 0, "--evaluate-every"),
    ("completion bash", 0, "fl-top-dp"),
    ("tasks digit", 2, "Did you mean 'digits'?"),
    ("rnu fedavg", 2, "Did you mean 'run'?"),
    ("methods --jsn", 2, "Did you mean '--json'?"),
    ("run fedavg --evaluate-evry 2", 2, "Did you mean '--evaluate-every'?"),
    ("run fedvag", 2, "Did you mean 'fedavg'?"),
    ("run fedavg --set epoch=2", 2, "Did you mean 'epochs'?"),
    ("run fl-std fl-top-dp --set ration=0.1", 2, "Did you mean 'ratio'?"),
    ("run fedavg --task digit", 2, "Did you mean 'digits'?"),
    ("run fedavg --task-set client=3", 2, "Did you mean 'clients'?"),
    ("run nbafl --task-set client=3", 2, "Did you mean 'clients'?"),
    ("card fedvag", 2, "Did you mean 'fedavg'?"),
    ("card fedavg --set epoch=2", 2, "Did you mean 'epochs'?"),
    ("calibrate --sampling poison --delta 1e-5", 2, "Did you mean 'poisson'?"),
    ("data lst", 2, "Did you mean 'list'?"),
    ("data fetch minst", 2, "Did you mean 'mnist'?"),
    ("attack dgl fedavg", 2, "Did you mean 'dlg'?"),
    ("attack dlg fedvag", 2, "Did you mean 'fedavg'?"),
    ("audit geyer --set cohrt=3", 2, "Did you mean 'cohort'?"),
    ("enclave configure fedvag --population 9 --seed 0 --out x", 2, "Did you mean 'fedavg'?"),
    ("reproduce geyer/tabel-1", 2, "Did you mean 'geyer/table-1'?"),
]


def test_names_are_listed_and_checked_without_importing_torch():
    """In one process, in which an import of PyTorch by any of these commands would show."""
    code = (
        "import contextlib, io, json, sys\n"
        "from tacit.cli import main\n"
        "results = []\n"
        "for line in json.loads(sys.argv[1]):\n"
        "    text = io.StringIO()\n"
        "    with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):\n"
        "        try:\n"
        "            code = main(line.split())\n"
        "        except SystemExit as exit:\n"
        "            code = exit.code\n"
        "    results.append([code, text.getvalue(), 'torch' in sys.modules])\n"
        "print(json.dumps(results))\n"
    )
    lines = json.dumps([line for line, _, _ in WITHOUT_TORCH])
    done = subprocess.run([sys.executable, "-c", code, lines], capture_output=True, text=True, check=True)
    for (line, expected, words), (found, text, torch) in zip(WITHOUT_TORCH, json.loads(done.stdout), strict=True):
        assert found == expected, f"tacit {line}: {text}"
        assert words in text, f"tacit {line}: {text}"
        assert not torch, f"tacit {line} imports torch"


def test_help_lists_every_command(capsys):
    with pytest.raises(SystemExit, match="0"):
        cli.main(["--help"])
    lines = capsys.readouterr().out.splitlines()
    assert all(any(line.startswith(f"    {command}") for line in lines) for command in COMMANDS)


def test_no_command_imports_another(capsys):
    code = (
        "import sys, tacit.cli; tacit.cli.main(['methods'])\n"
        "print(*(name for name in sys.modules if 'tacit.cli.' in name and 'tacit.cli.parsers' not in name))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(done.stdout.splitlines()[-1].split()) == {
        "tacit.cli.commands",
        "tacit.cli.commands.methods",
        "tacit.cli._console",
    }


def test_every_command_calls_functions_that_there_are():
    for name, parser in leaves(cli.make_parser(), "tacit"):
        assert parser.get_default("calls"), name
        for declared in parser.get_default("calls"):
            module, _, function = declared.partition(":")
            assert callable(getattr(importlib.import_module(f"tacit.cli.commands.{module}"), function)), declared


def test_only_the_dispatch_imports_inside_functions():
    """An import inside a function hides what a command needs; parsers are light, and commands are imported by name.

    The bar of progress is the exception: rich is imported only where there is a terminal.
    """
    for path in sorted(Path(cli.__file__).parent.rglob("*.py")):
        functions = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)]
        functions = [node for node in functions if node.name != "_with_bar"]
        inside = [
            found for node in functions for found in ast.walk(node) if isinstance(found, ast.Import | ast.ImportFrom)
        ]
        assert not inside, f"{path}, line {inside[0].lineno}"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_help_has_examples(command, capsys):
    with pytest.raises(SystemExit, match="0"):
        cli.main([command, "--help"])
    assert f"tacit {command}" in capsys.readouterr().out.partition("Examples:")[2]


def leaves(parser: argparse.ArgumentParser, name: str) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    nested = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not nested:
        yield name, parser
    for action in nested:
        for child, subparser in action.choices.items():
            yield from leaves(subparser, f"{name} {child}")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_can_print_json(command):
    for name, parser in leaves(cli.make_parser(), "tacit"):
        if name.split()[1] == command:
            assert name == "tacit enclave serve" or "--json" in parser._option_string_actions, name


def test_enclave_commands_print_json(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    line = "enclave configure geyer --set cohort=10 --population 100 --seed 0 --out enclave.json --json"
    assert cli.main(line.split()) == 0
    document = json.loads(capsys.readouterr().out)
    assert set(document) == {"configuration", "digest", "caveat"}
    line = "enclave manifest enclave.json --listen 127.0.0.1:7070 --parameters 431080 --cohort 10 --json"
    assert cli.main(line.split()) == 0
    assert "sgx.debug" in json.loads(capsys.readouterr().out)["manifest"]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ([], ["COMMAND"]),
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
    printed = capsys.readouterr()
    assert caught.value.code == 2
    assert printed.out == ""
    assert printed.err.startswith("tacit: ")
    assert printed.err.count("\n") == 1
    assert all(word in printed.err for word in [*words, "--help"])


def raising(error: BaseException):
    def run(*args: object) -> None:
        raise error

    return run


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (StorageError("Disk on fire."), 1, "tacit: Disk on fire.\n"),
        (KeyboardInterrupt(), 130, "tacit: Interrupted.\n"),
        (
            PermissionError(13, "Permission denied", "kit/startup"),
            2,
            "tacit: Could not open kit/startup: Permission denied. Run as its owner, or choose another path.\n",
        ),
        (OSError(36, "File name too long", "99"), 2, "tacit: Could not open 99: File name too long.\n"),
        (MemoryError(), 1, "tacit: Out of memory. Use fewer workers, smaller batches or a smaller model.\n"),
        (
            RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 80 bytes"),
            1,
            "tacit: Out of memory. Use fewer workers, smaller batches or a smaller model.\n",
        ),
    ],
)
def test_expected_errors_are_one_sentence(monkeypatch, capsys, error, code, message):
    monkeypatch.setattr(methods, "definitions", raising(error))
    assert cli.main(["methods"]) == code
    assert capsys.readouterr().err == message


def test_unexpected_errors_show_a_traceback(monkeypatch, capsys):
    monkeypatch.setattr(methods, "definitions", raising(ZeroDivisionError("bug")))
    assert cli.main(["methods"]) == 1
    printed = capsys.readouterr().err
    assert "Traceback" in printed
    assert "ZeroDivisionError: bug" in printed


@pytest.mark.parametrize(
    "line",
    [
        ("run", "fedavg", "--out", "{long}"),
        ("run", "dp-sgd", "--data", "{long}.csv", "--client", "a", "--target", "b"),
        ("report", "{long}"),
        ("compare", "{long}"),
        ("reproduce", "--from", "{long}.json"),
        ("site", "init", "{long}"),
        ("watch", "{long}"),
    ],
)
def test_a_path_that_no_disk_can_have_is_one_sentence(line, capsys):
    assert cli.main([word.format(long="9" * 400) for word in line]) == 2
    printed = capsys.readouterr().err
    assert printed.startswith("tacit: ")
    assert printed.count("\n") == 1


def test_methods_lists_the_catalogue(capsys):
    assert cli.main(["methods"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(methods.definitions())
    assert cli.main(["methods", "--json"]) == 0
    assert [entry["name"] for entry in json.loads(capsys.readouterr().out)] == list(methods.definitions())


def test_a_card_is_complete(capsys):
    assert cli.main(["card", "fl-std", "--set", "rounds=3", "descent.lr=1/8"]) == 0
    printed = capsys.readouterr().out
    for words in (
        "Who sees what",
        "Guarantee",
        "no noise is added, so updates can reveal training data",
        "lr=0.125",
        "rounds=3",
        "Kerkouche",
        "tacit run fl-std",
    ):
        assert words in printed
    for slot in ("sampler", "trainer", "codec", "mechanism", "channel", "aggregator", "server"):
        assert f"  {slot} " in printed
    assert cli.main(["card", "fl-std", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["pieces"]["sampler"] == "FixedSize(size=100)"


@pytest.mark.parametrize(
    ("line", "words"),
    [(["card", "fl-sdt"], "'fl-std'"), (["card", "fl-std", "--set", "round=3"], "Did you mean 'rounds'?")],
)
def test_a_card_of_an_unknown_method_or_argument_is_refused(line, words, capsys):
    assert cli.main(line) == 2
    assert words in capsys.readouterr().err
