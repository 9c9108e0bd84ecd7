"""Measures Tacit's secure sums and Flower's, and its integer noise and OpenDP's. See README.md in this folder."""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from environments import FLOWER, OPENDP, PROJECT
from reporting import circumstances, positive_integer, save
from runner import Framework, running
from sum_cases import CASES, DEFAULT, SIGMAS

TIMEOUT = 300.0  # seconds for one answer: Flower's largest sums take longer than a minute

LATEST = Path(__file__).resolve().parent / "results" / "secure-sum.json"
TACIT = "tacit"
SUMS = (Framework(TACIT, PROJECT, "tacit_secure_sum.py"), Framework("flower", FLOWER, "flower_secure_sum.py"))
NOISE = (Framework(TACIT, PROJECT, "tacit_noise.py"), Framework("opendp", OPENDP, "opendp_noise.py"))
KNOWN = {**dict.fromkeys(CASES, SUMS), **dict.fromkeys(SIGMAS, NOISE)}
FIGURES = {  # of a sum, in seconds, with their titles
    "seconds": "round",
    "cpu_seconds": "CPU time",
    "client_pads": "client's pads",
    "server_pads": "server's pads",
}
COLUMNS = "{:<12}" + "{:>15}{:>9}" * len(FIGURES)
NOISE_COLUMNS = "{:<12}{:<12}{:>12}{:>10}"


@dataclass(frozen=True)
class SumResult:
    """The measurements of a framework in a case, one record per round."""

    case: str
    framework: str
    versions: dict[str, str]
    rounds: list[dict[str, float]]

    def median(self, figure: str) -> float:
        """The median of a figure over the rounds."""
        return statistics.median(measured[figure] for measured in self.rounds)

    def record(self) -> dict[str, object]:
        """The result with its medians, for the JSON file."""
        return {**asdict(self), "medians": {figure: self.median(figure) for figure in self.rounds[0]}}


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", default=",".join((*DEFAULT, *SIGMAS)), help="default: %(default)s")
    parser.add_argument("--frameworks", default="tacit,flower,opendp", help="default: all, %(default)s")
    parser.add_argument("--rounds", type=positive_integer, default=3, help="rounds of each (default %(default)s)")
    parser.add_argument("--minutes", type=float, default=20, help="time limit (default %(default)s)")
    parser.add_argument("--out", type=Path, default=LATEST, help="file for the results, as JSON")
    parser.add_argument("--json", action="store_true", help="print the results as JSON instead of the table")
    return parser.parse_args(argv)


def measure(case: str, frameworks: list[Framework], rounds: int, deadline: float) -> list[SumResult]:
    """Measure one case: start all frameworks, run rounds in turn, each time starting with another one."""
    with ExitStack() as stack:
        processes = [stack.enter_context(running(framework, case, 1, timeout=TIMEOUT)) for framework in frameworks]
        results = [SumResult(case, process.framework.name, process.versions, []) for process in processes]
        for number in range(rounds):
            if number and time.monotonic() > deadline:
                break
            for offset in range(len(processes)):
                turn = (number + offset) % len(processes)
                results[turn].rounds.append(processes[turn].request_round())
    return results


def measure_all(cases: list[str], names: list[str], rounds: int, minutes: float) -> Iterator[SumResult]:
    """Measure one case after the other; each gets an equal share of the remaining time."""
    end = time.monotonic() + 60 * minutes
    for number, case in enumerate(cases):
        print(case, file=sys.stderr)
        now = time.monotonic()
        frameworks = [framework for framework in KNOWN[case] if framework.name in names]
        yield from measure(case, frameworks, rounds, now + (end - now) / (len(cases) - number))


def _sum_row(result: SumResult, ours: SumResult) -> str:
    """The row of a framework: each figure, and its ratio to Tacit's."""
    cells: list[str] = []
    for figure in FIGURES:
        median = result.median(figure)
        cells += [f"{median:.3g} s", f"{median / ours.median(figure):.1f} x"]
    return COLUMNS.format(result.framework, *cells)


def _set_up(result: SumResult) -> Iterator[str]:
    """The CPU time of a set-up that several rounds have in common, for a framework that has one."""
    if "set_up" in result.rounds[0]:
        yield f"{result.framework}: CPU time of the set-up of an epoch {result.median('set_up'):.3g} s, apart"


def tables(results: list[SumResult]) -> Iterator[str]:
    """The tables of sums, then of noise."""
    ours = {result.case: result for result in results if result.framework == TACIT}
    for case in dict.fromkeys(result.case for result in results if result.case in CASES):
        c = CASES[case]
        setting = f"{c.clients} clients, {c.dropouts} drop out, {c.neighbours} neighbours"
        yield f"\n{case}  {c.title}, {c.threat_model}: {setting}"
        yield COLUMNS.format("", *(cell for title in FIGURES.values() for cell in (title, "")))
        yield from (_sum_row(result, ours[case]) for result in results if result.case == case)
        yield from (line for result in results if result.case == case for line in _set_up(result))
    noise = [result for result in results if result.case in SIGMAS]
    if noise:
        yield "\n" + NOISE_COLUMNS.format("noise", "", "ns/sample", "")
    for result in noise:
        median = result.median("nanoseconds")
        ratio = median / ours[result.case].median("nanoseconds")
        yield NOISE_COLUMNS.format(result.case, result.framework, f"{median:.1f}", f"{ratio:.1f} x")


def main(argv: Sequence[str] | None = None) -> int:
    """Create the environments, then measure; the exit status is 1 if a sum was wrong."""
    args = arguments(argv)
    cases, names = args.cases.split(","), args.frameworks.split(",")
    if unknown := [case for case in cases if case not in KNOWN]:
        sys.exit(f"Unknown case {', '.join(unknown)}. Choose from {', '.join(KNOWN)}.")
    if TACIT not in names:
        sys.exit(f"Expected {TACIT} in --frameworks, because the others are compared with it.")
    for framework in {framework for case in cases for framework in KNOWN[case] if framework.name in names}:
        framework.environment.create()
    results = list(measure_all(cases, names, args.rounds, args.minutes))
    settings = {case: asdict(CASES[case]) for case in cases if case in CASES}
    record = {**circumstances(), "cases": settings, "results": [result.record() for result in results]}
    save(record, args.out)
    print(json.dumps(record, indent=2) if args.json else "\n".join(tables(results)))
    return int(any(measured.get("error") for result in results for measured in result.rounds))


if __name__ == "__main__":
    sys.exit(main())
