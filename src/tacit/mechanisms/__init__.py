"""How messages are blurred, and what that costs."""

from tacit.mechanisms.clipping import FixedClip, MedianClip, PublicClip, QuantileClip
from tacit.mechanisms.gaussian import CentralGaussian, DistributedGaussian

__all__ = ["CentralGaussian", "DistributedGaussian", "FixedClip", "MedianClip", "PublicClip", "QuantileClip"]
