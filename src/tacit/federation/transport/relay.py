"""A transport of another process on this machine, reached through a local socket.

The process connected to the sites runs for months. Each run has a process of its own, which may end or crash and sends
its requests through this socket. Only the socket's user can connect. Nothing is unpickled.
"""

import json
import os
import socket
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Client, Connection
from pathlib import Path

from tacit.errors import UserError
from tacit.federation.transport.endpoints import Failure, Transport

SOCKET = "relay.sock"
MAX_PATH = 107  # bytes of a local socket's path on Linux
SECONDS_BETWEEN_TRIES = 0.2
BACKLOG = 64
GRACE = 5.0  # seconds for the bytes to pass the local socket, in addition to the timeout with sites


class Relay:
    """The end with the transport: answers each connection in its own thread, until the process ends."""

    def __init__(self, transport: Transport, path: Path) -> None:
        self._transport = transport
        with suppress(FileNotFoundError):
            path.unlink()  # of a process that was killed
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(_address(path))  # nobody can connect before `listen`
        os.chmod(path, 0o600)
        self._listener.listen(BACKLOG)

    def serve_forever(self) -> None:
        """Accept connections."""
        while True:
            with suppress(OSError, EOFError):  # of this connection only
                link = Connection(self._listener.accept()[0].detach())
                threading.Thread(target=self._answer, args=(link,), daemon=True).start()

    def _answer(self, link: Connection) -> None:
        with suppress(OSError, EOFError, ValueError, LookupError, TypeError), link:  # it disconnected, or sent nonsense
            question = json.loads(link.recv_bytes())
            if question is None:
                link.send_bytes(json.dumps(self._transport.sites()).encode())
                return
            contents = [link.recv_bytes() for _ in range(question["contents"])]
            requests = {name: contents[number] for name, number in question["sites"].items()}
            replies = self._transport.ask(question["verb"], requests, question["timeout"])
            failures = {name: [got.reason, got.text] for name, got in replies.items() if isinstance(got, Failure)}
            link.send_bytes(json.dumps(failures).encode())
            for name in requests:
                reply = replies[name]
                if not isinstance(reply, Failure):
                    link.send_bytes(reply)


@dataclass(frozen=True)
class RelayTransport:
    """The calling end, a `Transport`. While the other process restarts, `ask` waits within its timeout.

    Attributes:
        path: the local socket.
    """

    path: Path

    def sites(self) -> tuple[str, ...]:
        try:
            with self._connect() as link:
                link.send_bytes(b"null")
                return tuple(json.loads(link.recv_bytes()))
        except (OSError, EOFError):
            return ()

    def ask(self, verb: str, requests: Mapping[str, bytes], timeout: float) -> Mapping[str, bytes | Failure]:
        deadline = time.monotonic() + timeout
        try:
            with self._connect_until(deadline) as link:
                return _exchange(link, verb, requests, deadline)
        except (OSError, EOFError):
            return dict.fromkeys(requests, Failure("error", "The process that is connected to the sites ended."))

    def validate(self) -> None:
        """Raise `UserError` unless the other process is running."""
        try:
            self._connect().close()
        except OSError as error:
            raise UserError(
                f"Could not reach the federation's server at {self.path}: {error.strerror}. "
                "Start it with tacit federation serve, or give its folder with --folder."
            ) from error

    def _connect_until(self, deadline: float) -> Connection:
        while True:
            try:
                return self._connect()
            except OSError:
                if time.monotonic() + SECONDS_BETWEEN_TRIES > deadline:
                    raise
                time.sleep(SECONDS_BETWEEN_TRIES)

    def _connect(self) -> Connection:
        return Client(_address(self.path), family="AF_UNIX")


def _exchange(
    link: Connection, verb: str, requests: Mapping[str, bytes], deadline: float
) -> dict[str, bytes | Failure]:
    timeout = max(0.0, deadline - time.monotonic())
    contents = {content: number for number, content in enumerate(dict.fromkeys(requests.values()))}  # a broadcast: once
    numbers = {name: contents[content] for name, content in requests.items()}
    question = {"verb": verb, "timeout": timeout, "sites": numbers, "contents": len(contents)}
    link.send_bytes(json.dumps(question).encode())
    for content in contents:
        link.send_bytes(content)
    if not link.poll(max(0.0, deadline - time.monotonic()) + GRACE):
        return dict.fromkeys(requests, Failure("late", "No answer from the process that is connected to the sites."))
    failures = json.loads(link.recv_bytes())
    return {name: Failure(*failures[name]) if name in failures else link.recv_bytes() for name in requests}


def _address(path: Path) -> str:
    """The socket's path for the system call: the shorter of the absolute and the relative."""
    address = min(str(path.absolute()), os.path.relpath(path), key=len)
    if len(os.fsencode(address)) > MAX_PATH:
        raise UserError(
            f"Expected the path of the socket {path} to have at most {MAX_PATH} bytes, got "
            f"{len(os.fsencode(address))}. Move the folder, or change to it first."
        )
    return address


def free_port() -> int:
    """A currently unused port of this machine."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])
