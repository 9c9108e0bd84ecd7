"""`tacit reproduce`: run a study, and compare its results with the published numbers."""

import argparse
from collections.abc import Iterable, Iterator
from contextlib import closing
from functools import partial
from itertools import groupby
from pathlib import Path

from tacit.cli._console import note
from tacit.cli._progress import track, track_run
from tacit.cli.commands.studies import earlier_results, report
from tacit.core import files
from tacit.core.worker_choice import Workers
from tacit.data import Task
from tacit.papers.comparison import Comparison
from tacit.papers.jobs import OUT, Choice, Job, attack_jobs_of, jobs_of
from tacit.papers.outcomes import compare, compare_attacks
from tacit.papers.study import FAST, Study, read_study
from tacit.report.style import require_matplotlib
from tacit.runs.run import Run


def run(args: argparse.Namespace) -> int:
    """Run a study and print the comparison."""
    study = read_study(args.study)
    choice = Choice(rows=args.rows, seeds=args.seeds, fast=args.fast, out=args.out or OUT, trust=args.trust)
    if args.save:
        earlier_results(args.save, study.name, fast=choice.fast)  # validate first
    comparison = _compare(study, jobs_of(study, choice), args)
    if args.save:
        comparison = _save(args.save, comparison, [row.name for row in study.rows])
    place = choice.out / study.name / (FAST if choice.fast else "") / f"{Path(study.name).name}.png"
    return report(comparison, args, args.save.with_suffix(".png") if args.save else place)


def _compare(study: Study, groups: list[list[Job]], args: argparse.Namespace) -> Comparison:
    """Run or attack the unfinished jobs; validate all of them before the first run."""
    if study.plot is not None or study.attacks:
        require_matplotlib()
    if study.attacks:
        return _attack(study, groups, fast=args.fast)
    unfinished = [[job for job in group if not job.is_finished()] for group in groups]
    total, left = (sum(map(len, each)) for each in (groups, unfinished))
    if left < total:
        note(f"{total - left} of {total} runs were already finished.")
    for job, task in _with_tasks(job for group in unfinished for job in group):
        _watch(job, task, args.workers)
    return compare(study, groups, fast=args.fast)


def _attack(study: Study, groups: list[list[Job]], *, fast: bool) -> Comparison:
    attacks = attack_jobs_of(groups, fast=fast)
    unfinished = {attack.job: attack for group in attacks for attack in group if not attack.is_finished()}
    for job, task in _with_tasks(unfinished):
        unfinished[job].run(task, partial(track, label=f"{job.label}: client"))
    return compare_attacks(study, attacks, fast=fast)


def _with_tasks(jobs: Iterable[Job]) -> Iterator[tuple[Job, Task]]:
    """Each job with its task, built once for consecutive jobs that share it."""
    for _, same in groupby(jobs, key=lambda job: (job.experiment.task, job.experiment.task_args)):
        first = next(same)
        task = first.experiment.build_task()
        yield from ((job, task) for job in (first, *same))


def _watch(job: Job, task: Task, workers: Workers) -> None:
    latest: Run | None = None
    try:
        with closing(job.steps(task, workers)) as steps:
            for step in track_run(steps, job.label):
                latest = step
    except KeyboardInterrupt:
        done = f" after {latest.state.round} of {latest.rounds} rounds" if latest else ""
        raise KeyboardInterrupt(f"Interrupted {job.label}{done}. Run the same command to resume.") from None


def _save(path: Path, comparison: Comparison, order: list[str]) -> Comparison:
    """Add the comparison to the results that this or another process saved; returns all, with rows in order."""
    with files.storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    with files.lock_folder(path.parent):
        earlier = earlier_results(path, comparison.name, fast=comparison.fast)
        if earlier is not None:
            _print_replaced(comparison, earlier)
            comparison = comparison.merged_with(earlier, order)
        files.write(path, comparison.to_bytes())
    return comparison


def _print_replaced(comparison: Comparison, earlier: Comparison) -> None:
    """Report the earlier results to replace, because the definition of their row changed."""
    before = {row.name: row for row in earlier.rows}
    for row in comparison.rows:
        old = before.get(row.name, row)
        if not row.same_settings(old):
            seeds = ", ".join(str(trial.seed) for trial in old.trials)
            note(f"{row.name}: earlier results are replaced (seeds {seeds}); it has other settings now.")
