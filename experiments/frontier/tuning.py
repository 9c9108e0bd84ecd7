"""Methods under one privacy budget, tuned with equally many trials: what all comparisons of this folder share.

A contender has settings in ranges that are the same for all: the clipping bound, how far the server moves the model in
a round, the number of rounds and, where there is one, the ratio of weights. Trial i of every contender at every ε is
the same point of the unit cube, from a sequence that fills it evenly. All trials are trained with one seed and
evaluated on a validation part of the held-out samples; the best is then trained with other seeds, three by default, and
evaluated on the other part, once. Noise is seeded, so that a call repeats what another one found.
"""

import argparse
import itertools
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

import torch
from torch import nn

import tacit
from tacit.data import Population
from tacit.papers.validation import divide
from tacit.privacy.accountants import Accounting, RdpClassic, default_accountant
from tacit.privacy.guarantee import Guarantee
from tacit.privacy.planned_charges import release_of
from tacit.report.intervals import Interval
from tacit.runs.run import calibrate_method

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for the module that all experiments share
import trials
from trials import Progress, Result, TrialFile

DELTA, COHORT = 1e-5, 100.0
TUNING_SEED, SEEDS = 100, 3  # of results there are at most as many seeds as the first of these says
TRIALS = 8
DRAWS = 25  # of random coordinates, at most, whose median norm is the bound
NAMES = ("length", "ratio", "rounds", "bound")  # in the order of the sequence's dimensions
BOUNDS = (0.1, 1.0)  # times the norm of an update on the public data
LENGTHS = (0.3, 30.0)  # times that norm: how far a round without noise can move the model
RATIOS = (0.002, 0.3)
GOLDEN = 1.1673039782614187  # the root of x⁵ = x + 1, by which the sequence fills four dimensions (Roberts 2018)
Settings = tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Problem:
    """A task with what is not tuned, and the metric by which settings are chosen.

    Attributes:
        task: its name.
        task_args: its arguments.
        descent: the clients' training in a round.
        metric: by which settings are chosen.
        validation: the fraction of the held-out samples on which they are chosen.
        rounds: the numbers of rounds to choose from.
        hidden: units of a hidden layer of its network; None: the network is as the task has it.
        tuned_as: the problem whose trials choose its settings, where it is too large for trials of its own.
    """

    task: str
    task_args: Mapping[str, object]
    descent: tacit.pieces.Sgd
    metric: str
    validation: float
    rounds: tuple[int, ...]
    hidden: int | None
    tuned_as: str | None = None

    def parts(self) -> dict[str, tacit.Task]:
        """The task with the validation part and with the test part of its held-out samples."""
        task = tacit.tasks.make_task(self.task, **self.task_args)
        owned = Population.of([task.population[client] for client in range(len(task.population))])
        task = replace(task, clients=owned)  # without the samples of nobody, of which every run would take a digest
        if self.hidden is not None:
            make: Callable[..., nn.Module] = task.model
            task = replace(task, model=partial(make, hidden=self.hidden))
        return dict(zip(("validation", "test"), divide(task, self.validation), strict=True))


PROBLEMS = {
    "covid-mx": Problem(
        task="covid-mx",
        task_args={"clients": 5010, "public": 356, "balanced": True},
        descent=tacit.pieces.Sgd(lr=0.4, steps=5),
        metric="auroc",
        validation=1 / 7,
        rounds=(12, 24, 48),
        hidden=64,
    ),
    "fashion-mnist": Problem(
        task="fashion-mnist",
        task_args={"clients": 6000, "samples": 10, "public": 10, "model": "mlp"},
        descent=tacit.pieces.Sgd(lr=0.215, steps=5, batch_size=10),
        metric="accuracy",
        validation=0.5,
        rounds=(20, 40, 80),
        hidden=32,
    ),
}
PROBLEMS["fashion-mnist-cnn"] = replace(
    PROBLEMS["fashion-mnist"],
    task_args={"clients": 6000, "samples": 10, "public": 10, "model": "mcmahan-cnn"},
    hidden=None,
    tuned_as="fashion-mnist",
)


@dataclass(frozen=True)
class Trial:
    """One run: a contender at an ε with its settings, evaluated on one part of the held-out samples."""

    method: str
    epsilon: float
    settings: Settings
    part: str
    seed: int


def train(method: tacit.Method, task: tacit.Task, seed: int, place: Path | None) -> tacit.Run:
    """A run with seeded noise; `place`: the folder in which it can be resumed."""
    return trials.train(method, task, seed, place, randomness="seeded")


@dataclass(frozen=True)
class Contender:
    """What is compared.

    Attributes:
        name: its name in results.
        make: the method for a trial, without its noise.
        tuned: the names of its settings.
        task: the task that it is given; by default the problem's own.
        train: how its method is trained, in one run or in several, of which the last one has the model; it is given the
            folder in which they can be resumed, if there is one.
    """

    name: str
    make: Callable[[Trial, Problem, tacit.Task], tacit.Method]
    tuned: tuple[str, ...] = NAMES
    task: Callable[[tacit.Task], tacit.Task] = lambda task: task
    train: Callable[[tacit.Method, tacit.Task, Trial, Path | None], Sequence[tacit.Run]] = (
        lambda method, task, trial, place: [train(method, task, trial.seed, place)]
    )

    def settings(self, number: int, problem: Problem) -> Settings:
        """Those of trial `number`: the same point for all contenders, as far as they have these settings."""
        at = dict(zip(NAMES, position(number), strict=True))
        values = {
            "bound": _between(BOUNDS, at["bound"]),
            "length": _between(LENGTHS, at["length"]),
            "rounds": problem.rounds[int(at["rounds"] * len(problem.rounds))],
            "ratio": _between(RATIOS, at["ratio"]),
        }
        return tuple((name, values[name]) for name in sorted(self.tuned))

    def tuning(self, epsilon: float, trials: int, problem: Problem) -> list[Trial]:
        """The trials by which its settings are chosen; more trials begin with the same ones."""
        every = (self.settings(number, problem) for number in range(trials))
        return [Trial(self.name, epsilon, settings, "validation", TUNING_SEED) for settings in every]


def position(number: int) -> tuple[float, ...]:
    """Point `number` of a sequence that fills the unit cube evenly, as many as are taken."""
    return tuple((0.5 + (number + 1) * GOLDEN ** -(axis + 1)) % 1 for axis in range(len(NAMES)))


def _between(ends: tuple[float, float], at: float) -> float:
    """The value at this part of the way between two ends, evenly in logarithms, with three digits."""
    low, high = ends
    return float(f"{low * (high / low) ** at:.3g}")


@cache
def noise_for(epsilon: float, rounds: int, clients: int, central: bool = False) -> float:
    """The noise multiplier that ε requires in this many rounds, for all methods; it takes seconds."""
    make = tacit.methods.priority_dp if central else tacit.methods.fl_std_dp
    method = make(rounds=rounds, cohort=int(COHORT), epsilon=epsilon, delta=DELTA)
    sized = calibrate_method(method, clients).mechanism
    assert isinstance(sized, tacit.pieces.DistributedGaussian | tacit.pieces.CentralGaussian)
    assert sized.noise_multiplier is not None
    return sized.noise_multiplier


def run(
    trial: Trial, contender: Contender, problem: Problem, parts: Mapping[str, tacit.Task], place: Path | None = None
) -> Result:
    """Metrics, ε by both accountants, and kilobytes per client of the population; none of these if it diverged."""
    began, resumed = time.process_time(), place is not None and place.exists()
    task = contender.task(parts[trial.part])
    method, clients = contender.make(trial, problem, task), len(task.population)
    central = isinstance(method.mechanism, tacit.pieces.CentralGaussian)
    method = method.with_noise_multiplier(noise_for(trial.epsilon, method.rounds, clients, central))
    try:
        runs = contender.train(method, task, trial, place)
    except tacit.TrainingError:
        return {"diverged": 1.0}
    found = {
        **runs[-1].metrics,
        **epsilons(runs),
        "noise_multiplier": getattr(method.mechanism, "noise_multiplier"),  # noqa: B009
        "rounds": sum(each.state.round for each in runs),
        "kilobytes_up": sum(each.bytes.up for each in runs) / clients / 1000,
        "kilobytes_down": sum(each.bytes.down for each in runs) / clients / 1000,
    }
    if trial.part == "test" and problem.metric == "auroc":
        found["balanced_accuracy_tuned"] = balanced_accuracy(runs[-1].model, parts)
    # of a run that was resumed, this process knows only the last part
    return found if resumed else {**found, "cpu_seconds": round(time.process_time() - began, 2)}


def epsilons(runs: Sequence[tacit.Run]) -> dict[str, float]:
    """The ε of all runs together, by the accountant of the guarantee and by that of the papers."""
    found = []
    for each in runs:
        method, clients = each.spec.method, len(each.spec.task.population)
        found += [release_of(method, clients, index) for index in range(len(each.history))]
    releases = [release for release in found if release is not None]
    assert len(releases) == len(found)
    proved, tight = runs[0].privacy, Accounting.of(default_accountant(*releases), releases).epsilon(DELTA)
    assert isinstance(proved, Guarantee)
    assert proved.epsilon is not None
    one = len(runs) == 1
    return {
        "epsilon": proved.epsilon if one else tight,
        "epsilon_classic": Accounting.of(RdpClassic(), releases).epsilon(DELTA),
    }


@torch.no_grad()
def balanced_accuracy(model: torch.nn.Module, parts: Mapping[str, tacit.Task]) -> float:
    """On the test part, at the threshold that is best on the validation part."""
    rates = {}
    for part, task in parts.items():
        x, y = task.test
        rates[part] = (model(x).flatten(), y.flatten() > 0.5)
    scores, positive = rates["validation"]
    order = torch.argsort(scores)
    missed = positive[order].double().cumsum(0) / positive.sum()
    refused = (~positive[order]).double().cumsum(0) / (~positive).sum()
    threshold = scores[order][int(torch.argmax(refused - missed))]
    scores, positive = rates["test"]
    above = scores > threshold
    return 0.5 * float(above[positive].double().mean() + (~above[~positive]).double().mean())


def finals(best: Trial, seeds: int) -> list[Trial]:
    """The chosen settings on the test part, with the first `seeds` seeds."""
    return [replace(best, part="test", seed=seed) for seed in range(seeds)]


@dataclass(frozen=True)
class Cell:
    """A contender at an ε, as far as it is finished: its chosen settings, and what they give on the test part."""

    name: str
    epsilon: float
    settings: Mapping[str, float]
    values: Mapping[int, float]  # of the metric, by seed
    results: tuple[Result, ...]

    @property
    def metric(self) -> Interval:
        return _interval([*self.values.values()])

    def mean(self, *names: str) -> float:
        """The mean over seeds of the sum of these."""
        return sum(sum(result[name] for name in names) for result in self.results) / len(self.results)

    @property
    def kilobytes(self) -> float:
        return self.mean("kilobytes_up", "kilobytes_down")

    @property
    def line(self) -> str:
        settings = ", ".join(f"{name} {value:g}" for name, value in self.settings.items())
        tuned = [result["balanced_accuracy_tuned"] for result in self.results if "balanced_accuracy_tuned" in result]
        balanced = _interval(tuned).text() if tuned else ""
        return (
            f"| {self.name} | {self.epsilon:g} | {self.mean('epsilon_classic'):.2f} | {self.metric.text()} | "
            f"{balanced} | {self.metric.count} | {self.kilobytes:,.1f} | {settings} |"
        )


@dataclass(frozen=True)
class Results:
    """The trials of a problem that were made so far.

    Attributes:
        problem: what is trained.
        file: its trials.
        tuning: those that choose its settings: its own, or another problem's.
        trials: how many settings of a contender are tried at every ε.
        seeds: with how many seeds the chosen ones are trained.
    """

    problem: Problem
    file: TrialFile
    tuning: TrialFile
    trials: int = TRIALS
    seeds: int = SEEDS

    @classmethod
    def open(cls, asked: argparse.Namespace, kind: str = "") -> "Results":
        """Those of a problem, in the files of this folder."""
        problem, folder = PROBLEMS[asked.problem], Path(__file__).parent
        names = (asked.problem, problem.tuned_as or asked.problem)
        file, tuning = (TrialFile.open(folder / f"{name}{kind}.json", asked.runs) for name in names)
        return cls(problem, file, tuning if problem.tuned_as else file, asked.trials, asked.seeds)

    def chosen(self, contender: Contender, epsilon: float) -> Trial | None:
        """The best of a contender's trials on the validation part; None: not all of them have been made."""
        made = contender.tuning(epsilon, self.trials, self.problem)
        if any(self.tuning.get(trial) is None for trial in made):
            return None
        return max(made, key=lambda trial: (self.tuning.get(trial) or {}).get(self.problem.metric, float("-inf")))

    def complete(self, pairs: Sequence[tuple[Contender, float]]) -> None:
        """Make all trials that are missing: first those of tuning, number by number, then the chosen ones."""
        parts = self.problem.parts()
        for number, (contender, epsilon) in itertools.product(range(self._own_trials), pairs):
            self._measure(contender.tuning(epsilon, self.trials, self.problem)[number], contender, parts)
        for seed, (contender, epsilon) in itertools.product(range(self.seeds), pairs):
            best = self.chosen(contender, epsilon)
            if best is None:  # not of this problem's own, which have been made
                raise SystemExit(f"Run `frontier.py {self.problem.tuned_as} --epsilons {epsilon:g}` first: it chooses.")
            self._measure(finals(best, self.seeds)[seed], contender, parts)

    def progress(self, pairs: Sequence[tuple[Contender, float]]) -> Progress:
        """How many of the trials that `complete` makes are done; which are chosen is known once all are tuned."""
        wanted: list[Trial] = []
        for contender, epsilon in pairs:
            tuning = contender.tuning(epsilon, self.trials, self.problem)
            wanted += [*tuning[: self._own_trials], *finals(self.chosen(contender, epsilon) or tuning[0], self.seeds)]
        return self.file.progress(wanted)

    @property
    def _own_trials(self) -> int:
        """How many settings of a contender this problem tries itself."""
        return self.trials if self.tuning is self.file else 0

    def _measure(self, trial: Trial, contender: Contender, parts: Mapping[str, tacit.Task]) -> None:
        if self.file.get(trial) is None:
            place = self.file.place(trial)
            found = self.file.measure(trial, lambda: run(trial, contender, self.problem, parts, place))
            shown = {name: round(value, 4) for name, value in found.items()}
            print(f"{len(self.file.found)}: {trial} {shown}", flush=True)

    def cells(self, contenders: Iterable[Contender], epsilons: Sequence[float]) -> list[Cell]:
        """All that are finished."""
        made = []
        for contender, epsilon in itertools.product(contenders, epsilons):
            best = self.chosen(contender, epsilon)
            found = {trial.seed: self.file.get(trial) for trial in finals(best, TUNING_SEED)} if best else {}
            done = {seed: result for seed, result in found.items() if result and self.problem.metric in result}
            if best is not None and done:
                values = {seed: result[self.problem.metric] for seed, result in done.items()}
                made.append(Cell(contender.name, epsilon, dict(best.settings), values, tuple(done.values())))
        return made


def _seeds(text: str) -> int:
    """How many seeds, from the command line; that of the tuning is not among them."""
    if not text.isdecimal() or not 1 <= int(text) < TUNING_SEED:
        raise argparse.ArgumentTypeError(f"expected a whole number from 1 to {TUNING_SEED - 1}, got {text}")
    return int(text)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare what the scripts of this folder have in common."""
    parser.add_argument("--trials", type=int, default=TRIALS, help=f"settings per method and ε (default: {TRIALS})")
    seeds = f"seeds of the chosen settings, fewer than {TUNING_SEED} (default: {SEEDS})"
    parser.add_argument("--seeds", type=_seeds, default=SEEDS, metavar="N", help=seeds)
    runs = "folder in which an interrupted trial can go on (default: it begins anew)"
    parser.add_argument("--runs", type=Path, metavar="DIR", help=runs)
    parser.add_argument("--show", action="store_true", help="run nothing")


def table(made: Sequence[Cell], metric: str) -> str:
    """The cells as a table."""
    columns = ("method", "ε (PLD)", "ε, classic", metric, "balanced accuracy", "seeds", "kB per client", "chosen")
    return "\n".join((f"| {' | '.join(columns)} |", "|---" * len(columns) + "|", *(cell.line for cell in made)))


def differences(made: Sequence[Cell], name: str) -> str:
    """By how much one contender is better than each of the others, seed by seed, as a table over ε."""
    own = {cell.epsilon: cell for cell in made if cell.name == name}
    others = [other for other in dict.fromkeys(cell.name for cell in made) if other != name]
    lines = [f"| {name} minus | {' | '.join(f'ε = {epsilon:g}' for epsilon in own)} |", "|---" * (len(own) + 1) + "|"]
    for other in others:
        beside = {cell.epsilon: cell for cell in made if cell.name == other}
        found = [_difference(own[epsilon], beside.get(epsilon)) for epsilon in own]
        lines.append(f"| {other} | {' | '.join(found)} |")
    return "\n".join(lines)


def _difference(cell: Cell, other: Cell | None) -> str:
    """Over the seeds that both have."""
    shared = [seed for seed in cell.values if other is not None and seed in other.values]
    if other is None or not shared:
        return ""
    return _interval([cell.values[seed] - other.values[seed] for seed in shared]).text()


def _interval(values: Sequence[float]) -> Interval:
    found = Interval.of(values)
    assert found is not None
    return found
