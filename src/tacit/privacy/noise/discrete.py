"""Discrete Gaussian and Skellam noise: how much, and what it proves about a sum of integers.

References: Canonne, Kamath, Steinke 2020 (discrete Gaussian); Kairouz, Liu, Steinke 2021 (its sums); Agarwal, Kairouz,
Liu 2021 (Skellam); Peikert 2010 (rounding by a discrete Gaussian).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import exp, expm1, fsum, hypot, log1p, pi, sqrt
from typing import Protocol

from tacit.core.prices import Gaussian, Zcdp
from tacit.errors import expect
from tacit.privacy.noise.cdf_table import CdfTable, gaussian_table, skellam_rate, skellam_table

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


class IntegerNoise(Protocol):
    """Symmetric integer noise."""

    @classmethod
    def for_shares(cls, noise_multiplier: float, bound: IntegerBound, shares: float) -> "IntegerNoise":
        """The noise of one share, if `shares` of them amount to `declared_loss(noise_multiplier, …)`."""
        ...

    @staticmethod
    def declared_loss(noise_multiplier: float, part: float, min_steps: float) -> Gaussian | Zcdp:
        """The loss of a sum with this part of the noise variance, for any bound of at least `min_steps` steps."""
        ...

    @property
    def sigma(self) -> float:
        """Standard deviation, in steps of the grid."""
        ...

    @property
    def table(self) -> "CdfTable":
        """The table to sample from."""
        ...

    def tail_bound(self, shares: int, magnitude: float) -> float:
        """An upper bound on the probability that the sum of `shares` shares has this magnitude or more."""
        ...

    def loss(self, shares: int, bound: IntegerBound) -> Zcdp:
        """The privacy loss of a sum with `shares` shares of noise in every coordinate."""
        ...


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
        return gaussian_table(self.sigma)

    @classmethod
    def for_shares(cls, noise_multiplier: float, bound: IntegerBound, shares: float) -> "DiscreteGaussian":
        """Slightly more noise than the multiplier requires, by what `continuous` subtracts."""
        return cls(hypot(noise_multiplier * bound.l2, SMOOTHING) / sqrt(shares))

    @staticmethod
    def declared_loss(noise_multiplier: float, part: float, min_steps: float) -> Gaussian:
        """The continuous Gaussian sum that it is a rounding of, for any dimension and bound.

        A part p of V = z²Δ² + s² remains; p·V − s², relative to Δ², is smallest for the smallest Δ.
        """
        smoothing = SMOOTHING / (noise_multiplier * min_steps) if noise_multiplier and part < 1 else 0.0
        missing = (1 - part) * smoothing * smoothing  # infinite for the least noise, where ** would raise
        return Gaussian(noise_multiplier * sqrt(max(part - max(missing, 0.0), 0.0)))

    def tail_bound(self, shares: int, magnitude: float) -> float:
        """Chernoff's bound: the noise is sub-Gaussian with parameter σ (Canonne et al. 2020)."""
        return min(1.0, 2 * exp(-(max(magnitude, 0.0) ** 2) / (2 * shares * self.sigma**2)))

    def loss(self, shares: int, bound: IntegerBound) -> Zcdp:
        """ρ = Δ₂² / 2V, ξ = τ·d."""
        expect(shares >= 1, f"shares={shares} >= 1 of the noise")
        return Zcdp(bound.squared / (2 * shares * self.sigma**2), _tau(self.sigma, shares) * bound.dim)

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
        return skellam_table(self.sigma)

    @classmethod
    def for_shares(cls, noise_multiplier: float, bound: IntegerBound, shares: float) -> "Skellam":
        return cls(noise_multiplier * bound.l2 / sqrt(shares))

    @staticmethod
    def declared_loss(noise_multiplier: float, part: float, min_steps: float) -> Zcdp:
        """The bound of `loss` for Δ₁ ≤ Δ₂², which decreases in Δ₂."""
        shares = part * (noise_multiplier * min_steps) ** 2
        squared = int(min_steps) ** 2
        return Skellam(1.0).loss(int(shares), IntegerBound(squared, squared))

    def tail_bound(self, shares: int, magnitude: float) -> float:
        """Chernoff's bound."""
        return min(1.0, 2 * exp(-skellam_rate(max(magnitude, 0.0), shares * self.sigma**2)))

    def loss(self, shares: int, bound: IntegerBound) -> Zcdp:
        """The smaller of the two bounds at a typical order; both hold at all integer orders."""
        expect(shares >= 1, f"shares={shares} >= 1 of the noise")
        variance = shares * self.sigma**2
        rho = bound.squared / (2 * variance)
        first = (rho * (1 + 1 / variance), max(0.0, (6 * bound.l1 - bound.squared) / (4 * variance**2)))
        second = (rho, 3 * bound.l1 / (2 * variance))
        return Zcdp(*min(first, second, key=lambda pair: TYPICAL_ORDER * pair[0] + pair[1]))


def _check_sigma(sigma: float) -> None:
    statement = f"sigma={sigma:g} in [{MIN_SIGMA:g}, {MAX_SIGMA:g}] steps of the grid"
    advice = "Use a finer grid." if sigma < MIN_SIGMA else "Use a coarser grid: it costs no accuracy here."
    expect(MIN_SIGMA <= sigma <= MAX_SIGMA, statement, advice)


def _tau(sigma: float, shares: int) -> float:
    """τ of Kairouz et al.: the distance between the sum of these shares and one discrete Gaussian, per coordinate."""
    return 10 * fsum(exp(-2 * (pi * sigma) ** 2 * k / (k + 1)) for k in range(1, shares))
