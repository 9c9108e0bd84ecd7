"""Shamir's secret sharing over the field of p = 2^31 - 1, vectorised over holders and clients, with decoding.

Any `threshold` shares recover the secret, fewer reveal nothing (Shamir, "How to share a secret", CACM 1979). A secret
is cut into limbs of 30 bits, each the constant term of its own polynomial. Why this field: products of two elements fit
uint64, and reduction modulo a Mersenne prime is a shift and an addition, so NumPy processes holders, limbs and clients
at once without look-up tables (whose timing would leak secrets). The cost is 20 bytes for a secret of 16, and 36 for
one of 32.

Shares are a word of a Reed-Solomon code, so up to e of `threshold` + 2e shares may be wrong: the polynomial that agrees
with all but e of them is unique (Reed & Solomon 1960), and `wrong_places` finds it by Gao's algorithm ("A new algorithm
for decoding Reed-Solomon codes", 2003).
"""

from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from tacit.errors import ProtocolError

Field = NDArray[np.uint64]

PRIME = (1 << 31) - 1
ELEMENT = 4  # bytes
_LIMB = 30  # bits
_P = np.uint64(PRIME)


def limbs_of(length: int) -> int:
    """Elements that a secret of this many bytes takes."""
    return -(-8 * length // _LIMB)


def to_limbs(secret: bytes) -> list[int]:
    """A secret as numbers below 2^30."""
    value = int.from_bytes(secret, "little")
    return [value >> _LIMB * place & (1 << _LIMB) - 1 for place in range(limbs_of(len(secret)))]


def from_limbs(limbs: Sequence[int], length: int) -> bytes:
    """The inverse of `to_limbs`; raises `ProtocolError` for other numbers, which a lying dealer has shared."""
    value = sum(int(limb) << _LIMB * place for place, limb in enumerate(limbs))
    if len(limbs) != limbs_of(length) or max(limbs) >> _LIMB or value >> 8 * length:
        raise ProtocolError(f"Expected the limbs of a secret of {length} bytes.")
    return value.to_bytes(length, "little")


def to_bytes(elements: Field) -> bytes:
    """Elements of the field as bytes."""
    return elements.astype("<u4").tobytes()


def from_bytes(data: bytes, count: int) -> Field:
    """The inverse of `to_bytes`; numbers outside the field are rejected."""
    elements = np.frombuffer(data, "<u4").astype(np.uint64) if len(data) == ELEMENT * count else np.zeros(0, np.uint64)
    if elements.size != count or bool((elements >= _P).any()):
        raise ProtocolError(f"Expected {count} elements of the field.")
    return elements


def uniform(count: int, draw: Callable[[int], bytes]) -> Field:
    """Uniform elements of the field, by rejection: of the 2^31 values of 31 bits, one is outside the field."""
    drawn = np.zeros(0, np.uint64)
    while drawn.size < count:
        words = np.frombuffer(draw(4 * (count + 8)), "<u4").astype(np.uint64) & _P
        drawn = np.concatenate([drawn, words[words < _P]])
    return drawn[:count]


def combine(matrix: Field, values: Field) -> Field:
    """The product of a matrix (places, points) and values (points, columns), modulo p."""
    total = np.zeros((matrix.shape[0], values.shape[1]), np.uint64)
    for row in range(matrix.shape[1]):
        total = (total + matrix[:, row, None] * values[row]) % _P
    return total


def interpolate(points: Sequence[int], values: Field, places: Sequence[int]) -> Field:
    """Values (places, columns) of the polynomials of least degree with these values (points, columns)."""
    return combine(_lagrange(tuple(points), tuple(places)), values)


@lru_cache(maxsize=256)
def _lagrange(points: tuple[int, ...], places: tuple[int, ...]) -> Field:
    """Lagrange weights (places, points): all clients of a graph have the same points."""
    at, to = np.array(points, np.uint64), np.array(places, np.uint64)[:, None]
    numerator, denominator = np.ones((len(places), len(points)), np.uint64), np.ones(len(points), np.uint64)
    for place, point in enumerate(points):
        factor = np.repeat((to + _P - np.uint64(point)) % _P, len(points), 1)
        factor[:, place] = 1
        numerator = numerator * factor % _P
        difference = (at + _P - np.uint64(point)) % _P
        difference[place] = 1
        denominator = denominator * difference % _P
    return numerator * _inverse(denominator) % _P


def _inverse(values: Field) -> Field:
    """By Fermat's little theorem: x^(p-2), where p - 2 is 2^31 - 3."""
    result = np.ones_like(values)
    for bit in range(30, -1, -1):
        result = result * result % _P
        if PRIME - 2 >> bit & 1:
            result = result * values % _P
    return result


# Decoding


def wrong_places(
    points: Sequence[int], word: Field, threshold: int, errors: int, suspects: frozenset[int] = frozenset()
) -> frozenset[int] | None:
    """The points at which a word is wrong; None if more than `errors` are, so that it is no word of the code.

    Args:
        points: distinct numbers from 1.
        word: (points, columns); a point is wrong if it is wrong in any column.
        threshold: the polynomials' degree is below it.
        errors: at most half of what `points` exceeds `threshold` by, so that the answer is unique.
        suspects: points that are probably wrong; a guess, which saves time.
    """
    points = list(points)
    trusted = [place for place, point in enumerate(points) if point not in suspects]
    guess = _disagreeing(points, word, trusted[:threshold]) if len(trusted) >= threshold else None
    if guess is not None and len(guess) <= errors:
        return guess
    found: frozenset[int] = frozenset()
    for column in range(word.shape[1]):
        wrong = _decode(points, word[:, column].tolist(), threshold)
        if wrong is None:
            return None
        found |= wrong
    return found if len(found) <= errors else None


def _disagreeing(points: list[int], word: Field, basis: list[int]) -> frozenset[int]:
    """The points at which a word differs from the polynomials through the values at some of its places."""
    expected = interpolate([points[place] for place in basis], word[basis], points)
    return frozenset(point for point, wrong in zip(points, (expected != word).any(1), strict=True) if wrong)


def _decode(points: list[int], values: list[int], threshold: int) -> frozenset[int] | None:
    """Gao's algorithm: the points at which the nearest codeword differs, or None if there is none near enough."""
    product, fitted = [1], [0]
    for point, value in zip(points, values, strict=True):  # Newton's interpolation
        scale = (value - _at(fitted, point)) * pow(_at(product, point), -1, PRIME) % PRIME
        fitted = _add(fitted, [scale * each % PRIME for each in product])
        product = _add([0, *product], [-point * each for each in product])
    before, now, cofactor_before, cofactor = product, fitted, [0], [1]
    while 2 * (len(now) - 1) >= len(points) + threshold and any(now):
        quotient, rest = _divide(before, now)
        before, now = now, rest
        cofactor_before, cofactor = cofactor, _add(cofactor_before, [-each for each in _times(quotient, cofactor)])
    message, rest = _divide(now, cofactor)
    if any(rest) or len(message) > threshold:
        return None
    return frozenset(point for point, value in zip(points, values, strict=True) if _at(message, point) != value)


def _at(polynomial: list[int], point: int) -> int:
    total = 0
    for coefficient in reversed(polynomial):
        total = (total * point + coefficient) % PRIME
    return total


def _add(one: list[int], other: list[int]) -> list[int]:
    longer, shorter = (one, other) if len(one) >= len(other) else (other, one)
    total = [(a + b) % PRIME for a, b in zip(longer, shorter, strict=False)] + [
        a % PRIME for a in longer[len(shorter) :]
    ]
    while len(total) > 1 and not total[-1]:
        total.pop()
    return total


def _times(one: list[int], other: list[int]) -> list[int]:
    total = [0] * (len(one) + len(other) - 1)
    for place, factor in enumerate(one):
        for other_place, other_factor in enumerate(other):
            total[place + other_place] += factor * other_factor
    return _add(total, [0])


def _divide(one: list[int], other: list[int]) -> tuple[list[int], list[int]]:
    """Quotient and remainder."""
    rest, quotient, lead = list(one), [0] * max(1, len(one) - len(other) + 1), pow(other[-1], -1, PRIME)
    for place in range(len(one) - len(other), -1, -1):
        factor = rest[place + len(other) - 1] * lead % PRIME
        quotient[place] = factor
        for step, coefficient in enumerate(other):
            rest[place + step] = (rest[place + step] - factor * coefficient) % PRIME
    return _add(quotient, [0]), _add(rest, [0])
