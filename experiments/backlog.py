"""Run what is missing in the experiments, most valuable for its hours first, without disturbing anybody.

    python experiments/backlog.py               run it; a second call goes on where the first one stopped
    python experiments/backlog.py --group 1     only what is most valuable
    python experiments/backlog.py --status      what is done, and how long the rest takes; runs nothing

The list is `backlog.toml`. What is done is read from the saved results alone. One process at a time runs, with the
lowest priority and one thread; it pauses while tests, benchmarks or `make` run (`busy.py`). Checkpoints are in the
user's cache until the results of a run are saved. Ctrl-C and SIGTERM stop after the current round, a second one sooner.
"""

import argparse
import json
import os
import re
import runpy
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

try:
    import fcntl  # noqa: F401, for a sentence instead of a traceback
except ImportError:
    sys.exit("Expected a system with fcntl, such as Linux or macOS: the backlog makes room for others by its locks.")

import busy
from supervision import LOWEST, Run, Supervisor, lower_priority, running, say

from tacit.cli import make_parser
from tacit.cli._console import align
from tacit.core.serialization import Source, convert, load_toml
from tacit.errors import TacitError, expect
from tacit.papers.comparison import Comparison
from tacit.papers.jobs import Choice, Job, jobs_of
from tacit.papers.outcomes import find_row
from tacit.papers.study import read_study
from tacit.papers.study_files import results_file

HERE = Path(__file__).parent
REPRODUCE, SCRIPT = ("tacit", "reproduce"), ("python",)


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What is missing.

    Attributes:
        title: in words.
        group: 1 is the most valuable.
        command: `tacit reproduce …`, or `python SCRIPT …` of a script that has `progress` and takes `--runs`.
        hours: of a core, for one run, if no run of its row was measured.
        needs: what has to be written before it can be run; then there is no command.
    """

    title: str
    group: int
    command: tuple[str, ...] = ()
    hours: float = 0.0
    needs: str = ""

    def __post_init__(self) -> None:
        expect(bool(self.command) != bool(self.needs), f"either command or needs in {self.title!r}")
        known = self.command[:2] == REPRODUCE or self.command[:1] == SCRIPT
        expect(not self.command or known, f"a command of tacit reproduce or python in {self.title!r}")


@dataclass(frozen=True)
class State:
    """How many results of an entry are saved, the runs that make the others, and why these cannot be told, if so."""

    done: int = 0
    left: tuple[Run, ...] = ()
    problem: str = ""


def read_entries(path: Path) -> list[Entry]:
    """All entries, the most valuable group first, in the order of the file."""
    found = convert(load_toml(path), dict[str, tuple[Entry, ...]], Source(label=str(path)))
    return sorted(found.get("entries", ()), key=lambda entry: entry.group)


def state_of(entry: Entry, runs: Path) -> State:
    """What is saved of an entry, and what is not."""
    if entry.needs:
        return State()
    try:
        return _study_state(entry, runs) if entry.command[:2] == REPRODUCE else _script_state(entry, runs)
    except (TacitError, OSError, SystemExit) as error:
        return State(problem=str(error))


def _study_state(entry: Entry, runs: Path) -> State:
    args = make_parser().parse_args(entry.command[1:])
    choice = Choice(rows=args.rows, seeds=args.seeds, out=runs, trust=args.trust)
    file = results_file(args.study)
    saved = Comparison.from_bytes(file.read_bytes(), str(file)) if file.exists() else None
    every = [job for group in jobs_of(read_study(args.study), choice) for job in group]
    jobs = [job for job in every if job.row.study == args.study]  # others are counted where they are defined
    measured = {job: _seconds(job, saved) for job in jobs}
    left = [_study_run(entry, choice, job, measured[job]) for job in jobs if job.seed not in measured[job]]
    return State(len(jobs) - len(left), tuple(left))


def _seconds(job: Job, saved: Comparison | None) -> dict[int, float]:
    """The seconds of the saved runs of a job's row, by seed; 0: not measured, as of attacks."""
    row = find_row(job, saved)
    return {trial.seed: trial.values.get("seconds") or 0.0 for trial in row.trials} if row else {}


def _study_run(entry: Entry, choice: Choice, job: Job, measured: dict[int, float]) -> Run:
    study = entry.command[2]
    command = [sys.executable, "-m", "tacit.cli", "reproduce", study, "--rows", job.row.name, "--seeds", str(job.seed)]
    command += [*["--trust"] * choice.trust, "--workers", "1", "--out", str(choice.out), "--save"]
    seconds = [each for each in measured.values() if each]
    hours = min(seconds) / 3600 if seconds else entry.hours  # the least: other runs may have been paused
    return Run(f"{study}, {job.label}", tuple(command), job.directory, hours)


def _script_state(entry: Entry, runs: Path) -> State:
    script, *args = entry.command[1:]
    sys.path.insert(0, str(Path(script).resolve().parent))  # scripts of a folder import each other
    found = runpy.run_path(script)["progress"](args)
    place = runs / re.sub(r"\W+", "-", entry.title)
    hours = found.left * (found.seconds / 3600 if found.seconds else entry.hours)
    command = (sys.executable, script, *args, "--runs", str(place))
    return State(found.done, (Run(entry.title, command, place, hours, found.left),) if found.left else ())


def report(entries: Sequence[Entry], runs: Path) -> dict[str, Any]:
    """What is done and what is left, as plain values; a run that is part of two entries counts once in the sum."""
    states = [state_of(entry, runs) for entry in entries]
    every = {run.command: run.hours for state in states for run in state.left}
    found = [_described(entry, state) for entry, state in zip(entries, states, strict=True)]
    return {"running": running(), "hours": round(sum(every.values()), 3), "entries": found}


def _described(entry: Entry, state: State) -> dict[str, Any]:
    left, hours = sum(run.count for run in state.left), sum(run.hours for run in state.left)
    return {**asdict(entry), "done": state.done, "left": left, "hours": round(hours, 3), "problem": state.problem}


def lines(found: dict[str, Any]) -> Iterator[str]:
    """The report for people."""
    entries = [each for each in found["entries"] if not each["needs"]]
    names, numbers = ("group", "title"), ("done", "left")
    rows = [[*(str(each[name]) for name in (*names, *numbers)), f"{each['hours']:.1f}"] for each in entries]
    yield from align([[*names, *numbers, "hours"], *rows])
    waiting = [each for each in found["entries"] if each["needs"]]
    yield from (f"Not yet runnable: {each['title']} (group {each['group']}) needs {each['needs']}." for each in waiting)
    yield from (f"Failed: {each['title']}: {each['problem']}" for each in entries if each["problem"])
    yield f"Left: {found['hours']:.1f} hours of a core, without what is not yet runnable."
    yield f"Running: {found['running']}" if found["running"] else "The backlog is not running."


def work(entries: Sequence[Entry], runs: Path, supervisor: Supervisor) -> int:
    """Run what is left of each entry; returns how many failed. A failure ends its entry, and not the others."""
    failed = 0
    for entry in entries:
        problem = f"needs {entry.needs}" if entry.needs else _complete(entry, runs, supervisor)
        if supervisor.signals:
            break
        if problem:
            say(f"{'Not yet runnable' if entry.needs else 'Failed'}: {entry.title}: {problem}")
        failed += bool(problem and not entry.needs)
    return failed


def _complete(entry: Entry, runs: Path, supervisor: Supervisor) -> str:
    """Why an entry could not be completed; empty: it was, or a signal came."""
    state = state_of(entry, runs)
    for run in state.left:
        problem = supervisor.play(run)
        if problem or supervisor.signals:
            return f"{run.label}: {problem}"
    return state.problem


def asked() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--status", action="store_true", help="show what is done and left; run nothing")
    parser.add_argument("--json", action="store_true", help="with --status: as one JSON document")
    parser.add_argument("--group", type=int, nargs="+", default=[], help="only these groups")
    folder = busy.cache() / "backlog"
    parser.add_argument("--runs", type=Path, default=folder, help="folder of checkpoints (default: %(default)s)")
    parser.add_argument("--nice", type=int, default=LOWEST, help="niceness of what runs (default: %(default)s, lowest)")
    parser.add_argument("--list", type=Path, default=HERE / "backlog.toml", help="another list, in experiments/")
    return parser.parse_args()


def main() -> int:
    """Show the state, or work."""
    args = asked()
    entries = [entry for entry in read_entries(args.list) if not args.group or entry.group in args.group]
    runs = args.runs.resolve()
    os.chdir(args.list.resolve().parents[1])  # where commands find studies and save results
    if args.status:
        found = report(entries, runs)
        print(json.dumps(found, indent=2, ensure_ascii=False) if args.json else "\n".join(lines(found)))
        return 0
    supervisor = Supervisor(runs)
    lower_priority(args.nice)
    failed = work(entries, runs, supervisor)
    say(f"{'Stopped: the same command goes on.' if supervisor.signals else 'Done.'} Entries that failed: {failed}.")
    return 128 + supervisor.signals[0] if supervisor.signals else int(failed > 0)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except TacitError as problem:
        sys.exit(str(problem))
    except BrokenPipeError:  # the reader of the status has closed it
        sys.stdout = None
