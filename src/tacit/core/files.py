"""Files: read whole, up to a limit; written atomically, by renaming a temporary file; appended to, as a hash chain.

Private files and folders, such as those of a run, can be read by their user only.
"""

import errno
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Self

from tacit.errors import StorageError, UserError, WireError
from tacit.wire.chain import Chain

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]
_LOCKS = fcntl is not None

MAX_FILE_BYTES = 1 << 24  # bytes of a file that is read whole, unless another limit is given
_CHAIN_LIMIT = 1 << 30  # bytes of a chained file
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


def read(path: Path, what: str = "", error: type[UserError] = UserError, limit: int = MAX_FILE_BYTES) -> bytes:
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
        with _opened(path.parent) as descriptor:
            if _LOCKS:
                os.fsync(descriptor)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock a folder: other processes cannot enter this block for it, so that files can be read, changed and written.

    A file system that locks no folders, such as some network ones, does not keep them out, and neither does Windows.

    Example:
        >>> with locked(Path(".")):
        ...     pass
    """
    with _opened(folder) as descriptor:
        with suppress(OSError):
            lock(descriptor)
        yield


@contextmanager
def _opened(folder: Path) -> Iterator[int]:
    """The descriptor of a folder; -1 on Windows, which opens none."""
    descriptor = os.open(folder, os.O_RDONLY) if _LOCKS else -1
    try:
        yield descriptor
    finally:
        if _LOCKS:
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


class ChainedFile:
    """A private file to which entries are only ever appended, as the lines of a `Chain`.

    Opening it verifies the chain. Several processes may append: each first reads the entries of others. A last line
    without an end was cut off by a crash, and `append` never returned for it: it is left out, and the next entry
    replaces it.

    Attributes:
        path: the file.
        what: what messages call it, and the purpose of its chain.
        entries: all entries, in order.
    """

    def __init__(self, path: Path, what: str) -> None:
        self.path, self.what, self._size = path, what, 0
        self._load()

    @classmethod
    def open(cls, path: Path, what: str) -> Self:
        """Open a file to append to it, or create it."""
        with storage_errors(path):
            make_private(path.parent)
            touch_private(path)
            with path.open("rb") as file:
                lock(file)
                return cls(path, what)

    @property
    def head(self) -> bytes:
        """The hash of the last entry, which identifies all of them."""
        return self._chain.head

    def append(self, entry: Mapping[str, object]) -> None:
        """Add an entry; it is on the disk when this returns."""
        with storage_errors(self.path), self.path.open("rb+") as file:
            lock(file)
            if file.seek(0, os.SEEK_END) != self._size:  # another process has written, or a write has failed
                self._load()
                file.seek(self._size)
                file.truncate()
            link = self._chain.seal(entry)
            file.write(link.line + b"\n")
            flush(file)
            self.entries.append(dict(entry))
            self._chain.hashes.append(link.hash)
            self._size = file.tell()

    def _load(self) -> None:
        """Read up to the last whole line."""
        self._chain, self.entries = Chain(self.what), list[dict[str, Any]]()
        lines = read(self.path, f"the {self.what}", limit=_CHAIN_LIMIT).split(b"\n")
        self._size = sum(len(line) + 1 for line in lines[:-1])
        for number, line in enumerate(lines[:-1], 1):
            try:
                self.entries.append(self._chain.read(line))
            except WireError:
                raise UserError(
                    f"Line {number} of {self.path}, the {self.what}, was changed, or lines before it are missing."
                ) from None
