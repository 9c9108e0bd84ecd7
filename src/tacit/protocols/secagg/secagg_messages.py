"""The messages of secure aggregation: five phases, a request and a reply in each, in frames of `tacit.protocols.kit`.

The kind of a frame is its phase, with the highest bit set in replies, and its body is::

    round u32 | client u32 | binding 32s | fields of the phase

The binding is the session's context until a client knows the roster, and the roster's digest from then on. Bodies
consist of the tables and sets of `tacit.wire.packing`. One table maps a client to one share: a message that asks for,
or reveals, both shares of a client cannot be written.
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache

from tacit.errors import ProtocolError
from tacit.protocols import crypto, kit
from tacit.protocols.crypto import KEY, SIGNATURE, TAG
from tacit.protocols.kit import ProtocolFrame, ProtocolId
from tacit.protocols.secagg import noise_seeds, shamir
from tacit.protocols.secagg.graph import ThreatModel
from tacit.protocols.secagg.parameters import Parameters
from tacit.wire.packing import Reader, pack_number, pack_subset, pack_table, packed_size, table_size

_ADDRESS = struct.Struct("<II32s")
HEADER = kit.HEADER + _ADDRESS.size
_REPLY_BIT = 0x80
KEYS = 2 * KEY  # a pad key and a channel key, both X25519
SHARES = 2 * shamir.SHARE  # of the seed and of the pad key
SEALED = SHARES + TAG
REVEALED = 1 + shamir.SHARE


class Phase(IntEnum):
    """What the server requests from a client, in this order."""

    ANNOUNCE = 0  # fresh public keys (Bonawitz et al.: AdvertiseKeys)
    SHARE = 1  # encrypted shares of seed and pad key (ShareKeys), and what opens surplus noise
    UPLOAD = 2  # the padded vector (MaskedInputCollection)
    AGREE = 3  # a signature on the set of survivors; against an active server only (ConsistencyCheck)
    OPEN = 4  # the shares that remove pads (Unmasking), and surplus noise
    CLOSED = 5  # the client answers no further request


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
    return kit.pack_frame(ProtocolId.SECAGG, kind, _ADDRESS.pack(index, client, binding) + body)


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


def announcement_statement(context: bytes, client: int, keys: bytes) -> bytes:
    """What a client signs when it announces its keys."""
    return crypto.digest("announced", context, pack_number(client), keys)


def agreement_statement(binding: bytes, members: tuple[int, ...], survivors: frozenset[int]) -> bytes:
    """What a client signs about the set of survivors."""
    return crypto.digest("agreed", binding, pack_subset(survivors, members))


# Bodies and their sizes


def announcement_width(threat_model: ThreatModel) -> int:
    """Bytes of a client's keys, and of its signature where identities are used."""
    return KEYS + (SIGNATURE if threat_model is ThreatModel.ACTIVE_SERVER else 0)


@dataclass(frozen=True)
class Roster:
    """The clients that announced, as one of them receives it.

    Attributes:
        entries: keys and signatures of the recipient's neighbours and of itself.
        digests: of the keys of all others.
    """

    entries: dict[int, bytes]
    digests: dict[int, bytes]

    def pack(self, threat_model: ThreatModel) -> bytes:
        """As the body of a frame."""
        return pack_table(self.entries, announcement_width(threat_model)) + pack_table(self.digests, KEY)

    @classmethod
    def read(cls, reader: Reader, p: Parameters) -> "Roster":
        roster = cls(reader.table(announcement_width(p.threat_model), p.cohort), reader.table(KEY, p.cohort))
        reader.expect_end()
        if roster.entries.keys() & roster.digests.keys():
            raise ProtocolError("A client is in the roster twice.")
        return roster


@dataclass(frozen=True)
class PhaseBytes:
    """Bytes of one client in one phase, up-link and down-link."""

    up: int
    down: int


def _frame_sizes(
    p: Parameters, neighbours: int, holders: int, others: int, signatures: int, published: int
) -> dict[Phase, PhaseBytes]:
    """Bytes of one client by phase, from the number of entries in its tables."""
    dealing = noise_seeds.dealing_size(p.surplus, published)
    opened = table_size(holders, shamir.SHARE) if p.surplus else 0
    width, bitset = announcement_width(p.threat_model), (p.cohort + 7) // 8
    consent = table_size(signatures, SIGNATURE) if p.threat_model is ThreatModel.ACTIVE_SERVER else 0
    bodies = {
        Phase.ANNOUNCE: (width, 0),
        Phase.SHARE: (
            KEY + dealing + table_size(neighbours, SEALED),
            table_size(holders, width) + table_size(others, KEY),
        ),
        Phase.UPLOAD: (packed_size(p.dim, p.bits), table_size(neighbours, SEALED)),
        Phase.AGREE: (SIGNATURE, bitset),
        Phase.OPEN: (table_size(holders, REVEALED) + opened, bitset + consent + table_size(holders, 1)),
    }
    return {phase: PhaseBytes(HEADER + up, HEADER + down) for phase, (up, down) in bodies.items()}


@lru_cache(maxsize=64)
def max_sizes(p: Parameters) -> Mapping[Phase, PhaseBytes]:
    """The longest valid frames, on a complete graph."""
    return _frame_sizes(p, p.cohort, p.cohort, p.cohort, p.cohort, p.cohort)


def max_reply_size(p: Parameters) -> int:
    """The longest valid reply of any phase."""
    return max(size.up for size in max_sizes(p).values())


def phase_bytes(p: Parameters) -> dict[Phase, PhaseBytes]:
    """Bytes of each client by phase if nobody drops out; all clients have equally many neighbours.

    Example:
        >>> sizes = phase_bytes(Parameters(cohort=100, dim=8316))
        >>> sizes[Phase.UPLOAD].up - 4 * 8316, sum(each.up + each.down for each in sizes.values())
        (56, 56904)
    """
    graph = p.graph(p.cohort)
    holders = graph.degree + 1
    published = holders + 1 - graph.threshold
    sizes = _frame_sizes(p, graph.degree, holders, p.cohort - holders, p.consents(p.cohort) - 1, published)
    if p.threat_model is not ThreatModel.ACTIVE_SERVER:
        del sizes[Phase.AGREE]
    return sizes
