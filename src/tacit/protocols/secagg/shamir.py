"""Shamir's secret sharing of 32-byte secrets over the field of p = 2^31 - 1, vectorised over holders and clients.

Any `threshold` shares recover the secret, fewer reveal nothing (Shamir, "How to share a secret", CACM 1979). A secret
is cut into nine limbs of 30 bits, each the constant term of its own polynomial. Why this field: products of two
elements fit uint64, and reduction modulo a Mersenne prime is a shift and an addition, so NumPy processes holders, limbs
and clients at once without look-up tables (whose timing would leak secrets). It supports 2^31 - 2 holders, where
GF(2^8) ends at 255, fewer than dense graphs of 1000 clients need. The cost is 36 bytes for a secret of 32.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tacit.errors import ProtocolError, TooFewClientsError

Field = NDArray[np.uint64]

PRIME = (1 << 31) - 1
LIMBS = 9
SHARE = 4 * LIMBS  # bytes
_LIMB = 30  # bits
_P, _SHIFT = np.uint64(PRIME), np.uint64(31)


def to_limbs(secret: bytes) -> list[int]:
    """A 32-byte secret as nine numbers below 2^30."""
    value = int.from_bytes(secret, "little")
    return [value >> _LIMB * place & (1 << _LIMB) - 1 for place in range(LIMBS)]


def from_limbs(limbs: Sequence[int]) -> bytes:
    """The inverse of `to_limbs`; raises `ProtocolError` for other numbers, which come from inconsistent shares."""
    value = sum(int(limb) << _LIMB * place for place, limb in enumerate(limbs))
    if max(limbs) >> _LIMB or value >> 256:
        raise ProtocolError("The shares are inconsistent.")
    return value.to_bytes(32, "little")


def split(secrets: Sequence[bytes], points: Sequence[int], threshold: int, draw: Callable[[int], bytes]) -> Field:
    """Shares of each secret at each point, as an array (points, secrets, limbs).

    Args:
        secrets: 32 bytes each.
        points: distinct numbers from 1, one for each holder.
        threshold: number of shares that recover a secret.
        draw: returns `n` secret, uniform bytes; called until all coefficients are drawn.
    """
    constants = np.array([to_limbs(secret) for secret in secrets], np.uint64)
    coefficients = uniform((threshold - 1) * constants.size, draw).reshape(threshold - 1, *constants.shape)
    return evaluate(np.concatenate([constants[None], coefficients]), points)


def evaluate(polynomials: Field, points: Sequence[int]) -> Field:
    """Polynomials, constant terms first, at points below 2^16, by Horner's rule."""
    at = np.array(points, np.uint64).reshape(-1, *(1,) * (polynomials.ndim - 1))
    total = np.zeros((len(points), *polynomials.shape[1:]), np.uint64)
    for row in polynomials[::-1]:
        total = total * at + row  # below 2^32 · 2^16 + 2^31
        total = (total & _P) + (total >> _SHIFT)  # 2^31 = 1 modulo p: below 2^31 + 2^18
    return total % _P


def recover(points: NDArray[np.int64], shares: Field) -> Field:
    """Constant terms of many polynomials, by Lagrange interpolation.

    Args:
        points: (secrets, threshold), the points of each secret's shares.
        shares: (secrets, threshold, limbs).
    """
    patterns, which = np.unique(points, axis=0, return_inverse=True)  # a complete graph has one pattern
    weights = _weights(patterns.astype(np.uint64))[which.reshape(-1)]
    total = np.zeros((shares.shape[0], shares.shape[2]), np.uint64)
    for place in range(points.shape[1]):
        total = (total + weights[:, place, None] * shares[:, place]) % _P
    return total


def interpolate(points: Sequence[int], values: Field, places: Sequence[int]) -> Field:
    """Values at further places of the polynomials of least degree that have these values at these points.

    Args:
        points: distinct numbers below p.
        values: (points, …), an array for each point.
        places: distinct numbers below p, other than the points.
    """
    at = np.array(points, np.uint64)
    shifted = np.stack([(at + np.uint64(PRIME - place)) % _P for place in places])
    weights = _weights(shifted).reshape(len(places), len(points), *(1,) * (values.ndim - 1))
    total = np.zeros((len(places), *values.shape[1:]), np.uint64)
    for row in range(len(points)):
        total = (total + weights[:, row] * values[row]) % _P
    return total


def to_bytes(share: Field) -> bytes:
    """A share as bytes."""
    return share.astype("<u4").tobytes()


def from_bytes(data: bytes) -> Field:
    """The inverse of `to_bytes`; numbers outside the field are rejected."""
    share = np.frombuffer(data, "<u4").astype(np.uint64)
    if share.size != LIMBS or bool((share >= _P).any()):
        raise ProtocolError("Expected a share of nine field elements.")
    return share


def uniform(count: int, draw: Callable[[int], bytes]) -> Field:
    """Uniform elements of the field, by rejection: of the 2^31 values of 31 bits, one is outside the field."""
    drawn = np.zeros(0, np.uint64)
    while drawn.size < count:
        words = np.frombuffer(draw(4 * (count + 8)), "<u4").astype(np.uint64) & _P
        drawn = np.concatenate([drawn, words[words < _P]])
    return drawn[:count]


def _weights(points: Field) -> Field:
    """Lagrange weights at zero, row by row: the products of x_j / (x_j - x_i) over j ≠ i."""
    numerator, denominator = np.ones_like(points), np.ones_like(points)
    for place in range(points.shape[1]):
        other = points[:, place, None]
        same = other == points
        numerator = numerator * np.where(same, np.uint64(1), other) % _P
        denominator = denominator * np.where(same, np.uint64(1), (other + _P - points) % _P) % _P
    return numerator * _inverse(denominator) % _P


def _inverse(values: Field) -> Field:
    """By Fermat's little theorem: x^(p-2), where p - 2 is 2^31 - 3."""
    result = np.ones_like(values)
    for bit in range(30, -1, -1):
        result = result * result % _P
        if PRIME - 2 >> bit & 1:
            result = result * values % _P
    return result


@dataclass(frozen=True, eq=False)
class ShareSet:
    """The shares of one client's secret by holder (from 1), and a test that recognises the right secret."""

    client: int
    shares: Mapping[int, Field]
    is_secret: Callable[[bytes], bool]


def recover_secrets(share_sets: list[ShareSet], threshold: int) -> dict[int, bytes]:
    """The verified secret of every client; raises `TooFewClientsError` if one cannot be recovered."""
    if not share_sets:
        return {}
    for each in share_sets:
        if len(each.shares) < threshold:
            raise TooFewClientsError("Too few shares of a secret remain: there is no sum.")
    candidates = _interpolate([(each, sorted(each.shares)[:threshold]) for each in share_sets])
    return {
        each.client: secret if secret is not None and each.is_secret(secret) else _search(each, threshold)
        for each, secret in zip(share_sets, candidates, strict=True)
    }


def _interpolate(choices: list[tuple[ShareSet, list[int]]]) -> list[bytes | None]:
    """The secrets that the chosen shares give; None where the result is not 32 bytes."""
    points = np.array([holders for _, holders in choices], np.int64)
    shares = np.array([[each.shares[holder] for holder in holders] for each, holders in choices], np.uint64)
    return [_secret_or_none(limbs) for limbs in recover(points, shares).tolist()]


def _secret_or_none(limbs: list[int]) -> bytes | None:
    try:
        return from_limbs(limbs)
    except ProtocolError:
        return None


def _search(share_set: ShareSet, threshold: int) -> bytes:
    """Omit shares in turn, because some are wrong. With one share to spare, one wrong share is always found."""
    holders = sorted(share_set.shares)
    rotations = [(holders[start:] + holders[:start])[:threshold] for start in range(1, len(holders))]
    for secret in _interpolate([(share_set, rotation) for rotation in rotations]):
        if secret is not None and share_set.is_secret(secret):
            return secret
    raise TooFewClientsError(f"The shares of client {share_set.client} are inconsistent: there is no sum.")
