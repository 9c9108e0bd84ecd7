"""The vocabulary of a method: its seven pieces, the state and messages of a round, and the order of its steps."""

# ruff: noqa: F403, F405 (the public names are in one list, wherever they are defined)

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tacit.core.keys import *
    from tacit.core.losses import *
    from tacit.core.method import *
    from tacit.core.neutral import *
    from tacit.core.prices import *
    from tacit.core.rows import *
    from tacit.core.state import *
    from tacit.core.wave import *

__all__ = [
    "Add",
    "BinaryCrossEntropy",
    "Bound",
    "BoundedMessages",
    "Broadcast",
    "Budget",
    "ClientKeys",
    "ClientMemory",
    "ClientRound",
    "CrossEntropy",
    "DenseRows",
    "Descent",
    "FunctionLoss",
    "GridStep",
    "Identity",
    "Key",
    "KeySource",
    "Loss",
    "MaskedRows",
    "Mean",
    "MeanSquared",
    "Messages",
    "Method",
    "NoNoise",
    "Noise",
    "Perturbation",
    "Plain",
    "ProximalTerm",
    "Report",
    "RootBrier",
    "RootMeanSquared",
    "Round",
    "Rows",
    "RunKeys",
    "SecretKeys",
    "SeededKeys",
    "SequenceCrossEntropy",
    "ServerRound",
    "SimulatedRound",
    "State",
    "Sum",
    "Traffic",
    "Turnout",
    "View",
    "Wave",
    "WaveReport",
]

if not TYPE_CHECKING:
    # Imported when a name is first used, because `tacit.core.schema` must work without loading PyTorch.
    _MODULES = ("keys", "losses", "method", "neutral", "prices", "rows", "state", "wave")

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        for module in _MODULES:
            found = vars(importlib.import_module(f"{__name__}.{module}"))
            globals().update({public: value for public, value in found.items() if public in __all__})
        return globals()[name]
