"""What a client learns."""

from tacit.trainers.masked import Masked
from tacit.trainers.sgd import Sgd

__all__ = ["Masked", "Sgd"]
