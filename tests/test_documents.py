"""Every command and every example in README and docs runs; for one commit a part of those that need nothing of others.

Commands run in this process, each once. Long ones are shortened (`SHORT`), because what they compute is tested
elsewhere: the point here is that the command line, its options and their combination are still right. In a
campaign they run as they are printed, the demo through `make`.
"""

import re
import runpy
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from scale import scaled
from tacit import cli, methods, tasks

WHOLE = scaled(False, campaign=True)
ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SHORT = {  # options that replace those of a command, or are added to them
    "run": {"--rounds": "2", "--workers": "1", "--evaluate-every": "2"},
    "attack dlg": {"--images": "3", "--steps": "20"},
    "attack membership": {"--rounds": "2", "--models": "4"},
    "audit --canaries": {"--canaries": "50"},
    "audit --runs": {"--runs": "100", "--rounds": "1"},
}
EXAMPLES = [
    pytest.param(code, id=f"{page.relative_to(ROOT)}-{number}")
    for page in PAGES
    for number, code in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL))
]
COMMANDS = [
    line.strip()
    for page in PAGES
    for block in re.findall(r"```sh\n(.*?)```", page.read_text(), re.DOTALL)
    for line in block.splitlines()
    if line.strip()
]

FENCE = re.compile(r"^```(\w+)(?: (\S+))?\n(.*?)^```", re.DOTALL | re.MULTILINE)
SESSIONS = [  # pages with commands that need what those before them wrote
    pytest.param(page, id=str(page.relative_to(ROOT))) for page in PAGES if "```sh together\n" in page.read_text()
]


def shortened(command: str) -> str:
    """The command with fewer rounds, images or runs."""
    if WHOLE or "--resume" in command:
        return command
    for words, options in SHORT.items():
        if all(word in command.split() for word in words.split()):
            for option, value in options.items():
                command = re.sub(rf" {option} \S+", "", command) + f" {option} {value}"
    return command


def needs_data(command: str) -> bool:
    words = command.split()
    default = methods.default_task(words[2]).task if words[1] == "run" and "--task" not in words else ""
    return any(entry.data and (name in words or name == default) for name, entry in tasks.TASKS.items())


@pytest.mark.law
@pytest.mark.parametrize("code", EXAMPLES)
def test_examples_run(
    code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An example that fails raises; one that runs prints nothing on standard error."""
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "example", "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().err == ""


@pytest.mark.law
@pytest.mark.parametrize("command", dict.fromkeys(shortened(c) for c in COMMANDS if c.startswith("tacit ")))
def test_commands_run(
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> None:
    if needs_data(command):
        request.getfixturevalue("data_folder")
    monkeypatch.chdir(tmp_path)
    code = cli.main(shlex.split(command)[1:])
    printed = capsys.readouterr()
    assert code == 0, printed.err
    assert printed.out.strip()


@pytest.mark.law
@pytest.mark.parametrize("page", SESSIONS)
def test_commands_that_belong_together_run(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In one folder, in their order, with the files that the page shows."""
    monkeypatch.chdir(tmp_path)
    blocks = FENCE.findall(page.read_text())
    for _, name, content in blocks:
        if "." in name:
            Path(name).write_text(content)
    for language, name, content in blocks:
        for line in content.splitlines() if (language, name) == ("sh", "together") else ():
            program, *arguments = shlex.split(shortened(line))
            if program == "python":
                runpy.run_path(arguments[0], run_name="__main__")
            else:
                assert program == "tacit"
                assert cli.main(arguments) == 0, capsys.readouterr().err
                assert capsys.readouterr().out.strip()


def demo() -> str:
    """The command of the Makefile's target `demo`, without what it prints before and after."""
    recipe = re.search(r"^demo:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert recipe
    (command,) = (line for line in recipe[1].replace("\\\n", " ").splitlines() if not line.startswith("\t@"))
    return " ".join(command.split()).replace("$(BIN)/", "")


def test_the_demo_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    assert demo().startswith("tacit run fl-std fl-top-dp --rounds 100 ")
    assert cli.main(shlex.split(shortened(demo()))[1:]) == 0
    assert "Results:" in capsys.readouterr().out
    assert (tmp_path / "runs").is_dir()


@pytest.mark.campaign
def test_make_demo_runs(tmp_path: Path) -> None:
    """`make demo`, in a copy of the tree that borrows this environment."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    environment = Path(sys.executable).parents[1]
    (tmp_path / ".venv").symlink_to(environment)
    (environment / ".base").touch()
    done = subprocess.run(["make", "demo"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Results:" in done.stdout


def test_every_other_command_is_a_target_of_make() -> None:
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for command in COMMANDS:
        if not command.startswith("tacit "):
            assert re.fullmatch(r"make (\w+)", command)
            assert command.split()[1] in targets


def test_every_target_of_make_is_explained() -> None:
    listed = re.findall(r"^([a-z]+):.*  ## \S", (ROOT / "Makefile").read_text(), re.MULTILINE)
    phony = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert phony
    assert listed == phony[1].split()


def test_links_lead_somewhere() -> None:
    for page in [
        *PAGES,
        ROOT / "CONTRIBUTING.md",
        ROOT / "CHANGELOG.md",
        ROOT / "SECURITY.md",
        ROOT / "changes" / "README.md",
        *sorted((ROOT / "examples").glob("*.md")),
        ROOT / "benchmarks" / "README.md",
    ]:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.relative_to(ROOT)} links to {target}"


def test_the_glossary_is_linked() -> None:
    assert "(docs/glossary.md)" in (ROOT / "README.md").read_text()


def test_the_table_of_methods_is_complete() -> None:
    listed = set(re.findall(r"^\| `([\w-]+)` \|", (ROOT / "docs" / "methods.md").read_text(), re.MULTILINE))
    assert listed == set(methods.definitions())
