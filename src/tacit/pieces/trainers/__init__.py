"""What a client learns."""

from tacit.pieces.trainers.admm import AdmmPrune
from tacit.pieces.trainers.best_of import BestOf
from tacit.pieces.trainers.masked import Masked
from tacit.pieces.trainers.pruning import Keep, MagnitudePrune
from tacit.pieces.trainers.sgd import Sgd

__all__ = ["AdmmPrune", "BestOf", "Keep", "MagnitudePrune", "Masked", "Sgd"]
