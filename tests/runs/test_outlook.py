"""A population that is too small for noise for clients is said before the first round."""

from collections.abc import Iterator

import pytest
import torch
from torch import nn

import tacit
from tacit import methods
from tacit.core import Method
from tacit.runs.outlook import noise_to_change, outlook
from tacit.runs.rounds import Simulated, run_without_files
from tacit.runs.run import Run, RunSpec


def begun(method: Method, clients: int) -> Run:
    """A run before its first round."""
    parts = [(torch.randn(4, 50), torch.arange(4) % 2) for _ in range(clients)]
    public = torch.randn(8, 50), torch.arange(8) % 2
    task = tacit.Task(model=lambda: nn.Linear(50, 2), clients=parts, public=public)
    spec = RunSpec(method=method, task=task, randomness="seeded")
    runs: Iterator[Run] = run_without_files(spec, Simulated(spec, 1), None)
    return next(runs)


@pytest.mark.parametrize(("clients", "small"), [(12, True), (400, False)])
def test_too_few_clients_are_named_beforehand(clients: int, small: bool) -> None:
    """102 weights, noise multiplier 6, 25 rounds: 6·√102/(m·5) is 1.01 for twelve clients."""
    run = begun(methods.geyer(rounds=25, cohort=clients, noise=6.0, epsilon=50.0, delta=1e-5), clients)
    assert noise_to_change(run) == pytest.approx(6 * 102**0.5 / (clients * run.rounds**0.5))
    assert ("are too few for this budget" in outlook(run)) is small


def test_noise_for_records_and_none_are_not_judged_so() -> None:
    assert noise_to_change(begun(methods.fedavg(rounds=2, cohort=5), 5)) is None
    assert noise_to_change(begun(methods.dp_sgd(rounds=2, cohort=5), 5)) is None
