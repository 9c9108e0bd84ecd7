"""Exact sampling of discrete noise from a cryptographic source, by inversion of tables.

A table holds P(|X| ≤ k) as 127-bit integers. A sample looks up a uniform 127-bit number, and one more bit is its sign.
Sampling uses no floating point, so the samples have exactly the distribution of the table, whose distance from the pmf
is known. Of the 127 bits, the first 31 nearly always decide, and only if they do not are the others drawn.
"""

import os
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Context, Decimal
from fractions import Fraction
from functools import cached_property, lru_cache
from itertools import accumulate
from math import asinh, hypot, ldexp, log

import numpy as np
import numpy.typing as npt

from tacit.errors import expect

Integers = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]
HalfWords = npt.NDArray[np.uint32]
ByteSource = Callable[[int], bytes]  # returns `n` unpredictable bytes: os.urandom, or an AES-CTR keystream

PRECISION = 127  # bits of a table's probabilities; with the sign bit, two 64-bit words
REST = 96  # of these bits, those that are drawn only if the first 31 do not decide
BLOCK = 1 << 15  # samples or coordinates at a time: their arrays stay in cache
CELL_BITS = 18  # at most, of a guide: a larger one would not stay in cache
CROWDED = np.uint32((1 << 32) - 1)  # in a guide: more than one threshold
FIXED_POINT = 256  # fractional bits while a table is built


@dataclass(frozen=True, eq=False)
class CdfTable:
    """P(|X| ≤ k) for k = 0, 1, …, in two words each; the last magnitude, whose value is 1, is omitted.

    Formal guarantees: if the source is uniform, a sample's distribution is within `error` of the exact pmf in total
    variation: the rounding of N thresholds and the truncated tail, N + 4 units of 2⁻¹²⁸ at most. Sampling is not
    constant-time: an adversary who can observe the client's memory accesses is not covered.
    """

    high: Words
    low: Words

    @property
    def max_magnitude(self) -> int:
        """The largest magnitude that can be sampled."""
        return len(self.high)

    @property
    def error(self) -> float:
        """An upper bound on the total variation between one sample and the exact pmf."""
        return ldexp(self.max_magnitude + 1 + 4, -PRECISION - 1)

    def sample(self, count: int, source: ByteSource = os.urandom) -> Integers:
        """`count` independent samples, bitwise those of `sample_slowly`."""
        samples = np.empty(count, np.int64)
        for begin in range(0, count, BLOCK):
            part = samples[begin : begin + BLOCK]
            words = _half_words(source, len(part))
            signs = (words & np.uint32(1)).view(np.int32)
            part[:] = (self._magnitudes(words, source) ^ -signs) + signs  # −k = ~k + 1, where the sign bit is set
        return samples

    def sample_slowly(self, count: int, source: ByteSource = os.urandom) -> Integers:
        """The reference for `sample`: every number is looked up by itself, with all of its bits."""
        thresholds = [(int(high) << 64) + int(low) for high, low in zip(self.high, self.low, strict=True)]
        undecided = {threshold >> REST for threshold in thresholds}
        samples = []
        for begin in range(0, count, BLOCK):
            words = _half_words(source, min(BLOCK, count - begin)).tolist()
            rest = iter(_rests(source, sum(word >> 1 in undecided for word in words)))
            for word in words:
                number = (word >> 1 << REST) + (next(rest) if word >> 1 in undecided else 0)
                magnitude = bisect_right(thresholds, number)
                samples.append(-magnitude if word & 1 else magnitude)
        return np.array(samples, np.int64)

    def _magnitudes(self, words: HalfWords, source: ByteSource) -> npt.NDArray[np.int32]:
        """How many thresholds are at most the numbers that begin with the upper 31 bits of these words."""
        guide, prefixes = self._guide, words >> np.uint32(1)
        cells = (words >> guide.shift).astype(np.intp)
        thresholds = guide.threshold.take(cells)
        magnitudes = guide.count.take(cells)
        magnitudes += thresholds < prefixes
        others = np.flatnonzero((thresholds == prefixes) | (thresholds == CROWDED))
        if len(others):
            magnitudes[others] = self._search(prefixes[others], source)
        return magnitudes

    def _search(self, prefixes: HalfWords, source: ByteSource) -> Integers:
        """The same without a guide, with the other 96 bits where the first 31 do not decide."""
        found = np.searchsorted(self._prefixes, prefixes)
        undecided = np.flatnonzero(self._prefixes.take(found, mode="clip") == prefixes)
        for i, rest in zip(undecided.tolist(), _rests(source, len(undecided)), strict=True):
            found[i] = self._count(int(prefixes[i]), rest)
        return found

    def _count(self, prefix: int, rest: int) -> int:
        """The number of thresholds that are at most the number with these first 31 and last 96 bits."""
        number = (prefix << REST) + rest
        high, low = np.uint64(number >> 64), np.uint64(number & (1 << 64) - 1)
        first, last = np.searchsorted(self.high, high, "left"), np.searchsorted(self.high, high, "right")
        return int(first + np.searchsorted(self.low[first:last], low, "right"))

    @cached_property
    def _prefixes(self) -> HalfWords:
        """The first 31 bits of every threshold."""
        return (self.high >> np.uint64(REST - 64)).astype(np.uint32)

    @cached_property
    def _guide(self) -> "Guide":
        bits = min(CELL_BITS, self.max_magnitude.bit_length() + 2)
        edges = np.arange((1 << bits) + 1, dtype=np.uint64) << np.uint64(PRECISION - REST - bits)
        counts = np.searchsorted(self._prefixes.astype(np.uint64), edges)
        thresholds = np.append(self._prefixes, np.uint32(1 << PRECISION - REST))[counts[:-1]]
        thresholds[np.diff(counts) > 1] = CROWDED
        return Guide(np.uint32(32 - bits), counts[:-1].astype(np.int32), thresholds)


@dataclass(frozen=True, eq=False)
class Guide:
    """Where to look in a table: the numbers that begin with the same bits are a cell, and most have one threshold.

    Attributes:
        shift: by how much a 32-bit word is shifted to get its cell.
        count: how many thresholds are below each cell.
        threshold: the first 31 bits of the next one, in the cell or above; `CROWDED` if more than one is in the cell.
    """

    shift: np.uint32
    count: npt.NDArray[np.int32]
    threshold: HalfWords


@lru_cache(maxsize=128)  # surplus noise has components of as many scales as losses are tolerated
def gaussian_table(sigma: float) -> CdfTable:
    """That of the discrete Gaussian."""
    return _tabulate(list(_gaussian_weights(Fraction(sigma) ** 2)))


@lru_cache(maxsize=128)
def skellam_table(sigma: float) -> CdfTable:
    """That of the Skellam distribution."""
    return _tabulate(_skellam_weights(Fraction(sigma) ** 2))


def draw_bytes(source: ByteSource, size: int) -> bytes:
    """The next `size` bytes of a source."""
    drawn = source(size)
    expect(len(drawn) == size, f"{size} bytes of randomness, not {len(drawn)}")
    return drawn


def skellam_rate(magnitude: float, variance: float) -> float:
    """Chernoff's exponent: P(X ≥ r) ≤ exp(−(r·asinh(r/μ) − √(r² + μ²) + μ)), written without cancellation."""
    return magnitude * asinh(magnitude / variance) - magnitude**2 / (hypot(magnitude, variance) + variance)


def _half_words(source: ByteSource, count: int) -> HalfWords:
    """`count` uniform 32-bit words."""
    drawn = draw_bytes(source, 4 * count)
    return np.frombuffer(drawn, dtype="<u4").astype(np.uint32, copy=False)


def _rests(source: ByteSource, count: int) -> list[int]:
    """`count` uniform 96-bit numbers."""
    drawn = draw_bytes(source, REST // 8 * count) if count else b""
    return [int.from_bytes(drawn[i : i + REST // 8], "little") for i in range(0, len(drawn), REST // 8)]


def _gaussian_weights(variance: Fraction) -> Iterator[int]:
    """exp(−k² / 2σ²) in fixed point, down to 2⁻¹⁴⁰.

    w_{k+1} = w_k · r^{2k+1} with r = exp(−1 / 2σ²). After k steps the error of w_k is below 5k² units of 2⁻²⁵⁶, and
    that of all weights together below 2⁻¹⁸⁰, which is negligible in the table's error.
    """
    exact = Context(prec=100)
    exponent = exact.divide(Decimal(-variance.denominator), Decimal(2 * variance.numerator))
    ratio = int(exact.multiply(exact.exp(exponent), Decimal(1 << FIXED_POINT)))
    weight, step, square = 1 << FIXED_POINT, ratio, ratio * ratio >> FIXED_POINT
    while weight >> FIXED_POINT - PRECISION - 13:
        yield weight
        weight, step = weight * step >> FIXED_POINT, step * square >> FIXED_POINT


def _skellam_weights(variance: Fraction) -> list[int]:
    """Multiples of I_k(μ), by Miller's backward recurrence I_{k−1} = I_{k+1} + (2k/μ)·I_k.

    Started at M with 0 and 1, its error is below P(X = M), here 2⁻¹⁹², at every k: the error is a multiple of the other
    solution K_k, which decreases where I_k grows. All terms are positive, so there is no cancellation.
    """
    weights = [0, 1 << FIXED_POINT]
    for k in range(_skellam_start(float(variance)), 0, -1):
        weights.append(weights[-2] + 2 * k * variance.denominator * weights[-1] // variance.numerator)
    return weights[:0:-1]


def _skellam_start(variance: float) -> int:
    """An M with P(X ≥ M) < 2⁻¹⁹²; the rate is at least quadratic up to σ², and superlinear above."""
    start = 1
    while skellam_rate(start, variance) < 192 * log(2):
        start += 1 + start // 16
    return start


def _tabulate(weights: list[int]) -> CdfTable:
    """The thresholds ⌊2¹²⁷ · P(|X| ≤ k)⌋ until less than 2⁻¹²⁷ remains, which goes to the last magnitude."""
    sums = list(accumulate((2 * weight for weight in weights[1:]), initial=weights[0]))
    total = sums[-1]
    thresholds = [(part << PRECISION) // total for part in sums]
    last = thresholds.index((1 << PRECISION) - 1) if (1 << PRECISION) - 1 in thresholds else len(thresholds) - 1
    high = np.array([threshold >> 64 for threshold in thresholds[:last]], dtype=np.uint64)
    low = np.array([threshold & (1 << 64) - 1 for threshold in thresholds[:last]], dtype=np.uint64)
    return CdfTable(high, low)
