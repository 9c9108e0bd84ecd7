"""Exact noise on a sum: the sum is rounded to a grid once, and integer noise is added to it.

Gaussian noise in floating point is not the noise of the proof. Which numbers `sum + noise` can be depends on the sum,
so that some outputs are possible for one of two neighbouring sums only, and reveal which of them it was (Mironov 2012).
On a grid, all sums have the same outputs, with probabilities that are known.

Rows are never rounded, only their sum. What rounding and floating-point summation can add to a client's influence is
added to the sensitivity, and so to the noise: `SumGrid` has the proof.

References: Mironov, On Significance of the Least Significant Bits for Differential Privacy, CCS 2012; Kairouz, Liu,
Steinke 2021 (stochastic rounding); Higham, Accuracy and Stability of Numerical Algorithms, Chapters 3 and 4.
"""

from dataclasses import dataclass
from functools import cached_property
from math import ceil, floor, hypot, ldexp, log2, sqrt

import numpy as np
import torch
from torch import Tensor

from tacit.core import DenseRows, Rows
from tacit.errors import expect, positive, whole
from tacit.privacy.noise.discrete import BLOCK, SMOOTHING, ByteSource, DiscreteGaussian, IntegerBound, draw_bytes
from tacit.privacy.noise.lattice import LOG_FAILURE, WAVE, Floats, float_error, rounded_bound

DISTANCE = 2.0**-80  # total variation of a round from its price, for up to 2²⁸ coordinates
MAX_TABLE_SIGMA = 2e4  # the table of wider noise is slow to build: wider noise is a sum of samples
FINE_BITS = 16  # the sum is rounded to steps of 2⁻¹⁶ first, so that stochastic rounding is exact in integers
_LARGEST = 2.0**52  # in fine steps, of a coordinate; sums of up to 2²⁰ rows are smaller
COUNT_SIGMA = 256.0  # noise on a count, in steps of its grid


@dataclass(frozen=True)
class SumGrid:
    """The grid on which a sum of rows is released, in units in which every row is within a ball of radius 1.

    Args:
        dim: number of coordinates.
        rows: the largest number of rows in the sum; public.
        noise_multiplier: standard deviation of the noise, relative to the radius.
        depth: how many additions in float32 follow on each other, if it is not the 128 of rows of clients.

    Formal guarantees: a release is a Gaussian sum of `noise_multiplier`, up to a total variation of 2⁻⁸⁰. Let c be the
    radius in steps, and S and S′ the sums with and without a client, as computed.

    1. Floating point. A clipped row is longer than the radius by a factor of 1 + 2⁻¹⁴ at most: its norm is computed in
       float32 over blocks of 1024 numbers, with a relative error below 514 units of 2⁻²⁴, and factor and product are
       rounded once each. Summing n numbers in any order has an error of at most γₙ = n·u / (1 − n·u) times the sum of
       their magnitudes (Higham, Eq. 4.4). Up to 128 rows are summed with u = 2⁻²⁴ and all else with u = 2⁻⁵³, so a sum
       of m rows is within m·(γ₁₂₈ + γ′ₘ) radii of the exact one, and ‖S − S′‖ ≤ c·(1 + `float_error(m)`) steps. In a
       sum of sums, n is the number of additions that follow on each other, `depth` where it is given.
    2. Fine rounding, to the nearest multiple of 2⁻¹⁶ steps, adds √d·2⁻¹⁶ steps at most.
    3. Stochastic rounding to ⌊x + U⌋, where every coordinate has its own U, uniform on the multiples of 2⁻¹⁶ in [0, 1)
       and independent of the data. With equal U, the rounded sums differ by a D whose coordinates are independent, each
       one of the two integers next to t = x − x′, with mean t. So E‖D‖² ≤ ‖t‖² + d/4. The two squares of a coordinate
       differ by at most 2·|t| + 1, so that by Hoeffding's inequality ‖D‖² ≤ ‖t‖² + d/4 + √(2·ln(1/β))·(‖t‖ + √d/2) but
       for a probability of β = 2⁻¹⁰⁰ at most. The square root of this is Δ, which is `bound.l2`. Two clients, as in
       replace-one adjacency, change the sum by 2·Δ at most.
    4. Noise. Given U, an integer vector that changes by at most Δ gets discrete Gaussian noise of variance (z·Δ)² + s².
       That is a rounding of the continuous Gaussian sum of multiplier z (`DiscreteGaussian.continuous`).

    Radius and steps are public, so multiplying by a step is post-processing. `distance` adds up β, the error of the
    noise's table and that of step 4.

    Not covered: rows are taken as given. A simulation computes the rows of a wave together, and sums factored rows
    without computing each of them; then the last bits of a row depend on the other clients of its wave.

    Example:
        >>> grid = SumGrid(dim=3, rows=10, noise_multiplier=1.0)
        >>> grid.inflation < 0.005, grid.distance < 2**-80
        (True, True)
    """

    dim: int
    rows: int
    noise_multiplier: float
    depth: int | None = None

    def __post_init__(self) -> None:
        whole(1, 1 << 28, dim=self.dim)
        whole(0, 1 << 20, rows=self.rows)
        positive(noise_multiplier=self.noise_multiplier)

    @property
    def steps(self) -> float:
        """The radius in steps: so many that rounding costs little noise, but if possible no more than a table has."""
        fine, coarse = max(2048.0, 8 * sqrt(self.dim)), max(128.0, 2 * sqrt(self.dim))
        return max(coarse, min(fine, 0.9 * MAX_TABLE_SIGMA / self.noise_multiplier))

    @cached_property
    def bound(self) -> IntegerBound:
        """The bound on one client's influence, in steps: rounding and floating point included."""
        largest = self.steps * (1 + float_error(self.rows, self.depth)) + ldexp(sqrt(self.dim), -FINE_BITS)
        return rounded_bound(largest, self.dim, LOG_FAILURE)

    @property
    def inflation(self) -> float:
        """By how much rounding and floating point increase the noise."""
        return hypot(self.noise_multiplier * self.bound.l2, SMOOTHING) / (self.noise_multiplier * self.steps) - 1

    @cached_property
    def noise(self) -> DiscreteGaussian:
        """The noise of one sample; `samples` of them are added to every coordinate."""
        return DiscreteGaussian.for_shares(self.noise_multiplier, self.bound, self.samples)

    @property
    def samples(self) -> int:
        """The number of samples whose sum is the noise of a coordinate."""
        return _samples(self.noise_multiplier * self.bound.l2)

    @property
    def distance(self) -> float:
        """An upper bound on the total variation between a release and a sum with Gaussian noise."""
        sampling = self.dim * self.samples * self.noise.table.error
        return ldexp(1, -100) + sampling + self.noise.continuous(self.samples, self.bound).distance

    def release(self, total: Tensor, radius: Tensor, source: ByteSource) -> Tensor:
        """The sum with noise: integer multiples of `radius / steps`, rounded to float32 as the last step.

        Args:
            total: the sum of the rows.
            radius: the bound of every coordinate, or of all of them: rows divided by it have norm 1 at most.
            source: randomness that must be secret.
        """
        expect(self.distance <= DISTANCE, f"noise within 2^-80 of Gaussian noise, not {self.distance:.1g}")
        values = total.detach().reshape(-1).cpu().numpy()
        step = radius.detach().reshape(-1).double().cpu().numpy() / self.steps
        fine_steps = np.divide(ldexp(1, FINE_BITS), step, out=np.zeros_like(step), where=step > 0)
        released = np.empty(values.shape, np.float32)
        for begin in range(0, self.dim, BLOCK):
            part = slice(begin, begin + BLOCK)
            own = part if len(step) > 1 else slice(None)
            integers = round_stochastically(values[part] * fine_steps[own], source)
            for _ in range(self.samples):
                integers += self.noise.table.sample(len(integers), source)
            np.multiply(integers, step[own], out=released[part])
        return torch.from_numpy(released).view(total.shape).to(total.device)


def round_stochastically(fine: Floats, source: ByteSource) -> Floats:
    """Steps, from values in fine steps: these are rounded to the nearest integers, and then up or down at random.

    All numbers are integers below 2⁵³, or multiples of 2⁻¹⁶ below 2³⁷, which float64 holds exactly.
    """
    values = np.fmax(fine, -_LARGEST)
    np.fmin(values, _LARGEST, out=values)
    np.rint(values, out=values)
    values += np.frombuffer(draw_bytes(source, 2 * len(values)), "<u2")
    values *= ldexp(1, -FINE_BITS)
    return np.floor(values, out=values)


def noisy_count(count: int, deviation: float, source: ByteSource) -> float:
    """An integer with discrete Gaussian noise.

    Formal guarantees: if a client changes the count by at most 1, this is a Gaussian sum of multiplier `deviation`, up
    to a total variation of 2⁻¹⁰⁰. An integer is on the grid, which is finer than the noise, and need not be rounded.

    Example:
        >>> import os
        >>> abs(noisy_count(7, 1e-3, os.urandom) - 7) < 0.02
        True
    """
    steps = 1 << max(0, floor(log2(COUNT_SIGMA / deviation)))
    bound, samples = IntegerBound(steps**2, 1), _samples(deviation * steps)
    noise = DiscreteGaussian.for_shares(deviation, bound, samples)
    return (count * steps + int(noise.table.sample(samples, source).sum())) / steps


def _samples(sigma: float) -> int:
    """The number of samples whose sum has this standard deviation."""
    return ceil((hypot(sigma, SMOOTHING) / MAX_TABLE_SIGMA) ** 2)


@dataclass(frozen=True, eq=False)
class WideSums:
    """Rows whose sum is in float64: that of many rows, or of a few float32 sums of them."""

    rows: Rows

    @property
    def count(self) -> int:
        return self.rows.count

    @property
    def dim(self) -> int:
        return self.rows.dim

    @property
    def dtype(self) -> torch.dtype:
        return self.rows.dtype

    def norms(self) -> Tensor:
        return self.rows.norms()

    def scaled(self, factors: Tensor) -> "WideSums":
        return WideSums(self.rows.scaled(factors))

    def layer_norms(self, layers: tuple[int, ...]) -> Tensor:
        return self.rows.layer_norms(layers)

    def layer_scaled(self, factors: Tensor, layers: tuple[int, ...]) -> "WideSums":
        return WideSums(self.rows.layer_scaled(factors, layers))

    def keep(self, which: Tensor) -> "WideSums":
        return WideSums(self.rows.keep(which))

    def select(self, coordinates: Tensor) -> "WideSums":
        return WideSums(self.rows.select(coordinates))

    def sum(self) -> Tensor:
        if isinstance(self.rows, DenseRows) or self.count > WAVE:
            return self.rows.dense().sum(0, dtype=torch.float64)
        return self.rows.sum().double()

    def dense(self) -> Tensor:
        return self.rows.dense()
