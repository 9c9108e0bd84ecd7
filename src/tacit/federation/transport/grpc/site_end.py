"""A site's end: it connects to the server, again and again, and hands each request to its handler, once.

A reply is kept until the server has it, also over a lost connection. What the server no longer waits for is not begun.
The server can make a site's process do nothing else.
"""

import asyncio
import random
import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from tacit.errors import ProtocolError, TacitError, one_line
from tacit.federation.plan.directory import read_identity
from tacit.federation.transport.endpoints import Handler
from tacit.federation.transport.grpc.frame_stream import PATH, SITE_OPTIONS, FrameStream, ended
from tacit.federation.transport.grpc.frames import MAX_REQUESTS, MAX_VERB, NUMBER, Kind, Message, Receiver, frames
from tacit.federation.transport.grpc.hello import HELLO_NONCE, PROCESS, Hello
from tacit.federation.transport.kits import SECONDS_BETWEEN_WARNINGS, ServerAddress, SiteKit, warn_of_expiry
from tacit.federation.transport.notices import Notices
from tacit.protocols.certificates import CertificateKey

PAUSES = (0.5, 0.3, 0.5, 0.5, 1.0, 1.0, 2.0, 4.0, 6.0)  # seconds between tries, and less: sites do not all come at once
SECONDS_TO_CONNECT = 20.0
SECONDS_OF_SILENCE = 120.0  # of a server's process, which pings; a broken line is noticed sooner


@dataclass(eq=False)
class _Request:
    """A request that the site has received as a whole."""

    verb: str
    body: bytes | None
    wanted: bool = True
    working: bool = False
    reply: tuple[Kind, bytes] | None = None
    sender: "asyncio.Task[Any] | None" = None  # sends the reply over the current connection


@dataclass(eq=False)
class Requests:
    """The requests of a site's process, over all its connections.

    Attributes:
        handler: what answers them.
        say: writes a line for the site's operator.
        limit: the longest request that is accepted, in bytes.
    """

    handler: Handler
    say: Callable[[str], None]
    limit: int
    open: dict[bytes, _Request] = field(default_factory=dict)
    link: FrameStream | None = None
    _more: asyncio.Event = field(default_factory=asyncio.Event)
    _pong: "asyncio.Task[Any] | None" = None

    def receiver(self) -> Receiver:
        """Of a new connection."""
        limits: dict[int, int] = {
            Kind.WELCOME: MAX_REQUESTS * NUMBER,
            Kind.REQUEST: self.limit + MAX_VERB,
            Kind.FORGET: 0,
            Kind.PING: 0,
        }
        receiver = Receiver(limits)

        def keep(kind: Kind, number: bytes) -> bool:
            if kind == Kind.REQUEST and number in self.open:
                raise ProtocolError("a request for the second time")
            if kind == Kind.REQUEST and len(self.open) + receiver.arriving >= MAX_REQUESTS:
                raise ProtocolError("more requests than a site accepts at once")
            return True

        receiver.keep = keep
        return receiver

    def welcome(self, link: FrameStream, wanted: bytes) -> None:
        """Continue over a new connection, with what the server still waits for."""
        numbers = {wanted[start : start + NUMBER] for start in range(0, len(wanted), NUMBER)}
        self.link, self._pong = link, None
        for number, request in [*self.open.items()]:
            request.sender = None
            request.wanted = request.wanted and number in numbers
            if not request.working:
                self._finish(number)

    def act(self, message: Message) -> None:
        """Do what a message asks for."""
        assert self.link is not None
        number = message.number
        if message.kind == Kind.REQUEST:
            self.open[number] = _Request(message.verb, message.body)
            self._more.set()
        elif message.kind == Kind.PING:
            if self._pong is not None and not self._pong.done():
                raise ProtocolError("a ping before the answer to the last one")
            self._pong = self.link.spawn(self.link.send(Kind.PONG))
        elif message.kind != Kind.FORGET:
            raise ProtocolError("a second welcome")
        elif number in self.open:
            self._forget(number)
        elif message.ends_another:
            self.link.spawn(self.link.send(Kind.ERROR, number))

    def _forget(self, number: bytes) -> None:
        """Nobody waits for the reply, or it has arrived."""
        request = self.open[number]
        request.wanted = False
        if not request.working and request.sender is None:
            self._finish(number)
        elif request.sender is not None and request.sender.done():
            del self.open[number]

    def _finish(self, number: bytes) -> None:
        """Send the end of a request, if it has one."""
        request, link = self.open[number], self.link
        if not request.wanted:
            request.reply = Kind.ERROR, b""
        if request.reply is not None and link is not None and not link.closed.done():
            request.sender = link.spawn(self._send(link, number, request))

    async def _send(self, link: FrameStream, number: bytes, request: _Request) -> None:
        kind, reply = request.reply or (Kind.ERROR, b"")
        sent = await link.send(kind, number, reply, wanted=lambda: request.wanted or kind == Kind.ERROR)
        if not sent and not request.wanted:
            sent = await link.send(Kind.ERROR, number)
        if sent and not request.wanted:
            self.open.pop(number, None)

    async def work(self) -> None:
        """Hand requests to the handler, one after another."""
        while True:
            waiting = (number for number, each in self.open.items() if each.wanted and each.reply is None)
            number = next(waiting, None)
            if number is None:
                self._more.clear()
                await self._more.wait()
            else:
                await self._work_on(self.open[number])
                with suppress(ProtocolError):  # the server does not read: the next connection has the reply
                    self._finish(number)

    async def _work_on(self, request: _Request) -> None:
        body, request.body, request.working = request.body or b"", None, True
        try:
            loop = asyncio.get_running_loop()
            reply = await loop.run_in_executor(None, self.handler, request.verb, body)
            if not isinstance(reply, bytes):
                raise TypeError("the handler made something other than bytes")
            request.reply = Kind.REPLY, reply
            self.say(f"{request.verb}: received {len(body)} bytes, sent {len(reply)}.")
        except Exception as error:
            request.reply = Kind.ERROR, b""
            self.say(f"{request.verb}: no answer to {len(body)} bytes. {type(error).__name__}: {error}")
        request.working = False


class SiteConnection:
    """A site's process.

    Args:
        kit: the site's kit.
        identity: the file of its identity key.
        handler: what answers requests.
        limit: the longest request that is accepted, in bytes.
        say: writes a line for the site's operator.
    """

    def __init__(self, kit: SiteKit, identity: Path, handler: Handler, limit: int, say: Callable[[str], None]) -> None:
        self._kit, self._identity, self._say = kit, identity, say
        self._requests, self._notices = Requests(handler, say, limit), Notices(say)
        self._process = secrets.token_bytes(PROCESS)  # another one after a restart

    async def run(self) -> None:
        """Stay connected, for ever."""
        work, warn = asyncio.ensure_future(self._requests.work()), asyncio.ensure_future(self._warn_often())
        failures = 0
        while not work.done():
            self._requests.link = None
            try:
                await self._connect(failures)
            except (grpc.aio.AioRpcError, ProtocolError, TacitError, OSError, TimeoutError) as error:
                self._notices.report("the server", f"not connected: {_reason(error)}.")
            failures = 0 if self._requests.link is not None else failures + 1
            await asyncio.sleep(PAUSES[min(failures, len(PAUSES) - 1)] * random.uniform(0.5, 1.0))
        warn.cancel()
        work.result()

    async def _connect(self, failures: int) -> None:
        """One connection, with the newest certificate, or with an older one if the server does not know it yet."""
        address, keys = self._kit.server(), self._kit.keyring.keys()
        if not keys:
            raise TacitError("this site's certificate has expired; run tacit site renew")
        key = keys[failures % len(keys)]
        roots = "".join(each.text for each in address.certificates).encode()
        pem = key.pem.encode(), key.certificate.text.encode()
        options = [*SITE_OPTIONS, ("grpc.ssl_target_name_override", address.name)]
        options += [("grpc.enable_http_proxy", 0)] if address.on_this_machine else []
        credentials = grpc.ssl_channel_credentials(roots, *pem)
        async with grpc.aio.secure_channel(address.target, credentials, options) as channel:  # nothing is shared
            call = channel.stream_stream(PATH)()
            try:
                await self._converse(call, address, key)
            finally:
                call.cancel()

    async def _converse(self, call: Any, address: ServerAddress, key: CertificateKey) -> None:
        async with asyncio.timeout(SECONDS_TO_CONNECT):
            (challenge,) = [Receiver({Kind.CHALLENGE: HELLO_NONCE}).add(await _frame(call))]
        if challenge is None or challenge.body is None:
            raise ProtocolError("no challenge")
        open_ = self._requests.open
        hello = Hello(self._process, self._requests.limit, tuple(open_))
        signed = hello.pack(challenge.body, key.certificate.fingerprint, read_identity(self._identity))
        await call.write(next(frames(Kind.HELLO, body=signed)))
        link = FrameStream(lambda: _frame_in_time(call), call.write)
        pump = asyncio.ensure_future(link.pump())
        try:
            await self._answer(link, address)
        finally:
            pump.cancel()
            link.close()
        raise ProtocolError(await call.details() or "the server has ended the connection")

    async def _answer(self, link: FrameStream, address: ServerAddress) -> None:
        receiver, welcome = self._requests.receiver(), False
        async for message in link.messages(receiver):
            if welcome:
                self._requests.act(message)
            elif message.kind != Kind.WELCOME:
                raise ProtocolError("no welcome")
            else:
                self._requests.welcome(link, message.body or b"")
                self._notices.report("the server", f"connected, at {address.target}.")
                welcome = True
            del message

    async def _warn_often(self) -> None:
        while True:
            ends = {"this site": max((each.ends for each in self._kit.keyring.certificates()), default=None)}
            for sentence in warn_of_expiry({name: end for name, end in ends.items() if end is not None}):
                self._say(sentence)
            await asyncio.sleep(SECONDS_BETWEEN_WARNINGS)


async def _frame(call: Any) -> bytes:
    frame = await call.read()
    if frame is ended:
        raise ProtocolError(await call.details() or "the server has ended the connection")
    return bytes(frame)


async def _frame_in_time(call: Any) -> Any:
    async with asyncio.timeout(SECONDS_OF_SILENCE):
        return await call.read()


def _reason(error: Exception) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return one_line(error.details() or error.code().name)[:300]
    if isinstance(error, TimeoutError):
        return "it is silent"
    return one_line(str(error)).rstrip(".")
