"""One process at a time, with the lowest priority, that pauses while the machine is needed and stops after its round.

The backlog uses it. A run pauses at once, wherever it is, and whoever needs the machine does not wait for that. It
keeps its memory. After SIGINT or SIGTERM it goes on to the end of its round, and then writes a checkpoint; a second
signal interrupts the round, which is repeated later. If this process is killed, so is the run (on Linux).
"""

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import busy

from tacit.runs.directory import ROUNDS

LOCK, LOG = "backlog.lock", "log.txt"
LOWEST = 19  # niceness
BETWEEN = 0.2  # seconds between two looks at the lock and at the run
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
PR_SET_PDEATHSIG = 1  # of Linux: a signal for a process when its parent ends, however that ends


@dataclass(frozen=True)
class Run:
    """A command that makes results: how many, the hours that they take, and the folder of its checkpoints."""

    label: str
    command: tuple[str, ...]
    place: Path
    hours: float
    count: int = 1


class Supervisor:
    """Runs one command after the other; a user has one supervisor at a time.

    Its lock ends with this process and with the command that it has started.

    Attributes:
        signals: those that came; once there is one, nothing is started any more.
    """

    def __init__(self, runs: Path) -> None:
        self.signals: list[int] = []
        self._runs, self._lock = runs, busy.open_lock(LOCK)
        if not busy.lock_soon(self._lock, shared=False):
            sys.exit(f"The backlog is already running: {running()} Wait for it, or stop it with kill -TERM.")
        runs.mkdir(parents=True, exist_ok=True)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda number, _: self.signals.append(number))

    def play(self, run: Run) -> str:
        """Run a command; returns the last line of its messages if it fails. Its checkpoints are removed if not."""
        while busy.busy() and not self.signals:
            time.sleep(BETWEEN)
        if self.signals:
            return ""
        self._note(run)
        say(f"Running: {run.label}, about {run.hours:.2f} hours.")
        with (self._runs / LOG).open("ab") as log:
            before = log.tell()
            code = self._supervise(self._start(run, log), run)
        if code == 0:
            shutil.rmtree(run.place, ignore_errors=True)
            return ""
        said = (self._runs / LOG).read_bytes()[before:].decode(errors="replace").split("\n")
        return next((line for line in reversed(said) if line.strip()), f"exit code {code}")

    def _start(self, run: Run, log: IO[bytes]) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            run.command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, **ONE_THREAD},
            pass_fds=(self._lock,),
            start_new_session=True,  # it is paused with its own processes, and a Ctrl-C is for this process alone
            preexec_fn=_prepare,
        )

    def _supervise(self, child: "subprocess.Popen[bytes]", run: Run) -> int:
        """Pause the run while the machine is needed; after a signal, end it when its round has ended."""
        paused, ended, before = False, False, None
        while child.poll() is None:
            if self.signals and not ended:
                before = _written(run.place) if before is None else before
                ended = paused or len(self.signals) > 1 or _written(run.place) != before
                _send(child, *([signal.SIGCONT, signal.SIGINT] if ended else []))
            elif not self.signals and busy.busy() != paused:
                paused = not paused
                _send(child, signal.SIGSTOP if paused else signal.SIGCONT)
                say("Paused: tests, a benchmark or make are running." if paused else "Continued.")
                self._note(run, paused)
            time.sleep(BETWEEN)
        return child.returncode

    def _note(self, run: Run, paused: bool = False) -> None:
        """Write what runs into the lock's file, for `running`."""
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, f"{run.label}{', paused' * paused} (process {os.getpid()}).".encode(), 0)


def running() -> str | None:
    """What a supervisor runs now, as a sentence; None: there is none."""
    descriptor = busy.open_lock(LOCK)
    try:
        return None if busy.try_lock(descriptor, shared=True) else os.pread(descriptor, 1000, 0).decode()
    finally:
        os.close(descriptor)


def lower_priority(niceness: int) -> None:
    """Make room for others, at the processor by this much; processes inherit it.

    At 19, the processor and, where there is `ionice`, the disk are used only when nobody else does.
    """
    os.nice(niceness)
    _lower_session()
    if niceness < LOWEST:
        return
    if shutil.which("ionice"):
        subprocess.run(["ionice", "-c", "3", "-p", str(os.getpid())], check=False, capture_output=True)


def say(sentence: str) -> None:
    """Print on standard error."""
    print(sentence, file=sys.stderr, flush=True)


def _lower_session() -> None:
    """Linux may share the processor among sessions first, each with a niceness of its own: give it the process's."""
    with suppress(OSError):
        Path("/proc/self/autogroup").write_text(str(os.nice(0)))


def _prepare() -> None:
    """In the new process: Ctrl-C interrupts, also if a shell has it ignored; and it ends if this one is killed."""
    _lower_session()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _written(place: Path) -> int:
    """The bytes of all rounds so far: they change when a round ends."""
    total = 0
    for file in place.rglob(ROUNDS):
        with suppress(FileNotFoundError):  # its run has just been saved
            total += file.stat().st_size
    return total


def _send(child: "subprocess.Popen[bytes]", *numbers: int) -> None:
    for number in numbers:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, number)
