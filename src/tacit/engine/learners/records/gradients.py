"""The gradients of single records at one parameter, in forms that answer two questions: their norms, and weighted sums.

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

BLOCK = 512  # numbers whose squares are added in float32
SUMMED = 64  # records over which sums are computed in one go
FEW_POSITIONS = 16  # up to so many, Gram matrices in float64 can be faster than forming the gradient
LARGEST_INPUT = 2.0**128  # squared norm: with larger ones, the product of factor and gradient could underflow


class RecordGradients(Protocol):
    """The gradients of a few records at one parameter."""

    def squares(self, *, wide: bool) -> Tensor:
        """The squared norm of every record's gradient, in float64; infinite or NaN where it is not finite.

        Unless `wide`, numbers are squared in their own type: too small for large ones, too large for small ones.
        """
        ...

    def add_sum(self, factors: Tensor, out: Tensor) -> None:
        """Add the sum of the gradients, each times its factor, to `out`, which is as long as the parameter."""
        ...

    def at(self, coordinates: Tensor) -> "RecordGradients":
        """The gradients at some of the parameter's coordinates."""
        ...

    @property
    def bytes(self) -> int:
        """The memory that they take."""
        ...


@dataclass(frozen=True, eq=False)
class FormedGradients:
    """Gradients as a tensor.

    Attributes:
        values: (records, length).
        order: if given, the sizes (outputs, positions, inputs) of `values`, whose parameter is stored as (outputs,
            inputs, positions): filters, whose patches are read with all channels of a position together.
    """

    values: Tensor
    order: tuple[int, int, int] | None = None

    def squares(self, *, wide: bool) -> Tensor:
        return _squares(self.values, wide)

    def add_sum(self, factors: Tensor, out: Tensor) -> None:
        for own in _blocks(len(factors)):
            out.add_(_stored(factors[own] @ self.values[own], self.order))

    def at(self, coordinates: Tensor) -> "FormedGradients":
        return FormedGradients(self.values[:, _positions(coordinates, self.order)])

    @property
    def bytes(self) -> int:
        return _bytes(self.values)


@dataclass(frozen=True, eq=False)
class OuterGradients:
    """Gradients of a matrix that are products of two vectors, g·xᵀ.

    Attributes:
        g: the gradients at the outputs, (records, outputs).
        x: the inputs, (records, inputs).
    """

    g: Tensor
    x: Tensor

    def squares(self, *, wide: bool) -> Tensor:
        g, x = _squares(self.g, wide), _squares(self.x, wide)
        return torch.where(x < LARGEST_INPUT, g * x, torch.inf)

    def add_sum(self, factors: Tensor, out: Tensor) -> None:
        scaled, matrix = self.g * factors[:, None], out.view(self.g.shape[1], self.x.shape[1])
        for own in _blocks(len(factors)):
            matrix.add_(scaled[own].T @ self.x[own])

    def at(self, coordinates: Tensor) -> FormedGradients:
        inputs = self.x.shape[1]
        return FormedGradients(self.g[:, coordinates // inputs] * self.x[:, coordinates % inputs])

    @property
    def bytes(self) -> int:
        return _bytes(self.g, self.x)


@dataclass(frozen=True, eq=False)
class GramGradients:
    """Gradients of a matrix that are sums of products over few positions, Σ gₜ·xₜᵀ, in float64.

    Attributes:
        g: (records, positions, outputs).
        x: (records, positions, inputs).
        order: as for `FormedGradients`.
    """

    g: Tensor
    x: Tensor
    order: tuple[int, int, int] | None = None

    def squares(self, *, wide: bool) -> Tensor:
        g, x = self.g.double(), self.x.double()
        return (torch.bmm(g, g.mT) * torch.bmm(x, x.mT)).sum((1, 2)).clamp(min=0)  # NaN stays NaN

    def add_sum(self, factors: Tensor, out: Tensor) -> None:
        scaled = (self.g.double() * factors.double()[:, None, None]).flatten(0, 1)
        out.add_(_stored((scaled.T @ self.x.double().flatten(0, 1)).reshape(-1), self.order))

    def at(self, coordinates: Tensor) -> FormedGradients:
        inputs, wanted = self.x.shape[2], _positions(coordinates, self.order)
        columns = (self.g[:, :, wanted // inputs] * self.x[:, :, wanted % inputs]).sum(1)
        return FormedGradients(columns)

    @property
    def bytes(self) -> int:
        return 3 * _bytes(self.g, self.x)  # with their copies in float64


@dataclass(frozen=True, eq=False)
class LookupGradients:
    """Gradients of a table of which every record reads a few lines.

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
        keys = (torch.arange(records, device=read.device)[:, None] * lines + read).reshape(-1)
        unique, where = torch.unique(keys, return_inverse=True)
        values = g.new_zeros(len(unique), g.shape[-1]).index_add_(0, where, g.reshape(records * positions, -1))
        return cls(unique // lines, unique % lines, values, records, lines)

    def squares(self, *, wide: bool) -> Tensor:
        squares = _squares(self.values, wide)
        return squares.new_zeros(self.records).index_add_(0, self.owner, squares)

    def add_sum(self, factors: Tensor, out: Tensor) -> None:
        table = out.view(self.lines, self.values.shape[1])
        scaled = self.values * factors[self.owner, None]
        for own in _blocks(self.records):
            mine = (self.owner >= own.start) & (self.owner < own.stop)
            table.add_(torch.zeros_like(table).index_add_(0, self.line[mine], scaled[mine]))

    def at(self, coordinates: Tensor) -> FormedGradients:
        width, known = self.values.shape[1], self.owner * self.lines + self.line
        records = torch.arange(self.records, device=known.device)
        wanted = records[:, None] * self.lines + coordinates // width
        found = torch.searchsorted(known, wanted).clamp(max=max(len(known) - 1, 0))
        values = self.values[found, coordinates % width]
        return FormedGradients(values.masked_fill(known[found] != wanted, 0.0))

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


def _squares(rows: Tensor, wide: bool) -> Tensor:
    """Squared norms; long rows in blocks, whose squares are added in float64."""
    if wide:
        norms: Tensor = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
        return norms.square()
    count = rows.shape[1] // BLOCK
    rest: Tensor = torch.linalg.vector_norm(rows[:, count * BLOCK :], dim=1).double().square()
    if count == 0:
        return rest
    blocks: Tensor = torch.linalg.vector_norm(rows[:, : count * BLOCK].reshape(-1, count, BLOCK), dim=2)
    return blocks.double().square().sum(1).add_(rest)


def _blocks(records: int) -> Iterator[slice]:
    """A few records at a time, over which sums are computed in float32."""
    return (slice(begin, begin + SUMMED) for begin in range(0, records, SUMMED))


def _stored(total: Tensor, order: tuple[int, int, int] | None) -> Tensor:
    """A sum in the order in which the parameter is stored."""
    return total if order is None else total.view(order).transpose(1, 2).reshape(-1)


def _positions(coordinates: Tensor, order: tuple[int, int, int] | None) -> Tensor:
    """Where values in computed order have these coordinates of the stored parameter."""
    return coordinates if order is None else _stored(torch.arange(prod(order)), order)[coordinates]


def _bytes(*tensors: Tensor) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
