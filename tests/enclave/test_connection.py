"""The socket between host and enclave: only the host is served, nobody blocks it, and nothing ends the process."""

import socket
import ssl
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from enclave.federation import NOW, POLICY, SEED
from enclave.listening import ATTEST, Listening
from tacit.enclave import connection, enclave_messages, secure_channel
from tacit.enclave.connection import EnclaveConnection
from tacit.enclave.enclave_messages import MessageType
from tacit.enclave.secure_channel import ChannelIdentity, connect
from tacit.enclave.simulated_enclave import simulated_host
from tacit.errors import EnclaveRefusedError, EnclaveUnavailableError, ProtocolError
from tacit.protocols.kit import ProtocolId, pack_frame
from tacit.wire.packing import pack_number

MAGIC = b"TACP"


@pytest.fixture
def listening() -> Iterator[Callable[..., Listening]]:
    """Starts enclaves, and stops them after the test."""
    started: list[Listening] = []

    def start(**settings: Any) -> Listening:
        started.append(Listening(**settings))
        return started[-1]

    yield start
    for each in started:
        each.server.close()
        each.thread.join(10)
        assert not each.thread.is_alive()


@pytest.mark.parametrize("version", [0, 1, 3, 255])
def test_a_certificate_of_another_version_is_refused(version: int) -> None:
    own = secure_channel.certificate(bytes(range(32)))
    assert secure_channel.read_certificate(own) == own
    with pytest.raises(ProtocolError, match=r"an X\.509 certificate"):
        secure_channel.read_certificate(own.replace(b"\xa0\x03\x02\x01\x02", bytes([0xA0, 3, 2, 1, version])))


def test_only_the_host_of_the_configuration_is_served(listening) -> None:
    enclave = listening()
    enclave.check_alive()
    with pytest.raises(EnclaveUnavailableError):
        connect(enclave.open(), ChannelIdentity.fresh(), enclave.configuration.digest, POLICY, NOW, timeout=10)
    stranger = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    stranger.check_hostname, stranger.verify_mode = False, ssl.CERT_NONE
    with stranger.wrap_socket(enclave.open()) as secured:  # no certificate
        with suppress(OSError):
            secured.sendall(ATTEST)
        assert _all(secured) == b""
    with enclave.open() as plain:  # no TLS: what it sends is not read as frames
        plain.sendall(ATTEST)
        assert MAGIC not in _all(plain)
    enclave.check_alive()


def test_the_host_verifies_the_enclave_at_the_other_end(listening) -> None:
    """A quote of the right enclave does not help whoever relays it through another connection."""
    enclave = listening()
    digest, host = enclave.configuration.digest, simulated_host(SEED)
    with pytest.raises(ProtocolError, match="its configuration is another one"):
        connect(enclave.open(), host, bytes(32), POLICY, NOW)
    with pytest.raises(ProtocolError, match="without any isolation"):
        connect(enclave.open(), host, digest, replace(POLICY, simulation=False), NOW)
    genuine = enclave.service
    relay = listening()
    relay.service = genuine
    with pytest.raises(ProtocolError, match="does not bind the certificate of this connection"):
        connect(relay.open(), host, digest, POLICY, NOW)


def test_nobody_blocks_the_host(listening) -> None:
    """Idle strangers, an idle host, half a handshake, half a frame."""
    enclave = listening()
    idle = [enclave.open() for _ in range(20)]
    for each in idle[:5]:
        each.sendall(b"\x16\x03\x01")
    hosts = [enclave.secured() for _ in range(3)]
    hosts[0].sendall(ATTEST[:7])
    host = enclave.host()
    assert enclave_messages.unpack(host.ask(ATTEST)).kind is MessageType.EVIDENCE
    for each in (*idle, *hosts, host):
        each.close()


def test_more_strangers_than_there_is_room_for(listening, monkeypatch) -> None:
    monkeypatch.setattr(connection, "STRANGERS", 4)
    enclave = listening()
    idle = [enclave.open() for _ in range(12)]
    enclave.check_alive()
    for each in idle[:8]:
        assert _all(each) == b""  # disconnected
    for each in idle:
        each.close()


def test_more_peers_than_there_is_room_for(listening, monkeypatch) -> None:
    monkeypatch.setattr(connection, "PEERS", 2)
    enclave = listening()
    hosts = [enclave.host() for _ in range(2)]
    with pytest.raises(EnclaveUnavailableError):
        enclave.host()
    hosts[0].close()
    hosts[1].close()
    deadline = time.monotonic() + 10
    while len(enclave.server._peers) == 2:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    enclave.check_alive()


def test_silence_has_an_end(listening) -> None:
    enclave = listening(handshake=0.2, idle=0.2)
    with enclave.open() as stranger, enclave.secured() as host:
        host.sendall(ATTEST[:7])
        assert _all(stranger) == b""
        assert _all(host) == b""
    enclave.check_alive()


def test_a_frame_beyond_the_limit_is_refused_before_it_is_read(listening) -> None:
    enclave = listening(limit=1000)
    with enclave.secured() as host:
        host.sendall(enclave_messages.pack(MessageType.FORWARD_UPLOAD, bytes(100_000))[:16])
        with pytest.raises(EnclaveRefusedError, match="16 to 1000 bytes, got one that declares 100016"):
            enclave_messages.read_reply(_all(host), MessageType.RECEIPT)
    enclave.check_alive()


def test_an_error_inside_does_not_end_the_service(listening, monkeypatch) -> None:
    enclave = listening()
    monkeypatch.setattr(enclave.service, "_attest", lambda _: 1 / 0)
    with pytest.raises(EnclaveRefusedError, match=r"could not be processed \(ZeroDivisionError\)"):
        enclave.host()
    monkeypatch.undo()
    enclave.check_alive()


def test_no_message_stops_the_service(listening) -> None:
    """There was one, for everybody; the process ends by a signal only."""
    enclave = listening()
    host = enclave.host()
    for kind in range(256):
        reply = host.ask(pack_frame(ProtocolId.ENCLAVE, kind))
        assert enclave_messages.unpack(reply).kind in {MessageType.REFUSED, MessageType.RECEIPT}
    host.close()
    enclave.check_alive()


def _all(connection: socket.socket) -> bytes:
    """Everything until the other side disconnects."""
    data = b""
    try:
        while chunk := connection.recv(1000):
            data += chunk
    except (ConnectionError, ssl.SSLError):
        pass
    return data


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n" * 4,
        enclave_messages.pack(MessageType.OPEN_ROUND)[:8] + struct.pack("<II", (1 << 32) - 1, 0),  # a length bomb
        enclave_messages.pack(MessageType.OPEN_ROUND)[:8] + struct.pack("<II", 3, 0),
        b"\x80\x04\x95" + bytes(100),  # how a pickle begins
    ],
)
def test_bytes_that_are_not_a_frame_end_the_connection_and_not_the_process(listening, data: bytes) -> None:
    enclave = listening()
    with enclave.secured() as host:
        host.sendall(data)
        with pytest.raises(EnclaveRefusedError, match="Expected a frame"):
            enclave_messages.read_reply(_all(host), MessageType.ROUND_OPENED)
    with enclave.secured() as host:
        host.sendall(b"TA")  # an incomplete frame
    enclave.check_alive()


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
