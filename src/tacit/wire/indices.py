"""Compact sets of coordinates: masks that are sent once to each client, and supports of sparse messages.

A set is written in the shorter of two formats, which its first byte identifies::

    0 u8 | one bit per coordinate                                                            bitmap
    1 u8 | count u64 | parameter u8 per 128 gaps | low bits | unary bits                     gaps

The gap of a coordinate is the number of coordinates that are skipped before it. A gap g with parameter r is written as
its Golomb–Rice code: its r low bits, and g >> r in unary (that many zeros, then a one). The low bits are stored in bit
planes, lowest first, so that writing and reading both streams needs no loop over coordinates. Streams are
little-endian within bytes and padded with zeros. Gaps that are no shorter than the bitmap are malformed, so that
reading needs only a few bytes of memory for each of `dim` coordinates.

Reference: R. F. Rice, "Some practical universal noiseless coding techniques", JPL 1979; S. W. Golomb, "Run-length
encodings", IEEE Trans. Information Theory 12(3), 1966.
"""

import struct

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.errors import WireError, expect

_BITMAP, _GAPS = 0, 1
_HEADER = struct.Struct("<BQ")
_BLOCK = 128  # gaps that share a parameter: fine enough for masks whose density changes from layer to layer
_MAX_DIM = 1 << 62  # so that a coordinate plus another gap fits into int64

_Bytes = NDArray[np.uint8]
_Ints = NDArray[np.int64]


def pack(indices: Tensor, dim: int) -> Tensor:
    """Serialise ascending, distinct coordinates below `dim`.

    Example:
        >>> mask = torch.tensor([3, 5, 900])
        >>> packed = pack(mask, dim=1000)
        >>> packed.numel(), unpack(packed, dim=1000).tolist()
        (15, [3, 5, 900])
    """
    chosen = _validate(indices, dim)
    gaps = np.diff(chosen, prepend=-1) - 1
    parameters, bits = _parameters(gaps)
    if _HEADER.size + parameters.size + sum(map(_bytes_for, bits)) >= _bitmap_size(dim):
        return torch.from_numpy(_pack_bitmap(chosen, dim))
    header = np.frombuffer(_HEADER.pack(_GAPS, gaps.size), np.uint8)
    widths = _widths(parameters, gaps.size)
    low, unary = _pack_planes(gaps, widths), _pack_unary(gaps >> widths)
    return torch.from_numpy(np.concatenate([header, parameters, low, unary]))


def unpack(packed: Tensor, dim: int) -> Tensor:
    """The coordinates packed with this `dim`; raises `WireError` unless the bytes are well-formed."""
    _check_dim(dim)
    if packed.dtype != torch.uint8 or packed.dim() != 1 or packed.numel() == 0:
        raise WireError(f"Expected a set of coordinates as bytes, got {packed.dtype} of shape {tuple(packed.shape)}.")
    data = packed.detach().cpu().numpy()
    if data.size > _bitmap_size(dim):
        raise WireError(f"Expected at most {_bitmap_size(dim)} bytes for coordinates below {dim}, got {data.size}.")
    if data[0] == _BITMAP:
        return torch.from_numpy(_unpack_bitmap(data, dim))
    if data[0] == _GAPS:
        return torch.from_numpy(_unpack_gaps(data, dim))
    raise WireError(f"Expected a set of coordinates in format {_BITMAP} or {_GAPS}, got format {data[0]}.")


def _check_dim(dim: int) -> None:
    expect(0 <= dim < _MAX_DIM, f"dim={dim} in [0, 2**62)")


def _validate(indices: Tensor, dim: int) -> _Ints:
    _check_dim(dim)
    expect(indices.dtype == torch.int64 and indices.dim() == 1, f"indices as a vector of int64, got {indices.dtype}")
    array: _Ints = indices.detach().cpu().numpy()
    if array.size:
        expect(bool(np.all(array[1:] > array[:-1])), "indices in strictly ascending order")
        expect(array[0] >= 0 and array[-1] < dim, f"indices from {array[0]} to {array[-1]} in [0, {dim})")
    return array


def _bytes_for(bits: int) -> int:
    return -(-bits // 8)


def _bitmap_size(dim: int) -> int:
    return 1 + _bytes_for(dim)


def _bits(data: _Bytes) -> _Bytes:
    return np.unpackbits(data, bitorder="little")


def _pack_bitmap(chosen: _Ints, dim: int) -> _Bytes:
    bits = np.zeros(dim, np.uint8)
    bits[chosen] = 1
    return np.concatenate([np.array([_BITMAP], np.uint8), np.packbits(bits, bitorder="little")])


def _unpack_bitmap(data: _Bytes, dim: int) -> _Ints:
    if data.size != _bitmap_size(dim):
        raise WireError(f"Expected a bitmap of {_bitmap_size(dim)} bytes, got {data.size}: it was truncated.")
    chosen = np.flatnonzero(_bits(data[1:]))
    if chosen.size and chosen[-1] >= dim:
        raise WireError(f"Expected coordinates below {dim}, got {chosen[-1]}.")
    return chosen.astype(np.int64, copy=False)


def _parameters(gaps: _Ints) -> tuple[_Bytes, tuple[int, int]]:
    """The best parameter of every block, and the total numbers of low and unary bits."""
    blocks = np.zeros((-(-gaps.size // _BLOCK), _BLOCK), np.int64)
    blocks.reshape(-1)[: gaps.size] = gaps
    sizes = _block_sizes(gaps.size)
    candidates = range(int(gaps.max(initial=0)).bit_length() + 1)
    # In float64: the cost of a far too small parameter may overflow int64, and the cost of the best one is exact.
    costs = np.stack([(blocks >> r).sum(1, dtype=np.float64) + sizes * r for r in candidates])
    best = costs.argmin(0)
    low = int((best * sizes).sum())
    return best.astype(np.uint8), (low, int(costs.min(0).sum()) - low + gaps.size)


def _block_sizes(count: int) -> _Ints:
    return np.diff(np.append(np.arange(0, count, _BLOCK), count))


def _widths(parameters: _Bytes, count: int) -> _Ints:
    """The parameter of every gap."""
    return np.repeat(parameters.astype(np.int64), _BLOCK)[:count]


def _pack_planes(gaps: _Ints, widths: _Ints) -> _Bytes:
    planes = [(gaps[widths > bit] >> bit & 1).astype(np.uint8) for bit in range(int(widths.max(initial=0)))]
    return np.packbits(np.concatenate([np.zeros(0, np.uint8), *planes]), bitorder="little")


def _unpack_planes(bits: _Bytes, widths: _Ints) -> _Ints:
    low, position = np.zeros(widths.size, np.int64), 0
    for bit in range(int(widths.max(initial=0))):
        wide = np.flatnonzero(widths > bit)
        low[wide] |= bits[position : position + wide.size].astype(np.int64) << bit
        position += wide.size
    return low


def _pack_unary(high: _Ints) -> _Bytes:
    ends = np.cumsum(high + 1) - 1
    bits = np.zeros(int(ends[-1]) + 1 if ends.size else 0, np.uint8)
    bits[ends] = 1
    return np.packbits(bits, bitorder="little")


def _unpack_gaps(data: _Bytes, dim: int) -> _Ints:
    widths, low, unary = _split(data, dim)
    if low.size and _bits(low[-1:])[(int(widths.sum()) - 1) % 8 + 1 :].any():
        raise WireError("Expected zeros after the low bits.")
    ends = np.flatnonzero(_bits(unary))
    if ends.size != widths.size or (unary.size and unary[-1] == 0):
        raise WireError(f"Expected {widths.size} unary codes that end in the last byte, got {ends.size}.")
    high = np.diff(ends, prepend=-1) - 1
    if np.any(high > dim >> widths):  # before the shift, which could overflow
        raise WireError(f"Expected coordinates below {dim}, got a larger gap.")
    chosen = np.cumsum((high << widths | _unpack_planes(_bits(low), widths)) + 1) - 1
    if np.any(chosen >= dim):  # check all: the first that is too large has not overflowed, later ones may have
        raise WireError(f"Expected coordinates below {dim}, got larger ones.")
    return chosen


def _split(data: _Bytes, dim: int) -> tuple[_Ints, _Bytes, _Bytes]:
    """The parameter of every gap, the low bits and the unary bits; lengths are checked before allocating."""
    if not _HEADER.size <= data.size < _bitmap_size(dim):
        raise WireError(f"Expected gaps in {_HEADER.size} to {_bitmap_size(dim) - 1} bytes, got {data.size}.")
    _, count = _HEADER.unpack(data[: _HEADER.size].tobytes())
    start = _HEADER.size + -(-count // _BLOCK)
    if start + _bytes_for(count) > data.size:  # every code has at least its final bit
        raise WireError(f"Expected {count} coordinates, but {data.size} bytes cannot hold them.")
    parameters = data[_HEADER.size : start]
    if parameters.size and parameters.max() > dim.bit_length():
        raise WireError(f"Expected parameters of at most {dim.bit_length()}, got {parameters.max()}.")
    end = start + _bytes_for(int((parameters * _block_sizes(count)).sum()))
    if end + _bytes_for(count) > data.size:
        raise WireError(f"Expected the low bits of {count} coordinates, but {data.size} bytes cannot hold them.")
    return _widths(parameters, count), data[start:end], data[end:]
