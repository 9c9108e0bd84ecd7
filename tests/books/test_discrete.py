"""Prices of integer noise beside divergences that are summed up term by term."""

import math
from dataclasses import replace
from functools import reduce

import dp_accounting as dp
import numpy as np
import numpy.typing as npt
import pytest
from dp_accounting import rdp as dp_rdp
from scipy.special import logsumexp

from tacit.books import renyi
from tacit.books.accountants import RUNNING, Adjacency, Pld, Rdp
from tacit.books.discrete import ORDERS, LatticeRelease, amplified, price
from tacit.books.privacy import PrivacyBook
from tacit.core import UserError
from tacit.mechanisms.discrete import SMOOTHING, DiscreteGaussian, IntegerBound, IntegerNoise, Skellam
from tacit.mechanisms.lattice import Lattice

Array = npt.NDArray[np.float64]
Z, RATE, ROUNDS, DELTA = 1.54, 1 / 60, 200, 1e-5  # FL-TOP-DP
REACH = 260


def log_pmf(noise: IntegerNoise, reach: int = REACH) -> Array:
    """Logarithms of the probabilities of −reach … reach, none of them lost to underflow."""
    k = np.arange(-reach, reach + 1.0)
    if isinstance(noise, DiscreteGaussian):
        weights = -(k**2) / (2 * noise.sigma**2)
    else:  # by continued fractions for I_{k+1} / I_k
        ratio, logs = 0.0, []
        for n in range(reach + 200, 0, -1):
            ratio = 1 / (2 * n / noise.sigma**2 + ratio)
            logs.append(math.log(ratio))
        half = np.cumsum(logs[::-1])[:reach]
        weights = np.r_[half[::-1], 0.0, half]
    return np.asarray(weights - logsumexp(weights))


def convolved(one: Array, other: Array) -> Array:
    """The logarithms of a sum's probabilities, on the same range."""
    reach = (len(one) - 1) // 2
    padded = np.r_[np.full(2 * reach, -np.inf), other, np.full(2 * reach, -np.inf)]
    windows = np.lib.stride_tricks.sliding_window_view(padded, len(one))[reach : 3 * reach + 1]
    return np.asarray(logsumexp(windows + one[::-1], axis=1))


def summed(noise: IntegerNoise, shares: int) -> Array:
    return reduce(convolved, [log_pmf(noise)] * shares)


def divergence(p: Array, q: Array, order: float) -> float:
    return float(logsumexp(order * p + (1 - order) * q)) / (order - 1)


def exact(total: Array, shift: int, order: float) -> float:
    """D_α between the sum and the same moved by `shift`; what is out of range is far below rounding."""
    return divergence(total[:-shift], total[shift:], order)


GRID = [(sigma, shares) for sigma in (0.5, 0.7, 1.0, 2.0, 3.0) for shares in (1, 2, 5)]


@pytest.mark.parametrize(("sigma", "shares"), GRID)
@pytest.mark.parametrize("kind", [DiscreteGaussian, Skellam])
def test_never_below_the_exact_divergence(kind: type[DiscreteGaussian], sigma: float, shares: int) -> None:
    total = summed(kind(sigma), shares)
    for shift in (1, 2, 5):
        event = kind(sigma).event(shares, IntegerBound(shift**2, 1))
        for order in (2, 3, 8, 32):
            truth = exact(total, shift, order)
            assert event.rho * order + event.xi >= truth * (1 - 1e-9)


@pytest.mark.parametrize("shares", [1, 2, 5])
def test_from_three_steps_on_it_is_the_gaussian(shares: int) -> None:
    for sigma in (3.0, 4.0):
        total = summed(DiscreteGaussian(sigma), shares)
        event = DiscreteGaussian(sigma).event(shares, IntegerBound(4, 1))
        gaussian = 4 / (2 * shares * sigma**2)
        assert event.rho == gaussian
        for order in (2, 8, 32):
            assert event.rho * order + event.xi == pytest.approx(exact(total, 2, order), rel=1e-3)
    assert DiscreteGaussian(3.0).event(1000, IntegerBound(10**8, 10**7)).xi < 1e-27


def test_skellam_is_within_a_thousandth_where_its_variance_is_large() -> None:
    for sigma, gap in ((10.0, 0.04), (100.0, 5e-4), (630.0, 2e-5)):
        event = Skellam(sigma).event(1, IntegerBound(round(sigma**2), 1))
        assert 0 < (8 * event.rho + event.xi) / (8 * 0.5) - 1 < gap
    sum_of_shares = summed(Skellam(1.0), 4)
    np.testing.assert_allclose(sum_of_shares[160:361], log_pmf(Skellam(2.0))[160:361], rtol=1e-9)


@pytest.mark.parametrize("sigma", [0.5, 0.7, 1.0])
def test_sums_of_shares_are_as_near_to_one_discrete_gaussian_as_said(sigma: float) -> None:
    for shares in (2, 3, 6):
        tau = DiscreteGaussian(sigma).event(shares, IntegerBound(1, 1)).xi
        middle = slice(REACH - 40, REACH + 41)
        one = log_pmf(DiscreteGaussian(sigma * math.sqrt(shares)))
        apart = float(np.abs(summed(DiscreteGaussian(sigma), shares) - one)[middle].max())
        assert 1e-8 < apart <= tau / 2


def hockey_stick(p: Array, q: Array, epsilon: float) -> float:
    return float(np.maximum(p - math.exp(epsilon) * q, 0).sum())


def mixture(still: Array, moved: Array, rate: float) -> Array:
    return (1 - rate) * still + rate * moved


def gaussian_delta(noise: float, rate: float, epsilon: float, *, removed: bool) -> float:
    x = np.arange(-14 * noise, 14 * noise + 1, noise / 400)
    still, moved = (np.exp(-((x - at) ** 2) / (2 * noise**2)) / (400 * math.sqrt(2 * math.pi)) for at in (0, 1))
    pair = (mixture(still, moved, rate), still)
    return hockey_stick(*(pair if removed else pair[::-1]), epsilon)


@pytest.mark.parametrize("rate", [1.0, 0.1])
@pytest.mark.parametrize("removed", [True, False])
@pytest.mark.parametrize(
    ("sigma", "shares", "shift"), [(3.0, 1, 1), (3.0, 1, 4), (2.0, 3, 3), (0.8, 8, 2), (12.0, 2, 9)]
)
def test_the_continuous_gaussian_costs_no_less(
    sigma: float, shares: int, shift: int, removed: bool, rate: float
) -> None:
    noise = DiscreteGaussian(sigma)
    bound = noise.continuous(shares, IntegerBound(shift**2, 1))
    assert bound.event.noise_multiplier == pytest.approx(math.sqrt(shares * sigma**2 - SMOOTHING**2) / shift)
    total = np.exp(summed(noise, shares))
    moved = np.r_[np.zeros(shift), total[:-shift]]
    pair = (mixture(total, moved, rate), total)
    for epsilon in (0.0, 0.1, 0.5, 1.0, 2.0):
        truth = hockey_stick(*(pair if removed else pair[::-1]), epsilon)
        said = gaussian_delta(bound.event.noise_multiplier, rate, epsilon, removed=removed)
        assert truth <= said * (1 + 1e-4) + (1 + math.exp(epsilon)) * bound.distance + 1e-15


def test_the_continuous_gaussian_in_two_dimensions_and_its_distance() -> None:
    noise, (right, up) = DiscreteGaussian(4.0), (3, 2)
    one = np.exp(log_pmf(noise, 60))
    still = np.outer(one, one)
    moved = np.roll(still, (right, up), axis=(0, 1))
    bound = noise.continuous(1, IntegerBound(13, 2))
    for epsilon in (0.0, 0.5, 1.0, 2.0):
        truth = hockey_stick(still.ravel(), moved.ravel(), epsilon)
        assert truth <= gaussian_delta(bound.event.noise_multiplier, 1.0, epsilon, removed=True) * (1 + 1e-4)
        assert truth >= 0.6 * gaussian_delta(4 / math.sqrt(13), 1.0, epsilon, removed=True)
    assert 0 < DiscreteGaussian(3.0).continuous(100, IntegerBound(1, 10**7)).distance < 1e-26
    assert DiscreteGaussian(0.2).continuous(100, IntegerBound(1, 10**7)).distance == 1
    assert DiscreteGaussian(0.2).continuous(9, IntegerBound(1, 1)).event.noise_multiplier == 0


def test_rounding_by_a_discrete_gaussian_makes_one_of_a_continuous_one() -> None:
    """The step of the proof: N(0, V − s²) rounded with s is the discrete Gaussian of V, up to a ripple."""
    for variance, smoothing in ((9.0, 1.0), (0.5, 0.5)):
        k, y = np.arange(-60, 61.0), np.arange(-60, 60, 0.01)
        density = np.exp(-(y**2) / (2 * (variance - smoothing**2)))
        weights = np.exp(-((k[:, None] - y) ** 2) / (2 * smoothing**2))
        rounded = (weights / weights.sum(0) * density).sum(1) / density.sum()
        wanted = log_pmf(DiscreteGaussian(math.sqrt(variance)), 60)
        apart = np.abs(np.log(rounded[50:71]) - wanted[50:71]).max()
        ripple = 2.01 * math.exp(-2 * (math.pi * smoothing) ** 2)
        assert apart <= math.log1p(ripple) - math.log1p(-ripple)
    assert apart > 1e-4  # so coarse a rounding shows


@pytest.mark.parametrize("noise", [DiscreteGaussian(0.8), Skellam(0.8), DiscreteGaussian(50.0)])
def test_the_event_is_one_that_dp_accounting_prices(noise: IntegerNoise) -> None:
    event = noise.event(20, IntegerBound(9, 5))
    accountant = dp_rdp.RdpAccountant(orders=list(range(2, 257)))
    accountant.compose(event, 30)
    ours = price(LatticeRelease.of(event), 30, DELTA)
    assert ours.server == ours.recipients == pytest.approx(accountant.get_epsilon(DELTA), rel=1e-12)
    assert (event.xi > 1e-3) == (noise.sigma < 1)


@pytest.mark.parametrize("rate", [0.01, RATE, 0.3])
def test_amplification_is_between_the_exact_one_and_none(rate: float) -> None:
    whole = ORDERS / (2 * Z**2)
    least = renyi.sampled(ORDERS, Z, rate)
    bound = amplified(whole, rate)
    assert (bound >= least * (1 - 1e-9)).all()
    assert (bound <= whole).all()
    assert bound[0] < whole[0] * 1.5 * rate**1.5
    q = rate
    by_hand = (1 - q) ** 2 * (2 * q + 1) + 3 * q**2 * (1 - q) * math.exp(whole[0]) + 3 * q**3 * math.exp(2 * whole[1])
    assert bound[1] == pytest.approx(math.log(by_hand) / 2, rel=1e-12)


@pytest.mark.parametrize("kind", [DiscreteGaussian, Skellam])
def test_amplified_prices_are_never_below_the_exact_divergence(kind: type[DiscreteGaussian]) -> None:
    for sigma, shift, rate in ((1.0, 1, 0.1), (3.0, 2, 0.3), (3.0, 5, 0.05)):
        still = log_pmf(kind(sigma))[:-shift]
        moved = log_pmf(kind(sigma))[shift:]
        mixed = np.logaddexp(still + math.log1p(-rate), moved + math.log(rate))
        release = LatticeRelease.of(kind(sigma).event(1, IntegerBound(shift**2, 1)), rate=rate)
        for order in (2, 3, 8, 16):
            bound = release.divergences()[order - 2]
            assert bound >= divergence(mixed, still, order) * (1 - 1e-9)
            assert bound >= divergence(still, mixed, order) * (1 - 1e-9)


def lattice(bits: int = 32, kind: type[DiscreteGaussian] | type[Skellam] = DiscreteGaussian) -> Lattice:
    sized = {"clip": 1.0, "dim": 8316, "cohort": 100, "honest": 100, "noise_multiplier": Z}
    return Lattice.sized(**sized, bits=bits, noise=kind)  # type: ignore[arg-type]


def release(grid: Lattice) -> LatticeRelease:
    priced = LatticeRelease.of(grid.event(100), rate=RATE, failure=grid.failure)
    if not isinstance(grid.noise, DiscreteGaussian):
        return priced
    near = grid.noise.continuous(100, grid.bound)
    return priced.rounding(near.event, near.distance)


@pytest.mark.parametrize("accountant", [RUNNING, Rdp()], ids=["pld", "rdp"])
def test_fl_top_dp_costs_on_the_lattice_what_it_costs_off_it(accountant: Pld | Rdp) -> None:
    event = dp.PoissonSampledDpEvent(RATE, dp.GaussianDpEvent(Z))
    continuous = PrivacyBook.of(accountant).charge(event, ROUNDS).epsilon(DELTA)
    ours = price(release(lattice()), ROUNDS, DELTA, participations=10, accountant=accountant)
    assert ours.recipients == pytest.approx(continuous, rel=1e-5)
    everyone = PrivacyBook.of(accountant).charge(dp.GaussianDpEvent(Z), 10).epsilon(DELTA)
    assert everyone * (1 - 1e-5) <= ours.server <= everyone * 1.001
    assert 0 < ours.slack < 1e-20


@pytest.mark.parametrize(
    ("bits", "steps", "more"), [(32, 4096, 0.0004), (20, 4096, 0.0004), (17, 562, 0.007), (16, 278, 0.025)]
)
def test_at_equal_noise_smaller_rings_cost_more(bits: int, steps: int, more: float) -> None:
    """The grid that stays within 1 % of the continuous Gaussian's ε fits 17 bits; at 16 it is 2.4 %."""
    grid = lattice(bits)
    same = replace(grid, noise=DiscreteGaussian(Z * grid.steps / 10))  # of the clip, not of the longer bound
    continuous = PrivacyBook.of(Rdp()).charge(dp.PoissonSampledDpEvent(RATE, dp.GaussianDpEvent(Z)), ROUNDS)
    ours = price(release(same), ROUNDS, DELTA, participations=1, accountant=Rdp()).recipients
    assert grid.steps == steps
    assert 0 < ours / continuous.epsilon(DELTA) - 1 < more * 1.25


def test_skellam_costs_what_the_general_amplification_says() -> None:
    gaussian = price(LatticeRelease(1 / (2 * Z**2), rate=RATE), ROUNDS, DELTA, participations=10)
    ours = price(release(lattice(kind=Skellam)), ROUNDS, DELTA, participations=10)
    assert ours.recipients == pytest.approx(gaussian.recipients, rel=1e-6)
    assert ours.recipients == pytest.approx(1.0228, abs=1e-4)
    assert ours.server == pytest.approx(gaussian.server, rel=1e-6)


def test_delta_pays_for_the_samplers() -> None:
    ideal = LatticeRelease(0.002)
    real = replace(ideal, failure=1e-9)
    priced = price(real, 50, DELTA)
    assert (1 + math.exp(priced.server)) * 50 * 1e-9 <= priced.slack < 3e-6
    assert priced.server == pytest.approx(price(ideal, 50, DELTA - priced.slack).server)
    assert price(ideal, 50, DELTA).slack == 0
    hopeless = price(replace(ideal, failure=1e-6), 50, DELTA)
    assert math.isinf(hopeless.server)
    assert hopeless.slack == DELTA
    assert "ε = inf against" in str(hopeless)


def test_who_never_took_part_has_nothing_to_fear_from_the_server() -> None:
    assert price(LatticeRelease(0.2, rate=0.1, noise=1.5), 5, DELTA, participations=0, accountant=Rdp()).server == 0


def test_without_honest_noise_nothing_is_proved() -> None:
    for noise in (DiscreteGaussian(10.0), Skellam(10.0)):
        none = LatticeRelease.of(noise.event(0, IntegerBound(4, 1)), rate=0.5)
        assert price(none, 1, DELTA).recipients == math.inf


def test_other_events_and_numbers_are_refused() -> None:
    with pytest.raises(UserError, match="Expected a ZCDpEvent"):
        LatticeRelease.of(dp.GaussianDpEvent(1.0))
    with pytest.raises(UserError, match="Expected a GaussianDpEvent"):
        LatticeRelease(1.0).rounding(dp.ZCDpEvent(1.0), 0.0)
    for wrong in ({"rho": 0.0}, {"xi": -1.0}, {"rate": 0.0}, {"rate": 1.5}, {"failure": 2.0}):
        with pytest.raises(UserError, match="Expected"):
            LatticeRelease(**{"rho": 1.0, **wrong})
    for rounds, participations in ((0, None), (5, 6), (5, -1)):
        with pytest.raises(UserError, match="Expected"):
            price(LatticeRelease(1.0), rounds, DELTA, participations=participations)
    with pytest.raises(UserError, match="added or removed"):
        price(LatticeRelease(1.0), 5, DELTA, accountant=Rdp(Adjacency.REPLACE_ONE))
