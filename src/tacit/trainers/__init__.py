"""What a client learns."""

from tacit.trainers.sgd import Sgd

__all__ = ["Sgd"]
