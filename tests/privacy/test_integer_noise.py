"""The prices of integer noise, compared with divergences that are summed term by term."""

import json
import math
from functools import reduce
from typing import Literal

import dp_accounting as dp
import numpy as np
import numpy.typing as npt
import pytest
from dp_accounting import rdp as dp_rdp
from scipy.special import logsumexp
from scipy.stats import skellam

from tacit.core.prices import Gaussian, Release, Sampling, Zcdp
from tacit.errors import UserError
from tacit.pieces.mechanisms.arithmetic import INTEGER_DISTANCE, INTEGER_NOISES, Grid, Reals
from tacit.privacy import renyi
from tacit.privacy.accountants import FAST_PLD, Accountant, Accounting, Pld, Rdp, default_accountant
from tacit.privacy.noise.discrete import SMOOTHING, DiscreteGaussian, IntegerBound, IntegerNoise, Skellam
from tacit.privacy.noise.lattice import Lattice
from tacit.privacy.release_json import from_json, to_json
from tacit.privacy.renyi import amplify

Array = npt.NDArray[np.float64]
Z, RATE, ROUNDS, DELTA = 1.54, 1 / 60, 200, 1e-5  # FL-TOP-DP
REACH = 260


def log_pmf(noise: IntegerNoise, reach: int = REACH) -> Array:
    """Log-probabilities of −reach … reach, without underflow."""
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
    """Log-probabilities of the sum, on the same range."""
    reach = (len(one) - 1) // 2
    padded = np.r_[np.full(2 * reach, -np.inf), other, np.full(2 * reach, -np.inf)]
    windows = np.lib.stride_tricks.sliding_window_view(padded, len(one))[reach : 3 * reach + 1]
    return np.asarray(logsumexp(windows + one[::-1], axis=1))


def summed(noise: IntegerNoise, shares: int) -> Array:
    return reduce(convolved, [log_pmf(noise)] * shares)


def divergence(p: Array, q: Array, order: float) -> float:
    return float(logsumexp(order * p + (1 - order) * q)) / (order - 1)


def exact(total: Array, shift: int, order: float) -> float:
    """D_α between the sum and the sum shifted by `shift`; what is out of range is far below rounding errors."""
    return divergence(total[:-shift], total[shift:], order)


GRID = [(sigma, shares) for sigma in (0.5, 0.7, 1.0, 2.0, 3.0) for shares in (1, 2, 5)]


@pytest.mark.parametrize(("sigma", "shares"), GRID)
@pytest.mark.parametrize("kind", [DiscreteGaussian, Skellam])
def test_losses_are_never_below_the_exact_divergence(kind: type[DiscreteGaussian], sigma: float, shares: int) -> None:
    total = summed(kind(sigma), shares)
    for shift in (1, 2, 5):
        bound = kind(sigma).loss(shares, IntegerBound(shift**2, 1))
        for order in (2, 3, 8, 32):
            truth = exact(total, shift, order)
            assert bound.rho * order + bound.xi >= truth * (1 - 1e-9)


@pytest.mark.parametrize("shares", [1, 2, 5])
def test_the_discrete_gaussian_equals_the_gaussian_from_sigma_3(shares: int) -> None:
    for sigma in (3.0, 4.0):
        total = summed(DiscreteGaussian(sigma), shares)
        bound = DiscreteGaussian(sigma).loss(shares, IntegerBound(4, 1))
        gaussian = 4 / (2 * shares * sigma**2)
        assert bound.rho == gaussian
        for order in (2, 8, 32):
            assert bound.rho * order + bound.xi == pytest.approx(exact(total, 2, order), rel=1e-3)
    assert DiscreteGaussian(3.0).loss(1000, IntegerBound(10**8, 10**7)).xi < 1e-27


def test_skellam_is_within_a_thousandth_where_its_variance_is_large() -> None:
    for sigma, gap in ((10.0, 0.04), (100.0, 5e-4), (630.0, 2e-5)):
        bound = Skellam(sigma).loss(1, IntegerBound(round(sigma**2), 1))
        assert 0 < (8 * bound.rho + bound.xi) / (8 * 0.5) - 1 < gap
    sum_of_shares = summed(Skellam(1.0), 4)
    np.testing.assert_allclose(sum_of_shares[160:361], log_pmf(Skellam(2.0))[160:361], rtol=1e-9)


@pytest.mark.parametrize("sigma", [0.5, 0.7, 1.0])
def test_a_sum_of_shares_is_as_close_to_one_discrete_gaussian_as_declared(sigma: float) -> None:
    for shares in (2, 3, 6):
        tau = DiscreteGaussian(sigma).loss(shares, IntegerBound(1, 1)).xi
        middle = slice(REACH - 40, REACH + 41)
        one = log_pmf(DiscreteGaussian(sigma * math.sqrt(shares)))
        apart = float(np.abs(summed(DiscreteGaussian(sigma), shares) - one)[middle].max())
        assert 1e-8 < apart <= tau / 2


def hockey_stick(p: Array, q: Array, epsilon: float) -> float:
    return float(np.maximum(p - math.exp(epsilon) * q, 0).sum())


def mixture(without: Array, shifted: Array, rate: float) -> Array:
    return (1 - rate) * without + rate * shifted


def gaussian_delta(noise: float, rate: float, epsilon: float, *, removed: bool) -> float:
    x = np.arange(-14 * noise, 14 * noise + 1, noise / 400)
    without, shifted = (np.exp(-((x - at) ** 2) / (2 * noise**2)) / (400 * math.sqrt(2 * math.pi)) for at in (0, 1))
    mixed = mixture(without, shifted, rate)
    return hockey_stick(mixed, without, epsilon) if removed else hockey_stick(without, mixed, epsilon)


@pytest.mark.parametrize("rate", [1.0, 0.1])
@pytest.mark.parametrize("removed", [True, False])
@pytest.mark.parametrize(
    ("sigma", "shares", "shift"), [(3.0, 1, 1), (3.0, 1, 4), (2.0, 3, 3), (0.8, 8, 2), (12.0, 2, 9)]
)
def test_the_discrete_gaussian_costs_at_most_what_the_continuous_one_does(
    sigma: float, shares: int, shift: int, removed: bool, rate: float
) -> None:
    noise = DiscreteGaussian(sigma)
    bound = noise.continuous(shares, IntegerBound(shift**2, 1))
    assert bound.loss.noise_multiplier == pytest.approx(math.sqrt(shares * sigma**2 - SMOOTHING**2) / shift)
    total = np.exp(summed(noise, shares))
    shifted = np.r_[np.zeros(shift), total[:-shift]]
    mixed = mixture(total, shifted, rate)
    for epsilon in (0.0, 0.1, 0.5, 1.0, 2.0):
        truth = hockey_stick(mixed, total, epsilon) if removed else hockey_stick(total, mixed, epsilon)
        declared = gaussian_delta(bound.loss.noise_multiplier, rate, epsilon, removed=removed)
        assert truth <= declared * (1 + 1e-4) + (1 + math.exp(epsilon)) * bound.distance + 1e-15


def test_the_continuous_gaussian_in_two_dimensions_and_its_distance() -> None:
    noise, (right, up) = DiscreteGaussian(4.0), (3, 2)
    one = np.exp(log_pmf(noise, 60))
    without = np.outer(one, one)
    shifted = np.roll(without, (right, up), axis=(0, 1))
    bound = noise.continuous(1, IntegerBound(13, 2))
    for epsilon in (0.0, 0.5, 1.0, 2.0):
        truth = hockey_stick(without.ravel(), shifted.ravel(), epsilon)
        assert truth <= gaussian_delta(bound.loss.noise_multiplier, 1.0, epsilon, removed=True) * (1 + 1e-4)
        assert truth >= 0.6 * gaussian_delta(4 / math.sqrt(13), 1.0, epsilon, removed=True)
    assert 0 < DiscreteGaussian(3.0).continuous(100, IntegerBound(1, 10**7)).distance < 1e-26
    assert DiscreteGaussian(0.2).continuous(100, IntegerBound(1, 10**7)).distance == 1
    assert DiscreteGaussian(0.2).continuous(9, IntegerBound(1, 1)).loss.noise_multiplier == 0


def test_rounding_a_continuous_gaussian_gives_a_discrete_one() -> None:
    """A step of the proof: N(0, V − s²) rounded with s is the discrete Gaussian of V, up to a small ripple."""
    for variance, smoothing in ((9.0, 1.0), (0.5, 0.5)):
        k, y = np.arange(-60, 61.0), np.arange(-60, 60, 0.01)
        density = np.exp(-(y**2) / (2 * (variance - smoothing**2)))
        weights = np.exp(-((k[:, None] - y) ** 2) / (2 * smoothing**2))
        rounded = (weights / weights.sum(0) * density).sum(1) / density.sum()
        wanted = log_pmf(DiscreteGaussian(math.sqrt(variance)), 60)
        apart = np.abs(np.log(rounded[50:71]) - wanted[50:71]).max()
        ripple = 2.01 * math.exp(-2 * (math.pi * smoothing) ** 2)
        assert apart <= math.log1p(ripple) - math.log1p(-ripple)
    assert apart > 1e-4  # coarse rounding is visible


ORDERS = np.arange(2.0, 257.0)


@pytest.mark.parametrize("noise", [DiscreteGaussian(0.8), Skellam(0.8), DiscreteGaussian(50.0)])
def test_zcdp_costs_what_dp_accounting_computes(noise: IntegerNoise) -> None:
    loss = noise.loss(20, IntegerBound(9, 5))
    accountant = dp_rdp.RdpAccountant(orders=list(range(2, 257)))
    accountant.compose(dp.ZCDpEvent(loss.rho, loss.xi), 30)
    ours = Accounting.of(Rdp()).compose(Release(loss), 30).epsilon(DELTA)
    assert accountant.get_epsilon(DELTA) * (1 - 1e-12) <= ours <= accountant.get_epsilon(DELTA) * 1.001
    assert (loss.xi > 1e-3) == (noise.sigma < 1)


@pytest.mark.parametrize("rate", [0.01, RATE, 0.3])
def test_amplification_is_between_the_exact_one_and_none(rate: float) -> None:
    whole = ORDERS / (2 * Z**2)
    least = renyi.sampled(ORDERS, Z, rate)
    bound = renyi.amplify(whole, rate)
    assert (bound >= least * (1 - 1e-9)).all()
    assert (bound <= whole).all()
    assert bound[0] < whole[0] * 1.5 * rate**1.5
    q = rate
    by_hand = (1 - q) ** 2 * (2 * q + 1) + 3 * q**2 * (1 - q) * math.exp(whole[0]) + 3 * q**3 * math.exp(2 * whole[1])
    assert bound[1] == pytest.approx(math.log(by_hand) / 2, rel=1e-12)


@pytest.mark.parametrize("kind", [DiscreteGaussian, Skellam])
def test_amplified_bounds_are_never_below_the_exact_divergence(kind: type[DiscreteGaussian]) -> None:
    for sigma, shift, rate in ((1.0, 1, 0.1), (3.0, 2, 0.3), (3.0, 5, 0.05)):
        without = log_pmf(kind(sigma))[:-shift]
        shifted = log_pmf(kind(sigma))[shift:]
        mixed = np.logaddexp(without + math.log1p(-rate), shifted + math.log(rate))
        bound = kind(sigma).loss(1, IntegerBound(shift**2, 1))
        bounds = renyi.amplify(bound.rho * ORDERS + bound.xi, rate)
        for order in (2, 3, 8, 16):
            assert bounds[order - 2] >= divergence(mixed, without, order) * (1 - 1e-9)
            assert bounds[order - 2] >= divergence(without, mixed, order) * (1 - 1e-9)


def lattice(bits: int = 32, kind: type[DiscreteGaussian] | type[Skellam] = DiscreteGaussian) -> Lattice:
    return Lattice.fit(clip=1.0, dim=8316, cohort=100, honest=100, noise_multiplier=Z, bits=bits, noise=kind)


def epsilon(release: Release | None, accountant: Accountant, rounds: int = ROUNDS) -> float:
    assert release is not None
    return Accounting.of(accountant).compose(release, rounds).epsilon(DELTA)


def sampled(release: Release | None) -> Release:
    assert release is not None
    return release.sampled(Sampling("poisson", RATE))


@pytest.mark.parametrize("accountant", [FAST_PLD, Rdp()], ids=["pld", "rdp"])
def test_fl_top_dp_costs_the_same_on_the_lattice_as_with_reals(accountant: Accountant) -> None:
    """The declared price is that of the continuous Gaussian, and no less noise is added."""
    ours, continuous = Grid().release(Z, 1.0), Reals().release(Z, 1.0)
    assert epsilon(sampled(ours), accountant) == pytest.approx(epsilon(sampled(continuous), accountant), rel=1e-9)
    assert epsilon(ours, accountant, 10) == pytest.approx(epsilon(continuous, accountant, 10), rel=1e-9)
    grid = lattice()
    near = grid.noise.continuous(100, grid.bound)  # type: ignore[union-attr]
    assert near.loss.noise_multiplier >= Z * (1 - 1e-12)
    sampling = grid.cohort * grid.dim * grid.noise.table.error
    assert near.distance + sampling + grid.overflow < INTEGER_DISTANCE
    assert grid.inflation < 0.001  # the additional noise: under 1 % in ε as well


@pytest.mark.parametrize(
    ("bits", "steps", "more"), [(32, 4096, 0.0002), (20, 4096, 0.0002), (17, 512, 0.0051), (16, 256, 0.0181)]
)
def test_at_equal_noise_smaller_moduli_cost_more(bits: int, steps: int, more: float) -> None:
    """Rounding inflates the clipping bound: by 0.5 % on the grid for 17 bits, by 1.8 % at 16 bits."""
    grid = lattice(bits)
    assert grid.steps == steps
    assert 0 < grid.inflation < more
    smaller = Z / (1 + grid.inflation)  # the multiplier if the noise were sized for the clipping bound alone
    cost = epsilon(sampled(Release(Gaussian(smaller))), Rdp()) / epsilon(sampled(Release(Gaussian(Z))), Rdp()) - 1
    assert 0 < cost < 2.5 * more


@pytest.mark.parametrize("part", [1.0, 0.8, 1.25])
@pytest.mark.parametrize("kind", ["gaussian", "skellam"])
def test_the_declared_price_covers_every_grid(kind: Literal["gaussian", "skellam"], part: float) -> None:
    """The price does not depend on dimension and bound; on any grid, the noise added costs no more than declared."""
    grid = Grid(noise=kind, steps=256)
    declared = grid.release(Z, part)
    for dim, clip in ((10, 0.3), (8316, 0.61), (50_000, 7.0)):
        made = Lattice.fit(
            clip=clip, dim=dim, cohort=100, honest=100, noise_multiplier=Z, noise=INTEGER_NOISES[kind], steps=grid.steps
        )
        shares = round(100 * part)
        if isinstance(made.noise, DiscreteGaussian):
            real = Release(made.noise.continuous(shares, made.bound).loss)
        else:
            real = Release(made.loss(shares))
        assert epsilon(real, Rdp(), 10) <= epsilon(declared, Rdp(), 10) * (1 + 1e-9)
        assert epsilon(real, Rdp(), 10) >= epsilon(declared, Rdp(), 10) * 0.99


def test_sampling_amplifies_skellam_noise_as_it_does_gaussian_noise() -> None:
    """The general bound gives 1.0228: it needs a factor that noise which is as likely as its negative does not."""
    release = Grid(noise="skellam").release(Z, 1.0)
    ours = epsilon(sampled(release), Rdp())
    assert ours == pytest.approx(epsilon(sampled(Release(Gaussian(Z))), Rdp()), rel=1e-6)
    assert epsilon(sampled(Release(Zcdp(1 / (2 * Z**2)))), Rdp()) == pytest.approx(1.0228, abs=2e-4)
    assert isinstance(default_accountant(sampled(release)), Rdp)
    assert default_accountant(sampled(Grid().release(Z, 1.0))) is FAST_PLD


@pytest.mark.parametrize("rate", [0.02, 0.3, 0.9])
@pytest.mark.parametrize(("sigma", "moved"), [(1.0, (1,)), (1.0, (1, -1, 2)), (3.0, (3,)), (2.0, (4, 1))])
def test_no_bound_for_sampled_skellam_noise_is_below_the_true_divergence(
    rate: float, sigma: float, moved: tuple[int, ...]
) -> None:
    """Over one or several coordinates, whether the client is added or removed: by sums over all outputs."""
    squared = sum(each**2 for each in moved)
    loss = Skellam(sigma).loss(1, IntegerBound(squared, len(moved)))
    assert loss.symmetric
    orders = np.arange(2.0, 9.0, dtype=np.float64)
    whole: Array = loss.rho * orders + loss.xi
    bounds = amplify(whole, rate, symmetric=True)
    assert (bounds <= amplify(whole, rate)).all()
    outputs = np.arange(-40, 41)
    without, with_it = np.ones(1), np.ones(1)
    for each in moved:  # independent coordinates
        without = np.outer(without, skellam.pmf(outputs, sigma**2 / 2, sigma**2 / 2)).ravel()
        with_it = np.outer(with_it, skellam.pmf(outputs - each, sigma**2 / 2, sigma**2 / 2)).ravel()
    known = (without > 1e-200) & (with_it > 1e-200)
    out, drawn = without[known], (1 - rate) * without[known] + rate * with_it[known]
    for order, bound in zip(orders, bounds, strict=True):
        for p, q in ((drawn, out), (out, drawn)):
            assert logsumexp(order * np.log(p) + (1.0 - order) * np.log(q)) / (order - 1) <= bound * (1 + 1e-9)


def test_mirrored_outputs_contribute_at_least_as_much_if_the_client_is_removed() -> None:
    """The inequality on which the bound for symmetric noise rests, for ratios of likelihoods from 1e-5 to 1e5."""
    ratio = np.exp(np.linspace(-12, 12, 2001))
    for rate in np.linspace(0.001, 0.999, 37):
        u, v = 1 - rate + rate * ratio, 1 - rate + rate / ratio
        for order in (1.01, 1.5, 2.0, 3.0, 10.0, 30.0):
            removed, added = u**order + ratio * v**order, u ** (1 - order) + ratio * v ** (1 - order)
            assert (removed >= added * (1 - 1e-12)).all()


def test_delta_includes_the_errors_of_noise_samplers() -> None:
    ideal = Accounting.of(Rdp()).compose(Release(Zcdp(0.002)), 50)
    real = Accounting.of(Rdp()).compose(Release(Zcdp(0.002), 1e-9), 50)
    assert real.distance == pytest.approx(5e-8)
    error = real.noise_error(DELTA)
    assert (1 + math.exp(real.epsilon(DELTA))) * 5e-8 <= error < 3e-6
    assert real.epsilon(DELTA) == ideal.epsilon(DELTA - error) > ideal.epsilon(DELTA)
    assert real.delta(3.0) == pytest.approx(ideal.delta(3.0) + (1 + math.exp(3.0)) * 5e-8)
    assert (ideal.noise_error(DELTA), ideal.distance) == (0, 0)
    assert Accounting.of(Rdp()).compose(Release(Zcdp(0.002), 1e-6), 50).epsilon(DELTA) == math.inf
    guarantee = real.guarantee(DELTA, [Release(Zcdp(0.002))])
    assert guarantee.noise_error == error
    assert f"δ includes {error:.1g} for imperfect noise sampling." in str(guarantee)  # too much to be negligible


def test_a_round_without_honest_noise_has_no_price() -> None:
    for numbers in (Reals(), Grid(), Grid(noise="skellam")):
        assert numbers.release(Z, 0.0) is None
        assert numbers.release(0.0, 1.0) is None


def test_releases_round_trip_and_others_are_refused() -> None:
    losses = (Release(Gaussian(1.5), 1e-9), Release(Zcdp(0.2, 1e-9)), Release(Zcdp(1.0, 0.5)))
    for release in map(sampled, losses):
        assert from_json(json.loads(json.dumps(to_json(release)))) == release
    with pytest.raises(UserError, match="Expected accountant rdp"):
        Accounting.of(Pld()).compose(Release(Zcdp(1.0)))
    with pytest.raises(UserError, match="Expected Poisson"):
        Accounting.of(Rdp()).compose(Release(Zcdp(1.0), sampling=Sampling("fixed", 1 / 6)))
