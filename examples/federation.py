"""A federation of three sites, each in a process of its own with its own rows, key, policy and ledger.

Here pipes carry the bytes between the server and the sites. Between organisations gRPC does, with TLS; the server,
the sites and the plan are the same: docs/guides/federation.md.

python examples/federation.py
"""

import csv
import io
import json
import multiprocessing
import tempfile
from collections.abc import Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from tacit.cli import main as tacit
from tacit.federation.plan.directory import SERVER_KEY, new_identity, read_server_key
from tacit.federation.plan.plan import read_plan
from tacit.federation.server.server import FederationServer
from tacit.federation.site.service import Site
from tacit.federation.transport.endpoints import Failure
from tacit.runs.training import follow

HERE = Path(__file__).resolve().parent
HOSPITALS = ("Lyon", "Oslo", "Rome")
TRAINING = "--client hospital --target readmitted --task-set encoding={ranges} classes=0,1 model=logistic"


def serve(file: Path, pipe: Connection) -> None:
    """A site: bytes in, bytes out. What it answers is decided by its own policy."""
    verb = pipe.recv()
    site = Site.open(file)
    while verb:
        pipe.send_bytes(site.handle(verb, pipe.recv_bytes()))
        verb = pipe.recv()


@dataclass(frozen=True)
class Pipes:
    """The server's way to its sites."""

    pipes: Mapping[str, Connection]

    def sites(self) -> tuple[str, ...]:
        """The names of the sites that are connected."""
        return tuple(self.pipes)

    def ask(self, verb: str, requests: Mapping[str, bytes], patience: float) -> Mapping[str, bytes | Failure]:
        """Send each site its request, then collect the replies; the sites work at the same time."""
        for name, request in requests.items():
            self.pipes[name].send(verb)
            self.pipes[name].send_bytes(request)
        late = Failure("late")
        return {name: self.pipes[name].recv_bytes() if self.pipes[name].poll(patience) else late for name in requests}


def command(line: str) -> str:
    """What one types in a shell; returns its output."""
    with redirect_stdout(io.StringIO()) as output:
        if tacit(line.split()) != 0:
            raise SystemExit(f"tacit {line} failed")
    return output.getvalue()


def enrol(folder: Path) -> None:
    """Each hospital takes its own rows, makes its key, and allows sums of three sites; all have all public keys."""
    directory = f'server = "{new_identity(folder / SERVER_KEY).hex()}"\n\n[sites]\n'
    rows = list(csv.DictReader((HERE / "patients.csv").open()))
    for name in HOSPITALS:
        (folder / name).mkdir()
        with (folder / name / "patients.csv").open("w", newline="") as file:
            table = csv.DictWriter(file, rows[0])
            table.writeheader()
            table.writerows(row for row in rows if row["hospital"] == name)
        key = json.loads(command(f"site init {folder}/{name}/site.toml --json"))["public_key"]
        directory += f'{name} = "{key}"\n'
        settings = (folder / name / "site.toml").read_text()
        (folder / name / "site.toml").write_text(settings.replace("min_cohort = 5", "min_cohort = 3"))
    for place in (folder, *(folder / name for name in HOSPITALS)):
        (place / "directory.toml").write_text(directory)


def agree(folder: Path) -> Path:
    """A simulation becomes a plan, and every hospital reviews it; returns the plan's file."""
    options = TRAINING.format(ranges=HERE / "ranges.toml")
    command(f"run dp-fedsgd --data {HERE / 'patients.csv'} {options} --rounds 2 --workers 1 --out {folder}/simulation")
    plan = folder / "plan.toml"
    command(f"federation plan {folder}/simulation --sites {folder}/directory.toml --out {plan}")
    for name in HOSPITALS:
        command(f"site review {folder}/{name}/site.toml {plan} --accept")
    return plan


def main() -> None:
    """Enrol, agree, train, and print what was learnt and what was spent."""
    with tempfile.TemporaryDirectory() as place:
        folder, ends = Path(place), {name: multiprocessing.Pipe() for name in HOSPITALS}
        sites = [
            multiprocessing.Process(target=serve, args=(folder / name / "site.toml", theirs), daemon=True)
            for name, (_, theirs) in ends.items()
        ]
        for site in sites:
            site.start()
        enrol(folder)
        pipes = Pipes({name: ours for name, (ours, _) in ends.items()})
        server = FederationServer(read_plan(agree(folder)), pipes, read_server_key(folder))
        *_, run = follow(server.run_spec, source=server, out=folder / "run")
        print(f"{run.state.round} rounds with {len(sites)} sites; {run.bytes.up:,} bytes up, {run.bytes.down:,} down")
        print(run.privacy)
        for ours, _ in ends.values():
            ours.send("")
        for site in sites:
            site.join()


if __name__ == "__main__":
    main()
