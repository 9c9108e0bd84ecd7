"""Do growing cohorts help? Four schedules at equal ε, equally many messages and rounds, equally tuned.

    python experiments/geyer/cohorts.py                   run what is missing, and print it
    python experiments/geyer/cohorts.py --clients 100     of 100 clients only

Geyer, Klein and Nabi report that raising the number of clients per round over the training improves the model, and
recommend to raise the noise multiplier σ with it, at the same σ²/m: `both-growing`. Here each schedule has the paper's
budget (ε = 8) and mean cohort, and noise multipliers that use the budget up in its last round: the same in all rounds
but for `both-growing`. Eight settings of bound and learning rate are tried with one seed on half of the test images;
the best is trained with five other seeds and evaluated on the other half. The model is linear on oriented gradients.
"""

import argparse
import itertools
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import sqrt
from pathlib import Path
from statistics import fmean
from typing import ClassVar

import tacit
from tacit.core import BoundedMessages, ClientRound, Messages, ServerRound, State, Sum, Turnout, View, Wave
from tacit.core.interfaces import Mechanism, Visibility
from tacit.core.prices import Price, Unit
from tacit.papers.validation import divide
from tacit.pieces.mechanisms import CentralGaussian
from tacit.privacy.guarantee import Guarantee
from tacit.runs.run import calibrate_method

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for the module that all experiments share
from trials import Progress, Result, TrialFile, interval

FILE = Path(__file__).parent / "cohorts.json"
BOUNDS, LEARNING_RATES = (0.25, 0.5, 1.0, 2.0), (0.1, 0.3)
EPSILON = 8.0
TUNING_SEED, SEEDS = 100, (0, 1, 2, 3, 4)
SCHEDULES = {  # the cohort in either half, times the mean
    "constant": (1.0, 1.0),
    "growing": (0.5, 1.5),
    "shrinking": (1.5, 0.5),
    "both-growing": (0.5, 1.5),
}


@dataclass(frozen=True)
class Case:
    """A number of clients with the paper's mean cohort and δ, and how many rounds are trained."""

    cohort: int
    rounds: int
    delta: float


CASES = {100: Case(cohort=50, rounds=40, delta=1e-3), 1000: Case(cohort=220, rounds=54, delta=1e-5)}


@dataclass(frozen=True)
class Trial:
    """One run."""

    clients: int
    schedule: str
    bound: float
    lr: float
    part: str
    seed: int


@dataclass(frozen=True, kw_only=True)
class Scheduled(Mechanism):
    """A mechanism whose noise multiplier changes after some rounds.

    Attributes:
        base: the mechanism, whose noise multiplier is that of the largest factor.
        factors: the noise multiplier in either half, times that of `base`.
        half: the number of rounds before the second half.
    """

    base: CentralGaussian
    factors: tuple[float, float]
    half: int
    bounded_for: ClassVar[tuple[Unit, ...]] = (Unit.CLIENT,)
    requires: ClassVar[Visibility] = "messages"

    def at(self, index: int) -> CentralGaussian:
        """The mechanism of a round."""
        if self.base.noise_multiplier is None:
            return self.base
        return replace(self.base, noise_multiplier=self.base.noise_multiplier * self.factors[index >= self.half])

    def price(self, index: int, turnout: Turnout | None = None) -> Price:
        return self.at(index).price(index, turnout)

    def with_noise_multiplier(self, noise: float) -> "Scheduled":
        return replace(self, base=self.base.with_noise_multiplier(noise))

    def at_client(self, messages: Messages, view: View, data: Wave, now: ClientRound) -> Messages:
        return messages

    def before_sum(self, messages: Messages, state: State) -> BoundedMessages:
        return self.base.before_sum(messages, state)

    def after_sum(self, total: Sum, now: ServerRound) -> Sum:
        return self.at(now.index).after_sum(total, now)


@cache
def part_of(clients: int, part: str) -> tacit.Task:
    """The task with one half of the test images."""
    args = {"partition": "shards", "samples": 600, "features": "oriented-gradients", "model": "softmax-regression"}
    task = tacit.tasks.make_task("mnist", clients=clients, **args)
    return dict(zip(("validation", "test"), divide(task, 0.5), strict=True))[part]


def sampler_of(schedule: str, case: Case) -> tacit.pieces.Growing:
    """Two halves of a run, with Poisson cohorts."""
    first, second = (tacit.pieces.Poisson(factor * case.cohort) for factor in SCHEDULES[schedule])
    half = case.rounds // 2
    return tacit.pieces.Growing(((half, first), (case.rounds - half, second)))


@cache
def noise_for(schedule: str, clients: int) -> float:
    """The noise multiplier that uses up the budget in the last round; of both, if it changes, the one of factor 1."""
    method = calibrate_method(method_of(Trial(clients, schedule, 1.0, 0.1, "test", 0), None), clients)
    gaussian = method.mechanism.base if isinstance(method.mechanism, Scheduled) else method.mechanism
    assert isinstance(gaussian, CentralGaussian)
    assert gaussian.noise_multiplier is not None
    return gaussian.noise_multiplier


def mechanism_of(schedule: str, bound: float, noise: float | None, half: int) -> Mechanism:
    """Central noise; of `both-growing`, in proportion to the root of the cohort."""
    base = CentralGaussian(clip=tacit.pieces.FixedClip(bound), noise_multiplier=noise)
    first, second = (sqrt(factor) for factor in SCHEDULES[schedule])
    return Scheduled(base=base, factors=(first, second), half=half) if schedule == "both-growing" else base


def method_of(trial: Trial, noise: float | None) -> tacit.Method:
    """The method of a trial."""
    case = CASES[trial.clients]
    descent = tacit.pieces.Sgd(lr=trial.lr, epochs=1, batch_size=50)
    made = tacit.methods.geyer(rounds=case.rounds, epsilon=EPSILON, delta=case.delta, descent=descent)
    mechanism = mechanism_of(trial.schedule, trial.bound, noise, case.rounds // 2)
    return replace(made, sampler=sampler_of(trial.schedule, case), mechanism=mechanism)


def run(trial: Trial) -> Result:
    """Accuracy, ε and the number of messages."""
    noise = noise_for(trial.schedule, trial.clients)
    method, task = method_of(trial, noise), part_of(trial.clients, trial.part)
    made = tacit.train(method, task, seed=trial.seed, workers=1, evaluate_every=method.rounds, randomness="seeded")
    assert isinstance(made.privacy, Guarantee)
    assert made.privacy.epsilon is not None
    messages = sum(len(report.clients) for report in made.history)
    return {
        "accuracy": made.metrics["accuracy"],
        "epsilon": made.privacy.epsilon,
        "noise_multiplier": noise,
        "messages": messages,
    }


def tuning(clients: int, schedule: str) -> list[Trial]:
    """All settings of a schedule, on the first half of the test images."""
    settings = itertools.product(BOUNDS, LEARNING_RATES)
    return [Trial(clients, schedule, bound, lr, "validation", TUNING_SEED) for bound, lr in settings]


def finals(best: Trial) -> list[Trial]:
    """One setting on the other half of the test images, with every seed."""
    return [replace(best, part="test", seed=seed) for seed in SEEDS]


def complete(file: TrialFile, clients: int, schedule: str) -> list[Result]:
    """The final results of the best setting of a schedule; what is missing is run."""
    best = max(tuning(clients, schedule), key=lambda trial: _measured(file, trial)["accuracy"])
    print(f"{clients} clients, {schedule}: bound {best.bound:g}, learning rate {best.lr:g}", flush=True)
    return [_measured(file, trial) for trial in finals(best)]


def _measured(file: TrialFile, trial: Trial) -> Result:
    return file.measure(trial, lambda: run(trial))


def asked(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", nargs="+", type=int, choices=CASES, default=[*CASES], help="default: both")
    parser.add_argument("--runs", type=Path, metavar="DIR", help="not used: a run takes seconds, and begins anew")
    return parser.parse_args(argv)


def progress(argv: Sequence[str]) -> Progress:
    """What is done of a command line, for the backlog; which settings are best is known once all are tried."""
    file = TrialFile.open(FILE)
    wanted: list[Trial] = []
    for clients, schedule in itertools.product(asked(argv).clients, SCHEDULES):
        tried = tuning(clients, schedule)
        found = {trial: result for trial in tried if (result := file.get(trial))}
        best = max(found, key=lambda trial: found[trial]["accuracy"]) if len(found) == len(tried) else tried[0]
        wanted += [*tried, *finals(best)]
    return file.progress(wanted)


def lines(file: TrialFile, clients: int) -> Iterator[str]:
    """A line per schedule: accuracy, and by how much it is better than constant cohorts."""
    results = {schedule: complete(file, clients, schedule) for schedule in SCHEDULES}
    constant = [result["accuracy"] for result in results["constant"]]
    for schedule, made in results.items():
        own = [result["accuracy"] for result in made]
        ahead = [a - b for a, b in zip(own, constant, strict=True)]
        noise, messages = made[0]["noise_multiplier"], fmean(result["messages"] for result in made)
        texts = (schedule, interval(own), interval(ahead), f"{noise:.3f}", f"{messages:,.0f}")
        yield f"| {clients} | {' | '.join(texts)} |"


def main() -> None:
    """Run what is missing, and print the tables."""
    file = TrialFile.open(FILE)
    for clients in asked().clients:
        print("\n".join(lines(file, clients)))


if __name__ == "__main__":
    main()
