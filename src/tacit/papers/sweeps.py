"""Sweeps: one experiment with many values of its arguments, each with all seeds, and a choice among them, by Optuna.

An experiment file with a further table::

    method = "fl-std"
    seeds = [0, 1, 2]

    [args]
    rounds = 50

    [sweep]
    validation = 0.5          # fraction of the held-out data by which the best is chosen
    choose = "accuracy"       # by which metric; without it, the first that is evaluated
    trials = 20               # that many combinations; without it, all of them
    sampler = "random"        # of these combinations; or "tpe", which learns from earlier ones
    pruner = "median"         # stop a combination that is worse than half of the others; without it, none is
    seed = 0                  # of the sampler

    [sweep.args]              # values to try: of the method's arguments
    "descent.lr" = [0.05, 0.1, 0.2]
    cohort = { low = 5, high = 50 }                 # only with trials: between these, evenly
    ratio = { low = 0.001, high = 0.1, log = true } # or evenly in their logarithms

    [sweep.task-args]         # and of the task's
    partition = ["iid", "shards"]

The held-out data are divided: runs are evaluated on the validation part, by which the best combination is chosen, and
only that one is evaluated on the other part. Runs are those of a study (`tacit.papers.jobs`), so that finished ones are
not repeated and interrupted ones resume; their noise is seeded, so that a sweep can be repeated. All trials are in an
Optuna study in the folder of the runs (`optuna.db`), for its plots and its dashboard.
"""

import json
import math
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from hashlib import sha256
from itertools import product
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec
import optuna
import torch
from msgspec import UNSET, Struct, UnsetType
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.pruners import BasePruner, MedianPruner, NopPruner
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.trial import Trial, TrialState

from tacit.core import files, serialization
from tacit.core.serialization import Source, load_toml
from tacit.core.worker_choice import Workers
from tacit.data import Task
from tacit.engine.layout import make_model
from tacit.errors import UserError, expect
from tacit.papers.comparison import LOWER_IS_BETTER
from tacit.papers.jobs import Job
from tacit.papers.study import StudyRow
from tacit.papers.validation import divide, metrics_of, test_metrics
from tacit.report.intervals import Interval
from tacit.report.run_data import RunData
from tacit.report.run_groups import RunGroup
from tacit.runs.experiment import Experiment, parse
from tacit.runs.run import Run

NOT_ACCOUNTED = (
    "A combination that is chosen by results on the clients' data reveals something about them: that is not accounted "
    "for in any ε above. Choose on public data, or count every run of the sweep."
)
MAX_RUNS = 10_000
STORE = "optuna.db"
Params: TypeAlias = Mapping[str, object]
Show: TypeAlias = Callable[[Generator[Run], str], Generator[Run]]
SAMPLERS: Mapping[str, Callable[..., BaseSampler]] = {"random": RandomSampler, "tpe": TPESampler}
PRUNERS: Mapping[str, Callable[[], BasePruner]] = {"none": NopPruner, "median": MedianPruner}
optuna.logging.set_verbosity(optuna.logging.WARNING)


class Range(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Numbers between two ends, evenly or evenly in their logarithms; whole numbers if both ends are."""

    low: float | int
    high: float | int
    log: bool = False

    @property
    def distribution(self) -> BaseDistribution:
        if type(self.low) is type(self.high) is int:
            return IntDistribution(int(self.low), int(self.high), log=self.log)
        return FloatDistribution(float(self.low), float(self.high), log=self.log)


class SweepTable(Struct, frozen=True, kw_only=True, rename="kebab"):
    """The table `[sweep]` of an experiment file."""

    args: Mapping[str, object] = msgspec.field(default_factory=dict)
    task_args: Mapping[str, object] = msgspec.field(default_factory=dict)
    validation: float = 0.5
    choose: str = ""
    trials: int | UnsetType = UNSET
    sampler: Literal["random", "tpe"] = "random"
    pruner: Literal["none", "median"] = "none"
    seed: int = 0
    evaluate_every: int = 1


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """Combinations of arguments to try.

    Attributes:
        name: the sweep's name, from its file.
        experiment: what is run, before any argument is changed.
        table: which values, how many of them, and how the best is chosen.
        out: the folder of its runs.
    """

    name: str
    experiment: Experiment
    table: SweepTable
    out: Path

    @cached_property
    def space(self) -> dict[str, BaseDistribution]:
        """The search space, by argument; those of the task begin with `task.`."""
        task = {f"task.{key}": value for key, value in self.table.task_args.items()}
        values = {**_flat(self.table.args), **task}
        if not values:
            raise UserError(f"Expected values to try in {self.name}: give them in [sweep.args] or [sweep.task-args].")
        return {key: _distribution(key, value, self.name) for key, value in values.items()}

    @cached_property
    def planned(self) -> list[Params]:
        """The combinations known before any has run, each once; none if the sampler learns from results."""
        if self.table.trials is UNSET:
            lists = [each.choices for each in self.space.values() if isinstance(each, CategoricalDistribution)]
            if len(lists) < len(self.space):
                raise UserError(f"Expected lists of values in {self.name}: a range needs trials.")
            expect(
                math.prod(map(len, lists)) * len(self.experiment.seeds) <= MAX_RUNS,
                f"at most {MAX_RUNS} runs in {self.name}",
                "Give trials, or fewer values.",
            )
            combinations: Sequence[Params] = [dict(zip(self.space, chosen, strict=True)) for chosen in product(*lists)]
        else:
            combinations = [] if self.table.sampler == "tpe" else self._draw(self.table.trials)
        return [*{SweepPoint(self, params).label: params for params in combinations}.values()]

    @property
    def points(self) -> list["SweepPoint"]:
        """The combinations known before any has run; for a sampler that learns, one example."""
        return [SweepPoint(self, params) for params in self.planned or self._draw(1)]

    @property
    def jobs(self) -> list[Job]:
        return [job for point in self.points for job in point.jobs]

    @property
    def trials(self) -> int:
        """How many combinations are tried."""
        return len(self.planned) if self.planned or self.table.trials is UNSET else self.table.trials

    @cached_property
    def metric(self) -> str:
        """The metric by which combinations are compared."""
        task = self.points[0].task_for(self.table.validation)[0]
        metrics = metrics_of([make_model(task, self.experiment.seeds[0]).eval()], task)
        metric = self.table.choose or next(iter(metrics), "")
        if metric not in metrics:
            raise UserError(f"Expected choose of {self.name} in {', '.join(metrics) or 'none'}, got {metric!r}.")
        return metric

    @property
    def sign(self) -> int:
        """1 if less is better, -1 if more is."""
        return 1 if self.metric in LOWER_IS_BETTER else -1

    def open(self) -> optuna.Study:
        """The Optuna study, in the folder of the runs; another table of values has another study."""
        files.make_private(self.out)
        values = {key: optuna.distributions.distribution_to_json(each) for key, each in self.space.items()}
        identity = json.dumps([values, self.table.seed, self.table.sampler, self.table.pruner, self.metric])
        return optuna.create_study(
            storage=f"sqlite:///{self.out / STORE}",
            study_name=f"{self.name} {sha256(identity.encode()).hexdigest()[:16]}",
            direction="minimize" if self.sign == 1 else "maximize",
            sampler=SAMPLERS[self.table.sampler](seed=self.table.seed),
            pruner=PRUNERS[self.table.pruner](),
            load_if_exists=True,
        )

    def prepare(self) -> int:
        """Enqueue planned and interrupted combinations; returns how many have yet to be tried."""
        study = self.open()
        for params in self.planned:
            study.enqueue_trial(dict(params), skip_if_exists=True)
        for trial in study.get_trials(states=(TrialState.RUNNING,)):
            study.tell(trial.number, state=TrialState.FAIL)
            study.enqueue_trial(trial.params)
        tried = {point.label: point for point in self._points_in(TrialState.COMPLETE)}
        removed = [point for point in tried.values() if not all(job.is_finished() for job in point.jobs)]
        for point in removed:
            study.enqueue_trial(dict(point.params))
        pruned = {point.label for point in self._points_in(TrialState.PRUNED)}
        return self.trials - len(tried.keys() | pruned) + len(removed)

    def play(self, workers: Workers, show: Show) -> None:
        """Try the next combination with every seed; `show` receives the steps of a run and its label."""
        study = self.open()
        if self.table.sampler == "tpe":  # its draws depend on earlier trials, not on interruptions
            study.sampler = TPESampler(seed=self.table.seed + len(study.trials))
        trial = study.ask(self.space)
        point = SweepPoint(self, trial.params)
        for job in point.jobs:
            if job.is_finished():
                continue
            steps = job.steps(point.task_for(self.table.validation)[0], workers)
            for step in show(steps, job.label):
                if job is point.jobs[0] and self._is_pruned(trial, step):
                    steps.close()
                    study.tell(trial, state=TrialState.PRUNED)
                    return
        study.tell(trial, self.mean_of(point.group()))

    def mean_of(self, group: RunGroup) -> float:
        """The mean of the metric over runs; the worst if they have none."""
        measured = group.metrics.get(self.metric)
        return math.inf * self.sign if measured is None else measured.mean

    def completed_points(self) -> list["SweepPoint"]:
        """The completed combinations, in order."""
        finished = {point.label: point for point in self._points_in(TrialState.COMPLETE)}
        planned = [SweepPoint(self, params).label for params in self.planned]
        return [finished[label] for label in planned or finished if label in finished]

    def _points_in(self, state: TrialState) -> list["SweepPoint"]:
        return [SweepPoint(self, trial.params) for trial in self.open().get_trials(states=(state,))]

    def _is_pruned(self, trial: Trial, run: Run) -> bool:
        """Whether the sampler's pruner stops the trial, after what was evaluated last."""
        if not run.history or self.metric not in run.history[-1].metrics:
            return False
        trial.report(run.history[-1].metrics[self.metric], run.state.round)
        return trial.should_prune()

    def _draw(self, count: int) -> list[Params]:
        """Random combinations, which follow from the seed."""
        study = optuna.create_study(sampler=RandomSampler(seed=self.table.seed))
        return [study.ask(self.space).params for _ in range(count)]


@dataclass(frozen=True, eq=False)
class SweepPoint:
    """One combination of arguments.

    Attributes:
        sweep: the sweep that it is part of.
        params: the arguments that it sets, as Optuna chose them.
    """

    sweep: Sweep
    params: Params

    @cached_property
    def values(self) -> Params:
        """The arguments; those drawn from a range have four digits."""
        continuous = {key for key, each in self.sweep.space.items() if isinstance(each, FloatDistribution)}
        return {key: float(f"{value:.4g}") if key in continuous else value for key, value in self.params.items()}

    @property
    def label(self) -> str:
        return " ".join(f"{key}={value}" for key, value in self.values.items())

    @cached_property
    def experiment(self) -> Experiment:
        base = self.sweep.experiment
        own = {key: value for key, value in self.values.items() if not key.startswith("task.")}
        task = {key.removeprefix("task."): value for key, value in self.values.items() if key.startswith("task.")}
        return replace(base, args={**base.args, **own}, task_args={**base.task_args, **task})

    @cached_property
    def jobs(self) -> list[Job]:
        """One for each seed."""
        sweep = self.sweep
        folder = "".join(letter if letter.isalnum() or letter in "=.-_" else "-" for letter in self.label)[:120]
        row = StudyRow(
            name=self.label,
            study=sweep.name,
            folder=folder,
            experiment=self.experiment,
            fast=self.experiment,
            evaluate_every=sweep.table.evaluate_every,
        )
        place = sweep.out / folder
        return [Job(row, self.experiment, seed, place / f"seed-{seed}") for seed in self.experiment.seeds]

    def task_for(self, validation: float) -> tuple[Task, Task]:
        """The divided task; consecutive combinations of one task share it."""
        experiment = self.experiment
        args = json.dumps(experiment.task_args, sort_keys=True)
        return _parts(experiment.method, experiment.task, args, experiment.named_in, validation)

    def group(self) -> RunGroup:
        """Its finished runs."""
        return RunGroup(self.label, tuple(RunData.read(job.directory) for job in self.jobs))


@dataclass(frozen=True, eq=False)
class SweepResult:
    """A finished sweep.

    Attributes:
        metric: the metric by which combinations are compared.
        groups: all combinations, the best first, with metrics on the validation part.
        test: the metrics of the best one on the held-out data that no choice used.
    """

    metric: str
    groups: Sequence[RunGroup]
    test: Mapping[str, Interval]

    def to_json(self) -> dict[str, object]:
        groups = [{key: value for key, value in group.to_json().items() if key != "seconds"} for group in self.groups]
        test = {name: interval.to_json() for name, interval in self.test.items()}
        return {"metric": self.metric, "chosen": self.groups[0].label, "test": test, "groups": groups,
                "note": NOT_ACCOUNTED}  # fmt: skip


def read_sweep(path: Path, out: Path, *, trust: bool = False) -> Sweep:
    """The sweep that a TOML file describes; all of its names are checked here."""
    table = dict(load_toml(path))
    if not isinstance(table.get("sweep"), Mapping):
        raise UserError(f"Expected a table [sweep] in {path}. Without one, run it with tacit run {path}.")
    settings = serialization.convert(table.pop("sweep"), SweepTable, Source(label=f"sweep of {path}"))
    expect(
        0 < settings.validation < 1,
        f"validation={settings.validation:g} of {path} in (0, 1)",
        "What chooses the best cannot report how good it is: both parts of the held-out data are needed.",
    )
    expect(settings.trials is UNSET or settings.trials >= 1, f"trials of {path} >= 1")
    experiment = parse(table, str(path)).with_trust(trust)
    experiment.check_trust()
    sweep = Sweep(name=path.stem, experiment=experiment, table=settings, out=out)
    for point in sweep.points:
        point.experiment.check_names()
    folders = [job.directory for job in sweep.jobs]
    if len(set(folders)) < len(folders):
        raise UserError(f"Expected the combinations of {path} to differ in more than punctuation.")
    return sweep


@lru_cache(maxsize=2)
def _parts(method: str, task: str, args: str, named_in: str, validation: float) -> tuple[Task, Task]:
    experiment = Experiment(method=method, task=task, task_args=json.loads(args), named_in=named_in)
    return divide(experiment.build_task(), validation)


def play_one(path: Path, out: Path, *, trust: bool) -> None:
    """Try the next combination of a sweep, in a process of its own."""
    torch.set_num_threads(1)
    read_sweep(path, out, trust=trust).play(1, lambda steps, _: steps)


def result_of(sweep: Sweep) -> SweepResult:
    """Compare the finished runs of a sweep, choose the best, and test that one."""
    points = sweep.completed_points()
    groups = {point: point.group() for point in points}
    order = sorted(points, key=lambda point: sweep.sign * sweep.mean_of(groups[point]))
    held_out = order[0].task_for(sweep.table.validation)[1]
    results = [test_metrics(job, held_out) for job in order[0].jobs]
    test = {name: Interval.of([each[name] for each in results]) for name in results[0]}
    best_first = [groups[point] for point in order]
    return SweepResult(sweep.metric, best_first, {name: each for name, each in test.items() if each is not None})


def _distribution(key: str, value: object, name: str) -> BaseDistribution:
    match value:
        case list() if value:
            return CategoricalDistribution([_choice(each) for each in value])
        case Mapping():
            limits = serialization.convert(value, Range, Source(label=f"{key} of {name}"))
            expect(limits.low < limits.high, f"low < high for {key} of {name}")
            expect(not limits.log or limits.low > 0, f"low > 0 for {key} of {name}, whose logarithm is taken")
            return limits.distribution
    raise UserError(f"Expected a list of values for {key} of {name}, or a table with low and high, got {value!r}.")


def _choice(value: object) -> str | float | bool:
    """A value as Optuna stores it; several numbers as a command line writes them."""
    match value:
        case str() | int() | float():
            return value
        case list():
            return ",".join(map(str, value))
    return str(value)


def _flat(table: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    """Nested tables as keys with dots, except for ranges."""
    flat: dict[str, object] = {}
    for key, value in table.items():
        if isinstance(value, Mapping) and not {"low", "high"} & set(value):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat
