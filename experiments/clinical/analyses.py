"""Figures of `tacit describe` and `tacit survival`: accuracy on lung, coverage of intervals, time from CSV to page.

    TACIT_DATA=... python experiments/clinical/analyses.py            all, in minutes
    TACIT_DATA=... python experiments/clinical/analyses.py lung time  some of them

It reads `settings/analyses.toml`, runs the commands' own functions, and writes `analyses.json` beside itself. For
coverage, noise of the distribution that a run declares is added to the exact sums of that run, since 6,000 runs of the
whole protocol would add nothing but time; one run of each setting is played in full.
"""

import csv
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tacit.analyses.describe import summaries
from tacit.analyses.questions import DescribeQuestion, SurvivalQuestion
from tacit.analyses.sums import Released, SumNoise
from tacit.analyses.survival import Curve
from tacit.data.encoding import Encoding
from tacit.data.tables import read_table
from tacit.report.analyses import Analysis, run_analysis
from tacit.runs.analyses import Setting

HERE = Path(__file__).parent
SETTINGS = tomllib.loads((HERE / "settings" / "analyses.toml").read_text())


def data(name: str) -> Path:
    """A data set's file."""
    return Path(os.environ.get("TACIT_DATA", "data")) / name


def lung() -> dict[str, object]:
    """RMSE of the private curve on a declared grid, over draws of the noise of all institutions' shares."""
    settings = SETTINGS["lung"]
    table = read_table(data(settings["file"]))
    clients = np.array([value or "none" for value in table.texts(settings["client"])])
    rows = {"client": clients, "time": table.numbers("time"), "status": table.numbers("status")}
    horizon, step = float(settings["horizon"]), float(settings["step"])
    asked: dict[str, Any] = {"time": "time", "event": "status"}
    exact = _asked(rows, SurvivalQuestion(**asked), None)
    ends = np.minimum(step * np.arange(1, int(np.ceil(horizon / step)) + 1), horizon)
    times, values = np.array(exact.frame["time"], dtype=float), np.array(exact.frame["survival"], dtype=float)
    truth = values[np.searchsorted(times, ends, side="right") - 1]
    question = SurvivalQuestion(**asked, horizon=horizon, step=step)
    cells = _asked(rows, question, None).run.state.weights.numpy()
    private = _asked(rows, question, settings["epsilon"])
    noise, random = SumNoise.of(private.run.spec.method), np.random.default_rng(SETTINGS["seed"])
    found = []
    for _ in range(settings["draws"]):
        curve = Curve.of(cells + noise.draw(random, len(cells)), noise=noise.deviation)
        found.append(float(np.sqrt(np.mean((curve.survival - truth) ** 2))))
    half = 1.96 * np.std(found) / np.sqrt(len(found))
    return {
        "patients": len(clients),
        "institutions": len(set(clients)),
        "epsilon": settings["epsilon"],
        "rmse": round(float(np.mean(found)), 4),
        "interval": [round(float(np.mean(found) - half), 4), round(float(np.mean(found) + half), 4)],
        "draws": len(found),
        "reached": bool(np.mean(found) <= settings["reach"]),
    }


def coverage() -> dict[str, object]:
    """How often intervals contain the exact value, over runs and cells."""
    settings = SETTINGS["coverage"]
    return {name: _coverage_of(settings[name], settings) for name in ("ist", "hospital-charges")}


def _coverage_of(chosen: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, object]:
    table = read_table(data(chosen["file"]))
    columns = (*chosen["numbers"], *chosen["categories"])
    rows = {name: table.columns[name] for name in (*columns, chosen["client"])}
    limits = {name: (float(low), float(high)) for name, (low, high) in chosen["numbers"].items()}
    declared = Encoding(numbers=limits, categories={name: tuple(each) for name, each in chosen["categories"].items()})
    question = DescribeQuestion(columns=columns, bins=chosen["bins"])
    exact = _asked(rows, question, None, client=chosen["client"], encoding=declared)
    total, query = exact.run.state.weights.numpy(), exact.run.spec.method.trainer.query  # type: ignore[attr-defined]
    truth, random = summaries(query, Released(total), columns), np.random.default_rng(SETTINGS["seed"])
    outcome: dict[str, object] = {"rows": table.rows, "cells": len(total)}
    for epsilon in settings["epsilons"]:
        private = _asked(rows, question, epsilon, client=chosen["client"], encoding=declared)
        noise = SumNoise.of(private.run.spec.method)
        covered: dict[str, list[bool]] = {"counts": [], "moments": [], "quantiles": []}
        for _ in range(settings["runs"]):
            released = Released(total + noise.draw(random, len(total)), noise)
            for estimate, true in zip(summaries(query, released, columns), truth, strict=True):
                counts = [(estimate.count, true.count), (estimate.missing, true.missing)]
                counts += zip(estimate.cells, true.cells, strict=True)
                covered["counts"] += [each.lower <= real.value <= each.upper for each, real in counts]
                if estimate.moments is not None and true.moments is not None:
                    pairs = (
                        (estimate.moments.mean, true.moments.mean),
                        (estimate.moments.deviation, true.moments.deviation),
                    )
                    covered["moments"] += [each.lower <= real.value <= each.upper for each, real in pairs]
                quantiles = [(estimate.quantiles[part], real) for part, real in true.quantiles.items()]
                covered["quantiles"] += [each.lower <= real.value <= each.upper for each, real in quantiles]
        parts = {kind: round(float(np.mean(each)), 4) for kind, each in covered.items()}
        every = [one for each in covered.values() for one in each]
        low, high = settings["reach"]
        outcome[f"epsilon {epsilon:g}"] = {
            **parts,
            "all": round(float(np.mean(every)), 4),
            "runs": settings["runs"],
            "deviation of a count": round(noise.deviation, 2),
            "reached": bool(low <= np.mean(every) <= high),
        }
    return outcome


def seconds() -> dict[str, object]:
    """CPU and wall-clock seconds of the whole command on a table of many rows, in a process of its own."""
    settings = SETTINGS["time"]
    random = np.random.default_rng(SETTINGS["seed"])
    count = settings["rows"]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "patients.csv"
        with file.open("w", newline="") as stream:
            writer = csv.writer(stream)
            writer.writerow(["hospital", "days", "died", "arm", "age", "weight", "sex"])
            for i in range(count):
                days, died, age = random.exponential(400), random.random() < 0.6, random.integers(20, 90)
                weight, sex = round(float(random.normal(75, 12)), 1), "fm"[int(random.random() < 0.5)]
                hospital = f"h{i % settings['hospitals']}"
                writer.writerow([hospital, int(days), int(died), "xy"[i % 2], int(age), weight, sex])
        table = [str(file), "--client", "hospital"]
        curves = ["--time", "days", "--event", "died", "--by", "arm", "--horizon", "1800"]
        cox = ["--family", "cox", "--time", "days", "--event", "died", "--horizon", "1800"]
        asked = {
            "describe": ["describe", *table],
            "survival": ["survival", *table, *curves],
            "regress": ["regress", *table, "--target", "died"],
            "regress --family cox": ["regress", *table, *cox],
            "regress --family ebm": ["regress", *table, "--target", "died", "--family", "ebm"],
        }
        taken: dict[str, object] = {}
        for name, words in asked.items():
            before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
            subprocess.run(
                [sys.executable, "-m", "tacit", *words, "--out", f"{folder}/run{len(taken)}"],
                check=True,
                capture_output=True,
            )
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            taken[name] = {"wall": round(time.perf_counter() - began, 2), "cpu": round(cpu, 2)}
    return {"rows": count, "hospitals": settings["hospitals"], "seconds": taken, "processor": _processor()}


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


def _asked(rows: Mapping[str, Any], question: Any, epsilon: float | None, **more: Any) -> Analysis:
    return run_analysis(dict(rows), question, Setting(**{"client": "client", "epsilon": epsilon, **more}))


PARTS = {"lung": lung, "coverage": coverage, "time": seconds}


def main(names: list[str]) -> None:
    """Compute the figures of these names, and update the file of results."""
    path = HERE / "analyses.json"
    results = json.loads(path.read_text()) if path.exists() else {}
    for name in names or list(PARTS):
        results[name] = PARTS[name]()
        path.write_text(json.dumps(results, indent=2) + "\n")
        print(name, json.dumps(results[name]))


if __name__ == "__main__":
    main(sys.argv[1:])
