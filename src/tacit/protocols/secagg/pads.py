"""Pads: one-time masks on vectors of integers modulo 2^b, added by clients and removed from the sum by the server.

Each upload carries its client's own pad and one pad per neighbour; the pads of a pair cancel in the sum. The server
removes the rest: own pads of the survivors, by their seeds, and pads shared with dropouts, by the dropouts' keys
(Bonawitz et al., Figure 4). All arithmetic is that of uint32, which wraps around at 2^32; as 2^b divides 2^32, it is
enough to reduce once at the end.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.errors import ProtocolError
from tacit.protocols import crypto
from tacit.wire.packing import packed_size

Vector = NDArray[np.uint32]
RemovePads = Callable[[Vector, Sequence[bytes], Sequence[bytes]], None]  # from a total: those added, those subtracted
CHUNK = 1 << 16  # words added at a time: 256 KiB stay in the cache between cipher and sum
_WHOLE: dict[int, Any] = {8: np.dtype("u1"), 16: np.dtype("<u2"), 32: np.dtype("<u4")}
_BLOCK = 1 << 16  # values of other widths packed at a time; a multiple of 8, so blocks end at whole bytes


# Keys of pads


def own_pad_key(seed: bytes, binding: bytes, client: int) -> bytes:
    """The key of a client's own pad."""
    return crypto.derive(seed, "own pad", binding, client)


def pair_pad_key(secret: bytes, binding: bytes, client: int, neighbour: int) -> bytes:
    """The key of the pad that two neighbours share: the one with the larger number adds it, the other subtracts it."""
    return crypto.derive(secret, "pair pad", binding, *sorted((client, neighbour)))


# Vectors


def add_pads(total: Vector, added: Sequence[bytes], subtracted: Sequence[bytes] = ()) -> None:
    """Add the pads of some keys to `total`, and subtract those of others, in place."""
    zeros = bytes(4 * min(CHUNK, total.size))
    pad = bytearray(len(zeros) + 15)  # the cipher's interface requires a spare block
    adding = [(crypto.keystream(key), np.add) for key in added]
    subtracting = [(crypto.keystream(key), np.subtract) for key in subtracted]
    for start in range(0, total.size, CHUNK):
        chunk = total[start : start + CHUNK]
        for generator, fold in adding + subtracting:
            generator.update_into(zeros[: 4 * chunk.size], pad)
            fold(chunk, np.frombuffer(pad, "<u4", chunk.size), out=chunk)


def reduce(total: Vector, bits: int) -> Vector:
    """Each value modulo 2^bits, in place."""
    return np.bitwise_and(total, np.uint32((1 << bits) - 1), out=total)


def pack_vector(vector: Vector, bits: int) -> bytes:
    """Values below 2^bits, with `bits` bits each, least significant first."""
    if bits in _WHOLE:
        return vector.astype(_WHOLE[bits], copy=False).tobytes()
    return b"".join(_pack_block(vector[start : start + _BLOCK], bits) for start in range(0, vector.size, _BLOCK))


def unpack_vector(data: bytes | memoryview, dim: int, bits: int) -> Vector:
    """The inverse of `pack_vector`; a wrong length, or bits beyond the last value, are rejected.

    The vector may be a read-only view of the data.
    """
    if len(data) != packed_size(dim, bits):
        raise ProtocolError(f"Expected a vector of {packed_size(dim, bits)} bytes, got {len(data)}.")
    if bits in _WHOLE:
        return np.frombuffer(data, _WHOLE[bits]).astype(np.uint32, copy=False)
    if dim * bits % 8 and data[-1] >> dim * bits % 8:
        raise ProtocolError("A vector has bits beyond its last value.")
    vector = np.empty(dim, np.uint32)
    for start in range(0, dim, _BLOCK):
        vector[start : start + _BLOCK] = _unpack_block(data[start * bits // 8 :], min(_BLOCK, dim - start), bits)
    return vector


def _pack_block(block: Vector, bits: int) -> bytes:
    unpacked = np.unpackbits(block.astype("<u4").view(np.uint8).reshape(-1, 4), axis=1, bitorder="little")
    return np.packbits(unpacked[:, :bits], bitorder="little").tobytes()


def _unpack_block(data: bytes | memoryview, count: int, bits: int) -> Vector:
    unpacked = np.zeros((count, 32), np.uint8)
    raw = np.frombuffer(data, np.uint8, packed_size(count, bits))
    unpacked[:, :bits] = np.unpackbits(raw, bitorder="little", count=count * bits).reshape(count, bits)
    return np.packbits(unpacked, axis=1, bitorder="little").view("<u4").ravel().astype(np.uint32)


def remove_pads(total: Vector, added: Sequence[bytes], subtracted: Sequence[bytes]) -> None:
    """Remove, in place, the pads that uploads have added, and those that they have subtracted."""
    add_pads(total, subtracted, added)
