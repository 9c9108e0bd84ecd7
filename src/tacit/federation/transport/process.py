"""The processes of server and sites: their command lines, their content, and their restarts."""

import importlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path

from tacit.core import files
from tacit.errors import UserError
from tacit.federation.transport.endpoints import Handler

MIN_PAUSE, MAX_PAUSE = 1.0, 60.0  # seconds before an ended process restarts
SECONDS_OF_A_GOOD_START = 60.0
SECONDS_TO_END = 10.0
_MAX_TEXT = 1000  # characters of a line for people
_PYTHON = (sys.executable, "-P", "-m")  # -P: a torch.py in the current folder, perhaps beside a plan, is not imported
_PACKAGE = "tacit.federation.transport.grpc"
MAX_MESSAGE = 1 << 27  # bytes of a request or a reply, unless an operator says otherwise
PID = "process.pid"  # in a kit: the number of its running process


class OneThread:
    """A site's handler, opened and called in one thread, as databases require.

    Args:
        opener: `module:function` that makes the handler from a configuration file.
        config: that file.
    """

    def __init__(self, opener: str, config: Path) -> None:
        self._thread = ThreadPoolExecutor(1)
        self._handler = self._thread.submit(_open, opener, config).result()

    def __call__(self, verb: str, request: bytes) -> bytes:
        return self._thread.submit(self._handler, verb, request).result()


def claim(kit: Path, timeout: float = SECONDS_TO_END) -> None:
    """Claim the kit for this process, until it ends; raises `UserError` if another process holds it."""
    file = os.open(kit / PID, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)  # it stays open
    deadline = time.monotonic() + timeout  # the threads of a killed process may take a moment to end
    while not _is_locked(file):
        if time.monotonic() > deadline:
            other = os.read(file, 20).decode("ascii", "replace")
            raise UserError(f"Expected nobody to run {kit}, but process {other} does. Stop that one first.")
        time.sleep(0.1)
    os.ftruncate(file, 0)
    os.write(file, str(os.getpid()).encode())


def _is_locked(file: int) -> bool:
    try:
        files.lock(file, wait=False)
    except BlockingIOError:
        return False
    return True


def say(text: str) -> None:
    """Print a line with the time, for people; the text is untrusted."""
    line = f"{datetime.now():%Y-%m-%d %H:%M:%S}  {_one_line(text)}\n"
    print(line, end="", flush=True)  # noqa: T201, in one piece: several threads write


def _one_line(text: str) -> str:
    cut = text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]} …"
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in cut)


def server_command(folder: Path, listen: str = "", limit: int = MAX_MESSAGE) -> list[str]:
    """The command line of the server's process, with the folder of its federation."""
    return [*_PYTHON, _PACKAGE, "server", str(folder.absolute()), listen, str(limit)]


def site_command(kit: Path, identity: Path, config: Path, opener: str, limit: int = MAX_MESSAGE) -> list[str]:
    """The command line of a site's process."""
    places = [str(place.absolute()) for place in (kit, identity, config)]
    return [*_PYTHON, _PACKAGE, "site", *places, opener, str(limit)]


def keep_running(command: Sequence[str]) -> int:
    """Run a process, and restart it whenever it ends by itself; an interrupt ends both.

    Returns:
        The exit code 2 of a process that cannot start with these files.
    """
    os.umask(0o077)  # only its user can read the process's files
    pause = MIN_PAUSE
    while True:
        began = time.monotonic()
        code = _run(command)
        if code == 2:
            return code
        pause = MIN_PAUSE if time.monotonic() - began > SECONDS_OF_A_GOOD_START else min(2 * pause, MAX_PAUSE)
        say(f"The process ended with code {code}. It starts again in {pause:.0f} s.")
        time.sleep(pause)


def _run(command: Sequence[str]) -> int:
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    try:
        return child.wait()
    finally:
        if child.poll() is None:
            child.terminate()
            try:
                child.wait(SECONDS_TO_END)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


def end_with_parent() -> None:
    """Make this process end with its parent, however that ends."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _open(opener: str, config: Path) -> Handler:
    module, _, name = opener.partition(":")
    opened: Handler = getattr(importlib.import_module(module), name)(config)
    return opened


def open_site(config: Path) -> Handler:
    """The handler of a file's site."""
    from tacit.federation.site.service import Site

    return Site.open(config).handle
