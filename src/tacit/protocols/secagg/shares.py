"""How a client shares its secrets: a holder's shares are derived, and the client publishes corrections.

A client and a holder have a key in common, from which both derive the same pseudorandom elements of the field. The
client's polynomials have its secrets at zero and the first threshold - 1 holders' elements at their points; for every
further holder it publishes by how much its elements differ from its shares. Any `threshold` holders recover the
secrets, fewer learn nothing, and what is published is the same for everyone: no share travels, none can be outside the
field, and a client cannot give holders inconsistent shares, except by a correction that does not fit.

Whether corrections fit is verified before a client's vector is accepted. Besides its secrets, it shares `PADS` random
elements. The server reveals a challenge, to which it has committed before; each holder answers with its masks plus
random combinations of its other elements. For a consistent client these are `PADS` words of the Reed-Solomon code. If
a word is within e errors of the code, so are all the secrets' shares, at the same holders, except with probability n/p
for each mask (Ben-Sasson et al., "Proximity gaps for Reed-Solomon codes", FOCS 2020, Theorem 1.6): 2^-44 for 1,000
holders and two masks. The answers reveal nothing, as each is masked, and a holder answers one challenge only. If the
server sent holders different challenges, the bindings under which they derive their elements would differ.

The scheme is Shamir's ("How to share a secret", CACM 1979) over the field of p = 2^32 - 5, vectorised over holders and
clients. A secret is four elements, each the constant term of its own polynomial. Why this field: elements fill their
four bytes, products of two fit uint64, and 2^32 is 5 modulo p, so NumPy processes holders, elements and clients at once
without look-up tables (whose timing would leak secrets). Shares are a word of a Reed-Solomon code, so up to e of
`threshold` + 2e shares may be wrong: the polynomial that agrees with all but e of them is unique (Reed & Solomon 1960),
and `wrong_places` finds it by Gao's algorithm ("A new algorithm for decoding Reed-Solomon codes", 2003).

An epoch has several rounds, and secrets of its own for each, all independent, which are shared in one message and
checked by one challenge. Opening those of one round reveals nothing about another one's. The secrets of a round are the
seed of a client's own pad; a secret of which nothing but its shares is used, behind its pads with neighbours; and for
some clients the key under which they upload the seed of their noise. If noise provides for t losses, and l clients of
the cohort are lost before the roster is known, the noise of at most t - l clients will be removed: of the first
survivors, in the order of their numbers (`tacit.core.rows`). They are among the first t - l members of the roster,
because at most d - l of these are lost later, and t - d shares are removed after d losses. So only these members share
such keys (`noise_dealers`). Which secrets a holder opens follows from the survivors that were agreed upon, never from
the server's request. Secrets have 128 bits, the strength of X25519, and keys derive from them by way of HKDF, bound to
round and client: a guess serves against one client only.

Two neighbours' pad in a round derives from a share, too, which both know: from that of one's secret at the other. Which
of them, its *owner*, follows from their places (`Circle.owns`). If the owner is lost, its secret is recovered, and the
share with it. If the other one is lost, the owner has sent the pad's secret with its upload, encrypted with its own
share of the other's secret (`escrow`). Shares of a secret that is not recovered, of which fewer than `threshold` are
known, are each uniform, and keys that derive from them by HKDF, for different clients, cannot be told from independent
ones without guessing one of 128 bits (HKDF as a random oracle: with one share guessed, the others follow).
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache, reduce

import numpy as np
from numpy.typing import NDArray

from tacit.core.rows import to_remove
from tacit.errors import ProtocolError
from tacit.protocols import crypto
from tacit.protocols.secagg.parameters import Parameters

Field = NDArray[np.uint64]

PRIME = (1 << 32) - 5
ELEMENT = 4  # bytes
_P, _WORD, _LOW = np.uint64(PRIME), np.uint64(32), np.uint64((1 << 32) - 1)
_FIVE = np.uint64(5)  # 2^32 modulo p


def to_bytes(elements: Field) -> bytes:
    """Elements of the field as bytes."""
    return elements.astype("<u4").tobytes()


def from_bytes(data: bytes, count: int) -> Field:
    """The inverse of `to_bytes`; numbers outside the field are rejected."""
    elements = np.frombuffer(data, "<u4").astype(np.uint64) if len(data) == ELEMENT * count else np.zeros(0, np.uint64)
    if elements.size != count or bool((elements >= _P).any()):
        raise ProtocolError(f"Expected {count} elements of the field.")
    return elements


def uniform(count: int, key: bytes) -> Field:
    """Uniform elements of the field from a key, by rejection: five of the 2^32 words are not elements.

    The first ones are the same for every count. The stream is SHAKE-256's (FIPS 202), of the key.
    """
    length = ELEMENT * count
    while True:
        words = np.frombuffer(hashlib.shake_256(key).digest(length), "<u4")
        if words[:count].size and int(words.max()) >= PRIME:
            words = words[words < PRIME]
        if words.size >= count:
            return words[:count].astype(np.uint64)
        length += ELEMENT * (count - words.size)


def combine(matrix: Field, values: Field) -> Field:
    """The product of a matrix (places, points) and values (points, columns), modulo p."""
    total = np.zeros((matrix.shape[0], values.shape[1]), np.uint64)
    for row in range(matrix.shape[1]):
        product = matrix[:, row, None] * values[row]
        total += (product & _LOW) + (product >> _WORD) * _FIVE  # below 2^35
    return total % _P


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
    """By Fermat's little theorem: x^(p-2)."""
    result = np.ones_like(values)
    for bit in reversed(range(PRIME.bit_length())):
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
    guess = _find_disagreements(points, word, trusted[:threshold]) if len(trusted) >= threshold else None
    if guess is not None and len(guess) <= errors:
        return guess
    wrong_points: frozenset[int] = frozenset()
    for column in range(word.shape[1]):
        wrong = _decode(points, word[:, column].tolist(), threshold)
        if wrong is None:
            return None
        wrong_points |= wrong
    return wrong_points if len(wrong_points) <= errors else None


def _find_disagreements(points: list[int], word: Field, basis: list[int]) -> frozenset[int]:
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
    return reduce(lambda total, coefficient: (total * point + coefficient) % PRIME, reversed(polynomial), 0)


def _add(one: list[int], other: list[int]) -> list[int]:
    size = max(len(one), len(other))
    first, second = (each + [0] * (size - len(each)) for each in (one, other))
    total = [(a + b) % PRIME for a, b in zip(first, second, strict=True)]
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


PADS = 2
ANSWER = ELEMENT * PADS  # bytes of a holder's answer about one client
LIMBS = 4  # elements of a secret
SECRET = SHARE = ELEMENT * LIMBS  # bytes


class Shared(IntEnum):
    """The secrets of a client in one round."""

    SEED = 0  # of its own pad
    PAD = 1  # whose shares are behind its pads with neighbours
    NOISE = 2  # the key of its noise's seed


def columns(p: Parameters, *, noisy: bool) -> int:
    """Elements that a client shares with each holder; `noisy`: also the keys of its noise."""
    return LIMBS * p.rounds * (2 + noisy) + PADS


def place_of(p: Parameters, secret: Shared, turn: int) -> int:
    """The place of a secret among those of an epoch: noise comes last, because only some clients share its keys."""
    return 2 * p.rounds + turn if secret is Shared.NOISE else 2 * turn + secret


def noise_dealers(p: Parameters, members: Iterable[int]) -> frozenset[int]:
    """The members that share the seeds of their noise: nobody else's will be removed."""
    present = frozenset(members)
    return frozenset(to_remove(p.surplus, p.cohort - len(present), present))


def noise_removed(p: Parameters, survivors: Iterable[int]) -> frozenset[int]:
    """The survivors whose noise is removed, all of them among the dealers."""
    return noise_dealers(p, survivors)


def holder_key(shared: bytes, binding: bytes, client: int, holder: int) -> bytes:
    """From which a holder's elements of a client derive; only these two know `shared`."""
    return crypto.derive(shared, "share", binding, client, holder)


def elements(key: bytes, p: Parameters, *, noisy: bool) -> Field:
    """A holder's elements of a client."""
    return uniform(columns(p, noisy=noisy), key)


def elements_of(key: bytes, p: Parameters, secret: Shared, turn: int) -> Field:
    """A holder's elements of one of a client's secrets."""
    place = place_of(p, secret, turn)
    return secret_part(uniform(LIMBS * (place + 1), key), place)


def spare_elements(key: bytes, binding: bytes, lost: int) -> Field:
    """A holder's elements of the secret that a client has with a third one, shared in case that one has lied."""
    return uniform(LIMBS, crypto.derive(key, "spare", binding, lost))


def new_secret(key: bytes) -> bytes:
    """A secret from a key: elements of the field, as bytes."""
    return to_bytes(uniform(LIMBS, key))


def pair_secret(part: Field, binding: bytes, owner: int, holder: int) -> bytes:
    """The secret of two neighbours' pad in a round, from the holder's share of the owner's secret."""
    return new_secret(crypto.derive(to_bytes(part), "pair", binding, owner, holder))


def escrow(secret: bytes, part: Field, binding: bytes, client: int, holder: int) -> bytes:
    """Encrypt, or decrypt, a secret that a client and a holder have in common with the holder's share of the client's.

    Whoever recovers the client's secret can compute the shares of all its holders, also of those that are silent.
    """
    return _xor(secret, crypto.derive(to_bytes(part), "escrow", binding, client, holder, length=SECRET))


def wrap(seed: bytes, key: bytes, binding: bytes, client: int) -> bytes:
    """Encrypt, or decrypt, the seed of a client's noise."""
    return _xor(seed, crypto.derive(key, "noise", binding, client))


def _xor(one: bytes, other: bytes) -> bytes:
    return (int.from_bytes(one) ^ int.from_bytes(other)).to_bytes(len(one))


def secret_part(row: Field, place: int) -> Field:
    """The part of a holder's elements, or corrections, that belongs to one secret."""
    return row[..., LIMBS * place : LIMBS * (place + 1)]


def corrections(secrets: Sequence[bytes], masks: Field, held: Sequence[Field], threshold: int) -> bytes:
    """The published corrections of a client's secrets and masks, for holders with these elements, at points 1, 2, …."""
    constants = np.concatenate([from_bytes(b"".join(secrets), LIMBS * len(secrets)), masks])
    basis = np.array([constants, *held[: threshold - 1]], np.uint64)
    shares = interpolate(range(threshold), basis, range(threshold, len(held) + 1))
    return to_bytes((shares + np.uint64(PRIME) - np.array(held[threshold - 1 :])) % np.uint64(PRIME))


@lru_cache(maxsize=8)
def _coefficients(challenge: bytes, binding: bytes, count: int) -> Field:
    """Of the random combinations: (elements of secrets, masks)."""
    return uniform(count * PADS, crypto.derive(challenge, "challenge", binding)).reshape(count, PADS)


def answers(rows: Field, challenge: bytes, binding: bytes) -> Field:
    """Of (holders, elements), or corrections: the masks plus the challenge's combinations of all secrets' elements."""
    secret, masks = rows[:, :-PADS], rows[:, -PADS:]
    return (masks + combine(secret, _coefficients(challenge, binding, secret.shape[1]))) % np.uint64(PRIME)


def answers_about(rows: Sequence[Field], challenge: bytes, binding: bytes) -> Field:
    """A holder's answers about some clients, whose rows differ in length."""
    given = np.empty((len(rows), PADS), np.uint64)
    for width in {len(row) for row in rows}:
        places = [place for place, row in enumerate(rows) if len(row) == width]
        given[places] = answers(np.array([rows[place] for place in places]), challenge, binding)
    return given


@dataclass(frozen=True, eq=False)
class Dealing:
    """A client's publication, at the server.

    Attributes:
        holders: the client's neighbours and itself, in ascending order: their points are 1, 2, ….
        threshold: number of shares that recover a secret.
        published: corrections of the holders from number `threshold` on: (holders, elements).
    """

    holders: tuple[int, ...]
    threshold: int
    published: NDArray[np.uint32]

    @classmethod
    def read(cls, data: bytes, holders: tuple[int, ...], threshold: int, width: int) -> "Dealing":
        count = len(holders) - threshold + 1
        return cls(holders, threshold, from_bytes(data, count * width).reshape(count, width).astype(np.uint32))

    def corrections(self, place: int | None = None) -> Field:
        """Of one secret, or all: (holders, elements); zero for the first holders."""
        part = self.published if place is None else self.published[:, LIMBS * place : LIMBS * (place + 1)]
        return np.concatenate([np.zeros((self.threshold - 1, part.shape[1]), np.uint64), part.astype(np.uint64)])

    def wrong_holders(
        self,
        given: Mapping[int, Field],
        corrections: Field,
        errors: int,
        suspects: frozenset[int] = frozenset(),
    ) -> frozenset[int] | None:
        """Holders whose elements do not fit; None if they are more than `errors`, or too many to decide.

        Args:
            given: (elements,) by holder.
            corrections: of these elements: (holders, elements).
            errors: the maximum number of wrong holders to identify.
            suspects: holders that did not fit elsewhere; a guess.
        """
        places = [place for place, holder in enumerate(self.holders) if holder in given]
        if len(places) < self.threshold:
            return None
        word = self._shares(given, corrections, places)
        wrong = wrong_places(
            [place + 1 for place in places],
            word,
            self.threshold,
            min(errors, (len(places) - self.threshold) // 2),
            frozenset(place + 1 for place in places if self.holders[place] in suspects),
        )
        return None if wrong is None else frozenset(self.holders[point - 1] for point in wrong)

    def recover(self, given: Mapping[int, Field], corrections: Field) -> bytes:
        """A secret from right shares: (elements,) by holder."""
        return to_bytes(self._at([0], given, corrections)[0])

    def holdings(self, given: Mapping[int, Field], corrections: Field) -> dict[int, Field]:
        """The elements of every holder, from some holders' right shares."""
        values = self._at(range(1, len(self.holders) + 1), given, corrections)
        derived = (values + np.uint64(PRIME) - corrections) % np.uint64(PRIME)
        return dict(zip(self.holders, derived, strict=True))

    def _at(self, points: Sequence[int], given: Mapping[int, Field], corrections: Field) -> Field:
        """The polynomials' values, from right shares."""
        places = [place for place, holder in enumerate(self.holders) if holder in given][: self.threshold]
        return interpolate([place + 1 for place in places], self._shares(given, corrections, places), points)

    def _shares(self, given: Mapping[int, Field], corrections: Field, places: list[int]) -> Field:
        rows = np.array([given[self.holders[place]] for place in places], np.uint64)
        return (rows + corrections[places]) % np.uint64(PRIME)
