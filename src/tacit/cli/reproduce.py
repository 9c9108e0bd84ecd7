"""Run a paper's table or figure, and print ours beside the paper's.

Without an argument: what there is. Every row is run with every seed in a directory of its own below runs/reproduce.
What is finished is not run again; after Ctrl-C, a crash or a kill the same command goes on. Misses are told as plainly
as hits, and beneath the table stands what is guaranteed about each row. Figures are drawn too.

Examples:
  tacit reproduce                                       what there is
  tacit reproduce geyer/table-1 --fast                  the short version, in a minute
  tacit reproduce geyer/table-1 --rows "K=100 fixed bound" "K=100 quantile bound" --seeds 0,1
  tacit reproduce geyer/table-1 --save results.json     also keep what came out, without the runs; other rows and seeds
                                                        of the same table that are kept there stay
  tacit reproduce geyer/figure-2                        run, and draw
  tacit reproduce --from results.json                   print (and draw) what was saved; runs nothing
"""

import argparse
import json
import sys
from contextlib import closing
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from tacit.cli._console import aligned

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tacit.core import Task
    from tacit.papers.jobs import Choice, Job
    from tacit.papers.studies import Study
    from tacit.report.comparison import Comparison
    from tacit.runs.records import Run


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("what", nargs="?", metavar="PAPER/WHAT", help="for example geyer/table-1")
    parser.add_argument("--rows", nargs="+", default=[], metavar="NAME", help="only these rows")
    parser.add_argument("--fast", action="store_true", help="the short version: shows that it runs, and nothing else")
    parser.add_argument("--seeds", type=_seeds, default=(), metavar="N,N", help="other seeds, for example 0,1")
    parser.add_argument("--workers", type=int, metavar="N", help="worker processes; the result does not depend on it")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where the runs go (default: runs/reproduce)")
    parser.add_argument("--save", type=Path, metavar="FILE", help="keep what came out here, as JSON")
    parser.add_argument("--from", dest="saved", type=Path, metavar="FILE", help="print what --save wrote")
    parser.add_argument("--json", action="store_true", help="print one JSON document on stdout")


def run(args: argparse.Namespace) -> int:
    """Run what was asked for, and print the comparison."""
    if args.saved is not None:
        _check_alone(args)
        return _tell(_load(args.saved), args, args.saved.with_suffix(".png"))
    if args.what is None:
        return _list(args)
    from tacit.papers.studies import FAST, experiments_folder, read_study

    study, choice = read_study(experiments_folder(), args.what), _choice(args)
    earlier = _earlier(args.save, study.name, fast=choice.fast) if args.save else None
    comparison = _compare(study, choice, args.workers)
    if earlier is not None:
        comparison = comparison.joined(earlier, [row.name for row in study.rows])
    if args.save:
        _write(args.save, comparison.to_bytes())
    place = choice.out / study.name / (FAST if choice.fast else "") / f"{Path(study.name).name}.png"
    return _tell(comparison, args, args.save.with_suffix(".png") if args.save else place)


def _list(args: argparse.Namespace) -> int:
    """Every table and figure there is."""
    from tacit.papers.studies import catalog, experiments_folder, read_study

    folder = experiments_folder()
    studies = [read_study(folder, name) for name in catalog(folder)]
    if args.json:
        rows = {study.name: [row.name for row in study.rows] for study in studies}
        told = [{"name": study.name, "title": study.title, "rows": rows[study.name]} for study in studies]
        print(json.dumps(told, indent=2, ensure_ascii=False))
        return 0
    print("\n".join(aligned([["name", "title", "rows"], *([s.name, s.title, str(len(s.rows))] for s in studies)])))
    return 0


def _choice(args: argparse.Namespace) -> "Choice":
    from tacit.papers.jobs import OUT, Choice

    return Choice(rows=args.rows, seeds=args.seeds, fast=args.fast, out=args.out or OUT)


def _compare(study: "Study", choice: "Choice", workers: int | None) -> "Comparison":
    """Run what is not finished; what cannot be run or drawn is found before anything is."""
    from tacit.papers.jobs import jobs_of
    from tacit.papers.outcomes import compare
    from tacit.report.style import require

    if study.plot is not None or study.rows[0].siege is not None:
        require()
    groups = jobs_of(study, choice)
    if study.rows[0].siege is not None:
        return _besiege(study, groups, fast=choice.fast)
    left = [[job for job in group if not job.finished()] for group in groups]
    done = sum(map(len, groups)) - sum(map(len, left))
    if done:
        print(f"{done} of {sum(map(len, groups))} runs were finished before.", file=sys.stderr)
    for job, task in _with_tasks(job for group in left for job in group):
        _watch(job, task, workers)
    return compare(study, groups, fast=choice.fast)


def _besiege(study: "Study", groups: "list[list[Job]]", *, fast: bool) -> "Comparison":
    """Attack what was not attacked before."""
    from functools import partial

    from tacit.cli._console import track
    from tacit.papers.attack_jobs import assaults_of, compare

    assaults = assaults_of(groups, fast=fast)
    left = {assault.job: assault for group in assaults for assault in group if not assault.finished()}
    for job, task in _with_tasks(left):
        left[job].make(task, partial(track, label=f"{job.label}: client"))
    return compare(study, assaults, fast=fast)


def _with_tasks(jobs: "Iterable[Job]") -> "Iterator[tuple[Job, Task]]":
    """Each job with its task, which is made once for neighbours that share it."""
    for _, same in groupby(jobs, key=lambda job: (job.experiment.task, job.experiment.task_args)):
        first = next(same)
        task = first.experiment.build_task()
        yield from ((job, task) for job in (first, *same))


def _watch(job: "Job", task: "Task", workers: int | None) -> None:
    """Run one, and show it as it goes."""
    from tacit.cli._console import track_run

    latest: Run | None = None
    try:
        with closing(job.steps(task, workers)) as steps:
            for step in track_run(steps, job.label):
                latest = step
    except KeyboardInterrupt:
        done = f" after {latest.state.round} of {latest.rounds} rounds" if latest else ""
        raise KeyboardInterrupt(f"Interrupted {job.label}{done}. The same command goes on.") from None


def _tell(comparison: "Comparison", args: argparse.Namespace, picture: Path) -> int:
    """Print the comparison, and draw it if it is a figure."""
    from tacit.report.figures import render
    from tacit.report.tables import remarks, table

    talk = sys.stderr if args.json else sys.stdout
    if args.json:
        print(comparison.to_bytes().decode(), end="")
    else:
        lines = (line.rstrip() for line in aligned(table(comparison)))
        print(comparison.title, *lines, "", *remarks(comparison), sep="\n")
    if args.save:
        print(f"Saved: {args.save}", file=talk)
    if comparison.plot is not None:
        _write(picture, render(comparison))
        print(f"Figure: {picture}", file=talk)
    return 0


def _earlier(path: Path, name: str, *, fast: bool) -> "Comparison | None":
    """What the file has kept so far; whatever it is that cannot be added to, is found before anything runs."""
    from tacit.errors import UserError

    if not path.exists():
        return None
    kept = _load(path)
    if (kept.name, kept.fast) != (name, fast):
        said = [f"{what}{', short' * short}" for what, short in ((name, fast), (kept.name, kept.fast))]
        raise UserError(f"Expected {path} to have kept rows of {said[0]}, got {said[1]}. Save to another file.")
    return kept


def _load(path: Path) -> "Comparison":
    from tacit.errors import UserError
    from tacit.report.comparison import Comparison

    try:
        return Comparison.from_bytes(path.read_bytes(), str(path))
    except OSError as error:
        raise UserError(f"Could not read {path}: {error.strerror}.") from error


def _write(path: Path, content: bytes) -> None:
    from tacit.core.files import storage_errors, write

    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    write(path, content)


def _check_alone(args: argparse.Namespace) -> None:
    """What was saved is told as it is."""
    from tacit.errors import UserError

    names = ("what", "rows", "fast", "seeds", "workers", "out", "save")
    given = [name for name in names if getattr(args, name)]
    if given:
        flag = args.what if given[0] == "what" else f"--{given[0]}"
        raise UserError(f"Expected --from to stand without {flag}: what was saved is told as it is.")


def _seeds(text: str) -> tuple[int, ...]:
    try:
        seeds = tuple(int(word) for word in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected whole numbers like 0,1, got {text!r}") from None
    if len(set(seeds)) < len(seeds):
        raise argparse.ArgumentTypeError(f"expected different seeds, got {text!r}")
    return seeds
