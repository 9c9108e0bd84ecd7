"""`tacit sweep`: run the remaining combinations, and print the table and the choice."""

import argparse
import multiprocessing
from collections.abc import Generator
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from pathlib import Path

from tacit.cli._console import align, answer, note
from tacit.cli._progress import track, track_run
from tacit.errors import expect
from tacit.papers.sweeps import NOT_ACCOUNTED, Sweep, SweepResult, play_one, read_sweep, result_of
from tacit.report import run_groups
from tacit.runs.run import Run

_OUT = Path("runs") / "sweep"


def run(args: argparse.Namespace) -> int:
    """Run the remaining combinations, and print the table and the choice."""
    expect(args.processes >= 1, f"--processes {args.processes} >= 1")
    out = args.out or _OUT / args.file.stem
    sweep = read_sweep(args.file, out, trust=args.trust)
    done = sum(job.is_finished() for job in sweep.jobs) if sweep.planned else 0
    if done:
        note(f"{done} of {len(sweep.jobs)} runs were already finished.")
    left = sweep.prepare()
    if args.processes == 1:
        _one_by_one(sweep, left, args)
    elif left:
        _together(args, out, left)
    result = result_of(sweep)
    return answer(args, result.to_json(), _lines(result, sweep))


def _one_by_one(sweep: Sweep, left: int, args: argparse.Namespace) -> None:
    for number in range(1, left + 1):
        try:
            sweep.play(args.workers, partial(_show, f"{number}/{left}"))
        except KeyboardInterrupt:
            raise KeyboardInterrupt("Interrupted. Run the same command to resume.") from None


def _show(place: str, steps: Generator[Run], label: str) -> Generator[Run]:
    return track_run(steps, f"{place} {label}")


def _together(args: argparse.Namespace, out: Path, left: int) -> None:
    context = multiprocessing.get_context("spawn")  # PyTorch's threads do not survive a fork
    with ProcessPoolExecutor(min(args.processes, left), mp_context=context) as pool:
        futures = [pool.submit(play_one, args.file, out, trust=args.trust) for _ in range(left)]
        try:
            for future in track(as_completed(futures), left, "combinations"):
                future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _lines(result: SweepResult, sweep: Sweep) -> list[str]:
    header, rows = run_groups.header(result.groups), run_groups.rows(result.groups)
    table = [[*row[:1], *row[2:-1]] for row in [["combination", *header[1:]], *rows]]  # one task; time is no result
    test = ", ".join(f"{name} {interval.text()}" for name, interval in result.test.items())
    pruned = sweep.trials - len(result.groups)
    stopped = f"{pruned} of {sweep.trials} combinations were stopped early: they did worse than half of the others."
    return [
        *align(table, left=1),
        *[stopped] * bool(pruned),
        f"Metrics are those on the validation part, {sweep.table.validation:.0%} of the held-out data.",
        "Mean ± half of the 95 % interval (Student's t) over seeds; ε is the largest.",
        f"Chosen by {result.metric}: {result.groups[0].label}. On the other part, which chose nothing: {test}.",
        *run_groups.guarantee_lines(result.groups[:1]),
        NOT_ACCOUNTED,
        f"Next: tacit report {sweep.out}",
    ]
