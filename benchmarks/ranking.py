"""Measures the ranking of all inputs by sensitivity, in local epochs. See README.md in this folder."""

import argparse
import json
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

import torch

import tacit
from reporting import circumstances, exit_on_error, positive_integer
from tacit import methods, tasks

CLIENTS, SAMPLES = 30, 1120


@dataclass(frozen=True)
class RankingTime:
    """The seconds of a round without and with the ranking."""

    round: int
    epoch: float
    ranked: float

    @property
    def ratio(self) -> float:
        """The time of the ranking alone, in local epochs."""
        return (self.ranked - self.epoch) / self.epoch


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=positive_integer, default=5, help="rounds of each (default %(default)s)")
    parser.add_argument("--clients", type=int, default=CLIENTS, help="default %(default)s")
    parser.add_argument("--samples", type=int, default=SAMPLES, help="of each client (default %(default)s)")
    parser.add_argument(
        "--perturbation", choices=["low", "high"], default="low", help="size of the perturbation (default %(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="print the results as JSON instead of the table")
    return parser.parse_args(argv)


def measure(rounds: int, clients: int, samples: int, perturbation: str) -> Iterator[RankingTime]:
    """One round of `nbafl` and one of `priority` in turn, on MNIST, in one process with one thread."""
    task = tasks.make_task("mnist", clients=clients, samples=samples, model="mlp")
    given = {"rounds": rounds, "samples": samples, "exposures": 1, "clipping": "none"}
    plain = methods.make("nbafl", {"epsilon": 10.0, **given})
    size = {"low": {}, "high": {"mechanism.importance.noise_factor": 1}}[perturbation]
    ranking = methods.make("priority", {"method": "sensitivity", **size, **given})
    runs = [tacit.rounds(method, task, seed=0, workers=1, randomness="seeded") for method in (plain, ranking)]
    for number in range(1, rounds + 1):
        epoch, ranked = (_seconds(run) for run in runs)
        yield RankingTime(number, epoch, ranked)


def _seconds(run: Iterator[object]) -> float:
    begin = time.perf_counter()
    next(run)
    return time.perf_counter() - begin


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, and print the table or the JSON."""
    args = arguments(argv)
    torch.set_num_threads(1)
    rounds = [*measure(args.rounds, args.clients, args.samples, args.perturbation)]
    ratios = [each.ratio for each in rounds]
    if args.json:
        records = [{**asdict(each), "ratio": each.ratio} for each in rounds]
        summary = {"median": statistics.median(ratios), "max": max(ratios)}
        print(json.dumps({**circumstances(), "rounds": records, **summary}))
        return
    print("round    local epoch    with ranking    ranking alone, in local epochs")
    for each in rounds:
        print(f"{each.round:>5}{each.epoch:>13.2f} s{each.ranked:>14.2f} s{each.ratio:>12.1f}")
    print(f"median {statistics.median(ratios):.1f}, max {max(ratios):.1f}")


if __name__ == "__main__":
    exit_on_error(main)
