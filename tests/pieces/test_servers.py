"""Server updates: Add, Replace and Momentum."""

import torch

from tacit.core import State
from tacit.pieces.servers import Add, Momentum, Replace

STATE = State(3, torch.tensor([1.0, 2.0]))
UPDATE = torch.tensor([0.5, -1.0])


def test_add() -> None:
    assert Add(rate=2.0).apply(STATE, UPDATE).weights.tolist() == [2.0, 0.0]


def test_replace() -> None:
    assert Replace().apply(STATE, UPDATE).weights.tolist() == [0.5, -1.0]


def test_momentum_accumulates() -> None:
    server = Momentum(rho=0.5, rate=2.0)
    once = server.apply(STATE, UPDATE)
    twice = server.apply(once, UPDATE)
    assert once.weights.tolist() == [2.0, 0.0]
    assert twice.weights.tolist() == [2.0 + 2 * 0.75, 0.0 - 2 * 1.5]
    assert STATE.memory == {}


def test_the_state_given_is_not_changed() -> None:
    for server in (Add(), Momentum(), Replace()):
        server.apply(STATE, UPDATE)
    assert STATE.weights.tolist() == [1.0, 2.0]
