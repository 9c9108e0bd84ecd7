import math

import dp_accounting as dp
import numpy as np
import pytest
from dp_accounting import rdp
from scipy.integrate import quad
from scipy.special import logsumexp

from tacit.core.prices import Gaussian, Release, Sampling
from tacit.privacy import renyi
from tacit.privacy.accountants import Accounting, Rdp

CASES = [(1.54, 1 / 60), (0.7, 0.3), (3.0, 0.05), (10.0, 0.5), (0.4, 0.001)]


@pytest.mark.parametrize(("noise", "rate"), CASES)
def test_divergences_at_integer_orders_equal_those_of_dp_accounting(noise, rate):
    orders = np.arange(2.0, 257.0)
    theirs = rdp.RdpAccountant(orders).compose(dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(noise))).rdp
    np.testing.assert_allclose(renyi.sampled(orders, noise, rate), theirs, rtol=1e-9)


@pytest.mark.parametrize(("noise", "rate"), CASES)
@pytest.mark.parametrize("order", [1.1, 2.4, 7.5])
def test_divergences_at_fractional_orders_equal_the_integral(noise, rate, order):
    def integrand(z: float) -> float:
        ratio = np.logaddexp(math.log1p(-rate), math.log(rate) + (2 * z - 1) / (2 * noise**2))
        return float(math.exp(order * ratio - z * z / (2 * noise**2)) / noise / math.sqrt(2 * math.pi))

    moment = quad(integrand, -14 * noise, order + 14 * noise, points=[0, 1, order], epsrel=1e-11, limit=400)[0]
    assert renyi.sampled(np.array([order]), noise, rate)[0] == pytest.approx(math.log(moment) / (order - 1), rel=1e-5)


def test_divergences_at_low_noise_are_bounded_without_an_integral():
    orders = np.linspace(1.1, 12, 110)
    chord, integral = renyi.sampled(orders, 0.0999, 0.1), renyi.sampled(orders, 0.1001, 0.1)
    assert (chord >= integral).all()
    np.testing.assert_allclose(chord[orders > 2], integral[orders > 2], rtol=0.25)
    assert np.isfinite(renyi.sampled(orders, 1e-3, 0.1)).all()


@pytest.mark.parametrize(("noise", "rate"), [(1.54, 1 / 60), (0.77, 1 / 60), (2.0, 0.25)])
def test_the_bound_for_replace_one_equals_that_of_dp_accounting(noise, rate):
    orders = np.array([2.0, 3.0, 4.0, 7.0, 16.0, 33.0, 64.0])
    event = dp.SampledWithoutReplacementDpEvent(6000, round(6000 * rate), dp.GaussianDpEvent(noise))
    theirs = rdp.RdpAccountant(orders, dp.NeighboringRelation.REPLACE_ONE).compose(event).rdp
    np.testing.assert_allclose(renyi.replace_one(orders, noise, rate), theirs, rtol=1e-6)


def divergence(order: float, one: tuple[float, ...], other: tuple[float, ...], noise: float, rate: float) -> float:
    """D_α between (1−q)·N(one₀) + q·N(one₁) and the other mixture, by brute force."""
    z = np.linspace(-40, 80, 200_001)

    def log_density(means: tuple[float, ...]) -> renyi.Array:
        parts = [-((z - mean) ** 2) / (2 * noise**2) for mean in means]
        return np.asarray(np.logaddexp(math.log1p(-rate) + parts[0], math.log(rate) + parts[1]))

    constant = math.log((z[1] - z[0]) / noise / math.sqrt(2 * math.pi))
    return float(logsumexp(order * log_density(one) + (1 - order) * log_density(other)) + constant) / (order - 1)


@pytest.mark.parametrize("order", [2, 5, 8, 16])
def test_fixed_size_cohorts_have_sensitivity_2(order):
    """All others send −1. A cohort with the client's +1, with 0 in its place, or with another −1 sums to 2, 1 or 0."""
    noise, rate = 1.54, 1 / 60
    removed = divergence(order, (0, 2), (0, 0), noise, rate)
    zeroed = divergence(order, (0, 2), (0, 1), noise, rate)
    orders = np.array([float(order)])
    assert removed == pytest.approx(renyi.sampled(orders, noise / 2, rate)[0], rel=1e-6)
    assert zeroed <= renyi.replace_one(orders, noise / 2, rate)[0]
    if order > 2:  # sensitivity 1 is not enough, not even for a client that is zeroed out
        assert zeroed > renyi.replace_one(orders, noise, rate)[0]


def test_noise_whose_square_underflows_is_no_noise() -> None:
    least = Release(Gaussian(1e-200), sampling=Sampling("poisson", 0.1))
    assert Accounting.of(Rdp(), [least]).epsilon(1e-5) == math.inf
