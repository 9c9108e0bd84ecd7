"""Figures of `tacit regress --family cox`: the c-index on TCGA-BRCA, with FLamby's split, and coverage of intervals.

    TACIT_DATA=... python experiments/clinical/hazards.py              both
    TACIT_DATA=... python experiments/clinical/hazards.py coverage     one of them

It reads `settings/hazards.toml` and writes `hazards.json` beside itself. Clients are the six regions of the centres.
Rounds and noise are those of the method that the command runs; noise of its deviation is added to exact sums.
"""

import csv
import gzip
import json
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from tacit.analyses.fit_rule import plan_fit
from tacit.analyses.fitting import FitPlan
from tacit.analyses.hazards import HazardTerms
from tacit.analyses.questions import CoxQuestion
from tacit.analyses.regression import Design
from tacit.analyses.sums import Z95, SumRelease
from tacit.data.encoding import Encoding
from tacit.data.tables import read_table

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
from clinical.analyses import data  # noqa: E402
from clinical.regression import deviation_of, fit  # noqa: E402

SETTINGS = tomllib.loads((HERE / "settings" / "hazards.toml").read_text())


def c_index(scores: NDArray[np.float64], times: NDArray[np.float64], events: NDArray[np.bool_]) -> float:
    """Harrell's: the part of comparable pairs in which the higher score has the earlier event; ties count half."""
    comparable = (times[:, None] < times) & events[:, None]
    difference = scores[:, None] - scores
    return float((np.sign(difference)[comparable] + 1).mean() / 2)


def brca() -> dict[str, object]:
    """Fit to the training fold, and compare on the other."""
    with gzip.open(data(SETTINGS["file"]), "rt") as stream:
        rows = {row["pid"]: row for row in csv.DictReader(stream)}
    with data(SETTINGS["split"]).open() as stream:
        folds = {row["pid"]: row["fold"] for row in csv.DictReader(stream)}
    with data(SETTINGS["centres"]).open() as stream:
        regions = {row["TSS Code"]: row["Region"] for row in csv.DictReader(stream)}
    pids = [pid for pid in rows if pid in folds]
    names = [name for name in rows[pids[0]] if name != "pid"]
    numeric = {SETTINGS["time"], SETTINGS["age"]}
    table = read_table(
        {name: [float(rows[pid][name]) if name in numeric else f"{float(rows[pid][name]):g}" for pid in pids]
         for name in names}
    )  # fmt: skip
    low, high = SETTINGS["ages"]
    categories = {name: ("0", "1") for name in names if name not in {*numeric, SETTINGS["event"]}}
    declared = Encoding(numbers={SETTINGS["age"]: (float(low), float(high))}, categories=categories)
    question = CoxQuestion(
        time=SETTINGS["time"], event=SETTINGS["event"], horizon=float(SETTINGS["horizon"]), step=float(SETTINGS["step"])
    )
    encoding = question.encode(table, declared)
    x, any_plan = encoding.inputs(table), question.query(encoding)
    train = np.array([folds[pid] == "train" for pid in pids])
    sites, counts = np.unique([regions[pid.split("-")[1]] for pid in np.array(pids)[train]], return_counts=True)
    inputs, known = (each.numpy() for each in any_plan.design.rows(x))
    test, pieces = ~train & known, any_plan.pieces
    times = table.numbers(SETTINGS["time"])[test]
    events = np.array([float(rows[pid][SETTINGS["event"]]) > 0 for pid in pids])[test]
    results: dict[str, object] = {
        "training": int(train.sum()),
        "test": int(test.sum()),
        "events": int(events.sum()),
        "clients": dict(zip(sites.tolist(), counts.tolist(), strict=True)),
    }
    for epsilon in (None, *SETTINGS["epsilons"]):
        release = SumRelease(
            epsilon=epsilon, delta=SETTINGS["delta"], clients=len(sites), units=int(counts.max()),
            persons=float(train.sum()),
        )  # fmt: skip
        query, random = plan_fit(any_plan, release), np.random.default_rng(SETTINGS["seed"])
        noise = 0.0 if epsilon is None else deviation_of(query, release)
        reached = []
        for _ in range(1 if epsilon is None else SETTINGS["draws"]):
            effects = fit(query, x[torch.from_numpy(train)], noise, random).estimate[pieces:]
            reached.append(c_index(inputs[test, 1:] @ effects, times, events))
        half = 1.96 * np.std(reached) / np.sqrt(len(reached))
        results[f"epsilon {epsilon}"] = {
            "c-index": round(float(np.mean(reached)), 4),
            "interval of the mean": [round(float(np.mean(reached) + side * half), 4) for side in (-1, 1)],
            "deviation": round(float(np.std(reached)), 4),
            "fits": len(reached),
            "rounds": query.plan.releases,
            "reached": bool(np.mean(reached) >= SETTINGS["reach"]),
        }
        print(epsilon, json.dumps(results[f"epsilon {epsilon}"]), flush=True)
    return results


DESIGN = Design(numbers=(0,), categories=((1, 2),))
COX = HazardTerms(design=DESIGN, time=3, missing=4, event=5, unknown=6, pieces=5, plan=FitPlan(1))


def coverage() -> dict[str, object]:
    """How often intervals contain the pooled estimate and the effects of the population, by Newton's method."""
    settings, random, results = SETTINGS["coverage"], np.random.default_rng(SETTINGS["seed"]), dict[str, object]()
    effects, rate = np.array(settings["effects"]), settings["hazard"]
    truth = np.append(np.full(COX.pieces, np.log(rate)), effects)
    for epsilon, persons in settings["persons"].items():
        release = SumRelease(epsilon=float(epsilon), clients=10, units=persons // 10)
        exact, query = plan_fit(COX, replace(release, epsilon=None)), plan_fit(COX, release)
        exact = replace(exact, plan=replace(exact.plan, rounds=10))
        noise, of_pooled, of_truth = deviation_of(query, release), [], []
        for _ in range(settings["draws"]):
            age, sex = random.random(persons), random.random(persons) < 0.4
            hazards = rate * np.exp(np.c_[2 * age - 1, sex] @ effects)
            until, censored = random.exponential(1 / hazards), random.uniform(0, settings["followed"], persons)
            place = np.clip((np.minimum(until, censored) + 1) / (COX.pieces + 2), 0, 1)
            none = np.zeros(persons)
            x = torch.from_numpy(np.c_[age, ~sex, sex, place, none, until <= censored, none])
            pooled, state = fit(exact, x, 0.0, random).estimate, fit(query, x, noise, random)
            covariance = state.noise_covariance(noise)
            whole = covariance + state.covariance_root
            of_pooled.append(np.abs(state.estimate - pooled) < Z95 * np.sqrt(np.diag(covariance)))
            of_truth.append(np.abs(state.estimate - truth) < Z95 * np.sqrt(np.diag(whole)))
        results[f"epsilon {epsilon}"] = {
            "persons": persons,
            "draws": len(of_pooled),
            "coefficients": len(truth),
            "pooled": round(float(np.mean(of_pooled)), 4),
            "population": round(float(np.mean(of_truth)), 4),
        }
        print(epsilon, json.dumps(results[f"epsilon {epsilon}"]), flush=True)
    return results


PARTS = {"tcga-brca": brca, "coverage": coverage}


def main(names: list[str]) -> None:
    """Compute the figures of these names, and update the file of results."""
    path = HERE / "hazards.json"
    results = json.loads(path.read_text()) if path.exists() else {}
    for name in names or list(PARTS):
        results[name] = PARTS[name]()
        path.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
