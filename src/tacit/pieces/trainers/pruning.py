"""Pruned models: how many weights of each layer remain, and two ways to train them.

`MagnitudePrune` trains all weights and drops the smallest, the paper's baseline (federated average masked pruning).
`AdmmPrune` trains by the alternating direction method of multipliers (Equations 1 to 4). To minimise the loss over
weights W under a limit on the non-zero weights per layer, copies Z satisfy the limit, and duals U accumulate the
difference::

    W ← argmin loss(W) + ρ/2·‖W − Z + U‖²      some gradient steps on the client's data, usually one epoch
    Z ← Π(W + U)                               the largest magnitudes of each layer
    U ← U + W − Z

A client's round starts at Z = Π(W), U = 0, repeats the three a few times, and sends Π(W). The penalty makes the
remaining weights learn what the others would have contributed.

Each final projection still loses some of it. So after some rounds the mask may be frozen, with either trainer, as Zhang
et al. freeze it before they retrain: only the weights that the aggregated model has are trained from then on.

The penalty coefficient follows from one number that does not depend on model, learning rate or batch size: the fraction
of the distance to Z − U that weights move per step. One gradient step on the penalty moves them by lr·ρ of the
distance, and momentum m multiplies steps by 1/(1 − m), so ρ = fraction·(1 − m)/lr. Any fraction below 1 is stable.
After n steps, (1 − fraction)ⁿ of a weight remains whose target is zero and whose gradient vanishes: 55 % for a fraction
of 0.01 and 60 steps.

Reference: Lin et al., ESMFL: Efficient and Secure Models for Federated Learning, 2020, Section 2.3; Zhang et al., A
Systematic DNN Weight Pruning Framework using Alternating Direction Method of Multipliers, ECCV 2018.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import ClassVar, Literal, Self, get_args

import torch
from torch import Tensor

from tacit.core import ClientRound, DenseRows, Descent, ProximalTerm, Rows, State, View, Wave
from tacit.core.interfaces import Payload, Trainer
from tacit.core.schema import instead_of
from tacit.core.wave import Shapes
from tacit.errors import UserError, at_least, expect, one_of, whole, within
from tacit.pieces.trainers.local import Sgd

AcrossLayers = Literal["balanced", "uniform"]
_POWER = {"balanced": 0.5, "uniform": 1.0}


@dataclass(frozen=True, kw_only=True)
class Keep:
    """How many weights of each layer remain after pruning.

    A layer's weights are a parameter of two dimensions or more. All other parameters (biases, scales and shifts of
    normalisation) are neither pruned nor counted.

    Args:
        compression: the compression ratio, over the weights of all layers together.
        counts: instead, the number of weights that remain in each layer, in the model's order.
        across_layers: how `compression` is distributed. `balanced` keeps √n of a layer's n weights, times one factor
            for all layers, at most all n: small layers, which have little redundancy, are pruned less. `uniform`
            prunes all layers by the same ratio.
        progress: how far gradual pruning has come, from 0 to 1: of a layer's n weights, n^(1 − progress)·k^progress
            remain on the way to k.

    Example:
        >>> lenet = ((20, 1, 5, 5), (20,), (50, 20, 5, 5), (50,), (500, 800), (500,), (10, 500), (10,))
        >>> Keep(compression=87).layer_counts(lenet)
        (125, None, 885, None, 3542, None, 396, None)
        >>> Keep(counts=(100, 1750, 2800, 300)).layer_counts(lenet)
        (100, None, 1750, None, 2800, None, 300, None)
        >>> Keep(counts=(100, 1750, 2800, 300), progress=0.5).layer_counts(lenet)
        (224, None, 6614, None, 33466, None, 1225, None)
    """

    compression: float | None = instead_of("counts")
    counts: tuple[int, ...] = instead_of("compression", default=())
    across_layers: AcrossLayers = "balanced"
    progress: float = 1.0

    def __post_init__(self) -> None:
        expect((self.compression is None) == bool(self.counts), "either compression or counts, and not both")
        at_least(1, compression=self.compression)
        for each in self.counts:
            whole(1, counts=each)
        one_of(get_args(AcrossLayers), across_layers=self.across_layers)
        within("[0, 1]", progress=self.progress)

    def at_round(self, index: int, *, warm_up: int, ramp: int) -> Self | None:
        """The pruning of round `index`: None before the ramp, gradual in it, and full from round `warm_up` on.

        Example:
            >>> keep = Keep(compression=87)
            >>> [(k := keep.at_round(t, warm_up=3, ramp=2)) and round(k.progress, 2) for t in range(5)]
            [None, 0.33, 0.67, 1.0, 1.0]
        """
        ahead = max(warm_up - index, 0)
        return None if ahead > ramp else replace(self, progress=1 - ahead / (ramp + 1))

    def layer_counts(self, shapes: Shapes) -> tuple[int | None, ...]:
        """How many numbers of each parameter remain; None: the parameter is not pruned."""
        sizes = [prod(shape) for shape in shapes if len(shape) > 1]
        if self.compression is None:
            counts = self._check_counts(sizes)
        else:
            total = max(round(sum(sizes) / self.compression), len(sizes))
            counts = allocate(total, sizes, _POWER[self.across_layers])
        remaining = (round(n ** (1 - self.progress) * k**self.progress) for n, k in zip(sizes, counts, strict=True))
        return tuple(next(remaining) if len(shape) > 1 else None for shape in shapes)

    def project(self, rows: Tensor, shapes: Shapes) -> Tensor:
        """The nearest pruned rows: the largest magnitudes of each layer, zeros elsewhere."""
        parts = torch.split(rows, [prod(shape) for shape in shapes], dim=-1)
        counts = self.layer_counts(shapes)
        return torch.cat([_largest(part, count) for part, count in zip(parts, counts, strict=True)], dim=-1)

    def mask(self, pruned: Tensor, shapes: Shapes) -> Tensor:
        """The coordinates of a pruned row's non-zero weights and of all parameters that are not pruned, ascending.

        Example:
            >>> Keep(counts=(2,)).mask(torch.tensor([0.0, 3.0, 0.0, -4.0, 0.0]), ((2, 2), (1,))).tolist()
            [1, 3, 4]
        """
        parts = torch.split(pruned, [prod(shape) for shape in shapes])
        counts = self.layer_counts(shapes)
        trained = [(part != 0) | (count is None) for part, count in zip(parts, counts, strict=True)]
        return torch.cat(trained).nonzero()[:, 0]

    def _check_counts(self, sizes: Sequence[int]) -> Sequence[int]:
        if len(self.counts) != len(sizes) or any(c > n for c, n in zip(self.counts, sizes, strict=True)):
            raise UserError(
                f"Expected counts for the model's {len(sizes)} layers of {', '.join(map(str, sizes))} weights, "
                f"got {', '.join(map(str, self.counts))}. Give one count per layer, or give compression."
            )
        return self.counts


@dataclass(frozen=True, kw_only=True)
class _Prune(Trainer):
    """Warm-up, gradual and full pruning, and finally a frozen mask: what both ways of pruning have in common."""

    sgd: Sgd
    keep: Keep
    warm_up: int = 0
    ramp: int = 0
    freeze_after: int | None = None
    sends: ClassVar[Payload] = "weights"

    def __post_init__(self) -> None:
        expect(self.sgd.sends == "weights", "sgd to send weights: updates of a sparse model are not sparse")
        whole(0, warm_up=self.warm_up, freeze_after=self.freeze_after, ramp=self.ramp)
        expect(self.ramp <= self.warm_up, f"ramp={self.ramp} <= warm_up={self.warm_up}")
        expect(
            self.freeze_after is None or self.freeze_after >= self.warm_up,
            f"freeze_after={self.freeze_after} >= warm_up={self.warm_up}",
            "There is no mask to freeze before the end of the warm-up.",
        )

    @abstractmethod
    def solve(self, view: View, data: Wave, now: ClientRound, keep: Keep) -> Tensor:
        """Every client's trained weights, not yet pruned, (clients, dim)."""

    def train(self, view: View, data: Wave, now: ClientRound) -> Rows:
        """One pruned row per client; before the ramp, whole models."""
        keep = self.keep.at_round(now.index, warm_up=self.warm_up, ramp=self.ramp)
        if keep is None:
            return self.sgd.train(view, data, now)
        if self.freeze_after is not None and now.index >= self.freeze_after:
            return self._train_masked(view, data, now)
        return DenseRows(keep.project(self.solve(view, data, now, keep), data.shapes))

    def weight_counts(self, shapes: Shapes) -> tuple[int | None, ...]:
        return self.keep.layer_counts(shapes)

    def variants(self, state: State) -> Mapping[str, Tensor]:
        """After the warm-up, the model pruned to as many weights as a client sends."""
        return {"pruned": self.keep.project(state.weights, state.shapes)} if state.round > self.warm_up else {}

    def _train_masked(self, view: View, data: Wave, now: ClientRound) -> Rows:
        """One row per client, trained under the frozen mask."""
        start = self.keep.project(view.weights, data.shapes)
        mask = self.keep.mask(start, data.shapes)
        return DenseRows(data.descend(start, replace(self.sgd.descent(now), mask=mask)).dense() + start)


@dataclass(frozen=True, kw_only=True)
class MagnitudePrune(_Prune):
    """Train all weights, then send only the largest of each layer; the others are sent as zeros.

    Args:
        sgd: the local SGD. Its `sends` must be `weights`.
        keep: how many weights of each layer are sent.
        warm_up: number of rounds before full pruning.
        ramp: how many of the last rounds of the warm-up already prune, each keeping fewer weights than the one before
            (`Keep.progress`); in the rounds before, clients send whole models.
        freeze_after: number of rounds, warm-up included, after which the mask is frozen: clients then train only the
            largest weights of the model that they receive. None: never.
    """

    def solve(self, view: View, data: Wave, now: ClientRound, keep: Keep) -> Tensor:
        return self.sgd.train(view, data, now).dense()


@dataclass(frozen=True, kw_only=True)
class AdmmPrune(_Prune):
    """ADMM pruning: train towards few weights and send only these, at most as many per layer as `keep` allows.

    Args:
        sgd: the local SGD. Its `sends` must be `weights`; momentum restarts at zero after each update of Z and U.
        keep: how many weights of each layer are sent.
        warm_up: number of rounds before full pruning.
        ramp: how many of the last rounds of the warm-up already prune, each keeping fewer weights than the one before
            (`Keep.progress`); in the rounds before, clients train as usual and send whole models.
        freeze_after: number of rounds, warm-up included, after which the mask is frozen: clients then train only the
            largest weights of the model that they receive. None: never.
        penalty: the fraction of the distance to Z − U that weights move per step. It determines the penalty
            coefficient ρ = penalty·(1 − momentum)/lr.
        updates: how often Z and U are updated in a round, each time after an equal part of the training; None: after
            every epoch.
    """

    penalty: float = 0.01
    updates: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        within("(0, 1)", penalty=self.penalty)
        length, updates = self.sgd.steps or self.sgd.epochs or 0, self.updates
        if updates is None:
            expect(self.sgd.epochs is not None, "updates to be given for training in steps", "Give updates or epochs.")
        else:
            whole(1, updates=updates)
            expect(length % updates == 0, f"updates={updates} to divide the {length} steps or epochs of a round")

    def solve(self, view: View, data: Wave, now: ClientRound, keep: Keep) -> Tensor:
        """Every client's W after the last update, close to a pruned model but not yet pruned, (clients, dim)."""
        descent, shapes, rows = self._part(now), data.shapes, view.weights
        strengths = tuple(0.0 if count is None else self.rho(descent.lr) for count in keep.layer_counts(shapes))
        target = keep.project(rows, shapes).expand(len(data.clients), -1)
        dual = torch.zeros_like(target)
        for update in range(self._updates):
            step = replace(descent, keys=descent.keys.child("update", update), proximal=ProximalTerm(target, strengths))
            rows = data.descend(rows, step).dense().add(rows)
            dual = dual + rows
            copies = keep.project(dual, shapes)
            dual = dual - copies
            target = copies - dual
        return rows

    def rho(self, lr: float) -> float:
        """The penalty coefficient ρ at a learning rate.

        Example:
            >>> sgd = Sgd(lr=0.02, epochs=5, momentum=0.5, sends="weights")
            >>> AdmmPrune(sgd=sgd, keep=Keep(compression=10), penalty=0.01).rho(0.02)
            0.25
        """
        return self.penalty * (1 - self.sgd.momentum) / lr

    @property
    def _updates(self) -> int:
        return self.updates or self.sgd.epochs or 0

    def _part(self, now: ClientRound) -> Descent:
        """The local training between two updates of Z and U."""
        descent = self.sgd.descent(now)
        steps, epochs = (None if n is None else n // self._updates for n in (descent.steps, descent.epochs))
        return replace(descent, steps=steps, epochs=epochs)


def allocate(total: int, sizes: Sequence[int], power: float) -> list[int]:
    """Distribute `total` weights over layers in proportion to size^power, at least one and at most all of each.

    Example:
        >>> allocate(110, [100, 10000], 0.5), allocate(101, [100, 10000], 1.0), allocate(9000, [100, 10000], 0.5)
        ([10, 100], [1, 100], [100, 8900])
    """
    shares = torch.tensor(sizes, dtype=torch.float64) ** power
    low, high = 0.0, float(total)
    for _ in range(200):  # bisection: the sum of the amounts increases with the common factor
        factor = (low + high) / 2
        amounts = [min(max(factor * share, 1), size) for share, size in zip(shares.tolist(), sizes, strict=True)]
        low, high = (factor, high) if sum(amounts) < total else (low, factor)
    counts = [int(amount) for amount in amounts]
    by_remainder = sorted(range(len(sizes)), key=lambda i: counts[i] - amounts[i])
    for layer in by_remainder[: max(total - sum(counts), 0)]:
        counts[layer] = min(counts[layer] + 1, sizes[layer])
    return counts


def _largest(part: Tensor, count: int | None) -> Tensor:
    """The `count` largest magnitudes of every row, zeros elsewhere."""
    if count is None or count == part.shape[-1]:
        return part
    kept = part.abs().topk(count, dim=-1, sorted=False).indices
    return torch.zeros_like(part).scatter_(-1, kept, part.gather(-1, kept))
