"""Vectors of integers modulo 2^b: pads added in place, and packing without a wasted bit.

All arithmetic is that of uint32, which wraps around at 2^32. As 2^b divides 2^32, reducing once at the end is enough.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.protocols import crypto
from tacit.protocols.secagg.errors import ProtocolError

Vector = NDArray[np.uint32]
PIECE = 1 << 16  # words added at a time: 256 KiB stay in the cache between the cipher and the sum
_WHOLE: dict[int, Any] = {8: np.dtype("u1"), 16: np.dtype("<u2"), 32: np.dtype("<u4")}
_BLOCK = 1 << 16  # values of other widths unfolded at a time; a multiple of 8, so blocks end at whole bytes


def add_pads(total: Vector, plus: Sequence[bytes], minus: Sequence[bytes] = ()) -> None:
    """Add the pads of some keys to `total`, and take those of others away, in place."""
    zeros = bytes(4 * min(PIECE, total.size))
    pad = bytearray(len(zeros) + 15)  # the cipher's interface wants a spare block
    signed = [(crypto.stream(key), np.add) for key in plus] + [(crypto.stream(key), np.subtract) for key in minus]
    for start in range(0, total.size, PIECE):
        piece = total[start : start + PIECE]
        for generator, fold in signed:
            generator.update_into(zeros[: 4 * piece.size], pad)
            fold(piece, np.frombuffer(pad, "<u4", piece.size), out=piece)


def reduce(total: Vector, bits: int) -> Vector:
    """Each value modulo 2^bits, in place."""
    return np.bitwise_and(total, np.uint32((1 << bits) - 1), out=total)


def size(dim: int, bits: int) -> int:
    """How many bytes `pack` needs."""
    return (dim * bits + 7) // 8


def pack(vector: Vector, bits: int) -> bytes:
    """Values below 2^bits, with `bits` bits each, little end first."""
    if bits in _WHOLE:
        return vector.astype(_WHOLE[bits]).tobytes()
    return b"".join(_fold(vector[at : at + _BLOCK], bits) for at in range(0, vector.size, _BLOCK))


def unpack(data: bytes | memoryview, dim: int, bits: int) -> Vector:
    """What was packed; a wrong length, or bits beyond the last value, are refused."""
    if len(data) != size(dim, bits):
        raise ProtocolError(f"Expected a vector of {size(dim, bits)} bytes, got {len(data)}.")
    if bits in _WHOLE:
        return np.frombuffer(data, _WHOLE[bits]).astype(np.uint32)
    if dim * bits % 8 and data[-1] >> dim * bits % 8:
        raise ProtocolError("A vector has bits beyond its last value.")
    vector = np.empty(dim, np.uint32)
    for at in range(0, dim, _BLOCK):
        vector[at : at + _BLOCK] = _unfold(data[at * bits // 8 :], min(_BLOCK, dim - at), bits)
    return vector


def _fold(block: Vector, bits: int) -> bytes:
    places = np.unpackbits(block.astype("<u4").view(np.uint8).reshape(-1, 4), axis=1, bitorder="little")
    return np.packbits(places[:, :bits], bitorder="little").tobytes()


def _unfold(data: bytes | memoryview, count: int, bits: int) -> Vector:
    places = np.zeros((count, 32), np.uint8)
    raw = np.frombuffer(data, np.uint8, size(count, bits))
    places[:, :bits] = np.unpackbits(raw, bitorder="little", count=count * bits).reshape(count, bits)
    return np.packbits(places, axis=1, bitorder="little").view("<u4").ravel().astype(np.uint32)
