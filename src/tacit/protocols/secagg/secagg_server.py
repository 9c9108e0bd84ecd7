"""The server of secure aggregation: a generator that yields requests and is sent replies; it does no I/O.

`set_up` asks for what an epoch needs, and returns an `Epoch`, each of whose rounds is one conversation; `converse` is
both for an epoch's first round.

It reads replies in any order, one at a time (they may come from a lazy iterable, so that at most one upload is in
memory), rejects late, duplicate, misdirected and malformed ones, and ends with the exact sum of the survivors or with
`TooFewClientsError`.

Clients may lie. Up to the declared fraction of them the sum is exact, and nobody honest is named (`Misbehaviour`):

- A client whose corrections fit the answers of too few holders has lied, because at most the declared number of holders
  lie about it. It is excluded before anybody pads with it, and named.
- If corrections fit all but a few holders, either the client or these holders lie. Nobody else can decide, so the pairs
  are reported without a name, and those shares are not used. A holder that disputes with more clients than may be
  corrupt has lied, and is named.
- A holder that reveals another share than the one it answered about has lied, and is named. If more clients are lost
  than are declared, shares can be too few to tell: then there is no sum.
- A pad with a client that dropped out derives from a share of that client's secret, or is removed by what the survivor
  at its other end, its owner, has escrowed with its upload: the pad's secret, encrypted with its own share of that
  client's secret. All these shares can be computed once the client's
  secret is recovered, also those of survivors that are silent by then. A survivor that is in dispute with the client
  has no such share; it shares the pad's secret among its own holders instead. A survivor that escrows something else
  leaves a pad in the sum: it could have sent any vector.
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
        noise_seeds: of the survivors whose noise is to be removed, because fewer clients were lost than provided for.
        misbehaviour: who has certainly lied, and the pairs of whom one has.
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
    """One round of secure aggregation with the invited clients, and its set-up; arguments and errors as `set_up`."""
    return _both(set_up(session, clients, directory, entropy=entropy, remove=remove), session)


def _both(begun: ServerSide["Epoch"], session: SecaggSession) -> ServerSide[SecaggOutcome]:
    epoch = yield from begun
    return (yield from epoch.converse(session))


def set_up(
    session: SecaggSession,
    clients: Iterable[int],
    directory: Mapping[int, bytes] | None = None,
    *,
    entropy: Entropy = crypto.system_entropy,
    remove: RemovePads | None = None,
) -> ServerSide["Epoch"]:
    """The set-up of an epoch of `session.parameters.rounds` rounds with the invited clients.

    Args:
        session: the first round, as all clients should see it.
        clients: numbers of the cohort.
        directory: their identities; required against an active server.
        entropy: source of the challenge, which clients must not know when they share their secrets.
        remove: removes pads from the sum; None: here. `tacit.protocols.pad_processes` does it in several processes.

    Raises:
        TooFewClientsError: fewer than `session.parameters.min_survivors` remain.
    """
    cohort = sorted(set(clients))
    expect(len(cohort) == session.parameters.cohort, f"{session.parameters.cohort} clients, got {len(cohort)}")
    session.parameters.graph(len(cohort))  # raises before the first request if no threshold is possible
    return _SetUp(session, dict(directory or {}), entropy(KEY), remove or pads.remove_pads).run(cohort)


@dataclass(frozen=True, eq=False)
class _Server:
    """What both parts of a server do: ask clients, and read the first valid reply of each.

    Attributes:
        session: of the round, or of the set-up.
        directory: the clients' identities.
        transcript: what is observed.
    """

    session: SecaggSession
    directory: Mapping[int, bytes]
    transcript: Transcript[Phase]

    @property
    def p(self) -> Parameters:
        return self.session.parameters

    @property
    def active(self) -> bool:
        return self.p.threat_model is ThreatModel.ACTIVE_SERVER

    def check_enough(self, present: Iterable[int]) -> None:
        """Raise `TooFewClientsError` if fewer than the minimum are left."""
        if len(frozenset(present)) < self.p.min_survivors:
            raise TooFewClientsError("Too few clients remain: there is no sum.")

    def consent(self, around: RosterGraph, signatures: Mapping[int, bytes], what: str) -> bytes:
        """A quorum of the committee's signatures, without which clients would not go on; empty if nobody signs."""
        if not self.active:
            return b""
        quorum = sorted(around.circle.committee() & signatures.keys())[: around.parameters.quorum]
        if len(quorum) < around.parameters.quorum:
            raise TooFewClientsError(f"Too few clients signed the set of {what}: there is no sum.")
        return pack_signatures({j: signatures[j] for j in quorum}, around.members)

    def read_signature(self, client: int, reader: Reader, statement: bytes) -> bytes:
        """The client's signature on a statement; empty against a semi-honest server."""
        signature = reader.take(SIGNATURE * self.active)
        if self.active:
            crypto.verify(self.directory[client], signature, statement)
        return signature

    def request(
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
        unpack = partial(secagg_messages.unpack, limit=secagg_messages.max_reply_size(self.p))
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
        same = frame.round == self.session.round and frame.is_bound(binding)
        return ReplyStatus.ACCEPTED if same else ReplyStatus.WRONG_SESSION


class _SetUp:
    """One method per phase of the set-up."""

    def __init__(
        self, session: SecaggSession, directory: Mapping[int, bytes], challenge: bytes, remove: RemovePads
    ) -> None:
        self._server = _Server(session, directory, Transcript())
        self._session, self._challenge, self._remove = session, challenge, remove

    @property
    def _p(self) -> Parameters:
        return self._session.parameters

    def run(self, cohort: list[int]) -> ServerSide["Epoch"]:
        around = yield from self._draw((yield from self._announce(cohort)))
        dealings = yield from self._share(around)
        lies, sharers = yield from self._check_dealings(around, dealings)
        confirmed = yield from self._confirm(around, sharers, lies)
        consent = self._server.consent(around, confirmed, "sharers")
        return Epoch(self._server, around, dealings, lies, sharers, frozenset(confirmed), consent, self._remove)

    def _announce(self, cohort: list[int]) -> ServerSide[dict[int, Announced]]:
        context, seen = self._session.context, set[bytes]()

        def read(client: int, reader: Reader) -> Announced:
            key, committed = reader.take(KEY), reader.take(KEY * self._p.draws)
            signature = self._server.read_signature(
                client, reader, announcement_statement(context, client, key, committed)
            )
            reader.expect_end()  # before its key is noted
            _check_key(key, seen)
            return Announced(key, committed, signature)

        return (yield from self._server.request(Phase.ANNOUNCE, context, dict.fromkeys(cohort, b""), read))

    def _draw(self, announced: Mapping[int, Announced]) -> ServerSide[RosterGraph]:
        """Draw an order among all who announced; whoever does not open its nonce is lost, and the others draw again."""
        for draw in range(1, MAX_DRAWS + 1):
            self._server.check_enough(announced)
            leaves = {j: each.leaf for j, each in announced.items()}
            roster = graph.roster_digest(self._session.context, leaves)
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
        return (yield from self._server.request(Phase.DRAW, self._session.context, bodies, read))

    def _graph(self, roster: bytes, announced: Mapping[int, Announced], nonces: dict[int, bytes]) -> RosterGraph:
        members = tuple(sorted(announced))
        circle = Circle(members, self._p.graph(len(members)), graph.draw_order(roster, nonces))
        drawn = {j: replace(each, nonce=nonces.get(j, b"")) for j, each in announced.items()}
        return RosterGraph(self._session.context, circle, roster, self._challenge, drawn, circle.neighbourhoods())

    def _share(self, around: RosterGraph) -> ServerSide[dict[int, Dealing]]:
        def body(client: int) -> bytes:
            near = around.holders(client, around.members)
            entries = {j: around.announced[j].entry for j in near}
            nonces = {j: around.announced[j].nonce for j in around.announced.keys() - near}
            return Roster(around.committed_challenge, entries, nonces).pack(self._p)

        def read(client: int, reader: Reader) -> Dealing:
            holders = tuple(sorted(around.holders(client, around.members)))
            width = shares.columns(self._p, noisy=client in noisy)
            return Dealing.read(bytes(reader.rest()), holders, around.parameters.threshold, width)

        noisy = shares.noise_dealers(self._p, around.members)
        bodies = {j: body(j) for j in around.members}
        shared = yield from self._server.request(Phase.SHARE, self._session.context, bodies, read, reply=around.binding)
        self._server.check_enough(shared)
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

        body = self._challenge + pack_subset(dealers, around.members)
        bodies = dict.fromkeys(sorted(dealers), body)
        answers = yield from self._server.request(Phase.CHECK, around.binding, bodies, read)
        lies, excluded = lies_in_answers(self._p, around, dealings, answers)
        return lies, self._recoverable(around, frozenset(answers) - excluded)

    def _recoverable(self, around: RosterGraph, sharers: frozenset[int]) -> frozenset[int]:
        """Clients with enough remaining neighbours; the rest count as dropouts before they pad anything."""
        while True:
            self._server.check_enough(sharers)
            remaining = around.circle.count_neighbours(sharers)
            kept = frozenset(j for j in sharers if remaining[j] >= around.parameters.floor)
            if kept == sharers:
                return kept
            sharers = kept

    def _confirm(
        self, around: RosterGraph, sharers: frozenset[int], lies: Misbehaviour
    ) -> ServerSide[dict[int, bytes]]:
        """The clients' signatures on the sharers, with whom all of them pad in every round."""
        statement = sharers_statement(around.binding, around.members, sharers)

        def read(client: int, reader: Reader) -> bytes:
            return self._server.read_signature(client, reader, statement)

        subset = pack_subset(sharers, around.members)
        bodies = {j: subset + secagg_messages.pack_disputed(_disputes(lies, j, sharers)) for j in sorted(sharers)}
        return (yield from self._server.request(Phase.CONFIRM, around.binding, bodies, read))


def _disputes(lies: Misbehaviour, holder: int, sharers: frozenset[int]) -> list[int]:
    """The sharers whose shares at this holder are disputed."""
    return sorted(i for i, other in lies.disputed if other == holder and i in sharers)


class Epoch:
    """The server after the set-up: each round is one conversation with the clients that are there."""

    def __init__(
        self,
        server: _Server,
        around: RosterGraph,
        dealings: Mapping[int, Dealing],
        misbehaviour: Misbehaviour,
        sharers: frozenset[int],
        confirmed: frozenset[int],
        consent: bytes,
        remove: RemovePads,
    ) -> None:
        self._first, self._around, self._dealings, self._remove = server, around, dealings, remove
        self._misbehaviour, self._sharers, self._confirmed, self._consent = misbehaviour, sharers, confirmed, consent
        self._reached: set[int] = set()  # who has seen the signatures on the sharers
        self._turn = -1

    @property
    def sharers(self) -> frozenset[int]:
        """Who pads with each other in every round."""
        return self._sharers

    @property
    def transcript(self) -> Transcript[Phase]:
        """What the server observed in the set-up."""
        return self._first.transcript

    def converse(self, session: SecaggSession, turn: int = 0) -> ServerSide[SecaggOutcome]:
        """Round number `turn` of the epoch; each only once, in ascending order.

        The first one's transcript contains the set-up.

        Raises:
            TooFewClientsError: fewer than `session.parameters.min_survivors` remain, or a secret cannot be recovered.
        """
        expect(self._turn < turn < session.parameters.rounds, f"a round after {self._turn} of the epoch, got {turn}")
        transcript = self._first.transcript if self._turn < 0 else Transcript[Phase]()
        self._turn = turn
        server = _Server(session, self._first.directory, transcript)
        here = _Round(server, session.round_binding(self._around.binding, turn), self._around, self._sharers)
        total, uploads = yield from here.upload(self._confirmed, self._signatures(), self._misbehaviour)
        self._reached |= uploads.keys()
        left, seeds = yield from self._open(here, uploads)
        self._remove(total, *left)
        survived = tuple(sorted(uploads))
        return SecaggOutcome(pads.reduce(total, server.p.bits), survived, transcript, seeds, self._misbehaviour)

    def _open(
        self, here: "_Round", uploads: Mapping[int, PaddedUpload]
    ) -> ServerSide[tuple[tuple[list[bytes], list[bytes]], dict[int, bytes]]]:
        """The keys of the pads that are left, and the seeds of surplus noise.

        A part of the survivors is asked first. The others are asked unless each secret is certain then.
        """
        p, circle, revealed = here.server.p, self._around.circle, dict[int, Revealed]()
        agreed = (yield from here.agree(frozenset(uploads))) if here.server.active else {}
        openers = agreed.keys() | (uploads.keys() - here.signers)
        trusted = openers - self._misbehaviour.named
        first = secagg_messages.first_openers(p, self._turn, circle, trusted)
        while True:
            revealed |= yield from here.open(uploads, agreed, sorted(first))
            openers -= first
            certain = secagg_messages.certain_shares(p, circle, final=not openers)
            terms = (p, self._turn, here.binding, self._around, self._dealings, self._misbehaviour)
            end = SecretRecovery(*terms, uploads, revealed, certain, final=not openers)
            try:
                recovered = end.pads(self._sharers), end.noise_seeds()
            except TooFewClientsError:
                if not openers:
                    raise
                first = frozenset(openers)
                continue
            self._misbehaviour = end.misbehaviour
            return recovered

    def _signatures(self) -> dict[int, bytes]:
        """The signatures on the sharers, for those that have not seen them."""
        return {j: b"" if j in self._reached else self._consent for j in sorted(self._confirmed)}


@dataclass(frozen=True, eq=False)
class _Round:
    """One method per phase of a round."""

    server: _Server
    binding: bytes
    around: RosterGraph
    sharers: frozenset[int]

    def upload(
        self, confirmed: frozenset[int], bodies: Mapping[int, bytes], lies: Misbehaviour
    ) -> ServerSide[tuple[Vector, dict[int, PaddedUpload]]]:
        """The sum of the padded vectors, and what came with them."""
        p, around = self.server.p, self.around
        total, noisy = np.zeros(p.dim, np.uint32), shares.noise_dealers(p, around.members)
        disputed = {j: _disputes(lies, j, self.sharers) for j in confirmed}

        def read(client: int, reader: Reader) -> PaddedUpload:
            escrowed = {j: reader.take(SECRET) for j in around.own_pads[client] if j in self.sharers}
            spares = {j: self._read_spare(client, reader) for j in disputed[client]}
            noise = reader.take(KEY * (client in noisy))
            np.add(total, pads.unpack_vector(reader.rest(), p.dim, p.bits), out=total)
            return PaddedUpload(escrowed, spares, noise)

        uploads = yield from self.server.request(Phase.UPLOAD, self.binding, bodies, read)
        survivors = frozenset(uploads)
        self.server.check_enough(survivors)
        remaining = around.circle.count_neighbours(survivors)
        if any(remaining[j] < around.parameters.floor for j in survivors):
            raise TooFewClientsError("A survivor has too few neighbours left: there is no sum.")
        return total, uploads

    def _read_spare(self, client: int, reader: Reader) -> Dealing:
        around = self.around
        holders, threshold = tuple(sorted(around.holders(client, around.members))), around.parameters.threshold
        size = SHARE * (len(holders) - threshold + 1)
        return Dealing.read(reader.take(size), holders, threshold, shares.LIMBS)

    @property
    def signers(self) -> frozenset[int]:
        """Who signs the survivors."""
        return self.around.circle.committee() if self.server.active else frozenset()

    def agree(self, survivors: frozenset[int]) -> ServerSide[dict[int, bytes]]:
        """The committee's signatures on who survived."""
        statement = agreement_statement(self.binding, self.around.members, survivors)

        def read(client: int, reader: Reader) -> bytes:
            return self.server.read_signature(client, reader, statement)

        bodies = dict.fromkeys(sorted(survivors & self.signers), pack_subset(survivors, self.around.members))
        return (yield from self.server.request(Phase.AGREE, self.binding, bodies, read))

    def open(
        self, uploads: Mapping[int, PaddedUpload], agreed: Mapping[int, bytes], asked: Iterable[int]
    ) -> ServerSide[dict[int, Revealed]]:
        """What these survivors reveal."""
        around, survivors = self.around, frozenset(uploads)
        consent = self.server.consent(around, agreed, "survivors")
        spared = [(j, lost) for j in sorted(survivors) for lost in sorted(uploads[j].spares.keys() - survivors)]
        spares = {m: [pair for pair in spared if pair[0] in around.holders(m, survivors)] for m in asked}

        def body(client: int) -> bytes:
            pairs = secagg_messages.pack_spares(spares[client])
            return b"".join((pack_subset(survivors, around.members), pairs, consent))

        def read(client: int, reader: Reader) -> Revealed:
            about = sorted(around.holders(client, self.sharers))
            return read_revealed(self.server.p, reader, about, survivors, spares[client])

        return (yield from self.server.request(Phase.OPEN, self.binding, {j: body(j) for j in asked}, read))


@cache
def _probe() -> PrivateKey:
    """Any key: whether an agreement fails depends on the other one only."""
    return crypto.load_key(bytes(KEY))


def _check_key(key: bytes, seen: set[bytes]) -> None:
    """Reject a key that would make neighbours leave the round: a low-order point, or another client's key."""
    crypto.agree(_probe(), key)
    if key in seen:
        raise ProtocolError("Two clients announced the same key.")
    seen.add(key)
