"""Sums of records through the enclave: the guarantee is that of a secure sum, and names whom it trusts instead."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import tacit
from tacit.core import Plain
from tacit.core.prices import Unit
from tacit.core.state import Turnout
from tacit.errors import BudgetError, CompositionError
from tacit.pieces.channels import Enclave
from tacit.pieces.channels.enclave import _open_charging
from tacit.pieces.mechanisms import DistributedGaussian, Reals
from tacit.privacy.guarantee import Guarantee
from tacit.runs.run import RunSpec

SIZES = (40, 25, 60, 30)
CHANNEL = Enclave(min_clients=2, colluding=0.0)


def hospitals() -> tacit.Task:
    generator = torch.Generator().manual_seed(0)
    parts = [(torch.randn(size, 4, generator=generator), torch.arange(size) % 2) for size in SIZES]
    return tacit.Task(model=lambda: nn.Linear(4, 2), clients=parts)


def summed(channel: Any = CHANNEL, arithmetic: Any = None, **options: Any) -> tacit.Method:
    method = tacit.methods.dp_fedsgd(rounds=2, size=40, **options)
    mechanism = method.mechanism
    assert isinstance(mechanism, DistributedGaussian)
    mechanism = mechanism if arithmetic is None else replace(mechanism, arithmetic=arithmetic)
    return replace(method, channel=channel, mechanism=mechanism)


@pytest.mark.law("processes of an enclave")
@pytest.mark.parametrize("conversation", [False, True])
def test_records_are_protected_through_the_enclave(conversation: bool) -> None:
    channel = replace(CHANNEL, conversation=conversation)
    run = tacit.train(summed(channel, Reals() if conversation else None, epsilon=2.0), hospitals(), workers=1)
    (found,) = run.guarantees.values()
    assert isinstance(found, Guarantee)
    assert (found.unit, found.adjacency, len(run.history)) == (Unit.RECORD, "add-or-remove", 2)
    assert 1.9 < (found.epsilon or 0.0) <= 2.0
    assert any("The enclave is trusted: it sees every message" in text for text in found.not_covered)
    assert not any("Secure aggregation is assumed" in text for text in found.not_covered)
    assert any("Simulated enclave" in text for text in found.not_covered)


def test_the_noise_is_that_of_secure_aggregation() -> None:
    enclave, sums = (
        RunSpec(method=each, task=hospitals()).method for each in (summed(), tacit.methods.dp_fedsgd(rounds=2, size=40))
    )
    assert enclave.mechanism == sums.mechanism


@pytest.mark.law("processes of an enclave")
def test_the_conversation_gives_the_model_of_the_simulation() -> None:
    runs = [
        tacit.train(summed(replace(CHANNEL, conversation=talks), Reals(), noise=1.0), hospitals(), randomness="seeded")
        for talks in (False, True)
    ]
    assert torch.equal(runs[0].state.weights, runs[1].state.weights)


def test_integers_are_refused_by_the_conversation_before_anything_is_charged() -> None:
    with pytest.raises(
        tacit.UserError, match=r"DistributedGaussian sends integers. Use arithmetic=Reals\(\), or the channel"
    ):
        tacit.train(summed(replace(CHANNEL, conversation=True)), hospitals(), workers=1)


def test_the_enclave_itself_keeps_the_budget_of_records() -> None:
    method = RunSpec(method=summed(epsilon=2.0), task=hospitals()).method
    charge = _open_charging(method, len(SIZES), None)
    charge(0, Turnout(4, 4))
    charge(1, Turnout(4, 4))
    with pytest.raises(BudgetError, match="Round 2 would exceed the budget of ε = 2"):
        charge(2, Turnout(4, 4))


def test_too_few_honest_clients_release_nothing() -> None:
    with pytest.raises(tacit.UserError, match="No sum would be released"):
        tacit.train(summed(Enclave(min_clients=5)), hospitals(), workers=1)


def test_messages_in_the_open_are_refused() -> None:
    with pytest.raises(
        CompositionError, match="adds only a share of the noise at each client, but Plain shows the server"
    ):
        summed(Plain())
