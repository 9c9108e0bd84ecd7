"""The messages of secure aggregation: a request and a reply in each phase, in frames of `tacit.protocols.kit`.

The kind of a frame is its phase, with the highest bit set in replies, and its body is::

    round u32 | client u32 | binding 32s | fields of the phase

The binding is the session's context until a client knows the roster, and from then on a digest of the roster, of the
drawn nonces and of the server's commitment to its challenge. Bodies consist of the tables and sets of
`tacit.wire.packing`. A server does not ask for shares: which of a client's two shares a holder reveals follows from the
survivors, so a message that asks for both cannot be written. What is revealed about several clients is in their order.
"""

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache

from tacit.errors import ProtocolError
from tacit.protocols import crypto, kit
from tacit.protocols.crypto import KEY, SIGNATURE
from tacit.protocols.kit import ProtocolFrame, ProtocolId
from tacit.protocols.secagg import dealing
from tacit.protocols.secagg.dealing import NOISE_SHARE, SECRET, SHARE
from tacit.protocols.secagg.graph import NONCE, ThreatModel
from tacit.protocols.secagg.parameters import Parameters
from tacit.protocols.secagg.shamir import ELEMENT
from tacit.wire.packing import Reader, pack_number, pack_subset, pack_table, packed_size, table_size

_ADDRESS = struct.Struct("<II32s")
HEADER = kit.HEADER + _ADDRESS.size
_REPLY_BIT = 0x80
KEYS = 2 * KEY  # a pad key and a channel key, both X25519
_PAIR = 8  # bytes of two clients' numbers


class Phase(IntEnum):
    """What the server requests from a client, in this order."""

    ANNOUNCE = 0  # fresh public keys (Bonawitz et al.: AdvertiseKeys), and a commitment to nonces
    DRAW = 1  # a nonce, from which the clients' order follows; only if the graph is sparse
    SHARE = 2  # what shares the secrets of pads (ShareKeys) and of surplus noise
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
    if not HEADER <= len(data) <= limit:
        raise ProtocolError(f"Expected a frame of {HEADER} to {limit} bytes, got {len(data)}.")
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
    """The clients whose shares at a holder are disputed, as it is told with the request to upload."""
    return pack_table(dict.fromkeys(sorted(clients), b""), 0)


def read_disputed(reader: Reader, p: Parameters) -> frozenset[int]:
    """The inverse of `pack_disputed`."""
    return frozenset(reader.table(0, p.colluding))


def pack_spares(pairs: Sequence[tuple[int, int]]) -> bytes:
    """Of which spare secrets a holder shall open its shares: those of a client with another one that dropped out."""
    return pack_table({place: b"".join(map(pack_number, pair)) for place, pair in enumerate(pairs)}, _PAIR)


def read_spares(reader: Reader, p: Parameters) -> list[tuple[int, int]]:
    """The inverse of `pack_spares`."""
    pairs = map(Reader, reader.table(_PAIR, p.cohort * p.colluding).values())
    return [(pair.number(), pair.number()) for pair in pairs]


@dataclass(frozen=True)
class PhaseBytes:
    """Bytes of one client in one phase, up-link and down-link."""

    up: int
    down: int


def _frame_sizes(
    p: Parameters, holders: int, corrected: int, quorum: int, revealed: int, disputes: int
) -> dict[Phase, PhaseBytes]:
    """Bytes of one client by phase, from the number of entries in its tables."""
    others, upload = p.cohort - holders, packed_size(p.dim, p.bits) + SECRET * (holders - 1)
    widths, bitset = Widths.of(p), (p.cohort + 7) // 8
    active = p.threat_model is ThreatModel.ACTIVE_SERVER
    consent = active * (bitset + SIGNATURE * (quorum + p.draws * (holders - 1)))
    roster = KEY + table_size(holders, widths.entry) + table_size(others, widths.digest)
    bodies = {
        Phase.ANNOUNCE: (widths.announcement, 0),
        Phase.DRAW: (NONCE, KEY),
        Phase.SHARE: (ELEMENT * dealing.columns(p) * corrected, roster),
        Phase.CHECK: (dealing.ANSWER * holders, KEY + bitset),
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
    return {phase: PhaseBytes(HEADER + up, HEADER + down) for phase, (up, down) in bodies.items()}


@lru_cache(maxsize=64)
def max_sizes(p: Parameters) -> Mapping[Phase, PhaseBytes]:
    """The longest valid frames, on a complete graph."""
    return _frame_sizes(p, p.cohort, p.cohort, p.cohort, SHARE + NOISE_SHARE, p.colluding)


def max_reply_size(p: Parameters) -> int:
    """The longest valid reply of any phase."""
    return max(size.up for size in max_sizes(p).values())


def phase_bytes(p: Parameters) -> dict[Phase, PhaseBytes]:
    """Bytes of each client by phase if nobody drops out or lies; all clients have equally many neighbours.

    Example:
        >>> sizes = phase_bytes(Parameters(cohort=100, dim=8316))
        >>> sizes[Phase.UPLOAD].up - 4 * 8316, sum(each.up + each.down for each in sizes.values())
        (920, 54645)
    """
    graph = p.graph(p.cohort)
    holders = graph.degree + 1
    revealed = SHARE + (NOISE_SHARE if dealing.level_of(p, p.cohort) else 0)
    sizes = _frame_sizes(p, holders, holders - graph.threshold + 1, graph.quorum, revealed, 0)
    if p.threat_model is not ThreatModel.ACTIVE_SERVER:
        del sizes[Phase.AGREE]
    if not p.draws:
        del sizes[Phase.DRAW]
    return sizes
