"""How messages are blurred, and what that costs."""

from tacit.pieces.mechanisms.clipping import FixedClip, MedianClip, PublicClip, QuantileClip
from tacit.pieces.mechanisms.ellipsoid import EllipsoidClip, PublicMovement, ReleasedMovement
from tacit.pieces.mechanisms.gaussian import CentralGaussian, DistributedGaussian
from tacit.pieces.mechanisms.groups import EachWeight, Inputs
from tacit.pieces.mechanisms.importance import ByImportance, Graded, Sensitivity, Share, Variance
from tacit.pieces.mechanisms.laplace import MetricLaplace
from tacit.pieces.mechanisms.nbafl import NbaflGaussian
from tacit.pieces.mechanisms.numbers import Grid, Reals

__all__ = [
    "ByImportance",
    "CentralGaussian",
    "DistributedGaussian",
    "EachWeight",
    "EllipsoidClip",
    "FixedClip",
    "Graded",
    "Grid",
    "Inputs",
    "MedianClip",
    "MetricLaplace",
    "NbaflGaussian",
    "PublicClip",
    "PublicMovement",
    "QuantileClip",
    "Reals",
    "ReleasedMovement",
    "Sensitivity",
    "Share",
    "Variance",
]
