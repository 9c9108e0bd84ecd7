"""How many messages become one vector. The plain mean is neutral and lives in `tacit.core`."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from tacit.core import Bounded, Mean, Sum
from tacit.core.pieces import Sees

__all__ = ["Mean", "WeightedMean"]


@dataclass(frozen=True)
class WeightedMean:
    """The mean weighted by the size of each client's data, which the server therefore learns."""

    needs: ClassVar[Sees] = "sum"
    even: ClassVar[bool] = False

    def combine(self, bounded: Bounded) -> Sum:
        """The rows times their number of samples, and the number of samples."""
        samples, rows = bounded.messages.samples, bounded.messages.rows
        assert samples is not None  # client_side attaches them for every aggregator that is not even
        squares = float((rows.norms().double().square() * samples).sum())
        return Sum(
            rows.scaled(samples).sum(),
            float(samples.sum()),
            bounded.bound,
            bounded.tally,
            squares,
            bounded.messages.step,
        )

    def finish(self, total: Sum) -> Tensor:
        """The sum over the number of samples."""
        return total.total / total.weight
