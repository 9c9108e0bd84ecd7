"""Pólya noise: shares of discrete Laplace noise, sampled exactly on integers.

P(X = k) = Γ(r + k) / (k!·Γ(r)) · pᵏ·(1 − p)ʳ is a negative binomial distribution of shape r. Sums of independent ones
of the same p have the sum of their shapes, and of two of shape 1, which are geometric, the difference is discrete
Laplace: P(Z = k) = (1 − p)/(1 + p) · p^|k|, with p = e^(−1/scale).
"""

from decimal import Context, Decimal
from functools import lru_cache

import numpy as np

from tacit.errors import expect
from tacit.privacy.noise.discrete import (
    FIXED_POINT,
    PRECISION,
    ByteSource,
    CdfTable,
    Integers,
    tabulate,
)

MAX_SCALE = 1e4  # ε of 0.0001: a wider table would take seconds to build


def polya_difference(scale: float, shape: float, count: int, source: ByteSource) -> Integers:
    """`count` differences of two independent Pólya variables; of shape 1, discrete Laplace noise of this scale.

    Formal guarantees: if the source is uniform, the total variation of a number from the exact distribution is at most
    twice the error of a table (`CdfTable`), below 2⁻¹⁰⁰ for every scale that is accepted.

    Example:
        >>> import os
        >>> noise = polya_difference(2.0, 1.0, 4000, os.urandom)
        >>> bool(2.3 < noise.std() < 3.3)  # √(2p) / (1 − p) = 2.80
        True
    """
    table = polya_table(scale, shape)
    positive, negative = (_magnitudes(table, count, source) for _ in range(2))
    return positive - negative


def _magnitudes(table: CdfTable, count: int, source: ByteSource) -> Integers:
    """Samples of a distribution on 0, 1, …: the table's, without their sign, which is independent of them."""
    magnitudes: Integers = np.abs(table.sample(count, source))
    return magnitudes


@lru_cache(maxsize=256)
def polya_table(scale: float, shape: float) -> CdfTable:
    """The table of a Pólya variable with p = e^(−1/scale) and this shape."""
    expect(0 < scale <= MAX_SCALE, f"a scale of Laplace noise in (0, {MAX_SCALE:g}], got {scale:g}")
    expect(0 < shape < float("inf"), f"a positive shape of Pólya noise, got {shape:g}")
    weights = _weights(scale, shape)
    return tabulate([2 * weights[0], *weights[1:]])  # a table counts both signs of all magnitudes but 0


def _weights(scale: float, shape: float) -> list[int]:
    """Γ(r + k) / (k!·Γ(r)) · pᵏ in fixed point, until what remains is below 2⁻¹⁴⁰ of the first.

    w_{k+1} = w_k · p·(r + k)/(k + 1), with r exact as a fraction. Every step rounds by one unit of 2⁻²⁵⁶ at most, and
    factors are at most max(1, r), so that the error is negligible in that of the table.
    """
    exact = Context(prec=100)
    kept = int(exact.multiply(exact.exp(exact.divide(Decimal(-1), Decimal(scale))), Decimal(1 << FIXED_POINT)))
    numerator, denominator = shape.as_integer_ratio()
    weights, weight, k = [], 1 << FIXED_POINT, 0
    rising = shape / (1 - 1 / 2 ** (1 / scale)) if shape > 1 else 0.0  # beyond it, weights fall
    while weight >> FIXED_POINT - PRECISION - 13 or k < rising:
        weights.append(weight)
        weight = weight * (numerator + k * denominator) * kept // ((k + 1) * denominator << FIXED_POINT)
        k += 1
    return weights
