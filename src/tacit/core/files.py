"""Files: read whole, up to a limit, and written atomically, to a temporary file beside the target that is then renamed.

Private files and folders, such as those of a run, can be read by their user only.
"""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from tacit.errors import StorageError, UserError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]
_LOCKS = fcntl is not None

LIMIT = 1 << 24  # bytes of a file that is read whole, unless another limit is given
_ADVICE = {
    errno.ENOSPC: "Free some space",
    errno.EDQUOT: "Free some space",
    errno.EROFS: "Choose another directory, for example with --out",
    errno.EACCES: "Run as the user to whom the folder belongs, or choose another directory",
    errno.EPERM: "Run as the user to whom the folder belongs, or choose another directory",
}


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Raise errors of the operating system inside this block as a `StorageError` about `path`."""
    try:
        yield
    except OSError as error:
        advice = _ADVICE.get(error.errno or 0, "Check the disk")
        raise StorageError(f"Could not write {path} ({os.strerror(error.errno or errno.EIO)}). {advice}.") from error


def read(path: Path, what: str = "", error: type[UserError] = UserError, limit: int = LIMIT) -> bytes:
    """The content of a file; one that cannot be read or is too long is an `error`, whose message calls it `what`."""
    name = f"{what} {path}" if what else str(path)
    try:
        with path.open("rb") as file:
            content = file.read(limit + 1)  # whatever the file system says: a device has no size
    except (OSError, ValueError) as problem:  # ValueError: a NUL in the path
        raise error(f"Could not read {name}: {getattr(problem, 'strerror', None) or problem}.") from problem
    if len(content) > limit:
        raise error(f"Expected {name} to have at most {limit} bytes, got more. It is not a file of this kind.")
    return content


def write(path: Path, content: bytes, *, parents: bool = False, private: bool = False) -> None:
    """Write a file atomically: on any failure, the file that was there before is unchanged.

    With `parents`, folders that do not exist are created. A `private` file can be read by its user only.
    """
    partial = path.with_name(f".{path.name}.partial")
    with storage_errors(path):
        if parents:
            path.parent.mkdir(parents=True, exist_ok=True)
        try:
            if private:
                partial.unlink(missing_ok=True)  # of a killed write, perhaps with another mode
                touch_private(partial)
            with partial.open("wb") as file:
                file.write(content)
                flush(file)
            partial.replace(path)
        except BaseException:
            with suppress(OSError):
                partial.unlink(missing_ok=True)
            raise
        _flush_directory(path.parent)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other processes out of this block for the same folder: what is read inside can be changed and written.

    A file system that locks no folders, such as some network ones, does not keep them out, and neither does Windows.

    Example:
        >>> with locked(Path(".")):
        ...     pass
    """
    if not _LOCKS:  # nor can a folder be opened
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):
            lock(descriptor)
        yield
    finally:
        os.close(descriptor)


def lock(file: IO[bytes] | int, *, wait: bool = True, inherited: bool = True) -> None:
    """Keep other processes from locking an open file, until it is closed; on Windows, nothing is locked.

    Args:
        file: an open file, or its descriptor.
        wait: whether to wait for a process that holds it; otherwise raises `BlockingIOError`.
        inherited: whether forked processes hold the lock, too; otherwise it ends when this process closes any
            descriptor of the file.
    """
    if _LOCKS:
        operation = fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB
        (fcntl.flock if inherited else fcntl.lockf)(file, operation)


def touch_private(path: Path) -> None:
    """Create an empty file that only its user can read and write; a file that exists keeps its mode."""
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))


def make_private(folder: Path) -> None:
    """Create a folder, and those above it that do not exist, for their user only."""
    with storage_errors(folder):
        for each in reversed([each for each in (folder, *folder.parents) if not each.exists()]):
            each.mkdir(mode=0o700, exist_ok=True)
        folder.mkdir(exist_ok=True)  # raises if it is a file


def is_partial(path: Path) -> bool:
    """Whether this is the temporary file of a `write` that was killed."""
    return path.name.startswith(".") and path.name.endswith(".partial")


def flush(file: IO[bytes]) -> None:
    """Flush buffers and force what was written to disk."""
    file.flush()
    os.fsync(file.fileno())


def _flush_directory(directory: Path) -> None:
    if not _LOCKS:  # Windows opens no folders
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
