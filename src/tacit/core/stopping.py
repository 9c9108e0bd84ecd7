"""When a run stops: a privacy budget, and early stopping on held-out data.

Early stopping keeps the best weights, their loss and the number of evaluations since then in the state, so that an
interrupted run resumes unchanged.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tacit.core.state import SERVER, State
from tacit.errors import expect

BEST, LOSS, STALE = SERVER + "best", SERVER + "best loss", SERVER + "stale"


@dataclass(frozen=True)
class Budget:
    """The privacy budget (ε, δ). A run stops before the round that would exceed it."""

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        expect(0 < self.epsilon < math.inf, f"epsilon={self.epsilon:g} > 0 and finite")
        check_delta(self.delta)

    def __str__(self) -> str:
        return f"ε = {self.epsilon:g} at δ = {self.delta:g}"


def check_delta(delta: float) -> None:
    """Raise `UserError` unless δ is in (0, 1)."""
    expect(0 < delta < 1, f"delta={delta:g} in (0, 1)", "δ bounds the probability that the guarantee fails: use 1e-5.")


def track_best(patience: int | None, state: State, metrics: Mapping[str, float]) -> State:
    """The state with the best weights updated after an evaluation on held-out data; unchanged without patience."""
    if patience is None or "loss" not in metrics:
        return state
    loss = torch.tensor(metrics["loss"], dtype=torch.float64)
    if LOSS not in state.memory or bool(loss < state.memory[LOSS]):
        updated = {BEST: state.weights, LOSS: loss, STALE: torch.tensor(0)}
    else:
        updated = {STALE: state.memory[STALE] + 1}
    return replace(state, memory={**state.memory, **updated})


def out_of_patience(patience: int | None, state: State) -> bool:
    """Whether the loss has not improved for `patience` evaluations."""
    return patience is not None and STALE in state.memory and int(state.memory[STALE]) >= patience


def final_weights(state: State) -> Tensor:
    """The weights a run returns: the best on held-out data with early stopping, otherwise the last."""
    return state.memory.get(BEST, state.weights)
