"""Kaplan–Meier curves, medians and log-rank tests by lifelines, which the exact analyses must equal.

lifelines needs an older pandas than Tacit's own extras, so it runs in an environment of its own:

    python -m venv reference && reference/bin/pip install lifelines==0.30.3
    reference/bin/python experiments/clinical/lifelines_reference.py lung.csv > tests/golden/lifelines.json
"""

import csv
import json
import sys

from lifelines import KaplanMeierFitter, __version__
from lifelines.statistics import multivariate_logrank_test


def main(path: str) -> None:
    """Print the reference for lung.csv of the NCCTG, whose status is 1 for a death, by sex and by ECOG score."""
    with open(path) as file:
        rows = list(csv.DictReader(file))
    times, events = [float(row["time"]) for row in rows], [row["status"] == "1" for row in rows]
    kept_columns = {name: [row[name] for row in rows] for name in ("inst", "time", "status", "sex", "ph.ecog")}
    found: dict[str, object] = {"lifelines": __version__, "rows": kept_columns}
    for by in ("", "sex", "ph.ecog"):
        kept = [i for i, row in enumerate(rows) if not by or row[by]]
        arms = [rows[i][by] if by else "all" for i in kept]
        curves = {}
        for arm in sorted(set(arms)):
            of_arm = [i for i, name in zip(kept, arms, strict=True) if name == arm]
            fitter = KaplanMeierFitter().fit([times[i] for i in of_arm], [events[i] for i in of_arm])
            curves[arm] = {
                "times": fitter.survival_function_.index.tolist(),
                "survival": fitter.survival_function_["KM_estimate"].tolist(),
                "median": fitter.median_survival_time_,
            }
        test = multivariate_logrank_test([times[i] for i in kept], arms, [events[i] for i in kept])
        found[by or "all"] = {"curves": curves, "statistic": test.test_statistic, "p": test.p_value}
    json.dump(found, sys.stdout, default=float)


if __name__ == "__main__":
    main(sys.argv[1])
