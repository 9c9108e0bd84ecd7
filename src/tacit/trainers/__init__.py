"""What a client learns."""

from tacit.trainers.best_of import BestOf
from tacit.trainers.masked import Masked
from tacit.trainers.sgd import Sgd

__all__ = ["BestOf", "Masked", "Sgd"]
