"""Your own method: FedAvg whose server moves to the coordinate-wise median of the updates.

tacit run examples/own_method.py:median --rounds 5 --set cohort=10
tacit card examples/own_method.py:median
"""

from dataclasses import dataclass, replace

import tacit
from tacit.core import BoundedMessages, State, Sum
from tacit.core.interfaces import Aggregator


@dataclass(frozen=True)
class Median(Aggregator):
    """The median of each coordinate. It needs every message, so it fits no secure sum and has no guarantee."""

    def combine(self, bounded: BoundedMessages, state: State) -> Sum:
        """The median of all messages of a round, as a sum whose weight is 1."""
        rows = bounded.messages.rows.dense()
        return bounded.summed(rows.median(0).values, 1.0, float(rows.double().square().sum()))


def median(rounds: int = 20, cohort: int = 10, lr: float = 0.1) -> tacit.Method:
    """FedAvg with the median of the updates instead of their mean."""
    base = tacit.methods.fedavg(rounds=rounds, cohort=cohort, lr=lr)
    return replace(base, name="median", aggregator=Median())
