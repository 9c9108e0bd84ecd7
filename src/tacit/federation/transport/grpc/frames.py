"""Frames: messages of any length in parts of at most 1 MiB, whose receiver knows the length before it stores anything.

A frame is a header (kind, number, length of the whole message) and a part of the message. All parts but the last are
full, so that a message has a known number of frames. A receiver accepts a closed list of kinds, each up to a limit, and
drops what nobody waits for any more. It does no I/O.
"""

import io
import re
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from tacit.errors import ProtocolError

FRAME_HEADER = struct.Struct("<B16sQ")  # kind, number, bytes of the whole message
FRAME_BYTES = 1 << 20  # bytes of a frame without its header
NUMBER = 16  # bytes that identify a request; random
NO_NUMBER = bytes(NUMBER)
MAX_REQUESTS = 4  # that a site has at once: those it works on, and those whose reply the server has not acknowledged
MAX_VERB = 20
_VERB = re.compile(rb"[a-z ]+")


class Kind(IntEnum):
    """The kinds of messages."""

    CHALLENGE = 1  # the server's nonce
    HELLO = 2  # the site's answer, signed
    WELCOME = 3  # the hello was accepted; the numbers of the requests that the server still waits for
    REQUEST = 4  # a verb, and bytes for the site's handler
    FORGET = 5  # the reply has arrived, or nobody waits for it any more
    PING = 6  # does the process answer?
    REPLY = 7  # the handler's answer
    ERROR = 8  # there is no answer; the site's own log says why
    PONG = 9  # it does


FROM_SERVER = (Kind.WELCOME, Kind.REQUEST, Kind.FORGET, Kind.PING)
FROM_SITE = (Kind.REPLY, Kind.ERROR, Kind.PONG)


@dataclass(frozen=True)
class Message:
    """A whole message.

    Attributes:
        kind: its kind.
        number: of the request that it is, or belongs to.
        body: its content; None: it was dropped.
        head: the verb of a request, in front of its content.
        ends_another: whether another message under this number was arriving, of which no more comes.
    """

    kind: Kind
    number: bytes
    body: bytes | None
    head: bytes = b""
    ends_another: bool = False

    @property
    def verb(self) -> str:
        """The verb of a request; raises `ProtocolError` if it has none."""
        verb = self.head.rstrip(b" ")
        if not _VERB.fullmatch(verb):
            raise ProtocolError("a request without a verb")
        return verb.decode()


def frames(kind: Kind, number: bytes = NO_NUMBER, body: bytes = b"", head: bytes = b"") -> Iterator[bytes]:
    """The frames of a message that begins with `head`, without a copy of the whole.

    Example:
        >>> [len(frame) for frame in frames(Kind.REPLY, bytes(16), bytes(FRAME_BYTES + 1))]
        [1048601, 26]
    """
    total = len(head) + len(body)
    header, first = FRAME_HEADER.pack(kind, number, total), FRAME_BYTES - len(head)
    yield header + head + body[:first]
    for start in range(first, len(body), FRAME_BYTES):
        yield header + body[start : start + FRAME_BYTES]


def pack_verb(verb: str) -> bytes:
    """The head of a request."""
    encoded = verb.encode()
    if len(encoded) > MAX_VERB or not _VERB.fullmatch(encoded):
        raise ProtocolError(f"Expected a verb of at most {MAX_VERB} letters, got {verb!r}.")
    return encoded.ljust(MAX_VERB)


@dataclass
class _Part:
    kind: Kind
    total: int
    content: io.BytesIO | None  # gives its bytes away without a copy
    received: int = 0
    head: bytes = b""

    def add(self, data: memoryview) -> None:
        start = MAX_VERB if self.kind == Kind.REQUEST and self.received == 0 else 0
        self.head = self.head or bytes(data[:start])
        self.received += len(data)
        if self.content is not None:
            self.content.write(data[start:])


@dataclass
class Receiver:
    """Puts frames together, in bounded memory; raises `ProtocolError` for what breaks the rules.

    Attributes:
        limits: how long a message of each kind may be; others are refused.
        keep: asked once for each message: whether its content is wanted. It may raise, too.
    """

    limits: Mapping[int, int]
    keep: Callable[[Kind, bytes], bool] = lambda *_: True
    _parts: dict[bytes, _Part] = field(default_factory=dict)

    def add(self, frame: bytes) -> Message | None:
        """The message that this frame completes, if it does."""
        if len(frame) < FRAME_HEADER.size:
            raise ProtocolError("a frame without a header")
        code, number, total = FRAME_HEADER.unpack_from(frame)
        data = memoryview(frame)[FRAME_HEADER.size :]
        ended = code in (Kind.ERROR, Kind.FORGET) and self._drop(number)
        part = self._parts.get(number) or self._begin(code, number, total)
        if (code, total) != (part.kind, part.total):
            raise ProtocolError("two messages under one number")
        if len(data) != min(FRAME_BYTES, total - part.received):
            raise ProtocolError("a frame of another length than was announced")
        part.add(data)
        if part.received < total:
            self._parts[number] = part
            return None
        self._drop(number)
        return Message(part.kind, number, None if part.content is None else part.content.getvalue(), part.head, ended)

    def _begin(self, code: int, number: bytes, total: int) -> _Part:
        limit = self.limits.get(code, -1)
        if limit < 0:
            raise ProtocolError(f"a message of kind {code}, which is not accepted here")
        if code == Kind.REQUEST and total < MAX_VERB:
            raise ProtocolError("a request without a verb")
        if total > limit:
            raise ProtocolError(f"a message of {total} bytes, where at most {limit} are accepted")
        if len(self._parts) == MAX_REQUESTS:
            raise ProtocolError("parts of too many messages")
        kept = self.keep(Kind(code), number)
        return _Part(Kind(code), total, io.BytesIO() if kept else None)

    def release(self, number: bytes) -> None:
        """Drop the content of a message that is arriving; the rest of it is read and dropped, too."""
        if part := self._parts.get(number):
            part.content = None

    def _drop(self, number: bytes) -> bool:
        """Forget a message that was arriving; whether there was one."""
        return self._parts.pop(number, None) is not None

    @property
    def arriving(self) -> int:
        """How many messages have come in part."""
        return len(self._parts)
