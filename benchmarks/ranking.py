"""How long ranking all inputs by sensitivity takes, beside a local epoch. See README.md beside this file."""

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import torch

import tacit
from script import answer, count
from table import circumstances
from tacit import methods, tasks

CLIENTS, SAMPLES = 30, 1120


@dataclass(frozen=True)
class Round:
    """A round's seconds without and with the ranking."""

    round: int
    epoch: float
    ranked: float

    @property
    def ratio(self) -> float:
        """The ranking by itself, in local epochs."""
        return (self.ranked - self.epoch) / self.epoch


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=count, default=5, help="rounds of each (default %(default)s)")
    parser.add_argument("--clients", type=int, default=CLIENTS, help="default %(default)s")
    parser.add_argument("--samples", type=int, default=SAMPLES, help="of each client (default %(default)s)")
    parser.add_argument("--nudge", choices=["low", "high"], default="low", help="by which noise (default %(default)s)")
    parser.add_argument("--json", action="store_true", help="print the record instead of the table")
    return parser.parse_args()


def race(rounds: int, clients: int, samples: int, nudge: str) -> Iterator[Round]:
    """One round of `nbafl` and one of `priority` in turn, on MNIST; everything in one process and one thread."""
    task = tasks.make_task("mnist", clients=clients, samples=samples, model="mlp")
    given = {"rounds": rounds, "samples": samples, "exposures": 1, "clipping": "none"}
    plain = methods.make("nbafl", {"epsilon": 10.0, **given})
    ranking = methods.make("priority", {"method": "sensitivity", "nudge": nudge, **given})
    players = [tacit.rounds(method, task, seed=0, workers=1) for method in (plain, ranking)]
    for number in range(1, rounds + 1):
        epoch, ranked = (_seconds(player) for player in players)
        yield Round(number, epoch, ranked)


def _seconds(player: Iterator[object]) -> float:
    begin = time.perf_counter()
    next(player)
    return time.perf_counter() - begin


def main() -> None:
    """As told on the command line."""
    given = arguments()
    torch.set_num_threads(1)
    rounds = [*race(given.rounds, given.clients, given.samples, given.nudge)]
    ratios = [each.ratio for each in rounds]
    if given.json:
        told = [{**asdict(each), "ratio": each.ratio} for each in rounds]
        print(json.dumps({**circumstances(), "rounds": told, "median": statistics.median(ratios), "most": max(ratios)}))
        return
    print("round    local epoch    with ranking    ranking alone, in epochs")
    for each in rounds:
        print(f"{each.round:>5}{each.epoch:>13.2f} s{each.ranked:>14.2f} s{each.ratio:>12.1f}")
    print(f"median {statistics.median(ratios):.1f}, most {max(ratios):.1f}")


if __name__ == "__main__":
    answer(main)
