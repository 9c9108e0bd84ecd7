"""Races Tacit against its peers: seconds and memory per federated round. See README.md beside this file."""

import argparse
import json
import sys
import time
from dataclasses import replace
from pathlib import Path

from check import check
from referee import CONTESTANTS, Contestant, Rules, Score, race
from table import lines, record, save
from workloads import DEFAULT, WORKLOADS

LATEST = Path(__file__).resolve().parent / "results" / "latest.json"


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workloads", default=",".join(DEFAULT), help=f"of {', '.join(WORKLOADS)}")
    parser.add_argument("--contestants", default=",".join(CONTESTANTS), help="default: all, %(default)s")
    parser.add_argument("--rounds", type=int, default=7, help="measured rounds (default %(default)s)")
    parser.add_argument("--warm-ups", type=int, default=2, help="rounds before them (default %(default)s)")
    parser.add_argument("--workers", type=int, default=2, help="processes that train (default %(default)s)")
    parser.add_argument("--minutes", type=float, default=15, help="cap on the racing (default %(default)s)")
    parser.add_argument("--out", type=Path, default=LATEST, help="where the record goes")
    parser.add_argument("--json", action="store_true", help="print the record instead of the table")
    parser.add_argument("--check", action="store_true", help="compare results, measure nothing")
    return parser.parse_args()


def chosen(names: str, known: dict[str, object], what: str) -> list[str]:
    """A comma-separated list, checked."""
    wanted = [name for name in names.split(",") if name]
    if unknown := [name for name in wanted if name not in known]:
        sys.exit(f"Unknown {what} {', '.join(unknown)}. Choose from {', '.join(known)}.")
    return wanted


def entrants(workload: str, contestants: list[Contestant]) -> list[Contestant]:
    """Who takes part in a workload."""
    return [one for one in contestants if WORKLOADS[workload].peers or not one.peer]


def run(workloads: list[str], contestants: list[Contestant], rules: Rules, minutes: float) -> list[Score]:
    """Race after race; each gets an equal share of the time that is left."""
    scores: list[Score] = []
    end = time.monotonic() + 60 * minutes
    for number, workload in enumerate(workloads):
        print(f"{workload}: {WORKLOADS[workload].title}", file=sys.stderr)
        now = time.monotonic()
        deadline = now + (end - now) / (len(workloads) - number)
        scores += race(workload, entrants(workload, contestants), replace(rules, deadline=deadline))
    return scores


def main() -> int:
    """Make the environments, then check or race; the exit status."""
    given = arguments()
    workloads = chosen(given.workloads, WORKLOADS, "workload")
    contestants = [CONTESTANTS[name] for name in chosen(given.contestants, CONTESTANTS, "contestant")]
    for contestant in contestants:
        contestant.environment.make()
    if given.check:
        alike = [contestant for contestant in contestants if contestant.alike]
        agreed = [check(name, entrants(name, alike), given.workers) for name in workloads]
        return int(not all(agreed))
    rules = Rules(rounds=given.rounds, warm_ups=given.warm_ups, workers=given.workers)
    scores = run(workloads, contestants, rules, given.minutes)
    save(scores, rules, given.out)
    print(json.dumps(record(scores, rules), indent=2) if given.json else "\n".join(lines(scores)))
    return int(any(score.failure for score in scores))


if __name__ == "__main__":
    sys.exit(main())
