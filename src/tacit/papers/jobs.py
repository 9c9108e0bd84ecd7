"""The jobs of a study: one directory per row and seed, run or attacked once, resumed after an interruption.

An existing run is used only if it matches the study; any other is rejected, not overwritten.
"""

import json
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from tacit.attacks.dlg import UNRECOGNISABLE, Reconstruction
from tacit.attacks.scenario import AttackConfig, observe_victims, reconstructions
from tacit.core import Method, State, files
from tacit.core.schema import choose
from tacit.core.serialization import Source, read_json
from tacit.core.worker_choice import Workers
from tacit.data import Task
from tacit.errors import RunError, UserError
from tacit.papers.comparison import RowTrial, Values
from tacit.papers.figure_specs import HistogramPlot
from tacit.papers.study import FAST, Study, StudyRow
from tacit.report.pictures import Strip
from tacit.runs import checkpoint
from tacit.runs.directory import CHECKPOINT, MANIFEST, read_manifest
from tacit.runs.experiment import Experiment
from tacit.runs.manifest import Manifest
from tacit.runs.run import Run, RunSpec, calibrate_method
from tacit.runs.training import follow

OUT = Path("runs") / "reproduce"
RECONSTRUCTION = "reconstruction.json"
_FEW = 3  # clients in the short version of an attack; secure aggregation needs as many
_NOTHING = "no message of a single client is observed: nothing to attack"


@dataclass(frozen=True, eq=False)
class Job:
    """One row with one seed, and the directory of its run."""

    row: StudyRow
    experiment: Experiment
    seed: int
    directory: Path

    @property
    def label(self) -> str:
        return f"{self.row.name}, seed {self.seed}"

    @cached_property
    def method(self) -> Method:
        return self.experiment.build_method()

    def is_finished(self) -> bool:
        """Whether it has run; raises `RunError` for another run in its directory."""
        if not (self.directory / MANIFEST).exists():
            return False
        manifest = read_manifest(self.directory)
        if differences := "; ".join(self._differences(manifest)):
            raise RunError(
                f"The run in {self.directory} is not the one that {self.row.study} describes now: {differences}. "
                f"Remove {self.directory} to run it again."
            )
        return manifest.status == "finished"

    def final_state(self) -> State:
        """The server's state after its last round."""
        state = checkpoint.read(self.directory / CHECKPOINT)
        if state is None:
            raise RunError(f"{self.directory} has no {CHECKPOINT}. Remove it to run it again.")
        return state

    def steps(self, task: Task, workers: Workers) -> Generator[Run]:
        """Run or resume it; yields the run as it starts and after every round."""
        begun = (self.directory / MANIFEST).exists()
        if not begun:
            for torn in self.directory.glob(".*.partial"):  # killed before the manifest was complete
                torn.unlink()
        spec = RunSpec(
            method=self.method,
            task=task,
            seed=self.seed,
            evaluate_every=self.row.evaluate_every,
            randomness="seeded",
            args=self.experiment.convert_args(),
            task_args=self.experiment.convert_task_args(),
        )
        return follow(spec, workers=workers, out=self.directory, resume=begun)

    def _differences(self, manifest: Manifest) -> Iterator[str]:
        if (
            manifest.method.canonical
            != calibrate_method(self.method, manifest.task.clients, manifest.task.units).canonical
        ):
            changed = _changes(manifest.method.args or {}, self.experiment.convert_args())
            yield changed or f"its method was {manifest.method.canonical}"
        if manifest.task.name != self.experiment.task:
            yield f"its task was {manifest.task.name}"
        elif changed := _changes(manifest.task.args or {}, self.experiment.convert_task_args()):
            yield changed
        if manifest.seed != self.seed:
            yield f"its seed was {manifest.seed}"
        if manifest.evaluate_every != self.row.evaluate_every:
            yield f"evaluate-every was {manifest.evaluate_every}, is {self.row.evaluate_every}"


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Which part of a study to run, and where.

    Attributes:
        rows: names of rows; empty: all.
        seeds: in place of the study's own; empty: those.
        fast: the short version.
        out: the folder of all runs.
        trust: run Python files that the study names.
    """

    rows: Sequence[str] = ()
    seeds: tuple[int, ...] = ()
    fast: bool = False
    out: Path = OUT
    trust: bool = False


def jobs_of(study: Study, choice: Choice) -> list[list[Job]]:
    """The jobs of each chosen row, one per seed."""
    by_name = {row.name: row for row in study.rows}
    chosen = [choose(by_name, name, f"a row of {study.name}") for name in choice.rows] or study.rows
    _check_masks(study, [row.name for row in chosen])
    return [[*_jobs(row, choice)] for row in chosen]


def _check_masks(study: Study, chosen: Sequence[str]) -> None:
    """Raise `UserError` if a histogram would lack the row whose mask it needs."""
    for panel in study.plot.panels if isinstance(study.plot, HistogramPlot) else ():
        drawn = [name for name in panel.rows if name in chosen]
        if drawn and panel.mask not in chosen:
            raise UserError(f"Expected row {panel.mask!r} too: the histogram of {drawn[0]!r} uses its mask.")


def _jobs(row: StudyRow, choice: Choice) -> Iterator[Job]:
    experiment = (row.fast if choice.fast else row.experiment).with_trust(choice.trust)
    place = choice.out / row.study / (FAST if choice.fast else "") / row.folder
    for seed in choice.seeds or experiment.seeds:
        yield Job(row, experiment, seed, place / f"seed-{seed}")


def _changes(there: Mapping[str, object], here: Mapping[str, object]) -> str:
    """The arguments that differ, in words; a list equals a tuple, as in a file."""
    here = json.loads(json.dumps(here))
    names = [name for name in dict.fromkeys([*there, *here]) if there.get(name) != here.get(name)]
    return ", ".join(f"{name} was {there.get(name, 'not set')}, is {here.get(name, 'not set')}" for name in names)


@dataclass(frozen=True, kw_only=True, eq=False)
class _SavedAttack:
    """The file of a finished attack: its settings, means over all images, and the images."""

    settings: Mapping[str, Any]
    values: Values
    strips: tuple[Strip, ...]


@dataclass(frozen=True, eq=False)
class AttackJob:
    """One row with one seed that is attacked instead of trained; the result is one file."""

    job: Job
    config: AttackConfig

    @property
    def file(self) -> Path:
        return self.job.directory / RECONSTRUCTION

    def is_finished(self) -> bool:
        """Whether the attack ran; raises `RunError` for a result of other settings."""
        if not self.file.exists():
            return False
        if self._read().settings != self._settings():
            raise self._source.problem(f"{self.file} is not the attack that {self.job.row.study} describes now.")
        return True

    def run(self, task: Task, watch: Callable[[Iterator[Reconstruction], int], Iterable[Reconstruction]]) -> None:
        """Attack, and save the result; `watch` passes on the clients' results, and receives their number."""
        victims, observations = observe_victims(self.job.method, task, self.config, self.job.seed)
        attacked = sum(len(observation.per_client()) for observation in observations)
        results = [*watch(reconstructions(victims, observations, self.config, self.job.seed), attacked)]
        strips = _strips(self.job.row.name, results)
        content = asdict(_SavedAttack(settings=self._settings(), values=_values(results), strips=strips))
        files.write(self.file, (json.dumps(content, indent=1, allow_nan=False) + "\n").encode(), parents=True)

    def trial(self) -> RowTrial:
        return RowTrial(seed=self.job.seed, values=self._read().values)

    def strips(self) -> tuple[Strip, ...]:
        """The originals and their reconstructions."""
        return self._read().strips

    def _settings(self) -> dict[str, Any]:
        experiment = self.job.experiment
        task = {"task": experiment.task, "task_args": experiment.convert_task_args(), "seed": self.job.seed}
        settings = {"method": self.job.method.to_plain(), **task, "attack": asdict(self.config)}
        return dict(json.loads(json.dumps(settings)))

    def _read(self) -> _SavedAttack:
        return read_json(files.read(self.file, error=RunError), _SavedAttack, self._source)

    @property
    def _source(self) -> Source:
        advice = f"Remove {self.job.directory} to attack again."
        return Source(label=str(self.file), error=RunError, advice=advice, closed=False)


def attack_jobs_of(jobs: Sequence[Sequence[Job]], *, fast: bool) -> list[list[AttackJob]]:
    """The attack of each job, row by row; the short version attacks few clients."""
    return [[_attack_job(job, fast) for job in group] for group in jobs]


def _attack_job(job: Job, fast: bool) -> AttackJob:
    assert job.row.attack is not None, "only rows of a study of attacks"
    few = replace(job.row.attack, images=_FEW * job.row.attack.dlg.samples)
    return AttackJob(job, few if fast else job.row.attack)


def _values(reconstructions: Sequence[Reconstruction]) -> dict[str, float | None]:
    """Means over all images; None if no image could be attacked."""
    ssim = [float(value) for each in reconstructions for value in each.ssim]
    psnr = [
        min(float(value), 100.0) for each in reconstructions for value in each.psnr
    ]  # of an exact copy, it is infinite
    mse = [float(value) for each in reconstructions for value in each.mse]
    return {
        "images": len(ssim),
        "recovered": sum(each.recovered for each in reconstructions),
        "unrecognisable": sum(value < UNRECOGNISABLE for value in ssim),
        "ssim": round(fmean(ssim), 4) if reconstructions else None,
        "psnr": round(fmean(psnr), 2) if reconstructions else None,
        "mse": float(f"{fmean(mse):.3g}") if reconstructions else None,
    }


def _strips(name: str, reconstructions: Sequence[Reconstruction]) -> tuple[Strip, ...]:
    if not reconstructions:
        return (Strip(name=name, note=_NOTHING),)
    originals, reconstructed = (
        [each.originals for each in reconstructions],
        [each.reconstructed for each in reconstructions],
    )
    return Strip.of("original", torch.cat(originals).numpy()), Strip.of(name, torch.cat(reconstructed).numpy())
