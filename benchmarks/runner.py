"""Starts all frameworks of a benchmark and runs them in turn, one round at a time.

Rounds are interleaved: first every framework runs round 1, then every framework round 2, each time starting with
another one. Whatever disturbs the machine for a minute disturbs all alike. A framework that dies, or does not answer
within a minute, is ended and reported as failed, and the others continue.
"""

import json
import os
import queue
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from environments import FLOWER, PFL, PROJECT, Environment, source_of
from processes import PeakMemory, cpu_seconds, end, memory_mib

SCRIPTS = Path(__file__).resolve().parent / "frameworks"
TIMEOUT = 60.0  # seconds for one answer
POLL = 0.2  # seconds between two looks at whether a silent process still lives


@dataclass(frozen=True)
class Framework:
    """A framework: its environment, its script, and how the script is started.

    Attributes:
        name: as on the command line.
        environment: in which the script runs.
        script: its file in `frameworks/`.
        launcher: the program that starts it.
        peer: whether it runs only workloads that include peers.
        options: further options of the script.
        comparable: whether it computes the same update as the others (`--check`).
        source: a folder from which Python imports first: another tree of Tacit.
    """

    name: str
    environment: Environment
    script: str
    launcher: str = "python"
    peer: bool = False
    options: tuple[str, ...] = ()
    comparable: bool = True
    source: Path | None = None

    def command(self, workload: str, workers: int) -> list[str]:
        """The command line for a workload."""
        launch = ["--standalone", f"--nproc-per-node={workers}"] if self.launcher == "torchrun" else ["-W", "ignore"]
        options = [workload, f"--workers={workers}", *self.options]
        return [self.environment.program(self.launcher), *launch, str(SCRIPTS / self.script), *options]


FRAMEWORKS = {
    framework.name: framework
    for framework in (
        Framework("tacit", PROJECT, "tacit_rounds.py"),
        Framework("tacit-fl-top", PROJECT, "tacit_rounds.py", options=("--ratio=0.005",), comparable=False),
        Framework("plain-loop", PROJECT, "plain_loop.py"),
        Framework("pfl-research", PFL, "pfl_research.py", launcher="torchrun", peer=True),
        Framework("flower", FLOWER, "flower.py", peer=True),
    )
}


BEFORE = "tacit-before"


def another_tree(tree: Path) -> Framework:
    """Tacit from another tree, to compare its speed before and after a change."""
    return replace(FRAMEWORKS["tacit"], name=BEFORE, source=source_of(tree))


class FrameworkError(Exception):
    """A framework's script ended early or did not answer; the message has the end of its standard error."""


@dataclass
class FrameworkProcess:
    """A running framework, and its measurements so far."""

    framework: Framework
    process: subprocess.Popen[str]
    errors: Path
    timeout: float = TIMEOUT
    lines: "queue.SimpleQueue[str]" = field(default_factory=queue.SimpleQueue)
    listener: threading.Thread | None = None
    versions: dict[str, str] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)
    peak_mib: float = 0.0
    cpu_in_rounds: float = 0.0
    measured_since: tuple[float, float] = (0.0, 0.0)  # wall clock and processor time
    failure: str | None = None

    def listen(self) -> None:
        """Read the script's lines in a thread: descendants that outlive it may keep its output open for ever."""
        self.listener = threading.Thread(target=self._read, daemon=True)
        self.listener.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout:
            for line in self.process.stdout:
                self.lines.put(line)

    def receive(self, when: str = "in a round") -> dict[str, Any]:
        """The script's next line of JSON."""
        until = time.monotonic() + self.timeout
        while True:
            ended = self.process.poll() is not None  # before looking, because it may have answered before it ended
            try:
                line = self.lines.get(timeout=POLL)
            except queue.Empty:
                if ended:
                    raise self._failed(f"ended {when}, with exit status {self.process.returncode}") from None
                if time.monotonic() > until:
                    raise self._failed(f"did not answer within {self.timeout:g} s {when}, and was ended") from None
                continue
            if line.startswith("{"):
                return json.loads(line)

    def _failed(self, what: str) -> FrameworkError:
        """End what is left of the framework; the error says what happened."""
        end(self.process.pid)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)  # descendants of a process that has ended
        return FrameworkError(f"{self.framework.name} {what}:\n{self.errors.read_text()[-2000:]}")

    def request_round(self) -> dict[str, Any]:
        """Run one round; returns the script's measurements."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write("round\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # it has ended: `receive` says how
        return self.receive()

    def run_round(self) -> float:
        """Run one round; returns its seconds."""
        before = cpu_seconds(self.process.pid)
        seconds = float(self.request_round()["seconds"])
        self.cpu_in_rounds += cpu_seconds(self.process.pid) - before
        return seconds

    def warm_up(self) -> None:
        """Run a round whose memory is sampled and whose time does not count, because sampling takes time."""
        with PeakMemory(self.process.pid) as peak:
            self.run_round()
        self.peak_mib = max(self.peak_mib, peak.mib)

    def start_measuring(self) -> None:
        """Rounds count from now on."""
        self.cpu_in_rounds, self.measured_since = 0.0, (time.monotonic(), cpu_seconds(self.process.pid))

    def measure_round(self) -> None:
        """Run a round whose time counts."""
        self.seconds.append(self.run_round())
        self.peak_mib = max(self.peak_mib, memory_mib(self.process.pid))

    def stop(self) -> None:
        """End the script by closing its input, or else its processes."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.close()
            self.process.wait(timeout=20)
        except (OSError, subprocess.TimeoutExpired):
            end(self.process.pid)
            self.process.wait()
        if self.listener is not None:
            self.listener.join(timeout=5)


@contextmanager
def running(
    framework: Framework, workload: str, workers: int, *options: str, timeout: float = TIMEOUT
) -> Iterator[FrameworkProcess]:
    """A framework that is ready to run rounds, and is stopped afterwards; `timeout`: seconds for one answer."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    if framework.source is not None:
        environment["PYTHONPATH"] = str(framework.source)
    with tempfile.TemporaryDirectory() as folder:
        errors = Path(folder) / "stderr"
        with errors.open("w") as sink:
            process = subprocess.Popen(
                [*framework.command(workload, workers), *options],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=sink, text=True, env=environment,
                start_new_session=True,
            )  # fmt: skip
        started = FrameworkProcess(framework, process, errors, timeout)
        started.listen()
        try:
            started.versions = started.receive("at start")["versions"]
            yield started
        finally:
            started.stop()


@dataclass(frozen=True, kw_only=True)
class Result:
    """The measurements of a framework in a workload."""

    workload: str
    framework: str
    seconds: float | None  # median over the rounds
    rounds: list[float]
    peak_mib: float
    idle_cpu: float  # processors used while other frameworks ran; should be close to 0
    versions: dict[str, str]
    failure: str | None = None

    @classmethod
    def failed(cls, workload: str, framework: str, failure: str) -> Self:
        """The result of a framework that did not start."""
        return cls(
            workload=workload, framework=framework, seconds=None, rounds=[], peak_mib=0.0, idle_cpu=0.0,
            versions={}, failure=failure,
        )  # fmt: skip

    @classmethod
    def of(cls, workload: str, process: FrameworkProcess) -> Self:
        """The result after the last round."""
        since, cpu_since = process.measured_since
        wall, cpu = time.monotonic() - since, cpu_seconds(process.process.pid) - cpu_since
        waiting = wall - sum(process.seconds)
        return cls(
            workload=workload,
            framework=process.framework.name,
            seconds=statistics.median(process.seconds) if process.seconds else None,
            rounds=[round(seconds, 4) for seconds in process.seconds],
            peak_mib=round(process.peak_mib, 1),
            idle_cpu=round(max(0.0, cpu - process.cpu_in_rounds) / max(waiting, 1e-9), 3),
            versions=process.versions,
            failure=process.failure,
        )


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How long to measure, and with how many processes."""

    rounds: int
    warm_ups: int = 2
    workers: int = 2
    timeout: float = TIMEOUT
    deadline: float = float("inf")  # of the monotonic clock; no round starts after it


def _attempt(process: FrameworkProcess, action: Callable[[FrameworkProcess], None]) -> None:
    """Run an action; a framework that fails is excluded, and the others continue."""
    if process.failure:
        return
    try:
        action(process)
    except FrameworkError as error:
        process.failure = str(error)
        print(error, file=sys.stderr)


def measure(workload: str, frameworks: list[Framework], settings: Settings) -> list[Result]:
    """Measure one workload: start all frameworks, warm up, run the rounds in turn."""
    results: list[Result] = []
    with ExitStack() as stack:
        processes: list[FrameworkProcess] = []
        for framework in frameworks:
            try:
                processes.append(
                    stack.enter_context(running(framework, workload, settings.workers, timeout=settings.timeout))
                )
            except FrameworkError as error:
                print(error, file=sys.stderr)
                results.append(Result.failed(workload, framework.name, str(error)))
        for _ in range(settings.warm_ups):
            for process in processes:
                _attempt(process, FrameworkProcess.warm_up)
        for process in processes:
            process.start_measuring()
        for number in range(settings.rounds):
            if number and time.monotonic() > settings.deadline:
                break
            first = number % max(1, len(processes))
            for process in processes[first:] + processes[:first]:
                _attempt(process, FrameworkProcess.measure_round)
        results += [Result.of(workload, process) for process in processes]
    order = [*FRAMEWORKS, BEFORE]
    return sorted(results, key=lambda result: order.index(result.framework))
