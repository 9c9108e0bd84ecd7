"""What a study has to run: a directory per row and seed, run once, gone on with after an interruption.

A run that is there counts only if it is the one the study describes now; anything else is refused, not overwritten.
"""

import json
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tacit.core import Method, Task
from tacit.core.schema import choose
from tacit.errors import RunError, UserError
from tacit.papers.studies import FAST, Row, Study
from tacit.report.plots import Histogram
from tacit.runs.directory import MANIFEST, read_manifest
from tacit.runs.experiment import Experiment
from tacit.runs.manifest import Manifest
from tacit.runs.run import Plan, Run, size_noise
from tacit.runs.training import follow

OUT = Path("runs") / "reproduce"


@dataclass(frozen=True, eq=False)
class Job:
    """One row with one seed, and where its run lies."""

    row: Row
    experiment: Experiment
    seed: int
    directory: Path

    @property
    def label(self) -> str:
        """What the run is called while it goes."""
        return f"{self.row.name}, seed {self.seed}"

    @cached_property
    def method(self) -> Method:
        """What is run."""
        return self.experiment.build_method()

    def finished(self) -> bool:
        """Whether it has been run; a run in its place that is another one is a `RunError`."""
        if not (self.directory / MANIFEST).exists():
            return False
        manifest = read_manifest(self.directory)
        self._check(manifest)
        return manifest.status == "finished"

    def steps(self, task: Task, workers: int | None) -> Generator[Run]:
        """Run it, or go on with it; yields the run as it starts and after every round."""
        begun = (self.directory / MANIFEST).exists()
        if not begun:
            for torn in self.directory.glob(".*.partial"):  # a kill before the manifest was whole
                torn.unlink()
        plan = Plan(
            method=self.method,
            task=task,
            seed=self.seed,
            evaluate_every=self.row.evaluate_every,
            args=self.experiment.typed_args(),
            task_args=self.experiment.typed_task_args(),
        )
        return follow(plan, workers=workers, out=self.directory, resume=begun)

    def _check(self, manifest: Manifest) -> None:
        """Raise `RunError` unless this is the run that the study describes now."""
        differences = [*self._differences(manifest)]
        if differences:
            raise RunError(
                f"The run in {self.directory} is not the one that {self.row.study} describes now: "
                f"{'; '.join(differences)}. Remove {self.directory} to run it anew."
            )

    def _differences(self, manifest: Manifest) -> Iterator[str]:
        if manifest.method.repr != repr(size_noise(self.method, manifest.task.clients)):
            changed = _changed(manifest.method.args or {}, self.experiment.typed_args())
            yield changed or f"its method was {manifest.method.repr}"
        if manifest.task.name != self.experiment.task:
            yield f"its task was {manifest.task.name}"
        elif changed := _changed(manifest.task.args or {}, self.experiment.typed_task_args()):
            yield changed
        if manifest.seed != self.seed:
            yield f"its seed was {manifest.seed}"
        if manifest.evaluate_every != self.row.evaluate_every:
            yield f"evaluate-every was {manifest.evaluate_every}, is {self.row.evaluate_every}"


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Which part of a study to run, and where.

    Attributes:
        rows: names of rows; none: all of them.
        seeds: instead of those that the study says.
        fast: the short version.
        out: below which folder the runs lie.
    """

    rows: Sequence[str] = ()
    seeds: tuple[int, ...] = ()
    fast: bool = False
    out: Path = OUT


def jobs_of(study: Study, choice: Choice) -> list[list[Job]]:
    """The jobs of each chosen row, one per seed."""
    known = {row.name: row for row in study.rows}
    chosen = [choose(known, name, f"a row of {study.name}") for name in choice.rows] or study.rows
    _check_masks(study, [row.name for row in chosen])
    return [[*_jobs(row, choice)] for row in chosen]


def _check_masks(study: Study, chosen: Sequence[str]) -> None:
    """Raise `UserError` if a histogram would lack the row whose coordinates it counts."""
    for panel in study.plot.panels if isinstance(study.plot, Histogram) else ():
        drawn = [name for name in panel.rows if name in chosen]
        if drawn and panel.mask not in chosen:
            raise UserError(f"Expected row {panel.mask!r} too: its coordinates are counted for {drawn[0]!r}.")


def _jobs(row: Row, choice: Choice) -> Iterator[Job]:
    experiment = row.fast if choice.fast else row.experiment
    place = choice.out / row.study / (FAST if choice.fast else "") / row.folder
    for seed in choice.seeds or experiment.seeds:
        yield Job(row, experiment, seed, place / f"seed-{seed}")


def _changed(there: Mapping[str, object], here: Mapping[str, object]) -> str:
    """The arguments that differ, in words; lists and tuples are the same, as in a file."""
    here = json.loads(json.dumps(here))
    names = [name for name in dict.fromkeys([*there, *here]) if there.get(name) != here.get(name)]
    return ", ".join(f"{name} was {there.get(name, 'left out')}, is {here.get(name, 'left out')}" for name in names)
