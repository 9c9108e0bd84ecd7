"""The server of secure aggregation: a generator that yields requests and is sent replies; it does no I/O.

It reads replies in any order, one at a time (they may come from a lazy iterable, so that at most one upload is in
memory), rejects late, duplicate, misdirected and malformed ones, and ends with the exact sum of the survivors or with
`TooFewClientsError`. Recovered secrets are compared with what was announced before they are used.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import numpy as np

from tacit.errors import ProtocolError, TooFewClientsError, expect
from tacit.protocols import crypto
from tacit.protocols.crypto import KEY
from tacit.protocols.kit import Exchange, Outcome, ReplyStatus, ServerSide, Transcript
from tacit.protocols.secagg import graph as graphs
from tacit.protocols.secagg import noise_seeds, pads, secagg_messages, shamir
from tacit.protocols.secagg.graph import ThreatModel
from tacit.protocols.secagg.noise_seeds import Dealing
from tacit.protocols.secagg.pads import RevealedShare, ShareGraph, ShareKind, Vector
from tacit.protocols.secagg.parameters import Parameters, SecaggSession
from tacit.protocols.secagg.secagg_messages import (
    KEYS,
    SEALED,
    Direction,
    Phase,
    Roster,
    SecaggFrame,
    agreement_statement,
    announcement_statement,
)
from tacit.wire.packing import Reader, pack_subset, pack_table

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class SecaggOutcome(Outcome[Vector, Phase]):
    """The sum modulo 2^bits, and the survivors.

    Attributes:
        noise_seeds: of the survivors' surplus noise, from the component after the number of losses on; empty if there
            is none to remove.
    """

    noise_seeds: Mapping[int, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class _Shared:
    """What a client sent in the phase of shares."""

    commitment: bytes
    dealing: Dealing
    sealed: Mapping[int, bytes]


@dataclass(frozen=True)
class _Revealed:
    """The shares that a client revealed: of pads, and of noise seeds."""

    pads: Mapping[int, RevealedShare]
    noise_seeds: Mapping[int, shamir.Field]


def converse(
    session: SecaggSession, clients: Iterable[int], directory: Mapping[int, bytes] | None = None
) -> ServerSide[SecaggOutcome]:
    """One round of secure aggregation with the invited clients.

    Args:
        session: the round, as all clients should see it.
        clients: numbers of the cohort.
        directory: their identities; required against an active server.

    Raises:
        TooFewClientsError: fewer than `session.parameters.min_survivors` remain, or a secret cannot be recovered.
    """
    cohort = sorted(set(clients))
    expect(len(cohort) == session.parameters.cohort, f"{session.parameters.cohort} clients, got {len(cohort)}")
    session.parameters.graph(len(cohort))  # raises before the first request if no threshold is possible
    return _Server(session, dict(directory or {})).run(cohort)


@dataclass(frozen=True, eq=False)
class _Server:
    """One method per phase."""

    session: SecaggSession
    directory: Mapping[int, bytes]
    transcript: Transcript[Phase] = field(default_factory=Transcript)

    @property
    def _p(self) -> Parameters:
        return self.session.parameters

    @property
    def _active(self) -> bool:
        return self._p.threat_model is ThreatModel.ACTIVE_SERVER

    def run(self, cohort: list[int]) -> ServerSide[SecaggOutcome]:
        entries = yield from self._announce(cohort)
        graph = self._graph(entries)
        shared = yield from self._share(graph, entries)
        sharers = self._recoverable(graph, frozenset(shared))
        total, survivors = yield from self._upload(graph, {j: each.sealed for j, each in shared.items()}, sharers)
        signatures = (yield from self._agree(graph, survivors)) if self._active else {}
        revealed = yield from self._open(graph, sharers, survivors, signatures)
        commitments = {j: each.commitment for j, each in shared.items()}
        pads.remove_pads(graph, total, {j: each.pads for j, each in revealed.items()}, commitments, survivors)
        dealings = {j: each.dealing for j, each in shared.items()}
        opened = {j: each.noise_seeds for j, each in revealed.items()}
        seeds = noise_seeds.recover_seeds(graph, self._p, dealings, opened, survivors)
        return SecaggOutcome(pads.reduce(total, self._p.bits), tuple(sorted(survivors)), self.transcript, seeds)

    def _announce(self, cohort: list[int]) -> ServerSide[dict[int, bytes]]:
        context, seen = self.session.context, set[bytes]()

        def read(client: int, reader: Reader) -> bytes:
            entry = reader.take(secagg_messages.announcement_width(self._p.threat_model))
            reader.expect_end()
            _check_keys(entry[:KEY], entry[KEY:KEYS], seen)
            if self._active:
                statement = announcement_statement(context, client, entry[:KEYS])
                crypto.verify(self.directory.get(client, b""), entry[KEYS:], statement)
            return entry

        return (yield from self._request(Phase.ANNOUNCE, (context, context), dict.fromkeys(cohort, b""), read))

    def _graph(self, entries: Mapping[int, bytes]) -> ShareGraph:
        self._check_enough(entries)
        members = tuple(sorted(entries))
        keys = {client: entry[:KEYS] for client, entry in entries.items()}
        digest = graphs.roster_digest(self.session.context, _leaves(keys))
        parameters = self._p.graph(len(members))
        neighbours = graphs.neighbourhoods(digest, members, parameters.degree)
        return ShareGraph(members, digest, keys, neighbours, parameters.threshold)

    def _share(self, graph: ShareGraph, entries: Mapping[int, bytes]) -> ServerSide[dict[int, _Shared]]:
        leaves, published = _leaves(graph.keys), graph.degree + 2 - graph.threshold

        def body(client: int) -> bytes:
            holders = graph.holders(client, graph.members)
            digests = {j: leaf for j, leaf in leaves.items() if j not in holders}
            return Roster({j: entries[j] for j in holders}, digests).pack(self._p.threat_model)

        def read(client: int, reader: Reader) -> _Shared:
            commitment, dealing = reader.take(KEY), Dealing.read(reader, self._p, published)
            sealed = reader.table(SEALED, len(graph.members))
            reader.expect_end()
            _check_same(sealed.keys(), graph.neighbours[client])
            return _Shared(commitment, dealing, sealed)

        bindings = (self.session.context, graph.digest)
        return (yield from self._request(Phase.SHARE, bindings, {j: body(j) for j in graph.members}, read))

    def _recoverable(self, graph: ShareGraph, sharers: frozenset[int]) -> frozenset[int]:
        """Clients whose secrets enough others hold; the rest count as dropouts before they pad anything."""
        while True:
            kept = frozenset(j for j in sharers if len(graph.holders(j, sharers)) >= graph.threshold)
            self._check_enough(kept)
            if kept == sharers:
                return kept
            sharers = kept

    def _upload(
        self, graph: ShareGraph, sealed: Mapping[int, Mapping[int, bytes]], sharers: frozenset[int]
    ) -> ServerSide[tuple[Vector, frozenset[int]]]:
        total = np.zeros(self._p.dim, np.uint32)

        def body(client: int) -> bytes:
            return pack_table({j: sealed[j][client] for j in graph.neighbours[client] & sharers}, SEALED)

        def read(_: int, reader: Reader) -> None:
            np.add(total, pads.unpack_vector(reader.rest(), self._p.dim, self._p.bits), out=total)

        bodies = {j: body(j) for j in sorted(sharers)}
        survivors = frozenset((yield from self._request(Phase.UPLOAD, (graph.digest, graph.digest), bodies, read)))
        self._check_enough(survivors)
        if any(len(graph.holders(j, survivors)) < graph.threshold for j in survivors):
            raise TooFewClientsError("A survivor has too few neighbours left to remove its pad: there is no sum.")
        return total, survivors

    def _agree(self, graph: ShareGraph, survivors: frozenset[int]) -> ServerSide[dict[int, bytes]]:
        statement = agreement_statement(graph.digest, graph.members, survivors)

        def read(client: int, reader: Reader) -> bytes:
            signature = reader.take(crypto.SIGNATURE)
            reader.expect_end()
            crypto.verify(self.directory[client], signature, statement)
            return signature

        bodies = dict.fromkeys(sorted(survivors), pack_subset(survivors, graph.members))
        return (yield from self._request(Phase.AGREE, (graph.digest, graph.digest), bodies, read))

    def _open(
        self, graph: ShareGraph, sharers: frozenset[int], survivors: frozenset[int], signatures: Mapping[int, bytes]
    ) -> ServerSide[dict[int, _Revealed]]:
        asked = [j for j in sorted(survivors) if self._will_open(graph, j, signatures)]
        if not asked:
            raise TooFewClientsError("Too few clients signed the set of survivors: there is no sum.")
        requested = {i: {j: _kind(j, survivors) for j in graph.holders(i, sharers)} for i in asked}

        def body(client: int) -> bytes:
            near = sorted(graph.neighbours[client].intersection(signatures))[: graph.threshold - 1]  # it has its own
            others = sorted(signatures.keys() - {client, *near})
            signed = [*near, *others[: self._p.consents(len(graph.members)) - graph.threshold]]
            consent = pack_table({j: signatures[j] for j in signed}, crypto.SIGNATURE) if self._active else b""
            return pack_subset(survivors, graph.members) + consent + pack_table(requested[client], 1)

        opens = noise_seeds.level_of(self._p, len(survivors)) > 0

        def read(client: int, reader: Reader) -> _Revealed:
            revealed = reader.table(secagg_messages.REVEALED, len(graph.members))
            seeds = reader.table(shamir.SHARE, len(graph.members)) if opens else {}
            reader.expect_end()
            _check_same({j: share[:1] for j, share in revealed.items()}, requested[client])
            _check_same(seeds.keys(), requested[client].keys() & survivors if opens else set())
            return _Revealed(
                {j: (ShareKind(share[0]), shamir.from_bytes(share[1:])) for j, share in revealed.items()},
                {j: shamir.from_bytes(share) for j, share in seeds.items()},
            )

        bindings = (graph.digest, graph.digest)
        return (yield from self._request(Phase.OPEN, bindings, {j: body(j) for j in asked}, read))

    def _will_open(self, graph: ShareGraph, client: int, signatures: Mapping[int, bytes]) -> bool:
        """Whether a client can be asked: against an active server, it requires enough signatures."""
        enough = len(graph.holders(client, signatures)) >= graph.threshold
        enough &= len(signatures) >= self._p.consents(len(graph.members))
        return (client in signatures and enough) if self._active else True

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


def _leaves(keys: Mapping[int, bytes]) -> dict[int, bytes]:
    return {client: graphs.roster_leaf(client, both) for client, both in keys.items()}


def _check_keys(pad: bytes, channel: bytes, seen: set[bytes]) -> None:
    """Reject keys that would make neighbours leave the round: low-order points, keys announced by another client."""
    probe = crypto.load_key(bytes(KEY))
    for key in (pad, channel):
        crypto.agree(probe, key)
        if key in seen:
            raise ProtocolError("Two clients announced the same key.")
        seen.add(key)


def _kind(client: int, survivors: frozenset[int]) -> bytes:
    return bytes([ShareKind.SEED if client in survivors else ShareKind.KEY])


def _check_same(got: object, expected: object) -> None:
    if got != expected:
        raise ProtocolError("Expected a reply about exactly the clients in the request.")
