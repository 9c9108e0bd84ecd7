"""Sweeps: one experiment with many values of its arguments, each with all seeds, and a choice among them.

An experiment file with a further table::

    method = "fl-std"
    seeds = [0, 1, 2]

    [args]
    rounds = 50

    [sweep]
    validation = 0.5          # fraction of the held-out data by which the best is chosen
    choose = "accuracy"       # by which metric; without it, the first that is evaluated
    trials = 20               # that many random combinations; without it, all of them
    seed = 0                  # of the random combinations

    [sweep.args]              # values to try: of the method's arguments
    "descent.lr" = [0.05, 0.1, 0.2]
    cohort = { low = 5, high = 50 }                 # only with trials: between these, evenly
    ratio = { low = 0.001, high = 0.1, log = true } # or evenly in their logarithms

    [sweep.task-args]         # and of the task's
    partition = ["iid", "shards"]

The held-out data are divided: runs are evaluated on the validation part, by which the best combination is chosen, and
only that one is evaluated on the other part. Runs are those of a study (`tacit.papers.jobs`), so that finished ones are
not repeated and interrupted ones resume; their noise is seeded, so that a sweep can be repeated.
"""

import json
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import product
from pathlib import Path

import msgspec
import torch
from msgspec import UNSET, Struct, UnsetType

from tacit.core import serialization
from tacit.core.losses import best_outputs
from tacit.core.serialization import Source, load_toml
from tacit.core.state import final_weights
from tacit.data import Task
from tacit.engine.simulation import module_at
from tacit.errors import RunError, UserError, expect
from tacit.papers.comparison import LOWER_IS_BETTER
from tacit.papers.jobs import Job
from tacit.papers.study import StudyRow
from tacit.report.intervals import Interval
from tacit.report.run_data import RunData
from tacit.report.run_groups import RunGroup
from tacit.runs import checkpoint
from tacit.runs.directory import CHECKPOINT
from tacit.runs.experiment import Experiment, parse

NOT_ACCOUNTED = (
    "A combination that is chosen by results on the clients' data reveals something about them: that is not accounted "
    "for in any ε above. Choose on public data, or count every run of the sweep."
)
MOST_RUNS = 10_000


class Range(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Numbers between two ends, evenly or evenly in their logarithms; whole numbers if both ends are."""

    low: float | int
    high: float | int
    log: bool = False

    def draw(self, chance: random.Random) -> float | int:
        low, high = (math.log(self.low), math.log(self.high)) if self.log else (self.low, self.high)
        value = low + (high - low) * chance.random()
        value = math.exp(value) if self.log else value
        whole = type(self.low) is int and type(self.high) is int
        return round(value) if whole else float(f"{value:.4g}")


class SweepTable(Struct, frozen=True, kw_only=True, rename="kebab"):
    """The table `[sweep]` of an experiment file."""

    args: Mapping[str, object] = msgspec.field(default_factory=dict)
    task_args: Mapping[str, object] = msgspec.field(default_factory=dict)
    validation: float = 0.5
    choose: str = ""
    trials: int | UnsetType = UNSET
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
    def points(self) -> list["SweepPoint"]:
        """The combinations, each once, in order."""
        found: dict[str, SweepPoint] = {}
        for combination in self._combinations():
            point = SweepPoint(self, combination)
            found.setdefault(point.label, point)
            if len(found) * len(self.experiment.seeds) > MOST_RUNS:
                raise UserError(f"Expected at most {MOST_RUNS} runs in {self.name}. Give trials, or fewer values.")
        return [*found.values()]

    @property
    def jobs(self) -> list[Job]:
        return [job for point in self.points for job in point.jobs]

    def _values(self) -> dict[str, object]:
        """The values to try by argument; those of the task begin with `task.`."""
        task = {f"task.{key}": value for key, value in self.table.task_args.items()}
        return {**_flat(self.table.args), **task}

    def _combinations(self) -> Iterator[dict[str, object]]:
        values = {key: _options(key, value, self.name) for key, value in self._values().items()}
        if not values:
            raise UserError(f"Expected values to try in {self.name}: give them in [sweep.args] or [sweep.task-args].")
        if self.table.trials is UNSET:
            lists = [options for options in values.values() if not isinstance(options, Range)]
            if len(lists) < len(values):
                raise UserError(f"Expected lists of values in {self.name}: a range needs trials.")
            yield from (dict(zip(values, chosen, strict=True)) for chosen in product(*lists))
            return
        chance = random.Random(self.table.seed)
        for _ in range(self.table.trials):
            yield {key: _drawn(options, chance) for key, options in values.items()}


@dataclass(frozen=True, eq=False)
class SweepPoint:
    """One combination of arguments.

    Attributes:
        sweep: the sweep that it is part of.
        values: the arguments that it sets.
    """

    sweep: Sweep
    values: Mapping[str, object]

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
    """The sweep that a TOML file describes; everything that can be wrong about its names is found here."""
    table = dict(load_toml(path))
    if not isinstance(table.get("sweep"), Mapping):
        raise UserError(f"Expected a table [sweep] in {path}. Without one, run it with tacit run {path}.")
    given = serialization.convert(table.pop("sweep"), SweepTable, Source(label=f"sweep of {path}"))
    expect(
        0 < given.validation < 1,
        f"validation={given.validation:g} of {path} in (0, 1)",
        "What chooses the best cannot report how good it is: both parts of the held-out data are needed.",
    )
    expect(given.trials is UNSET or given.trials >= 1, f"trials of {path} >= 1")
    experiment = parse(table, str(path))
    sweep = Sweep(name=path.stem, experiment=experiment.trusting(trust), table=given, out=out)
    for point in sweep.points:
        point.experiment.check_names()
    folders = [job.directory for job in sweep.jobs]
    if len(set(folders)) < len(folders):
        raise UserError(f"Expected the combinations of {path} to differ in more than punctuation.")
    return sweep


def divided(task: Task, validation: float) -> tuple[Task, Task]:
    """The task with the part of its held-out data for choosing, and with the other part; the same in every run."""
    if task.test is None:
        raise UserError(
            f"Expected held-out data of the task {task.name}: the best combination is chosen on a part of it."
        )
    x, y = task.test
    count = round(len(y) * validation)
    expect(0 < count < len(y), f"both parts of {len(y)} held-out samples to have some", "Change validation.")
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    parts = (order[:count].sort().values, order[count:].sort().values)
    one, two = (
        replace(task, test=(x[part], y[part]), owners=None if task.owners is None else task.owners[part])
        for part in parts
    )
    return one, two


def parts_for(job: Job, validation: float) -> tuple[Task, Task]:
    """The divided task of a job; consecutive jobs of one task share it."""
    experiment = job.experiment
    args = json.dumps(experiment.task_args, sort_keys=True)
    return _parts(experiment.method, experiment.task, args, experiment.named_in, validation)


@lru_cache(maxsize=2)
def _parts(method: str, task: str, args: str, named_in: str, validation: float) -> tuple[Task, Task]:
    experiment = Experiment(method=method, task=task, task_args=json.loads(args), named_in=named_in)
    return divided(experiment.build_task(), validation)


def play(job: Job, validation: float) -> str:
    """Run or resume a job to its end, in a process of its own; returns its label."""
    torch.set_num_threads(1)
    for _ in job.steps(parts_for(job, validation)[0], workers=1):
        pass
    return job.label


def result_of(sweep: Sweep) -> SweepResult:
    """Compare the finished runs of a sweep, choose the best, and test that one."""
    groups = {point.label: point.group() for point in sweep.points}
    known = next(iter(groups.values())).metrics
    metric = sweep.table.choose or next(iter(known), "")
    if metric not in known:
        raise UserError(f"Expected choose of {sweep.name} in {', '.join(known) or 'none'}, got {metric!r}.")
    sign = 1 if metric in LOWER_IS_BETTER else -1
    missing = Interval(math.inf * sign, None, 0)
    order = sorted(groups.values(), key=lambda group: sign * group.metrics.get(metric, missing).mean)
    best = next(point for point in sweep.points if point.label == order[0].label)
    found = [_tested(job, parts_for(job, sweep.table.validation)[1]) for job in best.jobs]
    test = {name: Interval.of([each[name] for each in found]) for name in found[0]}
    return SweepResult(metric, order, {name: each for name, each in test.items() if each is not None})


@torch.no_grad()
def _tested(job: Job, task: Task) -> dict[str, float]:
    """The metrics of a finished run's model on the held-out data of this task."""
    state = checkpoint.read(job.directory / CHECKPOINT)
    if state is None:
        raise RunError(f"{job.directory} has no {CHECKPOINT}. Remove it to run it again.")
    assert task.test is not None  # it was divided
    x, y = task.test
    models = [module_at(task, job.seed, weights) for weights in final_weights(state).view(-1, state.dim)]
    outputs = torch.stack([model(x) for model in models])
    found: dict[str, float] = task.loss.metrics(best_outputs(task.loss, outputs, y, task.owners), y)
    return found


def _options(key: str, value: object, name: str) -> "list[object] | Range":
    match value:
        case list() if value:
            return value
        case Mapping():
            found = serialization.convert(value, Range, Source(label=f"{key} of {name}"))
            expect(found.low < found.high, f"low < high for {key} of {name}")
            expect(not found.log or found.low > 0, f"low > 0 for {key} of {name}, whose logarithm is taken")
            return found
    raise UserError(f"Expected a list of values for {key} of {name}, or a table with low and high, got {value!r}.")


def _drawn(options: "list[object] | Range", chance: random.Random) -> object:
    return options.draw(chance) if isinstance(options, Range) else chance.choice(options)


def _flat(table: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    """Nested tables as keys with dots, except for ranges."""
    flat: dict[str, object] = {}
    for key, value in table.items():
        nested = isinstance(value, Mapping) and not {"low", "high"} & set(value)
        flat |= _flat(value, f"{prefix}{key}.") if nested and isinstance(value, Mapping) else {prefix + key: value}
    return flat
