"""The common parts of all protocols' conversations: clients, servers, and the frames of their messages.

A client is a step, `answer(state, request) -> (state, reply)`, of a small state that can be stored as bytes
(`ClientStep`, `ClientState`). A server is a generator that yields requests and is sent replies (`ServerSide`). Neither
does I/O, reads a clock or draws randomness in between, so one loop drives every protocol: `play` connects a server with
`LocalClients` in one process, and a federation puts a network between them.

Every frame begins with 16 bytes::

    magic 4s | version u8 | kind u8 | protocol u8 | zero u8 | length u32 | checksum u32

The length is compared with a limit before anything is allocated. The checksum (CRC-32) covers the whole frame; it
detects damage, not forgery. Nothing in a frame names a class or a module.
"""

import struct
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from functools import reduce
from typing import Any, Generic, Protocol, Self, TypeVar

from tacit.errors import ProtocolError, expect
from tacit.protocols.crypto import KEY
from tacit.wire.packing import Reader

MAGIC, VERSION = b"TACP", 1
_HEADER = struct.Struct("<4sBBBBII")
HEADER = _HEADER.size
RUN = 16  # bytes of a run's identifier
_STATE = b"TACS"

_T = TypeVar("_T")
Kind = TypeVar("Kind")


class ProtocolId(IntEnum):
    """Which protocol a frame or a stored state belongs to."""

    SECAGG = 1
    ENCLAVE = 2


# Frames


@dataclass(frozen=True)
class ProtocolFrame(Generic[Kind]):
    """A parsed frame: what it requests or answers, and its fields."""

    kind: Kind
    body: memoryview


AnyFrame = TypeVar("AnyFrame", bound=ProtocolFrame[Any])


def pack_frame(protocol: ProtocolId, kind: int, *body: bytes) -> bytes:
    """One frame as bytes; its body is given in one or several parts."""
    head = (MAGIC, VERSION, kind, protocol, 0, HEADER + sum(map(len, body)))
    return b"".join((_HEADER.pack(*head, _checksum(head, *body)), *body))


def unpack_frame(protocol: ProtocolId, data: bytes, limit: int) -> ProtocolFrame[int]:
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


def _checksum(head: tuple[object, ...], *body: bytes | memoryview) -> int:
    return reduce(lambda checksum, part: zlib.crc32(part, checksum), (_HEADER.pack(*head, 0), *body), 0)


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


# The client's side


class ClientState(Protocol):
    """A client's memory between two messages. It contains secrets: store its bytes as securely as its data."""

    def to_bytes(self) -> bytes:
        """For storage between two messages."""

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """The inverse of `to_bytes`; raises `ProtocolError` for other bytes."""


State = TypeVar("State", bound=ClientState)


ClientStep = Callable[[State, bytes], tuple[State, bytes]]
"""How a client answers: a pure function.

What a client knows itself (its vector, its upload, the time) is set in its state before the step. A request that is not
safe to answer raises `ProtocolError`; the client then leaves the round. The new state is stored before the reply is
sent: an old state must not answer a second time.
"""


def pack_state(protocol: ProtocolId, *fields: bytes) -> bytes:
    """The fields of a client state, as `read_state` reads them."""
    return b"".join((_STATE, bytes((VERSION, protocol)), *fields))


def read_state(protocol: ProtocolId, data: bytes, read: Callable[[Reader], State]) -> State:
    """A client state from its bytes; raises `ProtocolError` for other bytes."""
    reader = Reader(data)
    if reader.take(len(_STATE) + 2) != pack_state(protocol):
        raise ProtocolError("Expected a client state, got other bytes.")
    try:
        state = read(reader)
    except (ValueError, ZeroDivisionError) as error:  # numbers outside their ranges
        raise ProtocolError("Expected a client state, got other bytes.") from error
    reader.expect_end()
    return state


def read_optional_key(reader: Reader) -> bytes:
    """The next key of a client state, prefixed with its length; empty if the client has none, or no longer."""
    key = reader.chunk(KEY)
    if len(key) not in {0, KEY}:
        raise ProtocolError(f"Expected a client state with keys of {KEY} bytes, got {len(key)}.")
    return key


# The server's side

Requests = Mapping[int, bytes]  # by recipient: a client's number, or a negative one for an enclave
Replies = Iterable[tuple[int, bytes]]  # the sender as the transport knows it, and its message; in any order
Transport = Callable[[Requests], Replies]  # sends requests to clients, and returns their replies
ServerSide = Generator[Requests, Replies, _T]
"""A server: it yields requests, is sent the replies to them, and returns its result.

Replies may be lazy. While a server reads them it may yield further requests: the host of an enclave forwards each
upload as it arrives.
"""


class ReplyStatus(IntEnum):
    """How a receiver treated a reply."""

    ACCEPTED = 0
    OVERSIZE = 1  # longer than any valid reply
    MALFORMED = 2  # violates the schema, or has no valid signature
    UNEXPECTED_SENDER = 3  # was not asked, or used another client's number
    LATE = 4  # for an earlier phase or round
    WRONG_SESSION = 5  # for another run, round, model, configuration, roster or enclave
    DUPLICATE = 6  # the first reply counts
    FORGED = 7  # not signed by its sender, or altered in transit
    NOT_FINITE = 8  # contains NaN or infinity, or is longer than the method's max_row_norm


def _counters() -> "defaultdict[Kind, Counter[int]]":
    return defaultdict(Counter)


@dataclass(frozen=True, eq=False)
class Transcript(Generic[Kind]):
    """A server's observations of a conversation.

    Attributes:
        down: bytes sent to clients, by kind of message and client, as packed.
        up: bytes received from clients, too.
        rejected: rejected replies by reason.
        unresponsive: clients that were asked and sent no valid reply.
    """

    down: defaultdict[Kind, Counter[int]] = field(default_factory=_counters)
    up: defaultdict[Kind, Counter[int]] = field(default_factory=_counters)
    rejected: Counter[ReplyStatus] = field(default_factory=Counter)
    unresponsive: set[int] = field(default_factory=set)

    def count_requests(self, kind: Kind, requests: Requests) -> None:
        """Add requests of one kind."""
        self.down[kind].update({client: len(request) for client, request in requests.items()})


@dataclass(frozen=True, eq=False)
class Outcome(Generic[_T, Kind]):
    """The end of a conversation.

    Attributes:
        result: the server's result.
        clients: that reached it with the server: the survivors of a sum, or those that accepted an enclave.
        transcript: what the server observed.
    """

    result: _T
    clients: tuple[int, ...]
    transcript: Transcript[Kind]


@dataclass(frozen=True, eq=False)
class Exchange(Generic[Kind, AnyFrame, _T]):
    """One request to each of several clients, and the first valid reply of each.

    Attributes:
        kind: of the requests.
        requests: by client.
        unpack: parses a reply; raises `ProtocolError` if it is not a frame.
        check: whether a frame is of this sender and for this exchange.
        read: the content of a reply; raises `ProtocolError` if it is malformed. What it leaves unread is an error.
    """

    kind: Kind
    requests: Requests
    unpack: Callable[[bytes], AnyFrame]
    check: Callable[[int, AnyFrame], ReplyStatus]
    read: Callable[[int, Reader], _T]

    def run(self, transcript: Transcript[Kind]) -> ServerSide[dict[int, _T]]:
        """Send the requests and read the replies, one at a time."""
        accepted: dict[int, _T] = {}
        if not self.requests:
            return accepted
        transcript.count_requests(self.kind, self.requests)
        for sender, data in (yield self.requests):
            status = self._read(sender, data, accepted, transcript)
            if status is not ReplyStatus.ACCEPTED:
                transcript.rejected[status] += 1
        transcript.unresponsive.update(self.requests.keys() - accepted.keys())
        return accepted

    def _read(self, sender: int, data: bytes, accepted: dict[int, _T], transcript: Transcript[Kind]) -> ReplyStatus:
        """Read one reply into `accepted`, or return why it is rejected."""
        try:
            frame = self.unpack(data)
            status = self.check(sender, frame)
            if status is not ReplyStatus.ACCEPTED:
                return status
            if sender not in self.requests or sender in accepted:
                return ReplyStatus.DUPLICATE if sender in accepted else ReplyStatus.UNEXPECTED_SENDER
            reader = Reader(frame.body)
            content = self.read(sender, reader)
            reader.expect_end()
            accepted[sender] = content
        except ProtocolError:
            return ReplyStatus.MALFORMED
        transcript.up[frame.kind][sender] = len(data)
        return ReplyStatus.ACCEPTED


# Both sides in one process


@dataclass(frozen=True, eq=False)
class LocalClients(Generic[State]):
    """Clients in this process; their states are bytes between messages, as in a federation.

    Attributes:
        state: the type of their states.
        join: a client's first state.
        prepare: sets what a client knows itself, before every step; None: the client drops out.
        answer: a client's step.
        stored: states by client.
    """

    state: type[State]
    join: Callable[[int], State]
    prepare: Callable[[State], State | None]
    answer: ClientStep[State]
    stored: dict[int, bytes] = field(default_factory=dict)

    def load(self, client: int) -> State:
        """The client's state."""
        return self.state.from_bytes(self.stored[client]) if client in self.stored else self.join(client)

    def store(self, client: int, state: State) -> None:
        """Replace the client's state."""
        self.stored[client] = state.to_bytes()

    def replies(self, requests: Requests) -> Iterator[tuple[int, bytes]]:
        """The reply of every client that was asked and has not dropped out, computed when it is read."""
        for client, request in requests.items():
            state = self.prepare(self.load(client))
            if state is not None:
                after, reply = self.answer(state, request)
                self.store(client, after)
                yield client, reply


def play(server: ServerSide[_T], transport: Transport) -> _T:
    """Run a conversation to its end."""
    requests = next(server)
    while True:
        replies = transport(requests)
        try:
            requests = server.send(replies)
        except StopIteration as end:
            result: _T = end.value
            return result
