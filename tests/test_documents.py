"""Every command and every example in README and docs runs."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
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
TACIT = Path(sys.executable).with_name("tacit")


@pytest.mark.parametrize("code", EXAMPLES)
def test_examples_run(code: str, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.startswith("tacit")])
def test_commands_run(command: str, tmp_path: Path, data_folder: Path) -> None:
    environment = {**os.environ, "TACIT_DATA": str(data_folder)}
    done = subprocess.run([TACIT, *command.split()[1:]], cwd=tmp_path, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_the_demo_runs(tmp_path: Path) -> None:
    """`make demo`, in a copy of the tree that borrows this environment."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    environment = Path(sys.executable).parents[1]
    (tmp_path / ".venv").symlink_to(environment)
    (environment / ".ready").touch()
    done = subprocess.run(["make", "demo"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Results:" in done.stdout
    assert (tmp_path / "runs").is_dir()


def test_every_other_command_is_a_target_of_make() -> None:
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for command in COMMANDS:
        if not command.startswith("tacit"):
            assert re.fullmatch(r"make (\w+)", command)
            assert command.split()[1] in targets


def test_links_lead_somewhere() -> None:
    for page in [*PAGES, ROOT / "CONTRIBUTING.md"]:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.relative_to(ROOT)} links to {target}"


def test_the_table_of_methods_is_complete() -> None:
    from tacit import methods

    listed = set(re.findall(r"^\| `([\w-]+)` \|", (ROOT / "README.md").read_text(), re.MULTILINE))
    assert listed == set(methods.catalog())
