"""The socket between host and enclave: frames in, frames out, and a clean end whichever side dies."""

import socket
from collections.abc import Callable
from contextlib import suppress

from tacit.errors import ProtocolError
from tacit.protocols.enclave import frames
from tacit.protocols.enclave.errors import EnclaveGoneError
from tacit.protocols.enclave.frames import MOST, Verb

PATIENCE = 600.0  # seconds that a host waits for an answer
_PIECE = 1 << 20


class Link:
    """The host's end."""

    def __init__(self, connection: socket.socket, patience: float = PATIENCE) -> None:
        self._connection = connection
        connection.settimeout(patience)

    def ask(self, request: bytes) -> bytes:
        """The enclave's reply; `EnclaveGoneError` if there will be none."""
        try:
            self._connection.sendall(request)
            return frames.receive(lambda count: _take(self._connection, count), MOST)
        except (OSError, EOFError) as error:
            raise EnclaveGoneError(
                "The enclave's process ended or fell silent: this round is lost, and the model stays as it was. "
                "Start the enclave again; every client will want to see its attestation."
            ) from error

    def close(self) -> None:
        """Tell the enclave to stop."""
        with suppress(OSError):  # it may be gone already
            self._connection.sendall(frames.pack(Verb.END))
        self._connection.close()


def serve(connection: socket.socket, answer: Callable[[bytes], bytes]) -> bool:
    """Answer until the other side hangs up or says END; whether it said END.

    Bytes that are no frame end the connection, since nobody knows where the next frame begins; the process stays.
    """
    with connection:
        while True:
            try:
                request = frames.receive(lambda count: _take(connection, count), MOST)
            except (OSError, EOFError):
                return False
            except ProtocolError as error:
                _say(connection, frames.pack(Verb.REFUSED, str(error).encode()))
                return False
            if frames.unpack(request).verb is Verb.END:
                return True
            if not _say(connection, answer(request)):
                return False


def _say(connection: socket.socket, reply: bytes) -> bool:
    try:
        connection.sendall(reply)
    except OSError:
        return False
    return True


def _take(connection: socket.socket, count: int) -> bytes:
    """Exactly so many bytes; memory grows with what really came, not with what was promised."""
    taken = bytearray()
    while len(taken) < count:
        piece = connection.recv(min(count - len(taken), _PIECE))
        if not piece:
            raise EOFError
        taken += piece
    return bytes(taken)
