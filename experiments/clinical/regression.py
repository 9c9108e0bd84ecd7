"""Figures of `tacit regress`: coverage of intervals, accuracy on heart disease, AUROC on IST and covid-mx.

    TACIT_DATA=... python experiments/clinical/regression.py                       all
    TACIT_DATA=... python experiments/clinical/regression.py coverage --draws 100  some of them, with fewer draws

It reads `settings/regression.toml` and writes `regression.json` beside itself. Rounds, steps and noise are those of the
method that the command runs, calibrated for these clients. The noise is drawn with its declared deviation and added to
exact sums: playing the whole protocol thousands of times would add nothing but time.
"""

import argparse
import json
import os
import sys
import tomllib
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tacit.analyses.boosting import BoostTerms
from tacit.analyses.fit_rule import plan_fit
from tacit.analyses.fitting import FitPlan, FitState
from tacit.analyses.hazards import HazardTerms
from tacit.analyses.questions import RegressionQuestion
from tacit.analyses.regression import Design, RegressionTerms
from tacit.analyses.regression_results import residual_variance
from tacit.analyses.sums import SumNoise, SumRelease, method_of
from tacit.core.losses import auroc
from tacit.core.prices import ClientUnits
from tacit.data.encoding import Encoding
from tacit.data.tables import read_table
from tacit.engine.learners.records.term_sums import term_sum
from tacit.runs.run import calibrate_method

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
from clinical.unaided import TABLES, _with_gaps  # noqa: E402

SETTINGS = tomllib.loads((HERE / "settings" / "regression.toml").read_text())
Z = 1.959964
Fitted = RegressionTerms | HazardTerms | BoostTerms


def deviation_of(query: Fitted, release: SumRelease) -> float:
    """The deviation of the noise in each number of a sum, all shares included."""
    method = method_of("regress", query, release, rounds=query.plan.releases, server=query.step)
    return SumNoise.of(
        calibrate_method(method, release.clients, ClientUnits((release.units,) * release.clients))
    ).deviation


def fit(query: RegressionTerms | HazardTerms, x: torch.Tensor, noise: float, random: np.random.Generator) -> FitState:
    """A fit to these rows, without its histogram."""
    return FitState(run_rounds(query, x, noise, random), query.step)


def run_rounds(query: Fitted, x: torch.Tensor, noise: float, random: np.random.Generator) -> NDArray[np.float64]:
    """The state after all rounds but that of a histogram."""
    state = np.zeros(query.length)
    for _ in range(query.plan.fitted):
        total = term_sum(query, torch.from_numpy(state), x, x, None).numpy()
        state = query.step.step(state, total + noise * random.standard_normal(len(total)))
    return state


def sample(family: str, effects: NDArray[np.float64], count: int, random: np.random.Generator) -> torch.Tensor:
    """Encoded rows of a population: three numbers, and columns of two and of three categories."""
    numbers, second = np.clip(random.normal(0.5, 0.22, (count, 3)), 0, 1), random.random(count) < 0.4
    third = random.choice(3, count, p=[0.5, 0.3, 0.2])
    x = np.c_[numbers, ~second, second, third == 0, third == 1, third == 2, np.zeros((count, 2))]
    score = DESIGN.rows(torch.from_numpy(x))[0].numpy() @ effects
    if family == "logistic":
        x[:, 8] = random.random(count) < 1 / (1 + np.exp(-score))
    else:
        x[:, 8] = np.clip((1 + score + random.normal(0, 0.15, count)) / 2, 0, 1)
    return torch.from_numpy(x)


DESIGN = Design(numbers=(0, 1, 2), categories=((3, 4), (5, 6, 7)))


def coverage(draws: int | None) -> dict[str, object]:
    """How often intervals contain the pooled estimate, and the coefficients of the population."""
    random, results = np.random.default_rng(SETTINGS["seed"]), dict[str, object]()
    for family, settings in SETTINGS["coverage"].items():
        effects, persons = np.array(settings["effects"]), settings["persons"]
        any_plan = RegressionTerms(family=family, design=DESIGN, target=8, unknown=9, plan=FitPlan(1))
        release = SumRelease(epsilon=None, clients=10, units=persons // 10)
        exact = plan_fit(any_plan, release)
        exact = replace(exact, plan=replace(exact.plan, rounds=min(exact.plan.rounds, 12)))
        for epsilon in SETTINGS["epsilons"]:
            private = replace(release, epsilon=epsilon)
            query = plan_fit(any_plan, private)
            noise, of_pooled, of_truth = deviation_of(query, private), [], []
            for _ in range(draws or SETTINGS["draws"]):
                x = sample(family, effects, persons, random)
                pooled, state = fit(exact, x, 0.0, random).estimate, fit(query, x, noise, random)
                covariance = state.noise_covariance(noise)
                whole = covariance + residual_variance(query, state) * state.covariance_root
                of_pooled.append(np.abs(state.estimate - pooled) < Z * np.sqrt(np.diag(covariance)))
                of_truth.append(np.abs(state.estimate - effects) < Z * np.sqrt(np.diag(whole)))
            results[f"{family}, epsilon {epsilon:g}"] = {
                "persons": persons,
                "draws": len(of_pooled),
                "coefficients": len(effects),
                "pooled": round(float(np.mean(of_pooled)), 4),
                "population": round(float(np.mean(of_truth)), 4),
            }
    return results


def heart(draws: int | None) -> dict[str, object]:
    """Mean accuracy of the four hospitals on held-out rows of each."""
    settings = SETTINGS["heart"]
    rows = [row for hospital in settings["hospitals"] for row in _patients(hospital)]
    hospital = np.array([row.pop("hospital") for row in rows])
    encoding = Encoding(
        numbers={name: tuple(limits) for name, limits in settings["numbers"].items()},
        categories={name: tuple(values) for name, values in settings["categories"].items()},
    )
    table = read_table({name: [row[name] for row in rows] for name in rows[0]})
    question = RegressionQuestion(target="num")
    encoding = question.encode(table, encoding)
    x, any_plan = encoding.inputs(table), question.query(encoding)
    outcome, inputs = x[:, any_plan.target].numpy() > 0.5, any_plan.design.rows(x)[0].numpy()
    results: dict[str, object] = {"rows": len(rows), "hospitals": np.unique(hospital, return_counts=True)[1].tolist()}
    for epsilon in (None, *SETTINGS["epsilons"]):
        accuracies = []
        for split in range(settings["splits"]):
            random = np.random.default_rng([SETTINGS["seed"], split])
            train = np.zeros(len(rows), dtype=bool)
            for name in settings["hospitals"]:
                own = random.permutation(np.flatnonzero(hospital == name))
                train[own[: round(settings["train"] * len(own))]] = True
            units = max(int((train & (hospital == name)).sum()) for name in settings["hospitals"])
            release = SumRelease(epsilon=epsilon, clients=4, units=units, persons=float(train.sum()))
            query = plan_fit(any_plan, release)
            noise = 0.0 if epsilon is None else deviation_of(query, release)
            for _ in range(1 if epsilon is None else draws or settings["draws"]):
                predicted = inputs @ fit(query, x[torch.from_numpy(train)], noise, random).estimate > 0
                right = predicted == outcome
                accuracies.append(
                    np.mean([right[~train & (hospital == name)].mean() for name in settings["hospitals"]])
                )
        results[f"epsilon {epsilon}"] = {
            "accuracy": round(float(np.mean(accuracies)), 4),
            "deviation": round(float(np.std(accuracies)), 4),
            "fits": len(accuracies),
        }
    return results


def _patients(hospital: str) -> list[dict[str, Any]]:
    """The complete rows of a hospital."""
    settings, patients = SETTINGS["heart"], []
    file = Path(os.environ.get("TACIT_DATA", "data")) / "heart-disease" / f"processed.{hospital}.data"
    for line in file.read_text().split():
        row = dict(zip(settings["columns"], line.split(","), strict=True))
        kept = {name: row[name] for name in (*settings["numbers"], *settings["categories"])}
        if all(value not in ("?", "NaN") for value in kept.values()):
            values: dict[str, Any] = {name: float(value) for name, value in kept.items()}
            values |= {name: f"{float(kept[name]):g}" for name in settings["categories"]}
            patients.append({**values, "num": str(int(float(row["num"]) > 0)), "hospital": hospital})
    return patients


def table(name: str, draws: int | None) -> dict[str, object]:
    """AUROC on a held-out fifth of the patients, beside the exact pooled fit of the same encoding."""
    settings = SETTINGS["tables"][name]
    columns, ranges, client, target, _ = TABLES[name]()
    kept = {key: column for key, column in columns.items() if key != client}
    categories = {}
    for key in kept:
        if key not in (*ranges, target):
            values, counts = np.unique(np.array(kept[key], dtype=str), return_counts=True)
            common = values[counts >= SETTINGS["common"] * len(kept[key])]
            categories[key] = tuple("" if value == "?" else str(value) for value in common)
    rows_of = read_table({key: _with_gaps(column, key in ranges) for key, column in kept.items()})
    question = RegressionQuestion(target=f"{target}={settings['event']}")
    encoding = question.encode(rows_of, Encoding(numbers=ranges, categories=categories))
    x, any_plan = encoding.inputs(rows_of), question.query(encoding)
    rows, known = any_plan.design.rows(x)
    test = torch.from_numpy(np.random.default_rng(SETTINGS["seed"]).random(len(x)) < 0.2)
    hospitals, counts = np.unique(np.array(columns[client], dtype=str)[~test.numpy()], return_counts=True)
    release = SumRelease(
        epsilon=None, clients=len(hospitals), units=int(counts.max()), persons=float(counts.sum()),
        delta=settings["delta"],
    )  # fmt: skip
    sizes: dict[str, object] = {
        "rows": len(x),
        "complete": int(known.sum()),
        "clients": len(hospitals),
        "inputs": rows.shape[1],
    }
    for epsilon in (None, *SETTINGS["epsilons"]):
        private = replace(release, epsilon=epsilon)
        query = plan_fit(any_plan, private)
        if epsilon is None:
            query = replace(query, plan=replace(query.plan, rounds=min(query.plan.rounds, 12)))
        noise, random = 0.0, np.random.default_rng(SETTINGS["seed"])
        if epsilon is not None:
            noise = deviation_of(query, private)
        reached = []
        for _ in range(1 if epsilon is None else draws or settings["draws"]):
            state = fit(query, x[~test], noise, random)
            scores = rows[test & known] @ torch.from_numpy(state.estimate)
            reached.append(auroc(scores, x[test & known, any_plan.target] > 0.5))
        sizes[f"epsilon {epsilon}"] = {
            "auroc": round(float(np.mean(reached)), 4),
            "deviation": round(float(np.std(reached)), 4),
            "fits": len(reached),
            "rounds": query.plan.releases,
        }
    return sizes


PARTS: dict[str, Callable[[int | None], dict[str, object]]] = {
    "coverage": coverage,
    "heart": heart,
    **{name: partial(table, name) for name in SETTINGS["tables"]},
}


def main() -> None:
    """Compute figures, and update the file of results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS])
    parser.add_argument("--draws", type=int, help="of noise (default: as settings/regression.toml declares)")
    args = parser.parse_args()
    path = HERE / "regression.json"
    results = json.loads(path.read_text()) if path.exists() else {}
    for name in args.parts or list(PARTS):
        results[name] = PARTS[name](args.draws)
        path.write_text(json.dumps(results, indent=2) + "\n")
        print(json.dumps({name: results[name]}), flush=True)


if __name__ == "__main__":
    main()
