"""A client that trains a backdoor and multiplies its update by 20: what is left of it at the end of a run.

`python -m pytest -s --scale campaign tests/attacks/test_backdoors.py` prints the tables of the threat model.
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from statistics import mean
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

LIAR, TARGET, FACTOR = 0, 0, 20.0
SEEDS = range(scaled(1, campaign=3))
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
    """The clients' half, in which the liar adds no noise, does not clip, and moves the model `factor` times as far."""

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


ROUNDS = 12
SEEN: dict[str, dict[str, object]] = {
    "fedavg": {},
    "fl-std": {},
    "ifca": {},
    "ifca-dp": {},
    "esmfl": {},
    "dp-sgd": {"noise": 1.0, "epsilon": "none"},
    "geyer": {"noise": 1.0},
}
HIDDEN = [(clients, factor) for clients in (8, 20) for factor in (0.0, 1.0, 2.0, 4.0, 20.0, 100.0, 1000.0)]


def mean_of(outcomes: list[Outcome], case: str, clients: int, factor: float) -> Outcome:
    """The mean, which is also printed, as a row of a table."""
    accuracy, success = (mean(getattr(each, name) for each in outcomes) for name in ("accuracy", "success"))
    dropped = sum(each.dropped for each in outcomes)
    sys.stdout.write(f"| `{case}` | {clients} | {factor:g} | {accuracy:.2f} | {success:.2f} | {dropped} |\n")
    return Outcome(accuracy, success, dropped)


@pytest.mark.law
@pytest.mark.parametrize(
    ("name", "clients"),
    [
        (name, clients)
        for name in SEEN
        for clients in scaled((20,), campaign=(8, 20))
        if (name, clients) != ("geyer", 8)
    ],
)
def test_where_somebody_sees_messages_a_scaled_backdoor_fails(monkeypatch, name, clients):
    """Also with eight clients, where the same poisoned data without scaling succeed, as they do in `geyer`.

    There every row is clipped to the median length.
    """
    method = method_of(name, clients, rounds=ROUNDS, **SEEN[name])
    got = mean_of([attacked(monkeypatch, method, clients, FACTOR, seed) for seed in SEEDS], name, clients, FACTOR)
    assert got.success < MOST


@pytest.mark.campaign
@pytest.mark.parametrize("factor", [0.0, 1.0, 2.0, 4.0])
@pytest.mark.parametrize("clients", [8, 20])
def test_what_poisoned_data_do_where_somebody_sees_messages(monkeypatch, clients, factor):
    """What is no longer than other rows is not found: a table, not a promise."""
    method = method_of("fedavg", clients, rounds=ROUNDS)
    mean_of([attacked(monkeypatch, method, clients, factor, seed) for seed in SEEDS], "fedavg", clients, factor)


@pytest.mark.campaign
@pytest.mark.parametrize(("clients", "factor"), HIDDEN)
def test_what_one_client_can_do_through_secure_sum(monkeypatch, clients, factor):
    """Nobody sees its row: a table, not a promise, but for sums that honest clients cannot reach."""
    method = method_of("dp-fedsgd", clients, rounds=2 * ROUNDS, noise=1.0, budget="none")
    runs = [attacked(monkeypatch, method, clients, factor, seed) for seed in SEEDS]
    got = mean_of(runs, "dp-fedsgd", clients, factor)
    assert (got.dropped == 3 * len(SEEDS)) == (factor == 1000.0)
