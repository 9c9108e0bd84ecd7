"""Secret numbers: a known answer, every bit of the key, and the distributions that are drawn."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from tacit.core import Key
from tacit.core.keys import FEW, Stream

KEY = Key.from_seed(0, "test").value
DOUBLE, SINGLE = (torch.empty(0, dtype=dtype) for dtype in (torch.float64, torch.float32))


def test_the_stream_is_aes_256_in_counter_mode() -> None:
    """The first block is AES-256 of the zero block under the zero key, as in NIST's known answers."""
    assert Stream(bytes(32)).bytes(32).hex() == ("dc95c078a2408989ad48a21492842087530f8afbc74536b9a963b4f1c4cb738b")


def test_a_stream_does_not_depend_on_how_it_is_cut() -> None:
    stream = Stream(KEY)
    assert b"".join(stream.bytes(count) for count in (1, 0, 16, 100, 7)) == Stream(KEY).bytes(124)


def test_every_bit_of_the_key_matters() -> None:
    draws = {
        "bytes": lambda key: key.stream().bytes(32),
        "uniform": lambda key: key.stream().uniform(4).numpy().tobytes(),
        "normal": lambda key: key.stream().normal((4,), SINGLE).numpy().tobytes(),
        "gamma": lambda key: np.float64(key.stream().gamma(3)).tobytes(),
        "permutation": lambda key: key.stream().permutation(100).numpy().tobytes(),
        "fast": lambda key: key.fast_generator().permutation(100).tobytes(),
    }
    for name, draw in draws.items():
        found = {draw(Key((int.from_bytes(KEY) ^ 1 << bit).to_bytes(32))) for bit in range(256)}
        assert len(found | {draw(Key(KEY))}) == 257, name


@pytest.mark.parametrize("count", [0, 1, 2, 3, 65_535, 65_537, 200_000])
def test_any_number_of_normal_numbers_can_be_drawn(count: int) -> None:
    found = Stream(KEY).normal((count,), DOUBLE)
    assert found.shape == (count,)
    assert bool(torch.isfinite(found).all())
    if count > 1000:
        assert stats.kstest(found.numpy(), "norm").pvalue > 1e-4
        assert stats.kstest(found.numpy() * 1.05, "norm").pvalue < 1e-4


def test_pairs_of_normal_numbers_are_independent() -> None:
    found = Stream(KEY).normal((2, 100_000), DOUBLE)
    products = (found[0] * found[1]).numpy()
    assert abs(products.mean()) < 4 / math.sqrt(len(products))
    squares = ((found[0] ** 2 - 1) * (found[1] ** 2 - 1)).numpy()
    assert abs(squares.mean()) < 4 * 2 / math.sqrt(len(squares))


def test_single_precision_is_rounded_from_double() -> None:
    assert torch.equal(Stream(KEY).normal((1001,), SINGLE), Stream(KEY).normal((1001,), DOUBLE).float())


def test_uniform_numbers_and_sums_of_exponential_ones() -> None:
    stream = Stream(KEY)
    uniform = stream.uniform(100_000)
    assert 0 <= float(uniform.min()) < float(uniform.max()) < 1
    assert stats.kstest(uniform.numpy(), "uniform").pvalue > 1e-4
    gamma = [stream.gamma(3) for _ in range(3000)]
    assert stats.kstest(gamma, stats.gamma(3).cdf).pvalue > 1e-4
    assert stats.kstest(gamma, stats.gamma(3.2).cdf).pvalue < 1e-4


def test_permutations_are_uniform() -> None:
    stream = Stream(KEY)
    counts: dict[tuple[int, ...], int] = {}
    for _ in range(6000):
        order = tuple(stream.permutation(3).tolist())
        counts[order] = counts.get(order, 0) + 1
    assert len(counts) == 6
    assert stats.chisquare(list(counts.values())).pvalue > 1e-4


LARGE = 3 * FEW


@pytest.mark.parametrize("size", [0, 1, 1000, LARGE // 2, LARGE])
def test_a_subset_of_many_has_distinct_numbers(size: int) -> None:
    found = Key.from_seed(1).stream().subset(LARGE, size)
    assert found.dtype == torch.int64
    assert len(found) == len(found.unique()) == size
    assert torch.equal(found, found.sort().values)
    assert size == 0 or 0 <= int(found.min()) <= int(found.max()) < LARGE


def test_a_subset_of_few_is_that_of_a_permutation() -> None:
    key = Key.from_seed(2)
    assert torch.equal(key.stream().subset(100, 7), key.stream().permutation(100)[:7].sort().values)


def test_every_number_is_equally_likely_in_a_subset() -> None:
    """Over 16 equal parts of the numbers; a subset without its last number is rejected."""
    counts = np.zeros(16)
    for seed in range(40):
        found = Key.from_seed(seed).stream().subset(LARGE, 2000)
        counts += np.bincount((found * 16 // LARGE).numpy(), minlength=16)
    assert stats.chisquare(counts).pvalue > 1e-4
    counts[0] -= 600
    assert stats.chisquare(counts, counts.sum() * np.ones(16) / 16).pvalue < 1e-4


def test_binomial_numbers() -> None:
    """Mean and variance are those of the distribution, and not those of a Poisson one."""
    drawn = np.array([Key.from_seed(seed).stream().binomial(1000, 0.7) for seed in range(2000)])
    assert abs(drawn.mean() - 700) < 4 * (210 / 2000) ** 0.5
    assert 0.85 < drawn.var() / 210 < 1.15
    assert Key.from_seed(0).stream().binomial(10, 0.0) == 0
    assert Key.from_seed(0).stream().binomial(10, 1.0) == 10
