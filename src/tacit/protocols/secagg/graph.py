"""The graph over which clients share secrets: its degree, its threshold, and who is whose neighbour.

Up to 64 clients the graph is complete (Bonawitz et al., CCS 2017); above, it is a random Harary graph (Bell et al.,
CCS 2020, Section 3.3). Degree and threshold follow the rule of `graph_parameter_finder.cc` in federated-compute
(Google): security 2^-40, correctness 2^-20. All probabilities are ratios of exact integers, so every machine computes
the same result. Server and clients both derive the parameters from the roster: the server cannot choose them.

The order of the clients comes from the roster's digest, which covers the fresh keys of all who announced. A server can
still try many rosters, by omitting clients or with new keys of colluding clients: that is why sparse thresholds are
computed for 2^-40.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from math import comb

from tacit.errors import TooFewClientsError
from tacit.protocols import crypto
from tacit.wire.packing import pack_number

MAX_COMPLETE = 64  # the largest cohort with a complete graph
_SECURITY, _CORRECTNESS = 41, 20  # bits: half of 2^-40 for the graph, half for the shares


class ThreatModel(IntEnum):
    """From which server individual updates stay hidden; the higher value implies the lower."""

    SEMI_HONEST = 1  # follows the protocol
    ACTIVE_SERVER = 2  # may send anything


@dataclass(frozen=True)
class GraphParameters:
    """The graph of the clients that announced.

    Attributes:
        degree: neighbours of each client.
        threshold: shares that recover a secret; they are held by the neighbours and the client itself.
    """

    degree: int
    threshold: int


@lru_cache(maxsize=1024)
def graph_parameters(clients: int, threat_model: ThreatModel, corrupt: int, dropouts: int) -> GraphParameters:
    """Degree and threshold for a number of clients, of which some collude and some drop out.

    Raises:
        TooFewClientsError: no threshold is both secure and reachable.

    Example:
        >>> graph_parameters(100, ThreatModel.SEMI_HONEST, corrupt=10, dropouts=20)
        GraphParameters(degree=28, threshold=11)
    """
    if clients > MAX_COMPLETE:
        for degree in range(2, clients - 1, 2):
            if _stays_connected(clients, degree, corrupt + dropouts):
                threshold = _sparse_threshold(clients, degree, threat_model, corrupt)
                if threshold <= _min_remaining_neighbours(clients, degree, clients - dropouts):
                    return GraphParameters(degree, threshold)
    return GraphParameters(clients - 1, _complete_threshold(clients, threat_model, corrupt, dropouts))


def roster_digest(context: bytes, leaves: dict[int, bytes]) -> bytes:
    """The digest on which all rosters must agree: who announced, and with which keys."""
    return crypto.digest("roster", context, *(pack_number(client) + leaves[client] for client in sorted(leaves)))


def roster_leaf(client: int, keys: bytes) -> bytes:
    """The digest of one client's keys in the roster."""
    return crypto.digest("leaf", pack_number(client), keys)


def neighbourhoods(digest: bytes, members: Sequence[int], degree: int) -> dict[int, frozenset[int]]:
    """The neighbours of every client, without the client itself."""
    circle = _shuffled(digest, members)
    return {client: _nearest(circle, place, degree) for place, client in enumerate(circle)}


def neighbours(digest: bytes, members: Sequence[int], degree: int, client: int) -> frozenset[int]:
    """The neighbours of one client."""
    circle = _shuffled(digest, members)
    return _nearest(circle, circle.index(client), degree)


def _shuffled(digest: bytes, members: Sequence[int]) -> list[int]:
    """Sorted by 16 pseudorandom bytes each; ties, which are negligible, are broken by client number."""
    stream = hashlib.shake_256(crypto.digest("order", digest)).digest(16 * len(members))
    ranks = {client: stream[16 * place : 16 * place + 16] for place, client in enumerate(sorted(members))}
    return sorted(members, key=lambda client: (ranks[client], client))


def _nearest(circle: list[int], place: int, degree: int) -> frozenset[int]:
    """The nearest `degree` clients on the circle, half on each side; everyone else if there are no more."""
    if degree >= len(circle) - 1:
        return frozenset(circle) - {circle[place]}
    steps = range(1, degree // 2 + 1)
    return frozenset(circle[(place + sign * step) % len(circle)] for step in steps for sign in (1, -1))


def _complete_threshold(clients: int, threat_model: ThreatModel, corrupt: int, dropouts: int) -> int:
    """Two thirds plus one, clamped to the range that is both secure and reachable."""
    low = max(2, corrupt + 1 if threat_model is ThreatModel.SEMI_HONEST else (clients + corrupt) // 2 + 1)
    high = clients - dropouts
    if low > high:
        raise TooFewClientsError(
            f"{clients} clients are too few: security needs {low} shares, but only {high} are certain to arrive. "
            "Use larger cohorts."
        )
    return min(max(low, (2 * clients + 2) // 3 + 1), high)


def _sparse_threshold(clients: int, degree: int, threat_model: ThreatModel, corrupt: int) -> int:
    """One more share than colluders can hold; against an active server, of both kinds together.

    An honest neighbour reveals one kind of share, a corrupt one both, the client itself (one more holder) only that of
    its seed: 2·threshold must exceed degree + 1 + colluders.
    """
    colluders = _max_colluding_neighbours(clients, corrupt, degree)
    semi_honest = threat_model is ThreatModel.SEMI_HONEST
    return max(2, colluders + 1 if semi_honest else (degree + 1 + colluders) // 2 + 1)


def _stays_connected(clients: int, degree: int, removed: int) -> bool:
    """Whether removing these nodes disconnects the graph with probability at most 2^-41 (Bell et al., Theorem 3.7)."""
    pairs = clients * (clients - degree - 1) // 2
    return (pairs * comb(removed, degree) << _SECURITY) <= comb(clients, degree)


def _hypergeometric_counts(total: int, marked: int, drawn: int) -> list[int]:
    """In how many of the C(total, drawn) draws exactly x are marked, starting at the smallest possible x."""
    low, high = max(0, drawn + marked - total), min(marked, drawn)
    counts = [comb(marked, low) * comb(total - marked, drawn - low)]
    for x in range(low, high):
        counts.append(counts[-1] * (marked - x) * (drawn - x) // ((x + 1) * (total - marked - drawn + x + 1)))
    return counts


def _max_colluding_neighbours(clients: int, corrupt: int, degree: int) -> int:
    """The bound on colluding neighbours that no client exceeds, except with probability 2^-41."""
    counts, tail = _hypergeometric_counts(clients, corrupt, degree), 0
    draws = comb(clients, degree)
    for x in range(min(corrupt, degree), -1, -1):
        tail += counts.pop() if counts else 0
        if (tail * clients << _SECURITY) > draws:
            return x
    return 0


def _min_remaining_neighbours(clients: int, degree: int, remaining: int) -> int:
    """The number of remaining neighbours that no client falls below, except with probability 2^-20."""
    counts, below = _hypergeometric_counts(clients, remaining, degree), 0
    draws = comb(clients, degree)
    for x, count in enumerate(counts, max(0, degree + remaining - clients)):
        below += count
        if (below * clients << _CORRECTNESS) >= draws:
            return x
    return 0
