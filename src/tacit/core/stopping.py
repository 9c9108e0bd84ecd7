"""Early stopping on held-out data.

The best weights, their loss and the number of evaluations since then are in the state, so that an interrupted run
resumes unchanged.
"""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from tacit.core.state import SERVER, State

BEST, LOSS, STALE = SERVER + "best", SERVER + "best loss", SERVER + "stale"


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
