"""Trainers: what a client learns from its own data in a round."""

from tacit.pieces.trainers.local import BestOf, Masked, Sgd
from tacit.pieces.trainers.per_record import DpSgd, RecordGradient
from tacit.pieces.trainers.pruning import AdmmPrune, Keep, MagnitudePrune

__all__ = ["AdmmPrune", "BestOf", "DpSgd", "Keep", "MagnitudePrune", "Masked", "RecordGradient", "Sgd"]
