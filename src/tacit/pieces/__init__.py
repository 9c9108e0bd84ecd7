"""The pieces that methods are made of, one family per slot, with the neutral ones and the wire formats."""

import sys
from typing import TYPE_CHECKING

from tacit.core import Add, Identity, Mean, NoNoise, Plain
from tacit.core.plain_form import allow
from tacit.pieces import channels
from tacit.pieces.aggregators import KMeans, WeightedMean
from tacit.pieces.channels import IdealSum, SecureSum
from tacit.pieces.codecs import FixedRandom, RandomK, Select, Sense, Size, TopK, Vote
from tacit.pieces.mechanisms import (
    AccuracySensitivity,
    ByImportance,
    CentralGaussian,
    DistributedGaussian,
    EllipsoidClip,
    FixedClip,
    Graded,
    Grid,
    InputFeatures,
    MedianClip,
    MetricLaplace,
    NbaflGaussian,
    PublicClip,
    PublicMovement,
    QuantileClip,
    Reals,
    RecordClip,
    ReleasedMovement,
    SingleWeights,
    TwoLevel,
    WeightVariance,
)
from tacit.pieces.samplers import Everyone, FixedSize, Growing, Poisson
from tacit.pieces.servers import Momentum, Replace
from tacit.pieces.trainers import AdmmPrune, BestOf, DpSgd, Keep, MagnitudePrune, Masked, RecordGradient, Schedule, Sgd
from tacit.wire.sparse import Compact, Csr

if TYPE_CHECKING:
    from tacit.pieces.channels import Enclave

__all__ = [
    "AccuracySensitivity",
    "Add",
    "AdmmPrune",
    "BestOf",
    "ByImportance",
    "CentralGaussian",
    "Compact",
    "Csr",
    "DistributedGaussian",
    "DpSgd",
    "EllipsoidClip",
    "Enclave",
    "Everyone",
    "FixedClip",
    "FixedRandom",
    "FixedSize",
    "Graded",
    "Grid",
    "Growing",
    "IdealSum",
    "Identity",
    "InputFeatures",
    "KMeans",
    "Keep",
    "MagnitudePrune",
    "Masked",
    "Mean",
    "MedianClip",
    "MetricLaplace",
    "Momentum",
    "NbaflGaussian",
    "NoNoise",
    "Plain",
    "Poisson",
    "PublicClip",
    "PublicMovement",
    "QuantileClip",
    "RandomK",
    "Reals",
    "RecordClip",
    "RecordGradient",
    "ReleasedMovement",
    "Replace",
    "Schedule",
    "SecureSum",
    "Select",
    "Sense",
    "Sgd",
    "SingleWeights",
    "Size",
    "TopK",
    "TwoLevel",
    "Vote",
    "WeightVariance",
    "WeightedMean",
]


allow(sys.modules[__name__])  # methods in their canonical form may name these


def __getattr__(name: str) -> object:
    if name != "Enclave":  # the only piece that is imported when it is first named
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return channels.Enclave


def __dir__() -> list[str]:
    return __all__
