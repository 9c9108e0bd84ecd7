"""Rows on an integer grid: clipped, rounded, blurred by integers and added up modulo 2^b.

Sums of integers are exact, whatever their order, and their noise is drawn exactly: what is accounted is what is
released. A continuous Gaussian that every client rounds for itself would not do, as Σ round(x + z) does not follow from
Σ (x + z).

Reference: Kairouz, Liu, Steinke. The Distributed Discrete Gaussian Mechanism for Federated Learning with Secure
Aggregation. ICML 2021, Algorithms 1 to 3; without the rotation, which a ring of 2³² does not need.
"""

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from math import ceil, floor, isqrt, ldexp, log2, sqrt

import numpy as np
import numpy.typing as npt

from tacit.core import Event
from tacit.errors import TacitError, UserError, expect
from tacit.pieces.mechanisms.discrete import DiscreteGaussian, IntegerBound, IntegerNoise, Integers, Source

Floats = npt.NDArray[np.float64]
Ring = npt.NDArray[np.uint32]

LEAST_STEPS = 4096  # the clip in steps of the grid, if there is room
TRIES = 64  # each succeeds with probability 0.39 or more
COARSEST = 0.5  # a grid that needs half as much noise again, or more, is not worth the bytes it saves
WRAPS = 2.0**-64  # a larger probability that a round's sum wraps around is refused


@dataclass(frozen=True, kw_only=True)
class Lattice:
    """How one round's rows become integers modulo 2^b with noise, and their sum becomes numbers again.

    Args:
        clip: L2 bound of a row, in float64, before it is rounded.
        dim: the length of a row.
        cohort: no more clients than this add up.
        noise: what every client adds in every coordinate, in steps of the grid.
        steps: the clip in steps of the grid; more are finer.
        bits: the ring is 2^bits.

    Formal guarantees: whatever a row holds, its integers are within `bound`, which includes what rounding adds (checked
    in exact integers); rows that are not finite count as zero, so that nobody's absence tells
    of them. Honest clients' sum cannot wrap around but by noise, with probability `wraps` at most in a round, and a
    record with more than 2⁻⁶⁴ is refused. Wrapping would blur the model, not the guarantee: it is post-processing.
    Removing a client means here that it adds its noise to a row of zeros. Where cohorts are hidden, as amplification
    needs it, size each round's noise by its own honest clients, or the noise of the sum would tell how many there are.

    Example:
        >>> grid = Lattice.sized(clip=1.0, dim=3, cohort=2, honest=2, noise_multiplier=1e-3)
        >>> rows = [grid.encode(np.array(row)) for row in ([0.3, -0.2, 0.0], [0.0, 0.2, 0.5])]
        >>> bool(np.abs(grid.decode(rows[0] + rows[1]) - [0.3, 0.0, 0.5]).max() < 0.05)
        True
    """

    clip: float
    dim: int
    cohort: int
    noise: IntegerNoise
    steps: float = float(LEAST_STEPS)
    bits: int = 32

    def __post_init__(self) -> None:
        expect(0 < self.clip < float("inf"), f"clip={self.clip} > 0 and finite")
        expect(1 <= self.dim < 1 << 31, f"dim={self.dim} in [1, 2^31)")
        expect(self.cohort >= 1, f"cohort={self.cohort} >= 1")
        expect(2 <= self.bits <= 32, f"bits={self.bits} in [2, 32]")
        expect(1 <= self.steps < 1 << 31, f"steps={self.steps} in [1, 2^31)")
        expect(self.scale < float("inf"), f"clip={self.clip} to be a normal number")
        expect(
            self._unlikely <= WRAPS,
            f"the sum of {self.cohort} rows of up to {self.largest} with noise of {self.noise.sigma:.4g} each to stay "
            f"within 2^{self.bits - 1} but with probability 2^-64, not {self._unlikely:.2g}",
            "Use more bits or fewer steps.",
        )

    @staticmethod
    def sized(
        *,
        clip: float,
        dim: int,
        cohort: int,
        honest: float,
        noise_multiplier: float,
        bits: int = 32,
        noise: type[IntegerNoise] = DiscreteGaussian,
        steps: int | None = None,
    ) -> "Lattice":
        """The grid on which the shares of `honest` clients alone have this multiplier of what one client can add.

        A step is a power of two, so that float64 holds its multiples and their sums exactly. There are `steps` or up to
        twice as many; if not given, as many as make rounding cheap (a thousandth of the bound or less), or as many as
        the ring has room for. The steps show in the sum. Where cohorts are hidden, find them once, for the largest
        cohort and the fewest honest clients, and take `shared_by` for each round.
        """
        expect(0 < honest <= cohort, f"honest={honest} in (0, cohort={cohort}]")

        def at(exponent: int) -> "Lattice":
            many = ldexp(clip, exponent)
            each = noise.sharing(noise_multiplier, inflated(many, dim), honest)
            return Lattice(clip=clip, dim=dim, cohort=cohort, noise=each, steps=many, bits=bits)

        expect(0 < clip < float("inf"), f"clip={clip} > 0 and finite")
        wanted = ceil(log2((steps or max(LEAST_STEPS, floor(11 * sqrt(dim)))) / clip))
        grid = at(wanted if steps else _finest(at, wanted, ceil(-log2(clip))))
        statement = f"rounding on {grid.steps:g} steps to lengthen rows by {grid.inflation:.0%} <= {COARSEST:.0%}"
        expect(grid.inflation <= COARSEST, statement, f"More steps do not fit {bits} bits. Use more bits.")
        return grid

    def shared_by(self, cohort: int, honest: float, noise_multiplier: float) -> "Lattice":
        """The same grid for another cohort, whose honest clients alone have this multiplier of noise."""
        return replace(self, cohort=cohort, noise=self.noise.sharing(noise_multiplier, self.bound, honest))

    @property
    def scale(self) -> float:
        """Steps of the grid in a unit."""
        return self.steps / self.clip

    @property
    def bound(self) -> IntegerBound:
        """What one client can add, in steps of the grid."""
        return inflated(self.steps, self.dim)

    @property
    def largest(self) -> int:
        """The largest coordinate that an honest row can have before noise."""
        return isqrt(self.bound.squared)

    @property
    def inflation(self) -> float:
        """By how much rounding lengthens the bound, relative to the clip: so much more noise is needed."""
        return self.bound.whole / self.steps - 1

    @property
    def wraps(self) -> float:
        """The probability that some coordinate of an honest cohort's sum wraps around, at most."""
        return 0.0 if self._room > self.cohort * self.noise.table.reach else self._unlikely

    @property
    def failure(self) -> float:
        """What one round adds to δ, times 1 + e^ε: its samples' distance from their pmf, and the wrapping."""
        return self.cohort * self.dim * self.noise.table.error + self.wraps

    def event(self, honest: int) -> Event:
        """What a round costs whose noise came from so many honest clients."""
        return self.noise.event(honest, self.bound)

    def encode(self, row: npt.ArrayLike, source: Source = os.urandom) -> Ring:
        """One client's row, ready for the secure sum: on the grid, with its share of the noise, modulo 2^bits."""
        return self._wrapped(self.rounded(row, source) + self.noise.table.sample(self.dim, source))

    def rounded(self, row: npt.ArrayLike, source: Source = os.urandom) -> Integers:
        """The row on the grid without noise; never outside the bound, checked in integers."""
        scaled = clipped(np.asarray(row, dtype=np.float64), self.clip) * self.scale
        expect(scaled.shape == (self.dim,), f"a row of shape ({self.dim},), not {scaled.shape}")
        for _ in range(TRIES):
            if self._within(tried := rounded_randomly(scaled, source)):
                return tried
        return self._shortened(scaled)

    def decode(self, total: npt.NDArray[np.uint32]) -> Floats:
        """The sum of rows from the sum of their encodings, taken modulo 2^bits or 2³²."""
        half = 1 << self.bits - 1
        centred: Integers = (total.astype(np.int64) + half & 2 * half - 1) - half
        return centred / self.scale

    @property
    def _room(self) -> int:
        """Noise of a smaller magnitude cannot make the longest honest rows wrap around."""
        return (1 << self.bits - 1) - self.cohort * self.largest

    @property
    def _unlikely(self) -> float:
        """The probability of wrapping by the noise's tail alone, without its table."""
        return min(1.0, self.dim * self.noise.beyond(self.cohort, self._room))

    def _wrapped(self, values: Integers) -> Ring:
        return (values & (1 << self.bits) - 1).astype(np.uint32)

    def _within(self, values: Integers) -> bool:
        """Σ q² ≤ Δ₂², exactly: squares below 2⁶², added up in halves of 32 bits, which have room for 2³¹ of them."""
        if int(np.abs(values).max()) > self.largest:
            return False
        squares = values * values
        return (int((squares >> 32).sum()) << 32) + int((squares & 0xFFFFFFFF).sum()) <= self.bound.squared

    def _shortened(self, scaled: Floats) -> Integers:
        """Towards zero, which lengthens no row: where chance fails, so that no row can make a client try for ever."""
        short = np.trunc(scaled).astype(np.int64)
        if not self._within(short):
            raise TacitError("A row that was clipped and shortened is outside its bound.")
        return short


def inflated(steps: float, dim: int) -> IntegerBound:
    """How long a row of this many steps may be after rounding: Δ₂² of Kairouz et al., Theorem 1, with β = e^{−½}.

    A random rounding stays within it with probability 1 − β or more.
    """
    typical = steps**2 + dim / 4 + steps + sqrt(dim) / 2
    return IntegerBound(floor(min(typical, (steps + sqrt(dim)) ** 2)), dim)


def clipped(row: Floats, clip: float) -> Floats:
    """The row scaled to the clip if it is longer; zeros if it is not finite."""
    largest = float(np.abs(row).max(initial=0.0))
    if not 0 < largest < float("inf"):
        return np.zeros_like(row)
    shape = row / largest  # so that no square overflows or is lost
    length = float(np.linalg.norm(shape))
    return row if largest * length <= clip else shape * (clip / length)


def rounded_randomly(scaled: Floats, source: Source) -> Integers:
    """Every coordinate up or down to an integer, so that the mean is itself; uniform numbers have 53 bits."""
    below = np.floor(scaled)
    uniform = (np.frombuffer(source(8 * scaled.size), dtype="<u8") >> np.uint64(11)) * 2.0**-53
    return (below + (uniform < scaled - below)).astype(np.int64)


def _finest(at: Callable[[int], object], wanted: int, least: int) -> int:
    """The largest exponent up to `wanted` that is not refused; `wanted`, to be refused with a reason, if none is."""
    for exponent in range(wanted, least - 1, -1):
        with suppress(UserError):
            at(exponent)
            return exponent
    return wanted
