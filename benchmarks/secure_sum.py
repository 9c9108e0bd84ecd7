"""Races Tacit's secure sums against Flower's, its integer noise against OpenDP's. See README.md beside this file."""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from environments import FLOWER, OPENDP, PROJECT
from referee import Contestant, playing
from sums import CASES, DEFAULT, SIGMAS
from table import circumstances

LATEST = Path(__file__).resolve().parent / "results" / "secure-sum.json"
TACIT = "tacit"
SUMS = (Contestant(TACIT, PROJECT, "tacit_secure_sum.py"), Contestant("flower", FLOWER, "flower_secure_sum.py"))
NOISE = (Contestant(TACIT, PROJECT, "tacit_noise.py"), Contestant("opendp", OPENDP, "opendp_noise.py"))
KNOWN = {**dict.fromkeys(CASES, SUMS), **dict.fromkeys(SIGMAS, NOISE)}
FIGURES = {  # of a sum, in seconds, with their titles
    "seconds": "round",
    "processor": "processor",
    "pads_of_a_client": "client's pads",
    "pads_of_the_server": "server's pads",
}
COLUMNS = "{:<12}" + "{:>15}{:>9}" * len(FIGURES)
NOISE_COLUMNS = "{:<12}{:<12}{:>12}{:>10}"


@dataclass(frozen=True)
class Result:
    """What a contestant said about its rounds of a case."""

    case: str
    contestant: str
    versions: dict[str, str]
    rounds: list[dict[str, float]]

    def median(self, figure: str) -> float:
        """Over the rounds."""
        return statistics.median(said[figure] for said in self.rounds)

    def record(self) -> dict[str, object]:
        """With the medians, for those who read the file."""
        return {**asdict(self), "medians": {figure: self.median(figure) for figure in self.rounds[0]}}


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", default=",".join((*DEFAULT, *SIGMAS)), help="default: %(default)s")
    parser.add_argument("--contestants", default="tacit,flower,opendp", help="default: all, %(default)s")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each (default %(default)s)")
    parser.add_argument("--minutes", type=float, default=20, help="cap on the racing (default %(default)s)")
    parser.add_argument("--out", type=Path, default=LATEST, help="where the record goes")
    parser.add_argument("--json", action="store_true", help="print the record instead of the table")
    return parser.parse_args()


def race(case: str, contestants: list[Contestant], rounds: int, deadline: float) -> list[Result]:
    """One case: all are alive at once and play in turn, each time beginning with another one."""
    with ExitStack() as stack:
        players = [stack.enter_context(playing(contestant, case, 1)) for contestant in contestants]
        results = [Result(case, player.contestant.name, player.versions, []) for player in players]
        for number in range(rounds):
            if number and time.monotonic() > deadline:
                break
            for place in range(len(players)):
                turn = (number + place) % len(players)
                results[turn].rounds.append(players[turn].ask())
    return results


def run(cases: list[str], names: list[str], rounds: int, minutes: float) -> Iterator[Result]:
    """Case after case; each gets an equal share of the time that is left."""
    end = time.monotonic() + 60 * minutes
    for number, case in enumerate(cases):
        print(case, file=sys.stderr)
        now = time.monotonic()
        contestants = [contestant for contestant in KNOWN[case] if contestant.name in names]
        yield from race(case, contestants, rounds, now + (end - now) / (len(cases) - number))


def _sum_row(result: Result, ours: Result) -> str:
    """One contestant's line: each figure, and how many times Tacit's it is."""
    cells: list[str] = []
    for figure in FIGURES:
        own = result.median(figure)
        cells += [f"{own:.3g} s", f"{own / ours.median(figure):.1f} x"]
    return COLUMNS.format(result.contestant, *cells)


def lines(results: list[Result]) -> Iterator[str]:
    """The tables: sums, then noise."""
    ours = {result.case: result for result in results if result.contestant == TACIT}
    for case in dict.fromkeys(result.case for result in results if result.case in CASES):
        c = CASES[case]
        yield f"\n{case}  {c.title}, {c.level}: {c.clients} clients, {c.lost} lost, {c.neighbours} neighbours"
        yield COLUMNS.format("", *(cell for title in FIGURES.values() for cell in (title, "")))
        yield from (_sum_row(result, ours[case]) for result in results if result.case == case)
    noise = [result for result in results if result.case in SIGMAS]
    if noise:
        yield "\n" + NOISE_COLUMNS.format("noise", "", "ns/sample", "")
    for result in noise:
        own = result.median("nanoseconds")
        times = own / ours[result.case].median("nanoseconds")
        yield NOISE_COLUMNS.format(result.case, result.contestant, f"{own:.1f}", f"{times:.1f} x")


def main() -> int:
    """Make the environments, then race; the exit status."""
    given = arguments()
    cases, names = given.cases.split(","), given.contestants.split(",")
    if unknown := [case for case in cases if case not in KNOWN]:
        sys.exit(f"Unknown case {', '.join(unknown)}. Choose from {', '.join(KNOWN)}.")
    if TACIT not in names:
        sys.exit(f"Expected {TACIT} among the contestants: the others are compared with it.")
    for contestant in {contestant for case in cases for contestant in KNOWN[case] if contestant.name in names}:
        contestant.environment.make()
    results = list(run(cases, names, given.rounds, given.minutes))
    settings = {case: asdict(CASES[case]) for case in cases if case in CASES}
    record = {**circumstances(), "cases": settings, "results": [result.record() for result in results]}
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps(record, indent=1) if given.json else "\n".join(lines(results)))
    return int(any(said.get("error") for result in results for said in result.rounds))  # a wrong sum is a failure


if __name__ == "__main__":
    sys.exit(main())
