"""Trainers: what a client learns from its own data in a round."""

from tacit.pieces.trainers.local import BestOf, Masked, Schedule, Sgd
from tacit.pieces.trainers.per_record import DpSgd, RecordGradient
from tacit.pieces.trainers.pruning import AdmmPrune, Keep, MagnitudePrune
from tacit.pieces.trainers.query_sum import QuerySum

__all__ = [
    "AdmmPrune",
    "BestOf",
    "DpSgd",
    "Keep",
    "MagnitudePrune",
    "Masked",
    "QuerySum",
    "RecordGradient",
    "Schedule",
    "Sgd",
]
