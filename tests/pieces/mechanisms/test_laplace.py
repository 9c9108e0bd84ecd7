"""Multivariate Laplace noise: its distribution and the inequality of metric privacy; wrong noise is rejected."""

import math
from functools import cache

import numpy as np
import numpy.typing as npt
import pytest
import torch
from scipy import stats

import zoo
from tacit.core import DenseRows, Key, Messages, SimulatedRound
from tacit.core.prices import Leakage, Unproved
from tacit.core.state import View
from tacit.core.wave import EmptyWave
from tacit.pieces.mechanisms import MetricLaplace
from tacit.pieces.mechanisms.laplace import laplace

Floats = npt.NDArray[np.float64]
DATA = zoo.wave()  # not used by the mechanism
SCALE = 0.5  # 1/ε
FEMNIST = 1_206_590
COUNTS = {1: 5000, 2: 5000, 11: 3000, 1000: 500, FEMNIST: 4}


@cache
def samples(dim: int) -> Floats:
    return np.stack([laplace(dim, SCALE, Key.from_seed(number, "test")).numpy() for number in range(COUNTS[dim])])


@cache
def norms(dim: int) -> Floats:
    return np.asarray(np.linalg.norm(samples(dim), axis=1))


def has_the_moments(found: Floats, dim: int) -> bool:
    """E‖ρ‖ = n/ε and a component's variance (n + 1)/ε² (Lemma 4.3), each within 4 standard errors."""
    square = found**2 / dim
    norm_error = math.sqrt(dim) * SCALE / math.sqrt(len(found))
    fourth = dim * (dim + 1) * (dim + 2) * (dim + 3) - (dim * (dim + 1)) ** 2
    square_error = math.sqrt(fourth) * SCALE**2 / dim / math.sqrt(len(found))
    mean_fits = abs(found.mean() - dim * SCALE) < 4 * norm_error
    return bool(mean_fits and abs(square.mean() - (dim + 1) * SCALE**2) < 4 * square_error)


@pytest.mark.parametrize("dim", [2, 11, 1000, FEMNIST])
def test_moments(dim: int) -> None:
    assert has_the_moments(norms(dim), dim)
    for wrong in (2 / 3, 3 / 2):
        assert not has_the_moments(norms(dim) * wrong, dim)


@pytest.mark.parametrize("dim", [2, 11])
def test_variance_of_each_component(dim: int) -> None:
    squares = samples(dim) ** 2
    error = squares.std(0, ddof=1) / math.sqrt(len(squares))
    assert bool((np.abs(squares.mean(0) - (dim + 1) * SCALE**2) < 4 * error).all())


@pytest.mark.parametrize("dim", [1, 2, 11, 1000])
def test_the_norm_has_a_gamma_distribution(dim: int) -> None:
    """Gamma(n, 1/ε); Gamma(n + 1, 1/ε), an exponential of the same mean, and a Gaussian's norm are rejected."""

    def fits(found: Floats) -> bool:
        return bool(stats.kstest(found / SCALE, stats.gamma(dim).cdf).pvalue > 1e-4)

    generator, count = np.random.default_rng(0), COUNTS[dim]
    assert fits(norms(dim))
    assert not fits(norms(dim) * 2 / 3)
    assert not fits(norms(dim) * 3 / 2)
    if dim <= 11:
        assert not fits(generator.gamma(dim + 1, SCALE, count))
    if dim > 1:
        assert not fits(generator.exponential(dim * SCALE, count))
        deviation = math.sqrt(dim + 1) * SCALE  # the same variance per coordinate
        assert not fits(np.linalg.norm(generator.normal(0, deviation, (count, dim)), axis=1))


def test_directions_are_uniform() -> None:
    def uniform(found: Floats) -> bool:
        angles = np.arctan2(found[:, 1], found[:, 0])
        folded = angles % (math.pi / 2)  # also detects noise that concentrates at the axes of all quadrants
        full = stats.kstest(angles, stats.uniform(-math.pi, 2 * math.pi).cdf).pvalue
        return bool(min(full, stats.kstest(folded, stats.uniform(0, math.pi / 2).cdf).pvalue) > 1e-4)

    assert uniform(samples(2))
    generator = np.random.default_rng(0)
    assert not uniform(generator.laplace(size=(5000, 2)))  # independent coordinates: private for the L1 distance
    units = samples(11) / norms(11)[:, None]
    assert np.linalg.norm(units.mean(0)) < 4 / math.sqrt(len(units))
    spread = units.T @ units / len(units)
    assert np.abs(spread - np.eye(11) / 11).max() < 4 * math.sqrt(2) / 11 / math.sqrt(len(units))


@pytest.mark.parametrize("dim", [1, 2])
def test_the_inequality_on_histograms(dim: int) -> None:
    """No bin is more than e^(ε·d) times as likely around one point as around another; with half the noise some are."""
    distance = 0.6

    def holds(noise: Floats) -> bool:
        shifted = noise.copy()
        shifted[:, 0] += distance
        edges = [np.linspace(-2, 2, 15)] * dim
        here, there = (np.histogramdd(points, edges)[0] for points in (noise, shifted))
        bound = math.exp(distance / SCALE)
        slack = 4 * np.sqrt(here + bound**2 * there + 1)
        return bool((here <= bound * there + slack).all() and (there <= bound * here + slack).all())

    assert holds(samples(dim))
    assert not holds(samples(dim) / 2)


def now() -> SimulatedRound:
    return SimulatedRound.of(0, 5, 3.0, 3, Key.from_seed(0, "shared"), Key.from_seed(0, "secret"))


def added(mechanism: MetricLaplace, rows: torch.Tensor, weights: torch.Tensor, layers: tuple[int, ...]) -> torch.Tensor:
    """The noise that the mechanism adds to these rows."""
    messages = Messages(torch.arange(len(rows)), DenseRows(rows))
    data = EmptyWave(tuple((size,) for size in layers))
    return mechanism.at_client(messages, View(weights), data, now()).rows.dense() - rows


def test_with_a_public_radius_the_noise_does_not_depend_on_the_rows() -> None:
    mechanism = MetricLaplace(noise_multiplier=5.0, radius=0.1)
    rows = torch.tensor([[0.0, 0.0], [40.0, 3.0], [0.1, 0.1]])
    one, other = (added(mechanism, values, torch.zeros(2), (2,)) for values in (rows, torch.zeros_like(rows)))
    torch.testing.assert_close(one, other, atol=1e-5, rtol=0)
    assert len({tuple(row) for row in other.tolist()}) == 3  # clients have independent noise
    price = mechanism.price(0)
    assert isinstance(price, Leakage)
    assert price == Leakage(5.0, 0.1)
    assert price.per_message(2) == pytest.approx(0.4)


def test_the_paper_s_scale_is_the_norm_of_the_update() -> None:
    mechanism = MetricLaplace(noise_multiplier=2.0, radius=None)
    hypotheses = torch.tensor([[0.0, 0.0], [10.0, 0.0]], dtype=torch.float64)
    rows = torch.tensor([[0.0, 0.0], [10.0, 0.5], [10.0, 1.0]], dtype=torch.float64)
    noise = added(mechanism, rows, hypotheses, (2,))
    fixed = [added(MetricLaplace(noise_multiplier=2.0, radius=r), rows, hypotheses, (2,)) for r in (0.5, 1.0)]
    assert noise[0].tolist() == [0.0, 0.0]
    torch.testing.assert_close(noise[1], fixed[0][1])
    torch.testing.assert_close(noise[2], fixed[1][2])
    price = mechanism.price(0)
    assert isinstance(price, Unproved)
    assert "data-dependent scale" in price.reason
    assert price.nominal == Leakage(2.0, None)
    updates = MetricLaplace(noise_multiplier=2.0, radius=None, expects="updates")
    torch.testing.assert_close(added(updates, rows - hypotheses[[0, 1, 1]], hypotheses[0], (2,)), noise)


def test_noise_per_layer() -> None:
    """The noise of a layer of n_l numbers has a norm from Gamma(n_l, ν·r/n_l), of mean ν·r for any n_l."""
    mechanism, layers = MetricLaplace(noise_multiplier=3.0, radius=0.2, per_layer=True), (900, 100, 2000)
    noise = added(mechanism, torch.zeros(60, 3000), torch.zeros(3000), layers)
    for part in noise.split(layers, dim=1):
        assert float(part.norm(dim=1).mean()) == pytest.approx(0.6, abs=4 * 0.6 / math.sqrt(part.shape[1] * 60))
    whole = added(MetricLaplace(noise_multiplier=3.0, radius=0.2), torch.zeros(60, 3000), torch.zeros(3000), layers)
    assert float(whole.norm(dim=1).mean()) == pytest.approx(0.6, abs=0.01)
    price = mechanism.price(0)
    assert isinstance(price, Leakage)
    assert price.per_message(3000) == 1000.0
