"""An enclave that listens on a socket of this machine, for tests."""

import socket
import ssl
import threading
import time
from dataclasses import dataclass, field

from enclave.federation import NOW, POLICY, SEED, Federation, method
from tacit.enclave import enclave_messages
from tacit.enclave.attestation.simulated_quotes import SimulatedAttestor
from tacit.enclave.connection import EnclaveConnection, EnclaveServer
from tacit.enclave.enclave_messages import MessageType
from tacit.enclave.secure_channel import ChannelIdentity, connect, enclave_context, host_context
from tacit.enclave.simulated_enclave import simulated_host
from tacit.pieces.channels import enclave_service

ATTEST = enclave_messages.pack(MessageType.ATTEST, bytes(64))


@dataclass
class Listening:
    """An enclave behind a socket of this machine, in a thread."""

    handshake: float = 10.0
    idle: float = 10.0
    limit: int | None = None
    identity: ChannelIdentity = field(default_factory=ChannelIdentity.fresh)

    def __post_init__(self) -> None:
        self.configuration = Federation(method()).configuration
        attestor = SimulatedAttestor(insecure=True)
        self.service = enclave_service(self.configuration, method(), attestor, channel=self.identity.digest)
        listener = socket.create_server(("127.0.0.1", 0))
        self.address = listener.getsockname()
        self.server = EnclaveServer(
            listener,
            lambda request: self.service.answer(request),
            enclave_context(self.identity, self.configuration.host),
            limit=self.limit or self.service.max_frame,
            idle=self.idle,
            handshake=self.handshake,
        )
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()

    def open(self) -> socket.socket:
        return socket.create_connection(self.address, timeout=10)

    def secured(self, identity: ChannelIdentity | None = None) -> ssl.SSLSocket:
        return host_context(identity or simulated_host(SEED)).wrap_socket(self.open())

    def host(self) -> EnclaveConnection:
        return connect(self.open(), simulated_host(SEED), self.configuration.digest, POLICY, NOW, timeout=10)

    def check_alive(self) -> None:
        """The host still gets an answer, at once."""
        began, host = time.monotonic(), self.host()
        assert enclave_messages.unpack(host.ask(ATTEST)).kind is MessageType.EVIDENCE
        assert time.monotonic() - began < 5
        host.close()
