"""A federation of real processes on this machine, set up as operators would: kits, keys, data, a plan, reviews.

Each site has its own folder with its kit, identity, data and policy. It reviews the plan itself and runs as
under `tacit site serve`. The data are the embedded digits.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from tacit.core import files
from tacit.data.encoding import ENCODING, Encoding, TargetColumn
from tacit.errors import TacitError, one_line
from tacit.federation.plan.directory import SERVER_KEY, Directory, new_identity, read_identity, write_directory
from tacit.federation.plan.plan import FederationPlan, read_plan
from tacit.federation.site.files import read_site
from tacit.federation.transport.kits import SERVER_FILE, ServerKit, SiteKit
from tacit.federation.transport.process import PID, site_command
from tacit.federation.transport.relay import SOCKET, RelayTransport, free_port
from tacit.runs.run import Run
from tacit.tasks.images import load_digits

SECONDS_TO_START = 300.0
_SITE = """\
data = "digits.csv"

[allow]
methods = ["dp-fedsgd"]
models = {}
channels = ["secure-sum/active_server"]
epsilon = 8.0
delta = 1e-4
min_cohort = 4
metrics = "secure-sum"
"""
_PLAN = """\
method = "dp-fedsgd"
args = {{ rounds = {rounds}, size = {size}, noise = 1.5, epsilon = "none", delta = 1e-4 }}
model = "mlp"
encoding = "encoding.json"
sites = "directory.toml"
min_cohort = 4
evaluate_every = 10
timeouts = {{ train = 120, message = 60 }}
"""


def _digits() -> tuple[Tensor, Tensor]:
    images, labels = load_digits()
    return torch.from_numpy(images).float().view(len(images), -1) / 16, torch.from_numpy(labels).long()


def say(text: str) -> None:
    """One line of progress."""
    sys.stderr.write(f"{one_line(text)}\n")
    sys.stderr.flush()


@dataclass(frozen=True)
class LocalFederation:
    """A federation in a folder: the server's files, and those of a site's operator in `homes/NAME/`."""

    folder: Path
    names: tuple[str, ...]
    plan: FederationPlan

    @classmethod
    def at(cls, folder: Path, sites: int, site: str, plan: str) -> "LocalFederation":
        """Write all files, with this `site.toml` and `plan.toml`, and let every site accept the plan."""
        names = tuple(f"site-{number}" for number in range(1, sites + 1))
        files.make_private(folder)
        kit = ServerKit(folder)
        kit.make("localhost", free_port())
        keys = {name: new_identity(folder / "homes" / name / "identity.key") for name in names}
        directory = Directory(keys, new_identity(folder / SERVER_KEY))
        for home in (folder, *(folder / "homes" / name for name in names)):
            write_directory(home / "directory.toml", directory)
        for number, name in enumerate(names):
            _enrol(kit, name)
            files.write(folder / "homes" / name / "site.toml", site.encode())
            _write_digits(folder / "homes" / name / "digits.csv", number, sites)
        files.write(folder / ENCODING, _encoding().to_bytes())
        files.write(folder / "plan.toml", plan.encode())
        federation = cls(folder, names, read_plan(folder / "plan.toml", trusted=True))
        federation._review()
        return federation

    def _review(self) -> None:
        for name in self.names:
            site = read_site(self.folder / "homes" / name / "site.toml")
            review = site.review(self.plan)
            site.record(self.plan, accepted=True, outcome=review)
        cost = review.cost
        say(f"{len(self.names)} sites accept the plan: ε = {cost.epsilon:.3g} for each {cost.unit}, for the server.")

    @contextmanager
    def run_processes(self, opener: str = "") -> Iterator[None]:
        """Start the server and all sites, and end them; `opener` replaces the sites, for measurements."""
        say(f"Starting a server and {len(self.names)} sites as processes on this machine, with TLS.")
        with ExitStack() as stack:
            stack.enter_context(
                _process(self.folder / "server.txt", "-m", "tacit.cli", "federation", "serve", str(self.folder))
            )
            for name in self.names:
                home = self.folder / "homes" / name
                line = ["-m", "tacit.cli", "site", "serve", str(home / "site.toml")]
                if opener:
                    line = site_command(home / "kit", home / "identity.key", home / "site.toml", opener)[2:]
                stack.enter_context(_process(home / "serve.txt", *line))
            self._wait()
            yield

    def _wait(self) -> None:
        """Wait until every site is connected."""
        transport, began = RelayTransport(ServerKit(self.folder).private / SOCKET), time.monotonic()
        while set(transport.sites()) != set(self.names):
            if time.monotonic() > began + SECONDS_TO_START:
                raise TacitError(f"The sites did not connect in {SECONDS_TO_START:.0f} s. See {self.folder}.")
            time.sleep(0.2)
        say(f"All sites are connected after {time.monotonic() - began:.0f} s.")

    def kill_and_await(self, name: str, after: int, back: int) -> Callable[[Run], None]:
        """A callback that kills a site's process after one round and awaits its restart after another."""

        def watch(run: Run) -> None:
            if run.state.round == after:
                os.kill(int((self.folder / "homes" / name / "kit" / PID).read_text()), signal.SIGKILL)
                say(f"Killed the process of {name} after round {after}. The others go on.")
            if run.state.round == back:
                self._wait()

        return watch


def _enrol(server: ServerKit, name: str) -> None:
    """Exchange the files of a site and the server."""
    home = server.folder / "homes" / name
    kit = SiteKit(home / "kit")
    kit.make(read_identity(home / "identity.key"))
    server.add(name, kit.enrolment)
    files.write(kit.folder / SERVER_FILE, files.read(server.address_file))


def demonstration(folder: Path, sites: int, rounds: int) -> LocalFederation:
    """The federation of `tacit federation demo`."""
    records = round(0.9 * len(_digits()[1]) / sites)  # of a site, without held-out ones
    return LocalFederation.at(folder, sites, _SITE, _PLAN.format(rounds=rounds, size=records))


def _encoding() -> Encoding:
    """Public knowledge: pixels are between 0 and 1, and there are ten digits."""
    pixels = range(_digits()[0].shape[1])
    target = TargetColumn("digit", tuple(map(str, range(10))))
    return Encoding(numbers={f"p{pixel}": (0.0, 1.0) for pixel in pixels}, indicators=(), target=target)


def _write_digits(path: Path, number: int, sites: int) -> None:
    """A site's part of the digits."""
    x, y = _digits()
    own = torch.arange(number, len(x), sites)
    header = ",".join([*(f"p{pixel}" for pixel in range(x.shape[1])), "digit"])
    rows = (",".join([*(f"{value:g}" for value in x[i].tolist()), str(int(y[i]))]) for i in own.tolist())
    files.write(path, "\n".join([header, *rows]).encode(), private=True)


@contextmanager
def _process(output: Path, *line: str) -> Iterator[None]:
    with output.open("ab") as out:
        child = subprocess.Popen([sys.executable, "-P", *line], stdout=out, stderr=out)
    try:
        yield
    finally:
        child.terminate()
        child.wait()
