"""The server's end: a transport whose sites have each one stream to it.

An ask has a random number. It goes on over a new connection of the same process of a site, which says in its hello what
it has, and is handled once. A process that has restarted is absent: what it had is lost. Frames that nobody asked for
end a connection.
"""

import asyncio
import secrets
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeVar

import grpc
import grpc.aio

from tacit.errors import ProtocolError, TacitError
from tacit.federation.transport.endpoints import Failure
from tacit.federation.transport.grpc.frame_stream import (
    METHOD,
    SECONDS_TO_SAY_HELLO,
    SERVER_OPTIONS,
    SERVICE,
    FrameStream,
)
from tacit.federation.transport.grpc.frames import (
    MAX_REQUESTS,
    NO_NUMBER,
    NUMBER,
    Kind,
    Message,
    Receiver,
    frames,
    pack_verb,
)
from tacit.federation.transport.grpc.hello import HELLO_NONCE, MAX_HELLO, Hello
from tacit.federation.transport.kits import SECONDS_BETWEEN_WARNINGS, Guests, ServerKit, warn_of_expiry
from tacit.federation.transport.notices import Notices
from tacit.protocols.certificates import fingerprint_of

SECONDS_TO_COME_BACK = 5.0  # of a site that was there a moment ago, or never
SECONDS_OF_A_BROKEN_LINE = 30.0  # of a site that fell silent before its connection ended
SECONDS_TO_PONG = 3.0
SECONDS_BETWEEN_PINGS = 4.0
SECONDS_TO_NOTICE_REMOVAL = 1.0  # at the enrolled sites
SECONDS_BETWEEN_TLS = 3600.0  # the server may have to present its next certificate
MAX_STRANGERS = 8  # connections with the certificate of one site that have not shown its identity key
TLS_VERSION = "TLSv1.3"
_Result = TypeVar("_Result")


@dataclass(eq=False)
class _Ask:
    """A request that a site has, or is to have; without a future, it has it from a server before this one."""

    body: bytes = b""
    head: bytes = b""
    answer: "asyncio.Future[bytes | Failure] | None" = None
    sent: bool = False  # at least in part, to the current process of the site, which has not ended it
    told: bool = False  # that nobody waits for it any more

    @property
    def wanted(self) -> bool:
        return self.answer is not None and not self.answer.done()

    def finish(self, result: bytes | Failure) -> None:
        if self.answer is not None and not self.answer.done():
            self.answer.set_result(result)


@dataclass(eq=False)
class _Site:
    """An enrolled site, connected or not, and its requests."""

    name: str
    process: bytes = b""
    link: "_SiteLink | None" = None
    left: float = 0.0  # when its last connection ended
    patience: float = SECONDS_TO_COME_BACK
    asks: dict[bytes, _Ask] = field(default_factory=dict)
    strangers: "list[asyncio.Task[Any]]" = field(default_factory=list)
    arriving: asyncio.Lock = field(default_factory=asyncio.Lock)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def change(self) -> None:
        """Wake all who wait for the site."""
        self.changed.set()
        self.changed = asyncio.Event()

    def connect(self, link: "_SiteLink", hello: Hello) -> None:
        """Continue with what this process has."""
        same = self.process == hello.process
        for number, ask in [*self.asks.items()]:
            lost = ask.sent and not (same and number in hello.known)
            if ask.sent and not same:
                ask.finish(Failure("absent", f"{self.name} restarted before it answered."))
            if lost and not ask.wanted:
                del self.asks[number]
            ask.sent = ask.sent and not lost
        for number in hello.known:
            self.asks.setdefault(number, _Ask(sent=True))  # of a server that ended
        self.process, self.link = hello.process, link

    def disconnect(self, link: "_SiteLink") -> None:
        """Without this connection; a silence before its end means a broken line."""
        if self.link is link:
            silence = time.monotonic() - link.last_frame
            self.patience = SECONDS_OF_A_BROKEN_LINE if silence > 2 * SECONDS_BETWEEN_PINGS else SECONDS_TO_COME_BACK
            self.link, self.left = None, time.monotonic()
            self.asks = {number: ask for number, ask in self.asks.items() if ask.wanted or ask.sent}
        self.change()


class _SiteLink(FrameStream):
    """The stream of a site."""

    def __init__(self, context: Any, site: _Site, fingerprint: str, hello: Hello, limit: int) -> None:
        FrameStream.__init__(self, context.read, context.write)
        self.site, self.fingerprint, self.hello = site, fingerprint, hello
        limits: dict[int, int] = {Kind.REPLY: limit, Kind.ERROR: 0, Kind.PONG: 0}
        self._receiver = Receiver(limits, self._keep)
        self._pings: list[asyncio.Future[None]] = []  # unanswered

    def welcome(self) -> None:
        """Say first what is still wanted, and continue with that."""
        wanted = [number for number in self.hello.known if self.site.asks[number].wanted]
        self.send_first(Kind.WELCOME, NO_NUMBER, b"".join(wanted))
        for number in [*self.site.asks]:
            self.begin(number)
        self.spawn(self._ping_often())

    async def run(self) -> None:
        """Until the stream ends."""
        async for message in self.messages(self._receiver):
            if not self.closed.done():
                self._receive(message)
            del message

    def begin(self, number: bytes) -> None:
        """Send a request, unless the site has it, and then that its reply has come."""
        self.spawn(self._converse(number, self.site.asks[number]))

    async def _converse(self, number: bytes, ask: _Ask) -> None:
        if not ask.sent:
            if not ask.wanted:
                del self.site.asks[number]
                return
            ask.sent = True  # the first frame is queued in any case
            await self.send(Kind.REQUEST, number, ask.body, ask.head, wanted=lambda: ask.wanted)
        if ask.answer is not None:
            await asyncio.wait([ask.answer])
            ask.body = b""
            self._receiver.release(number)
            await self.send(Kind.FORGET, number)
        ask.told = True
        self._settle(number)

    def _settle(self, number: bytes) -> None:
        """Free the place of a request that has ended at both sides."""
        ask = self.site.asks.get(number)
        if ask is not None and ask.told and not ask.sent:
            del self.site.asks[number]
            self.site.change()

    def _keep(self, kind: Kind, number: bytes) -> bool:
        if kind == Kind.PONG:
            if not self._pings:
                raise ProtocolError("an answer to no ping")
            return True
        ask = self.site.asks.get(number)
        if ask is None or not ask.sent:
            raise ProtocolError("an answer to no request")
        return ask.wanted

    def _receive(self, message: Message) -> None:
        if message.kind == Kind.PONG:
            self._pings.pop(0).set_result(None)
            return
        name, ask = self.site.name, self.site.asks[message.number]
        ask.sent = False
        if message.kind == Kind.ERROR:
            ask.finish(Failure("error", f"{name} could not answer: its own log has the reason."))
        elif message.body is not None:
            ask.finish(message.body)
        self._settle(message.number)

    async def _ping_often(self) -> None:
        while True:
            self._ping()
            await asyncio.sleep(SECONDS_BETWEEN_PINGS)

    def _ping(self) -> None:
        if not self._pings:
            self._pings.append(asyncio.get_running_loop().create_future())
            self.spawn(self.send(Kind.PING))

    async def answers(self) -> bool:
        """Whether the site's process answers now."""
        self._ping()
        pong, began = self._pings[-1], time.monotonic()
        await asyncio.wait([pong, self.closed], timeout=SECONDS_TO_PONG, return_when=asyncio.FIRST_COMPLETED)
        return (pong.done() or self.last_frame > began) and not self.closed.done()


class GrpcTransport:
    """The transport of the server's process.

    Args:
        kit: the server's folder.
        listen: the address at which sites connect.
        limit: the longest reply that is accepted, in bytes.
        say: writes a line for the server's operator.
    """

    def __init__(self, kit: ServerKit, listen: str, limit: int, say: Callable[[str], None]) -> None:
        self._kit, self._limit, self._say = kit, limit, say
        self._guests, self._notices = Guests(kit), Notices(say)
        self._guests.refresh()
        self._sites: dict[str, _Site] = {}
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self._on_loop(self._start(listen))

    def sites(self) -> tuple[str, ...]:
        return self._on_loop(self._sites_that_answer())

    def ask(self, verb: str, requests: Mapping[str, bytes], timeout: float) -> Mapping[str, bytes | Failure]:
        return self._on_loop(self._ask_all(pack_verb(verb), requests, time.monotonic() + timeout))

    def _on_loop(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _sites_that_answer(self) -> tuple[str, ...]:
        links = [site.link for site in self._sites.values() if site.link is not None]
        answers = await asyncio.gather(*(link.answers() for link in links))
        return tuple(sorted(link.site.name for link, yes in zip(links, answers, strict=True) if yes))

    # Asking

    async def _ask_all(self, head: bytes, requests: Mapping[str, bytes], deadline: float) -> dict[str, bytes | Failure]:
        asked = (self._ask_one(name, head, body, deadline) for name, body in requests.items())
        return dict(zip(requests, await asyncio.gather(*asked), strict=True))

    async def _ask_one(self, name: str, head: bytes, body: bytes, deadline: float) -> bytes | Failure:
        site = self._site(name)
        if site is None:
            return Failure("absent", f"{name} is not enrolled at the server.")
        ask, number, began = _Ask(body, head, self._loop.create_future()), secrets.token_bytes(NUMBER), time.monotonic()
        del body
        answer = ask.answer
        assert answer is not None
        while not answer.done():
            until = deadline
            if site.link is None:
                until = min(deadline, max(began, site.left) + site.patience)
            elif len(ask.head) + len(ask.body) > site.link.hello.limit:
                most = site.link.hello.limit
                ask.finish(Failure("error", f"{name} accepts at most {most} bytes, not {len(ask.body)}."))
            elif number not in site.asks and len(site.asks) < MAX_REQUESTS:
                site.asks[number] = ask
                site.link.begin(number)
            await _any([answer, site.changed.wait()], until - time.monotonic())
            if time.monotonic() >= until:
                ask.finish(_failure(name, late=until == deadline, connected=site.link is not None))
        if number in site.asks and site.link is None and not ask.sent:
            del site.asks[number]
        return answer.result()

    def _site(self, name: str) -> _Site | None:
        if name not in self._guests.enrolments:
            return None
        return self._sites.setdefault(name, _Site(name))

    # Listening

    async def _start(self, listen: str) -> None:
        method = grpc.stream_stream_rpc_method_handler(self._serve)
        self._server = grpc.aio.server(options=SERVER_OPTIONS)
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {METHOD: method}),))
        self._tls_state = self._current_tls_state()
        credentials = grpc.dynamic_ssl_server_credentials(self._tls(), self._tls_if_changed, True)
        try:
            self._server.add_secure_port(listen, credentials)
        except RuntimeError as error:
            raise TacitError(f"Could not listen at {listen}: is another process doing so? Stop it first.") from error
        await self._server.start()
        self._watch = asyncio.ensure_future(self._look_often())

    def _tls(self) -> Any:
        """The server's certificate, and those of all who may connect."""
        own, enrolments = self._kit.keyring.to_present(), self._guests.enrolments.values()
        accepted = [each.text for enrolment in enrolments for each in enrolment.certificates] or [own.certificate.text]
        pair = own.pem.encode(), own.certificate.text.encode()
        return grpc.ssl_server_certificate_configuration([pair], "".join(accepted).encode())

    def _current_tls_state(self) -> object:
        """Changes when certificates do, or may have expired."""
        self._guests.refresh()
        return self._guests.state, int(time.time() // SECONDS_BETWEEN_TLS)

    def _tls_if_changed(self) -> Any:
        """The same for the next connection, in a thread of gRPC's; None: nothing has changed."""
        try:
            state, before = self._current_tls_state(), self._tls_state
            self._tls_state = state
            return self._tls() if state != before else None
        except (TacitError, OSError) as error:
            self._notices.report("this server", str(error))
            return None

    async def _look_often(self) -> None:
        """Close the connections of sites that were removed; warn of certificates that expire."""
        warned = 0.0
        while True:
            try:
                self._guests.refresh()
                self._close_removed()
                if warned + SECONDS_BETWEEN_WARNINGS < time.monotonic() or not warned:
                    warned = time.monotonic()
                    self._warn()
            except (TacitError, OSError) as error:
                self._notices.report("this server", str(error))
            await asyncio.sleep(SECONDS_TO_NOTICE_REMOVAL)

    def _close_removed(self) -> None:
        for site in self._sites.values():
            if site.link is not None and self._guests.find(site.link.fingerprint) is None:
                self._notices.report(site.name, "its connection was closed: its certificate is no longer enrolled.")
                site.link.close()

    def _warn(self) -> None:
        ends = {name: enrolment.ends for name, enrolment in self._guests.enrolments.items()}
        ends["this server"] = max(each.ends for each in self._kit.keyring.certificates())
        for sentence in warn_of_expiry(ends):
            self._say(sentence)

    # Connections

    async def _serve(self, _: Any, context: Any) -> None:
        """The only method that a peer can call."""
        try:
            await self._connect(context)
        except grpc.aio.AbortError:
            raise
        except Exception as error:  # of a stream that ended meanwhile
            self._notices.report("a stranger", f"a connection failed ({type(error).__name__}).")

    async def _connect(self, context: Any) -> None:
        auth = context.auth_context()
        fingerprint = fingerprint_of(auth["x509_pem_cert"][0])
        guest = self._guests.find(fingerprint)
        site = None if guest is None else self._site(guest[0])
        if guest is None or site is None:
            self._notices.report("a stranger", "its certificate is not that of an enrolled site.")
            await _refuse(context, grpc.StatusCode.PERMISSION_DENIED, "this certificate is not enrolled")
        if auth["ssl_tls_version"][0].decode() != TLS_VERSION:
            await _refuse(context, grpc.StatusCode.PERMISSION_DENIED, f"{TLS_VERSION} is needed")
        hello = await self._greet(site, context, fingerprint, guest[1])
        link = _SiteLink(context, site, fingerprint, hello, self._limit)
        async with site.arriving:
            old = site.link
            if old is not None and old.hello.process != hello.process and await old.answers():
                self._notices.report(site.name, f"a second connection was refused, from {context.peer()}.")
                await _refuse(context, grpc.StatusCode.ALREADY_EXISTS, "another process of this site is connected")
            if old is not None:
                old.close()
                site.disconnect(old)
            site.connect(link, hello)
            link.welcome()
        await self._keep(link, context)

    async def _greet(self, site: _Site, context: Any, fingerprint: str, identity: bytes) -> Hello:
        """The site's hello; who has its certificate and not its identity key gets no further."""
        nonce, task = secrets.token_bytes(HELLO_NONCE), asyncio.current_task()
        assert task is not None
        site.strangers.append(task)
        if len(site.strangers) > MAX_STRANGERS:
            site.strangers.pop(0).cancel()
        receiver, hello = Receiver({Kind.HELLO: MAX_HELLO}), None
        try:
            async with asyncio.timeout(SECONDS_TO_SAY_HELLO):
                link = FrameStream(context.read, context.write)
                await context.write(next(frames(Kind.CHALLENGE, body=nonce)))
                async for message in link.messages(receiver):
                    hello = Hello.read(message.body or b"", nonce, fingerprint, identity)
                    break
        except (ProtocolError, TimeoutError) as error:
            text = str(error) or "it said nothing"
            self._notices.report(
                f"whoever has the certificate of {site.name}", f"refused without its identity key: {text}."
            )
        finally:
            if task in site.strangers:
                site.strangers.remove(task)
        if hello is None:
            await _refuse(context, grpc.StatusCode.UNAUTHENTICATED, "the site's identity key has not signed")
        return hello

    async def _keep(self, link: _SiteLink, context: Any) -> None:
        """Until the stream ends, or is closed."""
        site, work, pump = link.site, asyncio.ensure_future(link.run()), asyncio.ensure_future(link.pump())
        self._notices.report(site.name, "connected.")
        site.change()
        problem = ""
        try:
            await _any([work, pump, link.closed], None)
            if work.done() and isinstance(error := work.exception(), ProtocolError):
                problem = f"it sent {error}."
                self._notices.report(site.name, problem)
                for ask in site.asks.values():
                    ask.finish(Failure("error", f"{site.name} was disconnected: {problem}"))
        finally:
            work.cancel()
            pump.cancel()
            link.close()
            self._notices.report(site.name, "disconnected.")
            site.disconnect(link)
        if problem:
            await _refuse(context, grpc.StatusCode.INVALID_ARGUMENT, problem)


def _failure(name: str, *, late: bool, connected: bool) -> Failure:
    if late and connected:
        return Failure("late", f"{name} did not answer in time.")
    return Failure("absent", f"{name} is not connected.")


async def _refuse(context: Any, code: Any, text: str) -> NoReturn:
    await context.abort(code, text)
    raise AssertionError("abort raises")


async def _any(waited: list[Any], timeout: float | None) -> None:
    """Wait for one of these; a coroutine among them ends with the wait."""
    tasks = [asyncio.ensure_future(each) for each in waited]
    try:
        await asyncio.wait(tasks, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task, each in zip(tasks, waited, strict=True):
            if task is not each:
                task.cancel()
