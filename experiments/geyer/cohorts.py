"""Do growing cohorts help? Three schedules at equal ε, equally many messages and rounds, equally tuned.

    python experiments/geyer/cohorts.py [100 1000]        run what is missing, and print it

Geyer, Klein and Nabi report that raising the number of clients per round over the training improves the model. Here
each schedule has the paper's budget (ε = 8) and mean cohort, and a constant noise multiplier that uses the budget up in
its last round. Eight settings of bound and learning rate are tried with one seed on half of the test images; the best
is trained with five other seeds and evaluated on the other half. The model is linear on oriented gradients.
"""

import argparse
import itertools
import sys
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import fmean

import tacit
from tacit.papers.validation import divided
from tacit.report.intervals import Interval
from tacit.runs.run import calibrate_method

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for the module that all experiments share
from trials import Result, TrialFile

FILE = Path(__file__).parent / "cohorts.json"
BOUNDS, LEARNING_RATES = (0.25, 0.5, 1.0, 2.0), (0.1, 0.3)
EPSILON = 8.0
TUNING_SEED, SEEDS = 100, (0, 1, 2, 3, 4)
SCHEDULES = {"constant": (1.0, 1.0), "growing": (0.5, 1.5), "shrinking": (1.5, 0.5)}  # times the mean, in either half


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


@cache
def part_of(clients: int, part: str) -> tacit.Task:
    """The task with one half of the test images."""
    args = {"partition": "shards", "samples": 600, "features": "oriented-gradients", "model": "softmax-regression"}
    task = tacit.tasks.make_task("mnist", clients=clients, **args)
    return dict(zip(("validation", "test"), divided(task, 0.5), strict=True))[part]


def sampler_of(schedule: str, case: Case) -> tacit.pieces.Growing:
    """Two halves of a run, with Poisson cohorts."""
    first, second = (tacit.pieces.Poisson(factor * case.cohort) for factor in SCHEDULES[schedule])
    half = case.rounds // 2
    return tacit.pieces.Growing(((half, first), (case.rounds - half, second)))


@cache
def noise_for(schedule: str, clients: int) -> float:
    """The noise multiplier that uses up the budget in the last round."""
    method = calibrate_method(method_of(Trial(clients, schedule, 1.0, 0.1, "test", 0), None), clients)
    assert isinstance(method.mechanism, tacit.pieces.CentralGaussian)
    assert method.mechanism.noise_multiplier is not None
    return method.mechanism.noise_multiplier


def method_of(trial: Trial, noise: float | None) -> tacit.Method:
    """The method of a trial."""
    case = CASES[trial.clients]
    descent = tacit.pieces.Sgd(lr=trial.lr, epochs=1, batch_size=50)
    made = tacit.methods.geyer(rounds=case.rounds, epsilon=EPSILON, delta=case.delta, descent=descent)
    mechanism = tacit.pieces.CentralGaussian(clip=tacit.pieces.FixedClip(trial.bound), noise_multiplier=noise)
    return replace(made, sampler=sampler_of(trial.schedule, case), mechanism=mechanism)


def run(trial: Trial) -> Result:
    """Accuracy, ε and the number of messages."""
    noise = noise_for(trial.schedule, trial.clients)
    method, task = method_of(trial, noise), part_of(trial.clients, trial.part)
    made = tacit.train(method, task, seed=trial.seed, workers=1, evaluate_every=method.rounds, randomness="seeded")
    messages = sum(len(report.clients) for report in made.history)
    return {
        "accuracy": made.metrics["accuracy"],
        "epsilon": made.privacy.epsilon,
        "noise_multiplier": noise,
        "messages": messages,
    }


def finals(file: TrialFile, clients: int, schedule: str) -> list[Result]:
    """The results of the best setting on the other half of the test images, with every seed."""
    settings = itertools.product(BOUNDS, LEARNING_RATES)
    tuning = [Trial(clients, schedule, bound, lr, "validation", TUNING_SEED) for bound, lr in settings]
    best = max(tuning, key=lambda trial: _measured(file, trial)["accuracy"])
    print(f"{clients} clients, {schedule}: bound {best.bound:g}, learning rate {best.lr:g}", flush=True)
    return [_measured(file, replace(best, part="test", seed=seed)) for seed in SEEDS]


def _measured(file: TrialFile, trial: Trial) -> Result:
    return file.measure(trial, lambda: run(trial))


def main() -> None:
    """Run what is missing; print a line per schedule, and by how much it is better than constant cohorts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clients", nargs="*", type=int, choices=CASES, default=CASES, help="how many (default: both)")
    file = TrialFile.open(FILE)
    for clients in parser.parse_args().clients:
        found = {schedule: finals(file, clients, schedule) for schedule in SCHEDULES}
        constant = [result["accuracy"] for result in found["constant"]]
        for schedule, results in found.items():
            own = [result["accuracy"] for result in results]
            ahead = Interval.of([a - b for a, b in zip(own, constant, strict=True)])
            noise, messages = results[0]["noise_multiplier"], fmean(result["messages"] for result in results)
            texts = (schedule, Interval.of(own).text(), ahead.text(), f"{noise:.3f}", f"{messages:,.0f}")
            print(f"| {clients} | {' | '.join(texts)} |")


if __name__ == "__main__":
    main()
