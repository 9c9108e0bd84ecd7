"""The vocabulary of a method: its seven pieces, the state and messages of a round, and the order of its steps."""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tacit.core.keys import ClientKeys, Key, KeySource, Noise, RunKeys, SecretKeys, SeededKeys
    from tacit.core.losses import (
        BinaryCrossEntropy,
        CrossEntropy,
        FunctionLoss,
        Loss,
        MeanSquared,
        RootBrier,
        RootMeanSquared,
        SequenceCrossEntropy,
    )
    from tacit.core.method import Method
    from tacit.core.neutral import Add, Identity, Mean, NoNoise, Plain
    from tacit.core.prices import Budget
    from tacit.core.rows import DenseRows, MaskedRows, Rows
    from tacit.core.state import (
        Bound,
        BoundedMessages,
        Broadcast,
        ClientMemory,
        ClientRound,
        GridStep,
        Messages,
        Report,
        Round,
        ServerRound,
        SimulatedRound,
        State,
        Sum,
        Traffic,
        Turnout,
        View,
        WaveReport,
    )
    from tacit.core.wave import Descent, Perturbation, ProximalTerm, Wave
    from tacit.wire.sparse import Compact, Csr

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
    _MODULES = ("interfaces", "keys", "losses", "method", "neutral", "prices", "rows", "state", "wave")

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        modules = [*(f"{__name__}.{module}" for module in _MODULES), "tacit.wire.sparse"]
        for module in map(importlib.import_module, modules):
            globals().update({public: value for public, value in vars(module).items() if public in __all__})
        return globals()[name]
