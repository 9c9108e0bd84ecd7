"""Mechanisms: how updates are clipped, how noise is added, and what guarantee follows. The neutral one is `NoNoise`."""

from tacit.core import NoNoise
from tacit.pieces.mechanisms.arithmetic import Grid, Reals
from tacit.pieces.mechanisms.clipping import FixedClip, MedianClip, PublicClip, QuantileClip, RecordClip, TermClip
from tacit.pieces.mechanisms.counts import DistributedLaplace
from tacit.pieces.mechanisms.ellipsoid import EllipsoidClip, PublicMovement, ReleasedMovement
from tacit.pieces.mechanisms.gaussian import CentralGaussian, DistributedGaussian
from tacit.pieces.mechanisms.groups import InputFeatures, SingleWeights
from tacit.pieces.mechanisms.importance import AccuracySensitivity, ByImportance, Graded, TwoLevel, WeightVariance
from tacit.pieces.mechanisms.laplace import MetricLaplace
from tacit.pieces.mechanisms.nbafl import NbaflGaussian

__all__ = [
    "AccuracySensitivity",
    "ByImportance",
    "CentralGaussian",
    "DistributedGaussian",
    "DistributedLaplace",
    "EllipsoidClip",
    "FixedClip",
    "Graded",
    "Grid",
    "InputFeatures",
    "MedianClip",
    "MetricLaplace",
    "NbaflGaussian",
    "NoNoise",
    "PublicClip",
    "PublicMovement",
    "QuantileClip",
    "Reals",
    "RecordClip",
    "ReleasedMovement",
    "SingleWeights",
    "TermClip",
    "TwoLevel",
    "WeightVariance",
]
