"""The lock of whoever needs this machine for itself: while it is held, the backlog of experiments pauses.

    python experiments/busy.py COMMAND ARGUMENT ...     run a command while holding it

Tests, benchmarks and the targets of the Makefile hold it, several of them at once if need be. A holder never waits for
the backlog, and one that is killed releases the lock, because the operating system does. The file is outside the
working tree, so that all trees of a user share it. Without `fcntl` (Windows) there are neither locks nor a backlog.
"""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

BUSY = "busy.lock"
TRIES, BETWEEN = 100, 0.01


def cache() -> Path:
    """The user's folder for files of Tacit that can be made again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tacit"


def open_lock(name: str) -> int:
    """A descriptor of a lock file, which is created if it does not exist."""
    cache().mkdir(parents=True, exist_ok=True)
    return os.open(cache() / name, os.O_RDWR | os.O_CREAT, 0o600)


def try_lock(descriptor: int, *, shared: bool) -> bool:
    """Lock a file without waiting; False: somebody else has locked it."""
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def lock_soon(descriptor: int, *, shared: bool) -> bool:
    """The same for a lock that others hold for a moment, to see whether it is held: this waits for a second at most."""
    for _ in range(TRIES):
        if try_lock(descriptor, shared=shared):
            return True
        time.sleep(BETWEEN)
    return False


def hold() -> int | None:
    """Hold the lock until `release`; None: this system has no locks, or its cache cannot be written."""
    with suppress(OSError):
        descriptor = open_lock(BUSY) if fcntl else None
        if descriptor is not None and lock_soon(descriptor, shared=True):
            return descriptor
    return None


def release(descriptor: int | None) -> None:
    """Release it, also for processes that have inherited the descriptor."""
    if descriptor is not None:
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


@contextmanager
def holding() -> Iterator[None]:
    """Hold the lock inside this block."""
    held = hold()
    try:
        yield
    finally:
        release(held)


def busy() -> bool:
    """Whether anybody holds the lock."""
    descriptor = open_lock(BUSY)
    try:
        return not try_lock(descriptor, shared=False)
    finally:
        os.close(descriptor)


def main() -> None:
    """Become the command, which holds the lock as long as it runs."""
    if len(sys.argv) < 2:
        sys.exit("Expected a command to run while the lock is held, for example: python experiments/busy.py make lint")
    descriptor = hold()
    if descriptor is not None:
        os.set_inheritable(descriptor, True)
    os.execvp(sys.argv[1], sys.argv[1:])


if __name__ == "__main__":
    main()
