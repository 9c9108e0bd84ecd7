"""A federation of real processes on 127.0.0.1, all of which end with the test, however it ends."""

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tacit.federation.nvflare.kits import PARTICIPANTS, SERVER, SITES, make_kits
from tacit.federation.nvflare.process import server_command, site_command
from tacit.federation.relay import SOCKET, RelayTransport, free_port

TESTS = Path(__file__).resolve().parents[1]
ECHO = "federation.echo:open_echo"
SECONDS_TO_START = 60.0


@dataclass
class Processes:
    """The kits of a federation and its running processes, by the names of its sites; the server's is `server`."""

    study: Path
    running: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)

    @property
    def transport(self) -> RelayTransport:
        return RelayTransport(self.study / SERVER / SOCKET)

    def kit(self, name: str) -> Path:
        return self.study / SERVER if name == SERVER else self.study / SITES / name

    def start(self, *names: str, opener: str = ECHO, config: Path | None = None) -> None:
        for name in names:
            kit = self.kit(name)
            command = server_command(kit) if name == SERVER else site_command(kit, config or kit, opener)
            if name in self.running:
                self.running.pop(name).wait()  # it has ended by itself
            self.running[name] = self.spawn(name, command)

    def spawn(self, name: str, command: list[str]) -> "subprocess.Popen[bytes]":
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])}
        with (self.study / f"{name}.out").open("ab") as out:
            return subprocess.Popen(command, stdout=out, stderr=out, stdin=subprocess.DEVNULL, env=environment)

    def kill(self, name: str) -> None:
        """As a crash does."""
        process = self.running.pop(name)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def wait_for(self, names: Iterable[str]) -> None:
        """Wait until exactly these sites are connected."""
        wanted, deadline = set(names), time.monotonic() + SECONDS_TO_START
        while set(self.transport.sites()) != wanted:
            assert time.monotonic() < deadline, (self.transport.sites(), self.output())
            time.sleep(0.1)

    def output(self) -> str:
        return "\n".join(f"--- {file.name}\n{file.read_text()[-1500:]}" for file in sorted(self.study.glob("*.out")))

    def end(self) -> None:
        for process in self.running.values():
            process.kill()
        for process in self.running.values():
            process.wait()


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
