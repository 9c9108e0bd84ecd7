"""Every example runs, as a reader would start it; those that start no processes share this interpreter."""

import json
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from tacit import cli

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


@pytest.mark.law("examples")
@pytest.mark.parametrize(
    ("name", "printed"),
    [("own_model", r"loss 0\.\d+ after a round, 0\.0\d+ after 30"), ("table", r"probability readmitted=1': \[0\.9")],
)
def test_a_script_runs(name: str, printed: str, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    assert re.search(printed, capsys.readouterr().out)


def test_the_method_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = f"{EXAMPLES}/own_method.py:median"
    assert cli.main(["run", own, "--rounds", "2", "--workers", "1", "--out", str(tmp_path / "run")]) == 0
    assert "median" in capsys.readouterr().out


@pytest.mark.law("examples")
def test_the_federation_runs() -> None:
    """In an interpreter of its own, because its sites are forked from it."""
    done = subprocess.run([sys.executable, EXAMPLES / "federation.py"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("2 rounds with 3 sites; ")
    assert "differential privacy for every record" in done.stdout


@pytest.mark.law("examples")
def test_the_notebook_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Its cells in their order, without a kernel; what it printed when it was written is not kept."""
    monkeypatch.chdir(EXAMPLES)
    cells = json.loads((EXAMPLES / "notebook.ipynb").read_text())["cells"]
    names: dict[str, object] = {}
    for cell in cells:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            exec("".join(cell["source"]), names)
    assert "AUROC" in capsys.readouterr().out


def test_every_example_is_listed_and_tested() -> None:
    listed = (EXAMPLES / "README.md").read_text()
    programs = {path.name for path in EXAMPLES.glob("*") if path.suffix in (".py", ".ipynb")}
    assert [name for name in programs if name not in listed] == []
    assert programs == {"own_model.py", "own_method.py", "table.py", "federation.py", "notebook.ipynb"}
