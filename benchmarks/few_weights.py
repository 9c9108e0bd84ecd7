"""Prints what FL-TOP sends of the paper's CNN in a round, secure aggregation included, beside the whole model.

`python benchmarks/few_weights.py`: 100 clients, 0.5 % of 1,663,370 weights, ε = 8, every client in every round. Three
rounds are simulated, with one image for each client, because bytes do not depend on the data. The mask, which is sent
once, and the set-up of secure aggregation are spread over the rounds of an epoch.
"""

import json
import sys

import torch

import tacit
from tacit.tasks.models import mcmahan_cnn

CLIENTS, RATIO, EPOCH = 100, 0.005, 50


def bytes_of_a_round() -> dict[str, float]:
    """Bytes of one client in a round, by direction, and how many times those of the whole model they are."""
    images = torch.Generator().manual_seed(0)
    parts = [(torch.randn(1, 1, 28, 28, generator=images), torch.tensor([client % 10])) for client in range(CLIENTS)]
    task = tacit.Task(model=mcmahan_cnn, clients=parts, public=parts[0])
    method = tacit.methods.fl_top_dp(ratio=RATIO, rounds=3, cohort=CLIENTS, epsilon=8, delta=1e-3, clip=0.5)
    history = tacit.train(method, task, randomness="seeded").history
    (first_up, later_up), (first_down, later_down) = (
        (sum(getattr(history[0], way)) / CLIENTS, sum(getattr(history[1], way)) / CLIENTS) for way in ("up", "down")
    )
    up, down = (later_up + (first_up - later_up) / EPOCH, later_down + (first_down - later_down) / EPOCH)
    weights = sum(each.numel() for each in mcmahan_cnn().parameters())
    step = history[1].grid_step
    return {
        "weights": weights,
        "bits": 0 if step is None else step.bits,
        "up": up,
        "down": down,
        "whole model, both ways": 8 * weights,
        "times less": 8 * weights / (up + down),
        "times less, at 4 bytes a number": 8 * weights / (up + down + (4 - step.bits / 8) * round(RATIO * weights))
        if step
        else 0,
    }


if __name__ == "__main__":
    json.dump(bytes_of_a_round(), sys.stdout, indent=2)
    sys.stdout.write("\n")
