"""Runs in Python and in notebooks: figures, pictures and pages, and never data of clients."""

import io
import sys
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

import pytest
import torch

import tacit
from tacit.errors import CompositionError, UserError
from tacit.runs.run import Run

SECRET = 0.123456


@pytest.fixture(scope="module")
def task() -> tacit.Task:
    parts = {"Ada's <clinic>": SECRET, "b": SECRET, "c": SECRET}
    clients = {name: (torch.full((6, 3), value), torch.arange(6) % 2) for name, value in parts.items()}
    test = torch.randn(8, 3), torch.arange(8) % 2
    return tacit.Task(model=lambda: torch.nn.Linear(3, 2), clients=clients, test=test, name="<b>clinics</b>")


@pytest.fixture(scope="module")
def run(task: tacit.Task) -> Run:
    return tacit.train(tacit.methods.geyer(rounds=2, cohort=3, noise=4.0, epsilon=3.0, delta=1e-3), task, workers=1)


def test_no_repr_shows_data_or_weights(run: Run, task: tacit.Task) -> None:
    for value in (run, run.spec, task, task.population, run.state, [run, {"task": task}]):
        shown = repr(value)
        assert "0.1234" not in shown
        assert "tensor" not in shown
        assert "Ada" not in shown
        assert len(shown) < 800


def test_a_run_is_shown_as_its_figures(run: Run) -> None:
    shown = str(run)
    assert "rounds    2 of 2" in shown
    assert f"accuracy  {run.metrics['accuracy']:.4g}" in shown
    assert f"ε = {run.epsilons['client']:.4g} at δ = 0.001 for every client" in shown  # type: ignore[index]


def test_notebooks_get_a_table_whose_texts_are_escaped(run: Run) -> None:
    shown = run._repr_html_()
    assert shown.startswith("<table>")
    assert "&lt;b&gt;clinics" in shown
    assert "<b>" not in shown


def test_an_analysis_is_shown_as_its_result() -> None:
    rows = {"site": ["A", "B", "C"] * 20, "age": [float(i) for i in range(60)]}
    described = tacit.describe(rows, client="site", epsilon=None)
    assert "59" in repr(described)
    assert "<table" in described._repr_html_()


def test_a_run_draws_itself_and_writes_its_page(run: Run, tmp_path: Path) -> None:
    picture = run.plot()
    assert picture._repr_png_().startswith(b"\x89PNG")
    assert picture.save(tmp_path / "run.png").read_bytes() == picture.content
    page = run.report(tmp_path / "run.html").read_text()
    assert "What is guaranteed, and what is not" in page
    assert f"ε = {run.epsilons['client']:.4g}" in page  # type: ignore[index]


def test_progress_is_one_line(task: tacit.Task) -> None:
    stream = io.StringIO()
    with redirect_stderr(stream):
        tacit.train(tacit.methods.fedavg(rounds=2, cohort=3), task, workers=1, progress=True)
    assert "round 2 of 2 accuracy" in stream.getvalue()
    assert stream.getvalue().count("\n") == 1


@pytest.mark.parametrize(("shell", "expected"), [("ZMQInteractiveShell", True), ("TerminalInteractiveShell", False)])
def test_progress_is_shown_by_default_in_a_notebook_alone(
    shell: str, expected: bool, task: tacit.Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    module: Any = type(sys)("IPython")
    module.get_ipython = lambda: type(shell, (), {})()
    monkeypatch.setitem(sys.modules, "IPython", module)
    stream = io.StringIO()
    with redirect_stderr(stream):
        tacit.train(tacit.methods.fedavg(rounds=1, cohort=3), task, workers=1)
    assert bool(stream.getvalue()) is expected


def test_notebooks_show_an_error_of_the_user_as_one_sentence() -> None:
    assert UserError("Expected x.")._render_traceback_() == ["UserError: Expected x."]
    assert CompositionError("a\nb")._render_traceback_()[0].count("\n") == 0
