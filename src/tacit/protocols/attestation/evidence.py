"""What travels from an enclave to those who want to know it, and what its report data bind."""

import hashlib
from dataclasses import dataclass
from enum import IntEnum

from tacit.errors import ProtocolError
from tacit.protocols.crypto import KEY
from tacit.wire.packing import LENGTH, Reader, number, pack_chunk

REPORT_DATA = 64  # bytes
MOST_QUOTE = 1 << 16
MOST_COLLATERAL = 1 << 20
MOST_LINKS = 1 << 16
_DOMAIN = b"tacit enclave 1\0"


class Kind(IntEnum):
    """Whose statement a quote is."""

    SGX = 1  # an Intel SGX enclave, signed through DCAP
    TDX = 2  # an Intel TDX virtual machine, signed through DCAP
    SIMULATION = 255  # nobody's: there is no isolation

    @property
    def label(self) -> str:
        """The name in print."""
        return {Kind.SGX: "sgx-dcap", Kind.TDX: "tdx-dcap", Kind.SIMULATION: "SIMULATION-INSECURE"}[self]


@dataclass(frozen=True)
class Binding:
    """What an enclave swears by: its key, the nonce of whoever asks, its configuration, its ledger's head.

    Each has 32 bytes. The nonce comes from the verifier, so that no old quote can answer it.
    """

    key: bytes
    nonce: bytes
    config: bytes
    head: bytes

    @property
    def report_data(self) -> bytes:
        """The 64 bytes that go into the quote; each part with its length, so that none can pass for another."""
        parts = (self.key, self.nonce, self.config, self.head)
        return hashlib.sha512(_DOMAIN + b"".join(number(len(part), LENGTH) + part for part in parts)).digest()


@dataclass(frozen=True)
class Evidence:
    """A quote, what it is about, and what is needed to verify it.

    Attributes:
        kind: of the quote.
        quote: as the processor's vendor defines it. It is malleable: its hash identifies nothing.
        collateral: the vendor's statements about processor and firmware, as JSON; empty if the verifier has its own.
        key: the enclave's public X25519 key.
        config: the digest of its configuration.
        head: its ledger's head.
        links: how the head follows from the one that the verifier remembers.
    """

    kind: Kind
    quote: bytes
    collateral: bytes
    key: bytes
    config: bytes
    head: bytes
    links: tuple[bytes, ...] = ()

    def binding(self, nonce: bytes) -> Binding:
        """What its report data must bind for whoever drew this nonce."""
        return Binding(self.key, nonce, self.config, self.head)

    def pack(self) -> bytes:
        """All of it."""
        links = number(len(self.links)) + b"".join(self.links)
        fixed = number(self.kind, 1) + self.key + self.config + self.head
        return fixed + pack_chunk(self.quote) + pack_chunk(self.collateral) + links

    @classmethod
    def read(cls, reader: Reader) -> "Evidence":
        """What was packed."""
        kind = reader.number(1)
        if kind not in Kind.__members__.values():
            raise ProtocolError(f"Expected a known kind of quote, got {kind}.")
        key, config, head = (reader.take(KEY) for _ in range(3))
        quote, collateral = reader.chunk(MOST_QUOTE), reader.chunk(MOST_COLLATERAL)
        count = reader.number()
        if count > MOST_LINKS:
            raise ProtocolError(f"Expected at most {MOST_LINKS} links, got {count}.")
        links = tuple(reader.take(KEY) for _ in range(count))
        return cls(Kind(kind), quote, collateral, key, config, head, links)
