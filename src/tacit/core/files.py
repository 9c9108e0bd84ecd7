"""Files: read whole, up to a limit; written atomically, by renaming a temporary file; appended to, as a hash chain.

Private files and folders, such as those of a run, can be read by their user only.
"""

import errno
import os
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Self

from tacit.errors import StorageError, UserError, WireError
from tacit.wire.chain import MAX_LINE, Chain

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]
_LOCKS = fcntl is not None

MAX_FILE_BYTES = 1 << 24  # bytes of a file that is read whole, unless another limit is given
_PARTIAL = ".partial"
_SECONDS_OF_A_WRITE = 600.0
_NEW = os.O_CREAT | os.O_EXCL | os.O_WRONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
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
    with _open_to_read(path, name, error) as file:
        content = file.read(limit + 1)  # whatever the file system says: a device has no size
    if len(content) > limit:
        raise error(f"Expected {name} to have at most {limit} bytes, got more. It is not a file of this kind.")
    return content


def write(path: Path, content: bytes, *, parents: bool = False, private: bool = False) -> None:
    """Write a file atomically: on any failure, the file that was there before is unchanged.

    With `parents`, folders that do not exist are created. A `private` file, and these folders, can be read by its user
    only, whatever the umask.
    """
    with storage_errors(path):
        if parents and private:
            make_private(path.parent)
        elif parents:
            path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}{_PARTIAL}")  # a name that nobody can prepare
        file = os.fdopen(os.open(partial, _NEW, 0o600 if private else 0o666), "wb")
        try:
            with file:
                file.write(content)
                flush(file)
            partial.replace(path)
        except BaseException:
            with suppress(OSError):
                partial.unlink(missing_ok=True)
            raise
        if private:
            _remove_partials(path)
        with _open_folder(path.parent) as descriptor:
            if _LOCKS:
                os.fsync(descriptor)


def _remove_partials(path: Path) -> None:
    """Remove the temporary files of killed writes of this file: they may hold a secret that was to be erased."""
    for partial in path.parent.iterdir():
        if is_partial(partial) and partial.name.startswith(f".{path.name}."):
            with suppress(OSError):  # removed by another process
                if time.time() - partial.lstat().st_mtime > _SECONDS_OF_A_WRITE:
                    partial.unlink()


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Lock a folder: other processes cannot enter this block for it, so that files can be read, changed and written.

    A file system that locks no folders, such as some network ones, does not keep them out, and neither does Windows.

    Example:
        >>> with lock_folder(Path(".")):
        ...     pass
    """
    with _open_folder(folder) as descriptor:
        with suppress(OSError):
            lock(descriptor)
        yield


@contextmanager
def _open_folder(folder: Path) -> Iterator[int]:
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
    """Create an empty file that only its user can read and write.

    A file that exists keeps its mode. One of another user, or a link that another user made, is refused: that user
    could read what is written.
    """
    try:
        os.close(os.open(path, _NEW, 0o600))
    except FileExistsError:
        user = os.geteuid() if _LOCKS else 0
        if user and {path.lstat().st_uid, path.stat().st_uid} != {user}:
            raise StorageError(
                f"Expected {path} to belong to the user who runs this, but another user made it, who can read it. "
                "Remove it, or choose another folder."
            ) from None
        os.close(os.open(path, os.O_WRONLY))


def make_private(folder: Path) -> None:
    """Create a folder, and those above it that do not exist, for their user only."""
    with storage_errors(folder):
        for each in reversed([each for each in (folder, *folder.parents) if not each.exists()]):
            each.mkdir(mode=0o700, exist_ok=True)
        folder.mkdir(exist_ok=True)  # raises if it is a file


def is_partial(path: Path) -> bool:
    """Whether this is the temporary file of a `write` that was killed."""
    return path.name.startswith(".") and path.name.endswith(_PARTIAL)


def flush(file: IO[bytes]) -> None:
    """Flush buffers and force what was written to disk."""
    file.flush()
    os.fsync(file.fileno())


class ChainedFile:
    """A private file to which entries are only ever appended, as the lines of a `Chain`.

    Opening it verifies the chain, a line at a time, however long it is: only its head stays in memory. Several
    processes may append: each first reads the entries of others. A last line without an end was cut off by a crash, and
    `append` never returned for it: it is left out, and the next entry replaces it.

    Attributes:
        path: the file.
        what: what messages call it, and the purpose of its chain.
        cut: how many bytes of a line that a crash cut off were left out when the file was opened.
    """

    def __init__(self, path: Path, what: str) -> None:
        self.path, self.what = path, what
        self._chain, self._size = Chain(what), 0
        self._catch_up()
        with storage_errors(path):
            self.cut = path.stat().st_size - self._size

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

    @property
    def count(self) -> int:
        """The number of entries."""
        return self._chain.count

    @property
    def entries(self) -> list[dict[str, Any]]:
        """All entries, in order."""
        return [*self.each_entry()]

    def each_entry(self) -> Iterator[dict[str, Any]]:
        """The entries, in order, read from the file and verified again."""
        yield from (entry for _, entry in self._read(Chain(self.what), 0))

    def append(self, entry: Mapping[str, object]) -> None:
        """Add an entry; it is on the disk when this returns."""
        with storage_errors(self.path), self.path.open("rb+") as file:
            lock(file)
            size = file.seek(0, os.SEEK_END)
            if size < self._size:  # the file was replaced
                self._chain, self._size = Chain(self.what), 0
            if size != self._size:  # another process has written, or a write has failed
                self._catch_up()
                file.seek(self._size)
                file.truncate()
            link = self._chain.seal(entry)
            file.write(link.line + b"\n")
            flush(file)
            self._chain.extend(link.hash)
            self._size = file.tell()

    def _catch_up(self) -> None:
        """Verify the entries after those that were read before."""
        for length, _ in self._read(self._chain, self._size):
            self._size += length

    def _read(self, chain: Chain, start: int) -> Iterator[tuple[int, dict[str, Any]]]:
        """The entries of a chain that continues here, each with its length, up to the last whole line."""
        with _open_to_read(self.path, f"the {self.what} {self.path}") as file:
            file.seek(start)
            while (line := file.readline(MAX_LINE + 1)).endswith(b"\n") or len(line) > MAX_LINE:
                try:
                    entry = chain.read(line[:-1])
                except WireError:
                    raise UserError(
                        f"Line {chain.count + 1} of {self.path}, the {self.what}, was changed, or lines before it are "
                        "missing."
                    ) from None
                chain.forget()
                yield len(line), entry


@contextmanager
def _open_to_read(path: Path, name: str, error: type[UserError] = UserError) -> Iterator[IO[bytes]]:
    """An open file, whose errors are those of Tacit."""
    try:
        with path.open("rb") as file:
            yield file
    except (OSError, ValueError) as problem:  # ValueError: a NUL in the path
        if isinstance(problem, UserError):
            raise
        raise error(f"Could not read {name}: {getattr(problem, 'strerror', None) or problem}.") from problem
