"""Recompute what the ε of a published clinical benchmark leaves out: the steps that were really taken.

    python experiments/clinical/other_platforms.py

FLamby's DP table calibrates Opacus for as many epochs as there are rounds, and then takes `num_updates` steps in every
round.
"""

import json
import math

from scipy.optimize import brentq

from tacit.core.prices import Gaussian, Release, Sampling
from tacit.privacy.accountants import Accounting, Rdp

HOSPITALS = {"Cleveland": 199, "Hungary": 172, "Switzerland": 30, "Long Beach": 85}  # training rows, FLamby's 66 %
BATCH, ROUNDS, UPDATES, EPSILON, DELTA = 4, 15, 100, 1.0, 1e-3


def epsilon(noise: float, rate: float, steps: int) -> float:
    """The ε of these steps of DP-SGD at δ, if batches were Poisson samples."""
    release = Release(Gaussian(noise), sampling=Sampling.at(rate, "poisson"))
    return Accounting.of(Rdp()).compose(release, steps).epsilon(DELTA)


def recompute() -> dict[str, dict[str, float]]:
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


if __name__ == "__main__":
    print(json.dumps(recompute(), indent=2))
