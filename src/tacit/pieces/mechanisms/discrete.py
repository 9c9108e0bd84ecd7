"""Integer noise from a cryptographic source: discrete Gaussian and Skellam, drawn through exact tables.

A table holds P(|X| ≤ k) as integers of 127 bits. A sample is a uniform number of 127 bits that is looked up there, and
one more bit for the sign. No float takes part in a draw, so the distribution of the samples is known exactly: it is
that of the table, and how far the table is from the pmf is part of it.

References: Canonne, Kamath, Steinke 2020 (discrete Gaussian); Kairouz, Liu, Steinke 2021 (its sums); Agarwal, Kairouz,
Liu 2021 (Skellam); Peikert 2010 (rounding by a discrete Gaussian).
"""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Context, Decimal
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate
from math import asinh, exp, expm1, fsum, hypot, inf, ldexp, log, log1p, pi, sqrt
from typing import Protocol

import numpy as np
import numpy.typing as npt

from tacit.core import Event
from tacit.errors import expect

Integers = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]
Source = Callable[[int], bytes]  # so many bytes, unpredictable: os.urandom, or an AES-CTR keystream

PRECISION = 127  # bits of a table's probabilities; with the sign's, two words of 64
FIXED = 256  # bits after the point while a table is built
LEAST_SIGMA, MOST_SIGMA = 0.1, 1e5  # beyond, a table would need more than some 20 MB
SMOOTHING = 2.0  # of a continuous Gaussian's rounding to the grid, in steps: less costs exactness, more costs noise
MIDDLE_ORDER = 8  # of the Rényi orders that matter


@dataclass(frozen=True)
class IntegerBound:
    """What one client can add to a sum of integer rows.

    Attributes:
        squared: no row has a larger squared L2 norm.
        dim: the length of a row.
    """

    squared: int
    dim: int

    @property
    def whole(self) -> float:
        """The bound Δ₂ on the L2 norm."""
        return sqrt(self.squared)

    @property
    def sum(self) -> float:
        """The bound Δ₁ on the L1 norm that follows: by Cauchy and Schwarz, and as |k| ≤ k² for integers."""
        return min(sqrt(self.dim) * self.whole, float(self.squared))


@dataclass(frozen=True)
class Dominating:
    """A continuous mechanism from which another follows by rounding, nearly.

    Attributes:
        event: the continuous one's.
        distance: total variation between the other and the rounded, at most.
    """

    event: Event
    distance: float


class IntegerNoise(Protocol):
    """Symmetric noise on the integers."""

    @classmethod
    def sharing(cls, noise_multiplier: float, bound: IntegerBound, shares: float) -> "IntegerNoise":
        """What each of so many clients adds, so that together they make up `declared(noise_multiplier, …)`."""
        ...

    @staticmethod
    def declared(noise_multiplier: float, part: float, least: float) -> Event:
        """What a sum costs that has this part of such noise in variance, if rows may be `least` steps long or more."""
        ...

    @property
    def sigma(self) -> float:
        """How wide it is, in steps of the grid."""
        ...

    @property
    def table(self) -> "Table":
        """What it is drawn through."""
        ...

    def beyond(self, shares: int, reach: float) -> float:
        """A bound on the probability that so many shares add up to `reach` or more, up or down."""
        ...

    def event(self, shares: int, bound: IntegerBound) -> Event:
        """What a sum costs that has so many shares in every coordinate: `dp_accounting.ZCDpEvent`."""
        ...


@dataclass(frozen=True, eq=False)
class Table:
    """P(|X| ≤ k) for k = 0, 1, …, in two words each; the last magnitude, whose value is 1, is left out.

    Formal guarantees: if the source is uniform, a sample's distribution is within `error` of the exact pmf in total
    variation: the rounding of N thresholds and the cut tail, N + 4 units of 2⁻¹²⁸ at most. Not constant in time: an
    adversary who can watch the memory of the client while it draws is not covered.
    """

    high: Words
    low: Words

    @property
    def reach(self) -> int:
        """The largest magnitude that can be drawn."""
        return len(self.high)

    @property
    def error(self) -> float:
        """Total variation between one sample and the exact pmf, at most."""
        return ldexp(self.reach + 1 + 4, -PRECISION - 1)

    def sample(self, count: int, source: Source = os.urandom) -> Integers:
        """So many independent draws."""
        words = _words(source, count)
        top = words >> np.uint64(1)
        places = np.searchsorted(self.high, top)
        for place in np.flatnonzero(self.high.take(places, mode="clip") == top):  # hardly ever: once in 2⁴⁹ draws
            places[place] = self._settle(top[place], _words(source, 1)[0])
        signs = (words & np.uint64(1)).astype(np.int64)
        negated: Integers = (places ^ -signs) + signs  # −k = ~k + 1, where the sign bit is set
        return negated

    def _settle(self, top: np.uint64, rest: np.uint64) -> int:
        """How many thresholds are at most the number whose words are `top` and `rest`."""
        first, last = np.searchsorted(self.high, top, "left"), np.searchsorted(self.high, top, "right")
        return int(first + np.searchsorted(self.low[first:last], rest, "right"))


@dataclass(frozen=True)
class DiscreteGaussian:
    """P(X = k) ∝ exp(−k² / 2σ²).

    Args:
        sigma: its standard deviation, but for some 10⁻⁷ at σ = 1 and less above.

    Formal guarantees: with shares of this noise from m honest clients, V = m·σ², a sum whose clients are within a
    bound Δ₂ has D_α ≤ α·Δ₂² / 2V + τ·d, where τ = 10·Σ_{k<m} exp(−2π²σ²·k/(k+1)) (Kairouz et al., Theorem 1); from
    σ = 3 on τ·d < 10⁻²⁸, and it is the Gaussian mechanism's.

    Example:
        >>> noise = DiscreteGaussian(3.0)
        >>> noise.table.reach, noise.table.error < 1e-36, noise.table.sample(100).dtype
        (39, True, dtype('int64'))
    """

    sigma: float

    def __post_init__(self) -> None:
        _check(self.sigma)

    @property
    def table(self) -> Table:
        """Built once for every σ."""
        return _gaussian_table(self.sigma)

    @classmethod
    def sharing(cls, noise_multiplier: float, bound: IntegerBound, shares: float) -> "DiscreteGaussian":
        """A little more than the multiplier says: what `continuous` takes off."""
        return cls(hypot(noise_multiplier * bound.whole, SMOOTHING) / sqrt(shares))

    @staticmethod
    def declared(noise_multiplier: float, part: float, least: float) -> Event:
        """The continuous Gaussian sum from which it follows by rounding, whatever the dimension and the bound.

        Of V = z²Δ² + s² a part p is left; p·V − s² is the least, relative to Δ², where Δ is.
        """
        missing = (1 - part) * (SMOOTHING / (noise_multiplier * least)) ** 2 if noise_multiplier else 0.0
        return _gaussian(noise_multiplier * sqrt(max(part - max(missing, 0.0), 0.0)))

    def beyond(self, shares: int, reach: float) -> float:
        """By Chernoff: it is sub-Gaussian with the parameter σ (Canonne et al. 2020)."""
        return min(1.0, 2 * exp(-(max(reach, 0.0) ** 2) / (2 * shares * self.sigma**2)))

    def event(self, shares: int, bound: IntegerBound) -> Event:
        """ρ = Δ₂² / 2V, ξ = τ·d."""
        if shares < 1:
            return _zcdp(inf, 0.0)
        return _zcdp(bound.squared / (2 * shares * self.sigma**2), _unlike_one(self.sigma, shares) * bound.dim)

    def continuous(self, shares: int, bound: IntegerBound) -> Dominating:
        """A continuous Gaussian sum that costs no less, so that every accountant and every sampling of it applies.

        Formal guarantees: let Y be N(c, W) with an integer c, and K drawn as P(K = k) ∝ exp(−(k − Y)² / 2s²). The sum
        of these weights over k is √(2π)·s·(1 ± η) for every Y, η = 2·Σ exp(−2π²s²n²), so K has c plus the discrete
        Gaussian of V = W + s², up to factors within (1 ± η) twice (after Peikert 2010, Theorem 3.1). Hence the discrete
        mechanism of V is the continuous one of V − s², rounded without looking at the data; shares add a factor of
        e^{±τ/2} (Kairouz et al., Section 3). Each factor counts once for each of d coordinates.
        """
        variance = max(shares * self.sigma**2 - SMOOTHING**2, 0.0)
        ripple = 2.01 * exp(-2 * (pi * SMOOTHING) ** 2)
        apart = bound.dim * (log1p(ripple) - log1p(-ripple) + _unlike_one(self.sigma, shares) / 2)
        return Dominating(_gaussian(sqrt(variance) / bound.whole), min(1.0, expm1(min(apart, 1.0))))


@dataclass(frozen=True)
class Skellam:
    """The difference of two Poisson numbers: P(X = k) = e^{−σ²} · I_k(σ²). Shares add up to a Skellam number exactly.

    Args:
        sigma: its standard deviation.

    Formal guarantees: with μ = m·σ², a sum has D_α ≤ α·Δ₂² / 2μ + min{((2α−1)·Δ₂² + 6·Δ₁) / 4μ², 3·Δ₁ / 2μ} at
    integer orders (Agarwal et al. 2021).

    Example:
        >>> Skellam(3.0).table.reach
        52
    """

    sigma: float

    def __post_init__(self) -> None:
        _check(self.sigma)

    @property
    def table(self) -> Table:
        """Built once for every σ."""
        return _skellam_table(self.sigma)

    @classmethod
    def sharing(cls, noise_multiplier: float, bound: IntegerBound, shares: float) -> "Skellam":
        """The multiplier's variance, in equal parts."""
        return cls(noise_multiplier * bound.whole / sqrt(shares))

    @staticmethod
    def declared(noise_multiplier: float, part: float, least: float) -> Event:
        """The bound of `event` where Δ₁ is at most Δ₂², which falls in Δ₂."""
        shares = part * (noise_multiplier * least) ** 2
        squared = int(least) ** 2
        return Skellam(1.0).event(int(shares), IntegerBound(squared, squared))

    def beyond(self, shares: int, reach: float) -> float:
        """By Chernoff."""
        return min(1.0, 2 * exp(-_skellam_rate(max(reach, 0.0), shares * self.sigma**2)))

    def event(self, shares: int, bound: IntegerBound) -> Event:
        """The lower of the two lines at the orders that matter; either holds at all integer orders."""
        if shares < 1:
            return _zcdp(inf, 0.0)
        variance = shares * self.sigma**2
        rho = bound.squared / (2 * variance)
        steep = (rho * (1 + 1 / variance), max(0.0, (6 * bound.sum - bound.squared) / (4 * variance**2)))
        return _zcdp(*min(steep, (rho, 3 * bound.sum / (2 * variance)), key=lambda at: MIDDLE_ORDER * at[0] + at[1]))


def _check(sigma: float) -> None:
    statement = f"sigma={sigma:g} in [{LEAST_SIGMA:g}, {MOST_SIGMA:g}] steps of the grid"
    advice = "A finer grid has more steps." if sigma < LEAST_SIGMA else "Take a coarser grid: it costs nothing there."
    expect(LEAST_SIGMA <= sigma <= MOST_SIGMA, statement, advice)


def _words(source: Source, count: int) -> Words:
    """So many uniform words of 64 bits."""
    drawn = source(8 * count)
    expect(len(drawn) == 8 * count, f"{8 * count} bytes of randomness, not {len(drawn)}")
    return np.frombuffer(drawn, dtype="<u8").astype(np.uint64, copy=False)


def _zcdp(rho: float, xi: float) -> Event:
    import dp_accounting  # only where a run is priced: it takes a second to load

    event: Event = dp_accounting.ZCDpEvent(rho, xi)
    return event


def _gaussian(noise_multiplier: float) -> Event:
    import dp_accounting

    event: Event = dp_accounting.GaussianDpEvent(noise_multiplier)
    return event


def _unlike_one(sigma: float, shares: int) -> float:
    """τ of Kairouz et al.: how far the sum of these shares is from one discrete Gaussian, in one coordinate."""
    return 10 * fsum(exp(-2 * (pi * sigma) ** 2 * k / (k + 1)) for k in range(1, shares))


@lru_cache(maxsize=16)
def _gaussian_table(sigma: float) -> Table:
    return _tabulated(list(_gaussian_weights(Fraction(sigma) ** 2)))


def _gaussian_weights(variance: Fraction) -> Iterator[int]:
    """exp(−k² / 2σ²) in fixed point, down to 2⁻¹⁴⁰.

    w_{k+1} = w_k · r^{2k+1} with r = exp(−1 / 2σ²). After k steps w_k is off by less than 5k² units of 2⁻²⁵⁶, all of
    them together by less than 2⁻¹⁸⁰: no part of the table's error.
    """
    exact = Context(prec=100)
    exponent = exact.divide(Decimal(-variance.denominator), Decimal(2 * variance.numerator))
    ratio = int(exact.multiply(exact.exp(exponent), Decimal(1 << FIXED)))
    weight, step, square = 1 << FIXED, ratio, ratio * ratio >> FIXED
    while weight >> FIXED - PRECISION - 13:
        yield weight
        weight, step = weight * step >> FIXED, step * square >> FIXED


@lru_cache(maxsize=16)
def _skellam_table(sigma: float) -> Table:
    return _tabulated(_skellam_weights(Fraction(sigma) ** 2))


def _skellam_weights(variance: Fraction) -> list[int]:
    """Multiples of I_k(μ), by Miller's backward recurrence I_{k−1} = I_{k+1} + (2k/μ)·I_k.

    Started at M with 0 and 1, it is off by less than P(X = M), here 2⁻¹⁹², at every k: what it adds to I_k is a
    multiple of the other solution K_k, which falls where I_k grows. All terms are positive, so no digits are lost.
    """
    weights = [0, 1 << FIXED]
    for k in range(_skellam_start(float(variance)), 0, -1):
        weights.append(weights[-2] + 2 * k * variance.denominator * weights[-1] // variance.numerator)
    return weights[:0:-1]


def _skellam_start(variance: float) -> int:
    """An M with P(X ≥ M) < 2⁻¹⁹²: the rate is at least quadratic up to σ², and more than linear above."""
    start = 1
    while _skellam_rate(start, variance) < 192 * log(2):
        start += 1 + start // 16
    return start


def _skellam_rate(reach: float, variance: float) -> float:
    """Chernoff's exponent: P(X ≥ r) ≤ exp(−(r·asinh(r/μ) − √(r² + μ²) + μ)), written without cancellation."""
    return reach * asinh(reach / variance) - reach**2 / (hypot(reach, variance) + variance)


def _tabulated(weights: list[int]) -> Table:
    """The thresholds ⌊2¹²⁷ · P(|X| ≤ k)⌋ up to where less than 2⁻¹²⁷ remains, which the last magnitude gets."""
    sums = list(accumulate((2 * weight for weight in weights[1:]), initial=weights[0]))
    total = sums[-1]
    thresholds = [(part << PRECISION) // total for part in sums]
    last = thresholds.index((1 << PRECISION) - 1) if (1 << PRECISION) - 1 in thresholds else len(thresholds) - 1
    high = np.array([threshold >> 64 for threshold in thresholds[:last]], dtype=np.uint64)
    low = np.array([threshold & (1 << 64) - 1 for threshold in thresholds[:last]], dtype=np.uint64)
    return Table(high, low)
