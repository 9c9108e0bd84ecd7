"""How much faster is a round with pruned models? Table 3 of Lin et al. (ESMFL, 2020) as ratios, in one interleaved run.

    python benchmarks/pruned_rounds.py        measure, and save it in benchmarks/results/pruned-rounds.json

100 clients train LeNet for one epoch and send it to the simulated enclave, a separate process on the same machine.
Rounds of whole models and of both compressions take turns, so that all see the same machine; the first of each is left
out, and so is the attestation. Each part is the median over the rounds. The paper's times include a network.
"""

import argparse
import json
import statistics
from collections.abc import Iterator
from pathlib import Path

import tacit
from reporting import circumstances, exit_on_error
from tacit.core import Report
from tacit.methods.esmfl import Admm
from tacit.runs.rounds import rounds

FILE = Path(__file__).parent / "results" / "pruned-rounds.json"
WHOLE = "whole models"
KEEP = {"9.99 times": (330, 4250, 38000, 513), "87 times": (100, 1750, 2800, 300)}  # weights of each layer
CLIENTS, WARM_UPS = 100, 1


def method_of(name: str, turns: int) -> tacit.Method:
    """ESMFL that prunes from the second round on; for whole models, a warm-up that never ends."""
    total = WARM_UPS + turns
    pruning = tacit.pieces.Keep(counts=KEEP.get(name, KEEP["87 times"]))
    return tacit.methods.esmfl(
        rounds=total + 1,
        warm_up=total if name == WHOLE else WARM_UPS,
        ramp=0,
        cohort=CLIENTS,
        pruning=pruning,
        admm=Admm(freeze_after=total + 1),
        descent=tacit.pieces.Sgd(lr=0.05, epochs=1, batch_size=10, sends="weights"),
    )


def measure(turns: int) -> dict[str, dict[str, float]]:
    """Seconds of every part of a round, and of the whole round, and megabytes that the clients send."""
    task = tacit.tasks.make_task("mnist", clients=CLIENTS, model="lenet")
    loops = {name: _reports(method_of(name, turns), task) for name in (WHOLE, *KEEP)}
    taken: dict[str, list[Report]] = {name: [] for name in loops}
    for turn in range(WARM_UPS + turns):
        for name, loop in loops.items():
            report = next(loop)
            if turn >= WARM_UPS:
                taken[name].append(report)
    return {name: _medians(reports) for name, reports in taken.items()}


def _reports(method: tacit.Method, task: tacit.Task) -> Iterator[Report]:
    for _, report in rounds(method, task, seed=0, evaluate_every=method.rounds, randomness="seeded"):
        yield report


def _medians(reports: list[Report]) -> dict[str, float]:
    parts = {name: statistics.median(report.timings[name] for report in reports) for name in reports[0].timings}
    return {
        "megabytes": sum(reports[-1].up) / 1e6,
        "round": statistics.median(report.seconds for report in reports),
        **parts,
    }


def main() -> None:
    """Measure, save, and print how many times as long a round and its parts take with whole models."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=5, help="rounds of each kind (default: %(default)s)")
    made = measure(parser.parse_args().turns)
    FILE.write_text(json.dumps({**circumstances(), "seconds": made}, indent=1) + "\n")
    for name in KEEP:
        without = {part: value for part, value in made[WHOLE].items() if part != "megabytes"}
        ratios = (f"{part} {without[part] / made[name][part]:.2f}" for part in without)
        print(
            f"{name}, {made[name]['megabytes']:.3g} instead of {made[WHOLE]['megabytes']:.4g} MB: {', '.join(ratios)}"
        )


if __name__ == "__main__":
    exit_on_error(main)
