"""AUROC of InterpretML's DP-EBM with its defaults on the splits of `boosting.py`, in an environment of its own.

    python -m venv reference && reference/bin/pip install interpret-core==0.7.8 scikit-learn
    reference/bin/python experiments/clinical/interpretml_reference.py adult.csv.gz > interpretml.json

It has the ranges and ε that `boosting.py` has. Its columns of texts get all values of the rows as categories, which its
ε does not cover, and missing values are a category like any other.
"""

import csv
import gzip
import json
import sys
import tomllib
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
from interpret import __version__
from interpret.privacy import DPExplainableBoostingClassifier
from sklearn.metrics import roc_auc_score

SETTINGS = tomllib.loads((Path(__file__).parent / "settings" / "boosting.toml").read_text())
RANGES = {
    "age": (17.0, 100.0), "fnlwgt": (0.0, 1.5e6), "education-num": (1.0, 16.0), "capital-gain": (0.0, 1e5),
    "capital-loss": (0.0, 5e3), "hours-per-week": (0.0, 100.0),
}  # fmt: skip
TARGET = "income-per-year"


def main(path: str) -> None:
    """Fit to four fifths of the rows, and print AUROC on the others."""
    with gzip.open(path, "rt") as stream:
        rows = [{key.strip(): value.strip() for key, value in row.items()} for row in csv.DictReader(stream)]
    names = [name for name in rows[0] if name != TARGET]
    outcome = np.array([row[TARGET] == SETTINGS["event"] for row in rows])
    frame = pd.DataFrame({name: [float(row[name]) if name in RANGES else row[name] for row in rows] for name in names})
    kinds = ["continuous" if name in RANGES else "nominal" for name in names]
    reached: dict[str, list[float]] = {}
    for epsilon in SETTINGS["epsilons"]:
        for split in range(SETTINGS["splits"]):
            test = np.random.default_rng(split).random(len(rows)) < 0.2
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                model = DPExplainableBoostingClassifier(
                    epsilon=epsilon, delta=SETTINGS["delta"], random_state=split, feature_types=kinds,
                    privacy_bounds=RANGES, n_jobs=1,
                )  # fmt: skip
                model.fit(frame[~test], outcome[~test])
            score = roc_auc_score(outcome[test], model.predict_proba(frame[test])[:, 1])
            reached.setdefault(str(epsilon), []).append(round(float(score), 4))
    print(json.dumps({"interpretml": __version__, "auroc": reached}))


if __name__ == "__main__":
    main(*sys.argv[1:])
