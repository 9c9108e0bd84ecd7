"""Wrong arguments of `tacit.train` get a sentence, before anything is trained."""

from typing import Any

import pytest
import torch

import tacit
from tacit.errors import UserError

TASK = tacit.Task(model=torch.nn.Linear(3, 2), clients=[(torch.randn(4, 3), torch.arange(4) % 2) for _ in range(3)])
METHOD = tacit.methods.fedavg(rounds=1, cohort=2)


@pytest.mark.parametrize(
    ("method", "task", "options", "sentence"),
    [
        ("fedavg", TASK, {}, r"Expected a method, got 'fedavg'. Make one by name: tacit.methods.fedavg\(rounds=100\)"),
        (METHOD, "digits", {}, "Expected a Task, got 'digits'. Give it a model and data, or make one by name"),
        (METHOD, [TASK], {}, "Expected a Task, got a list"),
        (METHOD, TASK, {"seed": "a"}, "Expected seed='a' to be a whole number"),
        (METHOD, TASK, {"on_round": 3}, "Expected on_round to be a function of state and report, got 3"),
        (
            METHOD,
            TASK,
            {"logs": ["tensorboard"]},
            "Expected a log such as .*, got 'tensorboard'",
        ),
    ],
)
def test_what_is_expected_is_said(method: Any, task: Any, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        tacit.train(method, task, workers=1, **options)


@pytest.mark.parametrize("rounds", ["5", 2.5])
def test_rounds_are_whole_numbers(rounds: Any) -> None:
    with pytest.raises(UserError, match=f"Expected rounds={rounds!r} to be a whole number"):
        tacit.methods.fedavg(rounds=rounds, cohort=2)
