"""A study of attacks: a file per row and seed with what the adversary found, made once; all of them side by side."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from tacit.attacks.dlg import UNRECOGNISABLE, Likeness
from tacit.attacks.scenario import Siege, besieged, reconstructions
from tacit.core import Task
from tacit.core.files import storing, write
from tacit.errors import RunError
from tacit.papers.jobs import Job
from tacit.papers.studies import Study
from tacit.report.cards import card
from tacit.report.comparison import Comparison, Row, Trial
from tacit.report.plots import Gallery, Strip
from tacit.runs.manifest import versions

FOUND = "found.json"
FEW = 3  # clients in the short version; fewer would have no secure sum
COLUMNS = ("images", "recovered", "unrecognisable", "ssim", "psnr", "mse")
NOTHING = "no single message is seen: nothing to attack"


@dataclass(frozen=True, eq=False)
class Assault:
    """One row with one seed under attack."""

    job: Job
    siege: Siege

    @property
    def file(self) -> Path:
        """Where it lies what was found."""
        return self.job.directory / FOUND

    def finished(self) -> bool:
        """Whether it was made; one in its place that is of something else is a `RunError`."""
        if not self.file.exists():
            return False
        if self._read()["of"] != self._of():
            raise RunError(
                f"{self.file} is not what {self.job.row.study} describes now. "
                f"Remove {self.job.directory} to attack anew."
            )
        return True

    def make(self, task: Task, watch: Callable[[Iterator[Likeness], int], Iterable[Likeness]]) -> None:
        """Attack, and keep what was found; `watch` passes clients on as they come, of so many."""
        victims, seen = besieged(self.job.method, task, self.siege, self.job.seed)
        attacked = sum(len(observation.single()) for observation in seen)
        found = [*watch(reconstructions(victims, seen, self.siege, self.job.seed), attacked)]
        strips = [asdict(strip) for strip in _strips(self.job.row.name, found)]
        content = {"of": self._of(), "values": _values(found), "strips": strips}
        with storing(self.file):
            self.file.parent.mkdir(parents=True, exist_ok=True)
        write(self.file, (json.dumps(content, indent=1, allow_nan=False) + "\n").encode())

    def trial(self) -> Trial:
        """The figures."""
        return Trial(seed=self.job.seed, values=self._read()["values"])

    def strips(self) -> list[Strip]:
        """The originals, and what was made of them."""
        return [Strip(**{**strip, "shape": tuple(strip["shape"])}) for strip in self._read()["strips"]]

    def _of(self) -> dict[str, Any]:
        experiment = self.job.experiment
        told = {"task": experiment.task, "task_args": experiment.typed_task_args(), "seed": self.job.seed}
        whole = {"method": repr(self.job.method), **told, "siege": asdict(self.siege)}
        return dict(json.loads(json.dumps(whole)))

    def _read(self) -> dict[str, Any]:
        return dict(json.loads(self.file.read_bytes()))


def assaults_of(jobs: Sequence[Sequence[Job]], *, fast: bool) -> list[list[Assault]]:
    """What there is to attack, row by row; in the short version few clients each."""
    return [[*_assaults(group, fast)] for group in jobs]


def _assaults(jobs: Sequence[Job], fast: bool) -> Iterator[Assault]:
    for job in jobs:
        assert job.row.siege is not None  # or this were no study of attacks
        few = replace(job.row.siege, images=FEW * job.row.siege.attack.samples)
        yield Assault(job, few if fast else job.row.siege)


def compare(study: Study, groups: Sequence[Sequence[Assault]], *, fast: bool) -> Comparison:
    """What came of all of them, with the images of the first seed."""
    firsts = [group[0].strips() for group in groups]
    originals = next((strips[0] for strips in firsts if len(strips) > 1), None)
    shown = [strips[-1] for strips in firsts]
    return Comparison(
        name=study.name,
        title=study.title,
        fast=fast,
        versions=versions(),
        rows=tuple(_row(group) for group in groups),
        plot=Gallery(strips=tuple([originals, *shown] if originals else shown)),
        columns=COLUMNS,
        stand_in=study.stand_in,
    )


def _row(group: Sequence[Assault]) -> Row:
    job, experiment = group[0].job, group[0].job.experiment
    return Row(
        name=job.row.name,
        method=experiment.method,
        args=experiment.typed_args(),
        task=experiment.task,
        task_args=experiment.typed_task_args(),
        trials=tuple(assault.trial() for assault in group),
        guarantee=card(experiment.method, experiment.args).guarantee,
    )


def _values(found: Sequence[Likeness]) -> dict[str, float | None]:
    """Means over all images; nothing if none could be attacked."""
    if not found:
        return {"images": 0, "recovered": 0, "unrecognisable": 0, "ssim": None, "psnr": None, "mse": None}
    ssim, psnr, mse = ([float(v) for like in found for v in getattr(like, name)] for name in ("ssim", "psnr", "mse"))
    return {
        "images": len(ssim),
        "recovered": sum(like.recovered for like in found),
        "unrecognisable": sum(value < UNRECOGNISABLE for value in ssim),
        "ssim": round(fmean(ssim), 4),
        "psnr": round(fmean(min(value, 100.0) for value in psnr), 2),
        "mse": float(f"{fmean(mse):.3g}"),
    }


def _strips(name: str, found: Sequence[Likeness]) -> list[Strip]:
    if not found:
        return [Strip(name=name, words=NOTHING)]
    both = (("original", "originals"), (name, "found"))
    return [Strip.of(title, torch.cat([getattr(like, which) for like in found]).numpy()) for title, which in both]
