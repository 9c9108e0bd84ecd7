"""Methods of your own: in files, in packages of others, with callbacks and schedules; wrong pieces get a sentence."""

import subprocess
import sys
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tacit
from cli.refusals import assert_refused
from tacit import methods
from tacit.cli import main
from tacit.core.plain_form import to_plain
from tacit.core.state import Report, State
from tacit.errors import CompositionError, UserError
from tacit.runs.probing import probe_method

MINE = '''
from __future__ import annotations
from dataclasses import dataclass
from typing import ClassVar
from pathlib import Path
import tacit

Path("executed").touch()


@dataclass(frozen=True)
class Loud(tacit.pieces.Mean):
    """Twice the sum."""

    factor: ClassVar[float] = 2.0

    def combine(self, bounded, state):
        from dataclasses import replace

        total = super().combine(bounded, state)
        return replace(total, total=total.total.abs())


def fedprox(
    rounds: int = 2, cohort: int = 3, descent: tacit.pieces.Sgd = tacit.pieces.Sgd(lr=0.1, steps=2)
) -> tacit.Method:
    """A method of my own."""
    return tacit.Method(name="whatever", rounds=rounds, sampler=tacit.pieces.FixedSize(cohort), trainer=descent)


def loud() -> tacit.Method:
    """One that does not add up."""
    return tacit.Method(
        name="loud",
        rounds=2,
        sampler=tacit.pieces.FixedSize(3),
        trainer=tacit.pieces.Sgd(lr=0.1, steps=2),
        aggregator=Loud(),
    )


def nothing():
    """Not a method."""
    return 3
'''


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)


def task() -> tacit.Task:
    torch.manual_seed(0)
    parts = [(torch.randn(6, 3), torch.arange(6) % 2) for _ in range(4)]
    return tacit.Task(model=lambda: nn.Linear(3, 2), clients=parts, test=(torch.randn(9, 3), torch.arange(9) % 2))


def test_a_method_in_a_file_is_run_resumed_and_carded(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "mine.py:fedprox", "--workers", "1", "--set", "lr=0.2"]) == 0
    assert "mine.py:fedprox  digits" in capsys.readouterr().out
    Path("executed").unlink()
    assert_refused("run --resume runs/fedprox-digits-0", "its method would run the Python file", capsys)
    assert not Path("executed").exists()
    assert main(["run", "--resume", "runs/fedprox-digits-0", "--trust"]) == 0
    capsys.readouterr()
    assert main(["card", "mine.py:fedprox"]) == 0
    assert "A method of my own." in capsys.readouterr().out


@pytest.mark.parametrize("options", ["", " --set trainer.lr=0.3", " --task digits"])
def test_a_method_that_only_a_file_names_is_not_executed(options: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("experiment.toml").write_text('method = "mine.py:fedprox"\n')
    assert_refused(f"run experiment.toml{options}", "experiment.toml names code: its method would run", capsys)
    assert not Path("executed").exists()
    assert main(f"run experiment.toml --workers 1 --trust{options}".split()) == 0


def test_names_are_checked_without_executing_the_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert_refused("run mine.py:fedprx", "Did you mean 'fedprox'?", capsys)
    assert_refused("run mine.py:fedprox --set round=3", "Did you mean 'rounds'?", capsys)
    assert_refused("run other.py:fedprox", "got other.py, which does not exist", capsys)
    Path("broken.py").write_text("def f(:\n")
    assert_refused("card broken.py:f", "Expected Python in broken.py", capsys)
    assert not Path("executed").exists()
    assert_refused("card mine.py:nothing", "to return a tacit.Method, got int", capsys)


def test_the_methods_of_a_file_are_listed_without_executing_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["methods", "mine.py"]) == 0
    listed = capsys.readouterr().out.split()
    assert {"mine.py:fedprox", "mine.py:loud"} <= set(listed)
    assert "mine.py:nothing" not in listed
    Path("empty.py").write_text("def nothing(): ...\n")
    assert_refused("methods empty.py", "a function in empty.py that is declared to return a Method", capsys)
    assert_refused("methods absent.py", "absent.py, which does not exist", capsys)


def test_the_laws_are_tried_on_a_method_of_ones_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["probe", "mine.py:fedprox"]) == 0
    assert "Tacit's own, which its test suite tries: sampler FixedSize" in capsys.readouterr().out
    assert main(["probe", "mine.py:loud"]) == 1
    assert "aggregator Loud: " in capsys.readouterr().out


@pytest.mark.parametrize("name", ["fedavg", "fl-top-dp", "geyer", "ifca"])
def test_methods_of_tacit_pass(name: str) -> None:
    assert [found for found in probe_method(methods.make(name)) if not found.passed] == []


def test_new_writes_a_method_and_a_test_that_passes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new", "method", "my-method"]) == 0
    assert "tacit probe my_method.py:my_method" in capsys.readouterr().out
    assert main(["probe", "my_method.py:my_method"]) == 0
    assert "server HeavyBall: 2 trials, no violation found" in capsys.readouterr().out
    line = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_my_method.py"]
    assert subprocess.run(line, check=False, capture_output=True).returncode == 0
    assert_refused("new method my_method", "got my_method.py, which exists", capsys)
    assert_refused("new method 3d", "lower-case letters", capsys)


def test_new_method_fedprox_writes_fedprox() -> None:
    """Without its term it is federated averaging; with a strong one, clients stay where they were."""
    assert main(["new", "method", "fedprox"]) == 0
    task = tacit.tasks.make_task("digits", clients=6)

    def trained(**args: float) -> torch.Tensor:
        method = methods.make("fedprox.py:fedprox", {"rounds": 1, "cohort": 6, "epochs": 1, **args})
        return tacit.train(method, task, workers=1, evaluate_every=9, randomness="seeded").state.weights

    plain = tacit.methods.fedavg(rounds=1, cohort=6, lr=0.1, epochs=1, batch_size=10, weighted=False)
    averaged = tacit.train(plain, task, workers=1, evaluate_every=9, randomness="seeded")
    assert torch.allclose(trained(mu=0.0), averaged.state.weights, atol=1e-6)
    begun = averaged.spec.simulation.initial_state.weights
    assert (trained(mu=5.0) - begun).norm() < 0.8 * (averaged.state.weights - begun).norm()


def test_packages_register_methods_as_entry_points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "their_package").mkdir()
    (tmp_path / "their_package" / "__init__.py").write_text("raise RuntimeError('imported')")
    (tmp_path / "their_module.py").write_text(MINE)
    monkeypatch.syspath_prepend(str(tmp_path))
    points = [EntryPoint("theirs", f"{name}:fedprox", methods.GROUP) for name in ("their_module",)]
    points += [EntryPoint("hidden", "their_package.deep:fedprox", methods.GROUP)]
    monkeypatch.setattr(methods, "entry_points", lambda **_: points)
    methods.definitions.cache_clear()
    try:
        assert methods.definitions()["theirs"].summary == "A method of my own."
        assert methods.definitions()["hidden"].parameters == {}
        assert not Path("executed").exists()
        made = methods.make("theirs", {"rounds": "5", "lr": "0.5"})
        assert (made.name, made.rounds) == ("theirs", 5)
    finally:
        monkeypatch.undo()
        methods.definitions.cache_clear()


def test_cards_of_finished_methods() -> None:
    method = replace(tacit.methods.geyer(epsilon=2.0), name="mine")
    shown = tacit.card(method)
    assert shown.name == "mine"
    assert shown.guarantee == tacit.card("geyer", {"epsilon": 2.0}).guarantee
    with pytest.raises(UserError, match=r"dataclasses\.replace"):
        tacit.card(method, {"rounds": 3})


def test_on_round_sees_every_round_and_stops() -> None:
    seen: list[tuple[int, float]] = []

    def on_round(state: State, report: Report) -> bool:
        seen.append((state.round, report.metrics["loss"]))
        return len(seen) == 3

    run = tacit.train(tacit.methods.fedavg(rounds=9, cohort=2), task(), workers=1, on_round=on_round)
    assert [number for number, _ in seen] == [1, 2, 3]
    assert run.state.round == 3
    whole = tacit.train(tacit.methods.fedavg(rounds=4, cohort=2), task(), workers=1, on_round=lambda *_: None)
    assert whole.state.round == 4


def test_a_run_that_was_stopped_is_resumed(tmp_path: Path) -> None:
    method = tacit.methods.fedavg(rounds=4, cohort=2)
    tacit.train(method, task(), workers=1, randomness="seeded", out=tmp_path / "run", on_round=lambda *_: True)
    resumed = tacit.train(method, task(), workers=1, randomness="seeded", out=tmp_path / "run", resume=True)
    whole = tacit.train(method, task(), workers=1, randomness="seeded")
    assert torch.equal(resumed.state.weights, whole.state.weights)


def test_schedules_are_functions_of_the_round() -> None:
    halved: Any = lambda index: 0.4 / 2**index  # noqa: E731
    rates = [tacit.pieces.Sgd(lr=halved, steps=1).rate(index) for index in range(3)]
    assert rates == [tacit.pieces.Sgd(lr=0.4, decay=0.5, steps=1).rate(index) for index in range(3)] == [0.4, 0.2, 0.1]
    assert repr(tacit.pieces.Sgd(lr=halved, steps=1)) == repr(
        tacit.pieces.Sgd(lr=tacit.pieces.Schedule(halved), steps=1)
    )
    third: Any = lambda index: 0.4 / 3**index  # noqa: E731
    assert to_plain(tacit.pieces.Schedule(halved)) != to_plain(tacit.pieces.Schedule(third))
    with pytest.raises(UserError, match="a learning rate > 0 in round 1, got 0"):
        tacit.pieces.Sgd(lr=tacit.pieces.Schedule(float), steps=1)
    method = tacit.methods.fl_std(rounds=3, cohort=2, descent=tacit.pieces.Sgd(lr=halved, steps=1))
    other = tacit.methods.fl_std(rounds=3, cohort=2, descent=tacit.pieces.Sgd(lr=0.4, decay=0.5, steps=1))
    one, two = (tacit.train(each, task(), workers=1, randomness="seeded").state.weights for each in (method, other))
    assert torch.equal(one, two)


@pytest.mark.parametrize(
    ("pieces", "words"),
    [
        ({"aggregator": "median"}, r"aggregator to be a piece such as Mean\(\), .* got 'median'"),
        ({"server": None}, r"server to be a piece such as Add\(\), .* got None"),
        ({"aggregator": tacit.pieces.Mean}, r"got the class Mean. Write aggregator=Mean\(...\)"),
        ({"sampler": 10}, r"sampler to be a piece such as FixedSize\(10\), .* got 10"),
        ({"mechanism": tacit.pieces.Mean()}, "mechanism .* got Mean, which has no after_sum and no at_client"),
        ({"trainer": torch.nn.Linear(2, 2)}, "trainer .* got Linear, which has no sends"),
    ],
)
def test_a_wrong_piece_gets_a_sentence(pieces: dict[str, Any], words: str) -> None:
    good = {"sampler": tacit.pieces.FixedSize(2), "trainer": tacit.pieces.Sgd(lr=0.1, steps=1)}
    with pytest.raises(CompositionError, match=words):
        tacit.Method(name="wrong", rounds=1, **{**good, **pieces})


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_knows_commands_methods_and_options(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    out = capsys.readouterr().out
    assert "fl-top-dp" in out
    assert ("--data" if shell != "fish" else "-l data") in out


def test_a_file_without_a_function_is_refused_with_how_to_name_one() -> None:
    with pytest.raises(UserError, match=r"Expected a function of mine.py, got the file. Name one: mine.py:FUNCTION"):
        tacit.methods.make("mine.py")
