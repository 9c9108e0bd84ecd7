"""What a federation of real processes costs in comparison with the simulation of the same method.

    python benchmarks/federation.py                a server and eight sites on this machine, W1's model, SecureSum
    python benchmarks/federation.py --large 100    messages of 100 MB to five sites, and back

Seconds per round beside the simulation's (the sites train on the same cores), and bytes beside the kernel's counters
of the server's connections: what they count beyond the bandwidth report is TLS, HTTP/2 and NVFLARE.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from tacit.core import Samples, SeededKeys, Task
from tacit.engine import Simulation
from tacit.federation import entry_points
from tacit.federation.demonstration import LocalFederation
from tacit.federation.nvflare.kits import SERVER, Participants
from tacit.federation.relay import SOCKET, RelayTransport
from tacit.federation.server import FederationServer
from tacit.federation.transport import Failure, Handler
from tacit.runs.training import follow
from workloads import mlp

HERE = Path(__file__).resolve().parent
MODEL = "workloads:mlp"
SAMPLES = 600
SITE = f"""\
data = "federation:samples"
held_out = 0.0

[allow]
methods = ["fl-std"]
models = {{ "{MODEL}" = "%s" }}
channels = ["secure-sum/active_server"]
epsilon = inf
least_cohort = 4
"""
PLAN = f"""\
method = "fl-std"
args = {{ rounds = %d, cohort = %d, "descent.batch_size" = 10, "descent.steps" = 60, channel = "SecureSum()" }}
model = "{MODEL}"
sites = "directory.toml"
evaluate_every = 0
least_cohort = 4
"""


def samples() -> Samples:
    """Random images, as W1 has."""
    generator = torch.Generator().manual_seed(0)
    return torch.rand(SAMPLES, 784, generator=generator), torch.randint(10, (SAMPLES,), generator=generator)


def open_sizes(_: Path) -> Handler:
    """A site that measures and makes bytes."""

    def answer(verb: str, request: bytes) -> bytes:
        return bytes(int(request)) if verb == "make" else str(len(request)).encode()

    return answer


def kernel_bytes(port: int) -> tuple[int, int]:
    """Bytes that the kernel has sent and received on the server's connections, so far."""
    lines = subprocess.run(
        ["ss", "-tinH", "state", "established", f"( sport = :{port} )"], capture_output=True, text=True, check=True
    ).stdout
    sent = sum(int(value) for value in re.findall(r"bytes_sent:(\d+)", lines))
    received = sum(int(value) for value in re.findall(r"bytes_received:(\d+)", lines))
    return sent, received


def simulated(federation: LocalFederation, sites: int) -> list[float]:
    """Seconds of each round of the simulation, with one worker for each core."""
    task = Task(model=mlp, clients=[samples()] * sites)
    simulation = Simulation(federation.plan.method, task)
    return [report.seconds for _, report in simulation.rounds(workers=None, evaluate_every=10**6, keys=SeededKeys(0))]


def measure_rounds(sites: int, rounds: int) -> dict[str, object]:
    """Rounds of a federation beside those of the simulation."""
    with tempfile.TemporaryDirectory(prefix="tacit-") as folder:
        site = SITE % entry_points.pin(MODEL, "the model")
        federation = LocalFederation.at(Path(folder), sites, site, PLAN % (rounds, sites))
        before = simulated(federation, sites)
        with federation.running():
            port = Participants.load(federation.folder).port
            server = FederationServer(federation.plan, RelayTransport(federation.folder / SERVER / SOCKET))
            first = kernel_bytes(port)
            *_, run = follow(server.run_plan, source=server)
            last = kernel_bytes(port)
    seconds = [report.seconds for report in run.history]
    down, up = (after - ahead for after, ahead in zip(last, first, strict=True))
    return {
        "sites": sites,
        "rounds": rounds,
        "simulation_seconds": statistics.median(before[1:]),
        "federation_seconds": statistics.median(seconds[1:]),
        "overhead_seconds": statistics.median(seconds[1:]) - statistics.median(before[1:]),
        "reported_down": run.bytes.down,
        "kernel_down": down,
        "reported_up": run.bytes.up,
        "kernel_up": up,
        "beyond_report": (down + up) / (run.bytes.down + run.bytes.up) - 1,
        "load": os.getloadavg()[0],
    }


def measure_large(megabytes: int, sites: int) -> dict[str, object]:
    """Messages of this size to a few sites, and back."""
    size = megabytes * 10**6
    with tempfile.TemporaryDirectory(prefix="tacit-") as folder:
        site = SITE % entry_points.pin(MODEL, "the model")
        federation = LocalFederation.at(Path(folder), sites, site, PLAN % (1, sites))
        with federation.running(opener="federation:open_sizes"):
            transport = RelayTransport(federation.folder / SERVER / SOCKET)
            began = time.perf_counter()
            sent = transport.ask("measure", dict.fromkeys(federation.names, bytes(size)), 600.0)
            between = time.perf_counter()
            made = transport.ask("make", dict.fromkeys(federation.names, str(size).encode()), 600.0)
            ended = time.perf_counter()
    complete = all(reply == str(size).encode() for reply in sent.values()) and all(
        not isinstance(reply, Failure) and len(reply) == size for reply in made.values()
    )
    return {
        "sites": sites,
        "megabytes": megabytes,
        "complete": complete,
        "seconds_down": between - began,
        "seconds_up": ended - between,
        "load": os.getloadavg()[0],
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and print one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sites", type=int, help="number of sites (default: 8; of --large: 5)")
    parser.add_argument("--rounds", type=int, default=10, help="number of rounds (default: 10)")
    parser.add_argument("--large", type=int, metavar="MB", help="measure messages of this size instead")
    args = parser.parse_args(argv)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH", "")]))
    if args.large:
        print(json.dumps(measure_large(args.large, args.sites or 5), indent=2))
    else:
        print(json.dumps(measure_rounds(args.sites or 8, args.rounds), indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
