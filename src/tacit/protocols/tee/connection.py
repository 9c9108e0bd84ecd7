"""The socket between host and enclave: frames in, frames out, and a clean end whichever side stops first."""

import socket
from collections.abc import Callable
from contextlib import suppress

from tacit.errors import EnclaveUnavailableError, ProtocolError
from tacit.protocols.tee import enclave_messages
from tacit.protocols.tee.enclave_messages import MAX_FRAME, MessageType

TIMEOUT = 600.0  # seconds that a host waits for a reply
_CHUNK = 1 << 20


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
        """Shut the enclave down."""
        with suppress(OSError):  # it may have ended already
            self._connection.sendall(enclave_messages.pack(MessageType.SHUT_DOWN))
        self._connection.close()


def serve(connection: socket.socket, answer: Callable[[bytes], bytes]) -> bool:
    """Answer requests until the other side disconnects or sends SHUT_DOWN; returns whether it sent SHUT_DOWN.

    Bytes that are not a frame end the connection, because the start of the next frame is unknown; the process stays.
    """
    with connection:
        while True:
            try:
                request = enclave_messages.receive(lambda count: _read(connection, count), MAX_FRAME)
                kind = enclave_messages.unpack(request).kind
            except (OSError, EOFError):
                return False
            except ProtocolError as error:
                _send(connection, enclave_messages.pack(MessageType.REFUSED, str(error).encode()))
                return False
            if kind is MessageType.SHUT_DOWN:
                return True
            if not _send(connection, answer(request)):
                return False


def _send(connection: socket.socket, reply: bytes) -> bool:
    try:
        connection.sendall(reply)
    except OSError:
        return False
    return True


def _read(connection: socket.socket, count: int) -> bytes:
    """Exactly `count` bytes; memory grows with what was received, not with what was declared."""
    data = bytearray()
    while len(data) < count:
        chunk = connection.recv(min(count - len(data), _CHUNK))
        if not chunk:
            raise EOFError
        data += chunk
    return bytes(data)
