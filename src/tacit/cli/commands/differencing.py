"""`tacit attack differencing`: what two sums reveal about one patient, exact and private."""

import argparse
from pathlib import Path

import numpy as np

from tacit.analyses.sums import SumNoise, SumRelease, method_of
from tacit.attacks.differencing import Differences, NewtonTerms, attack_sums
from tacit.cli._console import answer
from tacit.core import files
from tacit.data import Task
from tacit.errors import DataError
from tacit.report.differences import RecordPanel, draw_records
from tacit.runs.run import calibrate_method


def attack(args: argparse.Namespace) -> int:
    """Attack every patient of a table, and save the picture."""
    task = Task.from_table(args.table, target=args.target, client=args.client, drop=args.drop, test=0)
    encoding, population = task.encoding, task.population
    if encoding is None or len(encoding.known_target.classes) != 2:
        raise DataError(f"Expected an outcome of two values in {args.target!r}, got another column.")
    query = NewtonTerms(population.x.shape[1])
    units = int(population.unit_sizes.max())
    release = SumRelease(epsilon=args.epsilon, delta=args.delta, clients=len(population), units=units)
    method = calibrate_method(method_of("differencing", query, release), len(population), population.client_units)
    random = np.random.default_rng(args.seed)
    exact = attack_sums(population, SumNoise(), random)
    private = attack_sums(population, SumNoise.of(method), random)
    picture = args.picture or Path("runs") / "attacks" / f"differencing-{Path(args.table).name.partition('.')[0]}.svg"
    files.write(picture, draw_records(_panels(exact, private, args.epsilon)).encode(), parents=True, private=True)
    document = {
        "patients": len(exact.records),
        "exact": _figures(exact),
        "private": {**_figures(private), "epsilon": args.epsilon, "delta": args.delta},
        "picture": str(picture),
    }
    of = f"of {len(exact.records)}"
    guessed = max(exact.outcomes.mean(), 1 - exact.outcomes.mean())
    lines = [
        "The first message of a federated logistic regression is a gradient and a Hessian.",
        f"From two exact messages: {exact.recovered} {of} records recovered, every value within 0.5 % of its range.",
        f"From two private sums, ε = {args.epsilon:g} each: {private.recovered} {of} records recovered.",
        f"Outcomes right from private sums: {private.outcomes_right:.0%}; by guessing alike: {guessed:.0%}.",
        f"Picture: {picture}",
    ]
    return answer(args, document, lines)


def _figures(differences: Differences) -> dict[str, object]:
    return {
        "recovered": differences.recovered,
        "outcomes_right": differences.outcomes_right,
        "median_error": float(np.median(differences.errors)),
    }


def _panels(exact: Differences, private: Differences, epsilon: float) -> list[RecordPanel]:
    """The records, and what exact and private sums give back."""
    count, title = len(exact.records), f"What two private sums reveal (ε = {epsilon:g})"
    return [
        RecordPanel("Patients' records", "in the hospital", exact.records, exact.outcomes),
        RecordPanel(
            "What two exact sums reveal",
            f"{exact.recovered} of {count} recovered",
            exact.read_records,
            exact.read_outcomes,
        ),
        RecordPanel(title, f"{private.recovered} of {count} recovered", private.read_records, private.read_outcomes),
    ]
