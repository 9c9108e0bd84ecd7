"""A trainer that answers a query: a client sends the sum of its units' bounded terms."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from tacit.core import ClientRound, DenseRows, Query, Rows, View, Wave
from tacit.core.interfaces import Payload, Trainer
from tacit.core.prices import RecordSum
from tacit.errors import ModelError


@dataclass(frozen=True)
class QuerySum(Trainer):
    """The sum of the terms of a query over all units of a client; a unit is a person, where persons are known.

    Args:
        query: maps the rows of a unit to a vector of bounded norm.
        cells: a unit is in one cell at most: the first row of a person counts, and terms other than a single 1 add
            nothing, so that a unit changes the sum by 1 in one number.

    Formal guarantees: none by itself. What a record, or a person, adds to a row is at most `query.bound` long, for any
    rows: longer vectors are scaled down, and those that are not finite add nothing. All records take part, so that no
    sampling amplifies privacy.

    Sees: whoever sees the message, the sum over the client without noise. Use a mechanism that adds it.
    """

    query: Query
    cells: bool = False
    sends: ClassVar[Payload] = "terms"
    draws_persons: ClassVar[bool] = True

    def train(self, view: View, data: Wave, now: ClientRound) -> Rows:
        state = view.weights
        if state.dtype != torch.float64 or state.shape != (self.query.length,):
            raise ModelError(
                f"Expected a state of {self.query.length} numbers in float64 for {type(self.query).__name__}, got "
                f"{tuple(state.shape)} in {state.dtype}. Use SumModel as the task's model."
            )
        return DenseRows(data.term_sums(self.query, state, cells=self.cells))

    @property
    def state_length(self) -> int:
        return self.query.length

    @property
    def record_sum(self) -> RecordSum:
        return RecordSum(1.0 if self.cells else self.query.bound, 1.0, "cells" if self.cells else "float64")
