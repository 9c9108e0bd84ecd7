"""Discrete Gaussian and Skellam noise: its sampling, its scale, and the privacy of a sum of integers.

Samples are exact, from a cryptographic source, by inversion of tables. A table holds P(|X| ≤ k) as 127-bit integers. A
sample looks up a uniform 127-bit number, and one more bit is its sign. Sampling uses no floating point, so the samples
have exactly the distribution of the table, whose distance from the pmf is known. Of the 127 bits, the first 31 nearly
always decide, and only if they do not are the others drawn.

References: Canonne, Kamath, Steinke 2020 (discrete Gaussian); Kairouz, Liu, Steinke 2021 (its sums); Agarwal, Kairouz,
Liu 2021 (Skellam); Peikert 2010 (rounding by a discrete Gaussian).
"""

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from decimal import Context, Decimal
from fractions import Fraction
from functools import cached_property, lru_cache
from itertools import accumulate
from math import asinh, exp, expm1, fsum, hypot, ldexp, log, log1p, pi, sqrt

import numpy as np
import numpy.typing as npt

from tacit.core.prices import Gaussian, Zcdp
from tacit.errors import expect, whole

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
        """`count` independent samples."""
        samples = np.empty(count, np.int64)
        for begin in range(0, count, BLOCK):
            part = samples[begin : begin + BLOCK]
            words = _half_words(source, len(part))
            signs = (words & np.uint32(1)).view(np.int32)
            part[:] = (self._magnitudes(words, source) ^ -signs) + signs  # −k = ~k + 1, where the sign bit is set
        return samples

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
        counts = np.searchsorted(self._prefixes, prefixes)
        undecided = np.flatnonzero(self._prefixes.take(counts, mode="clip") == prefixes)
        for i, rest in zip(undecided.tolist(), _rests(source, len(undecided)), strict=True):
            counts[i] = self._count(int(prefixes[i]), rest)
        return counts

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
    """An index into a table: the numbers that begin with the same bits are a cell, and most have one threshold.

    Attributes:
        shift: by how much a 32-bit word is shifted to get its cell.
        count: how many thresholds are below each cell.
        threshold: the first 31 bits of the next one, in the cell or above; `CROWDED` if more than one is in the cell.
    """

    shift: np.uint32
    count: npt.NDArray[np.int32]
    threshold: HalfWords


@lru_cache(maxsize=128)
def gaussian_table(sigma: float) -> CdfTable:
    """The discrete Gaussian's table."""
    return tabulate(list(_gaussian_weights(Fraction(sigma) ** 2)))


@lru_cache(maxsize=128)
def skellam_table(sigma: float) -> CdfTable:
    """The Skellam distribution's table."""
    return tabulate(_skellam_weights(Fraction(sigma) ** 2))


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


def tabulate(weights: list[int]) -> CdfTable:
    """The thresholds ⌊2¹²⁷ · P(|X| ≤ k)⌋ until less than 2⁻¹²⁷ remains, which goes to the last magnitude."""
    sums = list(accumulate((2 * weight for weight in weights[1:]), initial=weights[0]))
    total = sums[-1]
    thresholds = [(part << PRECISION) // total for part in sums]
    last = thresholds.index((1 << PRECISION) - 1) if (1 << PRECISION) - 1 in thresholds else len(thresholds) - 1
    high = np.array([threshold >> 64 for threshold in thresholds[:last]], dtype=np.uint64)
    low = np.array([threshold & (1 << 64) - 1 for threshold in thresholds[:last]], dtype=np.uint64)
    return CdfTable(high, low)


MIN_SIGMA, MAX_SIGMA = 0.1, 1e5  # a wider table would take more than 20 MB
SMOOTHING = 2.0  # s in `continuous`, in steps of the grid: less costs exactness, more costs noise
TYPICAL_ORDER = 8  # a Rényi order in the middle of those that determine ε


@dataclass(frozen=True)
class IntegerBound:
    """The bound on one client's contribution to a sum of integer rows.

    Attributes:
        squared: the largest squared L2 norm of a row.
        dim: number of coordinates of a row.
    """

    squared: int
    dim: int

    @property
    def l2(self) -> float:
        """Δ₂."""
        return sqrt(self.squared)

    @property
    def l1(self) -> float:
        """Δ₁, which follows by Cauchy–Schwarz, and from |k| ≤ k² for integers."""
        return min(sqrt(self.dim) * self.l2, float(self.squared))


@dataclass(frozen=True)
class Dominating:
    """A continuous mechanism whose rounded output approximates a discrete mechanism.

    Attributes:
        loss: the privacy loss of the continuous mechanism.
        distance: an upper bound on the total variation between its rounded output and the discrete mechanism.
    """

    loss: Gaussian
    distance: float


@dataclass(frozen=True)
class DiscreteGaussian:
    """P(X = k) ∝ exp(−k² / 2σ²).

    Args:
        sigma: its standard deviation, up to about 10⁻⁷ at σ = 1 and less above.

    Formal guarantees: with shares of this noise from m honest clients, V = m·σ², a sum of rows within a bound Δ₂ has
    D_α ≤ α·Δ₂² / 2V + τ·d, where τ = 10·Σ_{k<m} exp(−2π²σ²·k/(k+1)) (Kairouz et al., Theorem 1). From σ = 3 on,
    τ·d < 10⁻²⁸, and the bound is that of the Gaussian mechanism.

    Example:
        >>> noise = DiscreteGaussian(3.0)
        >>> noise.table.max_magnitude, noise.table.error < 1e-36, noise.table.sample(100).dtype
        (39, True, dtype('int64'))
    """

    sigma: float

    def __post_init__(self) -> None:
        _check_sigma(self.sigma)

    @property
    def table(self) -> CdfTable:
        """The table to sample from."""
        return gaussian_table(self.sigma)

    @classmethod
    def for_shares(cls, noise_multiplier: float, bound: IntegerBound, shares: float) -> "DiscreteGaussian":
        """The noise of one share, if `shares` of them amount to `declared_loss`.

        Slightly more noise than the multiplier requires, by what `continuous` subtracts.
        """
        return cls(hypot(noise_multiplier * bound.l2, SMOOTHING) / sqrt(shares))

    @staticmethod
    def declared_loss(noise_multiplier: float, part: float, min_steps: float) -> Gaussian:
        """The loss of a sum with this part of the noise variance, for any bound of at least `min_steps` steps.

        It is that of the continuous Gaussian sum of which the noise is a rounding, for any dimension and bound.
        A part p of V = z²Δ² + s² remains; p·V − s², relative to Δ², is smallest for the smallest Δ.
        """
        smoothing = SMOOTHING / (noise_multiplier * min_steps) if noise_multiplier and part < 1 else 0.0
        missing = (1 - part) * smoothing * smoothing  # infinite for the least noise, where ** would raise
        return Gaussian(noise_multiplier * sqrt(max(part - max(missing, 0.0), 0.0)))

    def tail_bound(self, shares: int, magnitude: float) -> float:
        """Chernoff's bound on the probability that a sum of `shares` shares has this magnitude or more.

        The noise is sub-Gaussian with parameter σ (Canonne et al. 2020).
        """
        return min(1.0, 2 * exp(-(max(magnitude, 0.0) ** 2) / (2 * shares * self.sigma**2)))

    def loss(self, shares: int, bound: IntegerBound) -> Zcdp:
        """The privacy loss of a sum with `shares` shares of noise in every coordinate: ρ = Δ₂² / 2V, ξ = τ·d."""
        whole(1, shares=shares)
        return Zcdp(bound.squared / (2 * shares * self.sigma**2), _tau(self.sigma, shares) * bound.dim, symmetric=True)

    def continuous(self, shares: int, bound: IntegerBound) -> Dominating:
        """A continuous Gaussian sum that dominates it, so that every accountant and every sampling applies.

        Formal guarantees: let Y be N(c, W) with an integer c, and K sampled with P(K = k) ∝ exp(−(k − Y)² / 2s²). The
        sum of these weights over k is √(2π)·s·(1 ± η) for every Y, η = 2·Σ exp(−2π²s²n²), so K is c plus the discrete
        Gaussian of V = W + s², up to two factors within 1 ± η (after Peikert 2010, Theorem 3.1). Hence the discrete
        mechanism of V is the continuous mechanism of V − s² followed by rounding, which is post-processing; a sum of
        shares adds a factor of e^{±τ/2} (Kairouz et al., Section 3). Each factor counts once per coordinate.
        """
        variance = max(shares * self.sigma**2 - SMOOTHING**2, 0.0)
        return Dominating(Gaussian(sqrt(variance) / bound.l2), distance_of_sum([(self.sigma**2, shares)], bound.dim))


def distance_of_sum(parts: Iterable[tuple[float, int]], dim: int) -> float:
    """Total variation of a sum of discrete Gaussians from the rounded continuous Gaussian of the same variance.

    The sum of two, of variances v and w, is the discrete Gaussian of v + w up to a factor of e^{±5·exp(−2π²·vw/(v+w))}
    (Kairouz et al., Section 3), and adding more keeps the factor. Terms are added one by one, widest first, so every
    term w of a group is added to at least what came before the group. One factor of `continuous` for rounding.

    Args:
        parts: variances of the terms, and how many have each.
        dim: number of coordinates, each of which counts.
    """
    eta = 2.01 * exp(-2 * (pi * SMOOTHING) ** 2)
    (first, count), *others = sorted(parts, reverse=True)
    log_ratio, before = log1p(eta) - log1p(-eta) + _tau(sqrt(first), count) / 2, first * count
    for variance, times in others:
        log_ratio += 5 * times * exp(-2 * pi**2 * variance * before / (variance + before))
        before += variance * times
    return min(1.0, expm1(min(dim * log_ratio, 1.0)))


@dataclass(frozen=True)
class Skellam:
    """The difference of two Poisson variables: P(X = k) = e^{−σ²} · I_k(σ²). A sum of shares is exactly Skellam.

    Args:
        sigma: its standard deviation.

    Formal guarantees: with μ = m·σ², a sum has D_α ≤ α·Δ₂² / 2μ + min{((2α−1)·Δ₂² + 6·Δ₁) / 4μ², 3·Δ₁ / 2μ} at
    integer orders (Agarwal et al. 2021).

    Example:
        >>> Skellam(3.0).table.max_magnitude
        52
    """

    sigma: float

    def __post_init__(self) -> None:
        _check_sigma(self.sigma)

    @property
    def table(self) -> CdfTable:
        """The table to sample from."""
        return skellam_table(self.sigma)

    @classmethod
    def for_shares(cls, noise_multiplier: float, bound: IntegerBound, shares: float) -> "Skellam":
        """The noise of one share, if `shares` of them amount to `declared_loss`."""
        return cls(noise_multiplier * bound.l2 / sqrt(shares))

    @staticmethod
    def declared_loss(noise_multiplier: float, part: float, min_steps: float) -> Zcdp:
        """The loss of a sum with this part of the noise variance: `loss` for Δ₁ ≤ Δ₂², which decreases in Δ₂."""
        shares = part * (noise_multiplier * min_steps) ** 2
        squared = int(min_steps) ** 2
        return Skellam(1.0).loss(int(shares), IntegerBound(squared, squared))

    def tail_bound(self, shares: int, magnitude: float) -> float:
        """Chernoff's bound on the probability that a sum of `shares` shares has this magnitude or more."""
        return min(1.0, 2 * exp(-skellam_rate(max(magnitude, 0.0), shares * self.sigma**2)))

    def loss(self, shares: int, bound: IntegerBound) -> Zcdp:
        """The smaller of the two bounds at a typical order; both hold at all integer orders."""
        whole(1, shares=shares)
        variance = shares * self.sigma**2
        rho = bound.squared / (2 * variance)
        first = (rho * (1 + 1 / variance), max(0.0, (6 * bound.l1 - bound.squared) / (4 * variance**2)))
        second = (rho, 3 * bound.l1 / (2 * variance))
        return Zcdp(*min(first, second, key=lambda pair: TYPICAL_ORDER * pair[0] + pair[1]), symmetric=True)


IntegerNoise = DiscreteGaussian | Skellam


def _check_sigma(sigma: float) -> None:
    statement = f"sigma={sigma:g} in [{MIN_SIGMA:g}, {MAX_SIGMA:g}] steps of the grid"
    advice = "Use a finer grid." if sigma < MIN_SIGMA else "Use a coarser grid: it costs no accuracy here."
    expect(MIN_SIGMA <= sigma <= MAX_SIGMA, statement, advice)


def _tau(sigma: float, shares: int) -> float:
    """τ of Kairouz et al.: the distance between the sum of these shares and one discrete Gaussian, per coordinate."""
    return 10 * fsum(exp(-2 * (pi * sigma) ** 2 * k / (k + 1)) for k in range(1, shares))
