"""Runs a method on one machine: waves of clients, worker processes, sums folded in a fixed order."""

from tacit.engine.simulation import Simulation, initial_state, module_at, rounds, waves
from tacit.engine.traces import ClientTrace, client_traces

__all__ = ["ClientTrace", "Simulation", "client_traces", "initial_state", "module_at", "rounds", "waves"]
