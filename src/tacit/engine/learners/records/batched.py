"""Sums of gradients that are clipped record by record, for a few records at a time.

How the gradients are computed is left to a `GradientWay`: by the rules of a model's layers, or with `torch.func`.
"""

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from tacit.core.rows import DEPTH, ClippedSum
from tacit.engine.layout import Layout
from tacit.engine.learners.records.gradients import SUMMED, RecordGradients

AT_ONCE = 256  # records at most: more of a small model are not faster
SUMS = 16  # of `SUMMED` records that are added in float32
WORKING_MEMORY = 24 << 20  # bytes, for the records that are computed at once
SAFE = (1e-10, 1e15)  # norms that are computed well in float32
LONGEST = 2.0**60  # a gradient that is longer than the bound by more than this factor is dropped, as one that is NaN
assert SUMMED + SUMS <= DEPTH


class GradientWay(Protocol):
    """A way to compute the gradients of a few records."""

    layout: Layout

    def load(self, weights: Tensor) -> None:
        """Use these weights from now on."""
        ...

    def gradients(self, x: Tensor, y: Tensor, wanted: Collection[str]) -> dict[str, RecordGradients]:
        """The gradients of every record at the parameters with these names; those that are missing are zero."""
        ...

    def memory(self, x: Tensor, y: Tensor) -> int:
        """How many bytes one record takes while it is computed, about."""
        ...


@dataclass(frozen=True, eq=False)
class Target:
    """Where a parameter's gradients are in a sum, and which of its coordinates; None: all."""

    start: int
    stop: int
    coordinates: Tensor | None


@dataclass(frozen=True, eq=False)
class _Job:
    """What a sum is over."""

    clip: float
    targets: dict[str, Target]
    dtype: torch.dtype


class BatchedRecords:
    """Sums of clipped gradients, computed for a few records at a time.

    The number of records at a time depends on the memory that one of them takes, and on nothing else.
    """

    def __init__(self, way: GradientWay) -> None:
        self.way, self.layout = way, way.layout
        self._masked: tuple[Tensor, dict[str, Target]] | None = None  # the last mask, and its targets
        self._memory: int | None = None

    @torch.no_grad()
    def clipped_sum(self, weights: Tensor, x: Tensor, y: Tensor, clip: float, mask: Tensor | None) -> ClippedSum:
        """The sum over all weights, or those under the mask; records whose gradient is not finite add nothing to it."""
        self.way.load(weights)
        job = _Job(clip, self._all if mask is None else self._under(mask), weights.dtype)
        length = self.layout.dim if mask is None else len(mask)
        total = torch.zeros(length, dtype=torch.float64, device=weights.device)
        norms = [total.new_zeros(0)]
        if len(x) and job.targets:
            size = self._at_once(x[:1], y[:1])
            together = size * (SUMS // -(-size // SUMMED))  # records whose sums are added in float32
            for some in zip(torch.split(x, together), torch.split(y, together), strict=True):
                part = weights.new_zeros(length)
                few = zip(*(torch.split(side, size) for side in some), strict=True)
                norms += [self._add(part, job, *each) for each in few]
                total += part
        return ClippedSum(total, torch.cat(norms))

    def _add(self, total: Tensor, job: "_Job", x: Tensor, y: Tensor) -> Tensor:
        """Add a few records' clipped gradients to the total, and return their norms."""
        found = self.way.gradients(x, y, job.targets)
        parts = [(job.targets[name], _at(part, job.targets[name].coordinates)) for name, part in found.items()]
        norms = _norms([part for _, part in parts], wide=False)
        if not bool(((norms > SAFE[0]) & (norms < SAFE[1])).all()):
            norms = _norms([part for _, part in parts], wide=True)
        usable = norms <= job.clip * LONGEST  # false for NaN, too
        if bool(usable.all()):
            factors = (job.clip / norms).clamp(max=1).to(job.dtype)
            for target, part in parts:
                part.add_sum(factors, total[target.start : target.stop])
        elif bool(usable.any()):
            self._add(total, job, x[usable], y[usable])
        return norms

    def _at_once(self, x: Tensor, y: Tensor) -> int:
        if self._memory is None:
            self._memory = max(self.way.memory(x, y), 1)
        return max(1, min(AT_ONCE, WORKING_MEMORY // self._memory))

    @cached_property
    def _all(self) -> dict[str, Target]:
        return {name: Target(*self.layout.span(name), None) for name in self.layout.names}

    def _under(self, mask: Tensor) -> dict[str, Target]:
        """The parameters that have coordinates in the mask; it ascends, so that those of a parameter are contiguous."""
        if self._masked is None or not (self._masked[0] is mask or torch.equal(self._masked[0], mask)):
            targets = {}
            for name, target in self._all.items():
                start, stop = torch.searchsorted(mask, torch.tensor([target.start, target.stop])).tolist()
                if start < stop:
                    targets[name] = Target(start, stop, mask[start:stop] - target.start)
            self._masked = mask, targets
        return self._masked[1]


def _at(gradients: RecordGradients, coordinates: Tensor | None) -> RecordGradients:
    return gradients if coordinates is None else gradients.at(coordinates)


def _norms(parts: list[RecordGradients], *, wide: bool) -> Tensor:
    """The norm of every record's gradient at all parameters."""
    return torch.stack([part.squares(wide=wide) for part in parts]).sum(0).sqrt()
