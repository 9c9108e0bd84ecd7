"""How a client shares its secrets: a holder's shares are derived, and the client publishes what corrects them.

A client and a holder have a key in common, from which both derive the same pseudorandom elements of the field. The
client's polynomials have its secrets at zero and the first threshold - 1 holders' elements at their points; for every
further holder it publishes by how much its elements differ from its shares. Any `threshold` holders recover the
secrets, fewer learn nothing, and what is published is the same for everyone: no share travels, none can be outside the
field, and a client cannot tell one holder something else than another one, except by a correction that does not fit.

Whether corrections fit is verified before a client's vector is accepted. Besides its secrets, it shares `MASKS` random
elements. The server reveals a challenge, to which it has committed before; each holder answers with its masks plus
random combinations of its other elements. For a consistent client these are `MASKS` words of the Reed-Solomon code. If
a word is within e errors of the code, so are all the secrets' shares, at the same holders, except with probability n/p
for each mask (Ben-Sasson et al., "Proximity gaps for Reed-Solomon codes", FOCS 2020, Theorem 1.6): 2^-42 for 1,000
holders and two masks. The answers reveal nothing, as each is masked, and a holder answers one challenge only. If the
server sent holders different challenges, the bindings under which they derive their elements would differ.

Secrets are the seed of a client's own pad, the secret behind its pads with neighbours, and the seeds of its surplus
noise, which are a chain (`tacit.core.surplus`): each is shared for itself. Which seed a holder opens follows from the
survivors that were agreed upon, never from the server's request. The first two have 128 bits, the strength of X25519,
and keys derive from them by way of HKDF, bound to session and client: a guess serves against one client only.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from tacit.core.keys import Key
from tacit.core.surplus import seed_after
from tacit.errors import ProtocolError
from tacit.protocols import crypto
from tacit.protocols.secagg import shamir
from tacit.protocols.secagg.parameters import Parameters
from tacit.protocols.secagg.shamir import ELEMENT, Field, limbs_of

MASKS = 2
ANSWER = ELEMENT * MASKS  # bytes of a holder's answer about one client
SEED, PAD, NOISE = range(3)  # places of secrets; those of noise seeds of levels 1, 2, … follow
SECRET = 16  # bytes of the first two; seeds of noise have 32
LIMBS, NOISE_LIMBS = limbs_of(SECRET), limbs_of(crypto.KEY)
SHARE, NOISE_SHARE = ELEMENT * LIMBS, ELEMENT * NOISE_LIMBS  # bytes


def columns(p: Parameters) -> int:
    """Elements that a client shares with each holder."""
    return _start(NOISE + p.surplus) + MASKS


def level_of(p: Parameters, survivors: int) -> int:
    """The first component of noise that is removed if this many clients of the cohort survive; 0: none is."""
    level = p.cohort - survivors + 1
    return level if level <= p.surplus else 0


def noise_chain(seed: bytes, p: Parameters) -> list[bytes]:
    """The seeds of all levels, from that of component 1."""
    seeds = [Key(seed)] if p.surplus else []
    while len(seeds) < p.surplus:
        seeds.append(seed_after(seeds[-1]))
    return [each.value for each in seeds]


def holder_key(shared: bytes, binding: bytes, client: int, holder: int) -> bytes:
    """From which a holder's elements of a client derive; `shared` is known to these two alone."""
    return crypto.derive(shared, "share", binding, client, holder)


def elements(key: bytes, p: Parameters) -> Field:
    """A holder's elements of a client."""
    generator = crypto.keystream(key)
    return shamir.uniform(columns(p), lambda count: generator.update(bytes(count)))


def spare_elements(key: bytes, binding: bytes, lost: int) -> Field:
    """A holder's elements of the secret that a client has with a third one, shared in case that one has lied."""
    generator = crypto.keystream(crypto.derive(key, "spare", binding, lost))
    return shamir.uniform(LIMBS, lambda count: generator.update(bytes(count)))


def escrow(secret: bytes, part: Field, binding: bytes, client: int, holder: int) -> bytes:
    """Encrypt, or decrypt, a secret that a client and a holder have in common with the holder's share of the client's.

    Whoever recovers the client's secret can compute the shares of all its holders, also of those that are silent.
    """
    mask = crypto.derive(shamir.to_bytes(part), "escrow", binding, client, holder, length=SECRET)
    return bytes(a ^ b for a, b in zip(secret, mask, strict=True))


def secret_part(row: Field, place: int) -> Field:
    """The part of a holder's elements, or corrections, that belongs to one secret."""
    return row[..., _start(place) : _start(place + 1)]


def _start(place: int) -> int:
    """Where the elements of a secret begin."""
    return LIMBS * min(place, NOISE) + NOISE_LIMBS * max(place - NOISE, 0)


def corrections(secrets: Sequence[bytes], masks: Field, held: Sequence[Field], threshold: int) -> bytes:
    """What a client publishes.

    Args:
        secrets: of the own pad, of the pads with neighbours, and noise seeds.
        masks: random elements.
        held: the holders' elements, in the order of their points 1, 2, ….
        threshold: number of holders that recover a secret.
    """
    constants = [limb for secret in secrets for limb in shamir.to_limbs(secret)] + masks.tolist()
    basis = np.array([constants, *held[: threshold - 1]], np.uint64)
    shares = shamir.interpolate(range(threshold), basis, range(threshold, len(held) + 1))
    return shamir.to_bytes(
        (shares + np.uint64(shamir.PRIME) - np.array(held[threshold - 1 :])) % np.uint64(shamir.PRIME)
    )


@lru_cache(maxsize=8)
def _coefficients(challenge: bytes, binding: bytes, count: int) -> Field:
    """Of the random combinations: (elements of secrets, masks)."""
    generator = crypto.keystream(crypto.derive(challenge, "challenge", binding))
    return shamir.uniform(count * MASKS, lambda length: generator.update(bytes(length))).reshape(count, MASKS)


def answers(rows: Field, challenge: bytes, binding: bytes) -> Field:
    """Of (holders, elements), or corrections: the masks plus the challenge's combinations of all secrets' elements."""
    secret, masks = rows[:, :-MASKS], rows[:, -MASKS:]
    return (masks + shamir.combine(secret, _coefficients(challenge, binding, secret.shape[1]))) % np.uint64(
        shamir.PRIME
    )


@dataclass(frozen=True, eq=False)
class Dealing:
    """What a client published, at the server.

    Attributes:
        holders: the client's neighbours and itself, in ascending order: their points are 1, 2, ….
        threshold: number of shares that recover a secret.
        corrections: (holders, elements); zero for the first ones.
    """

    holders: tuple[int, ...]
    threshold: int
    corrections: Field

    @classmethod
    def read(cls, data: bytes, holders: tuple[int, ...], threshold: int, width: int) -> "Dealing":
        count = len(holders) - threshold + 1
        published = shamir.from_bytes(data, count * width).reshape(count, width)
        return cls(holders, threshold, np.concatenate([np.zeros((threshold - 1, width), np.uint64), published]))

    def liars(
        self,
        given: Mapping[int, Field],
        corrections: Field,
        errors: int,
        suspects: frozenset[int] = frozenset(),
    ) -> frozenset[int] | None:
        """Holders whose elements do not fit; None if they are more than `errors`, or too many to tell.

        Args:
            given: (elements,) by holder.
            corrections: of these elements: (holders, elements).
            errors: of so many holders or fewer it can be said who they are.
            suspects: holders that did not fit elsewhere; a guess.
        """
        places = [place for place, holder in enumerate(self.holders) if holder in given]
        if len(places) < self.threshold:
            return None
        word = self._shares(given, corrections, places)
        wrong = shamir.wrong_places(
            [place + 1 for place in places],
            word,
            self.threshold,
            min(errors, (len(places) - self.threshold) // 2),
            frozenset(place + 1 for place in places if self.holders[place] in suspects),
        )
        return None if wrong is None else frozenset(self.holders[point - 1] for point in wrong)

    def recover(self, given: Mapping[int, Field], corrections: Field) -> list[int]:
        """The limbs of a secret from right shares: (limbs,) by holder."""
        limbs: list[int] = self._at([0], given, corrections)[0].tolist()
        return limbs

    def holdings(self, given: Mapping[int, Field], corrections: Field) -> dict[int, Field]:
        """What every holder derives, from some holders' right shares."""
        values = self._at(range(1, len(self.holders) + 1), given, corrections)
        derived = (values + np.uint64(shamir.PRIME) - corrections) % np.uint64(shamir.PRIME)
        return dict(zip(self.holders, derived, strict=True))

    def _at(self, points: Sequence[int], given: Mapping[int, Field], corrections: Field) -> Field:
        """The polynomials' values, from right shares."""
        places = [place for place, holder in enumerate(self.holders) if holder in given][: self.threshold]
        return shamir.interpolate([place + 1 for place in places], self._shares(given, corrections, places), points)

    def _shares(self, given: Mapping[int, Field], corrections: Field, places: list[int]) -> Field:
        rows = np.array([given[self.holders[place]] for place in places], np.uint64)
        return (rows + corrections[places]) % np.uint64(shamir.PRIME)


def secret_of(limbs: Sequence[int], length: int = SECRET) -> bytes:
    """The secret that limbs stand for; a lying client may share limbs that stand for none: then one of its choice."""
    try:
        return shamir.from_limbs(limbs, length)
    except ProtocolError:
        return crypto.digest("limbs", shamir.to_bytes(np.array(limbs, np.uint64)))[:length]
