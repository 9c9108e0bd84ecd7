"""Trainers: what a client learns from its own data in a round."""

from tacit.pieces.trainers.local import BestOf, Masked, Schedule, Sgd
from tacit.pieces.trainers.pruning import AdmmPrune, Keep, MagnitudePrune

__all__ = ["AdmmPrune", "BestOf", "Keep", "MagnitudePrune", "Masked", "Schedule", "Sgd"]
