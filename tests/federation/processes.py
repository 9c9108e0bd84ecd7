"""A federation of real processes on 127.0.0.1, all of which end with the test, however it ends."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tacit.core import files
from tacit.federation.plan.directory import new_identity, read_identity
from tacit.federation.transport.kits import SERVER_FILE, SERVER_FOLDER, ServerKit, SiteKit
from tacit.federation.transport.process import MAX_MESSAGE, server_command, site_command
from tacit.federation.transport.relay import SOCKET, RelayTransport, free_port

TESTS = Path(__file__).resolve().parents[1]
ECHO = "federation.echo:open_echo"
IDENTITY = "identity.key"
SECONDS_TO_START = 300.0


@dataclass
class Processes:
    """The kits of a federation and its processes, by the names of its sites; the server's is `server`."""

    study: Path
    spawned: list["subprocess.Popen[bytes]"] = field(default_factory=list)
    launcher: "subprocess.Popen[bytes] | None" = None

    @property
    def server(self) -> ServerKit:
        return ServerKit(self.study)

    @property
    def port(self) -> int:
        return self.server.address().port

    @property
    def transport(self) -> RelayTransport:
        return RelayTransport(self.server.private / SOCKET)

    def kit(self, name: str) -> SiteKit:
        return SiteKit(self.study / "kits" / name)

    def enrol(self, *names: str) -> None:
        """Exchange the files of these sites and the server, as operators do."""
        for name in names:
            kit = self.kit(name)
            new_identity(kit.folder / IDENTITY)
            kit.make(read_identity(kit.folder / IDENTITY))
            self.server.add(name, kit.enrolment)
            self.give_address(name)

    def give_address(self, name: str) -> None:
        files.write(self.kit(name).folder / SERVER_FILE, files.read(self.server.address_file))

    def pid(self, name: str) -> int:
        file = self.study / f"{name}.pid"
        until(file.exists, lambda: f"{name} was not started: {self.output()}")
        return int(file.read_text())

    def command(self, name: str, opener: str = ECHO, config: Path | None = None, limit: int = MAX_MESSAGE) -> list[str]:
        """The process of this party, as the operators' commands start it."""
        if name == SERVER_FOLDER:
            return server_command(self.study, limit=limit)
        folder = self.kit(name).folder
        return site_command(folder, folder / IDENTITY, config or folder, opener, limit)

    def start(
        self, *names: str, opener: str = ECHO, configs: Mapping[str, Path] | None = None, limit: int = MAX_MESSAGE
    ) -> None:
        """Start these, in processes of their own."""
        for name in names:
            command = self.command(name, opener, (configs or {}).get(name), limit)
            self._launch(name, command[command.index("-m") + 2 :])  # without `python -m package`

    def start_run(self, plan: Path, out: Path) -> None:
        """Start or resume a run in a process of its own, `run`."""
        self._launch("run", ["run", str(self.transport.path), str(plan), str(out)])

    def _launch(self, name: str, arguments: list[str]) -> None:
        (self.study / f"{name}.pid").unlink(missing_ok=True)
        if self.launcher is None:
            script = TESTS / "federation" / "launcher.py"
            self.launcher = self.spawn("launcher", [sys.executable, str(script), str(self.study)])
        assert self.launcher.stdin is not None
        self.launcher.stdin.write(f"{json.dumps([name, arguments])}\n".encode())
        self.launcher.stdin.flush()

    def spawn(self, name: str, command: list[str]) -> "subprocess.Popen[bytes]":
        places = [str(TESTS), os.environ.get("PYTHONPATH", "")]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(places), "OMP_NUM_THREADS": "1"}
        with (self.study / f"{name}.out").open("ab") as out:
            started = subprocess.Popen(command, stdout=out, stderr=out, stdin=subprocess.PIPE, env=environment)
        self.spawned.append(started)
        return started

    def kill(self, name: str) -> None:
        """As a crash does; one that has ended by itself stays so."""
        pid = self.pid(name)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        until(lambda: not is_running(pid), lambda: f"{name} did not end")

    def wait_for_run(self) -> None:
        """Wait until the run has ended by itself."""
        pid = self.pid("run")
        until(lambda: not is_running(pid), lambda: f"the run did not end: {self.output()}")

    def wait_for(self, names: Iterable[str]) -> None:
        """Wait until exactly these sites are connected."""
        wanted = set(names)
        until(
            lambda: set(self.transport.sites()) == wanted,
            lambda: f"connected: {self.transport.sites()}. {self.output()}",
        )

    def output(self) -> str:
        return "\n".join(f"--- {file.name}\n{file.read_text()[-1500:]}" for file in sorted(self.study.glob("*.out")))

    def end(self) -> None:
        """End all processes: those of a launcher end with it."""
        for each in self.spawned:
            each.kill()
        for each in self.spawned:
            each.communicate()  # closes its standard input, too
        pids = [int(file.read_text()) for file in self.study.glob("*.pid")]
        for _ in range(100):
            if not any(map(is_running, pids)):
                return
            time.sleep(0.1)
        raise AssertionError(f"Some of the processes {pids} did not end.")


def until(condition: Callable[[], bool], problem: Callable[[], str]) -> None:
    """Wait for a condition; the problem is said if it takes too long."""
    deadline = time.monotonic() + SECONDS_TO_START
    while not condition():
        assert time.monotonic() < deadline, problem()
        time.sleep(0.05)


def is_running(pid: int) -> bool:
    """Whether the process or one of its threads still runs: until the last one ends, its sockets accept connections."""
    process = Path(f"/proc/{pid}")
    try:
        is_zombie = (process / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
        return not is_zombie or len(list((process / "task").iterdir())) > 1
    except (FileNotFoundError, ProcessLookupError):  # it ended before, or while this was read
        return False


def memory(pid: int, key: str = "VmHWM") -> int:
    """Bytes of memory of a process: the most that it had; `VmRSS`: what it has now."""
    (line,) = (each for each in Path(f"/proc/{pid}/status").read_text().splitlines() if each.startswith(f"{key}:"))
    return int(line.split()[1]) * 1024


@contextmanager
def processes(*sites: str) -> Iterator[Processes]:
    """Kits for a server on a free port and its sites; no process runs yet."""
    with tempfile.TemporaryDirectory(prefix="tacit-") as folder:  # a short path, as the local socket needs
        started = Processes(Path(folder))
        started.server.make("localhost", free_port())
        started.enrol(*sites)
        try:
            yield started
        finally:
            started.end()
