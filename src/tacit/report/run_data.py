"""A run for display: read from its directory, with its guarantee and the method that its manifest describes.

A directory may come from somebody else. The readers of `tacit.runs` apply their limits to it; the method is parsed,
never executed.
"""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Self, TypeVar

from tacit.analyses.results import Result
from tacit.core import Method, Report
from tacit.core.prices import Unit
from tacit.errors import RunError, TacitError
from tacit.privacy.guarantee import Guarantee, LeakageGuarantee
from tacit.privacy.leakage import LeakageAccounting
from tacit.runs import guarantee_file
from tacit.runs.analyses import read_result, result_of_run
from tacit.runs.bandwidth import Bandwidth
from tacit.runs.directory import GUARANTEE, MANIFEST, read_manifest, read_rounds
from tacit.runs.manifest import Manifest
from tacit.runs.run import Run, final_metrics, guarantees_of

ERRORS = ("loss", "rmse")  # metrics for which less is better
MAX_FOLDERS = 10_000  # that are searched for runs
_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True, eq=False)
class RunData:
    """A run, finished or not, read from its files.

    Attributes:
        path: its directory.
        manifest: what was run.
        reports: its rounds.
        method: the method, with its noise; None if its pieces are not Tacit's own, or of another version.
        stored: the guarantees that the run wrote when it finished, by unit; empty: none.
        memory: the run itself, if it was not read from files.
    """

    path: Path
    manifest: Manifest
    reports: tuple[Report, ...]
    method: Method | None
    stored: Mapping[Unit, Guarantee | LeakageGuarantee] = field(default_factory=dict)
    memory: Run | None = None

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read the run in a directory; raises `RunError` if there is none, or it cannot be read."""
        manifest = read_manifest(path)
        stored, method = guarantee_file.read(path / GUARANTEE), manifest.method.read()
        return cls(path=path, manifest=manifest, reports=read_rounds(path), method=method, stored=stored)

    @classmethod
    def of(cls, run: Run) -> Self:
        """A run in memory."""
        manifest = replace(run.spec.manifest, status="finished" if run.ended else "interrupted")
        ledger = run.charged_ledger
        manifest = manifest if ledger is None else replace(manifest, ledger=ledger.head)
        path = run.directory or Path("run")
        return cls(
            path=path, manifest=manifest, reports=run.history, method=run.spec.method, stored=run.guarantees, memory=run
        )

    @property
    def name(self) -> str:
        return self.path.name or str(self.path)

    @property
    def label(self) -> str:
        """Method and task."""
        return f"{self.manifest.method.name} on {self.manifest.task.name}"

    @property
    def rounds_planned(self) -> int | None:
        return None if self.method is None else self.method.rounds

    @cached_property
    def metrics(self) -> dict[str, float]:
        """The held-out metrics of the model: the last ones or, with early stopping, the best."""
        if self.method is not None:
            return final_metrics(self.method, self.reports)
        evaluated = [report.metrics for report in self.reports if report.metrics]
        return dict(evaluated[-1]) if evaluated else {}

    @cached_property
    def bandwidth(self) -> Bandwidth:
        return Bandwidth.of(self.reports)

    @cached_property
    def result(self) -> Result | None:
        """The result of a finished analysis; None: it is no analysis, or not finished."""
        if self.memory is None:
            return read_result(self.path, self.method)
        return result_of_run(self.memory) if self.is_analysis and self.memory.ended else None

    @property
    def epsilon(self) -> float | None:
        """The charged ε of all rounds for its first unit; None if the run has no (ε, δ) accounting."""
        return charged_epsilon(self.reports[-1]) if self.reports else None

    @property
    def unit(self) -> Unit:
        """The unit of ε."""
        return charged_unit(self.reports[-1]) if self.reports else Unit.CLIENT

    @property
    def budget(self) -> float | None:
        return None if self.method is None or self.method.budget is None else self.method.budget.epsilon

    @property
    def seconds(self) -> float:
        return sum(report.seconds for report in self.reports)

    @property
    def guarantee(self) -> Guarantee | LeakageGuarantee:
        """The first of its guarantees: of clients, if the method protects them."""
        return next(iter(self.guarantees.values()))

    @cached_property
    def guarantees(self) -> Mapping[Unit, Guarantee | LeakageGuarantee]:
        """The guarantees of the finished run; before its end, those of its rounds so far."""
        if self.stored and next(iter(self.stored.values())).rounds >= len(self.reports):
            return self.stored
        if self.method is None:
            unknown = "the method has pieces that are not known here; see the run's own output"
            return {Unit.CLIENT: Guarantee.none(unknown)}
        try:
            return {unit: self._so_far(unit, each) for unit, each in self._of_rounds(self.method).items()}
        except TacitError as error:
            return {Unit.CLIENT: Guarantee.none(f"it could not be computed from the files of the run. {error}")}

    def _of_rounds(self, method: Method) -> Mapping[Unit, Guarantee | LeakageGuarantee]:
        """The guarantees of the recorded rounds."""
        task, charges = self.manifest.task, {}
        if method.terms.accounted:
            from tacit.privacy.charging import begin_charges

            charges = begin_charges(method, task.clients, task.units, self.reports)
        return guarantees_of(
            method,
            task.unit,
            self.reports,
            charges,
            LeakageAccounting.of(method, task.parameters, task.clients, self.reports),
            not_covered=task.not_covered,
            seeded=self.manifest.randomness == "seeded",
            sites=() if self.manifest.federation is None else self.manifest.federation.sites,
        )

    def _so_far(self, unit: Unit, guarantee: Guarantee | LeakageGuarantee) -> Guarantee | LeakageGuarantee:
        """A guarantee with at least the charged ε, which includes attempts repeated after a crash."""
        charged = self.reports[-1].epsilons.get(unit, 0.0) if self.reports else 0.0
        if isinstance(guarantee, Guarantee) and guarantee.epsilon is not None and charged > guarantee.epsilon:
            guarantee = replace(guarantee, epsilon=charged)
        if self.manifest.status == "finished":
            return guarantee
        return guarantee.with_limits(
            f"The run is {self.manifest.status}: rounds after {len(self.reports)} are not included."
        )

    @property
    def shows_clients(self) -> bool:
        """Whether participation may be shown: not if the ε of clients assumes that it is secret."""
        guarantee = self.guarantees.get(Unit.CLIENT)
        return not (isinstance(guarantee, Guarantee) and guarantee.amplified)

    @property
    def word(self) -> str:
        """What a client of this run is called."""
        return "client" if self.manifest.federation is None else "site"

    def name_of(self, client: int) -> str:
        """A client by its name, if it is a site, or by its number."""
        federation = self.manifest.federation
        known = federation is not None and 0 <= client < len(federation.sites)
        return federation.sites[client] if federation is not None and known else f"{self.word} {client}"

    @property
    def cohort(self) -> int | None:
        """The number of clients in a round, as expected; None: it does not follow from the manifest."""
        population = self.manifest.task.clients
        if self.method is None:
            return None
        try:
            return round(self.method.sampler.sampling(population, 0).mean_cohort(population))
        except TacitError:  # a cohort larger than the population
            return None

    @property
    def is_analysis(self) -> bool:
        """Whether it answers a question about tables instead of training a model."""
        return self.method is not None and self.method.trainer.sends == "terms"

    @property
    def command(self) -> str | None:
        """The command that repeats the run; None if it was started from Python."""
        manifest = self.manifest
        if manifest.federation is not None:
            return "tacit federation run plan.toml"
        if manifest.method.args is None or manifest.task.args is None:
            return None
        words = ["tacit", "run", manifest.method.name, "--task", manifest.task.name]
        for flag, args in (("--set", manifest.method.args), ("--task-set", manifest.task.args)):
            if args:
                words += [flag, *(f"{key}={_as_option(value)}" for key, value in args.items())]
        words += ["--seed", str(manifest.seed), "--randomness", manifest.randomness]
        if manifest.evaluate_every != 1:
            words += ["--evaluate-every", str(manifest.evaluate_every)]
        if manifest.waves != "fitting":
            words += ["--waves", manifest.waves]
        return shlex.join(words + (["--device", manifest.device] if manifest.device != "cpu" else []))


def find_runs(folder: Path) -> list[Path]:
    """The directories of runs in a folder and below it, in order; the folder itself, if it is one."""
    runs: list[Path] = []
    waiting, visited = [folder], 0
    while waiting and visited < MAX_FOLDERS:
        each, visited = waiting.pop(), visited + 1
        if (each / MANIFEST).is_file():
            runs.append(each)
            continue
        try:
            waiting += [below for below in each.iterdir() if below.is_dir() and not below.is_symlink()]
        except OSError:
            continue
    return sorted(runs)


def read_runs(paths: Sequence[Path]) -> list[RunData]:
    """The runs in these directories, or in folders of them; raises `RunError` where there is none."""
    by_path: dict[Path, RunData] = {}
    for path in paths:
        runs = find_runs(path) if path.is_dir() else []
        if not runs:
            raise RunError(f"Expected the directory of a run, or a folder of some, got {path}, which has none.")
        by_path |= {each: RunData.read(each) for each in runs if each not in by_path}
    return list(by_path.values())


def thin(values: Sequence[_T], most: int) -> list[_T]:
    """At most `most` of the values, evenly spaced, with the first and the last.

    Example:
        >>> thin(range(10), 4)
        [0, 3, 6, 9]
    """
    if len(values) <= most:
        return list(values)
    return [values[round(i * (len(values) - 1) / (most - 1))] for i in range(most)]


def metric_names(runs: Iterable[Mapping[str, float]]) -> list[str]:
    """The names of all metrics, in the order in which they appear."""
    return list(dict.fromkeys(name for metrics in runs for name in metrics))


def charged_epsilon(report: Report) -> float | None:
    """ε after a round for the first accounted unit (clients, if they are accounted); None: none is."""
    return next(iter(report.epsilons.values()), None)


def charged_unit(report: Report) -> Unit:
    """The unit of `charged_epsilon`."""
    return next(iter(report.epsilons), Unit.CLIENT)


def _as_option(value: object) -> str:
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
