"""Per-record gradients at one parameter, in forms that give their norms and weighted sums.

The gradient of a fully connected layer at one record is g·xᵀ, with its input x and the gradient g at its output. Its
norm is ‖g‖·‖x‖, and the weighted sum over records is one matrix product: it is never formed (Goodfellow 2015). Where
inputs are sequences or patches of an image, it is a sum of such products over T positions. It is then formed, for a few
records at a time, which takes as many operations as the gradient of a batch; or, if T is small and the layer is large,
its norm follows from Gram matrices, ‖Σ gₜ·xₜᵀ‖² = Σ (X·Xᵀ)∘(G·Gᵀ) (Li et al. 2022), in float64, as terms may cancel.

Formal guarantees: those of `tacit.core.rows.ClippedSum`. The norm of numbers in float32, in blocks of 512, has a
relative error below 258 units of 2⁻²⁴; that of a product of two vectors twice as much; factor, products and their
conversion are rounded once each: less than 2⁻¹⁴ in all. A gradient that is formed is clipped as it was computed.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Protocol

import torch
from torch import Tensor

_BLOCK = 512  # numbers whose squares are added in float32
SUMMED = 64  # records over which sums are computed in one go
FEW_POSITIONS = 16  # up to this many, Gram matrices in float64 can be faster than forming the gradient
GRAM_ERROR = 2.0**-34  # of a squared norm from Gram matrices, relative to that of terms that do not cancel
LARGEST_INPUT = 2.0**64  # norm: with larger ones, the product of factor and gradient could underflow


class RecordGradients(Protocol):
    """The gradients of a few records at one parameter."""

    def norms(self, *, wide: bool) -> Tensor:
        """The norm of every record's gradient; infinite or NaN where it is not finite.

        Unless `wide`, numbers are squared in their own type, in which large ones overflow and small ones underflow.
        """

    def add_sum(self, factors: Tensor, out: Tensor) -> None:
        """Add the sum of the gradients, each times its factor, to `out`, which is as long as the parameter."""

    def at(self, coordinates: Tensor) -> "RecordGradients":
        """The gradients at some of the parameter's coordinates."""

    def averaged(self, counts: Tensor) -> "RecordGradients":
        """The mean gradient of every person, whose records follow each other: this many for each of them."""

    @property
    def bytes(self) -> int:
        """The size in memory, in bytes."""


@dataclass(frozen=True, eq=False)
class FormedGradients:
    """Gradients as a tensor.

    Attributes:
        values: (records, length).
        order: if present, the sizes (outputs, positions, inputs) of `values`, whose parameter is stored as (outputs,
            inputs, positions): filters, whose patches are read with all channels of a position together.
    """

    values: Tensor
    order: tuple[int, int, int] | None = None

    def norms(self, *, wide: bool) -> Tensor:
        return _norms(self.values, wide)

    def add_sum(self, factors: Tensor, out: Tensor) -> None:
        for own in _blocks(len(factors)):
            out.add_(_to_storage_order(factors[own] @ self.values[own], self.order))

    def at(self, coordinates: Tensor) -> "FormedGradients":
        return FormedGradients(self.values[:, _positions(coordinates, self.order)])

    def averaged(self, counts: Tensor) -> "FormedGradients":
        total = self.values.new_zeros(len(counts), self.values.shape[1])
        return FormedGradients(total.index_add_(0, _persons(counts), _parts(self.values, counts)), self.order)

    @property
    def bytes(self) -> int:
        return _bytes(self.values)


@dataclass(frozen=True, eq=False)
class OuterGradients:
    """Rank-one gradients of a matrix, g·xᵀ.

    Attributes:
        g: the gradients at the outputs, (records, outputs).
        x: the inputs, (records, inputs).
    """

    g: Tensor
    x: Tensor

    def norms(self, *, wide: bool) -> Tensor:
        g, x = _norms(self.g, wide), _norms(self.x, wide)  # unless wide, a large x has overflown
        return torch.where(x < LARGEST_INPUT, g * x, torch.inf) if wide else g * x

    def add_sum(self, factors: Tensor, out: Tensor) -> None:
        scaled, matrix = self.g * factors[:, None], out.view(self.g.shape[1], self.x.shape[1])
        for own in _blocks(len(factors)):
            matrix.add_(scaled[own].T @ self.x[own])

    def at(self, coordinates: Tensor) -> FormedGradients:
        inputs = self.x.shape[1]
        return FormedGradients(self.g[:, coordinates // inputs] * self.x[:, coordinates % inputs])

    def averaged(self, counts: Tensor) -> RecordGradients:
        return product_gradients(_group_by_person(_parts(self.g, counts), counts), _group_by_person(self.x, counts))

    @property
    def bytes(self) -> int:
        return _bytes(self.g, self.x)


@dataclass(frozen=True, eq=False)
class GramGradients:
    """Gradients of a matrix as sums of outer products over few positions, Σ gₜ·xₜᵀ, in float64.

    Attributes:
        g: (records, positions, outputs).
        x: (records, positions, inputs).
        order: as for `FormedGradients`.
    """

    g: Tensor
    x: Tensor
    order: tuple[int, int, int] | None = None

    def norms(self, *, wide: bool) -> Tensor:
        g, x = self.g.double(), self.x.double()
        squares = (torch.bmm(g, g.mT) * torch.bmm(x, x.mT)).sum((1, 2))
        longest = (g.square().sum(2) * x.square().sum(2)).sqrt().sum(1)  # if the terms had one direction
        return (squares + GRAM_ERROR * longest.square()).clamp(min=0).sqrt()  # NaN stays NaN

    def add_sum(self, factors: Tensor, out: Tensor) -> None:
        scaled = (self.g.double() * factors.double()[:, None, None]).flatten(0, 1)
        out.add_(_to_storage_order((scaled.T @ self.x.double().flatten(0, 1)).reshape(-1), self.order))

    def at(self, coordinates: Tensor) -> FormedGradients:
        inputs, wanted = self.x.shape[2], _positions(coordinates, self.order)
        columns = (self.g[:, :, wanted // inputs] * self.x[:, :, wanted % inputs]).sum(1)
        return FormedGradients(columns)

    def averaged(self, counts: Tensor) -> RecordGradients:
        g, x = (_group_by_person(side, counts).flatten(1, 2) for side in (_parts(self.g, counts), self.x))
        return product_gradients(g, x, self.order)

    @property
    def bytes(self) -> int:
        return 3 * _bytes(self.g, self.x)  # with their copies in float64


@dataclass(frozen=True, eq=False)
class LookupGradients:
    """Sparse gradients of a table: every record reads a few lines.

    Attributes:
        owner: the record of every value, ascending; a record has one value per line that it reads.
        line: the line of every value.
        values: (values, width).
        records: the number of records.
        lines: the number of lines of the table.
    """

    owner: Tensor
    line: Tensor
    values: Tensor
    records: int
    lines: int

    @classmethod
    def of(cls, read: Tensor, g: Tensor, lines: int) -> "LookupGradients":
        """From the lines that every record read, (records, positions), and the gradients there."""
        records, positions = read.shape
        owner = torch.arange(records, device=read.device).repeat_interleave(positions)
        return cls._sum_duplicates(owner, read.reshape(-1), g.reshape(records * positions, -1), records, lines)

    @classmethod
    def _sum_duplicates(cls, owner: Tensor, line: Tensor, g: Tensor, records: int, lines: int) -> "LookupGradients":
        """With one value for each owner and line, the sum of those in `g`."""
        unique, inverse = torch.unique(owner * lines + line, return_inverse=True)
        values = g.new_zeros(len(unique), g.shape[-1]).index_add_(0, inverse, g)
        return cls(unique // lines, unique % lines, values, records, lines)

    def norms(self, *, wide: bool) -> Tensor:
        squares = _norms(self.values, wide).double().square()
        return squares.new_zeros(self.records).index_add_(0, self.owner, squares).sqrt()

    def add_sum(self, factors: Tensor, out: Tensor) -> None:
        table = out.view(self.lines, self.values.shape[1])
        scaled = self.values * factors[self.owner, None]
        for own in _blocks(self.records):
            selected = (self.owner >= own.start) & (self.owner < own.stop)
            table.add_(torch.zeros_like(table).index_add_(0, self.line[selected], scaled[selected]))

    def at(self, coordinates: Tensor) -> FormedGradients:
        width, keys = self.values.shape[1], self.owner * self.lines + self.line
        records = torch.arange(self.records, device=keys.device)
        wanted = records[:, None] * self.lines + coordinates // width
        index = torch.searchsorted(keys, wanted).clamp(max=max(len(keys) - 1, 0))
        values = self.values[index, coordinates % width]
        return FormedGradients(values.masked_fill(keys[index] != wanted, 0.0))

    def averaged(self, counts: Tensor) -> "LookupGradients":
        person = _persons(counts)[self.owner]
        return self._sum_duplicates(person, self.line, self.values / counts[person, None], len(counts), self.lines)

    @property
    def bytes(self) -> int:
        return _bytes(self.owner, self.line, self.values)


def product_gradients(g: Tensor, x: Tensor, order: tuple[int, int, int] | None = None) -> RecordGradients:
    """The gradients Σ gₜ·xₜᵀ of a matrix, from (records, positions, outputs) and (records, positions, inputs).

    The form is chosen by counting.
    """
    positions, outputs, inputs = g.shape[1], g.shape[2], x.shape[2]
    if positions == 1 and order is None:
        return OuterGradients(g[:, 0], x[:, 0])
    if positions <= FEW_POSITIONS and outputs * inputs >= 8 * positions * (outputs + inputs):
        return GramGradients(g, x, order)
    return FormedGradients(torch.bmm(g.mT, x).flatten(1), order)


def _persons(counts: Tensor) -> Tensor:
    """The person of every record."""
    return torch.arange(len(counts), device=counts.device).repeat_interleave(counts)


def _parts(values: Tensor, counts: Tensor) -> Tensor:
    """The values of every record, divided by the number of records of its person."""
    return values / counts[_persons(counts)].view(-1, *(1,) * (values.dim() - 1))


def _group_by_person(values: Tensor, counts: Tensor) -> Tensor:
    """The values of records as (persons, most records of a person, …), with zeros where a person has fewer."""
    person = _persons(counts)
    place = torch.arange(len(person), device=counts.device) - (counts.cumsum(0) - counts)[person]
    padded = values.new_zeros(len(counts), int(counts.max()), *values.shape[1:])
    padded[person, place] = values
    return padded


def _norms(rows: Tensor, wide: bool) -> Tensor:
    """L2 norms; those of long rows from blocks, whose squares are added in float64."""
    if wide or rows.shape[1] <= _BLOCK:
        norms: Tensor = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64 if wide else None)
        return norms
    count = rows.shape[1] // _BLOCK
    blocks: Tensor = torch.linalg.vector_norm(rows[:, : count * _BLOCK].reshape(-1, count, _BLOCK), dim=2)
    rest: Tensor = torch.linalg.vector_norm(rows[:, count * _BLOCK :], dim=1)
    return torch.cat([blocks, rest[:, None]], dim=1).double().square().sum(1).sqrt()


def _blocks(records: int) -> Iterator[slice]:
    """A few records at a time, over which sums are computed in float32."""
    return (slice(begin, begin + SUMMED) for begin in range(0, records, SUMMED))


def _to_storage_order(total: Tensor, order: tuple[int, int, int] | None) -> Tensor:
    """A sum in the order in which the parameter is stored."""
    return total if order is None else total.view(order).transpose(1, 2).reshape(-1)


def _positions(coordinates: Tensor, order: tuple[int, int, int] | None) -> Tensor:
    """Where values in computed order have these coordinates of the stored parameter."""
    if order is None:
        return coordinates
    return _to_storage_order(torch.arange(prod(order), device=coordinates.device), order)[coordinates]


def _bytes(*tensors: Tensor) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
