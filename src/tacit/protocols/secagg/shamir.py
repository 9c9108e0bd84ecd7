"""Shamir's secret sharing of 32-byte secrets, over the field of p = 2^31 - 1, for all holders at once.

Any `threshold` shares give the secret, one less gives nothing (Shamir, "How to share a secret", CACM 1979). A secret is
cut into nine limbs of 30 bits; each is the constant term of a polynomial of its own. Why this field: products of two
elements fit uint64, and reduction modulo a Mersenne prime is a shift and an addition, so NumPy does holders, limbs and
clients in one sweep without tables (whose look-ups would tell about secrets by their timing). It takes 2^31 - 2
holders, where GF(2^8) ends at 255, fewer than dense graphs of 1000 clients need. The price is 36 bytes for 32.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from tacit.protocols.secagg.errors import ProtocolError

Field = NDArray[np.uint64]

PRIME = (1 << 31) - 1
LIMBS = 9
SHARE = 4 * LIMBS  # bytes
_LIMB = 30  # bits
_P, _SHIFT = np.uint64(PRIME), np.uint64(31)


def to_limbs(secret: bytes) -> list[int]:
    """A 32-byte secret in nine numbers below 2^30."""
    value = int.from_bytes(secret, "little")
    return [value >> _LIMB * place & (1 << _LIMB) - 1 for place in range(LIMBS)]


def from_limbs(limbs: Sequence[int]) -> bytes:
    """The secret again; numbers that are no limbs come from shares that do not belong together."""
    value = sum(int(limb) << _LIMB * place for place, limb in enumerate(limbs))
    if max(limbs) >> _LIMB or value >> 256:
        raise ProtocolError("Shares do not belong together.")
    return value.to_bytes(32, "little")


def split(secrets: Sequence[bytes], points: Sequence[int], threshold: int, draw: Callable[[int], bytes]) -> Field:
    """Shares of each secret at each point, as an array (points, secrets, limbs).

    Args:
        secrets: 32 bytes each.
        points: different numbers from 1, one for each holder.
        threshold: how many shares give the secret.
        draw: so many secret, uniform bytes; called until all coefficients are found.
    """
    constants = np.array([to_limbs(secret) for secret in secrets], np.uint64)
    coefficients = _uniform((threshold - 1) * constants.size, draw).reshape(threshold - 1, *constants.shape)
    return evaluate(np.concatenate([constants[None], coefficients]), points)


def evaluate(polynomials: Field, points: Sequence[int]) -> Field:
    """Polynomials, constant terms first, at some points below 2^16, by Horner's rule."""
    at = np.array(points, np.uint64).reshape(-1, *(1,) * (polynomials.ndim - 1))
    total = np.zeros((len(points), *polynomials.shape[1:]), np.uint64)
    for row in polynomials[::-1]:
        total = total * at + row  # below 2^32 · 2^16 + 2^31
        total = (total & _P) + (total >> _SHIFT)  # 2^31 = 1 modulo p: below 2^31 + 2^18
    return total % _P


def recover(points: NDArray[np.int64], shares: Field) -> Field:
    """Constant terms of many polynomials at once.

    Args:
        points: (secrets, threshold), where each secret's shares were taken.
        shares: (secrets, threshold, limbs).
    """
    patterns, which = np.unique(points, axis=0, return_inverse=True)  # on a complete graph there is one for all
    weights = _weights(patterns.astype(np.uint64))[which.reshape(-1)]
    total = np.zeros((shares.shape[0], shares.shape[2]), np.uint64)
    for place in range(points.shape[1]):
        total = (total + weights[:, place, None] * shares[:, place]) % _P
    return total


def to_bytes(share: Field) -> bytes:
    """One share on the wire."""
    return share.astype("<u4").tobytes()


def from_bytes(data: bytes) -> Field:
    """One share from the wire; numbers outside the field are refused."""
    share = np.frombuffer(data, "<u4").astype(np.uint64)
    if share.size != LIMBS or bool((share >= _P).any()):
        raise ProtocolError("A share is no list of nine numbers of the field.")
    return share


def _uniform(count: int, draw: Callable[[int], bytes]) -> Field:
    """Uniform elements of the field: 31 bits each; the one value too many is thrown away."""
    found = np.zeros(0, np.uint64)
    while found.size < count:
        words = np.frombuffer(draw(4 * (count + 8)), "<u4").astype(np.uint64) & _P
        found = np.concatenate([found, words[words < _P]])
    return found[:count]


def _weights(points: Field) -> Field:
    """Lagrange's weights at zero, row by row: the products of x_j / (x_j - x_i) over j ≠ i."""
    above, below = np.ones_like(points), np.ones_like(points)
    for place in range(points.shape[1]):
        other = points[:, place, None]
        same = other == points
        above = above * np.where(same, np.uint64(1), other) % _P
        below = below * np.where(same, np.uint64(1), (other + _P - points) % _P) % _P
    return above * _inverse(below) % _P


def _inverse(values: Field) -> Field:
    """By Fermat: x^(p-2), where p - 2 is 2^31 - 3."""
    result = np.ones_like(values)
    for bit in range(30, -1, -1):
        result = result * result % _P
        if PRIME - 2 >> bit & 1:
            result = result * values % _P
    return result
