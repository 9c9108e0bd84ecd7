"""What travels: five phases, a request and a reply in each, in one strict binary frame.

::

    magic 4s | version u8 | phase u8 | way u8 | zero u8 | round u32 | client u32 | length u32 | checksum u32 | tag 32s
    body

The tag is the context until a client knows the roster, and the roster's digest from then on. Bodies are made of the
tables and sets of `packing`. One table maps a client to one tag and one share: that both shares of a client are asked
for, or given, cannot be written down.
"""

import struct
import zlib
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache

from tacit.protocols.crypto import KEY, SIGNATURE, TAG
from tacit.protocols.secagg import ring, shamir
from tacit.protocols.secagg.errors import ProtocolError
from tacit.protocols.secagg.parameters import Level, Parameters
from tacit.wire.packing import Reader, pack_table, size_table

MAGIC, VERSION = b"TSEC", 1
_HEADER = struct.Struct("<4sBBBBIIII32s")
HEADER = _HEADER.size
KEYS = 2 * KEY  # a pad key and a channel key, both X25519
SHARES = 2 * shamir.SHARE  # of the seed and of the pad key
SEALED = SHARES + TAG
OPENED = 1 + shamir.SHARE


class Phase(IntEnum):
    """What is asked of a client, in this order."""

    ANNOUNCE = 0  # fresh public keys
    SHARE = 1  # sealed shares of seed and pad key
    UPLOAD = 2  # the padded vector
    AGREE = 3  # a signature under who delivered; against an active server only
    OPEN = 4  # shares of what must be taken off
    CLOSED = 5  # nothing any more


class Way(IntEnum):
    """Which way a frame goes."""

    REQUEST = 1
    REPLY = 2


class Kind(IntEnum):
    """Which of a client's two secrets a share is of."""

    SEED = 1  # of its own pad: it delivered
    KEY = 2  # of its pads with others: it did not


@dataclass(frozen=True)
class Frame:
    """A frame that was read, with its body."""

    phase: Phase
    way: Way
    round: int
    client: int
    tag: bytes
    body: memoryview


def pack(phase: Phase, way: Way, number: int, client: int, tag: bytes, body: bytes) -> bytes:
    """One frame of bytes."""
    head = (MAGIC, VERSION, phase, way, 0, number, client, HEADER + len(body))
    checksum = zlib.crc32(body, zlib.crc32(_HEADER.pack(*head, 0, tag)))
    return _HEADER.pack(*head, checksum, tag) + body


def unpack(data: bytes, limit: int) -> Frame:
    """Read a frame; anything else than a whole and well-formed one is a `ProtocolError`."""
    if not HEADER <= len(data) <= limit:
        raise ProtocolError(f"Expected a frame of {HEADER} to {limit} bytes, got {len(data)}.")
    magic, version, phase, way, zero, number, client, length, checksum, tag = _HEADER.unpack_from(data)
    if (magic, version, zero, length) != (MAGIC, VERSION, 0, len(data)) or phase > Phase.OPEN or way not in (1, 2):
        raise ProtocolError(f"Expected a whole frame of version {VERSION}, got other bytes.")
    body = memoryview(data)[HEADER:]
    blank = _HEADER.pack(magic, version, phase, way, zero, number, client, length, 0, tag)
    if zlib.crc32(body, zlib.crc32(blank)) != checksum:
        raise ProtocolError("A frame's checksum does not match: it was damaged on the way.")
    return Frame(Phase(phase), Way(way), number, client, tag, body)


def announcement_width(level: Level) -> int:
    """Bytes of a client's keys, and of its signature where identities are known."""
    return KEYS + (SIGNATURE if level is Level.ACTIVE_SERVER else 0)


@dataclass(frozen=True)
class Roster:
    """Who announced: keys and signatures of a client's neighbours and itself, digests of the others' keys."""

    near: dict[int, bytes]
    far: dict[int, bytes]

    def pack(self, level: Level) -> bytes:
        """As a body."""
        return pack_table(self.near, announcement_width(level)) + pack_table(self.far, KEY)

    @classmethod
    def read(cls, reader: Reader, p: Parameters) -> "Roster":
        """From a body."""
        roster = cls(reader.table(announcement_width(p.level), p.cohort), reader.table(KEY, p.cohort))
        reader.done()
        if roster.near.keys() & roster.far.keys():
            raise ProtocolError("A client stands in the roster twice.")
        return roster


@lru_cache(maxsize=256)
def limit(phase: Phase, way: Way, p: Parameters) -> int:
    """The longest frame of this kind that these parameters allow, with everybody as neighbour."""
    n, sets = p.cohort, (p.cohort + 7) // 8
    requests = {
        Phase.ANNOUNCE: 0,
        Phase.SHARE: size_table(n, announcement_width(p.level)) + size_table(n, KEY),
        Phase.UPLOAD: size_table(n, SEALED),
        Phase.AGREE: sets,
        Phase.OPEN: sets + size_table(n, SIGNATURE) + size_table(n, 1),
    }
    replies = {
        Phase.ANNOUNCE: announcement_width(p.level),
        Phase.SHARE: KEY + size_table(n, SEALED),
        Phase.UPLOAD: ring.size(p.dim, p.bits),
        Phase.AGREE: SIGNATURE,
        Phase.OPEN: size_table(n, OPENED),
    }
    return HEADER + (requests if way is Way.REQUEST else replies)[phase]


def longest(p: Parameters) -> int:
    """The longest reply of any phase."""
    return max(limit(phase, Way.REPLY, p) for phase in Phase if phase is not Phase.CLOSED)


def phases(level: Level) -> tuple[Phase, ...]:
    """Which phases a level has."""
    every = (Phase.ANNOUNCE, Phase.SHARE, Phase.UPLOAD, Phase.AGREE, Phase.OPEN)
    return every if level is Level.ACTIVE_SERVER else tuple(phase for phase in every if phase is not Phase.AGREE)
