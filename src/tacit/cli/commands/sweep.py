"""`tacit sweep`: run what is not finished, and print the table and the choice."""

import argparse
import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import closing
from pathlib import Path

from tacit.cli._console import aligned, answer, note
from tacit.cli._progress import track, track_run
from tacit.core.worker_choice import Workers
from tacit.errors import expect
from tacit.papers.jobs import Job
from tacit.papers.sweeps import NOT_ACCOUNTED, Sweep, SweepResult, parts_for, play, read_sweep, result_of
from tacit.report import run_groups

OUT = Path("runs") / "sweep"


def run(args: argparse.Namespace) -> int:
    """Run what is not finished, and print the table and the choice."""
    expect(args.processes >= 1, f"--processes {args.processes} >= 1")
    sweep = read_sweep(args.file, args.out or OUT / args.file.stem, trust=args.trust)
    unfinished = [job for job in sweep.jobs if not job.finished()]
    done = len(sweep.jobs) - len(unfinished)
    if done:
        note(f"{done} of {len(sweep.jobs)} runs were already finished.")
    if args.processes == 1:
        _one_by_one(unfinished, sweep, args.workers)
    elif unfinished:
        _together(unfinished, sweep, args.processes)
    result = result_of(sweep)
    return answer(args, result.to_json(), _lines(result, sweep))


def _one_by_one(jobs: Sequence[Job], sweep: Sweep, workers: Workers) -> None:

    for number, job in enumerate(jobs, start=1):
        task = parts_for(job, sweep.table.validation)[0]
        try:
            with closing(job.steps(task, workers)) as steps:
                for _ in track_run(steps, f"{number}/{len(jobs)} {job.label}"):
                    pass
        except KeyboardInterrupt:
            raise KeyboardInterrupt(f"Interrupted {job.label}. Run the same command to go on.") from None


def _together(jobs: Sequence[Job], sweep: Sweep, processes: int) -> None:

    context = multiprocessing.get_context("spawn")  # PyTorch's threads do not survive a fork
    with ProcessPoolExecutor(min(processes, len(jobs)), mp_context=context) as pool:
        futures = [pool.submit(play, job, sweep.table.validation) for job in jobs]
        try:
            for future in track(as_completed(futures), len(jobs), "runs"):
                future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _lines(result: SweepResult, sweep: Sweep) -> list[str]:

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
