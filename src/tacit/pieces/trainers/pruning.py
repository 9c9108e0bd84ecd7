"""Which weights are left when a model is pruned, and the simplest way to prune one: train, then drop the smallest.

Reference: Lin et al., ESMFL, 2020, Section 2.3, where this is the baseline (federated average masked pruning).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import ClassVar, Literal, Self

import torch
from torch import Tensor

from tacit.core import DenseRows, Round, Rows, State, View, Wave
from tacit.core.pieces import Content
from tacit.core.wave import Shapes
from tacit.errors import UserError, expect
from tacit.pieces.trainers.sgd import Sgd

Spread = Literal["balanced", "uniform"]
_POWER = {"balanced": 0.5, "uniform": 1.0}


@dataclass(frozen=True, kw_only=True)
class Keep:
    """How many weights of each layer pruning leaves.

    A layer's weights are a parameter of two dimensions or more. Everything else (biases, the scales and shifts of
    normalisation) is left alone and is not counted.

    Args:
        compression: how many times fewer weights are left, over all layers together.
        counts: instead, how many are left in each layer, in the model's order.
        spread: how `compression` is spread over layers. `balanced` leaves √n of a layer's n weights, times one factor
            for all layers and at most all n: small layers, which can spare little, are pruned less. `uniform` prunes
            all layers alike.
        along: how much of the way from all of a layer's n weights to its k that are left: n^(1 − along)·k^along.

    Example:
        >>> lenet = ((20, 1, 5, 5), (20,), (50, 20, 5, 5), (50,), (500, 800), (500,), (10, 500), (10,))
        >>> Keep(compression=87).of(lenet)
        (125, None, 885, None, 3542, None, 396, None)
        >>> Keep(counts=(100, 1750, 2800, 300)).of(lenet)
        (100, None, 1750, None, 2800, None, 300, None)
        >>> Keep(counts=(100, 1750, 2800, 300), along=0.5).of(lenet)
        (224, None, 6614, None, 33466, None, 1225, None)
    """

    compression: float | None = None
    counts: tuple[int, ...] = ()
    spread: Spread = "balanced"
    along: float = 1.0

    def __post_init__(self) -> None:
        expect((self.compression is None) == bool(self.counts), "either compression or counts, and not both")
        expect(self.compression is None or self.compression >= 1, f"compression={self.compression} >= 1")
        expect(all(count >= 1 for count in self.counts), f"counts={self.counts} >= 1")
        expect(self.spread in _POWER, f"spread={self.spread!r} to be 'balanced' or 'uniform'")
        expect(0 <= self.along <= 1, f"along={self.along} in [0, 1]")

    def after(self, rounds: int, *, warm_up: int, approach: int) -> Self | None:
        """What the next round leaves: at first nothing is pruned (None), then ever more, and so much from `warm_up` on.

        Example:
            >>> keep = Keep(compression=87)
            >>> [(k := keep.after(t, warm_up=3, approach=2)) and round(k.along, 2) for t in range(5)]
            [None, 0.33, 0.67, 1.0, 1.0]
        """
        ahead = max(warm_up - rounds, 0)
        return None if ahead > approach else replace(self, along=1 - ahead / (approach + 1))

    def of(self, shapes: Shapes) -> tuple[int | None, ...]:
        """How many numbers are left of each parameter; None: all of them, because it is not pruned."""
        sizes = [prod(shape) for shape in shapes if len(shape) > 1]
        if self.compression is None:
            counts = self._given(sizes)
        else:
            total = max(round(sum(sizes) / self.compression), len(sizes))
            counts = spread_out(total, sizes, _POWER[self.spread])
        left = (round(n ** (1 - self.along) * k**self.along) for n, k in zip(sizes, counts, strict=True))
        return tuple(next(left) if len(shape) > 1 else None for shape in shapes)

    def project(self, rows: Tensor, shapes: Shapes) -> Tensor:
        """The nearest rows that have so few weights: in each layer those of the largest magnitude, zeros elsewhere."""
        parts = torch.split(rows, [prod(shape) for shape in shapes], dim=-1)
        return torch.cat([_largest(part, count) for part, count in zip(parts, self.of(shapes), strict=True)], dim=-1)

    def coordinates(self, pruned: Tensor, shapes: Shapes) -> Tensor:
        """Where a pruned row has weights, and all of what is not pruned, in ascending order.

        Example:
            >>> Keep(counts=(2,)).coordinates(torch.tensor([0.0, 3.0, 0.0, -4.0, 0.0]), ((2, 2), (1,))).tolist()
            [1, 3, 4]
        """
        parts = torch.split(pruned, [prod(shape) for shape in shapes])
        left = [(part != 0) | (count is None) for part, count in zip(parts, self.of(shapes), strict=True)]
        return torch.cat(left).nonzero()[:, 0]

    def _given(self, sizes: Sequence[int]) -> Sequence[int]:
        if len(self.counts) != len(sizes) or any(c > n for c, n in zip(self.counts, sizes, strict=True)):
            raise UserError(
                f"Expected counts for the model's {len(sizes)} layers of {', '.join(map(str, sizes))} weights, "
                f"got {', '.join(map(str, self.counts))}. Give one for each, or give compression."
            )
        return self.counts


def spread_out(total: int, sizes: Sequence[int], power: float) -> list[int]:
    """`total` weights over layers in proportion to size^power, at least one and at most all of each.

    Example:
        >>> spread_out(110, [100, 10000], 0.5), spread_out(101, [100, 10000], 1.0), spread_out(9000, [100, 10000], 0.5)
        ([10, 100], [1, 100], [100, 8900])
    """
    shares = torch.tensor(sizes, dtype=torch.float64) ** power
    low, high = 0.0, float(total)
    for _ in range(200):  # bisection: the sum of what layers get grows with the factor that they share
        factor = (low + high) / 2
        given = [min(max(factor * share, 1), size) for share, size in zip(shares.tolist(), sizes, strict=True)]
        low, high = (factor, high) if sum(given) < total else (low, factor)
    counts = [int(amount) for amount in given]
    remainders = sorted(range(len(sizes)), key=lambda i: counts[i] - given[i])
    for place in remainders[: max(total - sum(counts), 0)]:
        counts[place] = min(counts[place] + 1, sizes[place])
    return counts


@dataclass(frozen=True, kw_only=True)
class MagnitudePrune:
    """Train all weights, then send only the largest of each layer; others are sent as zeros.

    Args:
        sgd: how to descend. Its `sends` must be `weights`.
        keep: how many weights of each layer are sent.
        warm_up: rounds before so few weights are sent, in which clients send all.
        approach: how many of the last rounds of the warm-up already prune, each leaving fewer weights than the one
            before (`Keep.along`).
    """

    sgd: Sgd
    keep: Keep
    warm_up: int = 0
    approach: int = 0
    sends: ClassVar[Content] = "weights"
    masked: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_pruning(self.sgd, self.warm_up, self.approach)

    def train(self, view: View, data: Wave, now: Round) -> Rows:
        """One pruned row per client; as long as nothing is pruned a whole one."""
        rows = self.sgd.train(view, data, now)
        keep = self.keep.after(now.index, warm_up=self.warm_up, approach=self.approach)
        return rows if keep is None else DenseRows(keep.project(rows.dense(), data.shapes))

    def kept(self, shapes: Shapes) -> tuple[int | None, ...]:
        """As `keep` says."""
        return self.keep.of(shapes)

    def pruned(self, state: State, shapes: Shapes) -> Tensor | None:
        """The aggregated model pruned like a client's."""
        return self.keep.project(state.weights, shapes) if state.round > self.warm_up else None


def check_pruning(sgd: Sgd, warm_up: int, approach: int) -> None:
    """What every pruning trainer expects."""
    expect(sgd.sends == "weights", "sgd to send weights: an update is not sparse where weights are")
    expect(warm_up >= 0, f"warm_up={warm_up} >= 0")
    expect(0 <= approach <= warm_up, f"approach={approach} in [0, warm_up={warm_up}]")


def _largest(part: Tensor, count: int | None) -> Tensor:
    """The `count` largest of every row, zeros elsewhere."""
    if count is None or count == part.shape[-1]:
        return part
    kept = part.abs().topk(count, dim=-1, sorted=False).indices
    return torch.zeros_like(part).scatter_(-1, kept, part.gather(-1, kept))
