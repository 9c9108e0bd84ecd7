"""The vocabulary: what a method is made of, and in which order a round uses it."""

import importlib
import pkgutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tacit.core.keys import Key
    from tacit.core.losses import BinaryCrossEntropy, CrossEntropy, Loss, MeanSquared, RootBrier, RootMeanSquared
    from tacit.core.method import Method
    from tacit.core.neutral import Add, Identity, Mean, NoNoise, Plain
    from tacit.core.pieces import Chooser, Event, Metric, Near
    from tacit.core.rows import DenseRows, MaskedRows, Rows
    from tacit.core.state import (
        Bound,
        Bounded,
        Messages,
        Receipt,
        Report,
        Round,
        State,
        Step,
        Sum,
        Traffic,
        Turnout,
        View,
    )
    from tacit.core.stopping import Budget
    from tacit.core.task import Population, Samples, Task
    from tacit.core.wave import Descent, Perturbation, ProximalTerm, Wave
    from tacit.errors import (
        BudgetError,
        CompositionError,
        DataError,
        LedgerError,
        ModelError,
        RunError,
        StorageError,
        TacitError,
        TrainingError,
        UserError,
        WireError,
        WorkerError,
    )
    from tacit.wire.sparse import Compact, Csr

__all__ = [
    "Add",
    "BinaryCrossEntropy",
    "Bound",
    "Bounded",
    "Budget",
    "BudgetError",
    "Chooser",
    "Compact",
    "CompositionError",
    "CrossEntropy",
    "Csr",
    "DataError",
    "DenseRows",
    "Descent",
    "Event",
    "Identity",
    "Key",
    "LedgerError",
    "Loss",
    "MaskedRows",
    "Mean",
    "MeanSquared",
    "Messages",
    "Method",
    "Metric",
    "ModelError",
    "Near",
    "NoNoise",
    "Perturbation",
    "Plain",
    "Population",
    "ProximalTerm",
    "Receipt",
    "Report",
    "RootBrier",
    "RootMeanSquared",
    "Round",
    "Rows",
    "RunError",
    "Samples",
    "State",
    "Step",
    "StorageError",
    "Sum",
    "TacitError",
    "Task",
    "Traffic",
    "TrainingError",
    "Turnout",
    "UserError",
    "View",
    "Wave",
    "WireError",
    "WorkerError",
]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Import the vocabulary when one of its names is first used: `tacit.core.schema` needs no PyTorch."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        here = [f"{__name__}.{found.name}" for found in pkgutil.iter_modules(__path__)]
        for module in map(importlib.import_module, (*here, "tacit.errors", "tacit.wire.sparse")):
            globals().update({public: value for public, value in vars(module).items() if public in __all__})
        return globals()[name]
