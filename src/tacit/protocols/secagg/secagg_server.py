"""The server of secure aggregation: a generator that yields requests and is sent replies; it does no I/O.

It reads replies in any order, one at a time (they may come from a lazy iterable, so that at most one upload is in
memory), rejects late, duplicate, misdirected and malformed ones, and ends with the exact sum of the survivors or with
`TooFewClientsError`.

Clients may lie. Up to the declared fraction of them the sum is exact, and nobody honest is named (`Lies`):

- A client whose corrections fit the answers of too few holders has lied, because at most the declared number of holders
  lie about it. It is excluded before anybody pads with it, and named.
- If corrections fit all but a few holders, either the client or these holders lie. Nobody else can tell, so the pairs
  are reported without a name, and those shares are not used. A holder that disputes with more clients than may be
  corrupt has lied, and is named.
- A holder that reveals another share than the one about which it has answered has lied, and is named.
- A client whose shares are consistent, but not of the key that it has announced, has lied, and is named. If it has
  uploaded, that is without consequence. If it dropped out, its neighbours' own keys remove the pads with it.

Not covered: if a client shares a wrong key, drops out before its upload, and a neighbour that has uploaded drops out
too, there is no sum.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from typing import TypeVar

import numpy as np

from tacit.errors import ProtocolError, TooFewClientsError, expect
from tacit.protocols import crypto
from tacit.protocols.crypto import KEY, SIGNATURE, Entropy, PrivateKey
from tacit.protocols.kit import Exchange, Outcome, ReplyStatus, ServerSide, Transcript
from tacit.protocols.secagg import dealing, graph, pads, secagg_messages, shamir
from tacit.protocols.secagg.dealing import Dealing
from tacit.protocols.secagg.graph import MAX_DRAWS, NONCE, Circle, GraphParameters, ThreatModel
from tacit.protocols.secagg.pads import Vector
from tacit.protocols.secagg.parameters import Parameters, SecaggSession
from tacit.protocols.secagg.secagg_client import roster_binding
from tacit.protocols.secagg.secagg_messages import (
    KEYS,
    Direction,
    Phase,
    Roster,
    SecaggFrame,
    agreement_statement,
    announcement_statement,
    pack_signatures,
    sharers_statement,
)
from tacit.protocols.secagg.shamir import SHARE, Field
from tacit.wire.packing import Reader, pack_subset

T = TypeVar("T")


@dataclass(frozen=True)
class Lies:
    """Who has lied, as far as it is certain if at most the declared fraction of clients did.

    Attributes:
        dealers: clients that shared inconsistent secrets, or a key other than the announced one.
        holders: clients that revealed wrong shares of others' secrets.
        disputed: (client, holder) of whom one lies; it cannot be said which.
    """

    dealers: frozenset[int] = frozenset()
    holders: frozenset[int] = frozenset()
    disputed: frozenset[tuple[int, int]] = frozenset()

    @property
    def named(self) -> frozenset[int]:
        """All clients that have certainly lied."""
        return self.dealers | self.holders


@dataclass(frozen=True, eq=False)
class SecaggOutcome(Outcome[Vector, Phase]):
    """The sum modulo 2^bits, and the survivors.

    Attributes:
        noise_seeds: of the survivors' surplus noise, from the component after the number of losses on; empty if there
            is none to remove.
        lies: who has lied.
    """

    noise_seeds: Mapping[int, bytes] = field(default_factory=dict)
    lies: Lies = field(default_factory=Lies)


@dataclass(frozen=True)
class _Announced:
    """What a client announced, and its nonce once it is drawn."""

    keys: bytes
    committed: bytes
    signature: bytes
    nonce: bytes = b""

    @property
    def entry(self) -> bytes:
        return self.keys + self.nonce + self.signature

    @property
    def digest(self) -> bytes:
        return graph.keys_digest(self.keys) + self.nonce


@dataclass(frozen=True, eq=False)
class _Graph:
    """What the server knows once the roster is fixed: clients, their neighbours, and what binds all that follows."""

    circle: Circle
    roster: bytes
    challenge: bytes
    announced: Mapping[int, _Announced]
    neighbours: Mapping[int, frozenset[int]]

    @property
    def members(self) -> tuple[int, ...]:
        return self.circle.members

    @property
    def parameters(self) -> GraphParameters:
        return self.circle.parameters

    @property
    def committed_challenge(self) -> bytes:
        return crypto.digest("challenge", self.challenge)

    @property
    def binding(self) -> bytes:
        return roster_binding(self.roster, self.circle.order, self.committed_challenge)

    def holders(self, client: int, present: Iterable[int]) -> frozenset[int]:
        """Who of those present holds shares of this client's secrets: its neighbours and itself."""
        return (self.neighbours[client] | {client}).intersection(present)


@dataclass(frozen=True)
class _Revealed:
    """What a client revealed: shares of seeds, of pad keys and of noise seeds, and keys of its pads with dropouts."""

    seeds: Mapping[int, Field]
    keys: Mapping[int, Field]
    noise: Mapping[int, Field]
    pads: Mapping[int, bytes]


def converse(
    session: SecaggSession,
    clients: Iterable[int],
    directory: Mapping[int, bytes] | None = None,
    *,
    entropy: Entropy = crypto.system_entropy,
) -> ServerSide[SecaggOutcome]:
    """One round of secure aggregation with the invited clients.

    Args:
        session: the round, as all clients should see it.
        clients: numbers of the cohort.
        directory: their identities; required against an active server.
        entropy: source of the challenge, which clients must not know when they share their secrets.

    Raises:
        TooFewClientsError: fewer than `session.parameters.min_survivors` remain, or a secret cannot be recovered.
    """
    cohort = sorted(set(clients))
    expect(len(cohort) == session.parameters.cohort, f"{session.parameters.cohort} clients, got {len(cohort)}")
    session.parameters.graph(len(cohort))  # raises before the first request if no threshold is possible
    return _Server(session, dict(directory or {}), entropy(KEY)).run(cohort)


@dataclass(frozen=True, eq=False)
class _Server:
    """One method per phase."""

    session: SecaggSession
    directory: Mapping[int, bytes]
    challenge: bytes
    transcript: Transcript[Phase] = field(default_factory=Transcript)

    @property
    def _p(self) -> Parameters:
        return self.session.parameters

    @property
    def _active(self) -> bool:
        return self._p.threat_model is ThreatModel.ACTIVE_SERVER

    def run(self, cohort: list[int]) -> ServerSide[SecaggOutcome]:
        around = yield from self._draw((yield from self._announce(cohort)))
        dealings = yield from self._share(around)
        lies, sharers = yield from self._check_dealings(around, dealings)
        total, signed = yield from self._upload(around, sharers)
        survivors = frozenset(signed)
        agreed = (yield from self._agree(around, sharers, survivors)) if self._active else {}
        revealed = yield from self._open(around, sharers, signed, agreed)
        end = _Reconstruction(self._p, around, dealings, lies, survivors, revealed)
        pads.remove_pads(total, *end.pads(sharers))
        seeds = end.noise_seeds()
        survived = tuple(sorted(survivors))
        return SecaggOutcome(pads.reduce(total, self._p.bits), survived, self.transcript, seeds, end.lies)

    def _announce(self, cohort: list[int]) -> ServerSide[dict[int, _Announced]]:
        context, seen = self.session.context, set[bytes]()

        def read(client: int, reader: Reader) -> _Announced:
            keys, committed = reader.take(KEYS), reader.take(KEY * self._p.draws)
            signature = reader.take(SIGNATURE * self._active)
            reader.expect_end()
            if self._active:
                statement = announcement_statement(context, client, keys, committed)
                crypto.verify(self.directory[client], signature, statement)
            _check_keys(keys[:KEY], keys[KEY:], seen)
            return _Announced(keys, committed, signature)

        return (yield from self._request(Phase.ANNOUNCE, (context, context), dict.fromkeys(cohort, b""), read))

    def _draw(self, announced: Mapping[int, _Announced]) -> ServerSide[_Graph]:
        """Draw an order among all who announced; whoever does not open its nonce is lost, and the others draw again."""
        for draw in range(1, MAX_DRAWS + 1):
            self._check_enough(announced)
            leaves = {j: graph.roster_leaf(graph.keys_digest(a.keys), a.committed) for j, a in announced.items()}
            roster = graph.roster_digest(self.session.context, leaves)
            if not self._p.draws:
                return self._graph(roster, announced, {})
            nonces = yield from self._nonces(draw, roster, announced)
            if nonces.keys() == announced.keys():
                return self._graph(roster, announced, nonces)
            announced = {j: announced[j] for j in nonces}
        raise TooFewClientsError(f"Clients were lost in each of {MAX_DRAWS} draws of an order: there is no sum.")

    def _nonces(self, draw: int, roster: bytes, announced: Mapping[int, _Announced]) -> ServerSide[dict[int, bytes]]:
        def read(client: int, reader: Reader) -> bytes:
            nonce = reader.take(NONCE)
            reader.expect_end()
            if graph.commitment(nonce, draw) != announced[client].committed:
                raise ProtocolError("A nonce is not the one to which its client has committed.")
            return nonce

        bindings = (self.session.context, self.session.context)
        return (yield from self._request(Phase.DRAW, bindings, dict.fromkeys(sorted(announced), roster), read))

    def _graph(self, roster: bytes, announced: Mapping[int, _Announced], nonces: dict[int, bytes]) -> _Graph:
        members = tuple(sorted(announced))
        circle = Circle(members, self._p.graph(len(members)), graph.draw_order(roster, nonces))
        drawn = {
            j: _Announced(each.keys, each.committed, each.signature, nonces.get(j, b""))
            for j, each in announced.items()
        }
        return _Graph(circle, roster, self.challenge, drawn, circle.neighbourhoods())

    def _share(self, around: _Graph) -> ServerSide[dict[int, Dealing]]:
        def body(client: int) -> bytes:
            near = around.holders(client, around.members)
            entries = {j: around.announced[j].entry for j in near}
            digests = {j: around.announced[j].digest for j in around.announced.keys() - near}
            return Roster(around.committed_challenge, entries, digests).pack(self._p)

        def read(client: int, reader: Reader) -> Dealing:
            holders = tuple(sorted(around.holders(client, around.members)))
            return Dealing.read(bytes(reader.rest()), holders, around.parameters.threshold, dealing.columns(self._p))

        bindings = (self.session.context, around.binding)
        shared = yield from self._request(Phase.SHARE, bindings, {j: body(j) for j in around.members}, read)
        self._check_enough(shared)
        return shared

    def _check_dealings(
        self, around: _Graph, dealings: Mapping[int, Dealing]
    ) -> ServerSide[tuple[Lies, frozenset[int]]]:
        """The lies that holders' answers show, and the clients with whom others may pad."""
        dealers = frozenset(dealings)
        near = {j: sorted(around.holders(j, dealers)) for j in dealers}

        def read(client: int, reader: Reader) -> dict[int, Field]:
            words = shamir.from_bytes(bytes(reader.rest()), dealing.MASKS * len(near[client]))
            return dict(zip(near[client], words.reshape(-1, dealing.MASKS), strict=True))

        body = self.challenge + pack_subset(dealers, around.members)
        bodies = dict.fromkeys(sorted(dealers), body)
        given = yield from self._request(Phase.CHECK, (around.binding, around.binding), bodies, read)
        lies, excluded = _lies_in_answers(self._p, around, dealings, given)
        return lies, self._recoverable(around, frozenset(given) - excluded)

    def _recoverable(self, around: _Graph, sharers: frozenset[int]) -> frozenset[int]:
        """Clients of which enough neighbours remain; the rest count as dropouts before they pad anything."""
        while True:
            self._check_enough(sharers)
            remaining = around.circle.remaining(sharers)
            kept = frozenset(j for j in sharers if remaining[j] >= around.parameters.floor)
            if kept == sharers:
                return kept
            sharers = kept

    def _upload(self, around: _Graph, sharers: frozenset[int]) -> ServerSide[tuple[Vector, dict[int, bytes]]]:
        total = np.zeros(self._p.dim, np.uint32)
        padded = sharers_statement(around.binding, around.members, sharers)
        signs = self._active and self._p.draws

        def read(client: int, reader: Reader) -> bytes:
            signature = reader.take(SIGNATURE * signs)
            if signs:
                crypto.verify(self.directory[client], signature, padded)
            np.add(total, pads.unpack_vector(reader.rest(), self._p.dim, self._p.bits), out=total)
            return signature

        bodies = dict.fromkeys(sorted(sharers), pack_subset(sharers, around.members))
        signed = yield from self._request(Phase.UPLOAD, (around.binding, around.binding), bodies, read)
        survivors = frozenset(signed)
        self._check_enough(survivors)
        remaining = around.circle.remaining(survivors)
        if any(remaining[j] < around.parameters.floor for j in survivors):
            raise TooFewClientsError("A survivor has too few neighbours left: there is no sum.")
        return total, signed

    def _agree(
        self, around: _Graph, sharers: frozenset[int], survivors: frozenset[int]
    ) -> ServerSide[dict[int, bytes]]:
        statement = agreement_statement(around.binding, around.members, sharers, survivors)

        def read(client: int, reader: Reader) -> bytes:
            signature = reader.take(SIGNATURE)
            reader.expect_end()
            crypto.verify(self.directory[client], signature, statement)
            return signature

        bodies = dict.fromkeys(sorted(survivors), pack_subset(survivors, around.members))
        return (yield from self._request(Phase.AGREE, (around.binding, around.binding), bodies, read))

    def _open(
        self, around: _Graph, sharers: frozenset[int], signed: Mapping[int, bytes], agreed: Mapping[int, bytes]
    ) -> ServerSide[dict[int, _Revealed]]:
        survivors = frozenset(signed)
        asked, consent = self._consent(around, survivors, agreed)

        def body(client: int) -> bytes:
            near = sorted(around.neighbours[client] & survivors)
            return pack_subset(survivors, around.members) + consent + b"".join(signed[j] for j in near)

        def read(client: int, reader: Reader) -> _Revealed:
            revealed = _read_revealed(self._p, reader, sorted(around.holders(client, sharers)), survivors)
            reader.expect_end()
            return revealed

        bindings = (around.binding, around.binding)
        return (yield from self._request(Phase.OPEN, bindings, {j: body(j) for j in asked}, read))

    def _consent(
        self, around: _Graph, survivors: frozenset[int], agreed: Mapping[int, bytes]
    ) -> tuple[list[int], bytes]:
        """Whom to ask to open, and the signatures without which they would not; none against a semi-honest server."""
        if not self._active:
            return sorted(survivors), b""
        quorum = sorted(around.circle.committee() & agreed.keys())[: around.parameters.quorum]
        if len(quorum) < around.parameters.quorum:
            raise TooFewClientsError("Too few clients signed the set of survivors: there is no sum.")
        return sorted(agreed), pack_signatures({j: agreed[j] for j in quorum}, around.members)

    def _check_enough(self, present: Iterable[int]) -> None:
        if len(frozenset(present)) < self._p.min_survivors:
            raise TooFewClientsError("Too few clients remain: there is no sum.")

    def _request(
        self, phase: Phase, bindings: tuple[bytes, bytes], bodies: Mapping[int, bytes], read: Callable[[int, Reader], T]
    ) -> ServerSide[dict[int, T]]:
        """Send requests with one binding, and read the first valid reply of every client, with the other binding."""
        sent, expected = bindings
        header = (phase, Direction.REQUEST, self.session.round)
        requests = {j: secagg_messages.pack(*header, j, sent, body) for j, body in bodies.items()}
        unpack = partial(secagg_messages.unpack, limit=secagg_messages.max_reply_size(self._p))
        exchange = Exchange(phase, requests, unpack, partial(self._check, phase, expected), read)
        return (yield from exchange.run(self.transcript))

    def _check(self, phase: Phase, binding: bytes, sender: int, frame: SecaggFrame) -> ReplyStatus:
        """Whether a reply is of this sender, phase and session."""
        if frame.client != sender:
            return ReplyStatus.UNEXPECTED_SENDER
        if frame.direction is not Direction.REPLY or frame.kind > phase:
            return ReplyStatus.MALFORMED
        if frame.kind < phase:
            return ReplyStatus.LATE
        same = (frame.round, frame.binding) == (self.session.round, binding)
        return ReplyStatus.ACCEPTED if same else ReplyStatus.WRONG_SESSION


@cache
def _probe() -> PrivateKey:
    """Any key: whether an agreement fails depends on the other one only."""
    return crypto.load_key(bytes(KEY))


def _check_keys(pad: bytes, channel: bytes, seen: set[bytes]) -> None:
    """Reject keys that would make neighbours leave the round: low-order points, keys announced by another client."""
    for key in (pad, channel):
        crypto.agree(_probe(), key)
        if key in seen:
            raise ProtocolError("Two clients announced the same key.")
        seen.add(key)


def _read_revealed(p: Parameters, reader: Reader, about: list[int], survivors: frozenset[int]) -> _Revealed:
    """What a client revealed about these clients."""
    level, seeds, keys, noise = (
        dealing.level_of(p, len(survivors)),
        dict[int, Field](),
        dict[int, Field](),
        dict[int, Field](),
    )
    pad_keys: dict[int, bytes] = {}
    for j in about:
        share = shamir.from_bytes(reader.take(SHARE))
        if j in survivors:
            seeds[j] = share
        else:
            keys[j], pad_keys[j] = share, reader.take(KEY)
        if j in survivors and level:
            noise[j] = shamir.from_bytes(reader.take(SHARE))
    return _Revealed(seeds, keys, noise, pad_keys)


def _lies_in_answers(
    p: Parameters, around: _Graph, dealings: Mapping[int, Dealing], given: Mapping[int, Mapping[int, Field]]
) -> tuple[Lies, frozenset[int]]:
    """What holders' answers show: lies, and the clients that cannot take part because their shares do not fit."""
    excluded, named, disputes, suspects = set[int](), set[int](), set[tuple[int, int]](), Counter[int]()
    for client, each in dealings.items():
        answered = {j: given[j][client] for j in each.holders if j in given}
        corrections = dealing.answers(each.corrections, around.challenge, around.binding)
        wrong = each.liars(answered, corrections, around.parameters.liars, frozenset(suspects))
        if wrong is None:
            excluded.add(client)
            if len(answered) >= each.threshold + 2 * around.parameters.liars:
                named.add(client)
            continue
        suspects.update(wrong)
        disputes |= {(client, holder) for holder in wrong}
    holders = frozenset(holder for holder, count in suspects.items() if count > p.colluding)
    disputed = frozenset(pair for pair in disputes if pair[1] not in holders)
    return Lies(frozenset(named), holders, disputed), frozenset(excluded)


class _Reconstruction:
    """Recovers the secrets that clients have opened, and who has lied about them."""

    def __init__(
        self,
        p: Parameters,
        around: _Graph,
        dealings: Mapping[int, Dealing],
        lies: Lies,
        survivors: frozenset[int],
        revealed: Mapping[int, _Revealed],
    ) -> None:
        self._p, self._around, self._dealings, self._survivors = p, around, dealings, survivors
        self._revealed, self.lies = revealed, lies
        self._suspects: frozenset[int] = lies.holders

    def pads(self, sharers: frozenset[int]) -> tuple[list[bytes], list[bytes]]:
        """The keys of the pads that remain in the sum: of those added, and of those subtracted."""
        binding = self._around.binding
        seeds = self._recover({i: each.seeds for i, each in self._revealed.items()}, self._survivors, dealing.SEED)
        added = [pads.own_pad_key(dealing.seed_of(seeds[j]), binding, j) for j in sorted(self._survivors)]
        subtracted: list[bytes] = []
        lost = sharers - self._survivors
        keys = self._recover({i: each.keys for i, each in self._revealed.items()}, lost, dealing.PAD_KEY)
        for dropout in sorted(lost):
            for j, key in sorted(self._pads_with(dropout, dealing.seed_of(keys[dropout])).items()):
                (added if j > dropout else subtracted).append(key)  # the larger of a pair has added it
        return added, subtracted

    def _pads_with(self, dropout: int, secret: bytes) -> dict[int, bytes]:
        """The keys of a dropout's pads with survivors: by its own key, or if it has shared a wrong one, by theirs."""
        around, private = self._around, crypto.load_key(secret)
        near = around.neighbours[dropout] & self._survivors
        if crypto.public_key(private) == around.announced[dropout].keys[:KEY]:
            keys = {j: around.announced[j].keys[:KEY] for j in near}
            return {j: pads.pair_pad_key(private, key, around.binding, dropout, j) for j, key in keys.items()}
        self.lies = Lies(self.lies.dealers | {dropout}, self.lies.holders, self.lies.disputed)
        if not near <= self._revealed.keys():
            raise TooFewClientsError(
                f"Client {dropout} shared a wrong key and dropped out, and so did a neighbour: there is no sum."
            )
        return {j: self._revealed[j].pads[dropout] for j in near}

    def noise_seeds(self) -> dict[int, bytes]:
        """The seed of every survivor at the level that is opened; empty if none is."""
        level = dealing.level_of(self._p, len(self._survivors))
        if not level:
            return {}
        given = {i: each.noise for i, each in self._revealed.items()}
        limbs = self._recover(given, self._survivors, dealing.NOISE + level - 1)
        return {j: dealing.seed_of(limbs[j]) for j in sorted(self._survivors)}

    def _recover(
        self, given: Mapping[int, Mapping[int, Field]], clients: frozenset[int], place: int
    ) -> dict[int, list[int]]:
        """The limbs of each client's secret, from what holders gave; holders whose shares are wrong are named."""
        found = {}
        for client in sorted(clients):
            each = self._dealings[client]
            corrections = dealing.secret_part(each.corrections, place)
            usable = {
                j: given[j][client]
                for j in each.holders
                if j in given and client in given[j] and (client, j) not in self.lies.disputed
            }
            wrong = each.liars(usable, corrections, self._around.parameters.degree, self._suspects)
            if wrong is None:
                raise TooFewClientsError(f"The shares of client {client} are too few or inconsistent: there is no sum.")
            self._suspects |= wrong
            self.lies = Lies(self.lies.dealers, self.lies.holders | wrong, self.lies.disputed)
            found[client] = each.recover({j: share for j, share in usable.items() if j not in wrong}, corrections)
        return found
