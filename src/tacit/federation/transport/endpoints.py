"""The transport between a federation's server and its sites: two methods, and one implementation in-process.

A transport only delivers. The server decides whom to ask, how long to wait and what a reply means
(`federation.server`); the site decides what a request may do (`federation.site.service`).
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

FailureReason = Literal["absent", "late", "error"]
Handler = Callable[[str, bytes], bytes]  # a site: its `handle(verb, request)`


@dataclass(frozen=True)
class Failure:
    """Why a site sent no reply.

    Attributes:
        reason: `absent`: it is not connected; `late`: it did not answer in time; `error`: the transport failed.
        text: details for people.
    """

    reason: FailureReason
    text: str = ""


class Transport(Protocol):
    """The server's transport to its sites."""

    def sites(self) -> tuple[str, ...]:
        """The names of the currently connected sites."""

    def ask(self, verb: str, requests: Mapping[str, bytes], timeout: float) -> Mapping[str, bytes | Failure]:
        """Send each named site its own request; returns an entry for each, within `timeout` seconds."""


@dataclass(frozen=True)
class InProcess:
    """Sites in this process, asked one after another: for tests and laws.

    If a site's handler raises, it counts as a transport error: a real site would lose its connection.

    Attributes:
        handlers: every connected site's `handle`, by name.
        clock: seconds, for timeouts.
    """

    handlers: Mapping[str, Handler]
    clock: Callable[[], float] = time.monotonic

    def sites(self) -> tuple[str, ...]:
        return tuple(self.handlers)

    def ask(self, verb: str, requests: Mapping[str, bytes], timeout: float) -> Mapping[str, bytes | Failure]:
        deadline = self.clock() + timeout
        return {name: self._one(name, verb, request, deadline) for name, request in requests.items()}

    def _one(self, name: str, verb: str, request: bytes, deadline: float) -> bytes | Failure:
        handler = self.handlers.get(name)
        if handler is None:
            return Failure("absent", f"{name} is not connected")
        if self.clock() > deadline:
            return Failure("late", f"{name} was not reached in time")
        try:
            reply = handler(verb, request)
        except Exception as error:
            return Failure("error", f"{type(error).__name__}: {error}")
        return Failure("late", f"{name} answered too late") if self.clock() > deadline else reply
