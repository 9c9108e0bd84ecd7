"""Who is whose neighbour: a Harary graph over a random order of the clients (Bell et al., CCS 2020, Section 3.3).

The order comes from the roster's digest, which covers the fresh keys of all who announced. A server can still try many
rosters by leaving clients out or by new keys of its colluders: that is why sparse thresholds are those for 2^-40.
"""

import hashlib
from collections.abc import Sequence

from tacit.protocols import crypto
from tacit.wire.packing import number


def roster_digest(context: bytes, leaves: dict[int, bytes]) -> bytes:
    """What everybody's roster must agree on: who announced, and with which keys."""
    return crypto.digest("roster", context, *(number(client) + leaves[client] for client in sorted(leaves)))


def leaf(client: int, keys: bytes) -> bytes:
    """One client's place in the roster."""
    return crypto.digest("leaf", number(client), keys)


def neighbourhoods(digest: bytes, members: Sequence[int], degree: int) -> dict[int, frozenset[int]]:
    """Each client's neighbours, without itself."""
    circle = _ordered(digest, members)
    return {client: _around(circle, place, degree) for place, client in enumerate(circle)}


def neighbours(digest: bytes, members: Sequence[int], degree: int, client: int) -> frozenset[int]:
    """One client's neighbours."""
    circle = _ordered(digest, members)
    return _around(circle, circle.index(client), degree)


def _ordered(digest: bytes, members: Sequence[int]) -> list[int]:
    """By 16 bytes each of one long digest; a tie, which nobody will see, is broken by number."""
    lots = hashlib.shake_256(crypto.digest("order", digest)).digest(16 * len(members))
    drawn = {client: lots[16 * place : 16 * place + 16] for place, client in enumerate(sorted(members))}
    return sorted(members, key=lambda client: (drawn[client], client))


def _around(circle: list[int], place: int, degree: int) -> frozenset[int]:
    """The nearest `degree` on the circle, half on each side; all others, if there are no more."""
    if degree >= len(circle) - 1:
        return frozenset(circle) - {circle[place]}
    steps = range(1, degree // 2 + 1)
    return frozenset(circle[(place + sign * step) % len(circle)] for step in steps for sign in (1, -1))
