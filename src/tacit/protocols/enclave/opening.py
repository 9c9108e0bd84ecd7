"""How a host opens a round, and what the enclave lets out of it: both as bytes."""

import struct
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from tacit.core import State, Sum
from tacit.core.state import SERVER
from tacit.errors import ProtocolError
from tacit.protocols.crypto import KEY
from tacit.protocols.enclave.aggregate import Released
from tacit.protocols.enclave.errors import Refusal
from tacit.wire.packing import LENGTH, MOST, Reader, number, pack_chunk, pack_table

MOST_MEMORY = 1 << 30  # bytes
MOST_LAYERS = 1 << 16
_FLOATS = struct.Struct("<ddd")


@dataclass(frozen=True, eq=False)
class Opening:
    """A round as the host announces it.

    Attributes:
        round: its number.
        model: SHA-256 of the view that was broadcast.
        dim: how many numbers a row has.
        cohort: who may upload.
        asked: how many were asked to take part.
        layers: how many numbers each of the model's parameters has.
        memory: what the mechanism remembers, and nothing else of the server's state.
    """

    round: int
    model: bytes
    dim: int
    cohort: tuple[int, ...]
    asked: int
    layers: tuple[int, ...]
    memory: Mapping[str, Tensor]

    def state(self) -> State:
        """The part of the server's state that the enclave needs."""
        return State(self.round, torch.zeros(sum(self.layers)), self.memory, self.layers)

    def pack(self) -> bytes:
        """All of it."""
        layers = number(len(self.layers)) + b"".join(number(size, LENGTH) for size in self.layers)
        cohort = pack_table(dict.fromkeys(self.cohort, b""), 0)
        head = number(self.round) + self.model + number(self.dim, LENGTH) + number(self.asked)
        return head + cohort + layers + pack_memory(self.memory)

    @classmethod
    def read(cls, reader: Reader) -> "Opening":
        """What was packed."""
        index, model, dim, asked = reader.number(), reader.take(KEY), reader.number(LENGTH), reader.number()
        cohort = tuple(reader.table(0, MOST))
        count = reader.number()
        if count > MOST_LAYERS:
            raise ProtocolError(f"Expected at most {MOST_LAYERS} layers, got {count}.")
        layers = tuple(reader.number(LENGTH) for _ in range(count))
        memory = read_memory(reader)
        reader.done()
        if max(dim, sum(layers)) >= MOST:
            raise ProtocolError("Expected a model of fewer than 2^32 numbers.")
        return cls(index, model, dim, cohort, asked, layers, memory)


@dataclass(frozen=True, eq=False)
class Closing:
    """What leaves the enclave at the end of a round.

    Attributes:
        released: the aggregate.
        link: by which the ledger's head moves; empty if nothing was released.
        refusals: uploads that were not taken, by reason.
        load: seconds spent on opening and decoding uploads.
        aggregate: seconds spent on bounding, summing and blurring.
    """

    released: Released
    link: bytes
    refusals: Counter[Refusal] = field(default_factory=Counter)
    load: float = 0.0
    aggregate: float = 0.0

    def pack(self) -> bytes:
        """All of it."""
        out, refused = self.released, {int(reason): number(count) for reason, count in self.refusals.items()}
        values = out.total.total.detach().cpu().contiguous().numpy().astype("<f4", copy=False).tobytes()
        head = _FLOATS.pack(out.total.weight, self.load, self.aggregate) + pack_chunk(self.link)
        delivered = pack_table(dict.fromkeys(out.delivered, b""), 0)
        return head + delivered + pack_table(refused, 4) + pack_memory(out.memory) + pack_chunk(values)

    @classmethod
    def read(cls, reader: Reader, dim: int) -> "Closing":
        """What was packed."""
        weight, load, seconds = _FLOATS.unpack(reader.take(_FLOATS.size))
        link = reader.chunk(KEY)
        delivered = tuple(reader.table(0, MOST))
        reasons = reader.table(4, len(Refusal))
        memory, values = read_memory(reader), reader.chunk(4 * dim)
        reader.done()
        if len(values) != 4 * dim or not set(reasons) <= set(Refusal):
            raise ProtocolError(f"Expected an aggregate of {dim} numbers and known reasons.")
        total = torch.from_numpy(np.frombuffer(values, "<f4").astype(np.float32))
        counts = Counter({Refusal(reason): Reader(count).number() for reason, count in reasons.items()})
        return cls(Released(Sum(total, weight), memory, delivered), link, counts, load, seconds)


def shared_memory(state: State) -> dict[str, Tensor]:
    """What of the server's memory goes to the enclave."""
    return {name: value.cpu() for name, value in state.memory.items() if not name.startswith(SERVER)}


def pack_memory(memory: Mapping[str, Tensor]) -> bytes:
    """Named tensors, as safetensors."""
    return pack_chunk(safetensors.torch.save({name: value.detach().contiguous() for name, value in memory.items()}))


def read_memory(reader: Reader) -> dict[str, Tensor]:
    """What was packed."""
    try:
        return dict(safetensors.torch.load(reader.chunk(MOST_MEMORY)))
    except (SafetensorError, ValueError, KeyError) as error:
        raise ProtocolError("Expected named tensors, got other bytes.") from error
