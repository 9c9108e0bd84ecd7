"""What travels between host, enclave and clients: one strict frame, a verb and a body.

::

    magic 4s | version u8 | verb u8 | zero u16 | length u64      16 bytes
    body

The length is compared with a limit before anything is read. Nothing in a frame names a class or a module.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

from tacit.errors import ProtocolError
from tacit.protocols.enclave.errors import RefusedError
from tacit.wire.packing import Reader

MAGIC, VERSION = b"TENC", 1
_HEADER = struct.Struct("<4sBBHQ")
HEADER = _HEADER.size
MOST = 1 << 31  # bytes of any frame


class Verb(IntEnum):
    """What a frame asks for, or answers."""

    # from the host to the enclave
    ATTEST = 1  # a nonce and the head that a client remembers
    OPEN = 2  # a round: who may upload what
    DELIVERY = 3  # an upload, and from whom it came
    CLOSE = 4  # aggregate what there is
    END = 5  # stop
    # from the enclave to the host
    EVIDENCE = 16
    OPENED = 17
    RECEIPT = 18
    RELEASE = 19
    REFUSED = 20
    # from the host to a client
    CHALLENGE = 32  # draw a nonce
    PROVE = 33  # evidence that answers it
    DELIVER = 34  # send what you hold for this round
    # from a client to the host
    NONCE = 48
    ADMITTED = 49
    UPLOAD = 50


@dataclass(frozen=True)
class Frame:
    """A frame that was read."""

    verb: Verb
    body: memoryview

    def reader(self, verb: Verb) -> Reader:
        """Its body, if it is the answer that was asked for; a refusal becomes an error with the enclave's words."""
        if self.verb is Verb.REFUSED:
            raise RefusedError(bytes(self.body).decode("utf-8", "replace"))
        if self.verb is not verb:
            raise ProtocolError(f"Expected {verb.name.lower()}, got {self.verb.name.lower()}.")
        return Reader(self.body)


def pack(verb: Verb, body: bytes = b"") -> bytes:
    """One frame of bytes."""
    return _HEADER.pack(MAGIC, VERSION, verb, 0, HEADER + len(body)) + body


def unpack(data: bytes, limit: int = MOST) -> Frame:
    """Read a frame; anything else than a whole and well-formed one is a `ProtocolError`."""
    if not HEADER <= len(data) <= limit:
        raise ProtocolError(f"Expected a frame of {HEADER} to {limit} bytes, got {len(data)}.")
    verb, length = _head(data[:HEADER], limit)
    if length != len(data):
        raise ProtocolError(f"Expected a frame of {length} bytes, got {len(data)}: it was cut or extended.")
    return Frame(verb, memoryview(data)[HEADER:])


def receive(take: Callable[[int], bytes], limit: int) -> bytes:
    """One frame from a stream; `take` gives exactly so many bytes. The limit comes before the allocation."""
    head = take(HEADER)
    _, length = _head(head, limit)
    return head + take(length - HEADER)


def _head(head: bytes, limit: int) -> tuple[Verb, int]:
    magic, version, verb, zero, length = _HEADER.unpack(head)
    if (magic, version, zero) != (MAGIC, VERSION, 0) or verb not in Verb.__members__.values():
        raise ProtocolError(f"Expected a frame of version {VERSION}, got other bytes.")
    if not HEADER <= length <= limit:
        raise ProtocolError(f"Expected a frame of {HEADER} to {limit} bytes, got one that says {length}.")
    return Verb(verb), length
