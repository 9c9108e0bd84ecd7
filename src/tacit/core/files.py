"""Files: read whole, and written atomically, to a temporary file beside the target that is then renamed."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from tacit.errors import StorageError, UserError

_ADVICE = {
    errno.ENOSPC: "Free some space",
    errno.EDQUOT: "Free some space",
    errno.EROFS: "Choose another directory with --out",
    errno.EACCES: "Choose another directory with --out",
    errno.EPERM: "Choose another directory with --out",
}


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Raise errors of the operating system inside this block as a `StorageError` about `path`."""
    try:
        yield
    except OSError as error:
        advice = _ADVICE.get(error.errno or 0, "Check the disk")
        raise StorageError(f"Could not write {path} ({os.strerror(error.errno or errno.EIO)}). {advice}.") from error


def read(path: Path, what: str = "", error: type[UserError] = UserError) -> bytes:
    """The content of a file; one that cannot be read is an `error`, whose message calls it `what`."""
    try:
        return path.read_bytes()
    except OSError as problem:
        name = f"{what} {path}" if what else str(path)
        raise error(f"Could not read {name}: {problem.strerror}.") from problem


def write(path: Path, content: bytes, *, parents: bool = False, private: bool = False) -> None:
    """Write a file atomically: on any failure, the file that was there before is unchanged.

    With `parents`, folders that do not exist are created. With `private`, only the owner can read the file.
    """
    partial = path.with_name(f".{path.name}.partial")
    with storage_errors(path):
        if parents:
            path.parent.mkdir(parents=True, exist_ok=True)
        try:
            partial.unlink(missing_ok=True)
            descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if private else 0o666)
            with open(descriptor, "wb") as file:
                file.write(content)
                flush(file)
            partial.replace(path)
        except BaseException:
            with suppress(OSError):
                partial.unlink(missing_ok=True)
            raise
        _flush_directory(path.parent)


def is_partial(path: Path) -> bool:
    """Whether this is the temporary file of a `write` that was killed."""
    return path.name.startswith(".") and path.name.endswith(".partial")


def flush(file: IO[bytes]) -> None:
    """Flush buffers and force what was written to disk."""
    file.flush()
    os.fsync(file.fileno())


def _flush_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
