"""The server's side of secure aggregation: a generator that yields requests and is sent replies; it does no I/O.

It reads replies in any order, one at a time (they may come from a lazy iterable, so that no two vectors are in memory
at once), drops what is late, double, foreign or malformed, and ends with the exact sum of those that delivered, or with
`TooFewError`. Secrets that were put together from shares are compared with what was announced before they are used.
"""

from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from tacit.errors import expect
from tacit.protocols import crypto
from tacit.protocols.crypto import KEY
from tacit.protocols.secagg import graph, messages, ring, shamir
from tacit.protocols.secagg.errors import ProtocolError, TooFewError
from tacit.protocols.secagg.messages import KEYS, SEALED, Kind, Phase, Roster, Way
from tacit.protocols.secagg.minutes import Drop, Minutes, judge
from tacit.protocols.secagg.parameters import Level, Parameters
from tacit.protocols.secagg.session import Session
from tacit.protocols.secagg.statements import agreed, announced
from tacit.protocols.secagg.unpad import Hall, Part, unpad
from tacit.wire.packing import Reader, pack_subset, pack_table

T = TypeVar("T")
Requests = Mapping[int, bytes]  # by client
Replies = Iterable[tuple[int, bytes]]  # the sender as the transport knows it, and what it sent; in any order
Conversation = Generator[Requests, Replies, T]


@dataclass(frozen=True, eq=False)
class Outcome:
    """How a round ended: the sum modulo 2^bits, of whom, and the minutes."""

    total: ring.Vector
    delivered: tuple[int, ...]
    minutes: Minutes


def converse(
    session: Session, clients: Iterable[int], directory: Mapping[int, bytes] | None = None
) -> Conversation[Outcome]:
    """One round of secure aggregation with the clients invited.

    Args:
        session: the round, as all clients should see it.
        clients: the cohort's numbers.
        directory: their identities; needed at level `ACTIVE_SERVER`.

    Raises:
        TooFewError: fewer than `session.parameters.survivors` are left, or secrets cannot be put together.
    """
    cohort = sorted(set(clients))
    expect(len(cohort) == session.parameters.cohort, f"{session.parameters.cohort} clients, got {len(cohort)}")
    session.parameters.wiring(len(cohort))  # what cannot end well does not begin
    return _Server(session, dict(directory or {})).run(cohort)


@dataclass(frozen=True, eq=False)
class _Server:
    """The phases, one method each."""

    session: Session
    directory: Mapping[int, bytes]
    minutes: Minutes = field(default_factory=Minutes)

    @property
    def _p(self) -> Parameters:
        return self.session.parameters

    @property
    def _active(self) -> bool:
        return self._p.level is Level.ACTIVE_SERVER

    def run(self, cohort: list[int]) -> Conversation[Outcome]:
        """All phases."""
        entries = yield from self._announce(cohort)
        hall = self._seat(entries)
        commitments, sealed = yield from self._share(hall, entries)
        sharers = self._connected(hall, frozenset(sealed))
        total, survivors = yield from self._upload(hall, sealed, sharers)
        signatures = (yield from self._agree(hall, survivors)) if self._active else {}
        opened = yield from self._open(hall, sharers, survivors, signatures)
        unpad(hall, total, opened, commitments, survivors)
        return Outcome(ring.reduce(total, self._p.bits), tuple(sorted(survivors)), self.minutes)

    def _announce(self, cohort: list[int]) -> Conversation[dict[int, bytes]]:
        context, seen = self.session.context, set[bytes]()

        def read(client: int, reader: Reader) -> bytes:
            entry = reader.take(messages.announcement_width(self._p.level))
            reader.done()
            _check_keys(entry[:KEY], entry[KEY:KEYS], seen)
            if self._active:
                crypto.verify(self.directory.get(client, b""), entry[KEYS:], announced(context, client, entry[:KEYS]))
            return entry

        return (yield from self._ask(Phase.ANNOUNCE, (context, context), dict.fromkeys(cohort, b""), read))

    def _seat(self, entries: Mapping[int, bytes]) -> Hall:
        self._enough(entries)
        members = tuple(sorted(entries))
        keys = {client: entry[:KEYS] for client, entry in entries.items()}
        digest = graph.roster_digest(self.session.context, {j: graph.leaf(j, both) for j, both in keys.items()})
        wiring = self._p.wiring(len(members))
        near = graph.neighbourhoods(digest, members, wiring.degree)
        return Hall(members, digest, keys, near, wiring.threshold)

    def _share(
        self, hall: Hall, entries: Mapping[int, bytes]
    ) -> Conversation[tuple[dict[int, bytes], dict[int, dict[int, bytes]]]]:
        leaves = {j: graph.leaf(j, keys) for j, keys in hall.keys.items()}

        def body(client: int) -> bytes:
            around = hall.around(client, hall.members)
            far = {j: leaf for j, leaf in leaves.items() if j not in around}
            return Roster({j: entries[j] for j in around}, far).pack(self._p.level)

        def read(client: int, reader: Reader) -> tuple[bytes, dict[int, bytes]]:
            commitment, sealed = reader.take(KEY), reader.table(SEALED, len(hall.members))
            reader.done()
            _same(sealed.keys(), hall.near[client])
            return commitment, sealed

        tags = (self.session.context, hall.digest)
        got = yield from self._ask(Phase.SHARE, tags, {client: body(client) for client in hall.members}, read)
        return {j: commitment for j, (commitment, _) in got.items()}, {j: sealed for j, (_, sealed) in got.items()}

    def _connected(self, hall: Hall, sharers: frozenset[int]) -> frozenset[int]:
        """Those whose secrets enough others hold; the rest is treated as lost before it pads anything."""
        while True:
            kept = frozenset(j for j in sharers if len(hall.around(j, sharers)) >= hall.threshold)
            self._enough(kept)
            if kept == sharers:
                return kept
            sharers = kept

    def _upload(
        self, hall: Hall, sealed: Mapping[int, Mapping[int, bytes]], sharers: frozenset[int]
    ) -> Conversation[tuple[ring.Vector, frozenset[int]]]:
        total = np.zeros(self._p.dim, np.uint32)

        def body(client: int) -> bytes:
            return pack_table({j: sealed[j][client] for j in hall.near[client] & sharers}, SEALED)

        def read(_: int, reader: Reader) -> None:
            np.add(total, ring.unpack(reader.rest(), self._p.dim, self._p.bits), out=total)

        tags = (hall.digest, hall.digest)
        survivors = frozenset((yield from self._ask(Phase.UPLOAD, tags, {j: body(j) for j in sorted(sharers)}, read)))
        self._enough(survivors)
        if any(len(hall.around(j, survivors)) < hall.threshold for j in survivors):
            raise TooFewError("A client that delivered has too few neighbours left to take its pad off.")
        return total, survivors

    def _agree(self, hall: Hall, survivors: frozenset[int]) -> Conversation[dict[int, bytes]]:
        statement = agreed(hall.digest, hall.members, survivors)

        def read(client: int, reader: Reader) -> bytes:
            signature = reader.take(crypto.SIGNATURE)
            reader.done()
            crypto.verify(self.directory[client], signature, statement)
            return signature

        bodies = dict.fromkeys(sorted(survivors), pack_subset(survivors, hall.members))
        return (yield from self._ask(Phase.AGREE, (hall.digest, hall.digest), bodies, read))

    def _open(
        self, hall: Hall, sharers: frozenset[int], survivors: frozenset[int], signatures: Mapping[int, bytes]
    ) -> Conversation[dict[int, dict[int, Part]]]:
        asked = [j for j in sorted(survivors) if self._consented(hall, j, signatures)]
        if not asked:
            raise TooFewError("Too few clients agreed on who delivered: there is no sum.")
        wanted = {i: {j: _kind(j, survivors) for j in hall.around(i, sharers)} for i in asked}

        def body(client: int) -> bytes:
            signed = sorted(hall.near[client].intersection(signatures))[: hall.threshold - 1]  # it has its own
            consent = pack_table({j: signatures[j] for j in signed}, crypto.SIGNATURE) if self._active else b""
            return pack_subset(survivors, hall.members) + consent + pack_table(wanted[client], 1)

        def read(client: int, reader: Reader) -> dict[int, Part]:
            opened = reader.table(messages.OPENED, len(hall.members))
            reader.done()
            _same({j: part[:1] for j, part in opened.items()}, wanted[client])
            return {j: (Kind(part[0]), shamir.from_bytes(part[1:])) for j, part in opened.items()}

        return (yield from self._ask(Phase.OPEN, (hall.digest, hall.digest), {j: body(j) for j in asked}, read))

    def _consented(self, hall: Hall, client: int, signatures: Mapping[int, bytes]) -> bool:
        """Whether a client may be asked: against an active server, it wants to see enough signatures."""
        enough = len(hall.around(client, signatures)) >= hall.threshold
        return (client in signatures and enough) if self._active else True

    def _enough(self, present: Iterable[int]) -> None:
        count = len(frozenset(present))
        if count < self._p.survivors:
            raise TooFewError(f"Expected {self._p.survivors} clients, {count} are left: there is no sum.")

    def _ask(
        self, phase: Phase, tags: tuple[bytes, bytes], bodies: Mapping[int, bytes], read: Callable[[int, Reader], T]
    ) -> Conversation[dict[int, T]]:
        """Send requests, and read the first good reply of everybody that was asked."""
        ask, expected = tags
        requests = {
            j: messages.pack(phase, Way.REQUEST, self.session.round, j, ask, body) for j, body in bodies.items()
        }
        self.minutes.down[phase].update({j: len(request) for j, request in requests.items()})
        got: dict[int, T] = {}
        for sender, data in (yield requests):
            reason = self._take(phase, expected, sender, data, requests, got, read)
            if reason is not None:
                self.minutes.dropped[reason] += 1
        return got

    def _take(
        self,
        phase: Phase,
        tag: bytes,
        sender: int,
        data: bytes,
        asked: Requests,
        got: dict[int, T],
        read: Callable[[int, Reader], T],
    ) -> Drop | None:
        """Read one reply into `got`, or say why not."""
        frame = judge(self.session, phase, tag, sender, data)
        if isinstance(frame, Drop):
            return frame
        if sender not in asked or sender in got:
            return Drop.STRANGER if sender not in asked else Drop.DUPLICATE
        try:
            got[sender] = read(sender, Reader(frame.body))
        except ProtocolError:
            return Drop.MALFORMED
        self.minutes.up[phase][sender] = len(data)
        return None


def _check_keys(pad: bytes, channel: bytes, seen: set[bytes]) -> None:
    """Drop who would make its neighbours leave the round: low-order points, keys that somebody else announced."""
    probe = crypto.load(bytes(KEY))
    for key in (pad, channel):
        crypto.agree(probe, key)
        if key in seen:
            raise ProtocolError("Two clients announced the same key.")
        seen.add(key)


def _kind(client: int, survivors: frozenset[int]) -> bytes:
    return bytes([Kind.SEED if client in survivors else Kind.KEY])


def _same(got: object, expected: object) -> None:
    if got != expected:
        raise ProtocolError("Expected an answer about exactly the clients that were asked about.")
