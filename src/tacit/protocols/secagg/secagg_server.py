"""The server of secure aggregation: a generator that yields requests and is sent replies; it does no I/O.

It reads replies in any order, one at a time (they may come from a lazy iterable, so that at most one upload is in
memory), rejects late, duplicate, misdirected and malformed ones, and ends with the exact sum of the survivors or with
`TooFewClientsError`.

Clients may lie. Up to the declared fraction of them the sum is exact, and nobody honest is named (`Misbehaviour`):

- A client whose corrections fit the answers of too few holders has lied, because at most the declared number of holders
  lie about it. It is excluded before anybody pads with it, and named.
- If corrections fit all but a few holders, either the client or these holders lie. Nobody else can decide, so the pairs
  are reported without a name, and those shares are not used. A holder that disputes with more clients than may be
  corrupt has lied, and is named.
- A holder that reveals another share than the one it answered about has lied, and is named.
- A client whose shares are consistent, but not of the key that it has announced, has lied, and is named. If it has
  uploaded, that is without consequence. If it dropped out, its pads are removed by what its neighbours have escrowed
  with their uploads: the secret of each pad, encrypted with their shares of this client's secret. All these shares can
  be computed once the client's secret is recovered, also those of neighbours that have dropped out since. A neighbour
  that is in dispute with the client has no such share; it shares the secret among its own holders instead.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import TypeVar

import numpy as np

from tacit.errors import ProtocolError, TooFewClientsError, expect
from tacit.protocols import crypto
from tacit.protocols.crypto import KEY, SIGNATURE, Entropy, PrivateKey
from tacit.protocols.kit import Exchange, Outcome, ReplyStatus, ServerSide, Transcript
from tacit.protocols.secagg import graph, pads, secagg_messages, shares
from tacit.protocols.secagg.graph import MAX_DRAWS, NONCE, Circle, ThreatModel
from tacit.protocols.secagg.pad_removal import (
    Announced,
    Misbehaviour,
    PaddedUpload,
    Revealed,
    RosterGraph,
    SecretRecovery,
    lies_in_answers,
    read_revealed,
)
from tacit.protocols.secagg.pads import RemovePads, Vector
from tacit.protocols.secagg.parameters import Parameters, SecaggSession
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
from tacit.protocols.secagg.shares import SECRET, SHARE, Dealing, Field
from tacit.wire.packing import Reader, pack_subset

_T = TypeVar("_T")


@dataclass(frozen=True, eq=False)
class SecaggOutcome(Outcome[Vector, Phase]):
    """The sum modulo 2^bits, and the survivors.

    Attributes:
        noise_seeds: of the survivors' surplus noise, from the component after the number of losses on; empty if there
            is none to remove.
        lies: who has lied.
    """

    noise_seeds: Mapping[int, bytes] = field(default_factory=dict)
    misbehaviour: Misbehaviour = field(default_factory=Misbehaviour)


def converse(
    session: SecaggSession,
    clients: Iterable[int],
    directory: Mapping[int, bytes] | None = None,
    *,
    entropy: Entropy = crypto.system_entropy,
    remove: RemovePads | None = None,
) -> ServerSide[SecaggOutcome]:
    """One round of secure aggregation with the invited clients.

    Args:
        session: the round, as all clients should see it.
        clients: numbers of the cohort.
        directory: their identities; required against an active server.
        entropy: source of the challenge, which clients must not know when they share their secrets.
        remove: removes pads from the sum; None: here. `tacit.protocols.pad_processes` does it in several processes.

    Raises:
        TooFewClientsError: fewer than `session.parameters.min_survivors` remain, or a secret cannot be recovered.
    """
    cohort = sorted(set(clients))
    expect(len(cohort) == session.parameters.cohort, f"{session.parameters.cohort} clients, got {len(cohort)}")
    session.parameters.graph(len(cohort))  # raises before the first request if no threshold is possible
    return _Server(session, dict(directory or {}), entropy(KEY), remove or pads.remove_pads).run(cohort)


@dataclass(frozen=True, eq=False)
class _Server:
    """One method per phase."""

    session: SecaggSession
    directory: Mapping[int, bytes]
    challenge: bytes
    remove: RemovePads
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
        total, uploads = yield from self._upload(around, sharers, lies)
        agreed = (yield from self._agree(around, sharers, frozenset(uploads))) if self._active else {}
        revealed = yield from self._open(around, sharers, uploads, agreed)
        end = SecretRecovery(self._p, around, dealings, lies, uploads, revealed)
        self.remove(total, *end.pads(sharers))
        seeds = end.noise_seeds()
        survived = tuple(sorted(uploads))
        return SecaggOutcome(pads.reduce(total, self._p.bits), survived, self.transcript, seeds, end.misbehaviour)

    def _announce(self, cohort: list[int]) -> ServerSide[dict[int, Announced]]:
        context, seen = self.session.context, set[bytes]()

        def read(client: int, reader: Reader) -> Announced:
            keys, committed = reader.take(KEYS), reader.take(KEY * self._p.draws)
            signature = reader.take(SIGNATURE * self._active)
            reader.expect_end()  # before its keys are noted
            if self._active:
                statement = announcement_statement(context, client, keys, committed)
                crypto.verify(self.directory[client], signature, statement)
            _check_keys(keys[:KEY], keys[KEY:], seen)
            return Announced(keys, committed, signature)

        return (yield from self._request(Phase.ANNOUNCE, context, dict.fromkeys(cohort, b""), read))

    def _draw(self, announced: Mapping[int, Announced]) -> ServerSide[RosterGraph]:
        """Draw an order among all who announced; whoever does not open its nonce is lost, and the others draw again."""
        for draw in range(1, MAX_DRAWS + 1):
            self._check_enough(announced)
            leaves = {j: graph.keys_digest(a.keys) + a.committed for j, a in announced.items()}
            roster = graph.roster_digest(self.session.context, leaves)
            if not self._p.draws:
                return self._graph(roster, announced, {})
            nonces = yield from self._nonces(draw, roster, announced)
            if nonces.keys() == announced.keys():
                return self._graph(roster, announced, nonces)
            announced = {j: announced[j] for j in nonces}
        raise TooFewClientsError(f"Clients were lost in each of {MAX_DRAWS} draws of an order: there is no sum.")

    def _nonces(self, draw: int, roster: bytes, announced: Mapping[int, Announced]) -> ServerSide[dict[int, bytes]]:
        def read(client: int, reader: Reader) -> bytes:
            nonce = reader.take(NONCE)
            if graph.commitment(nonce, draw) != announced[client].committed:
                raise ProtocolError("A nonce is not the one to which its client has committed.")
            return nonce

        bodies = dict.fromkeys(sorted(announced), roster)
        return (yield from self._request(Phase.DRAW, self.session.context, bodies, read))

    def _graph(self, roster: bytes, announced: Mapping[int, Announced], nonces: dict[int, bytes]) -> RosterGraph:
        members = tuple(sorted(announced))
        circle = Circle(members, self._p.graph(len(members)), graph.draw_order(roster, nonces))
        drawn = {j: replace(each, nonce=nonces.get(j, b"")) for j, each in announced.items()}
        return RosterGraph(self.session.context, circle, roster, self.challenge, drawn, circle.neighbourhoods())

    def _share(self, around: RosterGraph) -> ServerSide[dict[int, Dealing]]:
        def body(client: int) -> bytes:
            near = around.holders(client, around.members)
            entries = {j: around.announced[j].entry for j in near}
            digests = {j: around.announced[j].digest for j in around.announced.keys() - near}
            return Roster(around.committed_challenge, entries, digests).pack(self._p)

        def read(client: int, reader: Reader) -> Dealing:
            holders = tuple(sorted(around.holders(client, around.members)))
            return Dealing.read(bytes(reader.rest()), holders, around.parameters.threshold, shares.columns(self._p))

        bodies = {j: body(j) for j in around.members}
        shared = yield from self._request(Phase.SHARE, self.session.context, bodies, read, reply=around.binding)
        self._check_enough(shared)
        return shared

    def _check_dealings(
        self, around: RosterGraph, dealings: Mapping[int, Dealing]
    ) -> ServerSide[tuple[Misbehaviour, frozenset[int]]]:
        """The lies that holders' answers show, and the clients to pad with."""
        dealers = frozenset(dealings)
        near = {j: sorted(around.holders(j, dealers)) for j in dealers}

        def read(client: int, reader: Reader) -> dict[int, Field]:
            words = shares.from_bytes(bytes(reader.rest()), shares.PADS * len(near[client]))
            return dict(zip(near[client], words.reshape(-1, shares.PADS), strict=True))

        body = self.challenge + pack_subset(dealers, around.members)
        bodies = dict.fromkeys(sorted(dealers), body)
        answers = yield from self._request(Phase.CHECK, around.binding, bodies, read)
        lies, excluded = lies_in_answers(self._p, around, dealings, answers)
        return lies, self._recoverable(around, frozenset(answers) - excluded)

    def _recoverable(self, around: RosterGraph, sharers: frozenset[int]) -> frozenset[int]:
        """Clients with enough remaining neighbours; the rest count as dropouts before they pad anything."""
        while True:
            self._check_enough(sharers)
            remaining = around.circle.remaining(sharers)
            kept = frozenset(j for j in sharers if remaining[j] >= around.parameters.floor)
            if kept == sharers:
                return kept
            sharers = kept

    def _upload(
        self, around: RosterGraph, sharers: frozenset[int], misbehaviour: Misbehaviour
    ) -> ServerSide[tuple[Vector, dict[int, PaddedUpload]]]:
        total = np.zeros(self._p.dim, np.uint32)
        padded = sharers_statement(around.binding, around.members, sharers)
        signs = self._active and self._p.draws
        disputed = {
            j: sorted(i for i, holder in misbehaviour.disputed if holder == j and i in sharers) for j in sharers
        }

        def read(client: int, reader: Reader) -> PaddedUpload:
            signature = reader.take(SIGNATURE * signs)
            if signs:
                crypto.verify(self.directory[client], signature, padded)
            escrowed = {j: reader.take(SECRET) for j in sorted(around.neighbours[client] & sharers)}
            spares = {j: self._read_spare(around, client, reader) for j in disputed[client]}
            np.add(total, pads.unpack_vector(reader.rest(), self._p.dim, self._p.bits), out=total)
            return PaddedUpload(signature, escrowed, spares)

        subset = pack_subset(sharers, around.members)
        bodies = {j: subset + secagg_messages.pack_disputed(disputed[j]) for j in sorted(sharers)}
        uploads = yield from self._request(Phase.UPLOAD, around.binding, bodies, read)
        survivors = frozenset(uploads)
        self._check_enough(survivors)
        remaining = around.circle.remaining(survivors)
        if any(remaining[j] < around.parameters.floor for j in survivors):
            raise TooFewClientsError("A survivor has too few neighbours left: there is no sum.")
        return total, uploads

    def _read_spare(self, around: RosterGraph, client: int, reader: Reader) -> Dealing:
        holders, threshold = tuple(sorted(around.holders(client, around.members))), around.parameters.threshold
        size = SHARE * (len(holders) - threshold + 1)
        return Dealing.read(reader.take(size), holders, threshold, shares.LIMBS)

    def _agree(
        self, around: RosterGraph, sharers: frozenset[int], survivors: frozenset[int]
    ) -> ServerSide[dict[int, bytes]]:
        statement = agreement_statement(around.binding, around.members, sharers, survivors)

        def read(client: int, reader: Reader) -> bytes:
            signature = reader.take(SIGNATURE)
            crypto.verify(self.directory[client], signature, statement)
            return signature

        bodies = dict.fromkeys(sorted(survivors), pack_subset(survivors, around.members))
        return (yield from self._request(Phase.AGREE, around.binding, bodies, read))

    def _open(
        self,
        around: RosterGraph,
        sharers: frozenset[int],
        uploads: Mapping[int, PaddedUpload],
        agreed: Mapping[int, bytes],
    ) -> ServerSide[dict[int, Revealed]]:
        survivors = frozenset(uploads)
        asked, consent = self._consent(around, survivors, agreed)
        spared = [(j, lost) for j in sorted(survivors) for lost in sorted(uploads[j].spares.keys() - survivors)]
        spares = {m: [pair for pair in spared if pair[0] in around.holders(m, survivors)] for m in asked}

        def body(client: int) -> bytes:
            signed = [uploads[j].signature for j in sorted(around.neighbours[client] & survivors)]
            pairs = secagg_messages.pack_spares(spares[client])
            return b"".join((pack_subset(survivors, around.members), pairs, consent, *signed))

        def read(client: int, reader: Reader) -> Revealed:
            about = sorted(around.holders(client, sharers))
            return read_revealed(self._p, reader, about, survivors, spares[client])

        return (yield from self._request(Phase.OPEN, around.binding, {j: body(j) for j in asked}, read))

    def _consent(
        self, around: RosterGraph, survivors: frozenset[int], agreed: Mapping[int, bytes]
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
        self,
        phase: Phase,
        binding: bytes,
        bodies: Mapping[int, bytes],
        read: Callable[[int, Reader], _T],
        reply: bytes | None = None,
    ) -> ServerSide[dict[int, _T]]:
        """Send requests with a binding, and read the first valid reply of every client, with it or that of `reply`."""
        header = (phase, Direction.REQUEST, self.session.round)
        requests = {j: secagg_messages.pack(*header, j, binding, body) for j, body in bodies.items()}
        unpack = partial(secagg_messages.unpack, limit=secagg_messages.max_reply_size(self._p))
        exchange = Exchange(phase, requests, unpack, partial(self._check, phase, reply or binding), read)
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
