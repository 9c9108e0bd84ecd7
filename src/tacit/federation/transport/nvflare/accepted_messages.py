"""The messages that the processes of server and sites accept: a closed list, checked before decoding.

NVFLARE's processes answer some eighty kinds of request, among them shell commands, deletion of folders, restarts, jobs
and log levels. They check permissions only if the request itself asks for it, and the server forwards requests between
sites. A federation needs few of them::

    at the server   from the site whose certificate the connection has, in its own name, for the server itself:
                    registration and heartbeats, and replies to this server's requests to that site
    at a site       from the server, in its own name, for this site itself:
                    requests to our component, and replies to registration and heartbeats

Everything else is dropped without a reply and reported to the operator: other kinds of message, other senders, names
that differ from the certificate's, and messages to forward. The check replaces the only method by which NVFLARE's cells
receive from a connection, whether request, reply, returned message or part of a stream.
"""

import functools
import inspect
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.cellnet.defs import CellChannel, CellChannelTopic, MessageHeaderKey, MessageType
from nvflare.fuel.f3.cellnet.fqcn import FQCN
from nvflare.fuel.f3.drivers.connector_info import Mode
from nvflare.fuel.f3.drivers.driver_params import DriverParams
from nvflare.fuel.f3.streaming.byte_streamer import ByteStreamer
from nvflare.fuel.f3.streaming.stream_const import (
    STREAM_ACK_TOPIC,
    STREAM_CHANNEL,
    STREAM_DATA_TOPIC,
    STREAM_ERROR_TOPIC,
    StreamHeaderKey,
)
from nvflare.private.defs import CellMessageHeaderKeys
from nvflare.private.fed.client.client_req_processors import ClientRequestProcessors

from tacit.errors import UserError
from tacit.federation.transport.nvflare import process

ASK, ALIVE = "tacit.ask", "tacit.alive"  # the topics of our component in a site's process
ROOT_SERVER = FQCN.ROOT_SERVER
LINES, SECONDS = 20, 3600.0  # reported refusals per sender in this many seconds; others are counted

Pair = tuple[object, object]  # channel and topic, of any type in untrusted messages
_REGISTRATION = frozenset(
    (CellChannel.SERVER_MAIN, topic)
    for topic in (
        CellChannelTopic.Challenge,
        CellChannelTopic.Register,
        CellChannelTopic.HEART_BEAT,
        CellChannelTopic.Quit,
    )
)
_DATA = (STREAM_CHANNEL, STREAM_DATA_TOPIC)
_ABOUT_STREAMS = frozenset({(STREAM_CHANNEL, STREAM_ACK_TOPIC), (STREAM_CHANNEL, STREAM_ERROR_TOPIC)})
_GOODBYE = (CellChannel.CELLNET, CellChannelTopic.Bye)  # ends only the sender's own connection
_PARAMETERS = ["self", "endpoint", "connection", "app_id", "message"]


@dataclass(frozen=True)
class Accepted:
    """What a party accepts.

    Attributes:
        requests: messages that fit in one frame, by channel and topic.
        streams: messages that come in parts, by channel and topic.
        replies: replies to this party's own requests, by their channel and topic.
        sender: the sender of a message, by its connection; None: no accepted sender.
    """

    requests: frozenset[Pair]
    streams: frozenset[Pair]
    replies: frozenset[Pair]
    sender: Callable[[Any, Any], str | None]

    def objection(self, own: str, sender: str | None, message: Any) -> str:
        """Why a message is refused; empty if it is accepted."""
        if sender is None:
            return "nobody is known to be at the other end of this connection"
        if not _in_the_name_of(sender, message):
            return "it is in another's name"
        if _header(message, MessageHeaderKey.DESTINATION) != own:
            return "it is for another, and nothing is forwarded"
        if not self._lists(message):
            return "it is of no kind that a federation needs"
        if _pair(message) in _ABOUT_STREAMS and not _concerns(message, sender):
            return "it is about another's message"
        if any(_header(message, name) for name in (MessageHeaderKey.SECURE, MessageHeaderKey.ENCRYPTED)):
            return "it asks for an exchange of certificates, on which NVFLARE would wait"
        return ""

    def _lists(self, message: Any) -> bool:
        kind, pair = _header(message, MessageHeaderKey.MSG_TYPE), _pair(message)
        if kind == MessageType.REPLY:
            return pair in self.replies
        if kind != MessageType.REQ:
            return False
        return pair in self.requests or (pair == _DATA and _streamed(message) in self.streams)


def _certified(connection: Any) -> str | None:
    """The name in the other end's certificate, which NVFLARE knows at the server only."""
    return (connection.get_conn_properties() or {}).get(DriverParams.PEER_CN.value) or None


def _site_at(endpoint: Any, connection: Any) -> str | None:
    """At the server: the site in the connection's certificate, if the endpoint has the same name."""
    return endpoint.name if endpoint.name == _certified(connection) else None


def _server_at(endpoint: Any, connection: Any) -> str | None:
    """At a site: the server, at the other end of the connection that this site opened and TLS verified."""
    return ROOT_SERVER if endpoint.name == ROOT_SERVER and connection.connector.mode == Mode.ACTIVE else None


AT_SERVER = Accepted(
    requests=_REGISTRATION | _ABOUT_STREAMS | {_GOODBYE},
    streams=frozenset((CellChannel.RETURN_ONLY, f"{CellChannel.AUX_COMMUNICATION}:{topic}") for topic in (ASK, ALIVE)),
    replies=frozenset({_GOODBYE}),
    sender=_site_at,
)
AT_SITE = Accepted(
    requests=_ABOUT_STREAMS | {_GOODBYE},
    streams=frozenset((CellChannel.AUX_COMMUNICATION, topic) for topic in (ASK, ALIVE)),
    replies=_REGISTRATION | {_GOODBYE},
    sender=_server_at,
)


def accept_only(accepted: Accepted) -> None:
    """Restrict the cells of this process to these messages, and a site to no administrators' commands."""
    receive = CoreCell.process_message
    if list(inspect.signature(receive).parameters) != _PARAMETERS:
        raise UserError("Expected NVFLARE 2.9, whose cells receive messages in one place: tacit-fl[federation].")
    ClientRequestProcessors.request_processors.clear()
    refusals = Refusals()

    @functools.wraps(receive)
    def checked(self: Any, endpoint: Any, connection: Any, app_id: int, message: Any) -> None:
        sender = accepted.sender(endpoint, connection)
        problem = accepted.objection(self.get_fqcn(), sender, message)
        if problem:
            refusals.report(sender or _certified(connection) or "unknown", f"{_described(message)}: {problem}.")
        else:
            receive(self, endpoint, connection, app_id, message)

    CoreCell.process_message = checked


@dataclass(frozen=True)
class _Hour:
    """Refused messages of one sender since a time: their number, and the lines written."""

    since: float
    count: int = 0
    lines: frozenset[str] = frozenset()


class Refusals:
    """Reports refusals, in a bounded number of distinct lines per sender, so that nobody can fill a disk.

    Args:
        say: writes a line.
        clock: seconds.
    """

    def __init__(self, say: Callable[[str], None] = process.say, clock: Callable[[], float] = time.monotonic) -> None:
        self._say, self._clock, self._lock = say, clock, threading.Lock()
        self._hours: dict[str, _Hour] = {}  # by sender

    def report(self, sender: str, text: str) -> None:
        """Report a refused message of this sender, unless it is a repetition or beyond the limit."""
        with self._lock:
            hour, more = self._current(sender)
            suppressed = text in hour.lines or len(hour.lines) == LINES
            lines = hour.lines if suppressed else hour.lines | {text}
            self._hours[sender] = replace(hour, count=hour.count + 1, lines=lines)
        if not suppressed:
            last = " Further ones are only counted." if len(lines) == LINES else ""
            self._say(f"Refused a message of {sender!r}: {text}{more}{last}")

    def _current(self, sender: str) -> tuple[_Hour, str]:
        """This hour's refusals, and a sentence on the previous hour's unreported ones."""
        hour = self._hours.get(sender) or _Hour(self._clock())
        if self._clock() - hour.since <= SECONDS:
            return hour, ""
        silent = hour.count - len(hour.lines)
        return _Hour(self._clock()), f" {silent} more were refused before." if silent else ""


def _header(message: Any, name: str) -> object:
    return message.headers.get(name) if isinstance(message.headers, dict) else None


def _in_the_name_of(sender: str, message: Any) -> bool:
    """Whether each sender's name in a message is this one: NVFLARE uses one or another."""
    names = [_header(message, name) for name in (MessageHeaderKey.ORIGIN, MessageHeaderKey.FROM_CELL)]
    return names == [sender, sender] and _header(message, CellMessageHeaderKeys.CLIENT_NAME) in (None, sender)


def _texts(message: Any, *names: str) -> Pair:
    """Two headers; None for one that is not a string, since it may be unhashable."""
    first, second = (text if isinstance(text := _header(message, name), str) else None for name in names)
    return first, second


def _pair(message: Any) -> Pair:
    return _texts(message, MessageHeaderKey.CHANNEL, MessageHeaderKey.TOPIC)


def _streamed(message: Any) -> Pair:
    return _texts(message, StreamHeaderKey.CHANNEL, StreamHeaderKey.TOPIC)


def _concerns(message: Any, sender: str) -> bool:
    """Whether an acknowledged or abandoned stream went to this sender; its number can be guessed."""
    number = _header(message, StreamHeaderKey.STREAM_ID)
    with ByteStreamer.map_lock:
        task = ByteStreamer.tx_task_map.get(number) if isinstance(number, int) else None
    return (task is None or task.target == sender) and _header(message, StreamHeaderKey.FAILED_DESTINATION) is None


def _described(message: Any) -> str:
    """A message's description for people; all of it is untrusted."""
    names = (*_pair(message), *(each for each in _streamed(message) if each is not None))
    where = ", ".join(repr(str(each)[:60]) for each in names)
    return f"{where} for {str(_header(message, MessageHeaderKey.DESTINATION))[:60]!r}"
