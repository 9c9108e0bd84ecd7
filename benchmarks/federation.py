"""What a federation of real processes costs in comparison with the simulation of the same method.

    python benchmarks/federation.py                a server and eight sites on this machine, W1's model, SecureSum
    python benchmarks/federation.py --large 100    messages of 100 MB to five sites, and back
    python benchmarks/federation.py --transport    the transport alone, with eight sites, attacks and faults

Seconds per round beside the simulation's, which is measured before and after (the sites train on the same cores), and
bytes beside the kernel's counters of the server's connections. What they count beyond the bandwidth report is headers
of TLS, HTTP/2 and frames, and keepalives: `headers` is their size as measured on other messages, by message,
by byte and by second, and `unexplained` is what remains.
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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from tacit.core import SeededKeys
from tacit.data import Samples, Task
from tacit.engine import Simulation
from tacit.federation.demonstration import LocalFederation
from tacit.federation.plan import entry_points
from tacit.federation.plan.directory import read_server_key
from tacit.federation.server.server import FederationServer
from tacit.federation.transport.endpoints import Failure, Handler
from tacit.federation.transport.kits import ServerKit
from tacit.federation.transport.relay import SOCKET, RelayTransport
from tacit.runs.training import follow
from workloads import mlp

HERE = Path(__file__).resolve().parent
MODEL = "workloads:mlp"
SAMPLES = 600
IDLE, LARGE = 10.0, 1_000_000  # seconds, and bytes of a large message, to measure headers
SITE = f"""\
data = "federation:samples"
held_out = 0.0

[allow]
methods = ["fl-std"]
models = {{ "{MODEL}" = "%s" }}
channels = ["secure-sum/active_server"]
epsilon = inf
min_cohort = 4
"""
PLAN = f"""\
method = "fl-std"
args = {{ rounds = %d, cohort = %d, "descent.batch_size" = 10, "descent.steps" = 60, channel = "SecureSum()" }}
model = "{MODEL}"
sites = "directory.toml"
evaluate_every = 0
min_cohort = 4
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


@dataclass
class CountingTransport:
    """A transport that counts messages to sites, those included by which it learns who is connected."""

    inner: RelayTransport
    messages: int = 0

    def sites(self) -> tuple[str, ...]:
        found = self.inner.sites()
        self.messages += len(found)
        return found

    def ask(self, verb: str, requests: Mapping[str, bytes], patience: float) -> Mapping[str, bytes | Failure]:
        self.messages += len(requests)
        return self.inner.ask(verb, requests, patience)


def kernel_bytes(port: int) -> tuple[int, int]:
    """Bytes that the kernel has sent and received on the server's connections, so far."""
    lines = subprocess.run(
        ["ss", "-tinH", "state", "established", f"( sport = :{port} )"], capture_output=True, text=True, check=True
    ).stdout
    sent = sum(int(value) for value in re.findall(r"bytes_sent:(\d+)", lines))
    received = sum(int(value) for value in re.findall(r"bytes_received:(\d+)", lines))
    return sent, received


@dataclass(frozen=True)
class Headers:
    """What the kernel counts beyond the content of messages: for each message and its answer, byte and second."""

    message: float
    byte: float
    second: float

    @classmethod
    def measure(cls, transport: RelayTransport, names: Sequence[str], port: int) -> "Headers":
        """By idle seconds, by small messages and by large ones, all of which sites refuse."""
        began, before = time.perf_counter(), sum(kernel_bytes(port))
        time.sleep(IDLE)
        second = (sum(kernel_bytes(port)) - before) / (time.perf_counter() - began)

        def beyond(size: int, times: int) -> float:
            """Per message, without what idle seconds take."""
            began, before, content = time.perf_counter(), sum(kernel_bytes(port)), 0
            for _ in range(times):
                replies = transport.ask("measure", dict.fromkeys(names, bytes(size)), 600.0)
                content += sum(size + len(reply) for reply in replies.values() if not isinstance(reply, Failure))
            passed = time.perf_counter() - began
            return (sum(kernel_bytes(port)) - before - content - second * passed) / (times * len(names))

        message = beyond(0, 20)
        return cls(message, (beyond(LARGE, 5) - message) / LARGE, second)

    def of(self, messages: int, content: int, seconds: float) -> float:
        """Of this many messages, bytes and seconds."""
        return self.message * messages + self.byte * content + self.second * seconds


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
        with federation.run_processes():
            port = ServerKit(federation.folder).address().port
            transport = CountingTransport(RelayTransport(ServerKit(federation.folder).private / SOCKET))
            headers = Headers.measure(transport.inner, federation.names, port)
            server = FederationServer(federation.plan, transport, read_server_key(federation.folder))
            first, began = kernel_bytes(port), time.perf_counter()
            *_, run = follow(server.run_spec, source=server)
            last, passed = kernel_bytes(port), time.perf_counter() - began
        alone = statistics.median([*before[1:], *simulated(federation, sites)[1:]])
    seconds = [report.seconds for report in run.history]
    down, up = (after - ahead for after, ahead in zip(last, first, strict=True))
    reported, counted = (
        run.bytes.down + run.bytes.up,
        headers.of(transport.messages, run.bytes.down + run.bytes.up, passed),
    )
    return {
        "sites": sites,
        "rounds": rounds,
        "simulation_seconds": alone,
        "federation_seconds": statistics.median(seconds[1:]),
        "overhead_seconds": statistics.median(seconds[1:]) - alone,
        "reported_down": run.bytes.down,
        "kernel_down": down,
        "reported_up": run.bytes.up,
        "kernel_up": up,
        "beyond_report": (down + up) / reported - 1,
        "headers": counted / reported,
        "headers_per_message": headers.message,
        "headers_per_byte": headers.byte,
        "idle_bytes_per_second": headers.second,
        "messages": transport.messages,
        "unexplained": (down + up - reported - counted) / reported,
        "load": os.getloadavg()[0],
    }


def measure_large(megabytes: int, sites: int) -> dict[str, object]:
    """Messages of this size to a few sites, and back."""
    size = megabytes * 10**6
    with tempfile.TemporaryDirectory(prefix="tacit-") as folder:
        site = SITE % entry_points.pin(MODEL, "the model")
        federation = LocalFederation.at(Path(folder), sites, site, PLAN % (1, sites))
        with federation.run_processes(opener="federation:open_sizes"):
            transport = RelayTransport(ServerKit(federation.folder).private / SOCKET)
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
    parser.add_argument("--transport", action="store_true", help="measure the transport without models")
    parser.add_argument("--large", type=int, metavar="MB", help="measure messages of this size instead")
    args = parser.parse_args(argv)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH", "")]))
    if args.transport:
        import transports  # the tools of the tests: the package federation there, not this file

        print(json.dumps(transports.measure(args.sites or 8), indent=2))
    elif args.large:
        print(json.dumps(measure_large(args.large, args.sites or 5), indent=2))
    else:
        print(json.dumps(measure_rounds(args.sites or 8, args.rounds), indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
