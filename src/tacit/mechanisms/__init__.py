"""How messages are blurred, and what that costs."""

from tacit.mechanisms.gaussian import CentralGaussian

__all__ = ["CentralGaussian"]
