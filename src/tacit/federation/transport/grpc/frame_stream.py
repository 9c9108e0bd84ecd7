"""One end of a stream: whole messages, several at once. Its options limit what the other end can make gRPC store."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any

import grpc.aio

from tacit.errors import ProtocolError
from tacit.federation.transport.grpc.frames import FRAME_BYTES, FRAME_HEADER, Kind, Message, Receiver, frames

SERVICE, METHOD = "tacit.federation.v1", "Connect"
PATH = f"/{SERVICE}/{METHOD}"
SECONDS_TO_SAY_HELLO = 10.0
_MAX_FRAME = FRAME_BYTES + FRAME_HEADER.size
_MAX_TASKS = 16
_MAX_QUEUED = 2  # frames that wait until the other end reads
_COMMON = [
    ("grpc.max_receive_message_length", _MAX_FRAME),
    ("grpc.max_send_message_length", _MAX_FRAME),
    ("grpc.max_metadata_size", 4096),
    ("grpc.absolute_max_metadata_size", 8192),
    ("grpc.keepalive_time_ms", 10_000),  # also for the memory of firewalls between the two
    ("grpc.keepalive_timeout_ms", 8_000),
    ("grpc.http2.ping_timeout_ms", 8_000),  # without it, silence is noticed after a minute
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
]
SERVER_OPTIONS = [
    *_COMMON,
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),  # or idle sites are thrown out for their keepalive
    ("grpc.max_concurrent_streams", 2),
    ("grpc.server_handshake_timeout_ms", 10_000),
    ("grpc.max_connection_idle_ms", 15_000),  # of a connection without a stream
    ("grpc.so_reuseport", 0),  # two servers on one port would share the sites
]
SITE_OPTIONS = [*_COMMON, ("grpc.enable_retries", 0), ("grpc.use_local_subchannel_pool", 1)]
ended = grpc.aio.EOF


class FrameStream:
    """An open stream.

    Args:
        read: reads a frame, or `ended`.
        write: writes a frame.
    """

    def __init__(self, read: Callable[[], Awaitable[Any]], write: Callable[[bytes], Awaitable[None]]) -> None:
        self._read, self._write = read, write
        self._outbox: asyncio.Queue[bytes] = asyncio.Queue(_MAX_QUEUED)
        self._tasks: set[asyncio.Task[Any]] = set()
        self.closed = asyncio.get_running_loop().create_future()
        self.last_frame = time.monotonic()  # when the last frame came

    async def send(self, kind: Kind, *content: bytes, wanted: Callable[[], bool] = lambda: True) -> bool:
        """Send a message, as fast as the other end reads, while it is wanted; whether all of it was sent."""
        for frame in frames(kind, *content):
            if self.closed.done() or not wanted():
                return False
            await self._outbox.put(frame)
        return True

    def send_first(self, kind: Kind, *content: bytes) -> None:
        """Queue a message of one frame before any other."""
        self._outbox.put_nowait(next(frames(kind, *content)))

    async def messages(self, receiver: Receiver) -> AsyncIterator[Message]:
        """Whole messages, until the other end closes."""
        while (frame := await self._read()) is not ended:
            self.last_frame = time.monotonic()
            message = receiver.add(frame)
            del frame  # or it would stay in memory until the next one comes
            if message is not None:
                yield message
                del message

    async def pump(self) -> None:
        """Write what is queued: only here, because an interrupted write ends the stream."""
        while True:
            await self._write(await self._outbox.get())

    def spawn(self, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        """Do this meanwhile, until the link closes; raises if the other end asks for more than it reads."""
        if len(self._tasks) >= _MAX_TASKS:
            work.close()
            raise ProtocolError("more than it reads answers to")
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def close(self) -> None:
        """End the link's work."""
        if not self.closed.done():
            self.closed.set_result(None)
        for task in self._tasks:
            task.cancel()
