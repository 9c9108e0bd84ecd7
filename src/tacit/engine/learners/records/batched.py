"""Sums of gradients that are clipped record by record, or person by person, for a few records at a time.

How the gradients are computed is left to a `GradientWay`: by the rules of a model's layers, or with `torch.func`.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Protocol

import torch
from torch import Tensor

from tacit.core.rows import DEPTH, ClippedSum
from tacit.engine.layout import Layout
from tacit.engine.learners.records.gradients import SUMMED, FormedGradients, RecordGradients

AT_ONCE = 256  # records at most: more of a small model are hardly faster
SUMS = 16  # of `SUMMED` records that are added in float32
WORKING_MEMORY = 32 << 20  # bytes, for the records that are computed at once
SAFE = (1e-10, 1e18)  # norms that are computed well in float32
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
    def clipped_sum(
        self, weights: Tensor, x: Tensor, y: Tensor, clip: float, mask: Tensor | None, counts: Tensor | None = None
    ) -> ClippedSum:
        """The sum over all weights, or those under the mask; records whose gradient is not finite add nothing to it."""
        self.way.load(weights)
        job = _Job(clip, self._all if mask is None else self._under(mask), weights.dtype)
        length = self.layout.dim if mask is None else len(mask)
        total = torch.zeros(0, dtype=torch.float64, device=weights.device)
        norms = [total]
        if len(x) and job.targets:
            size = self._at_once(x[:1], y[:1], 0 if counts is None else length * weights.element_size())
            together = SUMS // -(-size // SUMMED)  # groups of records whose sums are added in float32
            few = _few(x, y, counts, size)
            while some := list(islice(few, together)):
                part = weights.new_zeros(length)
                norms += [self._add(part, job, *each, size) for each in some]
                total = total.add_(part) if len(total) else part.double()  # only now, when most memory is free again
        return ClippedSum(total if len(total) else total.new_zeros(length), torch.cat(norms))

    def _add(self, total: Tensor, job: "_Job", x: Tensor, y: Tensor, counts: Tensor | None, size: int) -> Tensor:
        """Add the clipped gradients of a few records or persons to the total, and return their norms."""
        one = len(x) > size  # a person with more records than are computed at once
        parts = self._of_one_person(job, x, y, size) if one else self._gradients(job, x, y, counts)
        norms = _norms([part for _, part in parts], wide=False)
        if not bool(((norms > SAFE[0]) & (norms < SAFE[1])).all()):
            norms = _norms([part for _, part in parts], wide=True)
        usable = norms <= job.clip * LONGEST  # false for NaN, too
        if bool(usable.all()):
            factors = (job.clip / norms).clamp(max=1).to(job.dtype)
            for target, part in parts:
                part.add_sum(factors, total[target.start : target.stop])
        elif bool(usable.any()):
            of_usable = usable if counts is None else usable.repeat_interleave(counts)
            self._add(total, job, x[of_usable], y[of_usable], None if counts is None else counts[usable], size)
        return norms

    def _gradients(self, job: "_Job", x: Tensor, y: Tensor, counts: Tensor | None) -> "list[_Part]":
        """The gradients of a few records, or the mean gradients of a few persons."""
        found = self.way.gradients(x, y, job.targets)
        parts = [(job.targets[name], _at(part, job.targets[name].coordinates)) for name, part in found.items()]
        return parts if counts is None else [(target, part.averaged(counts)) for target, part in parts]

    def _of_one_person(self, job: "_Job", x: Tensor, y: Tensor, size: int) -> "list[_Part]":
        """The mean gradient of a person with more records than are computed at once."""
        length = max(target.stop for target in job.targets.values())
        mean = torch.zeros(length, dtype=torch.float64, device=x.device)
        for few, labels, _ in _few(x, y, None, size):
            added = torch.zeros(length, dtype=job.dtype, device=x.device)
            factors = added.new_full((len(few),), 1 / len(x))
            for target, part in self._gradients(job, few, labels, None):
                part.add_sum(factors, added[target.start : target.stop])
            mean += added
        return [(Target(0, length, None), FormedGradients(mean.to(job.dtype)[None]))]

    def _at_once(self, x: Tensor, y: Tensor, formed: int) -> int:
        """How many records are computed at once, each with a gradient of so many bytes beside what its way needs."""
        if self._memory is None:
            self._memory = max(self.way.memory(x, y), 1)
        return max(1, min(AT_ONCE, WORKING_MEMORY // max(self._memory, formed)))

    @cached_property
    def _all(self) -> dict[str, Target]:
        return {name: Target(*self.layout.span(name), None) for name in self.layout.names}

    def _under(self, mask: Tensor) -> dict[str, Target]:
        """The parameters that have coordinates in the mask; it ascends, so that those of a parameter are contiguous."""
        if self._masked is None or not (self._masked[0] is mask or torch.equal(self._masked[0], mask)):
            targets = {}
            for name, target in self._all.items():
                start, stop = torch.searchsorted(mask, mask.new_tensor([target.start, target.stop])).tolist()
                if start < stop:
                    targets[name] = Target(start, stop, mask[start:stop] - target.start)
            self._masked = mask, targets
        return self._masked[1]


_Part = tuple[Target, RecordGradients]


def _few(x: Tensor, y: Tensor, counts: Tensor | None, size: int) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
    """At most `size` records at a time, or whole persons with so many; a person with more is alone."""
    if counts is None:
        yield from ((few, labels, None) for few, labels in zip(torch.split(x, size), torch.split(y, size), strict=True))
        return
    begin, first, most = 0, 0, 0
    sizes = counts.tolist()
    for person, count in enumerate([*sizes, size + 1]):
        most = max(most, count)
        if person > first and (person + 1 - first) * most > size:  # with all of them padded to the largest
            end = begin + sum(sizes[first:person])
            yield x[begin:end], y[begin:end], counts[first:person]
            begin, first, most = end, person, count


def _at(gradients: RecordGradients, coordinates: Tensor | None) -> RecordGradients:
    return gradients if coordinates is None else gradients.at(coordinates)


def _norms(parts: list[RecordGradients], *, wide: bool) -> Tensor:
    """The norm of every record's gradient at all parameters."""
    return torch.stack([part.norms(wide=wide).double() for part in parts]).square().sum(0).sqrt()
