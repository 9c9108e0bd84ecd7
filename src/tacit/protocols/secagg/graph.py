"""The graph over which clients share secrets: its degree, its thresholds, and who is whose neighbour.

Up to 64 clients the graph is complete (Bonawitz et al., CCS 2017). Above, clients stand on a circle in random order,
and each is a neighbour of those at certain distances on either side: a circulant graph, as in Bell et al. (CCS 2020),
but with distances for which the graph is an expander. Neighbours at the nearest distances would not do: a server that
chooses whom it drops could cut the circle with few losses.

The server is active: it holds the keys of `corrupt` clients, sees the graph, and only then chooses whom to drop, what
to send to whom, and when to stop. It does not choose the order of the clients. Each of them commits to a chain of
nonces when it announces its key, and opens one link when the roster is fixed; the order follows from the roster and
from all links (`Parameters.draws`). If a client does not open its link, it is lost, and the others open the next link:
a server that suppresses one gains another draw, of at most `MAX_DRAWS`. All bounds below are for all draws together.

**What a server learns in a round.** At the end of the set-up a quorum of a random committee signs the sharers, with
whom everybody pads in all rounds of the epoch, and in every round another quorum signs its survivors. No two sets can
both have a quorum, because they would share an honest signer. Nobody uploads before it has seen the first quorum, and
nobody opens before it has seen the second. Let S be the honest survivors of a round. Of an honest client that is not a
survivor the round's seed is not opened, and of a survivor the round's pad secret is not, as long as fewer than
`threshold` of its holders are corrupt. The secret of a pad between two of S is escrowed under shares of these pad
secrets only, and its spares are opened for dropouts only, so it is not opened. Every client in S has padded with all
its neighbours in S, because all have the same sharers, and S is a part of them. If a server sends two of S different
rounds or models, their pads with each other differ, and none of the two cancels. So the server can compute the sum over
a part Q of S only if no edge leads from Q to Z = S - Q, and it learns the sum over S and nothing else if S is
connected.

**What other rounds reveal.** Nothing. The seed and the pad secret of a round are independent of those of other rounds.
The masks of the check cover all rounds of an epoch by one challenge. A pad's secret in a round derives from the secret
that the pair has in the epoch, which is never opened or escrowed, and from the round's binding. So whatever is opened
in other rounds of the same clients, lost or not, is independent of all pads of this one. A client takes part in a round
once, and in ascending order, so nothing is opened twice.

**Sparse graphs.** Let n clients have degree k, let all other eigenvalues of the graph be at most λ in magnitude, and
let no honest client have more than e corrupt neighbours. A client accepts survivors only if each of them has at least
k - a neighbours among them (`floor`), so each in S has at least β = k - a - e neighbours in S. Assume that S, of s
clients, has parts Q and Z without an edge between them, q = |Q| <= |Z| = z. The expander mixing lemma gives

    β <= k q / n + λ (1 - q / n),        β <= q - 1,        q z / ((n - q)(n - z)) <= (λ / k)²,

where z >= max(q, s - q) and s >= survivors - corrupt. `_is_connected` verifies that no q satisfies all three. This does
not depend on chance: whichever clients the server drops, and whenever, S is connected. Chance enters in e and in the
corrupt members of the committee, both hypergeometric, because corrupt clients are chosen before the order is drawn:

    P(some honest client has more than e corrupt neighbours, in some draw) <= n · MAX_DRAWS · P(Hyp > e) <= 2^-41,
    P(the committee has more than f corrupt members, in some draw) <= MAX_DRAWS · P(Hyp > f) <= 2^-41.

The order is drawn once in an epoch, and both bounds hold for all its rounds together, if who is corrupt does not change
during the epoch. A server that aborts epochs draws again, with fresh nonces: over m epochs the failure is at most m ·
2^-40. The threshold exceeds e, and two quorums of more than (committee + f) / 2 share an honest member.

**Complete graphs.** S is always connected. The threshold t exceeds (n + corrupt) / 2 against an active server, and
where the declared losses allow it, two thirds. It is also the quorum, and no probability is involved.

**Correctness.** If the declared dropouts are independent of the graph, then with probability 1 - 2^-20 each client
keeps `threshold` + 2 · `max_wrong` holders, its corrupt neighbours among them, which is enough to decode (Reed-Solomon)
with every corrupt one lying; and the committee keeps a quorum even if its corrupt members do not sign.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property, lru_cache
from math import comb

import numpy as np
from numpy.typing import NDArray

from tacit.errors import ProtocolError, TooFewClientsError
from tacit.protocols import crypto
from tacit.wire.packing import pack_number

MAX_COMPLETE = 64  # the largest cohort with a complete graph
MAX_DRAWS = 1 << 8  # orders that a client helps to draw in one session
NONCE = 16  # bytes of a link; a colluder that finds two with one digest chooses between two orders: 2^64 digests
_SECURITY, _CORRECTNESS = 41, 22  # bits of each of two events, and of each of three
_TRIALS = 4  # sets of distances that are tried for a degree
_UNIT = 1 << 30  # eigenvalues are integers, in units of 1 / _UNIT
_ONE = 1 << 64  # and cosines are computed in units of 1 / _ONE
_PI = 31415926535897932384626433832795 * _ONE // 10**31


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
        floor: neighbours of a survivor that must survive.
        max_wrong: wrong shares of one secret that are corrected.
        committee: clients, the first in the drawn order, whose signatures on the survivors count.
        quorum: of the committee, how many must have signed before a client opens anything.
        distances: of neighbours on the circle, to either side; empty if the graph is complete.
    """

    degree: int
    threshold: int
    floor: int
    max_wrong: int
    committee: int
    quorum: int
    distances: tuple[int, ...] = field(default=(), repr=False)


@lru_cache(maxsize=1024)
def graph_parameters(
    clients: int, threat_model: ThreatModel, corrupt: int, dropouts: int, survivors: int, *, sparse: bool = True
) -> GraphParameters:
    """The graph for a number of clients, of which some collude and some drop out.

    Args:
        clients: that announced.
        threat_model: what the server may do.
        corrupt: colluding clients among them.
        dropouts: declared losses, after which there is still a sum.
        survivors: fewer have no sum.
        sparse: whether clients draw an order; without one the graph is complete.

    Raises:
        TooFewClientsError: no threshold is both secure and reachable.

    Example:
        >>> graph_parameters(100, ThreatModel.ACTIVE_SERVER, corrupt=10, dropouts=10, survivors=90)
        GraphParameters(degree=40, threshold=11, floor=30, max_wrong=10, committee=49, quorum=30)
    """
    if sparse and clients > MAX_COMPLETE and survivors > corrupt:
        parameters = next(_sparse_graphs(clients, corrupt, dropouts, survivors - corrupt), None)
        if parameters is not None:
            return parameters
    return _complete_graph(clients, threat_model, corrupt, dropouts)


def _sparse_graphs(clients: int, corrupt: int, dropouts: int, honest: int) -> Iterator[GraphParameters]:
    """Sparse graphs that are proved, of ascending degree."""
    committee = next(_committees(clients, corrupt, dropouts), None)
    if committee is None:
        return
    others, all_draws = clients - 1, clients * MAX_DRAWS
    for degree in range(2, clients - 1, 2):
        colluding = _most(others, corrupt, degree, all_draws, _SECURITY)
        lost = _most(others, dropouts, degree, clients, _CORRECTNESS)
        max_wrong = _most(others, corrupt, degree, clients, _CORRECTNESS)
        threshold = degree + 1 - lost - 2 * max_wrong
        if threshold <= max(1, colluding) or degree - lost - colluding < 1:
            continue
        for trial in range(_TRIALS):
            distances = _distances(clients, trial)[: degree // 2]
            if _is_connected(
                clients, degree, _second_eigenvalue(clients, distances), degree - lost - colluding, honest
            ):
                yield GraphParameters(degree, threshold, degree - lost, max_wrong, *committee, distances)


def _committees(clients: int, corrupt: int, dropouts: int) -> Iterator[tuple[int, int]]:
    """Sizes of committees and their quorums that are both secure and reachable."""
    for size in range(3, clients + 1):
        quorum = (size + _most(clients, corrupt, size, MAX_DRAWS, _SECURITY)) // 2 + 1
        if quorum <= size - _most(clients, min(clients, corrupt + dropouts), size, 1, _CORRECTNESS):
            yield size, quorum


def _is_connected(clients: int, degree: int, second: int, inner: int, honest: int) -> bool:
    """Whether no part of at least `honest` survivors is cut off, if each has `inner` neighbours among them.

    `second` bounds the magnitude of all eigenvalues but the first, in units of 1 / `_UNIT`. See the module.
    """
    for q in range(inner + 1, clients // 2 + 1):
        z = min(max(q, honest - q), clients - q)
        dense = inner * clients * _UNIT <= degree * q * _UNIT + second * (clients - q)
        if dense and q * z * (degree * _UNIT) ** 2 <= second**2 * (clients - q) * (clients - z):
            return False
    return True


@lru_cache(maxsize=64)
def _distances(clients: int, trial: int) -> tuple[int, ...]:
    """All distances on a circle, in a fixed pseudorandom order; half the circle is none of them."""
    each = range(1, (clients - 1) // 2 + 1)
    seed = crypto.digest("distances", pack_number(clients), pack_number(trial))
    stream = hashlib.shake_256(seed).digest(8 * len(each))
    return tuple(sorted(each, key=lambda distance: (stream[8 * distance - 8 : 8 * distance], distance)))


def _second_eigenvalue(clients: int, distances: Sequence[int]) -> int:
    """A bound on the magnitude of a circulant graph's eigenvalues but the first, in units of 1 / `_UNIT`.

    They are 2 Σ cos(2πjd/n) over the distances d, for j = 1, …, n - 1, which are the same for j and n - j.
    """
    cosines, j = _cosines(clients), np.arange(1, clients // 2 + 1)
    total = np.zeros(len(j), np.int64)
    for distance in distances:
        total += cosines[j * distance % clients]
    return 2 * int(np.abs(total).max()) + 2 * len(distances)  # a cosine is rounded down by less than 1


@lru_cache(maxsize=8)
def _cosines(clients: int) -> NDArray[np.int64]:
    """cos(2πj/n) in units of 1 / `_UNIT`, in integers, so that every machine computes the same."""
    return np.array([_cosine(min(j, clients - j), clients) for j in range(clients)], np.int64)


def _cosine(j: int, clients: int) -> int:
    """cos(2πj/n) for j up to n/2, by the Taylor series for angles up to a quarter of the circle."""
    m, sign = (2 * j, 1) if 4 * j <= clients else (clients - 2 * j, -1)
    square = (_PI * m // clients) ** 2
    total = term = _ONE
    for k in range(2, 40, 2):
        term = -term * square // (_ONE * _ONE * (k - 1) * k)
        total += term
    return sign * (total * _UNIT // _ONE)


def _complete_graph(clients: int, threat_model: ThreatModel, corrupt: int, dropouts: int) -> GraphParameters:
    """A threshold over two thirds, clamped to the range that is secure and reachable, with every liar if possible."""
    low = max(2, corrupt + 1 if threat_model is ThreatModel.SEMI_HONEST else (clients + corrupt) // 2 + 1)
    high = clients - dropouts
    if low > high:
        raise TooFewClientsError(
            f"{clients} clients are too few: security needs {low} shares, but only {high} are certain to arrive. "
            "Use larger cohorts."
        )
    threshold = max(low, min(2 * clients // 3 + 1, high - 2 * corrupt))
    max_wrong = min(corrupt, (high - threshold) // 2)
    return GraphParameters(clients - 1, threshold, threshold - 1, max_wrong, clients, threshold)


# The order of the clients


def chain(secret: bytes, links: int = MAX_DRAWS) -> list[bytes]:
    """A chain of nonces: each link is the digest of the next, the first one opens the commitment."""
    nonces = [secret[:NONCE]]
    for _ in range(links - 1):
        nonces.append(_previous(nonces[-1]))
    return nonces[::-1]


def commitment(nonce: bytes, draw: int = 1) -> bytes:
    """To a chain of nonces, from the link opened in this draw, counted from 1."""
    for _ in range(draw - 1):
        nonce = _previous(nonce)
    return hashlib.sha256(b"tacit commitment" + nonce).digest()


def _previous(nonce: bytes) -> bytes:
    return hashlib.sha256(b"tacit nonce" + nonce).digest()[:NONCE]


def roster_digest(context: bytes, leaves: dict[int, bytes]) -> bytes:
    """The digest on which all rosters must agree: who announced, and what to: see `roster_leaf`."""
    return crypto.digest("roster", context, _concatenate(leaves))


def roster_leaf(key: bytes, committed: bytes) -> bytes:
    """What a roster's digest fixes of a client: its commitment to nonces; if no order is drawn, its key.

    On sparse graphs, others than its neighbours need no key of a client. Its own signature binds its key to the
    commitment and the session, so an honest client has one key; a colluder that shows several tells its own secrets.
    """
    return committed or hashlib.sha256(b"tacit key" + key).digest()


def draw_order(roster: bytes, nonces: dict[int, bytes]) -> bytes:
    """The seed of the clients' order, from the roster and the opened links; empty for a complete graph."""
    return crypto.digest("order", roster, _concatenate(nonces)) if nonces else b""


def _concatenate(table: dict[int, bytes]) -> bytes:
    """Clients and their entries, of equal length in a session."""
    return b"".join(pack_number(client) + table[client] for client in sorted(table))


@dataclass(frozen=True, eq=False)
class Circle:
    """The clients in their drawn order.

    Attributes:
        members: clients, in ascending order.
        parameters: of the graph.
        order: the seed from which the order follows.
    """

    members: tuple[int, ...]
    parameters: GraphParameters
    order: bytes

    @property
    def clients(self) -> tuple[int, ...]:
        """In their order."""
        return _in_order(self.members, self.order) if self.parameters.distances else self.members

    @cached_property
    def places(self) -> dict[int, int]:
        """The place of each client in the order."""
        return {client: place for place, client in enumerate(self.clients)}

    def own_pads(self, client: int, others: Iterable[int]) -> list[int]:
        """Of these clients, ascending, those whose pad with this one derives from a share of this one's secret.

        Those within half a circle ahead: of two clients, each owns half of its pads, and one owns each.
        """
        own, count = self.places[client], len(self.members)
        ahead = {other: (self.places[other] - own) % count for other in others}
        half = {j for j, steps in ahead.items() if 2 * steps == count and own < self.places[j]}
        return sorted(half | {j for j, steps in ahead.items() if 0 < 2 * steps < count})

    def neighbours(self, client: int) -> frozenset[int]:
        """The neighbours of one client, without itself."""
        if not self.parameters.distances:
            return frozenset(self.members) - {client}
        return _near(self.clients, self.places[client], self.parameters.distances)

    def neighbourhoods(self) -> dict[int, frozenset[int]]:
        """The neighbours of every client."""
        if not self.parameters.distances:
            return {client: frozenset(self.members) - {client} for client in self.members}
        clients = self.clients
        return {client: _near(clients, place, self.parameters.distances) for place, client in enumerate(clients)}

    def committee(self) -> frozenset[int]:
        """The clients whose signatures on the survivors count."""
        return frozenset(self.clients[: self.parameters.committee])

    def enough_holders(self, openers: frozenset[int], enough: int) -> frozenset[int]:
        """Openers, as few as possible, such that `enough` hold shares of each client, or all that do if they are fewer.

        None of them can be left out. Whom the rule chooses depends on places alone.
        """
        if not self.parameters.distances:
            return frozenset(sorted(openers)[:enough])
        clients = self.clients
        marks = bytes(client in openers for client in clients)
        return frozenset(clients[place] for place in _enough(marks, self.parameters.distances, enough))

    def check_survivors(self, survivors: frozenset[int]) -> None:
        """Raise `ProtocolError` unless each survivor has enough neighbours among the survivors."""
        remaining = self.count_neighbours(survivors)
        if min((remaining[client] for client in survivors), default=0) < self.parameters.floor:
            raise ProtocolError(f"Expected {self.parameters.floor} neighbours of every survivor to survive.")

    def count_neighbours(self, present: frozenset[int]) -> dict[int, int]:
        """The number of present neighbours of each client."""
        if not self.parameters.distances:
            return {client: len(present - {client}) for client in self.members}
        clients = self.clients
        marks: NDArray[np.int64] = np.array([client in present for client in clients], np.int64)
        total = marks[_places(len(clients), self.parameters.distances)].sum(1)
        return dict(zip(clients, total.tolist(), strict=True))


@lru_cache(maxsize=8)
def _in_order(members: tuple[int, ...], order: bytes) -> tuple[int, ...]:
    """Sorted by 16 pseudorandom bytes each; ties, which are negligible, are broken by client number."""
    stream = hashlib.shake_256(order).digest(16 * len(members))
    ranks = {client: stream[16 * place : 16 * place + 16] for place, client in enumerate(members)}
    return tuple(sorted(members, key=lambda client: (ranks[client], client)))


@lru_cache(maxsize=8)
def _places(count: int, distances: tuple[int, ...]) -> NDArray[np.int64]:
    """The places of all neighbours of each place on a circle: (places, neighbours)."""
    steps = np.array([sign * step for step in distances for sign in (1, -1)], np.int64)
    return (np.arange(count)[:, None] + steps) % count


@lru_cache(maxsize=8)
def _enough(marks: bytes, distances: tuple[int, ...], enough: int) -> tuple[int, ...]:
    """The marked places that are left if each is left out whose neighbours and itself keep `enough` others."""
    count = len(marks)
    held = np.concatenate([np.arange(count)[:, None], _places(count, distances)], 1)
    chosen = np.frombuffer(marks, np.uint8).astype(np.int64)
    holders = chosen[held].sum(1)
    for place in np.flatnonzero(chosen):
        if holders[held[place]].min() > enough:
            holders[held[place]] -= 1
            chosen[place] = 0
    return tuple(np.flatnonzero(chosen).tolist())


def _near(clients: Sequence[int], place: int, distances: Sequence[int]) -> frozenset[int]:
    """The clients at these distances on the circle, to either side."""
    return frozenset(clients[(place + sign * step) % len(clients)] for step in distances for sign in (1, -1))


# Hypergeometric bounds, as ratios of exact integers


@lru_cache(maxsize=1 << 14)
def _most(total: int, marked: int, drawn: int, events: int, bits: int) -> int:
    """The most marked ones among the drawn, in any of several draws, except with probability 2^-bits."""
    low, tail, draws = max(0, drawn + marked - total), 0, comb(total, drawn)
    x = min(marked, drawn)
    count = comb(marked, x) * comb(total - marked, drawn - x)
    while x > low:
        tail += count
        if (tail * events << bits) > draws:
            return x
        count = count * x * (total - marked - drawn + x) // ((marked - x + 1) * (drawn - x + 1))
        x -= 1
    return low
