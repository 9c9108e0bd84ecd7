"""Samplers against the exact pmf. TACIT_SAMPLES=10000000 draws ten million instead of one, as before a release."""

import os
from itertools import count, repeat
from math import exp, log, sqrt

import mpmath
import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats
from scipy.special import ive

from tacit.core import Key
from tacit.errors import UserError
from tacit.pieces.mechanisms.discrete import (
    PRECISION,
    DiscreteGaussian,
    IntegerBound,
    IntegerNoise,
    Skellam,
    Source,
    Table,
)

SAMPLES = int(os.environ.get("TACIT_SAMPLES", 1_000_000))
KINDS = [DiscreteGaussian, Skellam]
every_kind = pytest.mark.parametrize("kind", KINDS)
every_sigma = pytest.mark.parametrize("sigma", [3.0, 10.0, 1000.0])


def source(seed: int = 0) -> Source:
    return Key.from_seed(seed, "secret").numpy().bytes


def pmf(noise: IntegerNoise, k: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    if isinstance(noise, Skellam):
        return np.asarray(ive(np.abs(k), noise.sigma**2))
    wide = np.arange(-int(40 * noise.sigma), int(40 * noise.sigma) + 1)
    weights = np.exp(-(k**2) / (2 * noise.sigma**2))
    return np.asarray(weights / np.exp(-(wide**2) / (2 * noise.sigma**2)).sum())


def p_values(samples: npt.NDArray[np.int64], noise: IntegerNoise) -> tuple[float, float]:
    """Chi-square over some sixty bins, and Kolmogorov–Smirnov, which on a grid errs on the safe side."""
    reach = int(6 * noise.sigma)
    chances = pmf(noise, np.arange(-reach, reach + 1))
    width = max(1, reach // 30)
    counts = np.bincount(np.clip(samples, -reach, reach) + reach, minlength=2 * reach + 1)
    starts = np.arange(0, 2 * reach + 1, width)
    seen, expected = np.add.reduceat(counts, starts), np.add.reduceat(chances, starts) * len(samples)
    kept = expected >= 10
    observed = [*seen[kept], seen[~kept].sum()]
    awaited = [*expected[kept], len(samples) - expected[kept].sum()]
    ranges = np.abs(np.cumsum(counts) / len(samples) - np.cumsum(chances)).max()
    return float(stats.chisquare(observed, awaited).pvalue), float(stats.kstwobign.sf(ranges * sqrt(len(samples))))


@every_kind
@every_sigma
def test_samples_follow_the_exact_pmf_and_no_other_width(kind: type[DiscreteGaussian], sigma: float) -> None:
    samples = kind(sigma).table.sample(SAMPLES, source(7))
    assert min(p_values(samples, kind(sigma))) > 1e-3
    for wrong in (2 / 3, 3 / 2):
        assert max(p_values(samples, kind(wrong * sigma))) < 1e-12


@every_kind
@every_sigma
def test_moments(kind: type[DiscreteGaussian], sigma: float) -> None:
    samples = kind(sigma).table.sample(SAMPLES, source(8)).astype(float)
    assert abs(samples.mean()) < 4 * sigma / sqrt(SAMPLES)
    assert abs(samples.var() / sigma**2 - 1) < 4 * sqrt(2.2 / SAMPLES)
    excess = 1 / sigma**2 if kind is Skellam else 0.0
    assert stats.kurtosis(samples) == pytest.approx(excess, abs=4 * sqrt(26 / SAMPLES))


def test_the_default_source_is_the_operating_system() -> None:
    one, two = (DiscreteGaussian(10.0).table.sample(1000) for _ in range(2))
    assert not np.array_equal(one, two)
    assert 5 < one.std() < 20


def exact(table: Table) -> list[int]:
    return [(int(high) << 64) + int(low) for high, low in zip(table.high, table.low, strict=True)]


def weights(noise: IntegerNoise) -> list[mpmath.mpf]:
    sigma = mpmath.mpf(noise.sigma)
    if isinstance(noise, Skellam):
        return [mpmath.besseli(k, sigma**2) * mpmath.exp(-(sigma**2)) for k in range(120)]
    return [mpmath.exp(-(k**2) / (2 * sigma**2)) for k in range(120)]


@every_kind
@pytest.mark.parametrize("sigma", [0.1, 0.7, 3.0, 5.3])
def test_tables_are_right_to_the_last_bit(kind: type[DiscreteGaussian], sigma: float) -> None:
    noise = kind(sigma)
    with mpmath.workprec(320):
        chances = weights(noise)
        total = chances[0] + 2 * sum(chances[1:])
        sums = [(chances[0] + 2 * sum(chances[1 : k + 1])) / total for k in range(noise.table.reach + 1)]
        thresholds = [int(mpmath.floor(part * 2**PRECISION)) for part in sums]
        assert exact(noise.table) == thresholds[:-1]
        drawn = np.diff([0, *exact(noise.table), 2**PRECISION])
        wanted = [mpmath.mpf(int(part)) / 2**PRECISION for part in drawn]
        truth = [chances[0] / total, *(2 * chance / total for chance in chances[1:])]
        padded = [*wanted, *repeat(mpmath.mpf(0), len(truth) - len(wanted))]
        distance = sum(abs(a - b) for a, b in zip(padded, truth, strict=True)) / 2
        assert 0 < distance <= noise.table.error < 1e-35


def test_large_tables_end_where_nothing_is_left() -> None:
    table = DiscreteGaussian(1000.0).table
    assert 13_000 < table.reach < 13_300
    assert table.error < 1e-34
    ends = exact(table)
    assert ends == sorted(ends)
    assert 2**PRECISION - ends[-1] <= 4
    assert DiscreteGaussian(1000.0).table is table


def forged(*numbers: int) -> Source:
    """Words in this order, whatever is asked for."""
    stream = (number.to_bytes(8, "little") for number in numbers)
    return lambda size: b"".join(next(stream) for _ in range(size // 8))


@every_kind
def test_ties_are_settled_by_the_second_word(kind: type[DiscreteGaussian]) -> None:
    table = kind(3.0).table
    for place in (0, 5, table.reach - 1):
        top, low = int(table.high[place]), int(table.low[place])
        at = exact(table)
        for rest in (low - 1, low, low + 1):
            magnitude = sum(threshold <= (top << 64) + rest for threshold in at)
            assert table.sample(1, forged(2 * top, rest)).tolist() == [magnitude]
            assert table.sample(1, forged(2 * top + 1, rest)).tolist() == [-magnitude]
    assert table.sample(3, forged(0, 1, 2**64 - 1, 2**64 - 1)).tolist() == [0, 0, -table.reach]


def test_a_source_that_runs_dry_is_refused() -> None:
    with pytest.raises(UserError, match="Expected 80 bytes of randomness, not 8"):
        DiscreteGaussian(3.0).table.sample(10, lambda _: bytes(8))


@every_kind
@pytest.mark.parametrize("sigma", [0.0, -1.0, 0.09, 1.1e5, float("nan"), float("inf")])
def test_widths_without_a_table_are_refused(kind: type[DiscreteGaussian], sigma: float) -> None:
    with pytest.raises(UserError, match="Expected sigma="):
        kind(sigma)


@every_kind
@pytest.mark.parametrize("sigma", [0.5, 3.0, 10.0])
def test_tails_are_never_longer_than_said(kind: type[DiscreteGaussian], sigma: float) -> None:
    noise = kind(sigma)
    for reach in (0, 1, int(2 * sigma), int(5 * sigma), int(9 * sigma)):
        outside = 2 * pmf(noise, np.arange(reach, reach + int(20 * sigma) + 20)).sum() - (reach == 0) * pmf(
            noise, np.array([0])
        )
        assert noise.beyond(1, reach) >= min(1.0, float(np.sum(outside)) * (1 - 1e-9))
    assert noise.beyond(4, 9 * sigma) < 2 * exp(-5)
    assert next(k for k in count() if noise.beyond(1, k) < 1e-30) < sigma * sqrt(2 * log(2e30)) + 40


def test_a_bound_in_the_other_norm() -> None:
    assert IntegerBound(9, 100).sum == 9  # nine ones
    assert IntegerBound(100, 4).sum == 20  # four fives
    assert IntegerBound(100, 4).whole == 10
