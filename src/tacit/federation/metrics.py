"""Metrics of a model on the sites' held-out data, as integers for secure aggregation.

Each of (loss, correct, count) is a 64-bit number in four limbs of 16 bits, modulo 2^64, so sums of up to 65,536 sites
neither wrap around nor lose a sign.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from tacit.protocols.secagg import Vector

_LIMBS = 4
DIM = 3 * _LIMBS
_STEP = 2.0**-20  # of the sum of losses
_LARGEST = 2.0**40


@dataclass(frozen=True)
class HeldOut:
    """Held-out samples: the sum of losses, the number classified correctly, and the total number."""

    loss: float
    correct: int
    count: int

    def to_vector(self) -> Vector:
        """As limbs; a loss that is not finite counts as the largest one."""
        loss = min(max(np.nan_to_num(self.loss, nan=_LARGEST, posinf=_LARGEST, neginf=-_LARGEST), -_LARGEST), _LARGEST)
        return np.concatenate([_limbs(value) for value in (round(loss / _STEP), self.correct, self.count)])

    @classmethod
    def of_sum(cls, vector: Vector) -> "HeldOut":
        """From the sum of vectors."""
        loss, correct, count = (_number(vector[_LIMBS * i : _LIMBS * (i + 1)]) for i in range(3))
        return cls(loss * _STEP, correct, count)

    @property
    def metrics(self) -> dict[str, float]:
        """Mean loss and, for classifiers, accuracy; empty without samples."""
        if self.count <= 0:
            return {}
        accuracy = {"accuracy": self.correct / self.count} if self.correct >= 0 else {}
        return {**accuracy, "loss": self.loss / self.count}


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
