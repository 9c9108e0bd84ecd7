"""Stacks of rows, one vector per client, behind an interface of few operations.

Clipping and summing need norms and weighted sums, not the numbers themselves. A stack may therefore be a tensor
(`DenseRows`) or a factored form that never materialises a client's whole vector (`tacit.engine`). Pieces use the
operations below where they can, and `dense()` where they must.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, Self

import torch
from torch import Tensor

TINY = 1e-15  # below it, squares may underflow in float32
BLOCK = 1024
DEPTH = 80  # additions in float32 that follow on each other, in a sum of clipped gradients


class Rows(Protocol):
    """A stack of vectors of equal length, one per client; only `sum` combines them."""

    @property
    def count(self) -> int:
        """The number of rows."""
        ...

    @property
    def dim(self) -> int:
        """The length of every row."""
        ...

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the numbers."""
        ...

    def norms(self) -> Tensor:
        """The L2 norm of every row; infinite or NaN only where the row is not finite."""
        ...

    def scaled(self, factors: Tensor) -> "Rows":
        """Every row multiplied by its factor."""
        ...

    def layer_norms(self, layers: tuple[int, ...]) -> Tensor:
        """The L2 norm of every layer of every row, (count, layers); `layers` are their sizes."""
        ...

    def layer_scaled(self, factors: Tensor, layers: tuple[int, ...]) -> "Rows":
        """Every layer of every row multiplied by its factor, (count, layers)."""
        ...

    def keep(self, which: Tensor) -> "Rows":
        """The rows where the boolean `which` is true."""
        ...

    def select(self, coordinates: Tensor) -> "Rows":
        """The given coordinates of every row."""
        ...

    def sum(self) -> Tensor:
        """The sum of all rows."""
        ...

    def dense(self) -> Tensor:
        """All rows as a tensor, (count, dim)."""
        ...


@dataclass(frozen=True, eq=False)
class DenseRows:
    """Rows as a tensor, (count, dim).

    Example:
        >>> rows = DenseRows(torch.tensor([[3.0, 4.0], [0.0, 2.0]]))
        >>> rows.norms().tolist(), rows.scaled(torch.tensor([0.2, 1.0])).sum().tolist()
        ([5.0, 2.0], [0.6000000238418579, 2.799999952316284])
    """

    values: Tensor

    @property
    def count(self) -> int:
        return self.values.shape[0]

    @property
    def dim(self) -> int:
        return self.values.shape[1]

    @property
    def dtype(self) -> torch.dtype:
        return self.values.dtype

    def norms(self) -> Tensor:
        """The L2 norm of every row; computed again in float64 where squares overflow or underflow in float32."""
        return self._norms

    @cached_property
    def _norms(self) -> Tensor:
        norms = _blockwise_norms(self.values)
        if not bool(((norms > TINY) & (norms < torch.inf)).all()):
            norms = torch.linalg.vector_norm(self.values, dim=1, dtype=torch.float64)
        return norms

    def scaled(self, factors: Tensor) -> Self:
        return type(self)(self.values * factors.to(self.values.dtype)[:, None])

    def layer_norms(self, layers: tuple[int, ...]) -> Tensor:
        parts = torch.split(self.values, list(layers), dim=1)
        return torch.stack([DenseRows(part).norms() for part in parts], dim=1)

    def layer_scaled(self, factors: Tensor, layers: tuple[int, ...]) -> Self:
        per_coordinate = factors.to(self.dtype).repeat_interleave(torch.tensor(layers), dim=1)
        return type(self)(self.values * per_coordinate)

    def keep(self, which: Tensor) -> Self:
        return type(self)(self.values[which])

    def select(self, coordinates: Tensor) -> Self:
        return type(self)(self.values[:, coordinates])

    def sum(self) -> Tensor:
        return self.values.sum(0)

    def dense(self) -> Tensor:
        return self.values


@dataclass(frozen=True, eq=False)
class MaskedRows:
    """Rows that are zero outside a mask, stored as the values at its coordinates, (count, len(mask)).

    Example:
        >>> rows = MaskedRows(torch.tensor([[3.0, 4.0]]), torch.tensor([1, 3]), dim=5)
        >>> rows.norms().tolist(), rows.dense().tolist(), rows.select(rows.mask).dense().tolist()
        ([5.0], [[0.0, 3.0, 0.0, 4.0, 0.0]], [[3.0, 4.0]])
    """

    values: Tensor
    mask: Tensor  # coordinates, ascending
    dim: int

    @property
    def count(self) -> int:
        return self.values.shape[0]

    @property
    def dtype(self) -> torch.dtype:
        return self.values.dtype

    def norms(self) -> Tensor:
        return self._stored.norms()

    def scaled(self, factors: Tensor) -> "MaskedRows":
        return MaskedRows(self._stored.scaled(factors).values, self.mask, self.dim)

    def layer_norms(self, layers: tuple[int, ...]) -> Tensor:
        return self._stored.layer_norms(self._masked_layers(layers))

    def layer_scaled(self, factors: Tensor, layers: tuple[int, ...]) -> "MaskedRows":
        return MaskedRows(self._stored.layer_scaled(factors, self._masked_layers(layers)).values, self.mask, self.dim)

    def keep(self, which: Tensor) -> "MaskedRows":
        return MaskedRows(self.values[which], self.mask, self.dim)

    def select(self, coordinates: Tensor) -> DenseRows:
        if coordinates is self.mask or torch.equal(coordinates, self.mask):
            return self._stored
        return DenseRows(self.dense()[:, coordinates])

    def sum(self) -> Tensor:
        return self._scattered(self.values.sum(0))

    def dense(self) -> Tensor:
        return self._scattered(self.values)

    @cached_property
    def _stored(self) -> DenseRows:
        return DenseRows(self.values)

    def _scattered(self, values: Tensor) -> Tensor:
        return values.new_zeros(*values.shape[:-1], self.dim).index_copy_(-1, self.mask, values)

    def _masked_layers(self, layers: tuple[int, ...]) -> tuple[int, ...]:
        """The number of the mask's coordinates in each layer."""
        ends = torch.searchsorted(self.mask, torch.tensor(layers).cumsum(0))
        return tuple(ends.diff(prepend=ends.new_zeros(1)).tolist())


@dataclass(frozen=True, eq=False)
class ClippedSum:
    """The sum of the gradients of a few records, each clipped to a bound.

    No gradient is longer than the bound by a factor of more than 1 + 2⁻¹⁴, and at most `DEPTH` additions in float32
    follow on each other before sums are added in float64: what noise on the sum must provide for.

    Attributes:
        total: the sum, in float64.
        norms: of the gradient of every record, before it was clipped; infinite or NaN: it was left out.
    """

    total: Tensor
    norms: Tensor


def _blockwise_norms(rows: Tensor) -> Tensor:
    """L2 norms, with the squares of blocks added in float64: in float32, a million numbers lose 2e-5 of the norm."""
    count = rows.shape[1] // BLOCK
    blocks: Tensor = torch.linalg.vector_norm(rows[:, : count * BLOCK].reshape(len(rows), count, BLOCK), dim=2)
    rest: Tensor = torch.linalg.vector_norm(rows[:, count * BLOCK :], dim=1)
    return torch.cat([blocks, rest[:, None]], dim=1).double().square().sum(1).sqrt()
