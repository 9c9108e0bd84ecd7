"""How much privacy may be spent."""

import math
from dataclasses import dataclass

from tacit.core.errors import expect


@dataclass(frozen=True)
class Budget:
    """How much may be spent: (ε, δ). A run stops before the round that would pass it."""

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        expect(0 < self.epsilon < math.inf, f"epsilon={self.epsilon:g} > 0 and finite")
        check_delta(self.delta)

    def __str__(self) -> str:
        return f"ε = {self.epsilon:g} at δ = {self.delta:g}"


def check_delta(delta: float) -> None:
    """Raise `UserError` unless δ is in (0, 1)."""
    expect(0 < delta < 1, f"delta={delta:g} in (0, 1)", "It is the probability that the guarantee fails: take 1e-5.")
