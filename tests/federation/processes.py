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

from tacit.federation.transport.nvflare.kits import PARTICIPANTS, SERVER_KIT, SITES, make_kits
from tacit.federation.transport.nvflare.process import server_command, site_command
from tacit.federation.transport.relay import SOCKET, RelayTransport, free_port

TESTS = Path(__file__).resolve().parents[1]
ECHO = "federation.echo:open_echo"
SECONDS_TO_START = 300.0


@dataclass
class Processes:
    """The kits of a federation and its processes, by the names of its sites; the server's is `server`."""

    study: Path
    spawned: list["subprocess.Popen[bytes]"] = field(default_factory=list)
    launcher: "subprocess.Popen[bytes] | None" = None

    @property
    def transport(self) -> RelayTransport:
        return RelayTransport(self.study / SERVER_KIT / SOCKET)

    def kit(self, name: str) -> Path:
        return self.study / SERVER_KIT if name == SERVER_KIT else self.study / SITES / name

    def pid(self, name: str) -> int:
        file = self.study / f"{name}.pid"
        until(file.exists, lambda: f"{name} was not started: {self.output()}")
        return int(file.read_text())

    def start(
        self, *names: str, opener: str = ECHO, configs: Mapping[str, Path] | None = None, hostile: str = ""
    ) -> None:
        """Start these, in processes of their own; `hostile`: as `hostile.main` does."""
        for name in names:
            kit = self.kit(name)
            config = (configs or {}).get(name, kit)
            command = server_command(kit) if name == SERVER_KIT else site_command(kit, config, opener)
            prefix = ["hostile", hostile] if hostile else []
            self._launch(name, [*prefix, *command[command.index("-m") + 2 :]])  # without `python -m package`

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
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # it ended before, or while this was read
        return False


@contextmanager
def processes(*sites: str, admins: dict[str, str] | None = None) -> Iterator[Processes]:
    """Kits for a server on a free port and its sites; no process runs yet."""
    with tempfile.TemporaryDirectory(prefix="tacit-") as folder:  # a short path, as the local socket needs
        study = Path(folder)
        names = ", ".join(f'"{name}"' for name in sites)
        (study / PARTICIPANTS).write_text(f'host = "localhost"\nport = {free_port()}\nsites = [{names}]\n')
        make_kits(study, admins)
        started = Processes(study)
        try:
            yield started
        finally:
            started.end()
