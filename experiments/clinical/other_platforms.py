"""Recompute what other platforms' ε leaves out, and what messages without ε reveal.

    TACIT_DATA=... python experiments/clinical/other_platforms.py

FLamby's DP table calibrates Opacus for as many epochs as there are rounds, and then takes `num_updates` steps in every
round. Flower's example with Opacus makes a new accountant in every round, and prints its ε. Regressions of vantage6 and
NVFLARE send sums without noise, whose differences are records.
"""

import json
import math
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

from tacit.core.prices import Gaussian, Release, Sampling
from tacit.privacy.accountants import Accounting, Rdp

sys.path.insert(0, str(Path(__file__).parents[1]))
from clinical.regression import SETTINGS, _patients

HOSPITALS = {"Cleveland": 199, "Hungary": 172, "Switzerland": 30, "Long Beach": 85}  # training rows, FLamby's 66 %
BATCH, ROUNDS, UPDATES, EPSILON, DELTA = 4, 15, 100, 1.0, 1e-3
FLOWER_ROWS, FLOWER_BATCH, FLOWER_ROUNDS, FLOWER_DELTA = 20_000, 32, 3, 1e-5  # 80 % of half of CIFAR-10, its defaults
FLOWER_NOISE = {"site 0": 1.0, "site 1": 1.5}


def epsilon(noise: float, rate: float, steps: int, delta: float = DELTA) -> float:
    """The ε of these steps of DP-SGD at δ, if batches were Poisson samples."""
    release = Release(Gaussian(noise), sampling=Sampling.at(rate, "poisson"))
    return Accounting.of(Rdp()).compose(release, steps).epsilon(delta)


def flamby() -> dict[str, dict[str, float]]:
    """For each hospital the noise for the claimed ε, and the ε of the steps that were taken."""
    outcome = {}
    for name, rows in HOSPITALS.items():
        loader = math.ceil(rows / BATCH)
        rate, planned = 1 / loader, ROUNDS * loader
        noise = float(brentq(lambda z, rate=rate, planned=planned: epsilon(z, rate, planned) - EPSILON, 0.3, 50))
        taken = ROUNDS * UPDATES
        outcome[name] = {
            "noise multiplier": round(noise, 3),
            "steps accounted for": planned,
            "steps taken": taken,
            "claimed": EPSILON,
            "as taken, Poisson batches": round(epsilon(noise, rate, taken), 2),
        }
    return outcome


def flower() -> dict[str, dict[str, float]]:
    """For each site what is printed in every round, and the ε of all rounds."""
    steps = math.ceil(FLOWER_ROWS / FLOWER_BATCH)
    return {
        name: {
            "noise multiplier": noise,
            "printed in each round": round(epsilon(noise, 1 / steps, steps, FLOWER_DELTA), 2),
            "of all rounds": round(epsilon(noise, 1 / steps, FLOWER_ROUNDS * steps, FLOWER_DELTA), 2),
            "rounds": FLOWER_ROUNDS,
        }
        for name, noise in FLOWER_NOISE.items()
    }


def vantage6_message(x: NDArray[np.float64], y: NDArray[np.float64]) -> tuple[NDArray[np.float64], ...]:
    """A site's first message of a logistic regression, as `compute_local_betas` makes it: XᵀWX and XᵀWz."""
    mean = (y + 0.5) / 2  # where statsmodels starts
    weight = mean * (1 - mean)
    z = np.log(mean / (1 - mean)) + (y - mean) / weight
    return x.T @ (x * weight[:, None]), x.T @ (weight * z)


def vantage6() -> dict[str, int]:
    """Records and outcomes that follow from two messages of a site, before and after each patient joined."""
    settings = SETTINGS["heart"]
    rows = [row for hospital in settings["hospitals"] for row in _patients(hospital)]
    names = [*settings["numbers"], *settings["categories"]]
    x = np.array([[1.0, *(float(row[name]) for name in names)] for row in rows])
    y = np.array([float(row["num"]) for row in rows])
    records = outcomes = 0
    whole = vantage6_message(x, y)
    for patient in range(len(x)):
        others = np.arange(len(x)) != patient
        products, sums = (one - other for one, other in zip(whole, vantage6_message(x[others], y[others]), strict=True))
        records += bool(np.allclose(products[0] / products[0, 0], x[patient], rtol=1e-6, atol=1e-6))
        outcomes += bool((sums[0] > 0) == (y[patient] > 0))
    return {"patients": len(x), "records recovered": records, "outcomes recovered": outcomes}


if __name__ == "__main__":
    print(json.dumps({"FLamby": flamby(), "Flower": flower(), "vantage6": vantage6()}, indent=2))
