"""The binary format of broadcasts and messages.

A frame is a header and, for every part, a part header and its values, little-endian and without padding::

    magic 4s | version u8 | kind u8 | parts u8 | zero u8                                              24 bytes
    round u32 | cohort u32 | checksum u32 | length u32
    tag u8 | type u8 | zero u16 | count u64                                                           12 bytes
    values                                                                                   count × width bytes

Tags and types are numbers from the tables below; frames never name classes or modules. The length is checked before
anything is allocated, and the checksum (CRC-32 of the whole frame, with a checksum of zero) before anything is used.
"""

import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import torch
from torch import Tensor

from tacit.errors import WireError

_MAGIC = b"TACT"
WIRE_VERSION = 2
MAX_FRAME_BYTES = (1 << 32) - 1  # bytes
_HEADER = struct.Struct("<4sBBBBIIII")
_PART = struct.Struct("<BBHQ")
_TYPES = (torch.float32, torch.float64, torch.int32, torch.int64, torch.uint8)
_NUMPY = tuple(np.dtype(name) for name in ("<f4", "<f8", "<i4", "<i8", "u1"))


class FrameKind(IntEnum):
    """The kind of a frame."""

    VIEW = 1  # from the server to a client
    MESSAGE = 2  # from a client to the server
    MEMORY = 3  # what a client keeps between rounds; never sent


class Part(IntEnum):
    """The content of a part of a frame."""

    WEIGHTS = 1  # a whole model; if bytes, in a format of `tacit.wire.sparse`
    ROW = 2  # a client's row after codec and mechanism; if bytes, in such a format
    SAMPLES = 3  # the number of samples of the client, for a weighted mean
    VALUES = 4  # the model's weights at the coordinates of the mask
    MASK = 5  # these coordinates, packed by `tacit.wire.indices`
    BOUND = 6  # the L2 clipping bound of rows
    KEY = 7  # a shared key, 32 bytes


Parts = Mapping[Part, Tensor]


@dataclass(frozen=True, eq=False)
class Frame:
    """A parsed frame: its kind, the index of its round, the size of the round's cohort (0: not given), its parts."""

    kind: FrameKind
    round: int
    cohort: int
    parts: dict[Part, Tensor]


def size(parts: Parts) -> int:
    """The length of the frame of these parts in bytes, without packing them."""
    return _HEADER.size + sum(_PART.size + t.numel() * t.element_size() for t in parts.values())


def pack(kind: FrameKind, round_index: int, parts: Parts, cohort: int = 0) -> bytes:
    """Serialise parts as one frame.

    Example:
        >>> frame = unpack(pack(FrameKind.VIEW, 3, {Part.WEIGHTS: torch.arange(4.0)}), FrameKind.VIEW)
        >>> frame.round, frame.parts[Part.WEIGHTS].tolist()
        (3, [0.0, 1.0, 2.0, 3.0])
    """
    body = b"".join(_pack_part(part, values) for part, values in parts.items())
    length = _HEADER.size + len(body)
    if length > MAX_FRAME_BYTES:
        raise WireError(f"Expected a frame of at most {MAX_FRAME_BYTES} bytes, got {length}.")
    fields = (_MAGIC, WIRE_VERSION, kind, len(parts), 0, round_index, cohort)
    checksum = zlib.crc32(body, zlib.crc32(_HEADER.pack(*fields, 0, length)))
    return _HEADER.pack(*fields, checksum, length) + body


def unpack(data: bytes, kind: FrameKind) -> Frame:
    """Parse a frame of the expected kind; raises `WireError` unless it is well-formed."""
    if len(data) < _HEADER.size:
        raise WireError(f"Expected a frame of at least {_HEADER.size} bytes, got {len(data)}.")
    magic, version, frame_kind, count, zero, round_index, cohort, checksum, length = _HEADER.unpack_from(data)
    if magic != _MAGIC or zero != 0:
        raise WireError("Expected a Tacit frame, got other bytes.")
    if version != WIRE_VERSION:
        raise WireError(f"Expected wire version {WIRE_VERSION}, got {version}. Use the same release on both sides.")
    if frame_kind != kind:
        raise WireError(f"Expected a {kind.name.lower()}, got kind {frame_kind}.")
    if length != len(data):
        raise WireError(f"Expected a frame of {length} bytes, got {len(data)}: it was truncated or extended.")
    header = _HEADER.pack(magic, version, frame_kind, count, zero, round_index, cohort, 0, length)
    if zlib.crc32(memoryview(data)[_HEADER.size :], zlib.crc32(header)) != checksum:
        raise WireError("Expected the checksum of the frame to match its content: it was corrupted in transit.")
    return Frame(kind, round_index, cohort, _unpack_parts(data, count))


def _pack_part(part: Part, values: Tensor) -> bytes:
    if values.dtype not in _TYPES:
        raise WireError(f"Expected values of {', '.join(map(str, _TYPES))}, got {values.dtype}.")
    number = _TYPES.index(values.dtype)
    array = values.detach().cpu().contiguous().numpy().astype(_NUMPY[number], copy=False)
    return _PART.pack(part, number, 0, values.numel()) + array.tobytes()


def _unpack_parts(data: bytes, count: int) -> dict[Part, Tensor]:
    parts: dict[Part, Tensor] = {}
    position = _HEADER.size
    for _ in range(count):
        part, values, position = _unpack_part(data, position)
        if part in parts:
            raise WireError(f"Expected each part once, got {part.name} twice.")
        parts[part] = values
    if position != len(data):
        raise WireError(f"Expected {position} bytes of parts, got {len(data)}.")
    return parts


def _unpack_part(data: bytes, position: int) -> tuple[Part, Tensor, int]:
    if len(data) < position + _PART.size:
        raise WireError("Expected the header of a part, got the end of the frame.")
    tag, number, zero, count = _PART.unpack_from(data, position)
    if tag not in Part.__members__.values() or number >= len(_TYPES) or zero != 0:
        raise WireError(f"Expected a known part and type, got part {tag} of type {number}.")
    start = position + _PART.size
    end = start + count * _NUMPY[number].itemsize
    if end > len(data):
        raise WireError(f"Expected {count} values of part {Part(tag).name}, but the frame ends before them.")
    array = np.frombuffer(data, _NUMPY[number], count, start)
    return Part(tag), torch.from_numpy(array.astype(array.dtype.newbyteorder("="))), end
