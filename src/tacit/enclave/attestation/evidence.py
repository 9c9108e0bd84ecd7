"""What an enclave sends to prove itself: a quote, what its report data bind, and the log of its releases.

The release log is the enclave's record of everything that it released, a hash chain whose head is attested. The host
can restore an older file, but cannot change clients' memory: each client remembers the last head that it saw, and
requires the entries from there to the attested head. An enclave that was rolled back cannot provide them.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum

from tacit.errors import ProtocolError
from tacit.protocols.crypto import KEY
from tacit.wire.chain import GENESIS, Chain, extend
from tacit.wire.packing import Reader, pack_chunk, pack_number

REPORT_DATA = 64  # bytes
MAX_QUOTE = 1 << 16  # bytes
MAX_COLLATERAL = 1 << 20  # bytes
MAX_LOG_ENTRIES = 1 << 16
NO_CHANNEL = bytes(KEY)  # of an enclave that listens on no socket
_DOMAIN = b"tacit enclave 2\0"
_RELEASE_LOG = "release log"  # the purpose of its chain


class QuoteKind(IntEnum):
    """Which technology signs a quote."""

    SGX = 1  # an Intel SGX enclave, through DCAP
    TDX = 2  # an Intel TDX virtual machine, through DCAP
    SIMULATION = 255  # none: there is no isolation

    @property
    def label(self) -> str:
        """The name for output."""
        labels = {QuoteKind.SGX: "sgx-dcap", QuoteKind.TDX: "tdx-dcap", QuoteKind.SIMULATION: "SIMULATION-INSECURE"}
        return labels[self]


@dataclass(frozen=True)
class Binding:
    """What an enclave attests: its keys, the verifier's nonce, its configuration, the head of its release log.

    Each has 32 bytes. The nonce is drawn by the verifier, so that no old quote can answer it. `key` is that to which
    clients encrypt, `channel` the digest of the certificate of its socket.
    """

    key: bytes
    nonce: bytes
    config: bytes
    head: bytes
    channel: bytes = NO_CHANNEL

    @property
    def report_data(self) -> bytes:
        """The 64 bytes in the quote: a digest over all parts, each prefixed with its length."""
        parts = (self.key, self.nonce, self.config, self.head, self.channel)
        return hashlib.sha512(_DOMAIN + b"".join(map(pack_chunk, parts))).digest()


@dataclass(frozen=True)
class Evidence:
    """A quote, what it attests, and what is needed to verify it.

    Attributes:
        kind: of the quote.
        quote: in the format of the processor's vendor. It is malleable: its hash identifies nothing.
        collateral: the vendor's statements about processor and firmware, as JSON; empty if the verifier has its own.
        key: the enclave's public X25519 key.
        config: the digest of its configuration.
        head: of its release log.
        channel: the digest of the certificate of its socket; zeros if it has none.
        log_entries: lead from the head that the verifier remembers to `head`.
    """

    kind: QuoteKind
    quote: bytes
    collateral: bytes
    key: bytes
    config: bytes
    head: bytes
    channel: bytes = NO_CHANNEL
    log_entries: tuple[bytes, ...] = ()

    def binding(self, nonce: bytes) -> Binding:
        """What the report data must bind for the verifier that drew this nonce."""
        return Binding(self.key, nonce, self.config, self.head, self.channel)

    def pack(self) -> bytes:
        entries = pack_number(len(self.log_entries)) + b"".join(self.log_entries)
        fixed = pack_number(self.kind, 1) + self.key + self.config + self.head + self.channel
        return fixed + pack_chunk(self.quote) + pack_chunk(self.collateral) + entries

    @classmethod
    def read(cls, reader: Reader) -> "Evidence":
        kind = reader.number(1)
        if kind not in QuoteKind.__members__.values():
            raise ProtocolError(f"Expected a known kind of quote, got {kind}.")
        key, config, head, channel = (reader.take(KEY) for _ in range(4))
        quote, collateral = reader.chunk(MAX_QUOTE), reader.chunk(MAX_COLLATERAL)
        count = reader.number()
        if count > MAX_LOG_ENTRIES:
            raise ProtocolError(f"Expected at most {MAX_LOG_ENTRIES} log entries, got {count}.")
        entries = tuple(reader.take(KEY) for _ in range(count))
        return cls(QuoteKind(kind), quote, collateral, key, config, head, channel, entries)


@dataclass(frozen=True, kw_only=True)
class Claims:
    """The content of a quote whose signatures are valid, in one form for all vendors; `AttestationPolicy` judges it.

    Attributes:
        kind: of the quote.
        measurement: of the code: MRENCLAVE, or SHA-384 over MRTD and the four RTMRs, in hex.
        registers: what the measurement is computed from, by name.
        signer: MRSIGNER in hex; empty where there is none.
        svn: the enclave's own security version number.
        debug: whether its memory can be read from outside by design.
        report_data: the 64 bytes chosen by the enclave.
        status: the vendor's rating of processor and firmware.
        advisories: their known vulnerabilities.
        issued: when the oldest of the vendor's statements was made, in seconds since 1970.
    """

    kind: QuoteKind
    measurement: str
    registers: Mapping[str, str]
    signer: str = ""
    svn: int = 0
    debug: bool
    report_data: bytes
    status: str
    advisories: tuple[str, ...] = ()
    issued: int


def extend_head(head: bytes, entries: Iterable[bytes]) -> bytes:
    """The head of a release log after these entries."""
    return extend(_RELEASE_LOG, head, entries)


class ReleaseLog:
    """Digests of all releases, and the head after each.

    Example:
        >>> log = ReleaseLog([b"1" * 32, b"2" * 32])
        >>> extend_head(GENESIS, log.since(GENESIS)) == log.head, len(log.since(log.head))
        (True, 0)
    """

    def __init__(self, entries: Iterable[bytes] = ()) -> None:
        self.entries, self._chain = list[bytes](), Chain(_RELEASE_LOG)
        for entry in entries:
            self.append(entry)

    @property
    def heads(self) -> list[bytes]:
        """The head before the first entry, and after each."""
        return [GENESIS, *self._chain.hashes]

    @property
    def head(self) -> bytes:
        """The digest of the whole log."""
        return self._chain.head

    def append(self, entry: bytes) -> None:
        """Add a release."""
        self._chain.hashes.append(extend_head(self.head, (entry,)))
        self.entries.append(entry)

    def since(self, head: bytes) -> tuple[bytes, ...]:
        """The entries after a remembered head; raises `ProtocolError` if this log never had that head."""
        heads = self.heads
        if head not in heads:
            raise ProtocolError(
                "A client remembers a release-log head that this enclave never had: the enclave was rolled back."
            )
        return tuple(self.entries[heads.index(head) :])
