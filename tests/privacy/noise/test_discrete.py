"""Discrete noise against its exact pmf. A campaign draws ten million samples instead of one million."""

from bisect import bisect_right
from itertools import count, product, repeat
from math import exp, log, sqrt

import mpmath
import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats
from scipy.special import ive

from scale import scaled
from tacit.core import Key
from tacit.errors import UserError
from tacit.privacy.noise.discrete import (
    BLOCK,
    PRECISION,
    REST,
    ByteSource,
    CdfTable,
    DiscreteGaussian,
    IntegerBound,
    IntegerNoise,
    Skellam,
    distance_of_sum,
)

SAMPLES = scaled(1_000_000, campaign=10_000_000)
Kind = type[DiscreteGaussian] | type[Skellam]
every_kind = pytest.mark.parametrize("kind", [DiscreteGaussian, Skellam])
every_sigma = pytest.mark.parametrize("sigma", [3.0, 10.0, 1000.0])


def source(seed: int = 0) -> ByteSource:
    return Key.from_seed(seed, "secret").stream().bytes


def pmf(noise: IntegerNoise, k: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    if isinstance(noise, Skellam):
        return np.asarray(ive(np.abs(k), noise.sigma**2))
    wide = np.arange(-int(40 * noise.sigma), int(40 * noise.sigma) + 1)
    weights = np.exp(-(k**2) / (2 * noise.sigma**2))
    return np.asarray(weights / np.exp(-(wide**2) / (2 * noise.sigma**2)).sum())


def p_values(samples: npt.NDArray[np.int64], noise: IntegerNoise) -> tuple[float, float]:
    """Chi-square over about sixty bins, and Kolmogorov–Smirnov, which is conservative for discrete distributions."""
    limit = int(6 * noise.sigma)
    probabilities = pmf(noise, np.arange(-limit, limit + 1))
    width = max(1, limit // 30)
    counts = np.bincount(np.clip(samples, -limit, limit) + limit, minlength=2 * limit + 1)
    starts = np.arange(0, 2 * limit + 1, width)
    seen, expected = np.add.reduceat(counts, starts), np.add.reduceat(probabilities, starts) * len(samples)
    kept = expected >= 10
    observed = [*seen[kept], seen[~kept].sum()]
    theoretical = [*expected[kept], len(samples) - expected[kept].sum()]
    gap = np.abs(np.cumsum(counts) / len(samples) - np.cumsum(probabilities)).max()
    return float(stats.chisquare(observed, theoretical).pvalue), float(stats.kstwobign.sf(gap * sqrt(len(samples))))


@every_kind
@every_sigma
def test_samples_fit_the_exact_pmf_and_no_other_scale(kind: Kind, sigma: float) -> None:
    samples = kind(sigma).table.sample(SAMPLES, source(7))
    assert min(p_values(samples, kind(sigma))) > 1e-3
    for wrong in (2 / 3, 3 / 2):
        assert max(p_values(samples, kind(wrong * sigma))) < 1e-12


@every_kind
@every_sigma
def test_moments(kind: Kind, sigma: float) -> None:
    samples = kind(sigma).table.sample(SAMPLES, source(8)).astype(float)
    assert abs(samples.mean()) < 4 * sigma / sqrt(SAMPLES)
    assert abs(samples.var() / sigma**2 - 1) < 4 * sqrt(2.2 / SAMPLES)
    excess = 1 / sigma**2 if kind is Skellam else 0.0
    assert stats.kurtosis(samples) == pytest.approx(excess, abs=4 * sqrt(26 / SAMPLES))


def test_the_default_source_is_that_of_the_operating_system() -> None:
    one, two = (DiscreteGaussian(10.0).table.sample(1000) for _ in range(2))
    assert not np.array_equal(one, two)
    assert 5 < one.std() < 20


def thresholds(table: CdfTable) -> list[int]:
    return [(int(high) << 64) + int(low) for high, low in zip(table.high, table.low, strict=True)]


def weights(noise: IntegerNoise) -> list[mpmath.mpf]:
    sigma = mpmath.mpf(noise.sigma)
    if isinstance(noise, Skellam):
        return [mpmath.besseli(k, sigma**2) * mpmath.exp(-(sigma**2)) for k in range(120)]
    return [mpmath.exp(-(k**2) / (2 * sigma**2)) for k in range(120)]


@every_kind
@pytest.mark.parametrize("sigma", [0.1, 0.7, 3.0, 5.3])
def test_tables_are_exact_to_the_last_bit(kind: Kind, sigma: float) -> None:
    noise = kind(sigma)
    with mpmath.workprec(320):
        masses = weights(noise)
        total = masses[0] + 2 * sum(masses[1:])
        sums = [(masses[0] + 2 * sum(masses[1 : k + 1])) / total for k in range(noise.table.max_magnitude + 1)]
        assert thresholds(noise.table) == [int(mpmath.floor(part * 2**PRECISION)) for part in sums][:-1]
        steps = np.diff([0, *thresholds(noise.table), 2**PRECISION])
        tabulated = [mpmath.mpf(int(step)) / 2**PRECISION for step in steps]
        exact = [masses[0] / total, *(2 * mass / total for mass in masses[1:])]
        padded = [*tabulated, *repeat(mpmath.mpf(0), len(exact) - len(tabulated))]
        distance = sum(abs(a - b) for a, b in zip(padded, exact, strict=True)) / 2
        assert 0 < distance <= noise.table.error < 1e-35


def test_large_tables_end_where_the_tail_is_negligible() -> None:
    table = DiscreteGaussian(1000.0).table
    assert 13_000 < table.max_magnitude < 13_300
    assert table.error < 1e-34
    found = thresholds(table)
    assert found == sorted(found)
    assert 2**PRECISION - found[-1] <= 4
    assert DiscreteGaussian(1000.0).table is table


def fixed(*numbers: tuple[int, int]) -> ByteSource:
    """A source that returns these numbers of this many bytes in order."""
    stream = b"".join(number.to_bytes(size, "little") for number, size in numbers)
    position = 0

    def read(size: int) -> bytes:
        nonlocal position
        position += size
        return stream[position - size : position]

    return read


@every_kind
@pytest.mark.parametrize("sigma", [0.1, 3.0, 300.0])
def test_ties_are_resolved_by_the_other_bits(kind: Kind, sigma: float) -> None:
    """Also where several thresholds begin with the same 31 bits."""
    table = kind(sigma).table
    found = thresholds(table)
    for k in {0, 5, len(found) // 2, len(found) - 1} & set(range(len(found))):
        prefix, rest = found[k] >> REST, found[k] & (1 << REST) - 1
        for last in {max(rest - 1, 0), rest, min(rest + 1, (1 << REST) - 1)}:
            magnitude = sum(threshold <= (prefix << REST) + last for threshold in found)
            for sign in (0, 1):
                words = ((2 * prefix + sign, 4), (last, REST // 8))
                assert table.sample(1, fixed(*words)).tolist() == [-magnitude if sign else magnitude]
                assert sample_slowly(table, 1, fixed(*words)).tolist() == [-magnitude if sign else magnitude]


def test_the_largest_number_is_the_largest_magnitude() -> None:
    table = DiscreteGaussian(3.0).table
    words = ((0, 4), (1, 4), (2**32 - 1, 4), ((1 << REST) - 1, REST // 8))
    assert table.sample(3, fixed(*words)).tolist() == [0, 0, -table.max_magnitude]


def sample_slowly(table: CdfTable, count: int, draw: ByteSource) -> npt.NDArray[np.int64]:
    """The reference for `sample`: every number is looked up by itself, with all of its bits."""
    known = thresholds(table)
    undecided = {threshold >> REST for threshold in known}
    samples = []
    for begin in range(0, count, BLOCK):
        size = min(BLOCK, count - begin)
        words = np.frombuffer(draw(4 * size), "<u4").tolist()
        ties = sum(word >> 1 in undecided for word in words)
        drawn = draw(REST // 8 * ties) if ties else b""
        rest = iter([int.from_bytes(drawn[i : i + REST // 8], "little") for i in range(0, len(drawn), REST // 8)])
        for word in words:
            number = (word >> 1 << REST) + (next(rest) if word >> 1 in undecided else 0)
            magnitude = bisect_right(known, number)
            samples.append(-magnitude if word & 1 else magnitude)
    return np.array(samples, np.int64)


@pytest.mark.parametrize(
    ("kind", "sigma"),
    [
        *product((DiscreteGaussian, Skellam), (0.1, 0.7, 3.0, 30.0, 1000.0)),
        (DiscreteGaussian, 9000.0),  # for Skellam noise, such a table takes seconds to build
    ],
)
def test_samples_are_bitwise_those_of_the_reference(kind: Kind, sigma: float) -> None:
    """Given the same bytes, for whole blocks and a part of one; a few of these bytes leave ties."""
    table, count = kind(sigma).table, 2 * BLOCK + 17
    assert np.array_equal(table.sample(count, source(3)), sample_slowly(table, count, source(3)))


@pytest.mark.parametrize("tied", [False, True])
def test_samples_of_words_at_and_beside_every_threshold_are_those_of_the_reference(tied: bool) -> None:
    table = DiscreteGaussian(500.0).table
    prefixes = np.array([threshold >> REST for threshold in thresholds(table)])
    shifted = prefixes if tied else np.concatenate([prefixes - 1, prefixes + 1]).clip(0, (1 << 31) - 1)
    words = (2 * shifted + 1).astype("<u4").tobytes()
    rests = np.random.default_rng(0).bytes(12 * 2 * len(shifted))
    fast = table.sample(len(shifted), reader(words + rests))
    slow = sample_slowly(table, len(shifted), reader(words + rests))
    assert fast.tolist() == slow.tolist()


def reader(stream: bytes) -> ByteSource:
    """A source that returns these bytes in order."""
    return fixed((int.from_bytes(stream, "little"), len(stream)))


@pytest.mark.parametrize("crowded", [False, True])
def test_all_numbers_of_a_small_table_have_exactly_its_probabilities(crowded: bool) -> None:
    """Thresholds that are multiples of 2¹¹⁵: the first 12 bits decide, and all 2¹² of them are tried."""
    steps = [7, 8, 9, 10, 11, 300, 301, 4095] if crowded else [1000, 2000, 2500, 4000]
    table = CdfTable(np.array([step << 51 for step in steps], np.uint64), np.zeros(len(steps), np.uint64))
    expected = np.diff([0, *steps, 1 << 12]).tolist()
    for low in (1, (1 << 19) - 1):  # of the other 19 bits of a prefix; 0 would be a tie, which the other bits resolve
        words = ((np.arange(1 << 12) << 20) + 2 * low).astype("<u4").tobytes()
        drawn = table.sample(1 << 12, reader(words))
        assert np.bincount(drawn, minlength=len(expected)).tolist() == expected
        negative = table.sample(1 << 12, reader((np.frombuffer(words, "<u4") + 1).astype("<u4").tobytes()))
        assert np.array_equal(negative, -drawn)


def test_a_source_with_too_few_bytes_is_refused() -> None:
    with pytest.raises(UserError, match="Expected 40 bytes of randomness, not 8"):
        DiscreteGaussian(3.0).table.sample(10, lambda _: bytes(8))


@every_kind
@pytest.mark.parametrize("sigma", [0.0, -1.0, 0.09, 1.1e5, float("nan"), float("inf")])
def test_scales_without_a_table_are_refused(kind: Kind, sigma: float) -> None:
    with pytest.raises(UserError, match="Expected sigma="):
        kind(sigma)


@every_kind
@pytest.mark.parametrize("sigma", [0.5, 3.0, 10.0])
def test_tail_bounds_are_upper_bounds(kind: Kind, sigma: float) -> None:
    noise = kind(sigma)
    for magnitude in (0, 1, int(2 * sigma), int(5 * sigma), int(9 * sigma)):
        both = 2 * pmf(noise, np.arange(magnitude, magnitude + int(20 * sigma) + 20)).sum()
        tail = both - (magnitude == 0) * pmf(noise, np.array([0]))
        assert noise.tail_bound(1, magnitude) >= min(1.0, float(np.sum(tail)) * (1 - 1e-9))
    assert noise.tail_bound(4, 9 * sigma) < 2 * exp(-5)
    assert next(k for k in count() if noise.tail_bound(1, k) < 1e-30) < sigma * sqrt(2 * log(2e30)) + 40


def test_the_l1_bound_follows_from_the_l2_bound() -> None:
    assert IntegerBound(9, 100).l1 == 9  # nine ones
    assert IntegerBound(100, 4).l1 == 20  # four fives
    assert IntegerBound(100, 4).l2 == 10


@pytest.mark.parametrize(
    "parts", [[(0.5, 2)], [(0.6, 3), (0.4, 4)], [(2.0, 1), (0.3, 5)], [(0.4, 4), (0.6, 3), (0.5, 2)]], ids=str
)
def test_sums_of_unequal_discrete_gaussians_are_as_close_to_one_as_promised(parts: list[tuple[float, int]]) -> None:
    """The exact pmf of the sum, by convolution, beside that of one discrete Gaussian of the same variance."""

    def exact(variance: float) -> npt.NDArray[np.float64]:
        weights = np.exp(-(np.arange(-40, 41.0) ** 2) / (2 * variance))
        return np.asarray(weights / weights.sum())

    total = np.ones(1)
    for variance, times in parts:
        for _ in range(times):
            total = np.convolve(total, exact(variance))
    middle = len(total) // 2
    found = total[middle - 40 : middle + 41]
    one = exact(sum(variance * times for variance, times in parts))
    distance = float(np.abs(found - one).sum()) / 2
    allowed = distance_of_sum(parts, dim=1)
    assert 1e-8 < distance <= allowed < 0.5
    assert distance_of_sum([(25.0, 100), (5.0, 1000)], dim=1 << 20) < 2.0**-70
