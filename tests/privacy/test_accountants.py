import math

import dp_accounting as dp
import numpy as np
import pytest
from dp_accounting import pld, rdp
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.special import logsumexp

from tacit.errors import UserError
from tacit.privacy import renyi
from tacit.privacy.accountants import ACCOUNTANTS, Adjacency, Pld, Rdp, RdpClassic, accountant, sensitivity
from tacit.privacy.events import Release

ALL = [RdpClassic(), Rdp(), Pld()]
REPLACED = [RdpClassic(Adjacency.REPLACE_ONE), Rdp(Adjacency.REPLACE_ONE)]
CASES = [(1.54, 1 / 60), (0.7, 0.3), (3.0, 0.05), (10.0, 0.5), (0.4, 0.001)]


@pytest.mark.parametrize(("noise", "rate"), CASES)
def test_divergences_at_whole_orders_are_those_of_the_library(noise, rate):
    orders = np.arange(2.0, 257.0)
    theirs = rdp.RdpAccountant(orders).compose(dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(noise))).rdp
    np.testing.assert_allclose(renyi.sampled(orders, noise, rate), theirs, rtol=1e-9)


@pytest.mark.parametrize(("noise", "rate"), CASES)
@pytest.mark.parametrize("order", [1.1, 2.4, 7.5])
def test_divergences_between_them_are_those_of_the_integral(noise, rate, order):
    def integrand(z: float) -> float:
        ratio = np.logaddexp(math.log1p(-rate), math.log(rate) + (2 * z - 1) / (2 * noise**2))
        return math.exp(order * ratio - z * z / (2 * noise**2)) / noise / math.sqrt(2 * math.pi)

    moment = quad(integrand, -14 * noise, order + 14 * noise, points=[0, 1, order], epsrel=1e-11, limit=400)[0]
    assert renyi.sampled(np.array([order]), noise, rate)[0] == pytest.approx(math.log(moment) / (order - 1), rel=1e-5)


def test_with_little_noise_divergences_are_bounded_quickly():
    orders = np.linspace(1.1, 12, 110)
    above, below = renyi.sampled(orders, 0.0999, 0.1), renyi.sampled(orders, 0.1001, 0.1)
    assert (above >= below).all()
    np.testing.assert_allclose(above[orders > 2], below[orders > 2], rtol=0.25)
    assert np.isfinite(renyi.sampled(orders, 1e-3, 0.1)).all()


@pytest.mark.parametrize(("noise", "rate"), [(1.54, 1 / 60), (0.77, 1 / 60), (2.0, 0.25)])
def test_the_bound_for_replaced_clients_is_that_of_the_library(noise, rate):
    orders = np.array([2.0, 3.0, 4.0, 7.0, 16.0, 33.0, 64.0])
    event = dp.SampledWithoutReplacementDpEvent(6000, round(6000 * rate), dp.GaussianDpEvent(noise))
    theirs = rdp.RdpAccountant(orders, dp.NeighboringRelation.REPLACE_ONE).compose(event).rdp
    np.testing.assert_allclose(renyi.replaced(orders, noise, rate), theirs, rtol=1e-6)


def divergence(order: float, one: tuple[float, ...], other: tuple[float, ...], noise: float, rate: float) -> float:
    """D_α of (1−q)·N(one₀) + q·N(one₁) from the other mixture, by brute force."""
    z = np.linspace(-40, 80, 200_001)

    def log_density(means: tuple[float, ...]) -> np.ndarray:
        parts = [-((z - mean) ** 2) / (2 * noise**2) for mean in means]
        return np.logaddexp(math.log1p(-rate) + parts[0], math.log(rate) + parts[1])

    constant = math.log((z[1] - z[0]) / noise / math.sqrt(2 * math.pi))
    return float(logsumexp(order * log_density(one) + (1 - order) * log_density(other)) + constant) / (order - 1)


@pytest.mark.parametrize("order", [2, 5, 8, 16])
def test_cohorts_of_fixed_size_cost_twice_the_sensitivity(order):
    """All others send −1. Then a cohort with the client's +1 in it, or 0, or another −1, has its sum at 2, 1 or 0."""
    noise, rate = 1.54, 1 / 60
    removed = divergence(order, (0, 2), (0, 0), noise, rate)
    zeroed = divergence(order, (0, 2), (0, 1), noise, rate)
    at = np.array([float(order)])
    assert removed == pytest.approx(renyi.sampled(at, noise / 2, rate)[0], rel=1e-6)
    assert zeroed <= renyi.replaced(at, noise / 2, rate)[0]
    if order > 2:  # once the sensitivity is not enough, not even for a client that is zeroed out
        assert zeroed > renyi.replaced(at, noise, rate)[0]


def test_sensitivities_are_those_of_the_table():
    table = {
        (sampling, adjacency): sensitivity(Release(1.0, rate, sampling), adjacency)
        for sampling, rate in (("everyone", 1.0), ("poisson", 0.5), ("fixed", 0.5))
        for adjacency in Adjacency
    }
    assert list(table.values()) == [1, 2, 1, 2, 2, 2]


def test_tight_accounting_is_the_library_s():
    release, event = Release(1.1, 0.1, "poisson"), dp.PoissonSampledDpEvent(0.1, dp.GaussianDpEvent(1.1))
    for adjacency, relation in zip(
        Adjacency, (dp.NeighboringRelation.ADD_OR_REMOVE_ONE, dp.NeighboringRelation.REPLACE_ONE), strict=True
    ):
        theirs = pld.PLDAccountant(relation).compose(event, 30)
        ours = Pld(adjacency).nothing().compose(release, 30)
        assert ours.epsilon(1e-5) == pytest.approx(theirs.get_epsilon(1e-5), rel=1e-9)
        assert ours.delta(2.0) == pytest.approx(theirs.get_delta(2.0), rel=1e-6)


@pytest.mark.parametrize("adjacency", Adjacency)
def test_everyone_has_a_closed_form(adjacency):
    noise = 5.0 / (2 if adjacency is Adjacency.REPLACE_ONE else 1) / math.sqrt(7)
    exact = dp.get_epsilon_gaussian(noise, 1e-5)
    for kind in ACCOUNTANTS.values():
        assert kind(adjacency).nothing().compose(Release(5.0), 7).epsilon(1e-5) >= exact * (1 - 1e-9)
    assert Pld(adjacency).nothing().compose(Release(5.0), 7).epsilon(1e-5) == pytest.approx(exact, rel=1e-4)


releases = st.builds(Release, st.floats(0.8, 8), st.floats(0.005, 0.5), st.sampled_from(["poisson", "fixed"]))


@given(releases, st.integers(1, 60), st.sampled_from([1e-3, 1e-5, 1e-7]))
@example(Release(7.0, 0.0078125, "fixed"), 1, 1e-5)  # best at order 119; `dp_accounting` has none from 64 to 127
@settings(max_examples=6, deadline=None)
def test_tighter_accountants_are_tighter_and_all_are_monotone(release, rounds, delta):
    classic, improved, tight = (by.nothing().compose(release, rounds) for by in ALL)
    assert classic.epsilon(delta) >= improved.epsilon(delta) >= tight.epsilon(delta) * (1 - 1e-6) - 1e-3
    for spent in (classic, improved, tight):
        assert spent.compose(release).epsilon(delta) >= spent.epsilon(delta)
        assert spent.epsilon(delta / 10) >= spent.epsilon(delta)
        assert spent.delta(spent.epsilon(delta)) <= delta * (1 + 1e-6)


@given(releases, releases, st.integers(1, 9), st.integers(1, 9))
@settings(max_examples=3, deadline=None)
@pytest.mark.parametrize("by", [*ALL, *REPLACED], ids=str)
def test_one_by_one_is_many_at_a_time(by, one, other, first, second):
    at_once = by.nothing().compose(one, first).compose(other, second)
    singly = by.nothing()
    for release in [other, *[one] * first, *[other] * (second - 1)]:
        singly = singly.compose(release)
    assert singly.epsilon(1e-5) == pytest.approx(at_once.epsilon(1e-5), rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("by", [*ALL, *REPLACED], ids=str)
def test_nothing_costs_nothing_and_no_noise_costs_everything(by):
    assert by.nothing().epsilon(1e-5) == by.nothing().delta(1.0) == 0
    exposed = by.nothing().compose(Release(0.0, 0.5, "poisson"))
    assert exposed.epsilon(1e-5) == math.inf
    assert exposed.delta(1.0) == 1
    assert exposed.compose(Release(5.0)).epsilon(1e-5) == math.inf


def test_what_has_no_bound_is_refused():
    with pytest.raises(UserError, match="Expected accountant rdp or rdp-classic"):
        Pld(Adjacency.REPLACE_ONE).nothing().compose(Release(1.0, 0.5, "fixed"))


def test_accountants_by_name():
    assert accountant("pld") == Pld()
    assert accountant("rdp-classic", "replace-one") == RdpClassic(Adjacency.REPLACE_ONE)
    with pytest.raises(UserError, match="Did you mean 'rdp'"):
        accountant("rpd")
    with pytest.raises(UserError, match="Expected adjacency in add-or-remove, replace-one"):
        accountant("pld", "zero-out")
    with pytest.raises(UserError, match="Expected orders"):
        RdpClassic(orders=(1, 2))
