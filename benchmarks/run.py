"""Measures one federated round in Tacit and other frameworks: seconds and memory. See README.md in this folder."""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from reporting import positive_integer, record, save, table
from runner import FRAMEWORKS, TIMEOUT, Framework, FrameworkError, Result, Settings, another_tree, measure, running
from workloads import DEFAULT, WORKLOADS

sys.path.append(str(Path(__file__).resolve().parents[1]))
from experiments.busy import holding

LATEST = Path(__file__).resolve().parent / "results" / "latest.json"
TOLERANCE = 1e-3  # of the L2 norm; Flower averages weights in float32, and an update is small compared with them


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workloads", default=",".join(DEFAULT), help=f"of {', '.join(WORKLOADS)}")
    parser.add_argument("--frameworks", default=",".join(FRAMEWORKS), help="default: all, %(default)s")
    parser.add_argument("--before", type=Path, metavar="TREE", help="also measure the Tacit of another tree")
    parser.add_argument("--rounds", type=positive_integer, default=7, help="measured rounds (default %(default)s)")
    parser.add_argument("--warm-ups", type=int, default=2, help="rounds before them (default %(default)s)")
    parser.add_argument("--workers", type=positive_integer, default=2, help="training processes (default %(default)s)")
    parser.add_argument("--minutes", type=float, default=15, help="time limit (default %(default)s)")
    parser.add_argument("--timeout", type=float, default=TIMEOUT, help="seconds for one answer (default %(default)s)")
    parser.add_argument("--out", type=Path, default=LATEST, help="file for the results, as JSON")
    parser.add_argument("--json", action="store_true", help="print the results as JSON instead of the table")
    parser.add_argument("--check", action="store_true", help="compare the computed updates, measure nothing")
    return parser.parse_args(argv)


def chosen(names: str, known: Iterable[str], kind: str) -> list[str]:
    """A comma-separated list of known names."""
    wanted = [name for name in names.split(",") if name]
    if unknown := [name for name in wanted if name not in known]:
        sys.exit(f"Unknown {kind} {', '.join(unknown)}. Choose from {', '.join(known)}.")
    return wanted


def participants(workload: str, frameworks: list[Framework]) -> list[Framework]:
    """The frameworks that run a workload."""
    return [framework for framework in frameworks if WORKLOADS[workload].peers or not framework.peer]


def measure_all(workloads: list[str], frameworks: list[Framework], settings: Settings, minutes: float) -> list[Result]:
    """Measure one workload after the other; each gets an equal share of the remaining time."""
    results: list[Result] = []
    end = time.monotonic() + 60 * minutes
    for number, workload in enumerate(workloads):
        print(f"{workload}: {WORKLOADS[workload].title}", file=sys.stderr)
        now = time.monotonic()
        deadline = now + (end - now) / (len(workloads) - number)
        results += measure(workload, participants(workload, frameworks), replace(settings, deadline=deadline))
    return results


def check(workload: str, frameworks: list[Framework], workers: int) -> bool:
    """Run one round without noise, from the same weights on the same data, and compare with the first framework."""
    reference, agree = None, True
    for framework in frameworks:
        try:
            update = update_of(framework, workload, workers)
        except FrameworkError as error:
            print(error, file=sys.stderr)
            agree = False
            continue
        reference = update if reference is None else reference
        difference = float((update - reference).norm() / reference.norm())
        agree &= difference <= TOLERANCE
        print(f"{workload}  {framework.name:<14} norm {float(update.norm()):.6f}  relative difference {difference:.1e}")
    return agree


def update_of(framework: Framework, workload: str, workers: int) -> Tensor:
    """The mean of the clipped updates, as this framework computes it."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "update.pt"
        with running(framework, workload, workers, f"--check={target}") as process:
            process.run_round()
        update: Tensor = torch.load(target)
        return update


def main(argv: Sequence[str] | None = None) -> int:
    """Create the environments, then check or measure, while the backlog of experiments pauses; the exit status."""
    args = arguments(argv)
    with holding():
        return benchmark(args)


def benchmark(args: argparse.Namespace) -> int:
    """What the command line asks for."""
    workloads = chosen(args.workloads, WORKLOADS, "workload")
    frameworks = [FRAMEWORKS[name] for name in chosen(args.frameworks, FRAMEWORKS, "framework")]
    frameworks += [] if args.before is None else [another_tree(args.before)]
    for framework in frameworks:
        framework.environment.create()
    if args.check:
        comparable = [framework for framework in frameworks if framework.comparable]
        agree = [check(name, participants(name, comparable), args.workers) for name in workloads]
        return int(not all(agree))
    settings = Settings(rounds=args.rounds, warm_ups=args.warm_ups, workers=args.workers, timeout=args.timeout)
    results = measure_all(workloads, frameworks, settings, args.minutes)
    measured = record(results, settings)
    save(measured, args.out)
    print(json.dumps(measured, indent=2) if args.json else "\n".join(table(results, measured)))
    return int(any(result.failure for result in results))


if __name__ == "__main__":
    sys.exit(main())
