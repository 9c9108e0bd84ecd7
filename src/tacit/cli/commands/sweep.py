"""Try many values of an experiment's arguments, and choose the best on a validation part of the held-out data.

The experiment file has a table [sweep]: lists of values (all combinations), or lists and ranges with a number of random
trials. Every combination is run with every seed, in a directory of its own. Finished runs are not repeated: after
Ctrl-C, a crash or a kill the same command goes on, and gives the same table. Runs are evaluated on one part of the
held-out data; only the chosen combination is evaluated on the other part. Noise is seeded: a sweep is a simulation.

Examples:
  tacit sweep experiment.toml                           all combinations, one run after another
  tacit sweep experiment.toml --processes 4             four runs at a time
  tacit sweep experiment.toml --out runs/rates --json

An experiment file:
  method = "fl-std"
  seeds = [0, 1, 2]
  [args]
  rounds = 20
  [sweep]
  validation = 0.5
  [sweep.args]
  "descent.lr" = [0.05, 0.1, 0.2]
  cohort = [10, 20]
  # with trials = 8 in [sweep], also ranges: ratio = { low = 0.001, high = 0.1, log = true }
"""

import argparse
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from tacit.cli._console import add_trust, add_workers, aligned, print_json, track, track_run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tacit.core.worker_choice import Workers
    from tacit.papers.jobs import Job
    from tacit.papers.sweeps import Sweep, SweepResult

OUT = Path("runs") / "sweep"


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("file", type=Path, metavar="FILE.toml", help="an experiment file with a table [sweep]")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder of the runs (default: runs/sweep/NAME)")
    parser.add_argument("--processes", type=int, default=1, metavar="N", help="runs at a time (default: 1)")
    add_workers(parser, "worker processes of a run, if there is one at a time")
    add_trust(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON document on standard output")


def run(args: argparse.Namespace) -> int:
    """Run what is not finished, and print the table and the choice."""
    from tacit.errors import expect
    from tacit.papers.sweeps import read_sweep, result_of

    expect(args.processes >= 1, f"--processes {args.processes} >= 1")
    sweep = read_sweep(args.file, args.out or OUT / args.file.stem, trust=args.trust)
    unfinished = [job for job in sweep.jobs if not job.finished()]
    done = len(sweep.jobs) - len(unfinished)
    if done:
        print(f"{done} of {len(sweep.jobs)} runs were already finished.", file=sys.stderr)
    if args.processes == 1:
        _one_by_one(unfinished, sweep, args.workers)
    elif unfinished:
        _together(unfinished, sweep, args.processes)
    result = result_of(sweep)
    if args.json:
        print_json(result.to_json())
    else:
        print(*_lines(result, sweep), sep="\n")
    return 0


def _one_by_one(jobs: "Sequence[Job]", sweep: "Sweep", workers: "Workers") -> None:
    from tacit.papers.sweeps import parts_for

    for number, job in enumerate(jobs, start=1):
        task = parts_for(job, sweep.table.validation)[0]
        try:
            with closing(job.steps(task, workers)) as steps:
                for _ in track_run(steps, f"{number}/{len(jobs)} {job.label}"):
                    pass
        except KeyboardInterrupt:
            raise KeyboardInterrupt(f"Interrupted {job.label}. Run the same command to go on.") from None


def _together(jobs: "Sequence[Job]", sweep: "Sweep", processes: int) -> None:
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor, as_completed

    from tacit.papers.sweeps import play

    context = multiprocessing.get_context("spawn")  # PyTorch's threads do not survive a fork
    with ProcessPoolExecutor(min(processes, len(jobs)), mp_context=context) as pool:
        futures = [pool.submit(play, job, sweep.table.validation) for job in jobs]
        try:
            for future in track(as_completed(futures), len(jobs), "runs"):
                future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _lines(result: "SweepResult", sweep: "Sweep") -> list[str]:
    from tacit.papers.sweeps import NOT_ACCOUNTED
    from tacit.report import run_groups

    header, rows = run_groups.header(result.groups), run_groups.rows(result.groups)
    shown = [[*row[:1], *row[2:-1]] for row in [["combination", *header[1:]], *rows]]  # one task; time is no result
    test = ", ".join(f"{name} {interval.text()}" for name, interval in result.test.items())
    return [
        *aligned(shown, left=1),
        f"Metrics are those on the validation part, {sweep.table.validation:.0%} of the held-out data.",
        "Mean ± half of the 95 % interval (Student's t) over seeds; ε is the largest.",
        f"Chosen by {result.metric}: {result.groups[0].label}. On the other part, which chose nothing: {test}.",
        *run_groups.guarantee_lines(result.groups[:1]),
        NOT_ACCOUNTED,
        f"Next: tacit report {sweep.out}",
    ]
