"""The messages of secure aggregation, and a client's state between two of them, as bytes.

There is a request and a reply in each phase, in frames of `tacit.protocols.kit`.

The kind of a frame is its phase, with the highest bit set in replies, and its body is::

    round u32 | client u32 | binding 32s | fields of the phase

The binding is the session's context until a client knows the roster, and from then on a digest of the roster, of the
drawn nonces and of the server's commitment to its challenge. Bodies consist of the tables and sets of
`tacit.wire.packing`. A server does not ask for shares: which of a client's two shares a holder reveals follows from the
survivors, so a message that asks for both cannot be written. What is revealed about several clients is in their order.
"""

import struct
from collections.abc import Iterable, Mapping, Sequence
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
from tacit.protocols.secagg.pads import PAIR, Vector, pack_vector
from tacit.protocols.secagg.parameters import Parameters, SecaggPolicy, SecaggSession
from tacit.protocols.secagg.shares import ELEMENT, NOISE_SHARE, SECRET, SHARE
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

_ADDRESS = struct.Struct("<II32s")
PREAMBLE = kit.HEADER + _ADDRESS.size
_REPLY_BIT = 0x80
KEYS = 2 * KEY  # a pad key and a channel key, both X25519
_PAIR = 8  # bytes of two clients' numbers


class Phase(IntEnum):
    """What the server requests from a client, in this order."""

    ANNOUNCE = 0  # fresh public keys (Bonawitz et al.: AdvertiseKeys), and a commitment to nonces
    DRAW = 1  # a nonce, from which the clients' order follows; only if the graph is sparse
    SHARE = 2  # corrections for the secrets of pads (ShareKeys) and of surplus noise
    CHECK = 3  # whether the others' shares fit
    UPLOAD = 4  # the padded vector (MaskedInputCollection)
    AGREE = 5  # a signature on the set of survivors; against an active server only (ConsistencyCheck)
    OPEN = 6  # the shares that remove pads (Unmasking), and surplus noise
    CLOSED = 7  # the client answers no further request


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


def pack(phase: Phase, direction: Direction, index: int, client: int, binding: bytes, body: bytes) -> bytes:
    """One frame as bytes."""
    kind = phase | _REPLY_BIT if direction is Direction.REPLY else phase
    return kit.pack_frame(ProtocolId.SECAGG, kind, _ADDRESS.pack(index, client, binding), body)


def unpack(data: bytes, limit: int) -> SecaggFrame:
    """Parse a frame; raises `ProtocolError` for anything but one whole, well-formed frame."""
    if not PREAMBLE <= len(data) <= limit:
        raise ProtocolError(f"Expected a frame of {PREAMBLE} to {limit} bytes, got {len(data)}.")
    frame = kit.unpack_frame(ProtocolId.SECAGG, data, limit)
    phase, direction = frame.kind & ~_REPLY_BIT, Direction.REPLY if frame.kind & _REPLY_BIT else Direction.REQUEST
    if phase > Phase.OPEN:
        raise ProtocolError(f"Expected a phase of secure aggregation, got {phase}.")
    index, client, binding = _ADDRESS.unpack_from(frame.body)
    return SecaggFrame(Phase(phase), frame.body[_ADDRESS.size :], direction, index, client, binding)


# Statements that clients sign


def announcement_statement(context: bytes, client: int, keys: bytes, committed: bytes) -> bytes:
    """What a client signs when it announces its keys, and its commitment to nonces."""
    return crypto.digest("announced", context, pack_number(client), keys, committed)


def sharers_statement(binding: bytes, members: tuple[int, ...], sharers: frozenset[int]) -> bytes:
    """What a client signs with its upload: with whom it may have padded."""
    return crypto.digest("padded", binding, pack_subset(sharers, members))


def agreement_statement(
    binding: bytes, members: tuple[int, ...], sharers: frozenset[int], survivors: frozenset[int]
) -> bytes:
    """What a client signs about the sharers and the survivors."""
    return crypto.digest("agreed", binding, pack_subset(sharers, members), pack_subset(survivors, members))


# Bodies and their sizes


@dataclass(frozen=True)
class Widths:
    """Bytes of what a client announces, and of its entries in rosters."""

    announcement: int
    entry: int
    digest: int = KEY + NONCE

    @classmethod
    def of(cls, p: Parameters) -> "Widths":
        signature = SIGNATURE if p.threat_model is ThreatModel.ACTIVE_SERVER else 0
        return cls(KEYS + KEY * p.draws + signature, KEYS + NONCE * p.draws + signature)


@dataclass(frozen=True)
class Roster:
    """The clients that announced, as one of them receives it.

    Attributes:
        challenge: a commitment to the challenge of the phase `CHECK`.
        entries: keys, nonces and signatures of the recipient's neighbours and of itself.
        digests: of the keys of all others, and their nonces.
    """

    challenge: bytes
    entries: dict[int, bytes]
    digests: dict[int, bytes]

    def pack(self, p: Parameters) -> bytes:
        """As the body of a frame."""
        widths = Widths.of(p)
        return self.challenge + pack_table(self.entries, widths.entry) + pack_table(self.digests, widths.digest)

    @classmethod
    def read(cls, reader: Reader, p: Parameters) -> "Roster":
        widths = Widths.of(p)
        roster = cls(reader.take(KEY), reader.table(widths.entry, p.cohort), reader.table(widths.digest, p.cohort))
        reader.expect_end()
        if roster.entries.keys() & roster.digests.keys():
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
    """The clients whose shares at a holder are disputed, as in its request to upload."""
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
    p: Parameters, holders: int, corrected: int, quorum: int, revealed: int, disputes: int
) -> dict[Phase, Traffic]:
    """Bytes of one client by phase, from the number of entries in its tables."""
    others, upload = p.cohort - holders, packed_size(p.dim, p.bits) + SECRET * (holders - 1)
    widths, bitset = Widths.of(p), (p.cohort + 7) // 8
    active = p.threat_model is ThreatModel.ACTIVE_SERVER
    consent = active * (bitset + SIGNATURE * (quorum + p.draws * (holders - 1)))
    roster = KEY + table_size(holders, widths.entry) + table_size(others, widths.digest)
    bodies = {
        Phase.ANNOUNCE: (widths.announcement, 0),
        Phase.DRAW: (NONCE, KEY),
        Phase.SHARE: (ELEMENT * shares.columns(p) * corrected, roster),
        Phase.CHECK: (shares.ANSWER * holders, KEY + bitset),
        Phase.UPLOAD: (
            SIGNATURE * (active and p.draws) + upload + SHARE * corrected * disputes,
            bitset + table_size(disputes, 0),
        ),
        Phase.AGREE: (SIGNATURE, bitset),
        Phase.OPEN: (
            revealed * holders + SHARE * holders * disputes,
            bitset + table_size(holders * disputes, _PAIR) + consent,
        ),
    }
    return {phase: Traffic(PREAMBLE + up, PREAMBLE + down) for phase, (up, down) in bodies.items()}


@lru_cache(maxsize=64)
def max_sizes(p: Parameters) -> Mapping[Phase, Traffic]:
    """The longest valid frames, on a complete graph."""
    return _frame_sizes(p, p.cohort, p.cohort, p.cohort, SHARE + NOISE_SHARE, p.colluding)


def max_reply_size(p: Parameters) -> int:
    """The longest valid reply of any phase."""
    return max(size.up for size in max_sizes(p).values())


def phase_bytes(p: Parameters) -> dict[Phase, Traffic]:
    """Bytes of each client by phase if nobody drops out or lies; all clients have equally many neighbours.

    Example:
        >>> sizes = phase_bytes(Parameters(cohort=100, dim=8316))
        >>> sizes[Phase.UPLOAD].up - 4 * 8316, sum(each.up + each.down for each in sizes.values())
        (920, 54645)
    """
    graph = p.graph(p.cohort)
    holders = graph.degree + 1
    revealed = SHARE + (NOISE_SHARE if shares.level_of(p, p.cohort) else 0)
    sizes = _frame_sizes(p, holders, holders - graph.threshold + 1, graph.quorum, revealed, 0)
    if p.threat_model is not ThreatModel.ACTIVE_SERVER:
        del sizes[Phase.AGREE]
    if not p.draws:
        del sizes[Phase.DRAW]
    return sizes


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class SecaggClientState:
    """What a client keeps between two messages. It contains secrets: store its bytes as securely as the client's data.

    Data that is no longer needed is removed from the next state.

    Attributes:
        session: the round, as this client sees it.
        client: its number.
        min_announced: clients that must announce, by its policy.
        phase: the only request that it will answer next.
        binding: what the next request must carry: the context, then the digest of roster, order and challenge.
        root: from which its secrets derive.
        identity: its Ed25519 secret; empty where identities are not used.
        directory: the identities known in advance, by client.
        vector: its contribution to the sum, packed; empty until it is set.
        draws: orders that it has helped to draw.
        roster: the digest of the roster for which it has opened a nonce.
        members: the roster, once it is known.
        order: the seed of the clients' order.
        challenge: the server's commitment to its challenge.
        pads: the secrets of its pads with its neighbours.
        deals: the keys of the holders' shares of its secrets, until it has uploaded.
        holds: the keys of its shares of others' secrets, and of its own.
        sharers: with whom it has padded.
        survivors: who uploaded, once this client has signed it.
        noise_seed: of its surplus noise; empty without such noise, and once it is shared.
        used: the contexts of sessions that it has joined before.
    """

    session: SecaggSession
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
    pads: Table = field(default_factory=dict)
    deals: Table = field(default_factory=dict)
    holds: Table = field(default_factory=dict)
    sharers: frozenset[int] = frozenset()
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
    def circle(self) -> Circle:
        """The clients in their order, once the roster is known."""
        return Circle(self.members, self.session.parameters.graph(len(self.members)), self.order)

    def to_bytes(self) -> bytes:
        """For storage between two messages."""
        numbers = map(pack_number, (self.client, self.min_announced, self.phase, self.draws))
        keys = (self.root, self.identity, self.noise_seed, self.roster, self.order, self.challenge)
        used = dict(enumerate(self.used))
        tables = [pack_table(table, KEY) for table in (self.directory, self.deals, self.holds, used)]
        tables.append(pack_table(self.pads, PAIR))
        roster = pack_table(dict.fromkeys(self.members, b""), 0)
        roster += pack_subset(self.sharers, self.members) + pack_subset(self.survivors, self.members)
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
            survivors=reader.subset(members),
            client=reader.number(),
            min_announced=reader.number(),
            phase=Phase(reader.number()),
            draws=reader.number(),
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
            pads=reader.table(PAIR, CLIENT_LIMIT),
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
    noise_seed: bytes = b"",
    earlier: SecaggClientState | None = None,
    entropy: Entropy = crypto.system_entropy,
) -> SecaggClientState:
    """The state of a client that was invited to a round.

    Args:
        session: built from what this client received itself.
        client: its number.
        policy: the minimum security it requires; weaker parameters raise `ProtocolError`.
        identity: its Ed25519 secret; required against an active server.
        directory: Ed25519 public keys of all who may take part, known in advance; required against an active server.
        noise_seed: the seed of the surplus noise in its vector; required if the parameters have such noise.
        earlier: its state of the last round that it joined, which remembers the sessions it has used; None: the first.
        entropy: source of its secrets: the operating system's everywhere but in tests.
    """
    policy.validate(session.parameters)
    used = () if earlier is None else (*earlier.used, earlier.session.context)
    if session.context in used:
        raise ProtocolError("This session was used before. Use another config for every attempt of a round.")
    length = KEY if session.parameters.surplus else 0
    expect(len(noise_seed) == length, f"a noise seed of {length} bytes, got {len(noise_seed)}")
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
        noise_seed=noise_seed,
        used=used,
    )


def set_vector(state: SecaggClientState, vector: Vector) -> SecaggClientState:
    """The state with the client's contribution to the sum: uint32, each value below 2^bits."""
    p = state.session.parameters
    expect(vector.dtype == np.uint32 and vector.shape == (p.dim,), f"a uint32 vector of {p.dim} values")
    expect(int(vector.max()) >> p.bits == 0, f"values below 2^{p.bits}")
    expect(state.phase <= Phase.UPLOAD, "a vector before the upload")
    return replace(state, vector=pack_vector(vector, p.bits))
