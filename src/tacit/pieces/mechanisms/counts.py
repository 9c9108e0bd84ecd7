"""Discrete Laplace noise on counts, added by the clients in shares: pure ε, for queries with one cell for each unit.

The discrete Laplace distribution is the difference of two geometric ones, and a geometric variable is the sum of n
Pólya variables (negative binomial, of shape 1/n): so that noise can be added in shares, exactly, on integers. Shares
that were sized for all clients would not be private at all once one is missing. They are sized for those that remain
after the tolerated losses and are not colluding, and the surplus of the others is removed as that of Gaussian shares
(`tacit.core.rows`).

Where a unit is in one cell, a sum changes by 1 in one number. Laplace noise of scale 1/ε then is far smaller than
Gaussian noise for the same ε and any small δ.

References: Ghosh, Roughgarden, Sundararajan 2009 (geometric mechanism); Goryczka, Xiong 2017 (Pólya shares); Balle
et al. 2020 (infinite divisibility).
"""

from dataclasses import dataclass, replace
from math import exp, log, sqrt
from typing import ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from tacit.core import (
    BoundedMessages,
    ClientRound,
    DenseRows,
    GridStep,
    Key,
    Messages,
    Round,
    ServerRound,
    State,
    Sum,
    Turnout,
    View,
    Wave,
)
from tacit.core.interfaces import Mechanism, Visibility
from tacit.core.prices import AggregateNoise, Laplace, Price, RecordSums, Release, Uncalibrated, Unit
from tacit.errors import expect, positive, whole, within
from tacit.pieces.mechanisms.arithmetic import INTEGER_DISTANCE, SharedNoise, heavy_norm_limit, size_of
from tacit.pieces.mechanisms.clipping import TermClip
from tacit.pieces.mechanisms.gaussian import DistributedGaussian
from tacit.privacy.noise.polya import polya_difference
from tacit.wire.frames import Part, Parts


@dataclass(frozen=True)
class Counts:
    """The arithmetic of counts: whole numbers, which need no rounding, and Pólya shares of discrete Laplace noise.

    Formal guarantees: up to a total variation of 2⁻⁶², the sum of counts has discrete Laplace noise of the declared
    scale, in every number: ε = 1/scale for a unit in one cell. With fewer shares than those it is not private.
    """

    bits: ClassVar[int | None] = 32

    def norm_limit(self, like: Sum | Messages, noise: SharedNoise, count: float, rows: int, now: Round) -> float:
        """The noise of a number is a difference of two negative binomial variables of shape s and ratio p = e^(−1/b).

        Its variance is 2sp/(1 − p)², its fourth cumulant 2sp(1 + 4p + p²)/(1 − p)⁴; it is larger than (L + K)/t with a
        probability of at most 2e^-L, where K = s·ln((1 − p)²/((1 − pe^t)(1 − pe^-t))), here for t = 0.9/b (Chernoff).
        """
        (dim, bits), shape = size_of(like), count / noise.of_cohort(now.cohort)
        rate, tail = 1 / noise.multiplier, log(2 * dim) + (bits + 1) * log(2)
        p, t = exp(-rate), 0.9 * rate
        second = 2 * shape * p / (1 - p) ** 2
        fourth = 3 * second**2 + 2 * shape * p * (1 + 4 * p + p**2) / (1 - p) ** 4
        moment = shape * (2 * log(1 - p) - log(1 - exp(t - rate)) - log(1 - exp(-t - rate)))
        largest = (tail + moment) / t
        return heavy_norm_limit(rows * noise.row_bound.whole, (second, fourth), largest, dim, bits)

    def encode(self, messages: Messages, noise: SharedNoise, now: ClientRound) -> Messages:
        """The counts, each limited to the most units of a client; a row that is not finite becomes zeros."""
        most = float(noise.records or 1)
        counts = messages.rows.dense().double().nan_to_num(0.0, 0.0, 0.0).round().clamp(0.0, most)
        return replace(messages, rows=DenseRows(counts), grid_step=GridStep(1.0))

    def draw(self, like: Tensor, noise: SharedNoise, count: float, key: Key, now: Round) -> Tensor:
        """The sum of `count` shares: a difference of two Pólya variables of this part of the shape."""
        shape = count / noise.of_cohort(now.cohort)
        drawn = polya_difference(noise.multiplier, shape, like.numel(), key.stream().bytes)
        return torch.from_numpy(drawn.astype(np.float64)).to(like.device).view(like.shape)

    def release(self, multiplier: float, part: float) -> Release | None:
        """Pure ε, if all shares are there; without one of them, nothing is private."""
        return Release(Laplace(multiplier), INTEGER_DISTANCE) if multiplier > 0 and part >= 1 else None


@dataclass(frozen=True, kw_only=True)
class DistributedLaplace(Mechanism):
    """Discrete Laplace noise on counts, which clients add in shares; only the noisy sum is revealed.

    Args:
        units: the most records, or persons, of any client; public. Larger counts are limited to it.
        noise_multiplier: the scale of the noise, 1/ε; None: what the method's budget requires.
        dropouts: the fraction of a cohort that may be lost. If more are, there is no sum.
        colluding: the fraction of a cohort that may disclose its share of the noise to the adversary.
        single_draw: draw all shares of a round as one sample of the same distribution, which is faster in simulations.

    Formal guarantees: a record, or a person, in one cell at most (`QuerySum(cells=True)`) changes the sum by 1 in one
    number, so that a round is ε-differentially private with ε = 1/`noise_multiplier`, if no more than the given
    fractions are lost or collude. It requires a channel that reveals only the sum, and clients that add their noise.

    Sees: the server and recipients of the result, the noisy sum; colluding clients can subtract their own shares.
    """

    units: int
    noise_multiplier: float | None = None
    dropouts: float = 0.0
    colluding: float = 0.0
    single_draw: bool = True
    requires: ClassVar[Visibility] = "only the sum"
    bounded_for: ClassVar[tuple[Unit, ...]] = tuple(Unit)
    reads: ClassVar[tuple[Part, ...]] = (Part.BOUND,)
    bits: ClassVar[int | None] = 32
    record_bound: ClassVar[float | None] = 1.0
    record_sums: ClassVar[RecordSums] = "cells"

    def __post_init__(self) -> None:
        whole(1, units=self.units)
        positive("Without noise, use NoNoise.", noise_multiplier=self.noise_multiplier)
        within("[0, 1)", dropouts=self.dropouts, colluding=self.colluding)
        expect(self.dropouts + self.colluding < 1, f"dropouts + colluding = {self.dropouts + self.colluding} < 1")

    @property
    def row_bound(self) -> float:
        return float(self.units)

    @property
    def in_shares(self) -> DistributedGaussian:
        """How shares are drawn, added and removed: the same for noise of every distribution."""
        return DistributedGaussian(
            clip=TermClip(1.0, self.units),
            noise_multiplier=self.noise_multiplier,
            dropouts=self.dropouts,
            colluding=self.colluding,
            arithmetic=Counts(),
            single_draw=self.single_draw,
        )

    @property
    def shape(self) -> float:
        """The shape of all noise in a sum, of which 1 is protected and the rest is what colluding clients know."""
        return (1 - self.dropouts) / (1 - self.dropouts - self.colluding)

    def price(self, index: int, turnout: Turnout | None = None) -> Price:
        return Uncalibrated() if self.noise_multiplier is None else self.in_shares.price(index, turnout)

    def aggregate_noise(self, state: State, expected_cohort: float) -> AggregateNoise | None:
        if self.noise_multiplier is None:
            return None
        kept = exp(-1 / self.noise_multiplier)
        return AggregateNoise(self.row_bound, sqrt(2 * self.shape * kept) / (1 - kept) / expected_cohort)

    def with_noise_multiplier(self, noise: float) -> Self:
        return replace(self, noise_multiplier=noise)

    def broadcast_parts(self, state: State) -> Parts:
        return self.in_shares.broadcast_parts(state)

    def check_broadcast(self, view: View) -> None:
        self.in_shares.check_broadcast(view)

    def at_client(self, messages: Messages, view: View, data: Wave, now: ClientRound) -> Messages:
        return self.in_shares.at_client(messages, view, data, now)

    def before_sum(self, messages: Messages, state: State) -> BoundedMessages:
        return self.in_shares.before_sum(messages, state)

    def after_sum(self, total: Sum, now: ServerRound) -> Sum:
        return self.in_shares.after_sum(total, now)

    def max_sum(self, total: Sum, now: ServerRound) -> float | None:
        return self.in_shares.max_sum(total, now)

    def max_row(self, messages: Messages, state: State, now: Round) -> float | None:
        return self.in_shares.max_row(messages, state, now)
