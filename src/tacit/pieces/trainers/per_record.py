"""Trainers that protect single records by per-record clipping of gradients.

Batches are drawn by Poisson sampling, from the client's own key.
`DpSgd` adds noise to every step, at the client. `RecordGradient` sends the sum of one batch, to which a mechanism adds
noise in shares. Where a task says which records are one person's, persons take the place of records: batches draw
persons, and the mean gradient of a person's records is clipped. Otherwise a person with several has no guarantee.

References: Abadi et al., Deep Learning with Differential Privacy, CCS 2016 (DP-SGD); McMahan et al. 2017 (FedSGD);
Andrew et al., Differentially Private Learning with Adaptive Clipping, NeurIPS 2021.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import exp, log, log1p, sqrt
from typing import ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from tacit.core import ClientRound, DenseRows, Key, MaskedRows, Rows, View, Wave
from tacit.core.interfaces import Trainer
from tacit.core.prices import Gaussian, RecordPrice, RecordSum, Release, Repeated, Sampling, Uncalibrated
from tacit.core.rows import DEPTH, ClippedSum
from tacit.core.schema import instead_of
from tacit.core.standardised import StandardisedLayout
from tacit.errors import ModelError, UserError, at_least, expect, positive, whole, within
from tacit.privacy.noise.sum_grid import DISTANCE, SumGrid, noisy_count

OVERFULL = 2.0**-100  # the largest probability of a batch with more records than the noise provides for
BOUND_RATE = 0.2  # learning rate of a bound that follows a quantile
ADVERSARY = "anyone who sees the client's messages, the server included"


@dataclass(frozen=True, kw_only=True)
class DpSgd(Trainer):
    """DP-SGD within a client: every step clips the gradient of each record, and adds noise to their sum.

    A step draws a batch, each record independently with probability `batch_size / samples`; sums the records'
    gradients, each clipped to `clip` over all trained weights; adds integer-valued Gaussian noise, as `CentralGaussian`
    does to a sum of clients; and divides by the expected size of the batch. An empty batch is a step of noise alone. A
    record whose gradient is not finite, or 2⁶⁰ times longer than `clip`, adds nothing.

    Args:
        lr: learning rate in round 0.
        steps: steps per round; give either this or `epochs`.
        epochs: per round; each is `samples / batch_size` steps, rounded, and at least one.
        batch_size: the expected number of records per step; clients with fewer use all of theirs.
        clip: the largest L2 norm of a record's gradient; longer ones are scaled down to it.
        noise_multiplier: standard deviation of a step's noise over `clip`; None: as much as the method's budget
            requires, computed when the population is known.
        decay: the learning rate of round t is `lr * decay**t`.
        momentum: of the noisy gradients, within a round.
        weight_decay: coefficient of the L2 penalty, which is added after the noise.
        masked: train only the weights under the codec's mask; norms and noise are then those of these weights.
        quantile: the fraction of gradients that should stay unclipped: within a round, beginning at `clip`, the bound
            follows this quantile by noisy counts (Andrew et al. 2021), for which sums get more noise; None: it stays.

    Formal guarantees: adding or removing one record changes a step's sum by at most `clip`, so that a round is a
    sequence of Gaussian mechanisms of `noise_multiplier` on Poisson samples, up to a total variation of 2⁻⁷⁹ each,
    against everybody who sees what the client sends; the number of its records is public. Floating-point errors of
    norms and sums are part of the sensitivity, as in `SumGrid`. With `quantile`, a record changes the count of a step
    by at most ½, and count and sum together are one Gaussian mechanism of `noise_multiplier`. Not covered: the records
    of a batch are computed together, and the last bits of one record's gradient depend on the others.

    Sees: whoever sees the client's message, the trained weights, of which every step was noised.

    Example:
        >>> trainer = DpSgd(lr=0.1, epochs=2, batch_size=64, clip=1.0, noise_multiplier=1.1)
        >>> price = trainer.record_price(samples=640)
        >>> price.times, price.release.sampling.rate
        (20, 0.1)
    """

    lr: float
    steps: int | None = instead_of("epochs")
    epochs: int | None = instead_of("steps")
    batch_size: int
    clip: float
    noise_multiplier: float | None = None
    decay: float = 1.0
    momentum: float = 0.0
    weight_decay: float = 0.0
    masked: bool = False
    quantile: float | None = None
    draws_persons: ClassVar[bool] = True

    def __post_init__(self) -> None:
        positive(lr=self.lr)
        expect((self.steps is None) != (self.epochs is None), "either steps or epochs, and not both")
        whole(1, steps=self.steps, epochs=self.epochs)
        whole(1, batch_size=self.batch_size)
        positive(clip=self.clip)
        positive("Without noise, use Sgd.", noise_multiplier=self.noise_multiplier)
        within("(0, 1]", decay=self.decay)
        within("[0, 1)", momentum=self.momentum)
        at_least(0, weight_decay=self.weight_decay)
        within("(0, 1)", quantile=self.quantile)

    def train(self, view: View, data: Wave, now: ClientRound) -> Rows:
        if self.noise_multiplier is None:
            raise UserError("Expected DpSgd to have a noise multiplier. Give one, or a budget from which it follows.")
        mask = view.mask if self.masked else None
        lr, numbers = self.lr * self.decay**now.index, torch.arange(len(data.clients))
        values = [self._update(view.weights, mask, data.keep(numbers == i), lr, now) for i in numbers.tolist()]
        return _rows(values, view.weights, mask)

    def record_price(self, samples: int) -> RecordPrice:
        """The steps of a client with this many records; the rate of a small client is larger."""
        if self.noise_multiplier is None:
            return Uncalibrated()
        release = Release(
            Gaussian(self.noise_multiplier),
            distance=DISTANCE + (OVERFULL if self.quantile is None else 2 * OVERFULL),
            sampling=Sampling.at(self.rate(samples), "poisson"),
            adversary=ADVERSARY,
        )
        return Repeated(release, self.steps_of(samples))

    def with_noise_multiplier(self, noise: float) -> Self:
        return replace(self, noise_multiplier=noise) if self.noise_multiplier is None else self

    def rate(self, samples: int) -> float:
        """The probability with which each of this many records is in a batch."""
        return min(1.0, self.batch_size / max(samples, 1))

    def steps_of(self, samples: int) -> int:
        """The steps per round of a client with this many records."""
        if self.steps is not None:
            return self.steps
        return max(1, round(samples / self.batch_size)) * (self.epochs or 0)

    def _update(self, start: Tensor, mask: Tensor | None, data: Wave, lr: float, now: ClientRound) -> Tensor:
        """The update of a single client."""
        (client,), (samples,) = data.clients.tolist(), data.units.tolist()
        rate, weights = self.rate(samples), start.clone()
        own = slice(None) if mask is None else mask
        trained, velocity = weights[own], torch.zeros_like(weights[own])
        expected, clip, multiplier = rate * max(samples, 1), self.clip, self.noise_multiplier or 0.0
        counts = None if self.quantile is None else _NoisyQuantile(self.quantile, expected, multiplier)
        largest = largest_batch(samples, rate)
        grid = SumGrid(trained.numel(), largest, multiplier if counts is None else counts.sum_multiplier, DEPTH)
        for step in range(self.steps_of(samples)):
            batch = _batch(now.clients.child("records").of(client).child("step", step), samples, rate, largest)
            (clipped,) = data.clipped_sums(weights, [batch], clip, mask)
            key = now.clients.child("record noise").of(client).child("step", step)
            noisy = grid.release(clipped.total, torch.tensor([clip], dtype=torch.float64), key.stream().bytes)
            direction = noisy.to(trained.dtype).div_(expected)
            clip = clip if counts is None else counts.next_bound(clip, clipped.norms, key.child("count"))
            velocity.mul_(self.momentum).add_(direction).add_(trained, alpha=self.weight_decay)
            trained = trained.sub(velocity, alpha=lr)
            weights[own] = trained
        return trained - start[own]


@dataclass(frozen=True, kw_only=True)
class RecordGradient(Trainer):
    """Minus the sum of the gradients of a Poisson batch, each clipped: the server takes one gradient step.

    A row is that sum, not a mean and without a learning rate: adding or removing one record changes it by at most
    `clip`. Divided by the expected number of records of the cohort and multiplied by the learning rate, the sum of all
    rows is a step of SGD. A mechanism adds noise to it, in shares.

    Args:
        rate: the probability with which each record is in the batch, the same for all clients.
        clip: the largest L2 norm of a record's gradient; longer ones are scaled down to it.
        masked: only the weights under the codec's mask have a gradient.
        moments: for a `StandardisedLinear`, whose centre and scale have no gradient: in the first round the row is the
            sum of the records' moments (`Moments`), of which this is the largest norm; None: of gradients.

    Formal guarantees: none by itself. What a record adds to a row is at most `clip` long, and a record whose gradient
    is not finite, or 2⁶⁰ times longer, adds nothing; floating-point errors are within those that noise on sums provides
    for.

    Sees: whoever sees the message, the sum of a batch without noise. Use a mechanism that adds it.
    """

    rate: float
    clip: float
    masked: bool = False
    moments: float | None = None
    draws_persons: ClassVar[bool] = True

    def __post_init__(self) -> None:
        within("(0, 1]", rate=self.rate)
        positive(clip=self.clip, moments=self.moments)
        expect(
            self.moments is None or (self.rate == 1 and not self.masked),
            f"all records and all weights for moments, got rate={self.rate:g} and masked={self.masked}",
        )

    def train(self, view: View, data: Wave, now: ClientRound) -> Rows:
        mask = view.mask if self.masked else None
        if self.moments is not None:
            layout = _layout_of(data)
            if now.index == 0:
                query = Moments(layout.inputs, layout.outputs, self.moments, self.clip)
                return DenseRows(data.term_sums(query, view.weights))
            mask = layout.trained
        keys = now.clients.child("records")
        batches = [
            _batch(keys.of(client), samples, self.rate)
            for client, samples in zip(data.clients.tolist(), data.units.tolist(), strict=True)
        ]
        sums = data.clipped_sums(view.weights, batches, self.clip, mask)
        if self.moments is not None:
            return _wide_rows(sums, view.weights.shape[-1])
        return _rows([each.total.to(view.weights).neg() for each in sums], view.weights, mask)

    @property
    def record_sum(self) -> RecordSum:
        return RecordSum(self.clip, self.rate, "float32" if self.moments is None else "float64")


@dataclass(frozen=True)
class Moments:
    """A query for the means of inputs, of their squares and of the classes: Σ [x, x², 1, 0 …, y], scaled to a bound.

    The sum has the coordinates of the weights of a `StandardisedLinear`: x where the centre is, x² where the scale is,
    1 at the first weight and y at the biases.

    Attributes:
        inputs: the number of inputs.
        outputs: of outputs.
        largest: the largest norm of a record's moments, before they are scaled.
        bound: the norm to which that is scaled.
    """

    inputs: int
    outputs: int
    largest: float
    bound: float

    @property
    def length(self) -> int:
        """The number of terms: that of the model's weights."""
        return StandardisedLayout(self.inputs, self.outputs).dim

    def terms(self, state: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """The moments of each row; classes are one-hot, and a number is clipped to [0, 1]."""
        layout = StandardisedLayout(self.inputs, self.outputs)
        terms = torch.zeros(len(x), self.length, dtype=torch.float64, device=x.device)
        terms[:, : self.inputs] = x
        terms[:, self.inputs : layout.first] = terms[:, : self.inputs].square()
        terms[:, layout.first] = 1
        labels = y.double().clamp(0, 1) if y.is_floating_point() else F.one_hot(y, self.outputs).double()
        terms[:, -self.outputs :] = labels.view(len(x), -1)
        return terms.mul_(self.bound / self.largest)


def _wide_rows(sums: Sequence[ClippedSum], dim: int) -> Rows:
    """Minus the sums, in float64, at the last coordinates of a row."""
    rows = torch.zeros(len(sums), dim, dtype=torch.float64)
    for row, each in zip(rows, sums, strict=True):
        if not each.wide:
            raise ModelError(
                "Expected gradients in float64 for a trainer with moments, whose noise provides for no others. Use "
                "BinaryCrossEntropy, CrossEntropy without weights or MeanSquared, or a trainer without moments."
            )
        row[-len(each.total) :] = -each.total
    return DenseRows(rows)


def _layout_of(data: Wave) -> StandardisedLayout:
    layout = StandardisedLayout.of(data.shapes)
    if layout is None:
        raise ModelError(
            "Expected a linear model whose inputs the method standardises (StandardisedLinear), for a trainer with "
            "moments. Use the model standardised, or a trainer without moments."
        )
    return layout


@dataclass(frozen=True)
class _NoisyQuantile:
    """A bound that follows a quantile of the norms of gradients, by a noisy count in every step.

    Attributes:
        quantile: the fraction of gradients that should be within the bound.
        expected: the expected size of a batch.
        multiplier: of count and sum together.
    """

    quantile: float
    expected: float
    multiplier: float

    @property
    def count_noise(self) -> float:
        """Standard deviation of the noise on a count: a twentieth of a batch, but little enough of the privacy."""
        return max(self.expected / 20, 2 * self.multiplier)

    @property
    def sum_multiplier(self) -> float:
        """The noise multiplier of the sum, with 1/z² = 1/z_sum² + 1/(2·count_noise)²."""
        return 1 / sqrt(1 / self.multiplier**2 - 1 / (2 * self.count_noise) ** 2)

    def next_bound(self, bound: float, norms: Tensor, key: Key) -> float:
        """The bound of the next step; a record adds +½ to the count if it is within the bound, and −½ otherwise."""
        twice = 2 * int((norms <= bound).sum()) - len(norms)
        within = noisy_count(twice, 2 * self.count_noise, key.stream().bytes) / 2 / self.expected + 0.5
        return min(max(bound * exp(-BOUND_RATE * (within - self.quantile)), 1e-9), 1e9)


@lru_cache(maxsize=1024)
def largest_batch(samples: int, rate: float) -> int:
    """A size that a Poisson batch exceeds with a probability of 2⁻¹⁰⁰ at most, by Chernoff's bound.

    Example:
        >>> largest_batch(60_000, 512 / 60_000), largest_batch(50, 0.5), largest_batch(10, 1.0)
        (799, 50, 10)
    """
    sizes = range(int(samples * rate), samples)
    rare = bisect_left(sizes, True, key=lambda size: _log_tail(size + 1, samples, rate) <= log(OVERFULL))
    return sizes.start + rare


def _log_tail(count: int, samples: int, rate: float) -> float:
    """The logarithm of a bound on P(X ≥ count), for a count above the mean: −n·KL(count / n, rate)."""
    part = count / samples
    if rate == 1 or part > 1:
        return 0.0 if part <= 1 else float("-inf")
    absent = 0.0 if part == 1 else (1 - part) * (log1p(-part) - log1p(-rate))
    return -samples * (part * log(part / rate) + absent)


def _batch(key: Key, samples: int, rate: float, largest: int | None = None) -> Tensor:
    """The positions of the records of a Poisson batch, ascending; no more than the largest batch."""
    return (key.stream().uniform(samples) < rate).nonzero().flatten()[:largest]


def _rows(values: list[Tensor], weights: Tensor, mask: Tensor | None) -> Rows:
    """The clients' values, of all weights or those under the mask, as rows."""
    dim = weights.shape[-1]
    rows = torch.stack(values) if values else weights.new_empty(0, dim if mask is None else len(mask))
    return DenseRows(rows) if mask is None else MaskedRows(rows, mask, dim)
