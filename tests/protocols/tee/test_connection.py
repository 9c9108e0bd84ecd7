"""The socket between host and enclave: other bytes end a connection, never the process."""

import socket
import struct
import threading
from collections.abc import Iterator

import pytest

from protocols.tee.federation import Federation, method
from tacit.errors import EnclaveRefusedError, EnclaveUnavailableError, ProtocolError
from tacit.protocols.tee import EnclaveConnection, MessageType, enclave_messages, serve
from tacit.wire.packing import pack_number

Address = tuple[str, int]


@pytest.fixture
def listening() -> Iterator[Address]:
    """An enclave service behind a socket, in a thread; connections are served one after the other."""
    federation = Federation(method())
    listener = socket.create_server(("127.0.0.1", 0))

    def run() -> None:
        while not serve(listener.accept()[0], federation.service.answer):
            pass

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    yield listener.getsockname()
    EnclaveConnection(socket.create_connection(listener.getsockname())).close()
    thread.join(10)
    assert not thread.is_alive()
    listener.close()


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n" * 4,
        enclave_messages.pack(MessageType.OPEN_ROUND)[:8] + struct.pack("<II", (1 << 32) - 1, 0),  # a length bomb
        enclave_messages.pack(MessageType.OPEN_ROUND)[:8] + struct.pack("<II", 3, 0),
        b"\x80\x04\x95" + bytes(100),  # how a pickle begins
    ],
)
def test_bytes_that_are_not_a_frame_end_the_connection_and_not_the_process(listening: Address, data: bytes) -> None:
    with socket.create_connection(listening, timeout=10) as connection:
        connection.sendall(data)
        reply = connection.recv(1000)
        with pytest.raises(EnclaveRefusedError, match="Expected a frame"):
            enclave_messages.read_reply(reply, MessageType.ROUND_OPENED)
    with socket.create_connection(listening, timeout=10) as connection:
        connection.sendall(b"TA")  # an incomplete frame
    with socket.create_connection(listening) as connection:
        evidence = EnclaveConnection(connection).ask(enclave_messages.pack(MessageType.ATTEST, bytes(64)))
        assert enclave_messages.unpack(evidence).kind is MessageType.EVIDENCE


def test_the_host_stops_waiting_for_a_silent_enclave() -> None:
    ours, theirs = socket.socketpair()
    with theirs, pytest.raises(EnclaveUnavailableError):
        EnclaveConnection(ours, timeout=0.05).ask(enclave_messages.pack(MessageType.CLOSE_ROUND, pack_number(0)))
    ours.close()


def test_frames_are_strict() -> None:
    good = enclave_messages.pack(MessageType.CLOSE_ROUND, b"abc")
    assert bytes(enclave_messages.unpack(good).body) == b"abc"
    for bad in (
        good[:-1],
        good + b"x",
        b"XACP" + good[4:],
        good[:4] + b"\x02" + good[5:],
        good[:5] + b"\x63" + good[6:],
    ):
        with pytest.raises(ProtocolError):
            enclave_messages.unpack(bad)
    with pytest.raises(ProtocolError, match="to 18 bytes"):
        enclave_messages.unpack(good, limit=18)
