"""Clients that lie: their replies change on the way to the server."""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from protocols.secagg.federation import Federation, body_of
from tacit.protocols.secagg import Phase, secagg_messages, shares
from tacit.protocols.secagg.secagg_messages import Direction

Replies = list[tuple[int, bytes]]
Lie = Callable[[Phase, bytes], bytes | None]  # what becomes of the body of a liar's reply; None: it is silent


def elements(body: bytes) -> NDArray[np.uint32]:
    return np.frombuffer(body, "<u4").copy()


def wrong(body: bytes, places: list[int]) -> bytes:
    """Other elements of the field at these places, which are no shares of another secret."""
    words = elements(body)
    shifts = np.random.default_rng(len(places)).integers(1, shares.PRIME, len(places))
    words[places] = (words[places] + shifts) % shares.PRIME
    return bytes(words.tobytes())


@dataclass
class Liars:
    """A network in which the replies of some clients are misbehaviour."""

    misbehaviour: dict[int, Lie]
    silent: set[int] = field(default_factory=set)

    def __call__(self, phase: Phase, replies: Replies) -> Replies:
        return [(j, data) for j, reply in replies for data in self.sent(phase, j, reply) if j not in self.silent]

    def sent(self, phase: Phase, client: int, reply: bytes) -> list[bytes]:
        body = self.misbehaviour[client](phase, body_of(reply)) if client in self.misbehaviour else body_of(reply)
        if body is None:
            self.silent.add(client)
            return []
        index = int.from_bytes(reply[16:20], "little")
        return [secagg_messages.pack(phase, Direction.REPLY, index, client, reply[24:40], body)]


def at(wanted: Phase, change: Callable[[bytes], bytes | None]) -> Lie:
    return lambda phase, body: change(body) if phase is wanted else body


def falsified(body: bytes) -> bytes:
    return wrong(body, [*range(0, len(body) // 4, 9)])


def forged(body: bytes, threshold: int, columns: int) -> bytes:
    """Consistent shares of another pad secret: a polynomial is added that vanishes where no correction is published."""
    words = elements(body).reshape(-1, columns).astype(object)
    for row in range(len(words)):
        shift = math.prod(threshold + row - point for point in range(1, threshold)) % shares.PRIME
        words[row, shares.LIMBS] = (words[row, shares.LIMBS] + shift) % shares.PRIME
    return bytes(words.astype("<u4").tobytes())


def forger(federation: Federation, client: int, gone: Phase, disputed: frozenset[int] = frozenset()) -> Lie:
    """Shares a wrong secret, disputes with some holders as far as it publishes corrections for them, and is gone."""
    p = federation.session.parameters

    def lie(phase: Phase, body: bytes) -> bytes | None:
        if phase >= gone:
            return None
        if phase is not Phase.SHARE:
            return body
        state = federation.states[client]
        columns = shares.columns(p, noisy=client in shares.noise_dealers(p, state.members))
        first = state.circle.parameters.threshold - 1
        corrected = sorted(state.holds)[first:]
        places = [columns * row + shares.LIMBS for row, holder in enumerate(corrected) if holder in disputed]
        body = forged(body, first + 1, columns)
        return wrong(body, places) if places else body

    return lie


def lie_of(chance: random.Random) -> Lie:
    """A random role: dealer, holder, silent or with garbage in some phase, or all of them.

    Garbage instead of keys or of a vector is not a lie: almost all bytes are keys, and all are vectors.
    """
    role = chance.choice(["dealer", "holder", "answers", "silent", "garbage", "all"])
    at_phase = chance.choice([phase for phase in Phase if phase < Phase.CLOSED])
    part = chance.choice([0.02, 0.2, 1.0])

    def some(body: bytes) -> list[int]:
        words = range(len(body) // 4)
        return sorted(chance.sample(words, max(1, int(part * len(words)))))

    def lie(phase: Phase, body: bytes) -> bytes | None:
        if phase is at_phase and role in ("silent", "all"):
            return None
        if phase is at_phase and role == "garbage" and phase not in (Phase.ANNOUNCE, Phase.UPLOAD):
            return chance.randbytes(len(body))
        misbehaviour = {Phase.SHARE: ("dealer", "all"), Phase.CHECK: ("answers", "all"), Phase.OPEN: ("holder", "all")}
        return wrong(body, some(body)) if role in misbehaviour.get(phase, ()) and body and len(body) % 4 == 0 else body

    return lie
