"""The public names, in one place. `tacit.X` is `tacit.api.X`."""

import tacit.methods as methods
import tacit.tasks as tasks
from tacit.aggregators import Mean, WeightedMean
from tacit.books.bandwidth import Bandwidth
from tacit.cards import Card, card
from tacit.channels import IdealSum
from tacit.codecs import FixedRandom, RandomK, Select, Sense, Size, TopK, Vote
from tacit.core import (
    BinaryCrossEntropy,
    Budget,
    CompositionError,
    CrossEntropy,
    DataError,
    Identity,
    Key,
    Loss,
    MeanSquared,
    Method,
    ModelError,
    NoNoise,
    Plain,
    Population,
    Report,
    RunError,
    State,
    StorageError,
    TacitError,
    Task,
    TrainingError,
    UserError,
    WireError,
    WorkerError,
)
from tacit.engine import rounds
from tacit.experiment import Experiment
from tacit.mechanisms import CentralGaussian, DistributedGaussian, FixedClip, MedianClip, PublicClip, QuantileClip
from tacit.samplers import Everyone, FixedSize, Growing, Poisson
from tacit.servers import Add, Momentum, Replace
from tacit.trainers import Masked, Sgd
from tacit.training import Run, train

__all__ = [
    "Add",
    "Bandwidth",
    "BinaryCrossEntropy",
    "Budget",
    "Card",
    "CentralGaussian",
    "CompositionError",
    "CrossEntropy",
    "DataError",
    "DistributedGaussian",
    "Everyone",
    "Experiment",
    "FixedClip",
    "FixedRandom",
    "FixedSize",
    "Growing",
    "IdealSum",
    "Identity",
    "Key",
    "Loss",
    "Masked",
    "Mean",
    "MeanSquared",
    "MedianClip",
    "Method",
    "ModelError",
    "Momentum",
    "NoNoise",
    "Plain",
    "Poisson",
    "Population",
    "PublicClip",
    "QuantileClip",
    "RandomK",
    "Replace",
    "Report",
    "Run",
    "RunError",
    "Select",
    "Sense",
    "Sgd",
    "Size",
    "State",
    "StorageError",
    "TacitError",
    "Task",
    "TopK",
    "TrainingError",
    "UserError",
    "Vote",
    "WeightedMean",
    "WireError",
    "WorkerError",
    "card",
    "methods",
    "rounds",
    "tasks",
    "train",
]
