"""Rényi divergences of Gaussian sums over random cohorts.

Mironov, Talwar, Zhang (2019), "Rényi differential privacy of the sampled Gaussian mechanism", Section 3.3, for a
client that is added or removed; Wang, Balle, Kasiviswanathan (2019), "Subsampled Rényi differential privacy and
analytical moments accountant", Theorem 27, for a client that is replaced; Zhu, Wang (2019), "Poisson subsampled Rényi
differential privacy", Theorem 5, for sums of any other noise. `noise` is always over the distance that the client can
move the sum.
"""

import math

import numpy as np
import numpy.typing as npt
from scipy.special import gammaln, logsumexp

Array = npt.NDArray[np.float64]
FINE = 0.1  # with less noise than this an integral would need a very fine grid


def gaussian(orders: Array, noise: float) -> Array:
    """Everyone takes part: α / 2σ²."""
    return orders / (2 * noise**2)


def sampled(orders: Array, noise: float, rate: float) -> Array:
    """D_α of (1−q)·N(0, σ²) + q·N(1, σ²) from N(0, σ²), the larger of the two directions."""
    whole = orders == np.floor(orders)
    moments = np.empty_like(orders)
    moments[whole] = _moments_by_sum(orders[whole], noise, rate)
    between = _moments_by_integral if noise >= FINE else _moments_by_chord
    moments[~whole] = between(orders[~whole], noise, rate)
    return moments / (orders - 1)


def _moments_by_sum(orders: Array, noise: float, rate: float) -> Array:
    """Logarithms of E (p/q)^α by the binomial theorem (Mironov et al., Section 3.3)."""
    k = np.arange(int(orders.max(initial=0)) + 1)
    alpha = orders[:, None]
    weights = _log_binomial(alpha, k) + k * math.log(rate) + np.maximum(alpha - k, 0) * math.log1p(-rate)
    terms = np.where(k <= alpha, weights + k * (k - 1) / (2 * noise**2), -np.inf)
    return np.asarray(logsumexp(terms, axis=1))


def _moments_by_integral(orders: Array, noise: float, rate: float) -> Array:
    """The same for any order, by the trapezoidal rule: its error falls as exp(−2π²σ² / step), here below 1e-30."""
    step = min(noise / 8, noise**2 / 4)
    z = np.arange(-12 * noise, orders.max(initial=0) + 12 * noise, step)
    ratio = np.logaddexp(math.log1p(-rate), math.log(rate) + (2 * z - 1) / (2 * noise**2))
    density = -(z**2) / (2 * noise**2) + math.log(step / noise / math.sqrt(2 * math.pi))
    return np.array([logsumexp(order * ratio + density) for order in orders])


def _moments_by_chord(orders: Array, noise: float, rate: float) -> Array:
    """An upper bound for any order: the logarithm of a moment is convex in the order, and 0 at order 1."""
    whole = np.arange(1.0, math.ceil(orders.max(initial=1)) + 1)
    bound: Array = np.interp(orders, whole, _moments_by_sum(whole, noise, rate))
    return bound


def replaced(orders: Array, noise: float, rate: float) -> Array:
    """The bound of Wang et al., Theorem 27, where a client of a random cohort is replaced by another.

    Formal guarantees: holds if with, without, and with the other client, the sums are at most one unit apart
    from each other. Proved for cohorts of fixed size; for Poisson cohorts the same argument holds for every
    choice of the others.
    """
    top = int(orders.max())
    j = np.arange(2, top + 1)
    factors = np.minimum(math.log(4) + _central_moments(top, noise), math.log(2) + j * (j - 1) / (2 * noise**2))
    alpha = orders[:, None]
    terms = np.where(j <= alpha, _log_binomial(alpha, j) + j * math.log(rate) + factors, -np.inf)
    divergence: Array = np.logaddexp(0, logsumexp(terms, axis=1)) / (orders - 1)
    return divergence


def amplified(divergences: Array, rate: float) -> Array:
    """Poisson amplification of any mechanism whose divergences at the orders 2, 3, … are given.

    Formal guarantees: holds for integer orders and a client that is added or removed, if each client takes part by a
    coin of its own that the adversary does not see.

    Reference: Zhu, Wang 2019. Poisson Subsampled Rényi Differential Privacy, Theorem 5.
    """
    order = np.arange(2.0, len(divergences) + 2)
    alpha = order[:, None]
    weights = _log_binomial(alpha, order) + order * math.log(rate) + np.maximum(alpha - order, 0) * math.log1p(-rate)
    moments = weights + (order - 1) * divergences + np.where(order == 2, 0.0, math.log(3))
    first = (order - 1) * math.log1p(-rate) + np.log1p((order - 1) * rate)
    higher = logsumexp(np.where(order <= alpha, moments, -np.inf), axis=1)
    value: Array = np.minimum(np.logaddexp(first, higher) / (order - 1), divergences)
    return value


def _log_binomial(alpha: Array, k: npt.NDArray[np.int64] | Array) -> Array:
    """Where k > α the value has no meaning and is not used."""
    value: Array = gammaln(alpha + 1) - gammaln(k + 1) - gammaln(np.maximum(alpha - k, 0) + 1)
    return value


def _central_moments(top: int, noise: float) -> Array:
    """Logarithms of a bound on E|p/q − 1|^j, for j = 2 … top, where p and q are N(1, σ²) and N(0, σ²), under q.

    Even moments by the trapezoidal rule, which is exact to rounding for sums of Gaussians at this step; odd ones
    by Cauchy and Schwarz from their neighbours, as in the paper.
    """
    even = np.arange(2, top + 2, 2)
    step = noise / 8
    z = np.arange(-12 * noise, even[-1] + 12 * noise, step)
    exponent = (2 * z - 1) / (2 * noise**2)
    with np.errstate(divide="ignore"):
        deviation = np.maximum(exponent, 0) + np.log(-np.expm1(-np.abs(exponent)))  # ln |p/q − 1|
    density = -(z**2) / (2 * noise**2) + math.log(step / noise / math.sqrt(2 * math.pi))
    moments = np.array([logsumexp(order * deviation + density) for order in even])
    j = np.arange(2, top + 1)
    value: Array = (moments[j // 2 - 1] + moments[(j + 1) // 2 - 1]) / 2
    return value
