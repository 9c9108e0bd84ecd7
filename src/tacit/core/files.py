"""Files that appear whole or not at all: written beside their place, flushed to the disk, then renamed."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from tacit.errors import StorageError

_ADVICE = {
    errno.ENOSPC: "Free some space",
    errno.EDQUOT: "Free some space",
    errno.EROFS: "Choose another directory with --out",
    errno.EACCES: "Choose another directory with --out",
    errno.EPERM: "Choose another directory with --out",
}


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turn the operating system's refusals inside this block into one `StorageError` about `path`."""
    try:
        yield
    except OSError as error:
        advice = _ADVICE.get(error.errno or 0, "Check the disk")
        raise StorageError(f"Could not write {path} ({os.strerror(error.errno or errno.EIO)}). {advice}.") from error


def write(path: Path, content: bytes) -> None:
    """Put a file in its place, in one step; whatever goes wrong, what stood there before stays."""
    partial = path.with_name(f".{path.name}.partial")
    with storage_errors(path):
        try:
            with partial.open("wb") as file:
                file.write(content)
                flush(file)
            partial.replace(path)
        except BaseException:
            with suppress(OSError):
                partial.unlink(missing_ok=True)
            raise
        _flush_names(path.parent)


def is_partial(path: Path) -> bool:
    """Whether this is what a kill left of a file that was never put in its place."""
    return path.name.startswith(".") and path.name.endswith(".partial")


def flush(file: IO[bytes]) -> None:
    """Bring what was written to the disk."""
    file.flush()
    os.fsync(file.fileno())


def _flush_names(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
