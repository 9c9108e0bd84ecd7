"""An update on its way into the enclave: encoded, padded, encrypted, signed; and the strict way back.

::

    magic 4s | version u8 | zero 3s | round u32 | client u32 | length u64 | context 32s | ephemeral 32s | signature 64s
    sealed: AES-256-GCM over   length u64 | a frame of `tacit.wire.frames` | zeros

Magic and version are those of `tacit.protocols.kit`; a signature takes the place of the checksum. The
context is the digest of the upload's `EnclaveSession`. The encryption key comes from an X25519 agreement of a fresh
key with the enclave's, by HKDF over the context, both public keys and the client's number, and is used once.
"""

import struct
from dataclasses import dataclass
from typing import ClassVar

import torch

from tacit.core import Messages, Round
from tacit.core.state import FrameFormat
from tacit.enclave.configuration import EnclaveSession
from tacit.errors import ProtocolError, expect, whole
from tacit.protocols import crypto, kit
from tacit.protocols.crypto import TAG
from tacit.protocols.kit import MAGIC, VERSION
from tacit.wire import frames
from tacit.wire.frames import FrameKind
from tacit.wire.packing import LENGTH, Reader, pack_chunk, pack_number
from tacit.wire.sparse import WireFormat

_HEADER = struct.Struct("<4sB3sIIQ32s32s64s")
UPLOAD_HEADER = _HEADER.size
OVERHEAD = kit.HEADER + UPLOAD_HEADER + TAG  # bytes of an upload in addition to its plaintext


@dataclass(frozen=True)
class UploadFormat:
    """How updates become plaintexts.

    Attributes:
        wire: the wire format, used where it is shorter than the plain values.
        padding: plaintexts are padded to a multiple of this many bytes. If no upload exceeds one multiple, sizes reveal
            nothing.
    """

    wire: WireFormat | None = None
    padding: int = 1
    bits: ClassVar[int | None] = None

    def __post_init__(self) -> None:
        whole(1, padding=self.padding)

    def pack(self, messages: Messages, i: int, now: Round) -> bytes:
        """Message i as a plaintext."""
        dtype = messages.rows.dtype
        expect(dtype == torch.float32, f"rows of torch.float32, got {dtype}", "An enclave sums float32 numbers.")
        chunk = pack_chunk(FrameFormat(self.wire).pack(messages, i, now))
        return chunk + bytes(self._size_with_padding(len(chunk)) - len(chunk))

    def sizes(self, messages: Messages) -> tuple[int, ...]:
        """Bytes of each plaintext."""
        return tuple(self._size_with_padding(LENGTH + size) for size in FrameFormat(self.wire).sizes(messages))

    def read(self, data: bytes, client: int, like: Messages, now: Round) -> Messages:
        """The message in a plaintext; raises `WireError` or `ProtocolError` for any other plaintext."""
        reader = Reader(data)
        messages = FrameFormat(self.wire).read(reader.chunk(len(data)), client, like, now)
        rest = bytes(reader.rest())
        if any(rest) or len(data) != self._size_with_padding(len(data) - len(rest)):
            raise ProtocolError("The padding does not match the configuration.")
        return messages

    def check_cohort(self, data: bytes, cohort: int) -> None:
        """Raise `ProtocolError` unless the client of this plaintext used the cohort's true size."""
        declared = frames.unpack(Reader(data).chunk(len(data)), FrameKind.MESSAGE).cohort
        if declared != cohort:
            raise ProtocolError(f"Expected a share of the noise for a cohort of {cohort}, got one for {declared}.")

    def max_size(self, dim: int) -> int:
        """The longest valid upload of an update of this length."""
        return UPLOAD_HEADER + TAG + self._size_with_padding(LENGTH + 64 + 4 * dim)

    def _size_with_padding(self, length: int) -> int:
        return -(-length // self.padding) * self.padding


@dataclass(frozen=True)
class Upload:
    """A parsed upload, still encrypted."""

    round: int
    client: int
    context: bytes
    ephemeral: bytes
    signature: bytes
    sealed: bytes

    def pack(self) -> bytes:
        length = UPLOAD_HEADER + len(self.sealed)
        fixed = (MAGIC, VERSION, bytes(3), self.round, self.client, length)
        return _HEADER.pack(*fixed, self.context, self.ephemeral, self.signature) + self.sealed

    @classmethod
    def read(cls, data: bytes) -> "Upload":
        if len(data) < UPLOAD_HEADER + TAG:
            raise ProtocolError(f"Expected an upload of at least {UPLOAD_HEADER + TAG} bytes, got {len(data)}.")
        magic, version, zero, index, client, length, context, ephemeral, signature = _HEADER.unpack_from(data)
        if (magic, version, zero, length) != (MAGIC, VERSION, bytes(3), len(data)):
            raise ProtocolError(f"Expected one whole upload of version {VERSION}, got other bytes.")
        return cls(index, client, context, ephemeral, signature, bytes(data[UPLOAD_HEADER:]))


def seal(session: EnclaveSession, client: int, identity: bytes, root: bytes, plaintext: bytes) -> bytes:
    """A client's upload of a plaintext, signed with its Ed25519 secret.

    Its fresh keys derive from the root, and depend on the plaintext, too: another plaintext in the same session is
    encrypted with another key.
    """
    context = session.context
    secret = crypto.load_key(crypto.derive(root, "upload key", crypto.digest("plain", context, plaintext), client))
    ephemeral = crypto.public_key(secret)
    sealed = crypto.seal(_key(crypto.agree(secret, session.key), session, ephemeral, client), plaintext, context)
    signature = crypto.sign(identity, upload_statement(context, client, ephemeral, sealed))
    return Upload(session.round, client, context, ephemeral, signature, sealed).pack()


def unseal(upload: Upload, session: EnclaveSession, secret: crypto.PrivateKey, identity: bytes) -> bytes:
    """The plaintext of an upload; raises `ProtocolError` if its client did not sign it, or it was altered."""
    statement = upload_statement(upload.context, upload.client, upload.ephemeral, upload.sealed)
    crypto.verify(identity, upload.signature, statement)
    shared = crypto.agree(secret, upload.ephemeral)
    return crypto.unseal(_key(shared, session, upload.ephemeral, upload.client), upload.sealed, session.context)


def upload_statement(context: bytes, client: int, ephemeral: bytes, sealed: bytes) -> bytes:
    """What a client signs about its upload."""
    return crypto.digest("uploaded", context, pack_number(client), ephemeral, sealed)


def _key(shared: bytes, session: EnclaveSession, ephemeral: bytes, client: int) -> bytes:
    return crypto.derive(shared, "upload", crypto.digest("keys", session.context, ephemeral, session.key), client)
