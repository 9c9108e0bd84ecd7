"""When to stop, and which model to keep: held-out data decide (early stopping).

What is remembered lies in the state, so that an interrupted run goes on as if nothing had happened: the best weights,
their loss, and how many measurements ago that was.
"""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from tacit.core.method import Method
from tacit.core.state import SERVER, State

BEST, LOSS, STALE = SERVER + "best", SERVER + "best loss", SERVER + "stale"


def measured(method: Method, state: State, metrics: Mapping[str, float]) -> State:
    """The state after held-out data were measured; only a method with patience remembers anything."""
    if method.patience is None or "loss" not in metrics:
        return state
    loss = torch.tensor(metrics["loss"], dtype=torch.float64)
    if LOSS not in state.memory or bool(loss < state.memory[LOSS]):
        news = {BEST: state.weights, LOSS: loss, STALE: torch.tensor(0)}
    else:
        news = {STALE: state.memory[STALE] + 1}
    return replace(state, memory={**state.memory, **news})


def stopped(method: Method, state: State) -> bool:
    """Whether patience is at its end."""
    return method.patience is not None and STALE in state.memory and int(state.memory[STALE]) >= method.patience


def kept(state: State) -> Tensor:
    """The weights that a run leaves: the best on held-out data if it had patience, otherwise the last."""
    return state.memory.get(BEST, state.weights)
