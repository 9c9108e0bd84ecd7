"""How messages are blurred, and what that costs."""

from tacit.mechanisms.clipping import FixedClip, MedianClip, PublicClip, QuantileClip
from tacit.mechanisms.ellipsoid import EllipsoidClip, PublicMovement, ReleasedMovement
from tacit.mechanisms.gaussian import CentralGaussian, DistributedGaussian
from tacit.mechanisms.groups import EachWeight, Inputs
from tacit.mechanisms.importance import ByImportance, Graded, Sensitivity, Share, Variance
from tacit.mechanisms.laplace import MetricLaplace
from tacit.mechanisms.nbafl import NbaflGaussian
from tacit.mechanisms.numbers import Grid, Reals

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
