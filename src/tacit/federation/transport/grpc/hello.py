"""How a site shows who it is: it signs the server's nonce with its identity key, for its own TLS certificate.

A certificate alone lets nobody answer: whoever has stolen it lacks the identity key. The hello also says which process
of the site this is, so that a site that has restarted is not taken for one that lost its connection, and which requests
that process has.
"""

import struct
from dataclasses import dataclass
from typing import Self

from tacit.errors import ProtocolError
from tacit.federation.transport.grpc.frames import MAX_REQUESTS, NUMBER
from tacit.protocols import crypto

HELLO_NONCE = 32  # bytes
PROCESS = 16  # bytes of a random number of a site's process
_FIXED = struct.Struct(f"<{PROCESS}sQ{crypto.SIGNATURE}s")
MAX_HELLO = _FIXED.size + MAX_REQUESTS * NUMBER


@dataclass(frozen=True)
class Hello:
    """What a site declares.

    Attributes:
        process: a random number of its process.
        limit: the longest request that it accepts, in bytes.
        known: the numbers of the requests that it has received as a whole.
    """

    process: bytes
    limit: int
    known: tuple[bytes, ...]

    def _statement(self, nonce: bytes, fingerprint: str) -> bytes:
        limit = self.limit.to_bytes(8, "little")
        return crypto.digest("federation hello", nonce, fingerprint.encode(), self.process, limit, *self.known)

    def pack(self, nonce: bytes, fingerprint: str, identity: bytes) -> bytes:
        """The message, signed with the site's identity key for this nonce and this certificate."""
        signature = crypto.sign(identity, self._statement(nonce, fingerprint))
        return _FIXED.pack(self.process, self.limit, signature) + b"".join(self.known)

    @classmethod
    def read(cls, data: bytes, nonce: bytes, fingerprint: str, identity: bytes) -> Self:
        """The hello in a message; raises `ProtocolError` unless the owner of this public key has signed it."""
        rest = len(data) - _FIXED.size
        if rest < 0 or rest % NUMBER or len(data) > MAX_HELLO:
            raise ProtocolError("a hello of another length")
        process, limit, signature = _FIXED.unpack_from(data)
        known = tuple(data[start : start + NUMBER] for start in range(_FIXED.size, len(data), NUMBER))
        hello = cls(process, limit, known)
        crypto.verify(identity, signature, hello._statement(nonce, fingerprint))
        return hello
