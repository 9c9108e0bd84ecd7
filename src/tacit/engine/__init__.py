"""Runs a method on one machine: waves of clients, worker processes, sums folded in a fixed order."""

from tacit.engine.glimpse import Glimpse, glimpses
from tacit.engine.rounds import first_weights, initial_state, module_at, rounds, waves

__all__ = ["Glimpse", "first_weights", "glimpses", "initial_state", "module_at", "rounds", "waves"]
