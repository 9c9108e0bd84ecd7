"""The socket between host and enclave: frames in, frames out, and a clean end whichever side stops first.

`serve` answers one connection. `EnclaveServer` listens: peers are authenticated by TLS before a frame is read, several
are served at the same time, and each has a deadline. Nothing that a peer sends ends the process.
"""

import os
import signal
import socket
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

from tacit.enclave import enclave_messages
from tacit.enclave.enclave_messages import MAX_FRAME, MessageType
from tacit.errors import EnclaveUnavailableError, ProtocolError, UserError

TIMEOUT = 600.0  # seconds that a host waits for a reply, and an enclave for the next bytes of an authenticated host
HANDSHAKE = 10.0  # seconds in which a peer must prove who it is
PEERS = 8  # authenticated connections at the same time
STRANGERS = 16  # connections at the same time that have not proved anything yet
_CHUNK = 1 << 20
_PAUSE = 0.05  # seconds before the next attempt to accept


class EnclaveConnection:
    """The host's end of the socket."""

    def __init__(self, connection: socket.socket, timeout: float = TIMEOUT) -> None:
        self._connection = connection
        connection.settimeout(timeout)

    def ask(self, request: bytes) -> bytes:
        """The enclave's reply; raises `EnclaveUnavailableError` if there is none."""
        try:
            self._connection.sendall(request)
            return enclave_messages.receive(lambda count: _read(self._connection, count), MAX_FRAME)
        except (OSError, EOFError) as error:
            raise EnclaveUnavailableError(
                "The enclave's process ended or does not answer: this round failed, and the model is unchanged. "
                "Restart the enclave; every client will verify its attestation again."
            ) from error

    def close(self) -> None:
        """Disconnect. A process that serves only this connection ends."""
        self._connection.close()


def serve(connection: socket.socket, answer: Callable[[bytes], bytes], limit: int = MAX_FRAME) -> None:
    """Answer requests of at most `limit` bytes until the other side disconnects.

    Bytes that are not a frame end the connection, because the start of the next frame is unknown; the process stays.
    """
    with connection, suppress(OSError, EOFError):
        while True:
            try:
                request = enclave_messages.receive(lambda count: _read(connection, count), limit)
            except ProtocolError as error:
                connection.sendall(enclave_messages.pack(MessageType.REFUSED, str(error).encode()))
                return
            connection.sendall(answer(request))


def _host_and_port(address: str) -> tuple[str, int] | None:
    """Those of `HOST:PORT`; None for anything else, which is the path of a local socket.

    Example:
        >>> _host_and_port("127.0.0.1:7070"), _host_and_port("enclave.sock")
        (('127.0.0.1', 7070), None)
    """
    host, colon, port = address.rpartition(":")
    return (host, int(port)) if colon and port.isdigit() else None


def connect_to(address: str, timeout: float = HANDSHAKE) -> socket.socket:
    """A socket that is connected to the enclave at this address; raises `EnclaveUnavailableError` if there is none."""
    remote = _host_and_port(address)
    try:
        if remote is not None:
            return socket.create_connection(remote, timeout)
        connection = socket.socket(socket.AF_UNIX)
        with ExitStack() as unless_connected:
            unless_connected.callback(connection.close)
            connection.connect(address)
            unless_connected.pop_all()
        return connection
    except OSError as error:
        raise EnclaveUnavailableError(
            f"No enclave answers at {address}: {error.strerror or error}. Start it (tacit enclave serve), and resume."
        ) from error


def listener(address: str) -> socket.socket:
    """A listening socket at this address; a local one can be reached by its owner only."""
    remote = _host_and_port(address)
    try:
        if remote is not None:
            return socket.create_server(remote)
        local = socket.socket(socket.AF_UNIX)
        _remove_abandoned(address)
        local.bind(address)  # nobody can connect before `listen`
        os.chmod(address, 0o600)
        local.listen()
        return local
    except OSError as error:
        raise UserError(f"Could not listen on {address}: {error.strerror}. Choose another address.") from error


def _remove_abandoned(address: str) -> None:
    """Remove the local socket that a killed process left behind; one that answers stays."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(address)
        except ConnectionRefusedError:
            with suppress(FileNotFoundError):
                Path(address).unlink()
        except OSError:  # there is none, or it is something else, which `bind` reports
            return


class EnclaveServer:
    """Serves an enclave to its host on a listening socket, until it is closed.

    Connections are accepted at once and wait for nobody: each has its own thread, which authenticates the peer within a
    deadline and then answers its frames one by one. If too many strangers wait, the one that has waited longest is
    disconnected; so is an authenticated peer that is silent for too long. Requests of all peers are answered one at a
    time.

    Args:
        listener: the listening socket; it is closed with the server.
        answer: the enclave's side of the protocol.
        context: TLS that accepts the host only.
        limit: the longest request, in bytes.
        idle: seconds of silence after which an authenticated peer is disconnected.
        handshake: seconds in which a peer must prove who it is.
    """

    def __init__(
        self,
        listener: socket.socket,
        answer: Callable[[bytes], bytes],
        context: ssl.SSLContext,
        *,
        limit: int = MAX_FRAME,
        idle: float = TIMEOUT,
        handshake: float = HANDSHAKE,
    ) -> None:
        self._listener, self._answer, self._context, self._limit = listener, answer, context, limit
        self._idle, self._handshake = idle, handshake
        self._one_request = threading.Lock()
        self._registry = threading.RLock()  # a signal may close the server while it admits a peer
        self._strangers: dict[int, socket.socket] = {}  # by file descriptor, in the order of arrival
        self._peers: set[socket.socket] = set()
        self._closed = False

    def serve_forever(self) -> None:
        """Accept connections until `close` is called in another thread or by a signal."""
        while not self._closed:
            try:
                connection, _ = self._listener.accept()
            except OSError:  # closed, or a peer that left before it was accepted, or too many open files
                if self._listener.fileno() < 0:
                    return
                time.sleep(_PAUSE)
                continue
            self._admit(connection)

    def serve_until_signalled(self) -> None:
        """Accept connections until SIGTERM or Ctrl-C."""
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, lambda *_: self.close())
        self.serve_forever()

    def close(self) -> None:
        """Stop listening, and disconnect everybody."""
        self._closed = True
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._listener.close()
        with self._registry:
            connections = (*self._strangers.values(), *self._peers)
        for connection in connections:
            _disconnect(connection)

    def _admit(self, connection: socket.socket) -> None:
        with self._registry:
            while len(self._strangers) >= STRANGERS:
                _disconnect(self._strangers.pop(next(iter(self._strangers))))
            self._strangers[connection.fileno()] = connection
        try:
            threading.Thread(target=self._serve, args=(connection, connection.fileno()), daemon=True).start()
        except RuntimeError:  # no more threads
            self._forget(connection.fileno())
            connection.close()

    def _serve(self, connection: socket.socket, number: int) -> None:
        """Authenticate one peer, and answer it until it disconnects."""
        try:
            connection.settimeout(self._handshake)
            secured = self._context.wrap_socket(connection, server_side=True)
        except (OSError, ValueError):  # it did not prove to be the host, or was disconnected
            connection.close()
            return
        finally:
            self._forget(number)
        with self._registry:
            full = len(self._peers) >= PEERS
            if not full:
                self._peers.add(secured)
        try:
            if not full:
                secured.settimeout(self._idle)
                serve(secured, self._answer_one, self._limit)
        finally:
            secured.close()
            with self._registry:
                self._peers.discard(secured)

    def _answer_one(self, request: bytes) -> bytes:
        with self._one_request:
            return self._answer(request)

    def _forget(self, number: int) -> None:
        with self._registry:
            self._strangers.pop(number, None)


def _disconnect(connection: socket.socket) -> None:
    """Wake the thread that reads from it, which then closes it."""
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def _read(connection: socket.socket, count: int) -> bytes:
    """Exactly `count` bytes; memory grows with the received bytes, not with the declared length."""
    data = bytearray()
    while len(data) < count:
        chunk = connection.recv(min(count - len(data), _CHUNK))
        if not chunk:
            raise EOFError
        data += chunk
    return bytes(data)
