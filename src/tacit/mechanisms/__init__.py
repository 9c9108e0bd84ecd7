"""How messages are blurred, and what that costs."""

from tacit.mechanisms.clipping import FixedClip, MedianClip, QuantileClip
from tacit.mechanisms.gaussian import CentralGaussian

__all__ = ["CentralGaussian", "FixedClip", "MedianClip", "QuantileClip"]
