"""Rényi accounting of Gaussian sums over random cohorts: divergences, their composition, and conversion to (ε, δ).

Mironov, Talwar, Zhang (2019), "Rényi differential privacy of the sampled Gaussian mechanism", Section 3.3, for a client
that is added or removed; Wang, Balle, Kasiviswanathan (2019), "Subsampled Rényi differential privacy and analytical
moments accountant", Theorem 27, for a client that is replaced; Zhu, Wang (2019), "Poisson subsampled Rényi differential
privacy", Theorem 5, for any other noise, and Bun, Steinke (2016), "Concentrated differential privacy", Lemma 5.2, for a
client that is replaced there. `noise` is always relative to the sensitivity of the sum.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from dp_accounting import rdp as dp_rdp
from scipy.special import gammaln, logsumexp

from tacit.core.prices import Adjacency, Laplace, Release, Zcdp

Array = npt.NDArray[np.float64]
MIN_INTEGRAL_NOISE = 0.1  # below it an integral would need a very fine grid


@dataclass(frozen=True, eq=False)
class RenyiComposition:
    """Composed releases as Rényi divergences, which add up order by order.

    `classic` is the conversion ε = min over α of D_α − ln δ / (α − 1) (Mironov 2017, Proposition 3); otherwise it is
    that of `dp_accounting` (Canonne, Kamath, Steinke 2020, Proposition 12).
    """

    adjacency: Adjacency
    orders: tuple[float, ...]
    divergences: Array
    classic: bool = False

    def compose(self, release: Release, count: int = 1) -> "RenyiComposition":
        """The composition with `count` more of this release."""
        release.check_proved(self.adjacency)
        total = self.divergences + count * _divergences(release, self.adjacency, self.orders)
        return replace(self, divergences=total)

    def epsilon(self, delta: float) -> float:
        """The ε at this δ; infinite if nothing is proved."""
        orders, divergences = np.array(self.orders), self.divergences
        if not divergences.any():
            return 0.0
        if self.classic:
            return max(0.0, float((divergences - math.log(delta) / (orders - 1)).min()))
        return float(dp_rdp.compute_epsilon(orders, divergences, delta)[0])

    def delta(self, epsilon: float) -> float:
        """The δ at this ε."""
        orders, divergences = np.array(self.orders), self.divergences
        if not divergences.any():
            return 0.0
        if self.classic:
            return math.exp(min(0.0, float(((orders - 1) * (divergences - epsilon)).min())))
        return float(dp_rdp.rdp_privacy_accountant.compute_delta(orders, divergences, epsilon)[0])


@lru_cache(maxsize=1024)
def _divergences(release: Release, adjacency: Adjacency, orders: Sequence[float]) -> Array:
    adjacency = release.adjacency_under(adjacency)
    sampling = release.amplification
    if isinstance(release.loss, Zcdp):
        return _zcdp(release.loss, sampling.rate, orders, replaces=adjacency is Adjacency.REPLACE_ONE)
    noise = release.loss.noise_multiplier / sampling.sensitivity(adjacency)
    if isinstance(release.loss, Laplace):  # what sampling would amplify is left aside
        return np.minimum(gaussian(np.array(orders, dtype=np.float64), noise), 1 / noise)
    alpha = np.array(orders, dtype=np.float64)
    if noise**2 == 0:  # also where only the square underflows
        return np.full(alpha.shape, np.inf)
    if sampling.rate == 1:
        return gaussian(alpha, noise)
    if adjacency is Adjacency.REPLACE_ONE:
        return np.minimum(replace_one(np.ceil(np.maximum(alpha, 2.0)), noise, sampling.rate), gaussian(alpha, noise))
    if adjacency is Adjacency.ZERO_OUT and sampling.kind == "fixed":
        return zero_out(alpha, noise, sampling.rate)
    return sampled(alpha, noise, sampling.rate)


def _zcdp(loss: Zcdp, rate: float, orders: Sequence[float], *, replaces: bool) -> Array:
    """Bounds that hold at integer orders only; between two integers, the bound at the higher one holds."""
    alpha = np.maximum(np.ceil(np.array(orders, dtype=np.float64)).astype(int), 2)
    highest = alpha.max() * (2 if replaces else 1)
    whole: Array = loss.rho * np.arange(2.0, highest + 1) + loss.xi
    bounds = whole if rate == 1 else amplify(whole, rate, symmetric=loss.symmetric)
    at_orders: Array = (bounds_of_replacement(bounds) if replaces else bounds)[alpha - 2]
    return at_orders


def bounds_of_replacement(divergences: Array) -> Array:
    """The bounds at the orders 2 … m for a client that is replaced, from those at 2 … 2m for one that is removed.

    To replace a client is to remove it and to add another one: D_α(P‖Q) ≤ 2α/(2α−1) · D_{2α−1}(P‖R) + D_{2α}(R‖Q),
    where R is the sum without it. Of D_α ≤ ρ·α, that is 4·ρ·α.

    Reference: Bun, Steinke 2016. Concentrated Differential Privacy, Lemma 5.2 with k = 2.
    """
    alpha = np.arange(2, (len(divergences) + 1) // 2 + 1)
    bound: Array = 2 * alpha / (2 * alpha - 1) * divergences[2 * alpha - 3] + divergences[2 * alpha - 2]
    return bound


def gaussian(orders: Array, noise: float) -> Array:
    """Without sampling: α / 2σ²."""
    return orders / (2 * noise**2)


def sampled(orders: Array, noise: float, rate: float) -> Array:
    """D_α between (1−q)·N(0, σ²) + q·N(1, σ²) and N(0, σ²), the larger of the two directions."""
    whole = orders == np.floor(orders)
    moments = np.empty_like(orders)
    moments[whole] = _moments_by_sum(orders[whole], noise, rate)
    fractional = _moments_by_integral if noise >= MIN_INTEGRAL_NOISE else _moments_by_chord
    moments[~whole] = fractional(orders[~whole], noise, rate)
    return moments / (orders - 1)


def _moments_by_sum(orders: Array, noise: float, rate: float) -> Array:
    """Logarithms of E (p/q)^α by the binomial theorem (Mironov et al., Section 3.3)."""
    k = np.arange(int(orders.max(initial=0)) + 1)
    alpha = orders[:, None]
    weights = _log_binomial(alpha, k) + k * math.log(rate) + np.maximum(alpha - k, 0) * math.log1p(-rate)
    terms = np.where(k <= alpha, weights + k * (k - 1) / (2 * noise**2), -np.inf)
    return np.asarray(logsumexp(terms, axis=1))


def _moments_by_integral(orders: Array, noise: float, rate: float) -> Array:
    """The same at any order, by the trapezoidal rule: its error falls as exp(−2π²σ² / step), here below 1e-30."""
    step = min(noise / 8, noise**2 / 4)
    z = np.arange(-12 * noise, orders.max(initial=0) + 12 * noise, step)
    ratio = np.logaddexp(math.log1p(-rate), math.log(rate) + (2 * z - 1) / (2 * noise**2))
    density = -(z**2) / (2 * noise**2) + math.log(step / noise / math.sqrt(2 * math.pi))
    return np.array([logsumexp(order * ratio + density) for order in orders])


def _moments_by_chord(orders: Array, noise: float, rate: float) -> Array:
    """An upper bound at any order: the logarithm of a moment is convex in the order, and 0 at order 1."""
    whole = np.arange(1.0, math.ceil(orders.max(initial=1)) + 1)
    bound: Array = np.interp(orders, whole, _moments_by_sum(whole, noise, rate))
    return bound


def replace_one(orders: Array, noise: float, rate: float) -> Array:
    """The bound of Wang et al., Theorem 27, for a client of a random cohort that is replaced by another.

    Formal guarantees: holds if the sums with the client, without it, and with the other client are at most one unit
    apart from each other. Proved for cohorts of fixed size; for Poisson cohorts the same argument holds for every
    choice of the others.
    """
    max_order = int(orders.max())
    j = np.arange(2, max_order + 1)
    factors = np.minimum(math.log(4) + _central_moments(max_order, noise), math.log(2) + j * (j - 1) / (2 * noise**2))
    alpha = orders[:, None]
    terms = np.where(j <= alpha, _log_binomial(alpha, j) + j * math.log(rate) + factors, -np.inf)
    divergence: Array = np.logaddexp(0, logsumexp(terms, axis=1)) / (orders - 1)
    return divergence


def zero_out(orders: Array, noise: float, rate: float) -> Array:
    """The bound for a client of a fixed-size cohort whose row is set to zero.

    Formal guarantees: a row of zeros is that of another client, so `replaced` holds, where all rows are one unit apart
    and each has a norm of at most half a unit; without amplification, the rows differ by half a unit. Between two
    integer orders, the bound at the higher one holds.
    """
    bound: Array = np.minimum(replace_one(np.ceil(np.maximum(orders, 2.0)), noise, rate), gaussian(orders, 2 * noise))
    return bound


def amplify(divergences: Array, rate: float, *, symmetric: bool = False) -> Array:
    """Poisson amplification of any mechanism whose divergences at the orders 2, 3, … are given.

    Formal guarantees: holds at integer orders for a client that is added or removed, if each client takes part
    independently and the adversary does not know who does.

    For `symmetric` noise, no factor 3 is needed. Let r be the ratio of the likelihoods of an output x with the client
    and without it, u = 1 − q + q·r and v = 1 − q + q/r. If the client is removed, the moment of order α is E u^α, whose
    binomial expansion has the moments E r^k ≤ exp((k − 1)·D_k). If it is added, the moment is E u^{1−α}, which is no
    larger: mirroring the noise about half of the client's row swaps both likelihoods, so that x and its mirror image
    contribute u^α + r·v^α and u^{1−α} + r·v^{1−α}, of which the first is at least the second for all r > 0. A row that
    is rounded at random is a mixture of such rows, for which the bound holds by quasi-convexity.

    Reference: Zhu, Wang 2019. Poisson Subsampled Rényi Differential Privacy, Theorem 5; for symmetric noise Mironov,
    Talwar, Zhang 2019. Rényi Differential Privacy of the Sampled Gaussian Mechanism, Theorem 5.
    """
    order = np.arange(2.0, len(divergences) + 2)
    alpha = order[:, None]
    weights = _log_binomial(alpha, order) + order * math.log(rate) + np.maximum(alpha - order, 0) * math.log1p(-rate)
    moments = weights + (order - 1) * divergences + np.where((order == 2) | symmetric, 0.0, math.log(3))
    first = (order - 1) * math.log1p(-rate) + np.log1p((order - 1) * rate)
    higher = logsumexp(np.where(order <= alpha, moments, -np.inf), axis=1)
    bound: Array = np.minimum(np.logaddexp(first, higher) / (order - 1), divergences)
    return bound


def _log_binomial(alpha: Array, k: npt.NDArray[np.int64] | Array) -> Array:
    """Where k > α the value is meaningless and not used."""
    value: Array = gammaln(alpha + 1) - gammaln(k + 1) - gammaln(np.maximum(alpha - k, 0) + 1)
    return value


def _central_moments(max_order: int, noise: float) -> Array:
    """Logarithms of a bound on E|p/q − 1|^j under q, for j = 2 … max_order, where p is N(1, σ²) and q is N(0, σ²).

    Even moments by the trapezoidal rule, which is exact to rounding for sums of Gaussians at this step; odd moments by
    the Cauchy–Schwarz inequality from their neighbours, as in the paper.
    """
    even = np.arange(2, max_order + 2, 2)
    step = noise / 8
    z = np.arange(-12 * noise, even[-1] + 12 * noise, step)
    exponent = (2 * z - 1) / (2 * noise**2)
    with np.errstate(divide="ignore"):
        deviation = np.maximum(exponent, 0) + np.log(-np.expm1(-np.abs(exponent)))  # ln |p/q − 1|
    density = -(z**2) / (2 * noise**2) + math.log(step / noise / math.sqrt(2 * math.pi))
    moments = np.array([logsumexp(order * deviation + density) for order in even])
    j = np.arange(2, max_order + 1)
    bound: Array = (moments[j // 2 - 1] + moments[(j + 1) // 2 - 1]) / 2
    return bound
