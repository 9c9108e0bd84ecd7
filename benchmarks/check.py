"""Do the contestants compute the same? One round without noise from the same weights on the same data."""

import sys
import tempfile
from pathlib import Path

import torch
from torch import Tensor

from referee import Contestant, ContestantError, playing

TOLERANCE = 1e-3  # of the L2 norm; Flower averages weights in float32, and an update is small beside them


def update_of(contestant: Contestant, workload: str, workers: int) -> Tensor:
    """The mean of the clipped updates, as this contestant computes it."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "update.pt"
        with playing(contestant, workload, workers, f"--check={target}") as player:
            player.play()
        return torch.load(target)


def check(workload: str, contestants: list[Contestant], workers: int) -> bool:
    """Compare everybody with the first contestant; say how far they are apart."""
    reference, agreed = None, True
    for contestant in contestants:
        try:
            update = update_of(contestant, workload, workers)
        except ContestantError as error:
            print(error, file=sys.stderr)
            agreed = False
            continue
        reference = update if reference is None else reference
        apart = float((update - reference).norm() / reference.norm())
        agreed &= apart <= TOLERANCE
        print(f"{workload}  {contestant.name:<14} norm {float(update.norm()):.6f}  relative difference {apart:.1e}")
    return agreed
