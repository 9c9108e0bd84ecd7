"""The messages between host, enclave and clients: frames of `tacit.protocols.kit` whose kind is a message type."""

import struct
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from tacit.core import State, Sum
from tacit.enclave.attestation.evidence import MAX_LOG_ENTRIES
from tacit.errors import EnclaveRefusedError, ProtocolError, RoundOverError
from tacit.protocols import crypto, kit
from tacit.protocols.crypto import KEY
from tacit.protocols.kit import HEADER, ProtocolFrame, ProtocolId, ReplyStatus
from tacit.wire.packing import CLIENT_LIMIT, LENGTH, Reader, pack_chunk, pack_number, pack_table

MAX_FRAME = 1 << 31  # bytes
MAX_MEMORY = 1 << 30  # bytes
MAX_LAYERS = 1 << 16
MECHANISM = "mechanism/"  # the memory that the enclave needs
ROUND_OVER = "is over: one aggregate is released per round."  # by which a host recognises that refusal
_FLOATS = struct.Struct("<ddd")


class MessageType(IntEnum):
    """What a frame requests or answers."""

    # from the host to the enclave
    ATTEST = 1  # a client's nonce and the release-log head that it remembers
    OPEN_ROUND = 2  # of which model, and of how many values
    FORWARD_UPLOAD = 3  # an upload and its sender
    CLOSE_ROUND = 4  # aggregate the uploads received
    READ_LOG = 5  # the entries of the release log after a head
    # from the enclave to the host
    EVIDENCE = 16
    ROUND_OPENED = 17  # the release-log head, and the cohort that the enclave has drawn
    RECEIPT = 18
    RELEASE = 19
    REFUSED = 20
    LOG_ENTRIES = 21
    # from the host to a client
    CHALLENGE = 32  # draw a nonce
    PRESENT_EVIDENCE = 33  # evidence that answers the nonce
    REQUEST_UPLOAD = 34  # upload the message for this round
    # from a client to the host
    NONCE = 48
    ENCLAVE_ACCEPTED = 49
    UPLOAD = 50

    @property
    def label(self) -> str:
        """The name in error messages."""
        return self.name.lower().replace("_", " ")


def pack(type_: MessageType, body: bytes = b"") -> bytes:
    """One frame as bytes."""
    return kit.pack_frame(ProtocolId.ENCLAVE, type_, body)


def unpack(data: bytes, limit: int = MAX_FRAME) -> ProtocolFrame[MessageType]:
    """Parse a frame; raises `ProtocolError` for anything but one whole, well-formed frame."""
    frame = kit.unpack_frame(ProtocolId.ENCLAVE, data, limit)
    if frame.kind not in MessageType.__members__.values():
        raise ProtocolError(f"Expected a known type of message, got {frame.kind}.")
    return ProtocolFrame(MessageType(frame.kind), frame.body)


def read_reply(data: bytes, expected: MessageType) -> Reader:
    """The body of the expected reply; a refusal raises `EnclaveRefusedError` with the enclave's reason."""
    frame = unpack(data)
    if frame.kind is MessageType.REFUSED:
        reason = bytes(frame.body).decode("utf-8", "replace")
        raise (RoundOverError if reason.endswith(ROUND_OVER) else EnclaveRefusedError)(reason)
    if frame.kind is not expected:
        raise ProtocolError(f"Expected a message of type {expected.label}, got {frame.kind.label}.")
    return Reader(frame.body)


def receive(read: Callable[[int], bytes], limit: int) -> bytes:
    """One frame from a stream; `read(n)` returns exactly `n` bytes. The limit is checked before the allocation."""
    head = read(HEADER)
    return head + read(kit.frame_length(ProtocolId.ENCLAVE, head, limit) - HEADER)


@dataclass(frozen=True, eq=False)
class RoundRequest:
    """A round as the host announces it to the enclave.

    Attributes:
        round: index of the round.
        model: SHA-256 of the broadcast.
        dim: length of an update.
        layers: number of values in each of the model's parameters.
        memory: the mechanism's state, and nothing else of the server's. The enclave knows its digest.
        noise_key: the server's key of the round; only in a simulation, which plays host and enclave.
    """

    round: int
    model: bytes
    dim: int
    layers: tuple[int, ...]
    memory: Mapping[str, Tensor]
    noise_key: bytes = b""

    def state(self) -> State:
        """The part of the server's state that the enclave needs; the weights, all 0, take no memory."""
        return State(self.round, torch.zeros(1).expand(sum(self.layers)), self.memory, self.layers)

    def pack(self) -> bytes:
        layers = pack_number(len(self.layers)) + b"".join(pack_number(size, LENGTH) for size in self.layers)
        head = pack_number(self.round) + self.model + pack_number(self.dim, LENGTH)
        return head + layers + pack_memory(self.memory) + pack_number(len(self.noise_key)) + self.noise_key

    @classmethod
    def read(cls, reader: Reader, parameters: int) -> "RoundRequest":
        """A request for updates, and a model, of at most this many `parameters`."""
        index, model, dim = reader.number(), reader.take(KEY), reader.number(LENGTH)
        count = reader.number()
        if count > MAX_LAYERS:
            raise ProtocolError(f"Expected at most {MAX_LAYERS} layers, got {count}.")
        layers = tuple(reader.number(LENGTH) for _ in range(count))
        memory, length = read_memory(reader), reader.number()
        if length not in (0, KEY):
            raise ProtocolError(f"Expected a noise key of {KEY} bytes or none, got {length}.")
        noise_key = reader.take(length)
        reader.expect_end()
        if dim < 1 or max(dim, sum(layers)) > parameters:
            raise ProtocolError(
                f"Expected updates of 1 to {parameters} values, as the configuration allows, got {dim} values of a "
                f"model of {sum(layers)}."
            )
        return cls(index, model, dim, layers, memory, noise_key)


def pack_opened(head: bytes, cohort: tuple[int, ...]) -> bytes:
    """The reply to a request for a round: the release-log head and the cohort."""
    return head + pack_table(dict.fromkeys(cohort, b""), 0)


def read_opened(reader: Reader) -> tuple[bytes, tuple[int, ...]]:
    """The inverse of `pack_opened`."""
    head, cohort = reader.take(KEY), tuple(reader.table(0, CLIENT_LIMIT))
    reader.expect_end()
    return head, cohort


def read_log(reader: Reader) -> tuple[bytes, ...]:
    """Entries of a release log, to the end of the message."""
    data = bytes(reader.rest())
    if len(data) % KEY or len(data) > KEY * MAX_LOG_ENTRIES:
        raise ProtocolError(f"Expected at most {MAX_LOG_ENTRIES} log entries of {KEY} bytes, got {len(data)} bytes.")
    return tuple(data[start : start + KEY] for start in range(0, len(data), KEY))


@dataclass(frozen=True, eq=False)
class EnclaveRelease:
    """What an enclave reveals about a round's updates.

    Attributes:
        total: the sum with noise; its weight and all its values are 0 if there were too few contributors.
        memory: the mechanism's state for the next round.
        contributors: clients in the sum.
    """

    total: Sum
    memory: Mapping[str, Tensor]
    contributors: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class RoundResult:
    """What the enclave sends to the host at the end of a round.

    Attributes:
        release: the aggregate.
        log_entry: its entry in the release log; empty if nothing was released.
        rejected: rejected uploads by reason.
        load_seconds: time for decrypting and decoding uploads.
        aggregate_seconds: time for clipping, summing and adding noise.
    """

    release: EnclaveRelease
    log_entry: bytes
    rejected: Counter[ReplyStatus] = field(default_factory=Counter)
    load_seconds: float = 0.0
    aggregate_seconds: float = 0.0

    def pack(self) -> bytes:
        release, rejected = self.release, {int(reason): pack_number(count) for reason, count in self.rejected.items()}
        values = release.total.total.detach().cpu().contiguous().numpy().astype("<f4", copy=False).tobytes()
        head = _FLOATS.pack(release.total.weight, self.load_seconds, self.aggregate_seconds)
        contributors = pack_table(dict.fromkeys(release.contributors, b""), 0)
        tables = contributors + pack_table(rejected, 4)
        return head + pack_chunk(self.log_entry) + tables + pack_memory(release.memory) + pack_chunk(values)

    @classmethod
    def read(cls, reader: Reader, dim: int) -> "RoundResult":
        weight, load_seconds, aggregate_seconds = _FLOATS.unpack(reader.take(_FLOATS.size))
        log_entry = reader.chunk(KEY)
        contributors = tuple(reader.table(0, CLIENT_LIMIT))
        reasons = reader.table(4, len(ReplyStatus))
        memory, values = read_memory(reader), reader.chunk(4 * dim)
        reader.expect_end()
        if len(values) != 4 * dim or not set(reasons) <= set(ReplyStatus):
            raise ProtocolError(f"Expected an aggregate of {dim} values and known reasons.")
        total = torch.from_numpy(np.frombuffer(values, "<f4").astype(np.float32))
        rejected = Counter({ReplyStatus(reason): Reader(count).number() for reason, count in reasons.items()})
        release = EnclaveRelease(Sum(total, weight), memory, contributors)
        return cls(release, log_entry, rejected, load_seconds, aggregate_seconds)


def mechanism_memory(state: State) -> dict[str, Tensor]:
    """The part of the server's memory that is sent to the enclave."""
    return {name: value.cpu() for name, value in state.memory.items() if name.startswith(MECHANISM)}


def memory_digest(memory: Mapping[str, Tensor]) -> bytes:
    """The digest of a mechanism's memory, by which the enclave recognises it."""
    parts = []
    for name in sorted(memory):
        value = memory[name].detach().cpu().contiguous()
        parts += [name.encode(), f"{value.dtype} {tuple(value.shape)}".encode(), value.numpy().tobytes()]
    return crypto.digest("memory", *parts)


def pack_memory(memory: Mapping[str, Tensor]) -> bytes:
    """Named tensors, as safetensors."""
    return pack_chunk(safetensors.torch.save({name: value.detach().contiguous() for name, value in memory.items()}))


def read_memory(reader: Reader) -> dict[str, Tensor]:
    """The inverse of `pack_memory`."""
    try:
        return dict(safetensors.torch.load(reader.chunk(MAX_MEMORY)))
    except (SafetensorError, ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise ProtocolError("Expected named tensors, got other bytes.") from error
