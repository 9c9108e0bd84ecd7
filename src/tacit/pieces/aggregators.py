"""Aggregators: how many messages become one model, or k. The neutral one, `Mean`, is in `tacit.core`."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from tacit.core import BoundedMessages, Mean, State, Sum
from tacit.core.interfaces import Aggregator, Summation
from tacit.core.neutral import sum_messages
from tacit.core.prices import Unit
from tacit.errors import whole

__all__ = ["KMeans", "Mean", "Total", "WeightedMean"]
MAX_ITERATIONS = 300  # of k-means, as in scikit-learn


@dataclass(frozen=True)
class Total(Aggregator):
    """The sum of the messages: that of clients that deliver, and not an estimate of what the others would have sent."""

    requires: ClassVar[Summation] = "sum"
    bounded_for: ClassVar[tuple[Unit, ...]] = tuple(Unit)

    def combine(self, bounded: BoundedMessages, state: State) -> Sum:
        return sum_messages(bounded)

    def finish(self, total: Sum) -> Tensor:
        return total.total


@dataclass(frozen=True)
class WeightedMean(Aggregator):
    """The mean weighted by each client's number of samples, which the server therefore learns."""

    requires: ClassVar[Summation] = "weighted sum"

    def combine(self, bounded: BoundedMessages, state: State) -> Sum:
        samples, rows = bounded.messages.samples, bounded.messages.rows
        assert samples is not None  # `make_messages` attaches them
        squared_norms = float((rows.norms().double().square() * samples).sum())
        return bounded.summed(rows.scaled(samples).sum(), float(samples.sum()), squared_norms)


@dataclass(frozen=True)
class KMeans(Aggregator):
    """Cluster the clients' models by k-means on the server; the centre of each cluster is a hypothesis.

    Centres start at the hypotheses, so clusters keep their numbers from round to round. A hypothesis with an empty
    cluster does not change. (scikit-learn would move it to the farthest message, and a group that misses one round
    would lose its model. If no cluster is empty, the result equals scikit-learn's.)

    Args:
        models: number of clusters, and of hypotheses.
        warm_up: number of rounds in which all messages form one cluster; the last of these rounds initialises the
            hypotheses at the clusters of its messages. 0: hypotheses start from their initial weights, as in the
            paper. With random initial weights, one hypothesis may fit every client best, and the others are then
            never chosen.

    Reference: Galli et al. 2023, Algorithm 1, lines 9 and 10.
    """

    models: int = 2
    warm_up: int = 0

    def __post_init__(self) -> None:
        whole(1, models=self.models)
        whole(0, warm_up=self.warm_up)

    def combine(self, bounded: BoundedMessages, state: State) -> Sum:
        """The new hypotheses, from all messages of a round at once, and the variance within clusters."""
        rows = bounded.messages.rows.dense()
        if len(rows) == 0:
            return Sum(state.weights, 0.0)
        centres = self._centres(rows, state)
        within = float(_distances(rows, centres).min(1).values.double().square().mean())
        squared_norms = float(centres.double().square().sum()) + len(centres) * within
        return Sum(centres.view_as(state.weights), 1.0, squared_norms=squared_norms)

    def finish(self, total: Sum) -> Tensor:
        return total.total

    def _centres(self, rows: Tensor, state: State) -> Tensor:
        if state.round + 1 < self.warm_up:
            return rows.mean(0).expand(self.models, -1).contiguous()
        last = state.round + 1 == self.warm_up
        return k_means(rows, _farthest_first(rows, self.models) if last else state.weights.view(self.models, -1))


def k_means(rows: Tensor, start: Tensor) -> Tensor:
    """Cluster centres by Lloyd's iteration from `start`, (k, dim); the centre of an empty cluster does not move.

    Example:
        >>> rows = torch.tensor([[0.0], [1.0], [9.0]])
        >>> k_means(rows, torch.tensor([[2.0], [8.0], [50.0]])).flatten().tolist()
        [0.5, 9.0, 50.0]
    """
    centres, previous = start.clone(), None
    for _ in range(MAX_ITERATIONS):
        nearest = _distances(rows, centres).argmin(1)
        if previous is not None and torch.equal(nearest, previous):
            break
        for cluster in set(nearest.tolist()):
            centres[cluster] = rows[nearest == cluster].mean(0)
        previous = nearest
    return centres


def _farthest_first(rows: Tensor, count: int) -> Tensor:
    """`count` rows by farthest-first traversal, starting with the one farthest from the mean."""
    chosen = [int(_distances(rows, rows.mean(0, keepdim=True)).argmax())]
    while len(chosen) < count:
        chosen.append(int(_distances(rows, rows[chosen]).min(1).values.argmax()))
    return rows[chosen]


def _distances(rows: Tensor, centres: Tensor) -> Tensor:
    """(rows, centres), computed without matrix products, which would lose precision."""
    return torch.cdist(rows, centres, compute_mode="donot_use_mm_for_euclid_dist")
