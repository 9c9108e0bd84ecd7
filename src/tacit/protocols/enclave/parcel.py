"""A message on its way into the enclave: encoded, padded, sealed, signed; and the strict way back.

::

    magic 4s | version u8 | zero 3s | round u32 | client u32 | length u64 | context 32s | ephemeral 32s | signature 64s
    sealed: AES-256-GCM over   length u64 | a frame of `tacit.wire.frames` | zeros

The context is the digest of all that the upload is for (`Session`). The key comes from an X25519 agreement of a fresh
key with the enclave's, by HKDF over the context, both public keys and the client's number, and is used once.
"""

import struct
from dataclasses import dataclass

import torch
from torch import Tensor

from tacit.core import Messages
from tacit.errors import ProtocolError, WireError, expect
from tacit.protocols import crypto
from tacit.protocols.crypto import TAG
from tacit.protocols.enclave import frames
from tacit.protocols.enclave.session import Session
from tacit.wire import frames as wire
from tacit.wire.frames import Kind, Part
from tacit.wire.packing import LENGTH, Reader, pack_chunk
from tacit.wire.sparse import Wire

MAGIC, VERSION = b"TUPL", 1
_HEADER = struct.Struct("<4sB3sIIQ32s32s64s")
HEADER = _HEADER.size
AROUND = frames.HEADER + HEADER + TAG  # bytes of an upload beside its plaintext
MOST_SAMPLES = 10_000_000  # of one client: in a weighted mean, nobody may count for everybody


@dataclass(frozen=True)
class Form:
    """How rows become plaintexts: the wire, where it is shorter than all numbers one after the other, and the padding.

    Padding is up to a multiple of so many bytes. With a multiple that no upload exceeds, sizes say nothing.
    """

    wire: Wire | None = None
    padding: int = 1

    def __post_init__(self) -> None:
        expect(self.padding >= 1, f"padding={self.padding} >= 1")

    def pack(self, messages: Messages, i: int, number: int) -> bytes:
        """Message i as a plaintext."""
        kind = messages.rows.dtype
        expect(kind == torch.float32, f"rows of torch.float32, got {kind}", "An enclave adds up plain numbers.")
        return self._padded(pack_chunk(wire.pack(Kind.MESSAGE, number, messages.parts(i, self.wire))))

    def sizes(self, messages: Messages) -> tuple[int, ...]:
        """How many bytes each of these takes as an upload, frame and seal included."""
        return tuple(AROUND + self._length(LENGTH + size) for size in messages.sizes(self.wire))

    def read(self, plain: bytes, session: Session) -> tuple[Tensor, int | None]:
        """The row, and how many samples stand behind it; `WireError` or `ProtocolError` for anything else."""
        reader = Reader(plain)
        frame = wire.unpack(reader.chunk(len(plain)), Kind.MESSAGE)
        rest = bytes(reader.rest())
        if any(rest) or len(plain) != self._length(len(plain) - len(rest)):
            raise ProtocolError("The padding is not what the configuration says.")
        wanted = {Part.ROW, Part.SAMPLES} if session.weighed else {Part.ROW}
        if frame.parts.keys() != wanted or frame.round != session.round:
            raise WireError("The message has other parts, or is of another round, than the schema says.")
        return self._row(frame.parts[Part.ROW], session.dim), _samples(frame.parts.get(Part.SAMPLES))

    def longest(self, dim: int) -> int:
        """No honest upload of rows of this length is longer."""
        return HEADER + TAG + self._length(LENGTH + 64 + 4 * dim)

    def _row(self, values: Tensor, dim: int) -> Tensor:
        if self.wire is not None and values.dtype == torch.uint8:
            values = self.wire.decode(values.numpy().tobytes(), dim)
        if values.dtype != torch.float32 or values.shape != (dim,):
            raise WireError(f"Expected {dim} numbers of torch.float32, got {values.numel()} of {values.dtype}.")
        return values

    def _padded(self, text: bytes) -> bytes:
        return text + bytes(self._length(len(text)) - len(text))

    def _length(self, length: int) -> int:
        return -(-length // self.padding) * self.padding


@dataclass(frozen=True)
class Upload:
    """An upload that was taken apart, but not opened."""

    round: int
    client: int
    context: bytes
    ephemeral: bytes
    signature: bytes
    sealed: bytes

    def pack(self) -> bytes:
        """All of it."""
        length = HEADER + len(self.sealed)
        fixed = (MAGIC, VERSION, bytes(3), self.round, self.client, length)
        return _HEADER.pack(*fixed, self.context, self.ephemeral, self.signature) + self.sealed

    @classmethod
    def read(cls, data: bytes) -> "Upload":
        """What was packed."""
        if len(data) < HEADER + TAG:
            raise ProtocolError(f"Expected an upload of at least {HEADER + TAG} bytes, got {len(data)}.")
        magic, version, zero, number, client, length, context, ephemeral, signature = _HEADER.unpack_from(data)
        if (magic, version, zero, length) != (MAGIC, VERSION, bytes(3), len(data)):
            raise ProtocolError(f"Expected a whole upload of version {VERSION}, got other bytes.")
        return cls(number, client, context, ephemeral, signature, bytes(data[HEADER:]))


def seal(session: Session, client: int, identity: bytes, root: bytes, plain: bytes) -> bytes:
    """The upload of a client.

    Args:
        session: what it is for, as this client sees it.
        client: its number.
        identity: its Ed25519 secret.
        root: where its fresh keys come from. They also depend on the plaintext: sealing another one under the same
            session does not use a key twice.
        plain: what the enclave shall read.
    """
    context = session.context
    secret = crypto.load(crypto.derive(root, "upload key", crypto.digest("plain", context, plain), client))
    ephemeral = crypto.public(secret)
    sealed = crypto.seal(_key(crypto.agree(secret, session.key), session, ephemeral, client), plain, context)
    signature = crypto.sign(identity, _statement(context, client, ephemeral, sealed))
    return Upload(session.round, client, context, ephemeral, signature, sealed).pack()


def unseal(upload: Upload, session: Session, secret: crypto.PrivateKey, identity: bytes) -> bytes:
    """What a client sealed; `ProtocolError` if it was not this client, or was altered."""
    statement = _statement(upload.context, upload.client, upload.ephemeral, upload.sealed)
    crypto.verify(identity, upload.signature, statement)
    shared = crypto.agree(secret, upload.ephemeral)
    return crypto.unseal(_key(shared, session, upload.ephemeral, upload.client), upload.sealed, session.context)


def _key(shared: bytes, session: Session, ephemeral: bytes, client: int) -> bytes:
    return crypto.derive(shared, "upload", crypto.digest("keys", session.context, ephemeral, session.key), client)


def _statement(context: bytes, client: int, ephemeral: bytes, sealed: bytes) -> bytes:
    return crypto.digest("uploaded", context, client.to_bytes(4, "little"), ephemeral, sealed)


def _samples(values: Tensor | None) -> int | None:
    if values is None:
        return None
    if values.dtype != torch.int64 or values.numel() != 1 or not 1 <= int(values) <= MOST_SAMPLES:
        raise WireError(f"Expected a number of samples from 1 to {MOST_SAMPLES}.")
    return int(values)
