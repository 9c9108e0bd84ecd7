"""Rows that are mostly zeros, as bytes: compressed sparse rows as everybody knows them, and a form of our own.

Both are exact, bit for bit. A number is left out if all its bits are zero, so that -0.0 travels like any other. What is
read is checked before it is used: bytes that are cut, extended or do not say a row of the expected length in the one
way in which it is said (coordinates in range, ascending, each once; values finite, none of them zero) raise
`WireError`. Lengths are checked before anything is allocated: nothing takes more than a few times the row's own bytes.

::

    csr       form u8 | dim u64 | column bytes u8 | pointer bytes u8 | count u64 | pointers | columns | values f32
    compact   form u8 | dim u64 | exponents u16 | support bytes u64 | span u64
              exponents u8 | support | ranks | 3 bytes for every value
    dense     form u8 | values f32                                   (of `Compact`, where that is shorter)

A float32 is a sign, 8 bits of exponent and 23 of fraction. Sign and fraction of a trained weight look random, and are
written as they are; but the weights that pruning leaves lie within a few powers of two, so that exponents are cheap:
they are numbered by frequency, and the numbers written as the gaps of a set of coordinates (`tacit.wire.indices`),
in unary or Golomb–Rice code, as the support is.
"""

import struct
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.errors import WireError, expect
from tacit.wire import indices

Index = Literal["int32", "int64", "smallest"]

_DENSE, _CSR, _COMPACT = 0, 1, 2
_CSR_HEADER = struct.Struct("<BQBBQ")
_COMPACT_HEADER = struct.Struct("<BQHQQ")
_SIGN_AND_FRACTION = 3  # bytes
_INFINITE = 255  # the exponent of what is not finite

_Bytes = NDArray[np.uint8]
_Bits = NDArray[np.uint32]
_Ints = NDArray[np.int64]


class WireFormat(Protocol):
    """How a row becomes bytes, and bytes a row again."""

    @property
    def name(self) -> str:
        """What reports call it."""
        ...

    def encode(self, row: Tensor) -> bytes:
        """The row as bytes."""
        ...

    def decode(self, data: bytes, dim: int) -> Tensor:
        """The row of `dim` numbers that these bytes say; anything else raises `WireError`."""
        ...


@dataclass(frozen=True, kw_only=True)
class Csr:
    """Compressed sparse rows: for every row of a matrix where its entries begin, their columns, their values.

    Args:
        columns: how many columns the matrix has into which the row of numbers is folded; None: it has one row.
        index: the type of columns and pointers; `smallest` is the smallest unsigned one that suffices.

    Example:
        >>> row = torch.tensor([0.0, 0.5, 0.0, 0.0, -2.0])
        >>> data = Csr().encode(row)
        >>> len(data), Csr().decode(data, dim=5).tolist()
        (43, [0.0, 0.5, 0.0, 0.0, -2.0])
    """

    columns: int | None = None
    index: Index = "int32"
    name: ClassVar[str] = "csr"

    def __post_init__(self) -> None:
        expect(self.columns is None or self.columns >= 1, f"columns={self.columns} >= 1")
        expect(self.index in ("int32", "int64", "smallest"), f"index={self.index!r} as int32, int64 or smallest")

    def encode(self, row: Tensor) -> bytes:
        """Pointers, columns, values."""
        bits = _bits_of(row)
        at = np.flatnonzero(bits)
        width, height = self._shape(bits.size)
        begins = np.searchsorted(at, np.arange(height + 1) * width)
        column, pointer = self._types(width, at.size)
        header = _CSR_HEADER.pack(_CSR, bits.size, column.itemsize, pointer.itemsize, at.size)
        return b"".join(
            (header, begins.astype(pointer).tobytes(), (at % width).astype(column).tobytes(), _little(bits[at]))
        )

    def decode(self, data: bytes, dim: int) -> Tensor:
        """The row, if these bytes are the ones that say it."""
        expect(dim >= 0, f"dim={dim} >= 0")
        *sizes, count = _header(_CSR_HEADER, _CSR, data, dim)
        if count > dim:
            raise WireError(f"Expected at most {dim} values, got {count}.")
        width, height = self._shape(dim)
        column, pointer = self._types(width, count)
        if sizes != [column.itemsize, pointer.itemsize]:
            raise WireError(f"Expected columns and pointers of {column} and {pointer}, got {sizes} bytes.")
        middle = _CSR_HEADER.size + (height + 1) * pointer.itemsize
        _check_length(data, middle + count * (column.itemsize + 4))
        begins = _checked_pointers(np.frombuffer(data, pointer, height + 1, _CSR_HEADER.size), count)
        columns = np.frombuffer(data, column, count, middle)
        if count and columns.max() >= width:
            raise WireError(f"Expected columns below {width}, got {columns.max()}.")
        at = np.repeat(np.arange(height), np.diff(begins)) * width + columns.astype(np.int64)
        _check_ascending(at, dim)
        return _row(at, np.frombuffer(data, "<u4", count, middle + count * column.itemsize), dim)

    def _shape(self, dim: int) -> tuple[int, int]:
        """Columns and rows of the matrix."""
        width = self.columns or max(dim, 1)
        return width, -(-dim // width)

    def _types(self, width: int, count: int) -> "tuple[np.dtype[np.unsignedinteger], np.dtype[np.unsignedinteger]]":
        """Of columns and pointers; signed types are read as unsigned ones, whose upper half is out of range anyway."""
        column, pointer = (self._type(largest) for largest in (width - 1, count))
        return column, pointer

    def _type(self, largest: int) -> "np.dtype[np.unsignedinteger]":
        if self.index == "smallest":
            return np.min_scalar_type(largest).newbyteorder("<")
        kind = np.dtype("<u4" if self.index == "int32" else "<u8")
        if largest >= 1 << (8 * kind.itemsize - 1):
            raise WireError(f"Expected indices of {self.index} to suffice, got {largest}. Use index='smallest'.")
        return kind


@dataclass(frozen=True)
class Compact:
    """Few bytes for few values: coordinates as a bitmap or as gaps, exponents by frequency; whichever is shortest.

    Example:
        >>> row = torch.tensor([0.0, 0.5, 0.0, 0.0, -2.0]).repeat(100)
        >>> data = Compact().encode(row)
        >>> len(data), len(Csr().encode(row)), torch.equal(Compact().decode(data, dim=500), row)
        (732, 1627, True)
    """

    name: ClassVar[str] = "compact"

    def encode(self, row: Tensor) -> bytes:
        """The shorter one of both forms."""
        bits = _bits_of(row)
        few = _encode_compact(bits)
        return few if len(few) <= 4 * bits.size else struct.pack("<B", _DENSE) + _little(bits)

    def decode(self, data: bytes, dim: int) -> Tensor:
        """The row, if these bytes are the ones that say it."""
        expect(dim >= 0, f"dim={dim} >= 0")
        if len(data) > 1 + 4 * dim:
            raise WireError(f"Expected a row of at most {1 + 4 * dim} bytes, got {len(data)}.")
        dense = data[:1] == bytes([_DENSE])
        row = _decode_dense(data, dim) if dense else _row(*_decode_compact(data, dim), dim)
        if self.encode(row) != data:
            raise WireError("Expected the row in its shortest form, got another one.")
        return row


def _decode_dense(data: bytes, dim: int) -> Tensor:
    _check_length(data, 1 + 4 * dim)
    bits = np.frombuffer(data, "<u4", dim, 1).astype(np.uint32)
    _check_finite(bits)
    return _tensor(bits)


def _encode_compact(bits: _Bits) -> bytes:
    at = np.flatnonzero(bits)
    chosen = bits[at]
    table, ranks = _ranked((chosen >> 23 & 255).astype(np.uint8))
    ends = np.cumsum(ranks + 1) - 1  # ranks as gaps: the set of coordinates that has them
    span = int(ends[-1]) + 1 if ends.size else 0
    support, coded = (_packed(where, dim) for where, dim in ((at, bits.size), (ends, span)))
    rest = chosen & 0x7FFFFF | chosen >> 8 & 0x800000
    fractions = rest.astype("<u4").view(np.uint8).reshape(-1, 4)[:, :_SIGN_AND_FRACTION]
    header = _COMPACT_HEADER.pack(_COMPACT, bits.size, table.size, len(support), span)
    return b"".join((header, table.tobytes(), support, coded, fractions.tobytes()))


def _decode_compact(data: bytes, dim: int) -> "tuple[_Ints, NDArray[np.unsignedinteger]]":
    """Coordinates and the bits of their values."""
    kinds, length, span = _header(_COMPACT_HEADER, _COMPACT, data, dim)
    begin = _COMPACT_HEADER.size + kinds
    if kinds > 256 or begin + length > len(data):
        raise WireError(f"The row says {kinds} exponents and {length} bytes of support; {len(data)} cannot hold them.")
    table = np.frombuffer(data, np.uint8, kinds, _COMPACT_HEADER.size)
    at = _unpacked(data[begin : begin + length], dim)
    end = len(data) - _SIGN_AND_FRACTION * at.size
    if end < begin + length:
        raise WireError(f"Expected {at.size} values behind their coordinates, but the bytes end before them.")
    exponents = table[_ranks(data[begin + length : end], at.size, span, kinds)]
    fractions = np.zeros((at.size, 4), np.uint8)
    fractions[:, :_SIGN_AND_FRACTION] = np.frombuffer(data[end:], np.uint8).reshape(-1, _SIGN_AND_FRACTION)
    rest: _Bits = fractions.reshape(-1).view("<u4").astype(np.uint32)
    signs, digits = rest >> np.uint32(23) << np.uint32(31), rest & np.uint32(0x7FFFFF)
    return at, signs | digits | exponents.astype(np.uint32) << np.uint32(23)


def _ranked(exponents: _Bytes) -> tuple[_Bytes, _Ints]:
    """The exponents that occur, most frequent first, and for each value the place of its own among them."""
    counts = np.bincount(exponents, minlength=256)
    table = np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)]
    place = np.zeros(256, np.int64)
    place[table] = np.arange(table.size)
    return table.astype(np.uint8), place[exponents]


def _ranks(coded: bytes, count: int, span: int, kinds: int) -> _Ints:
    """The place of every value's exponent in a table of `kinds`."""
    if not count <= span <= count * kinds:  # before a set of that span is read
        raise WireError(f"Expected {count} exponents out of {kinds} to span at most {count * kinds}, got {span}.")
    ends = _unpacked(coded, span)
    if ends.size != count or (count and ends[-1] != span - 1):
        raise WireError(f"Expected the exponents of {count} values, got those of {ends.size}.")
    ranks = np.diff(ends, prepend=-1) - 1
    if count and ranks.max() >= kinds:
        raise WireError(f"Expected exponents out of {kinds}, got number {ranks.max()}.")
    return ranks


def _bits_of(row: Tensor) -> _Bits:
    """A row's numbers as bit patterns."""
    if row.dtype != torch.float32 or row.dim() != 1:
        raise WireError(f"Expected a row of float32, got {row.dtype} of shape {tuple(row.shape)}.")
    bits: _Bits = row.detach().cpu().contiguous().numpy().view(np.uint32)
    return bits


def _little(bits: _Bits) -> bytes:
    return bits.astype("<u4", copy=False).tobytes()


def _packed(at: _Ints, dim: int) -> bytes:
    return indices.pack(torch.from_numpy(at), dim).numpy().tobytes()


def _unpacked(data: bytes, dim: int) -> _Ints:
    return indices.unpack(torch.from_numpy(np.frombuffer(data, np.uint8).copy()), dim).numpy()


def _header(header: struct.Struct, expected: int, data: bytes, dim: int) -> tuple[int, ...]:
    """What a header says behind form and length of the row."""
    if len(data) < header.size:
        raise WireError(f"Expected a row of at least {header.size} bytes, got {len(data)}.")
    form, length, *rest = header.unpack_from(data)
    if (form, length) != (expected, dim):
        raise WireError(f"Expected a row of {dim} numbers in form {expected}, got {length} in form {form}.")
    return tuple(rest)


def _check_length(data: bytes, expected: int) -> None:
    if len(data) != expected:
        raise WireError(f"Expected a row of {expected} bytes, got {len(data)}: it was cut or extended.")


def _checked_pointers(begins: "NDArray[np.unsignedinteger]", count: int) -> _Ints:
    """From 0 to `count`, never falling."""
    if begins[0] != 0 or begins[-1] != count or np.any(begins[1:] < begins[:-1]):
        raise WireError(f"Expected pointers that rise from 0 to {count}.")
    return begins.astype(np.int64)


def _check_ascending(at: _Ints, dim: int) -> None:
    if at.size and (at[-1] >= dim or np.any(at[1:] <= at[:-1])):
        raise WireError(f"Expected ascending coordinates below {dim}, each once.")


def _check_finite(bits: "NDArray[np.unsignedinteger]") -> None:
    if np.any((bits >> 23 & 255) == _INFINITE):
        raise WireError("Expected finite values, got NaN or infinite ones.")


def _row(at: _Ints, values: "NDArray[np.unsignedinteger]", dim: int) -> Tensor:
    """The values at their coordinates, zeros elsewhere."""
    _check_finite(values)
    if not np.all(values):
        raise WireError("Expected values other than zero: zeros are left out.")
    bits = np.zeros(dim, np.uint32)
    bits[at] = values
    return _tensor(bits)


def _tensor(bits: _Bits) -> Tensor:
    return torch.from_numpy(bits.view(np.float32))
