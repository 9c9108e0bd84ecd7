"""Server updates: how the aggregate changes the model. The neutral one, `Add`, is in `tacit.core`."""

from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from tacit.core import Add, State
from tacit.core.interfaces import Payload, ServerUpdate
from tacit.core.state import SERVER
from tacit.errors import expect

__all__ = ["Add", "Momentum", "Replace"]


@dataclass(frozen=True)
class Replace(ServerUpdate):
    """Replace the model by the aggregated weights."""

    expects: ClassVar[Payload] = "weights"

    def apply(self, state: State, aggregate: Tensor) -> State:
        return replace(state, weights=aggregate)


@dataclass(frozen=True)
class Momentum(ServerUpdate):
    """Server momentum: m ← rho·m + update, w ← w + rate·m."""

    rho: float = 0.9
    rate: float = 1.0

    def __post_init__(self) -> None:
        expect(0 <= self.rho < 1, f"rho={self.rho} in [0, 1)")
        expect(self.rate > 0, f"rate={self.rate} > 0")

    def apply(self, state: State, aggregate: Tensor) -> State:
        name = SERVER + "momentum"
        momentum = self.rho * state.memory[name] + aggregate if name in state.memory else aggregate
        weights = state.weights.add(momentum, alpha=self.rate)
        return replace(state, weights=weights, memory=state.memory_with(name, momentum))
