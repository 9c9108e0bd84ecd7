"""Our component in NVFLARE's server process and in each site's: opaque bytes by `send_aux_request`, a thread per site.

NVFLARE 2.9.0 cannot multicast (`multicast_aux_requests` raises TypeError), and a request to a site that dies while it
works waits for its full time. A short request on a second topic, answered at once, notices that within seconds.
"""

import secrets
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYetError
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import ReservedKey, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal

from tacit.federation.nvflare import process
from tacit.federation.relay import Relay
from tacit.federation.transport import Failure, FailureReason

ASK = "tacit.ask"
ALIVE = "tacit.alive"
SECONDS_BETWEEN_CHECKS = 1.0
SECONDS_TO_BE_ALIVE = 5.0
MAX_THREADS = 256
_REASONS: dict[str, FailureReason] = {ReturnCode.TIMEOUT: "late", ReturnCode.COMMUNICATION_ERROR: "absent"}


class ServerComponent(FLComponent):  # type: ignore[misc]
    """In the server's process: serves the transport on the local socket."""

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Start with the process."""
        if event_type == EventType.SYSTEM_START:
            relay = Relay(NvflareTransport(fl_ctx.get_engine()), process.hosted_socket())
            threading.Thread(target=relay.serve_forever, daemon=True).start()
            process.say("The server is ready.")


class SiteComponent(FLComponent):  # type: ignore[misc]
    """In a site's process: gives each request to the site's handler.

    What goes wrong is told to the site's operator, and to the server only that it did: an error's text may be private.
    """

    def __init__(self) -> None:
        FLComponent.__init__(self)
        self._process = secrets.token_bytes(16)  # another one after a restart

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """Answer as soon as this site is registered."""
        if event_type == EventType.SYSTEM_START:
            self._handle = process.hosted_site()
            engine = fl_ctx.get_engine()
            engine.register_aux_message_handler(ASK, self._answer)
            engine.register_aux_message_handler(ALIVE, self._alive)
            process.say(f"Connected to the server as {fl_ctx.get_identity_name()}.")

    def _alive(self, topic: str, request: Shareable, fl_ctx: FLContext) -> Shareable:
        return _packed(self._process)

    def _answer(self, topic: str, request: Shareable, fl_ctx: FLContext) -> Shareable:
        verb, data = request.get("verb"), request.get("data")
        if not isinstance(verb, str) or not isinstance(data, bytes):
            process.say("A request was refused: it is not a verb and bytes.")
            return make_reply(ReturnCode.BAD_REQUEST_DATA)
        try:
            reply = self._handle(verb, data)
        except Exception as error:
            process.say(f"{verb}: no answer to {len(data)} bytes. {type(error).__name__}: {error}")
            return make_reply(ReturnCode.EXECUTION_EXCEPTION)
        process.say(f"{verb}: received {len(data)} bytes, sent {len(reply)}.")
        return _packed(reply)


class NvflareTransport:
    """The transport of the server's process.

    Args:
        engine: NVFLARE's server engine.
    """

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    def sites(self) -> tuple[str, ...]:
        names = sorted(client.name for client in self._engine.get_clients())
        answers = self._for_each(names, self._incarnation)
        return tuple(name for name in names if isinstance(answers[name], bytes))

    def ask(self, verb: str, requests: Mapping[str, bytes], patience: float) -> Mapping[str, bytes | Failure]:
        deadline = time.monotonic() + patience
        return self._for_each(list(requests), lambda name: self._one(name, verb, requests[name], deadline))

    def _for_each(self, names: list[str], act: Callable[[str], bytes | Failure]) -> dict[str, bytes | Failure]:
        if not names:
            return {}
        with ThreadPoolExecutor(min(len(names), MAX_THREADS)) as pool:
            return dict(zip(names, pool.map(act, names), strict=True))

    def _one(self, name: str, verb: str, request: bytes, deadline: float) -> bytes | Failure:
        """One site's reply, until the deadline or until its process has ended."""
        abort = Signal()
        answer = _in_thread(lambda: self._send(name, ASK, _packed(request, verb), deadline - time.monotonic(), abort))
        first: bytes | None = None
        while (left := deadline - time.monotonic()) > 0:
            try:
                return answer.result(min(left, SECONDS_BETWEEN_CHECKS))
            except NotYetError:
                now = self._incarnation(name)
                if isinstance(now, Failure) and now.reason == "absent":
                    break
                if isinstance(now, bytes):
                    first = first or now
                    if now != first:
                        break
        abort.trigger("")
        if answer.done():
            return answer.result()
        if left > 0:
            return Failure("absent", f"{name} disconnected or restarted before it answered.")
        return Failure("late", f"{name} did not answer in time.")

    def _incarnation(self, name: str) -> bytes | Failure:
        """What identifies the site's process."""
        return self._send(name, ALIVE, _packed(b""), SECONDS_TO_BE_ALIVE, Signal())

    def _send(self, name: str, topic: str, message: Shareable, patience: float, abort: Signal) -> bytes | Failure:
        if self._engine.get_client_from_name(name) is None:
            return Failure("absent", f"{name} is not connected.")
        with self._engine.new_context() as ctx:
            ctx.put(key=ReservedKey.RUN_ABORT_SIGNAL, value=abort, private=True, sticky=False)
            replies = self._engine.send_aux_request([name], topic, message, max(patience, 0.001), ctx)
        return _read(name, (replies or {}).get(name))


def _packed(data: bytes, verb: str = "") -> Shareable:
    message = make_reply(ReturnCode.OK)
    message["verb"], message["data"] = verb, data
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
    """A future whose thread does not keep the process alive, nor its caller waiting."""
    future: Future[bytes | Failure] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except Exception as error:
            future.set_result(Failure("error", f"{type(error).__name__}: {error}"))

    threading.Thread(target=run, daemon=True).start()
    return future
