"""The methods that protect records, on four small hospitals."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn

import tacit
from tacit import cli
from tacit.core.prices import Unit
from tacit.privacy.guarantee import Guarantee
from tacit.report.cards import card
from tacit.runs.run import RunSpec


def hospitals(sizes: tuple[int, ...] = (60, 30, 90, 40)) -> tacit.Task:
    generator = torch.Generator().manual_seed(0)
    parts = []
    for size in sizes:
        y = torch.arange(size) % 2
        parts.append((torch.randn(size, 4, generator=generator) + 2 * y[:, None], y))
    public = (torch.randn(8, 4, generator=generator), torch.arange(8) % 2)
    return tacit.Task(model=lambda: nn.Linear(4, 2), clients=parts, public=public)


@pytest.mark.parametrize("name", ["dp_sgd", "dp_fedsgd", "fl_top_record_dp", "fl_top_dp_sgd"])
def test_the_noise_of_a_method_is_sized_for_records_and_its_budget_is_used(name: str) -> None:
    run = tacit.train(getattr(tacit.methods, name)(rounds=3, epsilon=2.0), hospitals(), workers=1)
    assert len(run.history) == 3
    (found,) = run.guarantees.values()
    assert isinstance(found, Guarantee)
    assert (found.unit, found.adjacency) == (Unit.RECORD, "add-or-remove")
    assert found.epsilon == pytest.approx(2.0, rel=5e-3)
    assert (found.epsilon or 0.0) <= 2.0
    assert Unit.CLIENT not in run.history[-1].epsilons


def test_the_hospital_with_the_fewest_records_is_the_worst() -> None:
    run = tacit.train(tacit.methods.dp_sgd(rounds=2, epsilon=None, noise=2.0), hospitals((300, 100, 200)), workers=1)
    assert run.privacy.worst_client == 1  # type: ignore[union-attr]
    assert "Worst client: number 1, after 6 steps with noise" in str(run.privacy)


def test_the_noise_of_a_sum_of_records_does_not_grow_with_the_number_of_clients() -> None:
    """Why hospitals join: the noise that hides one record is added once for all of them together."""
    sized = [
        RunSpec(method=tacit.methods.dp_fedsgd(rounds=2, size=60), task=hospitals((60,) * count)).method
        for count in (3, 6)
    ]
    assert sized[0].mechanism == sized[1].mechanism


def test_both_guarantees_are_printed_side_by_side(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    settings = "noise=1 epsilon=none client_noise=2 --task-set clients=6"
    arguments = f"run dp-sgd --rounds 1 --workers 1 --set {settings}".split()
    assert cli.main([*arguments, "--out", str(tmp_path / "text")]) == 0
    text = capsys.readouterr().out
    assert "Guarantee for clients: (ε = " in text
    assert "Guarantee for records: (ε = " in text
    assert "The guarantees for clients and for records hold side by side. Their ε are never added." in text
    assert cli.main([*arguments, "--json", "--out", str(tmp_path / "json")]) == 0
    found = json.loads(capsys.readouterr().out)
    privacy = found["runs"][0]["privacy"]
    assert [(unit, each["unit"]) for unit, each in privacy["guarantees"].items()] == [
        ("client", "client"),
        ("record", "record"),
    ]


def test_cards_of_both_units() -> None:
    shown = card("dp-sgd", {"client_noise": 2.0})
    assert "for every client" in shown.guarantee
    assert "for every record of every client (add-or-remove), against whoever sees the messages" in shown.guarantee
    assert shown.guarantee.endswith("hold side by side; their ε are never added.")
    assert any("A person with several records" in text for text in card("dp-fedsgd").uncovered)
    assert "every record with probability 0.2" in card("dp-fedsgd").guarantee


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("--epochs 20 --epsilon 3", {"steps": 940, "epsilon": 3.0}),
        ("--epochs 20 --noise 1", {"steps": 940, "epsilon": 4.0571}),
        ("--steps 938 --noise 1", {"steps": 938, "epsilon": 4.0527}),
        ("--epsilon 3 --noise 1", {"steps": 509}),
    ],
)
def test_plan_for_records(arguments: str, expected: dict[str, float], capsys: pytest.CaptureFixture[str]) -> None:
    command = f"calibrate --unit record --size 3000 --batch 64 --delta 1e-5 --json {arguments}"
    assert cli.main(command.split()) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["unit"], found["adjacency"]) == ("record", "add-or-remove")
    assert found["rate"] == pytest.approx(64 / 3000)
    assert {name: found[name] for name in expected} == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--size 100 --noise 1 --epochs 1", "Expected --size and --batch for records"),
        ("--size 100 --batch 10 --noise 1", "two of --epsilon, --noise and --epochs (or --steps), got --noise"),
        ("--size 100 --batch 10 --noise 1 --epochs 1 --steps 2", "either --epochs or --steps, got both"),
        (
            "--size 100 --batch 10 --noise 1 --rate 0.1",
            "--size, --batch and --epochs or --steps for records, got --rate",
        ),
        ("--size 100 --batch 10 --noise 1 --steps 1 --sampling fixed", "Poisson batches: for records nothing else"),
    ],
)
def test_plans_for_records_that_make_no_sense(arguments: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(f"calibrate --unit record --delta 1e-5 {arguments}".split()) != 0
    assert message in capsys.readouterr().err
