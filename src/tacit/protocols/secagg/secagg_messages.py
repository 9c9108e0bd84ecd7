"""The messages of secure aggregation, and a client's state between two of them, as bytes.

There is a request and a reply in each phase, in frames of `tacit.protocols.kit`. An epoch begins with the phases of its
set-up, of which each occurs once. The phases of a round follow, for every round of the epoch.

The kind of a frame is its phase, with the highest bit set in replies, and its body is::

    round u32 | client u32 | binding 16s | fields of the phase

The binding is the session's context until a client knows the roster; then a digest of the roster, of the drawn nonces
and of the server's commitment to its challenge; and in a round, a digest of that, of the round's place in the epoch,
and of the round's session. A frame contains its first half. Bodies consist of the tables and sets of
`tacit.wire.packing`. A server does not ask for shares: which of a client's two shares a holder reveals follows from the
survivors, so a message that asks for both cannot be written. What is revealed about several clients is in their order.
"""

import struct
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import lru_cache

import numpy as np

from tacit.core.state import Traffic
from tacit.errors import ProtocolError, UserError, expect
from tacit.protocols import crypto, kit
from tacit.protocols.crypto import KEY, SIGNATURE, Entropy
from tacit.protocols.kit import ProtocolFrame, ProtocolId, pack_state, read_optional_key, read_state
from tacit.protocols.secagg import shares
from tacit.protocols.secagg.graph import NONCE, Circle, ThreatModel
from tacit.protocols.secagg.pads import Vector, pack_vector
from tacit.protocols.secagg.parameters import Parameters, SecaggPolicy, SecaggSession
from tacit.protocols.secagg.shares import ELEMENT, SECRET, SHARE
from tacit.wire.packing import (
    CLIENT_LIMIT,
    Reader,
    Table,
    pack_chunk,
    pack_number,
    pack_subset,
    pack_table,
    packed_size,
    table_size,
)

_TAG = 16  # bytes of a binding in a frame; keys and signatures are bound to all of it
_ADDRESS = struct.Struct(f"<II{_TAG}s")
PREAMBLE = kit.HEADER + _ADDRESS.size
_REPLY_BIT = 0x80
_PAIR = 8  # bytes of two clients' numbers


class Phase(IntEnum):
    """The server's requests to a client, in this order."""

    ANNOUNCE = 0  # a fresh public key (Bonawitz et al.: AdvertiseKeys), and a commitment to nonces
    DRAW = 1  # a nonce, from which the clients' order follows; only if the graph is sparse
    SHARE = 2  # corrections for the secrets of pads (ShareKeys) and of surplus noise
    CHECK = 3  # whether the others' shares fit
    CONFIRM = 4  # a signature on the sharers, with whom all clients pad in every round; the end of the set-up
    UPLOAD = 5  # the padded vector (MaskedInputCollection)
    AGREE = 6  # a signature of the committee on the survivors; against an active server only (ConsistencyCheck)
    OPEN = 7  # the shares that remove pads (Unmasking), and surplus noise
    CLOSED = 8  # the client answers no further request in this round


class Direction(IntEnum):
    """From server to client, or back."""

    REQUEST = 1
    REPLY = 2


@dataclass(frozen=True)
class SecaggFrame(ProtocolFrame[Phase]):
    """A parsed frame, whose kind is its phase, and its address."""

    direction: Direction
    round: int
    client: int
    binding: bytes

    def is_bound(self, binding: bytes) -> bool:
        """Whether it belongs to what this binding stands for."""
        return self.binding == binding[:_TAG]


def pack(phase: Phase, direction: Direction, index: int, client: int, binding: bytes, body: bytes) -> bytes:
    """One frame as bytes."""
    kind = phase | _REPLY_BIT if direction is Direction.REPLY else phase
    return kit.pack_frame(ProtocolId.SECAGG, kind, _ADDRESS.pack(index, client, binding[:_TAG]), body)


def unpack(data: bytes, limit: int) -> SecaggFrame:
    """Parse a frame; raises `ProtocolError` for anything but one whole, well-formed frame."""
    if not PREAMBLE <= len(data) <= limit:
        raise ProtocolError(f"Expected a frame of {PREAMBLE} to {limit} bytes, got {len(data)}.")
    frame = kit.unpack_frame(ProtocolId.SECAGG, data, limit)
    phase, direction = frame.kind & ~_REPLY_BIT, Direction.REPLY if frame.kind & _REPLY_BIT else Direction.REQUEST
    if phase >= Phase.CLOSED:
        raise ProtocolError(f"Expected a phase of secure aggregation, got {phase}.")
    index, client, binding = _ADDRESS.unpack_from(frame.body)
    return SecaggFrame(Phase(phase), frame.body[_ADDRESS.size :], direction, index, client, binding)


# Statements that clients sign


def announcement_statement(context: bytes, client: int, key: bytes, committed: bytes) -> bytes:
    """The statement that a client signs with its announcement: its key, and its commitment to nonces."""
    return crypto.digest("announced", context, pack_number(client), key, committed)


def sharers_statement(binding: bytes, members: tuple[int, ...], sharers: frozenset[int]) -> bytes:
    """The statement that a client signs at the end of the set-up: the clients with whom it will pad."""
    return crypto.digest("sharers", binding, pack_subset(sharers, members))


def agreement_statement(binding: bytes, members: tuple[int, ...], survivors: frozenset[int]) -> bytes:
    """The statement that a client signs about the survivors of a round."""
    return crypto.digest("agreed", binding, pack_subset(survivors, members))


# Bodies and their sizes


@dataclass(frozen=True)
class Widths:
    """Bytes of a client's announcement, and of its entries in rosters."""

    announcement: int
    entry: int

    @classmethod
    def of(cls, p: Parameters) -> "Widths":
        signature = SIGNATURE if p.threat_model is ThreatModel.ACTIVE_SERVER else 0
        return cls(KEY + KEY * p.draws + signature, KEY + NONCE * p.draws + signature)


@dataclass(frozen=True)
class Roster:
    """The clients that announced, as one of them receives it.

    Attributes:
        challenge: a commitment to the challenge of the phase `CHECK`.
        entries: key, nonce and signature of each of the recipient's neighbours and of itself.
        nonces: of all others, whose keys it does not need.
    """

    challenge: bytes
    entries: dict[int, bytes]
    nonces: dict[int, bytes]

    def pack(self, p: Parameters) -> bytes:
        """As the body of a frame."""
        return self.challenge + pack_table(self.entries, Widths.of(p).entry) + pack_table(self.nonces, NONCE)

    @classmethod
    def read(cls, reader: Reader, p: Parameters) -> "Roster":
        width = Widths.of(p).entry
        roster = cls(reader.take(KEY), reader.table(width, p.cohort), reader.table(NONCE, p.cohort))
        reader.expect_end()
        if roster.entries.keys() & roster.nonces.keys():
            raise ProtocolError("A client is in the roster twice.")
        return roster


def read_signatures(reader: Reader, members: tuple[int, ...], limit: int) -> dict[int, bytes]:
    """Signatures of some members, as `pack_signatures` packs them."""
    signers = sorted(reader.subset(members))
    if len(signers) > limit:
        raise ProtocolError(f"Expected at most {limit} signatures, got {len(signers)}.")
    return {signer: reader.take(SIGNATURE) for signer in signers}


def pack_signatures(signatures: Mapping[int, bytes], members: tuple[int, ...]) -> bytes:
    """Signatures of some members."""
    return pack_subset(frozenset(signatures), members) + b"".join(signatures[j] for j in sorted(signatures))


def pack_disputed(clients: Iterable[int]) -> bytes:
    """The clients whose shares at a holder are disputed, as in its request to confirm the sharers."""
    return pack_table(dict.fromkeys(sorted(clients), b""), 0)


def read_disputed(reader: Reader, p: Parameters) -> frozenset[int]:
    """The inverse of `pack_disputed`."""
    return frozenset(reader.table(0, p.colluding))


def pack_spares(pairs: Sequence[tuple[int, int]]) -> bytes:
    """The spare secrets of which a holder opens its shares: those of a client with another one that dropped out."""
    return pack_table({place: b"".join(map(pack_number, pair)) for place, pair in enumerate(pairs)}, _PAIR)


def read_spares(reader: Reader, p: Parameters) -> list[tuple[int, int]]:
    """The inverse of `pack_spares`."""
    pairs = map(Reader, reader.table(_PAIR, p.cohort * p.colluding).values())
    return [(pair.number(), pair.number()) for pair in pairs]


def _frame_sizes(
    p: Parameters, holders: int, corrected: int, quorum: int, disputes: int, *, noisy: bool
) -> dict[Phase, Traffic]:
    """Bytes of one client by phase, from the number of entries in its tables.

    `noisy`: with the shares of its noise, and of that of all its neighbours.
    """
    others = p.cohort - holders
    upload = packed_size(p.dim, p.bits) + SECRET * (holders // 2) + KEY * noisy + SHARE * corrected * disputes
    widths, bitset = Widths.of(p), (p.cohort + 7) // 8
    active = p.threat_model is ThreatModel.ACTIVE_SERVER
    consent = active * (bitset + SIGNATURE * quorum)
    roster = KEY + table_size(holders, widths.entry) + table_size(others, NONCE)
    bodies = {
        Phase.ANNOUNCE: (widths.announcement, 0),
        Phase.DRAW: (NONCE, KEY),
        Phase.SHARE: (ELEMENT * shares.columns(p, noisy=noisy) * corrected, roster),
        Phase.CHECK: (shares.ANSWER * holders, KEY + bitset),
        Phase.CONFIRM: (SIGNATURE * active, bitset + table_size(disputes, 0)),
        Phase.UPLOAD: (upload, consent),
        Phase.AGREE: (SIGNATURE, bitset),
        Phase.OPEN: (
            (1 + noisy) * SHARE * holders + SHARE * holders * disputes,
            bitset + table_size(holders * disputes, _PAIR) + consent,
        ),
    }
    return {phase: Traffic(PREAMBLE + up, PREAMBLE + down) for phase, (up, down) in bodies.items()}


@lru_cache(maxsize=64)
def max_sizes(p: Parameters) -> Mapping[Phase, Traffic]:
    """The longest valid frames, on a complete graph."""
    return _frame_sizes(p, p.cohort, p.cohort, p.cohort, p.colluding, noisy=True)


def max_reply_size(p: Parameters) -> int:
    """The longest valid reply of any phase."""
    return max(size.up for size in max_sizes(p).values())


def phase_bytes(p: Parameters, turn: int = 0) -> dict[Phase, Traffic]:
    """Bytes of a client by phase, if it is asked and nobody drops out or lies, without surplus noise.

    Of round number `turn` of an epoch, with the set-up if it is the first. Clients differ only in what they are asked
    (`count_asked`); if their number is even and the graph complete, half of them upload `SECRET` bytes less.

    Example:
        >>> sizes = phase_bytes(Parameters(cohort=100, dim=8316))
        >>> sizes[Phase.UPLOAD].up - 4 * 8316, sum(each.up + each.down for each in sizes.values())
        (440, 49774)
    """
    graph = p.graph(p.cohort)
    holders = graph.degree + 1
    sizes = _frame_sizes(p, holders, holders - graph.threshold + 1, graph.quorum, 0, noisy=False)
    if p.threat_model is not ThreatModel.ACTIVE_SERVER:
        del sizes[Phase.AGREE]
    if not p.draws:
        del sizes[Phase.DRAW]
    if turn:
        sizes = {phase: size for phase, size in sizes.items() if phase >= Phase.UPLOAD}
        sizes[Phase.UPLOAD] = replace(sizes[Phase.UPLOAD], down=PREAMBLE)
    return sizes


def count_asked(p: Parameters, phase: Phase, turn: int = 0) -> int:
    """How many clients a server asks in a phase if nobody drops out or lies."""
    graph = p.graph(p.cohort)
    if phase is Phase.AGREE:
        return graph.committee
    return len(first_openers(p, turn, Circle(tuple(range(p.cohort)), graph, b""))) if phase is Phase.OPEN else p.cohort


def first_openers(p: Parameters, turn: int, circle: Circle, openers: Collection[int] | None = None) -> frozenset[int]:
    """Of the clients that could open shares in this round, those that a server asks first.

    They are as few as suffice to be certain of every secret, if all of them answer and none lies; the others are asked
    if they do not. In an epoch's last round all are asked, after which they keep no secret of it.

    Args:
        p: of the protocol.
        turn: the number of the round.
        circle: the clients and their neighbours.
        openers: who could open; None: everybody.
    """
    every = frozenset(circle.members if openers is None else openers)
    return every if turn == p.rounds - 1 else circle.enough_holders(every, certain_shares(p, circle))


def certain_shares(p: Parameters, circle: Circle, *, final: bool = False) -> int:
    """If this many shares fit together, they are right: honest holders among them determine the secret.

    `final`: nobody else can be asked. Where fewer wrong shares are corrected than clients may lie, as between few
    sites, this many have to do.
    """
    graph = circle.parameters
    return graph.threshold + (graph.max_wrong if final or graph.distances else p.colluding)


def by_part(sizes: Mapping[Phase, Traffic]) -> dict[str, Traffic]:
    """The traffic of an epoch's set-up, and of each phase of its rounds."""
    parts: dict[str, Traffic] = {}
    for phase, size in sorted(sizes.items()):
        name = phase.name.lower() if phase >= Phase.UPLOAD else "set-up"
        parts[name] = parts.get(name, Traffic()) + size
    return parts


def cohort_bytes(p: Parameters, turn: int = 0, circle: Circle | None = None) -> dict[Phase, Traffic]:
    """Bytes of all clients by phase if nobody drops out or lies, with surplus noise.

    Some clients share keys for the seeds of their noise and upload these seeds, and the keys' holders open them. How
    many of the holders are asked to depends on the order: that of `circle`; None: the mean over all orders, rounded.
    """
    graph = p.graph(p.cohort)
    sizes = {phase: size * count_asked(p, phase, turn) for phase, size in phase_bytes(p, turn).items()}
    if turn == 0:
        sizes[Phase.SHARE] += Traffic(up=SHARE * p.surplus * p.rounds * (graph.degree + 2 - graph.threshold))
    sizes[Phase.UPLOAD] += Traffic(up=KEY * p.surplus - SECRET * (p.cohort // 2) * (graph.degree % 2))
    if p.surplus:
        held = (2 * count_asked(p, Phase.OPEN, turn) * p.surplus * (graph.degree + 1) + p.cohort) // (2 * p.cohort)
        if circle is not None:
            openers, dealers = first_openers(p, turn, circle), shares.noise_dealers(p, circle.members)
            near = circle.neighbourhoods()
            held = sum(len(openers & (near[dealer] | {dealer})) for dealer in dealers)
        sizes[Phase.OPEN] += Traffic(up=SHARE * held)
    return sizes


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class SecaggClientState:
    """A client's memory between two messages. It contains secrets: store its bytes as securely as the client's data.

    Data that is no longer needed is removed from the next state: what concerns one round when the round ends, and what
    concerns the epoch when its last round ends.

    Attributes:
        session: the round, as this client sees it.
        turn: its number in the epoch.
        client: its number.
        min_announced: clients that must announce, by its policy.
        phase: the only request that it will answer next.
        binding: what requests of the set-up must carry: the context, then the digest of roster, order and challenge.
        root: from which its secrets derive.
        identity: its Ed25519 secret; empty where identities are not used.
        directory: the identities known in advance, by client.
        vector: its contribution to the sum, packed; empty until it is set.
        draws: orders that it has helped to draw.
        roster: the digest of the roster for which it has opened a nonce.
        members: the roster, once it is known.
        order: the seed of the clients' order.
        challenge: the server's commitment to its challenge.
        deals: the keys of the holders' shares of its secrets.
        holds: the keys of its shares of others' secrets, and of its own.
        sharers: with whom it pads.
        disputed: neighbours with whom it disagrees about a share.
        confirmed: whether it has seen that a quorum has signed these sharers.
        survivors: who uploaded, once this client has signed it.
        noise_seed: of its noise; empty without surplus noise, and once it has uploaded.
        used: the contexts of sessions that it has joined before.
    """

    session: SecaggSession
    turn: int = 0
    client: int
    min_announced: int
    phase: Phase = Phase.ANNOUNCE
    binding: bytes
    root: bytes
    identity: bytes = b""
    directory: Table = field(default_factory=dict)
    vector: bytes = b""
    draws: int = 0
    roster: bytes = b""
    members: tuple[int, ...] = ()
    order: bytes = b""
    challenge: bytes = b""
    deals: Table = field(default_factory=dict)
    holds: Table = field(default_factory=dict)
    sharers: frozenset[int] = frozenset()
    disputed: frozenset[int] = frozenset()
    confirmed: bool = False
    survivors: frozenset[int] = frozenset()
    noise_seed: bytes = b""
    used: tuple[bytes, ...] = ()

    def __repr__(self) -> str:  # no secrets in logs
        return f"SecaggClientState(client={self.client}, round={self.session.round}, phase={self.phase.name})"

    @property
    def active_server(self) -> bool:
        """Whether the server may send anything, so that messages are signed."""
        return self.session.parameters.threat_model is ThreatModel.ACTIVE_SERVER

    @property
    def near(self) -> frozenset[int]:
        """Its neighbours; among the sharers, once they are known."""
        return frozenset(self.holds) - {self.client}

    @property
    def circle(self) -> Circle:
        """The clients in their order, once the roster is known."""
        return Circle(self.members, self.session.parameters.graph(len(self.members)), self.order)

    @property
    def expected_binding(self) -> bytes:
        """What the next request must carry."""
        in_round = self.phase >= Phase.UPLOAD
        return self.session.round_binding(self.binding, self.turn) if in_round else self.binding

    @property
    def noise_dealers(self) -> frozenset[int]:
        """The clients whose noise may be removed, once the roster is known."""
        return shares.noise_dealers(self.session.parameters, self.members)

    def to_bytes(self) -> bytes:
        """For storage between two messages."""
        numbers = map(
            pack_number, (self.client, self.min_announced, self.phase, self.draws, self.turn, int(self.confirmed))
        )
        keys = (self.root, self.identity, self.noise_seed, self.roster, self.order, self.challenge)
        used = dict(enumerate(self.used))
        tables = [pack_table(table, KEY) for table in (self.directory, self.deals, self.holds, used)]
        roster = pack_table(dict.fromkeys(self.members, b""), 0)
        roster += b"".join(pack_subset(each, self.members) for each in (self.sharers, self.disputed, self.survivors))
        fields = (*numbers, self.binding, *map(pack_chunk, (*keys, self.vector)), *tables)
        return pack_state(ProtocolId.SECAGG, self.session.pack(), roster, *fields)

    @classmethod
    def from_bytes(cls, data: bytes) -> "SecaggClientState":
        """The inverse of `to_bytes`; raises `ProtocolError` for other bytes."""
        return read_state(ProtocolId.SECAGG, data, cls._read)

    @classmethod
    def _read(cls, reader: Reader) -> "SecaggClientState":
        session, members = SecaggSession.read(reader), tuple(reader.table(0, CLIENT_LIMIT))
        return cls(
            session=session,
            members=members,
            sharers=reader.subset(members),
            disputed=reader.subset(members),
            survivors=reader.subset(members),
            client=reader.number(),
            min_announced=reader.number(),
            phase=Phase(reader.number()),
            draws=reader.number(),
            turn=reader.number(),
            confirmed=bool(reader.number()),
            binding=reader.take(KEY),
            root=read_optional_key(reader),
            identity=read_optional_key(reader),
            noise_seed=read_optional_key(reader),
            roster=read_optional_key(reader),
            order=read_optional_key(reader),
            challenge=read_optional_key(reader),
            vector=reader.chunk(packed_size(session.parameters.dim, session.parameters.bits)),
            directory=reader.table(KEY, CLIENT_LIMIT),
            deals=reader.table(KEY, CLIENT_LIMIT),
            holds=reader.table(KEY, CLIENT_LIMIT),
            used=tuple(reader.table(KEY, CLIENT_LIMIT).values()),
        )


def new_secret(entropy: Entropy = crypto.system_entropy) -> bytes:
    """A fresh Ed25519 identity, or a seed of surplus noise for a vector that has none."""
    return entropy(KEY)


def join_round(
    session: SecaggSession,
    client: int,
    policy: SecaggPolicy,
    *,
    identity: bytes = b"",
    directory: Mapping[int, bytes] | None = None,
    earlier: SecaggClientState | None = None,
    entropy: Entropy = crypto.system_entropy,
) -> SecaggClientState:
    """The state of a client that was invited to an epoch, for its first round.

    Args:
        session: of that round, built from what this client received itself.
        client: its number.
        policy: the minimum security it requires; weaker parameters raise `ProtocolError`.
        identity: its Ed25519 secret; required against an active server.
        directory: Ed25519 public keys of all who may take part, known in advance; required against an active server.
        earlier: its state of the last round that it joined, which remembers the sessions it has used; None: the first.
        entropy: source of its secrets: the operating system's everywhere but in tests.
    """
    policy.validate(session.parameters)
    used = () if earlier is None else (*earlier.used, earlier.session.context)
    if session.context in used:
        raise ProtocolError("This session was used before. Use another config for every attempt of a round.")
    expect(0 <= client < CLIENT_LIMIT, f"0 <= client={client} < 2^32")
    public_keys = dict(directory or {})
    if session.parameters.threat_model is ThreatModel.ACTIVE_SERVER and (
        not identity or public_keys.get(client) != crypto.public_identity(identity)
    ):
        raise UserError("Expected an identity listed in the directory: against an active server, keys are signed.")
    return SecaggClientState(
        session=session,
        client=client,
        min_announced=max(policy.min_cohort, session.parameters.min_survivors),
        binding=session.context,
        root=entropy(KEY),
        identity=identity,
        directory=public_keys,
        used=used,
    )


def next_round(state: SecaggClientState, session: SecaggSession, turn: int) -> SecaggClientState:
    """The state for a later round of the epoch, whether or not the client took part in those before.

    Args:
        state: the client's last one of this epoch.
        session: the round, built from what this client received itself.
        turn: the number of the round in the epoch, counted from 0; each only once, in ascending order.

    Raises:
        ProtocolError: the client has not completed the set-up, or the round is not a later one of the same epoch.
    """
    before, after = (replace(each.parameters, dim=1, bits=1) for each in (state.session, session))
    if not state.sharers:
        raise ProtocolError("This client has not completed the set-up of an epoch, or the epoch is over.")
    if before != after or session.run != state.session.run or not state.turn < turn < after.rounds:
        raise ProtocolError(f"Expected a round of the same epoch after number {state.turn}, got number {turn}.")
    empty: frozenset[int] = frozenset()
    return replace(state, session=session, turn=turn, phase=Phase.UPLOAD, vector=b"", noise_seed=b"", survivors=empty)


def set_vector(state: SecaggClientState, vector: Vector, noise_seed: bytes = b"") -> SecaggClientState:
    """The state with the client's contribution to the sum.

    Args:
        state: before the upload.
        vector: uint32, each value below 2^bits.
        noise_seed: the seed of the noise in the vector; required if the parameters have surplus noise.
    """
    p = state.session.parameters
    length = KEY if p.surplus else 0
    expect(len(noise_seed) == length, f"a noise seed of {length} bytes, got {len(noise_seed)}")
    expect(vector.dtype == np.uint32 and vector.shape == (p.dim,), f"a uint32 vector of {p.dim} values")
    expect(int(vector.max()) >> p.bits == 0, f"values below 2^{p.bits}")
    expect(state.phase <= Phase.UPLOAD, "a vector before the upload")
    return replace(state, vector=pack_vector(vector, p.bits), noise_seed=noise_seed)
