"""Decompress files and parse them: strict, with bounded memory, and never through pickle.

Checksums are those of the content: of the decompressed bytes of a gzip file, of one member of a zip or tar archive, of
the original binary records of an npz batch. A file that was compressed again therefore still passes its check.
"""

import gzip
import io
import math
import struct
import tarfile
import zipfile
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from tacit.errors import DataError

PACKINGS = (".tar.gz", ".gz", ".zip", ".npz")
MAX_ARCHIVE = 8  # an archive may have this many times the bytes of the member that is read
MAX_OVERHEAD = 1 << 20  # bytes of headers and directories, beside content
MAX_DIMENSIONS = 4  # of an IDX array
_IMAGE = (3, 32, 32)  # of an image record, after its label
IDX_TYPES: dict[int, np.dtype[Any]] = {0x08: np.dtype("u1"), 0x0C: np.dtype(">i4")}


def packing_of(path: str) -> str:
    """The compression of a file, by its name: one of `PACKINGS`, or `.raw`."""
    return next((packing for packing in PACKINGS if path.endswith(packing)), ".raw")


def unpack(path: Path, *, member: str = "", limit: int, packing: str = "") -> bytes:
    """The content of a compressed file.

    Args:
        path: the file.
        member: for a zip or tar archive, the base name of the file inside.
        limit: expected bytes of content; at most one more byte is read, whatever the file declares.
        packing: one of `PACKINGS` or `.raw`; by default from the file's name.

    Raises:
        DataError: the file is truncated, damaged, encrypted, or much larger than its content should be.
    """
    packing = packing or packing_of(path.name)
    try:
        _check_size(path, max_packed(limit, packing))
        return _READERS.get(packing, _raw)(path, member, limit)
    except Exception as error:  # the parsers of archives raise almost anything for hostile bytes
        raise DataError(
            f"{path} cannot be read: {error or type(error).__name__}. Delete it and fetch it again."
        ) from error


def max_packed(limit: int, packing: str) -> int:
    """The maximum size of a file with `limit` bytes of content; archives may hold other files too."""
    return limit * (MAX_ARCHIVE if packing in (".tar.gz", ".zip") else 1) + limit // 100 + MAX_OVERHEAD


def _check_size(path: Path, most: int) -> None:
    size = path.stat().st_size
    if size > most:
        raise ValueError(f"expected at most {most} bytes, got {size}")


def pack(content: bytes, path: Path) -> None:
    """Write content, compressed according to the file's name: gzip, npz for image records, or not at all."""
    if path.suffix == ".npz":
        labels, images = image_records(content)
        with path.open("wb") as target:
            np.savez_compressed(target, x=images, y=labels)
    elif path.suffix == ".gz":
        path.write_bytes(gzip.compress(content, mtime=0))
    else:
        path.write_bytes(content)


def parse_idx(content: bytes, name: str) -> NDArray[Any]:
    """An array in the IDX format of the MNIST family; its length must be exactly what the header declares."""
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] not in IDX_TYPES:
        raise DataError(f"Expected {name} to begin with an IDX header, got {content[:4].hex(' ') or 'nothing'}.")
    dtype, dimensions = IDX_TYPES[content[2]], content[3]
    if dimensions > MAX_DIMENSIONS:
        raise DataError(f"Expected {name} to have at most {MAX_DIMENSIONS} dimensions, got {dimensions}.")
    start = 4 + 4 * dimensions
    if len(content) < start:
        raise DataError(f"Expected {name} to have {dimensions} dimensions, but its header is cut off.")
    shape = struct.unpack(f">{dimensions}I", content[4:start])
    expected = math.prod(shape) * dtype.itemsize
    if len(content) - start != expected:
        raise DataError(f"Expected {name} to hold {expected} bytes of data, got {len(content) - start}.")
    array: NDArray[Any] = np.frombuffer(content, dtype, offset=start).reshape(shape)
    return array.astype(dtype.newbyteorder("="))


def image_records(content: bytes) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Labels and images of a binary CIFAR batch: records of one label byte and 3 x 32 x 32 pixels."""
    size = 1 + 3 * 32 * 32
    if len(content) == 0 or len(content) % size:
        raise DataError(f"Expected image records of {size} bytes, got {len(content)} bytes in total.")
    records = np.frombuffer(content, np.uint8).reshape(-1, size)
    return records[:, 0].copy(), records[:, 1:].reshape(-1, 3, 32, 32).copy()


def _raw(path: Path, _: str, limit: int) -> bytes:
    with path.open("rb") as plain:
        return plain.read(limit + 1)


def _gzip(path: Path, _: str, limit: int) -> bytes:
    with gzip.open(path) as stream:
        return stream.read(limit + 1)


class _Capped:
    """A stream that raises once more than `limit` bytes are read: data before a member is decompressed too."""

    def __init__(self, stream: gzip.GzipFile, limit: int) -> None:
        self.stream, self.left = stream, limit

    def read(self, size: int) -> bytes:
        data = self.stream.read(min(size, self.left + 1))
        self.left -= len(data)
        if self.left < 0:
            raise ValueError("it decompresses to far more than its content")
        return data


def _tar_member(path: Path, member: str, limit: int) -> bytes:
    capped = _Capped(gzip.open(path), max_packed(limit, ".tar.gz"))  # noqa: SIM115, closed below
    with capped.stream, tarfile.open(fileobj=capped, mode="r|") as archive:  # type: ignore[call-overload]
        for entry in archive:
            if entry.isfile() and Path(entry.name).name == member:
                stream: IO[bytes] | None = archive.extractfile(entry)
                return stream.read(limit + 1) if stream else b""
    raise KeyError(f"no {member} inside")


def _zip_member(path: Path, member: str, limit: int) -> bytes:
    with zipfile.ZipFile(path) as archive:
        for entry in archive.infolist():
            if Path(entry.filename).name == member:
                with archive.open(entry) as stream:
                    return stream.read(limit + 1)
    raise KeyError(f"no {member} inside")


def _npz_records(path: Path, _: str, limit: int) -> bytes:
    """An npz batch (x, y) as the records of the original binary batch."""
    images, labels = (_npy(_zip_member(path, f"{name}.npy", limit + MAX_OVERHEAD)) for name in ("x", "y"))
    if images.shape != (len(labels), *_IMAGE) or labels.ndim != 1:
        raise ValueError(f"x has shape {images.shape}, y has shape {labels.shape}")
    return np.hstack([labels[:, None], images.reshape(len(labels), -1)]).tobytes()


def _npy(content: bytes) -> NDArray[np.uint8]:
    """The array of bytes in an npy file; its length must be exactly what the header declares."""
    stream = io.BytesIO(content)
    version = np.lib.format.read_magic(stream)
    if version != (1, 0):
        raise ValueError(f"expected version 1.0 of the npy format, got {version}")
    shape, fortran, dtype = np.lib.format.read_array_header_1_0(stream)
    if dtype != np.uint8 or fortran or not shape:
        raise ValueError(f"expected an array of bytes, got {dtype} of shape {shape}")
    data = np.frombuffer(content, np.uint8, offset=stream.tell())
    if min(shape) < 0 or math.prod(shape) != data.size:
        raise ValueError(f"expected {math.prod(shape)} bytes of data, got {data.size}")
    return data.reshape(shape)


_READERS = {".tar.gz": _tar_member, ".gz": _gzip, ".zip": _zip_member, ".npz": _npz_records}
