"""Measures what a Ray cluster costs beside local processes, and models rounds on several machines from measured parts.

For each workload two runs take turns, one round at a time: local processes, and as many Ray actors on this machine. A
third run in one process measures the parts of a round. See README.md in this folder.
"""

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from reporting import circumstances, exit_on_error, positive_integer
from tacit import Method, Task
from tacit.engine import rounds
from tacit.engine.worker import Worker
from tacit.pieces import CentralGaussian, Everyone, FixedClip, Sgd
from workloads import WORKLOADS, Workload

LATEST = Path(__file__).resolve().parent / "results" / "cluster.json"
NODES, CORES, NETWORK = (1, 2, 4, 8, 16), 16, 1.25e9  # machines, cores of each, bytes a second (10 Gbit/s)


@dataclass(frozen=True, kw_only=True)
class Parts:
    """A round in parts, in seconds.

    Attributes:
        workload: its name.
        local: a round with local processes, the median.
        ray: a round with as many actors, the median.
        difference: the median of the differences of rounds that followed on each other.
        waves: how many there are in a round.
        wave: the seconds of one, in one thread.
        serial: what the server does alone: broadcast, additions, noise, update.
        put: copying the weights into the cluster's memory.
        octets: the bytes of the weights, which every machine receives, and of the sum that every wave sends.
    """

    workload: str
    local: float
    ray: float
    difference: float
    waves: int
    wave: float
    serial: float
    put: float
    octets: int

    @property
    def per_wave(self) -> float:
        """What Ray costs for every wave, beside the weights."""
        return max(0.0, self.difference - self.put) / self.waves

    def seconds(self, nodes: int, cores: int, network: float) -> float:
        """The model: a round on this many machines. Network and server are shared, waves are not."""
        turns = -(-self.waves // (nodes * cores))
        transfer = (nodes - 1) * self.octets + self.waves * self.octets * (nodes - 1) / nodes
        return self.serial + self.put + turns * self.wave + self.waves * self.per_wave + transfer / network


def task_and_method(workload: Workload) -> tuple[Method, Task]:
    """The benchmark's round: local SGD, clipping, sum, noise."""
    method = Method(
        name="benchmark",
        rounds=10_000,
        sampler=Everyone(),
        trainer=Sgd(epochs=workload.epochs, batch_size=workload.batch_size, lr=workload.lr),
        mechanism=CentralGaussian(clip=FixedClip(workload.clip), noise_multiplier=workload.noise_multiplier),
    )
    return method, Task(model=workload.net, clients=list(zip(*workload.data(), strict=True)))


def timed(steps: Iterator[Any]) -> tuple[float, torch.Tensor]:
    """The seconds of one round, and its weights."""
    began = time.perf_counter()
    state, _ = next(steps)
    return time.perf_counter() - began, state.weights


def in_turn(workload: Workload, workers: int, count: int, warm_ups: int) -> tuple[list[float], list[float]]:
    """The seconds of rounds with local processes and with actors, which give the same bits."""
    method, task = task_and_method(workload)
    runs = [rounds(method, task, workers=pool, randomness="seeded") for pool in (workers, f"ray:{workers}")]
    measured: list[list[float]] = [[], []]
    try:
        for number in range(warm_ups + count):
            found: dict[int, torch.Tensor] = {}
            for which in (0, 1) if number % 2 == 0 else (1, 0):
                seconds, found[which] = timed(runs[which])
                measured[which] += [seconds] if number >= warm_ups else []
            assert torch.equal(found[0], found[1]), "both pools compute the same bits"
    finally:
        for run in runs:
            run.close()
    return measured[0], measured[1]


def in_parts(workload: Workload, count: int) -> tuple[int, float, float]:
    """The number of waves, the seconds of one, and of what is not in waves; medians over rounds in one process."""
    method, task = task_and_method(workload)
    spent: list[float] = []
    do = Worker.do

    def timed_do(self: Worker, job: Any) -> Any:
        began = time.perf_counter()
        result = do(self, job)
        spent.append(time.perf_counter() - began)
        return result

    serial, waves = [], []
    Worker.do = timed_do  # type: ignore[method-assign]
    try:
        steps = rounds(method, task, workers=1, randomness="seeded")
        next(steps)
        for _ in range(count):
            spent.clear()
            seconds, _ = timed(steps)
            serial.append(seconds - sum(spent))
            waves += spent
    finally:
        Worker.do = do  # type: ignore[method-assign]
    return len(waves) // count, statistics.median(waves), statistics.median(serial)


def measure(workload: Workload, workers: int, count: int, warm_ups: int) -> Parts:
    """All parts of one workload."""
    local, ray = in_turn(workload, workers, count, warm_ups)
    waves, wave, serial = in_parts(workload, max(2, count // 3))
    weights = torch.cat([parameter.flatten() for parameter in workload.net().parameters()]).detach()
    began = time.perf_counter()
    for _ in range(10):
        weights.clone().numpy().tobytes()
    return Parts(
        workload=workload.name,
        local=statistics.median(local),
        ray=statistics.median(ray),
        difference=statistics.median(b - a for a, b in zip(local, ray, strict=True)),
        waves=waves,
        wave=wave,
        serial=serial,
        put=(time.perf_counter() - began) / 10,
        octets=weights.numel() * weights.element_size(),
    )


def lines(parts: list[Parts]) -> Iterator[str]:
    """What was measured, and the model."""
    yield "          local        Ray   difference   waves    a wave     serial   weights"
    for each in parts:
        yield (
            f"{each.workload:<4}{each.local:9.3f} s{each.ray:9.3f} s{1e3 * each.difference:10.1f} ms{each.waves:8}"
            f"{1e3 * each.wave:8.1f} ms{1e3 * each.serial:8.1f} ms{each.octets / 2**20:7.1f} MiB"
        )
    yield f"\nModel: seconds of a round on machines with {CORES} cores, 10 Gbit/s"
    yield "nodes" + "".join(f"{nodes:>9}" for nodes in NODES)
    for each in parts:
        yield f"{each.workload:<5}" + "".join(f"{each.seconds(nodes, CORES, NETWORK):9.3f}" for nodes in NODES)


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workloads", default="W1,W2,W3", help="default %(default)s")
    parser.add_argument(
        "--workers", type=positive_integer, default=2, help="processes and actors (default %(default)s)"
    )
    parser.add_argument("--rounds", type=positive_integer, default=9, help="measured rounds (default %(default)s)")
    parser.add_argument("--warm-ups", type=int, default=2, help="rounds before them (default %(default)s)")
    parser.add_argument("--out", type=Path, default=LATEST, help="file for the results, as JSON")
    args = parser.parse_args()
    parts = [measure(WORKLOADS[name], args.workers, args.rounds, args.warm_ups) for name in args.workloads.split(",")]
    measured = {"workers": args.workers, "rounds": args.rounds, "parts": [asdict(each) for each in parts]}
    args.out.write_text(json.dumps({**circumstances(), **measured}, indent=1) + "\n")
    print(*lines(parts), sep="\n")


if __name__ == "__main__":
    exit_on_error(main)
