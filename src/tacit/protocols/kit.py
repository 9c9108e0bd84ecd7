"""What the conversations of all protocols share: frame, session, stored client states, transcript, driver loop.

A client is a function `answer(state, request) -> (state, reply)` of a small state that can be stored as bytes. The
server is a generator that yields requests and is sent replies. Neither does I/O: `play` connects them in one process,
and a federation puts a network between them.

Every frame begins with 16 bytes::

    magic 4s | version u8 | kind u8 | protocol u8 | zero u8 | length u32 | checksum u32

The length is compared with a limit before anything is allocated. The checksum (CRC-32) covers the whole frame; it
detects damage, not forgery. Nothing in a frame names a class or a module.
"""

import struct
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Generic, Protocol, TypeVar

from tacit.errors import ProtocolError, expect
from tacit.protocols.crypto import KEY
from tacit.wire.packing import Reader

MAGIC, VERSION = b"TACP", 1
_HEADER = struct.Struct("<4sBBBBII")
HEADER = _HEADER.size
RUN = 16  # bytes of a run's identifier
_STATE = b"TACS"

T = TypeVar("T")
Kind = TypeVar("Kind")
Reason = TypeVar("Reason")
Requests = Mapping[int, bytes]  # by client
Replies = Iterable[tuple[int, bytes]]  # the sender as the transport knows it, and its message; in any order
ServerSide = Generator[Requests, Replies, T]


class ProtocolId(IntEnum):
    """Which protocol a frame or a stored state belongs to."""

    SECAGG = 1
    ENCLAVE = 2


# Frames


@dataclass(frozen=True)
class ProtocolFrame:
    """A parsed frame."""

    kind: int
    body: memoryview


def pack_frame(protocol: ProtocolId, kind: int, body: bytes = b"") -> bytes:
    """One frame as bytes."""
    head = (MAGIC, VERSION, kind, protocol, 0, HEADER + len(body))
    return _HEADER.pack(*head, _checksum(head, body)) + body


def unpack_frame(protocol: ProtocolId, data: bytes, limit: int) -> ProtocolFrame:
    """Parse a frame; raises `ProtocolError` for anything but one whole, well-formed frame of this protocol."""
    if not HEADER <= len(data) <= limit:
        raise ProtocolError(f"Expected a frame of {HEADER} to {limit} bytes, got {len(data)}.")
    length = frame_length(protocol, data[:HEADER], limit)
    if length != len(data):
        raise ProtocolError(f"Expected a frame of {length} bytes, got {len(data)}: it was truncated or extended.")
    *head, checksum = _HEADER.unpack_from(data)
    body = memoryview(data)[HEADER:]
    if _checksum(tuple(head), body) != checksum:
        raise ProtocolError("A frame's checksum does not match: it was damaged in transit.")
    return ProtocolFrame(head[2], body)


def frame_length(protocol: ProtocolId, header: bytes, limit: int) -> int:
    """The length that a frame's first 16 bytes declare; raises `ProtocolError` if it exceeds the limit."""
    magic, version, _, of, zero, length, _ = _HEADER.unpack(header)
    if (magic, version, of, zero) != (MAGIC, VERSION, protocol, 0):
        raise ProtocolError(f"Expected a frame of version {VERSION}, got other bytes.")
    if not HEADER <= length <= limit:
        raise ProtocolError(f"Expected a frame of {HEADER} to {limit} bytes, got one that declares {length}.")
    return int(length)


def _checksum(head: tuple[object, ...], body: bytes | memoryview) -> int:
    return zlib.crc32(body, zlib.crc32(_HEADER.pack(*head, 0)))


# Sessions


@dataclass(frozen=True, kw_only=True)
class Session:
    """One round of one run, as one party sees it: what every protocol binds its keys to.

    Attributes:
        run: 16 bytes that are unique to the run.
        round: index of the round.
        model: SHA-256 of the broadcast.
        config: SHA-256 of everything else that the parties must agree on.
    """

    run: bytes
    round: int
    model: bytes
    config: bytes

    def __post_init__(self) -> None:
        expect(len(self.run) == RUN, f"a run of {RUN} bytes, got {len(self.run)}")
        expect(0 <= self.round < 1 << 32, f"0 <= round={self.round} < 2^32")
        expect({len(digest) for digest in self.digests} == {KEY}, f"digests and keys of {KEY} bytes")

    @property
    def digests(self) -> tuple[bytes, ...]:
        """The digests and public keys that the session consists of."""
        return (self.model, self.config)


# Client states


class ClientState(Protocol):
    """What a client keeps between two messages. It contains secrets: store its bytes as securely as its data."""

    def to_bytes(self) -> bytes:
        """For storage between two messages."""
        ...


State = TypeVar("State", bound=ClientState)


def pack_state(protocol: ProtocolId, *fields: bytes) -> bytes:
    """The fields of a client state, so that `state_reader` recognises them."""
    return b"".join((_STATE, bytes((VERSION, protocol)), *fields))


def state_reader(protocol: ProtocolId, data: bytes) -> Reader:
    """The fields of a stored client state; raises `ProtocolError` for other bytes."""
    reader = Reader(data)
    if reader.take(len(_STATE) + 2) != pack_state(protocol):
        raise ProtocolError("Expected a client state, got other bytes.")
    return reader


@dataclass(frozen=True, eq=False)
class StoredStates(Generic[State]):
    """The states of clients in one process, as bytes between messages.

    Attributes:
        join: a client's first state.
        read: the inverse of `to_bytes`.
    """

    join: Callable[[int], State]
    read: Callable[[bytes], State]
    stored: dict[int, bytes] = field(default_factory=dict)

    def load(self, client: int) -> State:
        """The client's state."""
        return self.read(self.stored[client]) if client in self.stored else self.join(client)

    def store(self, client: int, state: State) -> None:
        """Replace the client's state."""
        self.stored[client] = state.to_bytes()

    def answer(self, client: int, step: Callable[[State], tuple[State, bytes]]) -> bytes:
        """The reply of one step; the new state is stored before it is sent."""
        state, reply = step(self.load(client))
        self.store(client, state)
        return reply


# The server's side


def _counters() -> "defaultdict[Kind, Counter[int]]":
    return defaultdict(Counter)


@dataclass(frozen=True, eq=False)
class Transcript(Generic[Kind, Reason]):
    """What a server observes of a conversation.

    Attributes:
        down: bytes sent to clients, by kind of message and client, as packed.
        up: bytes received from clients, likewise.
        rejected: rejected replies by reason.
        unresponsive: clients that were asked and sent no valid reply.
    """

    down: defaultdict[Kind, Counter[int]] = field(default_factory=_counters)
    up: defaultdict[Kind, Counter[int]] = field(default_factory=_counters)
    rejected: Counter[Reason] = field(default_factory=Counter)
    unresponsive: set[int] = field(default_factory=set)

    def count_requests(self, kind: Kind, requests: Requests) -> None:
        """Add requests of one kind."""
        self.down[kind].update({client: len(request) for client, request in requests.items()})


@dataclass(frozen=True, eq=False)
class Outcome(Generic[T, Kind, Reason]):
    """The end of a conversation.

    Attributes:
        result: what the server learned.
        clients: that reached it with the server: the survivors of a sum, or those that accepted an enclave.
        transcript: what the server observed.
    """

    result: T
    clients: tuple[int, ...]
    transcript: Transcript[Kind, Reason]


def play(server: ServerSide[T], answer: Callable[[Requests], Replies]) -> T:
    """Run a conversation to its end: `answer` gives the replies to the server's requests, also one by one."""
    requests = next(server)
    while True:
        replies = answer(requests)
        try:
            requests = server.send(replies)
        except StopIteration as end:
            result: T = end.value
            return result
