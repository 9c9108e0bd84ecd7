"""Metrics of a model on the sites' held-out data, as integers for secure aggregation.

Each of (loss, correct, count) is a 64-bit number in four limbs of 16 bits, modulo 2^64, so sums of up to 65,536 sites
neither wrap around nor lose a sign. Counts of scores by outcome follow, from which AUROC and the like are computed.
They are zeros where there is no event, and where the method adds noise: the exact counts would say more than its
guarantee admits. There, `analysis = "metrics"` asks for them with noise, which is charged.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch

from tacit.core.event_metrics import CELLS, metrics_of_cells
from tacit.protocols.secagg import Vector

_LIMBS = 4
DIM = 3 * _LIMBS + 2 * CELLS
_STEP = 2.0**-20  # of the sum of losses
_LARGEST = 2.0**40


@dataclass(frozen=True)
class HeldOut:
    """Held-out samples: the sum of losses, the number classified correctly, and the total number.

    `cells`: how many scores of each outcome are in each interval, those without the event first; empty: not counted.
    """

    loss: float
    correct: int
    count: int
    cells: tuple[int, ...] = ()

    def to_vector(self) -> Vector:
        """As limbs; a loss that is not finite counts as the largest one."""
        loss = min(max(np.nan_to_num(self.loss, nan=_LARGEST, posinf=_LARGEST, neginf=-_LARGEST), -_LARGEST), _LARGEST)
        cells = np.array(self.cells or (0,) * (2 * CELLS), np.uint32)
        return np.concatenate([*(_limbs(value) for value in (round(loss / _STEP), self.correct, self.count)), cells])

    @classmethod
    def of_sum(cls, vector: Vector) -> "HeldOut":
        """From the sum of vectors."""
        loss, correct, count = (_number(vector[_LIMBS * i : _LIMBS * (i + 1)]) for i in range(3))
        cells = tuple(vector[3 * _LIMBS :].tolist())
        return cls(loss * _STEP, correct, count, cells if any(cells) else ())

    @property
    def metrics(self) -> dict[str, float]:
        """For events how well scores rank them, then accuracy of classifiers, and mean loss; empty without samples."""
        if self.count <= 0:
            return {}
        accuracy = {"accuracy": self.correct / self.count} if self.correct >= 0 else {}
        cells = torch.tensor(self.cells, dtype=torch.int64).view(2, -1)
        events = metrics_of_cells(cells) if self.cells and sum(self.cells) == self.count else {}
        return {**events, **accuracy, "loss": self.loss / self.count}


def pack_vector(vector: Vector) -> bytes:
    """The vector as bytes, for a channel in the clear."""
    return vector.astype("<u4").tobytes()


def read_vectors(replies: Iterable[bytes]) -> Iterator[Vector]:
    """The inverse, for each reply of the right length."""
    return (np.frombuffer(data, "<u4").astype(np.uint32) for data in replies if len(data) == 4 * DIM)


def _limbs(value: int) -> Vector:
    return np.array([value % (1 << 64) >> 16 * i & 0xFFFF for i in range(_LIMBS)], np.uint32)


def _number(limbs: Vector) -> int:
    total = sum(int(limb) << 16 * i for i, limb in enumerate(limbs)) % (1 << 64)
    return total - (1 << 64) if total >> 63 else total
