"""What a client learns."""

from tacit.trainers.admm import AdmmPrune
from tacit.trainers.best_of import BestOf
from tacit.trainers.masked import Masked
from tacit.trainers.pruning import Keep, MagnitudePrune
from tacit.trainers.sgd import Sgd

__all__ = ["AdmmPrune", "BestOf", "Keep", "MagnitudePrune", "Masked", "Sgd"]
