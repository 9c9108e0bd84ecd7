"""How many messages become one vector, or k. The plain mean is neutral and lives in `tacit.core`."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from tacit.core import Bounded, Mean, State, Sum
from tacit.core.pieces import Visibility
from tacit.errors import expect

__all__ = ["KMeans", "Mean", "WeightedMean"]
LONGEST = 300  # iterations of k-means, as in scikit-learn


@dataclass(frozen=True)
class WeightedMean:
    """The mean weighted by the size of each client's data, which the server therefore learns."""

    models: ClassVar[int] = 1
    needs: ClassVar[Visibility] = "sum"
    uniform: ClassVar[bool] = False

    def combine(self, bounded: Bounded, state: State) -> Sum:
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


@dataclass(frozen=True)
class KMeans:
    """The server finds out by k-means which messages belong together, and averages each cluster into a hypothesis.

    Centres start at the hypotheses, so that clusters keep their numbers from round to round; a hypothesis to which no
    message is nearest stays as it is. (scikit-learn would move it to the farthest message, and a group that misses one
    round would be forgotten; where no cluster is empty, the result is scikit-learn's.)

    Args:
        models: how many clusters there are, and hypotheses.
        warm_up: for so many rounds all messages are one cluster; the last of these rounds then spreads the
            hypotheses, at the clusters of its messages. 0: they start as they are, as in the paper. Hypotheses that
            start apart at random may be so unlike that one suits every client best, and the others are never chosen.

    Reference: Galli et al. 2023, Algorithm 1, lines 9 and 10.
    """

    models: int = 2
    warm_up: int = 0
    needs: ClassVar[Visibility] = "messages"
    uniform: ClassVar[bool] = True

    def __post_init__(self) -> None:
        expect(self.models >= 1, f"models={self.models} >= 1")
        expect(self.warm_up >= 0, f"warm_up={self.warm_up} >= 0")

    def combine(self, bounded: Bounded, state: State) -> Sum:
        """The new hypotheses, and by how much messages differ from their own: all of a round's messages at once."""
        rows = bounded.messages.rows.dense()
        if len(rows) == 0:
            return Sum(state.weights, 0.0)
        centres = self._centres(rows, state)
        apart = float(_distances(rows, centres).min(1).values.double().square().mean())
        squares = float(centres.double().square().sum()) + len(centres) * apart  # the variance is that within clusters
        return Sum(centres.view_as(state.weights), 1.0, squares=squares)

    def finish(self, total: Sum) -> Tensor:
        """The hypotheses themselves."""
        return total.total

    def _centres(self, rows: Tensor, state: State) -> Tensor:
        if state.round + 1 < self.warm_up:
            return rows.mean(0).expand(self.models, -1).contiguous()
        spread = state.round + 1 == self.warm_up
        return clustered(rows, _apart(rows, self.models) if spread else state.weights.view(self.models, -1))


def clustered(rows: Tensor, start: Tensor) -> Tensor:
    """Centres by Lloyd's iteration from `start`, (k, dim); one that no row is nearest to stays where it is.

    Example:
        >>> rows = torch.tensor([[0.0], [1.0], [9.0]])
        >>> clustered(rows, torch.tensor([[2.0], [8.0], [50.0]])).flatten().tolist()
        [0.5, 9.0, 50.0]
    """
    centres, before = start.clone(), None
    for _ in range(LONGEST):
        nearest = _distances(rows, centres).argmin(1)
        if before is not None and torch.equal(nearest, before):
            break
        for number in set(nearest.tolist()):
            centres[number] = rows[nearest == number].mean(0)
        before = nearest
    return centres


def _apart(rows: Tensor, count: int) -> Tensor:
    """So many of the rows, each as far as possible from those before; the first is the farthest from the mean."""
    chosen = [int(_distances(rows, rows.mean(0, keepdim=True)).argmax())]
    while len(chosen) < count:
        chosen.append(int(_distances(rows, rows[chosen]).min(1).values.argmax()))
    return rows[chosen]


def _distances(rows: Tensor, centres: Tensor) -> Tensor:
    """Between each row and each centre, without the rounding of a product of matrices."""
    return torch.cdist(rows, centres, compute_mode="donot_use_mm_for_euclid_dist")
