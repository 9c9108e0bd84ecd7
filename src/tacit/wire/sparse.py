"""Wire formats of sparse rows: the usual compressed sparse rows (CSR), and a more compact format.

Both are lossless, bit for bit. A number is omitted if all its bits are zero, so that -0.0 is kept. Parsing accepts only
the canonical encoding of a row of the expected length (coordinates in range and strictly ascending; values finite and
not zero) and raises `WireError` for anything else, truncated or extended bytes included. Lengths are checked before
anything is allocated: parsing needs a few times the memory of the row.

::

    csr       format u8 | dim u64 | column bytes u8 | pointer bytes u8 | count u64 | pointers | columns | values f32
    compact   format u8 | dim u64 | exponents u16 | support bytes u64 | span u64
              exponents u8 | support | ranks | 3 bytes for every value
    dense     format u8 | values f32                                 (`Compact`, where that is shorter)

A float32 has a sign, 8 bits of exponent and 23 bits of fraction. Sign and fraction of a trained weight look random and
are written unchanged. Pruned models have weights within a few powers of two, so that their exponents compress well:
they are ranked by frequency, and the ranks are written as the gaps of a set of coordinates (`tacit.wire.indices`), in
Golomb–Rice code like the support.
"""

import struct
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.errors import WireError, one_of, whole
from tacit.wire import indices

IndexType = Literal["int32", "int64", "smallest"]

_DENSE, _CSR, _COMPACT = 0, 1, 2
_CSR_HEADER = struct.Struct("<BQBBQ")
_COMPACT_HEADER = struct.Struct("<BQHQQ")
_SIGN_AND_FRACTION = 3  # bytes
_NON_FINITE = 255  # the exponent of NaN and infinity

_Bytes = NDArray[np.uint8]
_Bits = NDArray[np.uint32]
_Ints = NDArray[np.int64]


class WireFormat(Protocol):
    """A lossless encoding of rows as bytes."""

    @property
    def name(self) -> str:
        """The name in reports."""

    def encode(self, row: Tensor) -> bytes:
        """Serialise a row of float32."""

    def decode(self, data: bytes, dim: int) -> Tensor:
        """Parse a row of `dim` numbers; raises `WireError` unless the bytes are its canonical encoding."""


@dataclass(frozen=True, kw_only=True)
class Csr:
    """Compressed sparse rows (CSR): the start of every matrix row's entries, their columns and their values.

    Args:
        columns: the number of columns of the matrix into which the vector is reshaped; None: a single matrix row.
        index: the type of columns and row pointers; `smallest` is the smallest unsigned type that suffices.

    Example:
        >>> row = torch.tensor([0.0, 0.5, 0.0, 0.0, -2.0])
        >>> data = Csr().encode(row)
        >>> len(data), Csr().decode(data, dim=5).tolist()
        (43, [0.0, 0.5, 0.0, 0.0, -2.0])
    """

    columns: int | None = None
    index: IndexType = "int32"
    name: ClassVar[str] = "csr"

    def __post_init__(self) -> None:
        whole(1, columns=self.columns)
        one_of(get_args(IndexType), index=self.index)

    def encode(self, row: Tensor) -> bytes:
        bits = _bits_of(row)
        support = np.flatnonzero(bits)
        width, height = self._shape(bits.size)
        pointers = np.searchsorted(support, np.arange(height + 1) * width)
        column, pointer = self._types(width, support.size)
        header = _CSR_HEADER.pack(_CSR, bits.size, column.itemsize, pointer.itemsize, support.size)
        return b"".join(
            (
                header,
                pointers.astype(pointer).tobytes(),
                (support % width).astype(column).tobytes(),
                _little_endian(bits[support]),
            )
        )

    def decode(self, data: bytes, dim: int) -> Tensor:
        whole(0, dim=dim)
        *sizes, count = _header(_CSR_HEADER, _CSR, data, dim)
        if count > dim:
            raise WireError(f"Expected at most {dim} values, got {count}.")
        width, height = self._shape(dim)
        column, pointer = self._types(width, count)
        if sizes != [column.itemsize, pointer.itemsize]:
            raise WireError(f"Expected columns and pointers of {column} and {pointer}, got {sizes} bytes.")
        columns_start = _CSR_HEADER.size + (height + 1) * pointer.itemsize
        _check_length(data, columns_start + count * (column.itemsize + 4))
        pointers = _validate_pointers(np.frombuffer(data, pointer, height + 1, _CSR_HEADER.size), count)
        columns = np.frombuffer(data, column, count, columns_start)
        if count and columns.max() >= width:
            raise WireError(f"Expected columns below {width}, got {columns.max()}.")
        support = np.repeat(np.arange(height), np.diff(pointers)) * width + columns.astype(np.int64)
        _check_ascending(support, dim)
        return _row(support, np.frombuffer(data, "<u4", count, columns_start + count * column.itemsize), dim)

    def _shape(self, dim: int) -> tuple[int, int]:
        """The numbers of columns and rows of the matrix."""
        width = self.columns or max(dim, 1)
        return width, -(-dim // width)

    def _types(self, width: int, count: int) -> "tuple[np.dtype[np.unsignedinteger], np.dtype[np.unsignedinteger]]":
        """The types of columns and pointers; signed types are read as unsigned, with the upper half out of range."""
        column, pointer = (self._type(largest) for largest in (width - 1, count))
        return column, pointer

    def _type(self, largest: int) -> "np.dtype[np.unsignedinteger]":
        if self.index == "smallest":
            return np.min_scalar_type(largest).newbyteorder("<")
        dtype = np.dtype("<u4" if self.index == "int32" else "<u8")
        if largest >= 1 << (8 * dtype.itemsize - 1):
            raise WireError(f"Expected indices that fit into {self.index}, got {largest}. Use index='smallest'.")
        return dtype


@dataclass(frozen=True)
class Compact:
    """A compact format: coordinates as a bitmap or as gaps, exponents by frequency; dense where that is shorter.

    Example:
        >>> row = torch.tensor([0.0, 0.5, 0.0, 0.0, -2.0]).repeat(100)
        >>> data = Compact().encode(row)
        >>> len(data), len(Csr().encode(row)), torch.equal(Compact().decode(data, dim=500), row)
        (732, 1627, True)
    """

    name: ClassVar[str] = "compact"

    def encode(self, row: Tensor) -> bytes:
        bits = _bits_of(row)
        compact = _encode_compact(bits)
        return compact if len(compact) <= 4 * bits.size else struct.pack("<B", _DENSE) + _little_endian(bits)

    def decode(self, data: bytes, dim: int) -> Tensor:
        whole(0, dim=dim)
        if len(data) > 1 + 4 * dim:
            raise WireError(f"Expected a row of at most {1 + 4 * dim} bytes, got {len(data)}.")
        dense = data[:1] == bytes([_DENSE])
        row = _decode_dense(data, dim) if dense else _row(*_decode_compact(data, dim), dim)
        if self.encode(row) != data:
            raise WireError("Expected the row in its shortest encoding, got another one.")
        return row


def _decode_dense(data: bytes, dim: int) -> Tensor:
    _check_length(data, 1 + 4 * dim)
    bits = np.frombuffer(data, "<u4", dim, 1).astype(np.uint32)
    _check_finite(bits)
    return _tensor(bits)


def _encode_compact(bits: _Bits) -> bytes:
    coordinates = np.flatnonzero(bits)
    values = bits[coordinates]
    table, ranks = _rank((values >> 23 & 255).astype(np.uint8))
    ends = np.cumsum(ranks + 1) - 1  # the set of coordinates whose gaps are the ranks
    span = int(ends[-1]) + 1 if ends.size else 0
    support, coded_ranks = (_pack(chosen, dim) for chosen, dim in ((coordinates, bits.size), (ends, span)))
    rest = values & 0x7FFFFF | values >> 8 & 0x800000
    fractions = rest.astype("<u4").view(np.uint8).reshape(-1, 4)[:, :_SIGN_AND_FRACTION]
    header = _COMPACT_HEADER.pack(_COMPACT, bits.size, table.size, len(support), span)
    return b"".join((header, table.tobytes(), support, coded_ranks, fractions.tobytes()))


def _decode_compact(data: bytes, dim: int) -> "tuple[_Ints, NDArray[np.unsignedinteger]]":
    """The coordinates and the bits of their values."""
    distinct, length, span = _header(_COMPACT_HEADER, _COMPACT, data, dim)
    start = _COMPACT_HEADER.size + distinct
    if distinct > 256 or start + length > len(data):
        raise WireError(
            f"Expected {distinct} exponents and {length} bytes of support, but {len(data)} bytes cannot hold them."
        )
    table = np.frombuffer(data, np.uint8, distinct, _COMPACT_HEADER.size)
    coordinates = _unpack(data[start : start + length], dim)
    end = len(data) - _SIGN_AND_FRACTION * coordinates.size
    if end < start + length:
        raise WireError(f"Expected {coordinates.size} values after their coordinates, but the bytes end before them.")
    exponents = table[_ranks(data[start + length : end], coordinates.size, span, distinct)]
    fractions = np.zeros((coordinates.size, 4), np.uint8)
    fractions[:, :_SIGN_AND_FRACTION] = np.frombuffer(data[end:], np.uint8).reshape(-1, _SIGN_AND_FRACTION)
    rest: _Bits = fractions.reshape(-1).view("<u4").astype(np.uint32)
    signs, digits = rest >> np.uint32(23) << np.uint32(31), rest & np.uint32(0x7FFFFF)
    return coordinates, signs | digits | exponents.astype(np.uint32) << np.uint32(23)


def _rank(exponents: _Bytes) -> tuple[_Bytes, _Ints]:
    """The exponents that occur, most frequent first, and the rank of every value's exponent."""
    counts = np.bincount(exponents, minlength=256)
    table = np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)]
    rank = np.zeros(256, np.int64)
    rank[table] = np.arange(table.size)
    return table.astype(np.uint8), rank[exponents]


def _ranks(coded: bytes, count: int, span: int, distinct: int) -> _Ints:
    """The rank of every value's exponent among `distinct` exponents."""
    if not count <= span <= count * distinct:  # before a set of this span is allocated
        raise WireError(f"Expected {count} of {distinct} exponents to span at most {count * distinct}, got {span}.")
    ends = _unpack(coded, span)
    if ends.size != count or (count and ends[-1] != span - 1):
        raise WireError(f"Expected the exponents of {count} values, got those of {ends.size}.")
    ranks = np.diff(ends, prepend=-1) - 1
    if count and ranks.max() >= distinct:
        raise WireError(f"Expected ranks below {distinct}, got {ranks.max()}.")
    return ranks


def _bits_of(row: Tensor) -> _Bits:
    """The numbers of a row as bit patterns."""
    if row.dtype != torch.float32 or row.dim() != 1:
        raise WireError(f"Expected a row of float32, got {row.dtype} of shape {tuple(row.shape)}.")
    bits: _Bits = row.detach().cpu().contiguous().numpy().view(np.uint32)
    return bits


def _little_endian(bits: _Bits) -> bytes:
    return bits.astype("<u4", copy=False).tobytes()


def _pack(coordinates: _Ints, dim: int) -> bytes:
    return indices.pack(torch.from_numpy(coordinates), dim).numpy().tobytes()


def _unpack(data: bytes, dim: int) -> _Ints:
    return indices.unpack(torch.from_numpy(np.frombuffer(data, np.uint8).copy()), dim).numpy()


def _header(header: struct.Struct, expected: int, data: bytes, dim: int) -> tuple[int, ...]:
    """Check the format and the length of the row; return the header's other fields."""
    if len(data) < header.size:
        raise WireError(f"Expected a row of at least {header.size} bytes, got {len(data)}.")
    row_format, length, *rest = header.unpack_from(data)
    if (row_format, length) != (expected, dim):
        raise WireError(f"Expected a row of {dim} numbers in format {expected}, got {length} in format {row_format}.")
    return tuple(rest)


def _check_length(data: bytes, expected: int) -> None:
    if len(data) != expected:
        raise WireError(f"Expected a row of {expected} bytes, got {len(data)}: it was truncated or extended.")


def _validate_pointers(pointers: "NDArray[np.unsignedinteger]", count: int) -> _Ints:
    if pointers[0] != 0 or pointers[-1] != count or np.any(pointers[1:] < pointers[:-1]):
        raise WireError(f"Expected ascending pointers from 0 to {count}.")
    return pointers.astype(np.int64)


def _check_ascending(coordinates: _Ints, dim: int) -> None:
    if coordinates.size and (coordinates[-1] >= dim or np.any(coordinates[1:] <= coordinates[:-1])):
        raise WireError(f"Expected strictly ascending coordinates below {dim}.")


def _check_finite(bits: "NDArray[np.unsignedinteger]") -> None:
    if np.any((bits >> 23 & 255) == _NON_FINITE):
        raise WireError("Expected finite values, got NaN or infinite ones.")


def _row(coordinates: _Ints, values: "NDArray[np.unsignedinteger]", dim: int) -> Tensor:
    """The values at their coordinates, zeros elsewhere."""
    _check_finite(values)
    if not np.all(values):
        raise WireError("Expected values other than zero: zeros are omitted.")
    bits = np.zeros(dim, np.uint32)
    bits[coordinates] = values
    return _tensor(bits)


def _tensor(bits: _Bits) -> Tensor:
    return torch.from_numpy(bits.view(np.float32))
