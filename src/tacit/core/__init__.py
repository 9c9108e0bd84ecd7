"""The vocabulary: what a method is made of, and in which order a round uses it."""

from tacit.core.keys import Key
from tacit.core.losses import BinaryCrossEntropy, CrossEntropy, Loss, MeanSquared, RootBrier, RootMeanSquared
from tacit.core.method import Method
from tacit.core.neutral import Add, Identity, Mean, NoNoise, Plain
from tacit.core.pieces import Chooser, Event, Metric, Near
from tacit.core.rows import DenseRows, MaskedRows, Rows
from tacit.core.state import Bound, Bounded, Messages, Receipt, Report, Round, State, Step, Sum, Traffic, Turnout, View
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
