"""A file of finished trials, so that a script that is called again goes on where it stopped.

A trial is a record (a frozen dataclass) that says everything on which its result depends; a result is numbers by name.
With a folder for runs, a trial that is interrupted goes on in its last round instead of its first one. Scripts in the
folders beside this file import it with `sys.path`.
"""

import hashlib
import json
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import tacit
from tacit.core import files
from tacit.report.intervals import Interval
from tacit.runs.directory import MANIFEST

Result = Mapping[str, float]


@dataclass(frozen=True)
class Progress:
    """How many trials of a script are done and left, and the seconds of a core for one of them (None: not measured)."""

    done: int
    left: int
    seconds: float | None = None


@dataclass(frozen=True, eq=False)
class TrialFile:
    """The trials that were made so far.

    Attributes:
        path: a JSON file, written after every trial, whole or not at all.
        found: results by the text of their trial.
        runs: a folder for the runs of trials that are not finished; None: these are not kept.
    """

    path: Path
    found: dict[str, Result]
    runs: Path | None = None

    @classmethod
    def open(cls, path: Path, runs: Path | None = None) -> "TrialFile":
        """The file with its trials; none if it does not exist yet."""
        return cls(path, _read(path), runs)

    def get(self, trial: Any) -> Result | None:
        """The result of a trial; None: it has not been made."""
        return self.found.get(_text(trial))

    def measure(self, trial: Any, run: Callable[[], Result]) -> Result:
        """The result of a trial, which is run if there is none yet."""
        text = _text(trial)
        if text not in self.found:
            self.found[text] = dict(run())
            with files.lock_folder(self.path.parent):
                self.found.update(_read(self.path))  # what other processes have added
                files.write(self.path, (json.dumps(self.found, indent=1, sort_keys=True) + "\n").encode())
            if (place := self.place(trial)) is not None:
                shutil.rmtree(place, ignore_errors=True)
        return self.found[text]

    def place(self, trial: Any) -> Path | None:
        """The folder for the runs of a trial until it has a result; None: they are not kept."""
        name = hashlib.sha256(_text(trial).encode()).hexdigest()[:16]
        return None if self.runs is None else self.runs / self.path.stem / name

    def progress(self, trials: Iterable[Any]) -> Progress:
        """How many of these have a result, and how long those took."""
        results = [self.get(trial) for trial in trials]
        done = [result for result in results if result is not None]
        seconds = [result["cpu_seconds"] for result in done if "cpu_seconds" in result]
        return Progress(len(done), len(results) - len(done), fmean(seconds) if seconds else None)


def train(method: tacit.Method, task: tacit.Task, seed: int, place: Path | None = None, **options: Any) -> tacit.Run:
    """A run in this process, evaluated once, at its end; it resumes what an interrupted call has left in `place`."""
    begun = place is not None and (place / MANIFEST).exists()
    return tacit.train(
        method, task, seed=seed, workers=1, evaluate_every=method.rounds, out=place, resume=begun, **options
    )


def interval(values: Sequence[float]) -> str:
    """The mean of these values with its 95 % interval."""
    made = Interval.of(values)
    return "none" if made is None else made.text()


def _read(path: Path) -> dict[str, Result]:
    return json.loads(path.read_text()) if path.exists() else {}


def _text(trial: Any) -> str:
    return json.dumps(asdict(trial), sort_keys=True)
