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
    from tacit.wire.sparse import *

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
    "Compact",
    "CrossEntropy",
    "Csr",
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
    "Perturbation",
    "Plain",
    "ProximalTerm",
    "Query",
    "Randomness",
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
    _CORE = ("keys", "losses", "method", "neutral", "prices", "rows", "state", "wave")
    _MODULES = (*(f"{__name__}.{module}" for module in _CORE), "tacit.wire.sparse")

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        for module in map(importlib.import_module, _MODULES):
            globals().update({public: value for public, value in vars(module).items() if public in __all__})
        return globals()[name]
