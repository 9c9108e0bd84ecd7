"""Reproduce a table or figure of a paper, and compare the results with the published numbers.

Without an argument: list all studies. Each row is run with each seed in its own directory below runs/reproduce.
Finished runs are not repeated; after Ctrl-C, a crash or a kill the same command resumes. The table reports misses as
plainly as hits, with the privacy guarantee of each row below it. Figures are drawn as PNG.

Studies are part of the package; your own are read from experiments/PAPER/WHAT.toml below the current folder.
Results are saved, and found again, in experiments/PAPER/results/WHAT.json below the current folder.

Examples:
  tacit reproduce                                       list all tables and figures
  tacit reproduce geyer/table-1 --fast                  the short version, in a minute
  tacit reproduce geyer/table-1 --rows "K=100 fixed bound" "K=100 quantile bound" --seeds 0,1
  tacit reproduce geyer/table-1 --save                  also save the results in experiments/geyer/results/table-1.json;
                                                        other rows and seeds already saved there are kept
  tacit reproduce geyer/table-1 --save results.json     also save the results in another file
  tacit reproduce geyer/figure-2                        run and draw
  tacit reproduce --from geyer/table-1                  print (and draw) saved results; runs nothing
  tacit reproduce --from results.json
"""

import argparse
import sys
from contextlib import closing
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from tacit.cli._console import add_trust, add_workers, aligned, print_json, track, track_run

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tacit.core.worker_choice import Workers
    from tacit.data import Task
    from tacit.papers.comparison import Comparison
    from tacit.papers.jobs import Job
    from tacit.papers.study import Study
    from tacit.runs.records import Run

DEFAULT = Path()  # --save without a file


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("study", nargs="?", metavar="PAPER/WHAT", help="for example geyer/table-1")
    parser.add_argument("--rows", nargs="+", default=[], metavar="NAME", help="only these rows")
    parser.add_argument("--fast", action="store_true", help="the short version: only shows that the study runs")
    parser.add_argument("--seeds", type=_seeds, default=(), metavar="N,N", help="other seeds, for example 0,1")
    add_workers(parser, "worker processes; results do not depend on them")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder of the runs (default: runs/reproduce)")
    parser.add_argument(
        "--save",
        type=Path,
        nargs="?",
        const=DEFAULT,
        metavar="FILE",
        help="save the results as JSON (default: experiments/PAPER/results/WHAT.json)",
    )
    parser.add_argument("--from", dest="saved", metavar="FILE", help="print saved results: a file, or PAPER/WHAT")
    add_trust(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON document on stdout")


def run(args: argparse.Namespace) -> int:
    """Run a study and print the comparison, print a saved one, or list all studies."""
    if args.saved is not None:
        _check_alone(args)
        path = _saved_file(args.saved)
        return _report(_load(path), args, path.with_suffix(".png"))
    if args.study is None:
        return _list(args)
    return _reproduce(args)


def _reproduce(args: argparse.Namespace) -> int:
    from tacit.papers.study_files import find_study, results_file

    find_study(args.study, args.rows)  # before PyTorch is imported
    if args.save == DEFAULT:
        args.save = results_file(args.study)

    from tacit.papers.jobs import OUT, Choice, jobs_of
    from tacit.papers.study import FAST, read_study

    study = read_study(args.study)
    choice = Choice(rows=args.rows, seeds=args.seeds, fast=args.fast, out=args.out or OUT, trust=args.trust)
    if args.save:
        _earlier(args.save, study.name, fast=choice.fast)  # it can be added to
    comparison = _compare(study, jobs_of(study, choice), args)
    if args.save:
        comparison = _save(args.save, comparison, [row.name for row in study.rows])
    place = choice.out / study.name / (FAST if choice.fast else "") / f"{Path(study.name).name}.png"
    return _report(comparison, args, args.save.with_suffix(".png") if args.save else place)


def _list(args: argparse.Namespace) -> int:
    from tacit.errors import UserError
    from tacit.papers.study_files import summaries

    if args.save is not None:
        raise UserError("Expected a study before --save, for example geyer/table-1.")
    found = summaries()
    if args.json:
        print_json([asdict(study) for study in found])
        return 0
    print("\n".join(aligned([["name", "title", "rows"], *([s.name, s.title, str(len(s.rows))] for s in found)])))
    return 0


def _compare(study: "Study", groups: "list[list[Job]]", args: argparse.Namespace) -> "Comparison":
    """Run or attack what is not finished; what cannot be run or drawn is refused before anything runs."""
    from tacit.papers.outcomes import compare
    from tacit.report.style import require_matplotlib

    if study.plot is not None or study.attacks:
        require_matplotlib()
    if study.attacks:
        return _attack(study, groups, fast=args.fast)
    unfinished = [[job for job in group if not job.finished()] for group in groups]
    finished = sum(map(len, groups)) - sum(map(len, unfinished))
    if finished:
        print(f"{finished} of {sum(map(len, groups))} runs were already finished.", file=sys.stderr)
    for job, task in _with_tasks(job for group in unfinished for job in group):
        _watch(job, task, args.workers)
    return compare(study, groups, fast=args.fast)


def _attack(study: "Study", groups: "list[list[Job]]", *, fast: bool) -> "Comparison":
    from functools import partial

    from tacit.papers.jobs import attack_jobs_of
    from tacit.papers.outcomes import compare_attacks

    attacks = attack_jobs_of(groups, fast=fast)
    unfinished = {attack.job: attack for group in attacks for attack in group if not attack.finished()}
    for job, task in _with_tasks(unfinished):
        unfinished[job].run(task, partial(track, label=f"{job.label}: client"))
    return compare_attacks(study, attacks, fast=fast)


def _with_tasks(jobs: "Iterable[Job]") -> "Iterator[tuple[Job, Task]]":
    """Each job with its task, which is built once for consecutive jobs that share it."""
    for _, same in groupby(jobs, key=lambda job: (job.experiment.task, job.experiment.task_args)):
        first = next(same)
        task = first.experiment.build_task()
        yield from ((job, task) for job in (first, *same))


def _watch(job: "Job", task: "Task", workers: "Workers") -> None:
    latest: Run | None = None
    try:
        with closing(job.steps(task, workers)) as steps:
            for step in track_run(steps, job.label):
                latest = step
    except KeyboardInterrupt:
        done = f" after {latest.state.round} of {latest.rounds} rounds" if latest else ""
        raise KeyboardInterrupt(f"Interrupted {job.label}{done}. Run the same command to resume.") from None


def _report(comparison: "Comparison", args: argparse.Namespace, picture: Path) -> int:
    """Print the comparison, and draw it if it is a figure."""
    from tacit.core.files import write
    from tacit.papers.comparison_figures import render
    from tacit.papers.comparison_tables import footnotes, table

    messages = sys.stderr if args.json else sys.stdout
    if args.json:
        print(comparison.to_bytes().decode(), end="")
    else:
        print(comparison.title, *aligned(table(comparison)), "", *footnotes(comparison), sep="\n")
    if args.save:
        print(f"Saved: {args.save}", file=messages)
    if comparison.plot is not None:
        write(picture, render(comparison), parents=True)
        print(f"Figure: {picture}", file=messages)
    return 0


def _save(path: Path, comparison: "Comparison", order: "list[str]") -> "Comparison":
    """Add the comparison to the results saved so far, by this or another process; all of them, with rows in order."""
    from tacit.core import files

    with files.storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    with files.locked(path.parent):
        earlier = _earlier(path, comparison.name, fast=comparison.fast)
        if earlier is not None:
            _print_replaced(comparison, earlier)
            comparison = comparison.merged_with(earlier, order)
        files.write(path, comparison.to_bytes())
    return comparison


def _earlier(path: Path, name: str, *, fast: bool) -> "Comparison | None":
    """Load the results saved so far; a file of something else is a `UserError`."""
    from tacit.errors import UserError

    if not path.exists():
        return None
    saved = _load(path)
    if (saved.name, saved.fast) != (name, fast):
        wanted, got = (f"{study}{', short' * short}" for study, short in ((name, fast), (saved.name, saved.fast)))
        raise UserError(f"Expected {path} to have results of {wanted}, got {got}. Save to another file.")
    return saved


def _print_replaced(found: "Comparison", earlier: "Comparison") -> None:
    """Say which earlier results are not kept, because their row is defined differently now."""
    before = {row.name: row for row in earlier.rows}
    for row in found.rows:
        old = before.get(row.name, row)
        if not row.same_settings(old):
            seeds = ", ".join(str(trial.seed) for trial in old.trials)
            print(
                f"{row.name}: earlier results are replaced (seeds {seeds}); it has other settings now.", file=sys.stderr
            )


def _saved_file(given: str) -> Path:
    """The file itself, or that of the results of a study."""
    from tacit.errors import UserError
    from tacit.papers.study_files import results_file, study_files

    if Path(given).exists() or given not in study_files():
        return Path(given)
    path = results_file(given)
    if not path.exists():
        raise UserError(f"No results of {given} in {path}: run tacit reproduce {given} --save.")
    return path


def _load(path: Path) -> "Comparison":
    from tacit.core import files
    from tacit.papers.comparison import Comparison

    return Comparison.from_bytes(files.read(path), str(path))


def _check_alone(args: argparse.Namespace) -> None:
    """Raise `UserError` if --from is combined with something that runs or saves."""
    from tacit.errors import UserError

    names = ("study", "rows", "fast", "seeds", "workers", "out", "save", "trust")
    given = [name for name in names if getattr(args, name)]
    if given:
        flag = args.study if given[0] == "study" else f"--{given[0]}"
        raise UserError(f"Expected --from without {flag}: saved results are printed as they are.")


def _seeds(text: str) -> tuple[int, ...]:
    try:
        seeds = tuple(int(word) for word in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected whole numbers like 0,1, got {text!r}") from None
    if len(set(seeds)) < len(seeds):
        raise argparse.ArgumentTypeError(f"expected different seeds, got {text!r}")
    return seeds
