"""Our component in NVFLARE's server process and in each site's: opaque bytes by `send_aux_request`, a thread per site.

NVFLARE 2.9.0 cannot multicast (`multicast_aux_requests` raises TypeError). A request to a site that dies at work waits
for its full timeout. Messages can be lost, such as one to a connected but unregistered site, which answers without a
token. A short request on a second topic, answered at once, detects a dead site within seconds. It also reports whether
the site works on the request. If it does not for longer than a message travels, the request is sent again under the
same number, and the site never handles it twice.

A process that ends closes its connection, which is detected at once, so silence means a busy machine or a broken line.
A site that works on a request has the plan's timeout. Between requests, checks repeat for 30 s before a site counts as
disconnected, and for 6 s thereafter, so that a broken line does not delay the other sites more in every round.
"""

import secrets
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import ReservedKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal
from nvflare.fuel.f3.cellnet.defs import CellChannel, MessageHeaderKey
from nvflare.fuel.f3.cellnet.defs import ReturnCode as CellReturnCode
from nvflare.fuel.f3.message import Message
from nvflare.private.defs import new_cell_message

from tacit.federation.transport.endpoints import Failure, FailureReason
from tacit.federation.transport.nvflare import process
from tacit.federation.transport.nvflare.accepted_messages import ALIVE, ASK, ROOT_SERVER, Refusals
from tacit.federation.transport.relay import Relay

SECONDS_BETWEEN_CHECKS = 1.0
SECONDS_OF_A_CHECK = 5.0
SECONDS_TO_BE_ALIVE = (2.0, 4.0, 8.0, 16.0)  # of consecutive checks: short ones first, as messages can be lost
CHECKS_OF_SILENT = 2  # how many of these for a site that was silent before
SECONDS_TO_TRAVEL = 10.0  # of a small message at most; after that it is lost
SLOWEST = 100_000.0  # bytes per second: the extra time for a large one
MAX_THREADS = 256
TOKEN = 16  # bytes of a random number
MAX_VERB = 20  # characters; longer than any verb of a site
_SILENT = Failure("late", "It does not answer.")
_REASONS: dict[str, FailureReason] = {ReturnCode.TIMEOUT: "late", ReturnCode.COMMUNICATION_ERROR: "absent"}


class ServerComponent(FLComponent):  # type: ignore[misc]
    """In the server's process: serves the transport on the local socket."""

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Start with the process."""
        if event_type == EventType.SYSTEM_START:
            relay = Relay(NvflareTransport(fl_ctx.get_engine()), process.hosted())
            threading.Thread(target=relay.serve_forever, daemon=True).start()
            process.say("The server is ready.")


class SiteComponent(FLComponent):  # type: ignore[misc]
    """In a site's process: passes requests of the server, and of nobody else, to the site's handler.

    Only the site's operator sees the text of an error, since it may be private. NVFLARE's cell calls this component,
    since handlers of auxiliary messages do not learn the sender.
    """

    def __init__(self) -> None:
        FLComponent.__init__(self)
        self._refusals = Refusals()
        self._process = secrets.token_bytes(TOKEN)  # new after a restart
        self._lock = threading.Lock()
        self._working = b""  # the number of the current request
        self._last = b"", b""  # the number of the last request, and the reply to it

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Start to answer once this site is registered."""
        if event_type == EventType.SYSTEM_START:
            self._handle = process.hosted()
            cell, channel = fl_ctx.get_engine().get_cell(), CellChannel.AUX_COMMUNICATION
            cell.register_request_cb(channel=channel, topic=ASK, cb=self._from_server(self._answer))
            cell.register_request_cb(channel=channel, topic=ALIVE, cb=self._from_server(self._alive))
            process.say(f"Connected to the server as {fl_ctx.get_identity_name()}.")

    def _from_server(self, act: Callable[[Shareable], Shareable]) -> Callable[[Message], Message]:
        """Act on the server's requests; refuse all others, whatever their content."""

        def checked(message: Message) -> Message:
            origin, request = message.get_header(MessageHeaderKey.ORIGIN), message.payload
            if origin != ROOT_SERVER:
                self._refusals.report("another site", f"a request of {str(origin)[:60]!r}: only the server asks.")
                reply = make_reply(ReturnCode.UNAUTHENTICATED)
            else:
                reply = act(request) if isinstance(request, Shareable) else make_reply(ReturnCode.BAD_REQUEST_DATA)
            return new_cell_message({MessageHeaderKey.RETURN_CODE: CellReturnCode.OK}, reply)

        return checked

    def _alive(self, request: Shareable) -> Shareable:
        number = request.get("data")
        answered = len(self._last[1]) if number == self._last[0] else 0
        return _packed(_Look(self._process, number == self._working, answered).to_bytes())

    def _answer(self, request: Shareable) -> Shareable:
        verb, data, number = request.get("verb"), request.get("data"), request.get("number")
        if not isinstance(verb, str) or not isinstance(data, bytes) or not isinstance(number, bytes):
            self._refusals.report(ROOT_SERVER, "it is not a verb, bytes and a number.")
            return make_reply(ReturnCode.BAD_REQUEST_DATA)
        with self._lock:
            return self._answer_once(verb[:MAX_VERB], data, number)

    def _answer_once(self, verb: str, data: bytes, number: bytes) -> Shareable:
        if number == self._last[0]:
            process.say(f"{verb}: the reply was lost, and is sent again.")
            return _packed(self._last[1])
        self._working = number
        try:
            reply = self._handle(verb, data)
        except Exception as error:
            process.say(f"{verb}: no answer to {len(data)} bytes. {type(error).__name__}: {error}")
            return make_reply(ReturnCode.EXECUTION_EXCEPTION)
        finally:
            self._working = b""
        process.say(f"{verb}: received {len(data)} bytes, sent {len(reply)}.")
        if isinstance(reply, bytes):
            self._last = number, reply
        return _packed(reply)


class NvflareTransport:
    """The transport of the server's process.

    Args:
        engine: NVFLARE's server engine.
    """

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._silent: set[str] = set()  # did not answer the last check of their connection

    def sites(self) -> tuple[str, ...]:
        names = sorted(client.name for client in self._engine.get_clients())
        answers = self._for_each(names, self._incarnation)
        self._silent = {name for name, answer in answers.items() if answer == _SILENT}
        return tuple(name for name in names if isinstance(answers[name], bytes))

    def ask(self, verb: str, requests: Mapping[str, bytes], timeout: float) -> Mapping[str, bytes | Failure]:
        deadline = time.monotonic() + timeout
        return self._for_each(list(requests), lambda name: self._one(name, verb, requests[name], deadline))

    def _for_each(self, names: list[str], act: Callable[[str], bytes | Failure]) -> dict[str, bytes | Failure]:
        if not names:
            return {}
        with ThreadPoolExecutor(min(len(names), MAX_THREADS)) as pool:
            return dict(zip(names, pool.map(act, names), strict=True))

    def _one(self, name: str, verb: str, request: bytes, deadline: float) -> bytes | Failure:
        """One site's reply, unless the deadline passes or its process ends; a lost request is sent again."""
        abort, number = Signal(), secrets.token_bytes(TOKEN)

        def send() -> "Future[bytes | Failure]":
            message = _packed(request, verb, number)
            return _in_thread(lambda: self._send(name, ASK, message, deadline - time.monotonic(), abort))

        futures = [send()]
        first, idle = b"", time.monotonic()
        while (remaining := deadline - time.monotonic()) > 0:
            if done := wait(futures, min(remaining, SECONDS_BETWEEN_CHECKS), FIRST_COMPLETED).done:
                break
            now = self._look(name, number, SECONDS_OF_A_CHECK)
            if isinstance(now, Failure):
                if now.reason == "absent":
                    break
                continue
            first = first or now.process
            if now.process != first:
                break
            if now.working:
                idle = time.monotonic()
            elif time.monotonic() - idle > SECONDS_TO_TRAVEL + max(len(request), now.answered) / SLOWEST:
                futures.append(send())
                idle = time.monotonic()
        abort.trigger("")
        if done := wait(futures, 0.0, FIRST_COMPLETED).done:
            return done.pop().result()
        if remaining > 0:
            return Failure("absent", f"{name} disconnected or restarted before it answered.")
        return Failure("late", f"{name} did not answer in time.")

    def _incarnation(self, name: str) -> bytes | Failure:
        """The identifier of the site's process, once it answers; a previously silent site has less time."""
        checks = SECONDS_TO_BE_ALIVE[:CHECKS_OF_SILENT] if name in self._silent else SECONDS_TO_BE_ALIVE
        for timeout in checks:
            look = self._look(name, b"", timeout)
            if not isinstance(look, Failure):
                return look.process
            if look.reason != "late":
                return look
        return _SILENT

    def _look(self, name: str, number: bytes, timeout: float) -> "_Look | Failure":
        """The site's process, and the state of the request with this number."""
        reply = self._send(name, ALIVE, _packed(number), timeout, Signal())
        return reply if isinstance(reply, Failure) else _Look.read(reply)

    def _send(self, name: str, topic: str, message: Shareable, timeout: float, abort: Signal) -> bytes | Failure:
        if self._engine.get_client_from_name(name) is None:
            return Failure("absent", f"{name} is not connected.")
        with self._engine.new_context() as ctx:
            ctx.put(key=ReservedKey.RUN_ABORT_SIGNAL, value=abort, private=True, sticky=False)
            replies = self._engine.send_aux_request([name], topic, message, max(timeout, 0.001), ctx)
        return _read(name, (replies or {}).get(name))


@dataclass(frozen=True)
class _Look:
    """A site's process: its random number, whether it works on a request, and the length of its reply."""

    process: bytes
    working: bool
    answered: int

    def to_bytes(self) -> bytes:
        return self.process + bytes([self.working]) + self.answered.to_bytes(8, "little")

    @classmethod
    def read(cls, data: bytes) -> "_Look | Failure":
        if len(data) != TOKEN + 9:
            return Failure("error", "A site answered with something other than its state.")
        return cls(data[:TOKEN], bool(data[TOKEN]), int.from_bytes(data[TOKEN + 1 :], "little"))


def _packed(data: bytes, verb: str = "", number: bytes = b"") -> Shareable:
    message = make_reply(ReturnCode.OK)
    message["verb"], message["data"], message["number"] = verb, data, number
    return message


def _read(name: str, reply: Shareable | None) -> bytes | Failure:
    if reply is None:
        return Failure("error", f"{name} could not be asked.")
    code = reply.get_return_code()
    if code != ReturnCode.OK:
        return Failure(_REASONS.get(code, "error"), f"{name}: {code}. Its own log has the reason.")
    data = reply.get("data")
    return data if isinstance(data, bytes) else Failure("error", f"{name} replied with something other than bytes.")


def _in_thread(call: Callable[[], bytes | Failure]) -> "Future[bytes | Failure]":
    """A future whose thread keeps neither the process alive nor its caller waiting."""
    future: Future[bytes | Failure] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except Exception as error:
            future.set_result(Failure("error", f"{type(error).__name__}: {error}"))

    threading.Thread(target=run, daemon=True).start()
    return future
