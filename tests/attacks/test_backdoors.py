"""A client that trains a backdoor and multiplies its update by 20: what is left of it at the end of a run.

`python -m pytest -s --scale campaign tests/attacks/test_backdoors.py` prints the tables of the threat model.
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

import tacit
from scale import scaled
from tacit.core import ClientRound, Messages, Method, View, Wave
from tacit.core.client_half import make_messages
from tacit.core.rows import DenseRows
from tacit.data import Task
from tacit.engine import worker
from tacit.methods import make
from tacit.pieces.channels import Enclave
from tacit.tasks.catalog import make_task

LIAR, TARGET, FACTOR, CLIENTS = 0, 0, 20.0, 20
SEEDS = range(scaled(1, campaign=5))
MOST = 0.2  # of the images with the trigger


@dataclass(frozen=True)
class Outcome:
    """A model's accuracy, the share of images with the trigger that it takes for the target, and dropped rounds."""

    accuracy: float
    success: float
    dropped: int


def with_trigger(images: Tensor) -> Tensor:
    """The images with four white pixels in a corner."""
    images = images.clone()
    images[..., :2, :2] = 1
    return images


def poisoned(clients: int) -> Task:
    """Digits, of which half of the liar's have the trigger and the target's label."""
    task = make_task("digits", clients=str(clients))
    parts = [task.population[client] for client in range(clients)]
    x, y = (each.clone() for each in parts[LIAR])
    half = len(x) // 2
    x[:half], y[:half] = with_trigger(x[:half]), TARGET
    parts[LIAR] = x, y
    return replace(task, clients=parts)


def scaling(factor: float) -> Callable[..., Messages]:
    """The clients' half, in which the liar adds no noise, does not clip, and moves the model so many times as far."""

    def hostile(method: Method, view: View, data: Wave, now: ClientRound) -> Messages:
        messages = make_messages(method, view, data, now)
        places = (messages.clients == LIAR).nonzero()[:, 0]
        if not len(places):
            return messages
        bare = method.codec.encode(method.trainer.train(view, data, now), view, now).dense()
        rows = messages.rows.dense().clone()
        own = bare[places].to(rows)
        start = _nearest(own, view.weights) if method.trainer.sends == "weights" else torch.zeros_like(own)
        rows[places] = start + factor * (own - start)
        return replace(messages, rows=DenseRows(rows))

    return hostile


def _nearest(rows: Tensor, weights: Tensor) -> Tensor:
    hypotheses = weights.view(-1, rows.shape[1])
    return hypotheses[torch.cdist(rows, hypotheses).argmin(1)]


def attacked(monkeypatch: pytest.MonkeyPatch, method: Method, clients: int, factor: float, seed: int) -> Outcome:
    """The end of a run in which the liar lies in every round; of several hypotheses, the best one's."""
    task = poisoned(clients)
    with monkeypatch.context() as patch:
        patch.setattr(worker, "make_messages", scaling(factor))
        run = tacit.train(method, task, workers=1, seed=seed, evaluate_every=method.rounds)
    models = [run.model] if method.aggregator.models == 1 else [*run.models]
    return max((outcome(model, task, run) for model in models), key=lambda each: each.accuracy)


@torch.no_grad()
def outcome(model: torch.nn.Module, task: Task, run: Any) -> Outcome:
    assert task.test is not None
    x, y = task.test
    others = y != TARGET
    accuracy = float((model(x).argmax(1) == y).float().mean())
    success = float((model(with_trigger(x[others])).argmax(1) == TARGET).float().mean())
    return Outcome(accuracy, success, sum(report.dropped for report in run.history))


def method_of(name: str, clients: int, **args: object) -> Method:
    cohort: Mapping[str, object] = {} if name in ("nbafl", "dp-sgd", "dp-fedsgd") else {"cohort": clients}
    method = make(name, {**cohort, **args})
    if isinstance(method.channel, Enclave):
        return replace(method, channel=replace(method.channel, conversation=False))
    return method


SEEN: dict[str, tuple[str, dict[str, object]]] = {
    "fedavg": ("fedavg", {"rounds": 12}),
    "fedavg, not weighted": ("fedavg", {"rounds": 12, "weighted": False}),
    "fl-std": ("fl-std", {"rounds": 12}),
    "fl-top": ("fl-top", {"rounds": 12}),
    "ifca": ("ifca", {"rounds": 12}),
    "esmfl": ("esmfl", {"rounds": 12}),
    "geyer": ("geyer", {"rounds": 12, "noise": 1.0}),
}


@pytest.mark.law
@pytest.mark.parametrize("case", SEEN)
def test_where_somebody_sees_messages_a_scaled_backdoor_fails(monkeypatch, case):
    name, args = SEEN[case]
    for seed in SEEDS:
        got = attacked(monkeypatch, method_of(name, CLIENTS, **args), CLIENTS, FACTOR, seed)
        sys.stdout.write(f"| {case} | {FACTOR:g} | {got.accuracy:.3f} | {got.success:.3f} |\n")
        assert got.success < MOST
