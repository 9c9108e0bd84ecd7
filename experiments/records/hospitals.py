"""Does it pay for a hospital to join? Privacy for patients: each hospital alone, all together, and without privacy.

    python experiments/records/hospitals.py ist
    python experiments/records/hospitals.py covid-mx

Three ways to train the same network on the same hospitals: `dp-fedsgd` between all of them through secure aggregation,
`dp-sgd` at each of them alone, and federated averaging without privacy. Each way has the same number of settings, from
which one is chosen for each ε by AUROC on a validation part, a fifth of every hospital's patients. Then it is trained
on all patients of the clients, with three seeds, and evaluated on the test patients once. Results are written after
every trial, and a second call goes on where the first one stopped. Of `covid-mx`, at most 10,000 patients of every
institution train and 20,000 are tested, chosen at random, and there are two settings instead of four.
"""

import argparse
import itertools
import statistics
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch

import tacit
from tacit.data import Population

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for the module that all experiments share
from trials import TrialFile

EPSILONS, DELTA, SEEDS, VALIDATION = (1.0, 3.0, 8.0), 1e-5, (0, 1, 2), 0.2
MOST, TESTED = 10_000, 20_000  # patients of an institution, and of the test, of covid-mx
SETTINGS: dict[str, dict[str, Mapping[str, tuple[float, ...]]]] = {
    "ist": {
        "together": {"lr": (0.1, 0.5), "rounds": (60, 150)},
        "alone": {"lr": (0.02, 0.1), "epochs": (10, 30)},
        "no privacy": {"lr": (0.01, 0.05), "rounds": (10, 30)},
    },
    "covid-mx": {
        "together": {"lr": (0.1, 0.5), "rounds": (150,)},
        "alone": {"lr": (0.02, 0.1), "epochs": (10,)},
        "no privacy": {"lr": (0.01, 0.05), "rounds": (10,)},
    },
}
RATE = 0.05  # of a batch, in all three ways


@dataclass(frozen=True)
class Trial:
    """One run: which way, at which ε, of which hospital (alone), with which settings, evaluated on which part."""

    way: str
    epsilon: float | None
    hospital: int | None
    settings: tuple[tuple[str, float], ...]
    part: str
    seed: int


def method_of(trial: Trial, sizes: list[int]) -> tacit.Method:
    """The method of a trial for hospitals of these sizes."""
    given = dict(trial.settings)
    if trial.way == "together":
        gradient = tacit.pieces.RecordGradient(rate=RATE, clip=1.0)
        return tacit.methods.dp_fedsgd(
            rounds=int(given["rounds"]),
            gradient=gradient,
            size=statistics.mean(sizes),
            lr=given["lr"],
            epsilon=trial.epsilon,
            delta=DELTA,
        )
    batch = max(round(RATE * sizes[0]), 8)
    if trial.way == "alone":
        descent = tacit.pieces.DpSgd(
            lr=given["lr"], epochs=int(given["epochs"]), batch_size=batch, clip=1.0, momentum=0.9
        )
        return tacit.methods.dp_sgd(rounds=1, descent=descent, epsilon=trial.epsilon, delta=DELTA)
    return tacit.methods.fedavg(rounds=int(given["rounds"]), cohort=len(sizes), lr=given["lr"], batch_size=32)


def countries() -> tacit.Task:
    """The ten largest countries of the stroke trial."""
    return tacit.tasks.make_task("ist", by="country", largest=10)


def institutions() -> tacit.Task:
    """The institutions of covid-mx, of which the large ones give a random part of their patients."""
    task = tacit.tasks.make_task("covid-mx", clients=None, public=0)
    chance = torch.Generator().manual_seed(0)
    chosen = [(x, y, torch.randperm(len(x), generator=chance)[:MOST]) for x, y in task.population]
    kept = [(x[which], y[which]) for x, y, which in chosen]
    tested = torch.randperm(len(task.test[1]), generator=chance)[:TESTED]
    return replace(task, clients=Population.of(kept), test=tuple(side[tested] for side in task.test))


TASKS = {"ist": countries, "covid-mx": institutions}


def divided(task: tacit.Task) -> tacit.Task:
    """The task with a part of every hospital's patients held out in place of the test patients."""
    kept, held_out = [], []
    for number, (x, y) in enumerate(task.population):
        order = torch.randperm(len(y), generator=torch.Generator().manual_seed(number))
        cut = max(round(VALIDATION * len(y)), 1)
        kept.append((x[order[cut:]], y[order[cut:]]))
        held_out.append((x[order[:cut]], y[order[:cut]]))
    validation = tuple(torch.cat([part[i] for part in held_out]) for i in (0, 1))
    return replace(task, clients=Population.of(kept), test=validation)


def run(trial: Trial, task: tacit.Task) -> dict[str, float]:
    """Metrics and ε of a trial."""
    clients = task.population if trial.hospital is None else Population.of([task.population[trial.hospital]])
    own = replace(task, clients=clients)
    method = method_of(trial, clients.sizes.tolist())
    try:
        done = tacit.train(method, own, seed=trial.seed, workers=1, evaluate_every=method.rounds)
    except tacit.TrainingError:  # it diverged, and predicts nothing
        return {"auroc": 0.5}
    epsilon = getattr(done.privacy, "epsilon", None)
    return {**done.metrics, **({} if epsilon is None else {"epsilon": epsilon})}


def trials(
    settings: Mapping[str, tuple[float, ...]], way: str, epsilon: float | None, hospitals: int, part: str
) -> Iterator[Trial]:
    """All settings of a way, for every hospital if it is alone."""
    alone = range(hospitals) if way == "alone" else (None,)
    names, values = settings.keys(), settings.values()
    for hospital, chosen in itertools.product(alone, itertools.product(*values)):
        yield Trial(way, epsilon, hospital, tuple(zip(names, chosen, strict=True)), part, 0)


def main() -> None:
    """Run what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=TASKS)
    args = parser.parse_args()
    file = TrialFile.open(Path(__file__).parent / f"hospitals-{args.task}.json")
    task = TASKS[args.task]()
    tuning, hospitals = divided(task), len(task.population)

    def measure(trial: Trial) -> float:
        return file.measure(trial, lambda: run(trial, tuning if trial.part == "validation" else task))["auroc"]

    ways = [("no privacy", None), *((way, epsilon) for epsilon in EPSILONS for way in ("together", "alone"))]
    for way, epsilon in ways:
        scores: dict[tuple[tuple[str, float], ...], list[float]] = {}
        settings = SETTINGS[args.task][way]
        for trial in trials(settings, way, epsilon, hospitals, "validation"):
            scores.setdefault(trial.settings, []).append(measure(trial))
        best = max(scores, key=lambda each: statistics.mean(scores[each]))
        chosen = [each for each in trials(settings, way, epsilon, hospitals, "test") if each.settings == best]
        aurocs = {seed: [measure(replace(each, seed=seed)) for each in chosen] for seed in SEEDS}
        print(row(way, epsilon, dict(best), aurocs), flush=True)


def row(way: str, epsilon: float | None, settings: Mapping[str, float], aurocs: Mapping[int, list[float]]) -> str:
    """One line of the table: the mean over seeds (and hospitals), the range over seeds, and that over hospitals."""
    means = [statistics.mean(values) for values in aurocs.values()]
    spread = f"{min(means):.3f} to {max(means):.3f}"
    every = [statistics.mean(values) for values in zip(*aurocs.values(), strict=True)]
    hospitals = f", hospitals {min(every):.3f} to {max(every):.3f}" if len(every) > 1 else ""
    at = "" if epsilon is None else f" ε = {epsilon:g}"
    return f"{way}{at}: AUROC {statistics.mean(means):.3f} (seeds {spread}{hospitals}), {settings}"


if __name__ == "__main__":
    main()
