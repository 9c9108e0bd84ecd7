"""Numbers to bytes: the one format in which views and messages travel.

A frame is a header, and per part a part header and its values, little-endian and without gaps::

    magic 4s | version u8 | kind u8 | parts u8 | zero u8 | round u32 | checksum u32 | length u64      24 bytes
    tag u8 | type u8 | zero u16 | count u64                                                           12 bytes
    values                                                                                   count × width bytes

Tags and types come from the tables below; nothing on the wire names a class or a module. The length is checked
before anything is allocated, the checksum (CRC-32 over everything behind the header) before anything is used.
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

MAGIC = b"TACT"
VERSION = 1
_HEADER = struct.Struct("<4sBBBBIIQ")
_PART = struct.Struct("<BBHQ")
_TYPES = (torch.float32, torch.float64, torch.int32, torch.int64, torch.uint8)
_NUMPY = tuple(np.dtype(name) for name in ("<f4", "<f8", "<i4", "<i8", "u1"))


class FrameKind(IntEnum):
    """Which way a frame goes."""

    VIEW = 1  # from the server to a client
    MESSAGE = 2  # from a client to the server


class Part(IntEnum):
    """What a part of a frame holds."""

    WEIGHTS = 1  # a whole model; as bytes, in a form of `tacit.wire.sparse`
    ROW = 2  # a client's row after codec and mechanism; as bytes, in such a form
    SAMPLES = 3  # how many samples stand behind it, for a weighted mean
    VALUES = 4  # a model's weights at the mask's coordinates
    MASK = 5  # those coordinates, packed by `tacit.wire.indices`
    BOUND = 6  # the L2 bound that rows must respect


Parts = Mapping[Part, Tensor]


@dataclass(frozen=True, eq=False)
class Frame:
    """A frame that was read: what it is, its round, its parts."""

    kind: FrameKind
    round: int
    parts: dict[Part, Tensor]


def size(parts: Parts) -> int:
    """How many bytes `pack` needs for these parts, without packing them."""
    return _HEADER.size + sum(_PART.size + t.numel() * t.element_size() for t in parts.values())


def pack(kind: FrameKind, number: int, parts: Parts) -> bytes:
    """One frame of bytes.

    Example:
        >>> frame = unpack(pack(Kind.VIEW, 3, {Part.WEIGHTS: torch.arange(4.0)}), Kind.VIEW)
        >>> frame.round, frame.parts[Part.WEIGHTS].tolist()
        (3, [0.0, 1.0, 2.0, 3.0])
    """
    body = b"".join(_pack_part(part, values) for part, values in parts.items())
    header = _HEADER.pack(MAGIC, VERSION, kind, len(parts), 0, number, zlib.crc32(body), _HEADER.size + len(body))
    return header + body


def unpack(data: bytes, kind: FrameKind, limit: int = 1 << 32) -> Frame:
    """Read a frame of the expected kind; anything else than a well-formed one raises `WireError`."""
    if len(data) > limit:
        raise WireError(f"Expected a frame of at most {limit} bytes, got {len(data)}.")
    if len(data) < _HEADER.size:
        raise WireError(f"Expected a frame of at least {_HEADER.size} bytes, got {len(data)}.")
    magic, version, got, count, zero, number, checksum, length = _HEADER.unpack_from(data)
    if magic != MAGIC or zero != 0:
        raise WireError("Expected a Tacit frame, got other bytes.")
    if version != VERSION:
        raise WireError(f"Expected wire version {VERSION}, got {version}. Use the same release on both sides.")
    if got != kind:
        raise WireError(f"Expected a {kind.name.lower()}, got kind {got}.")
    if length != len(data):
        raise WireError(f"Expected a frame of {length} bytes, got {len(data)}: it was cut or extended.")
    if zlib.crc32(memoryview(data)[_HEADER.size :]) != checksum:
        raise WireError("The frame's checksum does not match its content: it was damaged on the way.")
    return Frame(kind, number, _unpack_parts(data, count))


def _pack_part(part: Part, values: Tensor) -> bytes:
    if values.dtype not in _TYPES:
        raise WireError(f"Expected values of {', '.join(map(str, _TYPES))}, got {values.dtype}.")
    kind = _TYPES.index(values.dtype)
    array = values.detach().cpu().contiguous().numpy().astype(_NUMPY[kind], copy=False)
    return _PART.pack(part, kind, 0, values.numel()) + array.tobytes()


def _unpack_parts(data: bytes, count: int) -> dict[Part, Tensor]:
    parts: dict[Part, Tensor] = {}
    at = _HEADER.size
    for _ in range(count):
        part, values, at = _unpack_part(data, at)
        if part in parts:
            raise WireError(f"Part {part.name} stands twice in one frame.")
        parts[part] = values
    if at != len(data):
        raise WireError(f"Expected {at} bytes of parts, got {len(data)}.")
    return parts


def _unpack_part(data: bytes, at: int) -> tuple[Part, Tensor, int]:
    if len(data) < at + _PART.size:
        raise WireError("The frame ends inside a part's header.")
    tag, kind, zero, count = _PART.unpack_from(data, at)
    if tag not in Part.__members__.values() or kind >= len(_TYPES) or zero != 0:
        raise WireError(f"Unknown part {tag} or type {kind}.")
    start = at + _PART.size
    end = start + count * _NUMPY[kind].itemsize
    if end > len(data):
        raise WireError(f"Part {Part(tag).name} says {count} values, but the frame ends before them.")
    array = np.frombuffer(data, _NUMPY[kind], count, start)
    return Part(tag), torch.from_numpy(array.astype(array.dtype.newbyteorder("="))), end
