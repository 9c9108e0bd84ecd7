"""Rows on an integer grid: clipped, rounded, with integer noise, and summed modulo 2^b.

Sums of integers are exact in any order, and the noise is sampled exactly, so the release is exactly what is accounted.
Continuous Gaussian noise that every client rounds would not do: Σ round(x + z) is not a function of Σ (x + z).

Reference: Kairouz, Liu, Steinke. The Distributed Discrete Gaussian Mechanism for Federated Learning with Secure
Aggregation. ICML 2021, Algorithms 1 to 3; without the rotation, which a ring of 2³² does not need.
"""

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from math import ceil, floor, isqrt, ldexp, log, log2, sqrt

import numpy as np
import numpy.typing as npt

from tacit.core.prices import Zcdp
from tacit.errors import TacitError, UserError, expect, positive, whole, within
from tacit.privacy.noise.discrete import BLOCK, ByteSource, DiscreteGaussian, IntegerBound, IntegerNoise, Integers

Floats = npt.NDArray[np.float64]
Ring = npt.NDArray[np.uint32]

MIN_STEPS = 4096  # the clipping bound in steps of the grid, if there is room
MAX_TRIES = 64  # each rounding succeeds with probability 0.39 or more
MAX_INFLATION = 0.5  # a grid that needs 50 % more noise is not worth the bytes it saves
MAX_OVERFLOW = 2.0**-64  # the largest probability that a round's sum overflows
LOG_FAILURE = 100 * log(2)  # stochastic rounding exceeds its bound with probability 2⁻¹⁰⁰ at most
WAVE = 128  # rows are summed in float32 up to this number, and sums of them in float64
CLIPPING = 2.0**-14  # by how much rounding errors of norm and factor can lengthen a clipped row, relative to the bound


@dataclass(frozen=True, kw_only=True)
class Lattice:
    """The quantisation of one round: rows to integers modulo 2^b with noise, and their sum back to numbers.

    Args:
        clip: L2 bound of a row, in float64, before rounding.
        dim: number of coordinates of a row.
        cohort: the largest number of clients in the sum.
        noise: the noise that every client adds to every coordinate, in steps of the grid.
        steps: the clipping bound in steps of the grid; more steps make a finer grid.
        bits: integers are modulo 2^bits.
        records: a row is a sum over at most this many records, each within `clip`; None: the row itself is.
        depth: how many additions in float32 follow on each other in a sum over records; None: as many as in one of
            clipped gradients; 0: records are clipped and summed in float64.

    Formal guarantees: the integers of any row are within `bound`, which includes rounding (checked in exact integers).
    A row that is not finite becomes zeros, since omitting it would reveal that. The sum of honest clients can overflow
    only through noise, with probability `overflow` at most per round; a lattice with more than 2⁻⁶⁴ is refused. An
    overflow would damage the model, not the guarantee, because it is post-processing. Removing a client here means that
    it adds its noise to a row of zeros. If cohorts are secret, as amplification requires, the noise of each round must
    be sized by its own honest clients; otherwise the noise of the sum would reveal their number.

    With `records`, a row is not clipped but projected to the ball of radius `records · clip`, which moves no two rows
    apart, and rounded stochastically once, whatever comes of it. `bound` is then on the change of the integers if one
    record is added or removed: with equal randomness the two roundings differ by a stochastic rounding of the
    difference (step 3 of the proof of `SumGrid`), but for a probability of 2⁻¹⁰⁰.

    Example:
        >>> grid = Lattice.fit(clip=1.0, dim=3, cohort=2, honest=2, noise_multiplier=1e-3)
        >>> rows = [grid.encode(np.array(row)) for row in ([0.3, -0.2, 0.0], [0.0, 0.2, 0.5])]
        >>> bool(np.abs(grid.decode(rows[0] + rows[1]) - [0.3, 0.0, 0.5]).max() < 0.05)
        True
    """

    clip: float
    dim: int
    cohort: int
    noise: IntegerNoise
    steps: float = float(MIN_STEPS)
    bits: int = 32
    records: int | None = None
    depth: int | None = None

    def __post_init__(self) -> None:
        positive(clip=self.clip)
        whole(1, (1 << 31) - 1, dim=self.dim)
        whole(1, cohort=self.cohort)
        whole(2, 32, bits=self.bits)
        within("[1, 2147483648)", steps=self.steps)
        expect(self.scale < float("inf"), f"clip={self.clip} to be a normal number")
        whole(1, records=self.records)
        whole(0, depth=self.depth)
        expect(
            self._tail <= MAX_OVERFLOW,
            f"the sum of {self.cohort} rows of up to {self.max_coordinate} with noise of {self.noise.sigma:.4g} each "
            f"to overflow {self.bits} bits with probability at most 2^-64, not {self._tail:.2g}",
            "Use more bits or fewer steps." if self.records is None else "Use smaller batches or fewer clients.",
        )

    @staticmethod
    def fit(
        *,
        clip: float,
        dim: int,
        cohort: int,
        honest: float,
        noise_multiplier: float,
        bits: int = 32,
        noise: type[IntegerNoise] = DiscreteGaussian,
        steps: int | None = None,
        least: int = MIN_STEPS,
        records: int | None = None,
        depth: int | None = None,
    ) -> "Lattice":
        """The lattice on which the shares of `honest` clients alone have this noise multiplier.

        A step is a power of two, so that float64 holds its multiples and their sums exactly. The bound has `steps`
        steps, rounded up to at most twice as many; by default, as many as make rounding cheap (a thousandth of the
        bound or less, and at least `least`), or as many as fit. The sum reveals the step. If cohorts are secret, fit
        the lattice once, for the largest cohort and the fewest honest clients, and use `for_cohort` in each round.
        """
        expect(0 < honest <= cohort, f"honest={honest} in (0, cohort={cohort}]")

        def at(exponent: int) -> "Lattice":
            scaled = ldexp(clip, exponent)
            share = noise.for_shares(noise_multiplier, _influence(scaled, dim, records, depth), honest)
            sums = {"records": records, "depth": depth}
            return Lattice(clip=clip, dim=dim, cohort=cohort, noise=share, steps=scaled, bits=bits, **sums)

        positive(clip=clip)
        wanted = ceil(log2((steps or max(least, floor(11 * sqrt(dim)))) / clip))
        grid = at(wanted if steps else _finest(at, wanted, ceil(-log2(clip))))
        statement = f"rounding to {grid.steps:g} steps to increase norms by {grid.inflation:.0%} <= {MAX_INFLATION:.0%}"
        advice = "Use more bits." if records is None else "Use smaller batches or fewer clients."
        expect(grid.inflation <= MAX_INFLATION, statement, f"More steps do not fit {bits} bits. {advice}")
        return grid

    def for_cohort(self, cohort: int, honest: float, noise_multiplier: float) -> "Lattice":
        """The same grid for another cohort, whose honest clients' shares alone have this noise multiplier."""
        return replace(self, cohort=cohort, noise=self.noise.for_shares(noise_multiplier, self.bound, honest))

    @property
    def scale(self) -> float:
        """Steps of the grid per unit."""
        return self.steps / self.clip

    @property
    def bound(self) -> IntegerBound:
        """The bound on one client's contribution, or on that of one record, in steps of the grid."""
        return _influence(self.steps, self.dim, self.records, self.depth)

    @property
    def max_coordinate(self) -> int:
        """The largest magnitude of a coordinate in an honest row, before noise."""
        return isqrt(self.bound.squared) if self.records is None else ceil(self.records * self.steps) + 1

    @property
    def inflation(self) -> float:
        """The relative increase of the clipping bound by rounding, and therefore of the noise."""
        return self.bound.l2 / self.steps - 1

    @property
    def overflow(self) -> float:
        """An upper bound on the probability that some coordinate of an honest cohort's sum overflows."""
        return 0.0 if self._headroom > self.cohort * self.noise.table.max_magnitude else self._tail

    def loss(self, honest: int) -> Zcdp:
        """The privacy loss of a round with the noise of `honest` clients."""
        return self.noise.loss(honest, self.bound)

    def encode(self, row: npt.ArrayLike, source: ByteSource = os.urandom) -> Ring:
        """One client's row for secure aggregation: quantised, with its share of the noise, modulo 2^bits."""
        noisy = self.quantize(row, source) + self.noise.table.sample(self.dim, source)
        return (noisy & (1 << self.bits) - 1).astype(np.uint32)

    def quantize(self, row: npt.ArrayLike, source: ByteSource = os.urandom) -> Integers:
        """The row on the grid, without noise; its bound is checked in integers, or that of its coordinates."""
        scaled = clip_row(np.asarray(row, dtype=np.float64), self.clip * (self.records or 1)) * self.scale
        expect(scaled.shape == (self.dim,), f"a row of shape ({self.dim},), not {scaled.shape}")
        if self.records is not None:  # to try again would depend on the row, and so on more than one record
            return np.clip(stochastic_round(scaled, source), -self.max_coordinate, self.max_coordinate)
        for _ in range(MAX_TRIES):
            if self._within(rounded := stochastic_round(scaled, source)):
                return rounded
        return self._truncate(scaled)

    def decode(self, total: npt.NDArray[np.uint32]) -> Floats:
        """The sum of the rows, from the sum of their encodings modulo 2^bits or 2³²."""
        half = 1 << self.bits - 1
        centred: Integers = (total.astype(np.int64) + half & 2 * half - 1) - half
        return centred / self.scale

    @property
    def min_bits(self) -> int:
        """As few bits as there can be, up to `bits`, for sums to overflow with probability 2⁻⁶⁴ at most."""
        least = (self.cohort * self.max_coordinate).bit_length() + 1
        return next((bits for bits in range(least, self.bits) if self._tail_of(bits) <= MAX_OVERFLOW), self.bits)

    @property
    def _headroom(self) -> int:
        return self._headroom_of(self.bits)

    def _headroom_of(self, bits: int) -> int:
        """The smallest magnitude of noise that can make the sum of honest rows overflow this many bits."""
        return (1 << bits - 1) - self.cohort * self.max_coordinate

    @property
    def _tail(self) -> float:
        return self._tail_of(self.bits)

    def _tail_of(self, bits: int) -> float:
        """The probability of overflow by the noise's tail bound, without building its table."""
        return min(1.0, self.dim * self.noise.tail_bound(self.cohort, self._headroom_of(bits)))

    def _within(self, values: Integers) -> bool:
        """Σ q² ≤ Δ₂², exactly: squares below 2⁶², summed in 32-bit halves, which have room for 2³¹ of them."""
        if int(np.abs(values).max()) > self.max_coordinate:
            return False
        squares = values * values
        return (int((squares >> 32).sum()) << 32) + int((squares & 0xFFFFFFFF).sum()) <= self.bound.squared

    def _truncate(self, scaled: Floats) -> Integers:
        """Round towards zero, which increases no norm: the fallback, so that no row can make a client retry forever."""
        truncated = np.trunc(scaled).astype(np.int64)
        if not self._within(truncated):
            raise TacitError("A row that was clipped and truncated exceeds its bound.")
        return truncated


def rounded_bound(steps: float, dim: int, log_failure: float = 0.5) -> IntegerBound:
    """The bound after rounding a row of norm `steps`: Δ₂² of Kairouz et al., Theorem 1, with β = e^{−log_failure}.

    A stochastic rounding satisfies it with probability 1 − β or more.
    """
    typical = steps**2 + dim / 4 + sqrt(2 * log_failure) * (steps + sqrt(dim) / 2)
    return IntegerBound(floor(min(typical, (steps + sqrt(dim)) ** 2)), dim)


def _influence(steps: float, dim: int, records: int | None, depth: int | None) -> IntegerBound:
    """The bound on what rounding leaves of a row of norm `steps`, or of a record's part in a row of this many."""
    if records is None:
        return rounded_bound(steps, dim)
    return rounded_bound(steps * (1 + float_error(records, depth)), dim, LOG_FAILURE)


def float_error(rows: int, depth: int | None = None) -> float:
    """By how much floating point can increase the change of a sum of this many rows, relative to their bound.

    The first step of the proof of `SumGrid`. The number of rows is rounded up to a power of two, so that cohorts of
    similar size have the same table; not if `depth` is given, the additions in float32 that follow on each other.
    """
    count = 1 << max(ceil(log2(max(rows, 1))), 0) if depth is None else max(rows, 1)
    single, double = ldexp(min(count, WAVE if depth is None else depth), -24), ldexp(count + 8, -53)
    relative = single / (1 - single) + double / (1 - double)
    return CLIPPING + 2 * count * relative * (1 + CLIPPING)


def clip_row(row: Floats, clip: float) -> Floats:
    """The row, scaled down to norm `clip` if necessary; zeros if it is not finite."""
    largest = float(np.abs(row).max(initial=0.0))
    if not 0 < largest < float("inf"):
        return np.zeros_like(row)
    normalised = row / largest  # so that no square overflows or underflows
    norm = float(np.linalg.norm(normalised))
    return row if largest * norm <= clip else normalised * (clip / norm)


def stochastic_round(scaled: Floats, source: ByteSource) -> Integers:
    """Every coordinate rounded up or down at random, unbiased; uniform numbers have 53 bits."""
    rounded = np.empty(scaled.shape, np.int64)
    for begin in range(0, scaled.size, BLOCK):
        block = scaled[begin : begin + BLOCK]
        below = np.floor(block)
        uniform = (np.frombuffer(source(8 * block.size), dtype="<u8") >> np.uint64(11)) * 2.0**-53
        rounded[begin : begin + BLOCK] = below + (uniform < block - below)
    return rounded


def _finest(at: Callable[[int], object], wanted: int, least: int) -> int:
    """The largest exponent up to `wanted` that is not refused; if all are, `wanted`, so that its refusal is raised."""
    for exponent in range(wanted, least - 1, -1):
        with suppress(UserError):
            at(exponent)
            return exponent
    return wanted
