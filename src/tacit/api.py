"""The public API: `tacit.X` is `tacit.api.X`. Pieces are in `tacit.pieces`; everything else is in its own package."""

import tacit.methods as methods
import tacit.pieces as pieces
import tacit.tasks as tasks
from tacit.core import (
    BinaryCrossEntropy,
    Budget,
    CrossEntropy,
    MeanSquared,
    Method,
    Report,
    RootBrier,
    RootMeanSquared,
    SequenceCrossEntropy,
    State,
)
from tacit.data import Population, Preprocessing, Task
from tacit.errors import CompositionError, DataError, ModelError, TacitError, TrainingError, UserError
from tacit.report.analyses import Analysis, describe, regress, survival
from tacit.report.cards import Card, card
from tacit.report.mlflow_log import MlflowLog
from tacit.report.tensorboard_log import TensorBoardLog
from tacit.runs.probing import probe
from tacit.runs.rounds import rounds
from tacit.runs.run import Run
from tacit.runs.training import train

__all__ = [  # noqa: RUF022 (by what they are for)
    # training
    "train",
    "rounds",
    "Run",
    "State",
    "Report",
    "MlflowLog",
    "TensorBoardLog",
    # tasks and losses
    "Task",
    "Population",
    "Preprocessing",
    "tasks",
    "CrossEntropy",
    "BinaryCrossEntropy",
    "SequenceCrossEntropy",
    "MeanSquared",
    "RootMeanSquared",
    "RootBrier",
    # analyses of tables
    "describe",
    "survival",
    "regress",
    "Analysis",
    # methods and their pieces
    "Method",
    "Budget",
    "methods",
    "pieces",
    "card",
    "Card",
    "probe",
    # errors
    "TacitError",
    "UserError",
    "CompositionError",
    "DataError",
    "ModelError",
    "TrainingError",
]
