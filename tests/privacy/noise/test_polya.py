"""Pólya noise: the distribution, its sums, and how far it is from the exact one."""

import math
import os

import numpy as np
import pytest
from scipy.stats import chisquare, nbinom

from tacit.errors import UserError
from tacit.privacy.noise.polya import polya_difference, polya_table

COUNT = 60_000


def pmf(scale: float, shape: float, most: int) -> np.ndarray:
    """P(X − Y = k) for k = −most … most."""
    one = nbinom.pmf(np.arange(4000), shape, 1 - math.exp(-1 / scale))
    positive = [float(one[k:] @ one[: len(one) - k]) for k in range(most + 1)]
    return np.array([*reversed(positive[1:]), *positive])


def p_value(found: np.ndarray, expected: np.ndarray, most: int) -> float:
    counts = np.array([np.sum(found == k) for k in range(-most, most + 1)])
    rest = len(found) - counts.sum()
    chances = np.append(expected, 1 - expected.sum())
    return float(chisquare(np.append(counts, rest), chances * len(found)).pvalue)


@pytest.mark.parametrize(("scale", "shape"), [(1.0, 1.0), (2.0, 0.25), (10.0, 1.2), (0.4, 0.5)])
def test_samples_have_the_distribution(scale: float, shape: float) -> None:
    """And neither two thirds nor three halves of its scale."""
    found = polya_difference(scale, shape, COUNT, os.urandom)
    most = max(2, round(3 * scale))
    assert p_value(found, pmf(scale, shape, most), most) > 1e-6
    for wrong in (2 / 3, 3 / 2):
        assert p_value(found, pmf(wrong * scale, shape, most), most) < 1e-6


def test_shares_add_up_to_discrete_laplace_noise() -> None:
    shares = sum(polya_difference(2.0, 1 / 7, COUNT, os.urandom) for _ in range(7))
    kept = math.exp(-1 / 2)
    laplace = np.array([(1 - kept) / (1 + kept) * kept ** abs(k) for k in range(-6, 7)])
    assert p_value(shares, laplace, 6) > 1e-6  # type: ignore[arg-type]
    missing = sum(polya_difference(2.0, 1 / 7, COUNT, os.urandom) for _ in range(5))
    assert p_value(missing, laplace, 6) < 1e-6  # type: ignore[arg-type]


def test_tables_are_exact_enough() -> None:
    for scale, shape in ((0.1, 1.0), (1.0, 1 / 460), (100.0, 1.5)):
        assert polya_table(scale, shape).error < 2**-100


@pytest.mark.parametrize(("scale", "shape"), [(0.0, 1.0), (1e9, 1.0), (1.0, 0.0), (1.0, math.inf)])
def test_what_means_nothing_is_refused(scale: float, shape: float) -> None:
    with pytest.raises(UserError, match=r"scale|shape"):
        polya_table(scale, shape)
