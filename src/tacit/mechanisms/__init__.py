"""How messages are blurred, and what that costs."""

from tacit.mechanisms.clipping import FixedClip, MedianClip, PublicClip, QuantileClip
from tacit.mechanisms.gaussian import CentralGaussian, DistributedGaussian
from tacit.mechanisms.laplace import MetricLaplace
from tacit.mechanisms.numbers import Grid, Reals

__all__ = [
    "CentralGaussian",
    "DistributedGaussian",
    "FixedClip",
    "Grid",
    "MedianClip",
    "MetricLaplace",
    "PublicClip",
    "QuantileClip",
    "Reals",
]
