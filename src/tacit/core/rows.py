"""Stacks of rows: one vector per client, asked questions instead of being read.

Clipping and summing need norms and weighted sums, not the numbers themselves. A stack may therefore be held
as a tensor (`DenseRows`) or in a form that never writes a client's whole vector (the engine's factored rows);
pieces ask the questions below where they can, and `dense()` where they must.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, Self

import torch
from torch import Tensor

TINY = 1e-15  # below it, squares in float32 may be lost
BLOCK = 1024


class Rows(Protocol):
    """A stack of vectors of one length; row i belongs to one client, and rows never mix but in `sum`."""

    @property
    def count(self) -> int:
        """How many rows."""
        ...

    @property
    def dim(self) -> int:
        """The length of every row."""
        ...

    @property
    def dtype(self) -> torch.dtype:
        """The type of the numbers."""
        ...

    def norms(self) -> Tensor:
        """The L2 norm of every row; infinite or NaN only where the row is not finite."""
        ...

    def scaled(self, factors: Tensor) -> "Rows":
        """Every row times its factor."""
        ...

    def layer_norms(self, layers: tuple[int, ...]) -> Tensor:
        """The norm of every row's layers, (count, layers); `layers` are their sizes."""
        ...

    def layer_scaled(self, factors: Tensor, layers: tuple[int, ...]) -> "Rows":
        """Every row's layers times their factors, (count, layers)."""
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
        """All rows as a tensor (count, dim)."""
        ...


@dataclass(frozen=True, eq=False)
class DenseRows:
    """Rows as a tensor (count, dim).

    Example:
        >>> rows = DenseRows(torch.tensor([[3.0, 4.0], [0.0, 2.0]]))
        >>> rows.norms().tolist(), rows.scaled(torch.tensor([0.2, 1.0])).sum().tolist()
        ([5.0, 2.0], [0.6000000238418579, 2.799999952316284])
    """

    values: Tensor

    @property
    def count(self) -> int:
        """How many rows."""
        return self.values.shape[0]

    @property
    def dim(self) -> int:
        """The length of every row."""
        return self.values.shape[1]

    @property
    def dtype(self) -> torch.dtype:
        """The type of the numbers."""
        return self.values.dtype

    def norms(self) -> Tensor:
        """The L2 norm of every row; large and tiny ones are measured again in float64, where squares have room."""
        return self._norms

    @cached_property
    def _norms(self) -> Tensor:
        norms = _lengths(self.values)
        if not bool(((norms > TINY) & (norms < torch.inf)).all()):
            norms = torch.linalg.vector_norm(self.values, dim=1, dtype=torch.float64)
        return norms

    def scaled(self, factors: Tensor) -> Self:
        """Every row times its factor."""
        return type(self)(self.values * factors.to(self.values.dtype)[:, None])

    def layer_norms(self, layers: tuple[int, ...]) -> Tensor:
        """The norm of every layer, one after the other."""
        parts = torch.split(self.values, list(layers), dim=1)
        return torch.stack([DenseRows(part).norms() for part in parts], dim=1)

    def layer_scaled(self, factors: Tensor, layers: tuple[int, ...]) -> Self:
        """Every layer times its factor."""
        spread = factors.to(self.dtype).repeat_interleave(torch.tensor(layers), dim=1)
        return type(self)(self.values * spread)

    def keep(self, which: Tensor) -> Self:
        """The rows where `which` is true."""
        return type(self)(self.values[which])

    def select(self, coordinates: Tensor) -> Self:
        """The given coordinates of every row."""
        return type(self)(self.values[:, coordinates])

    def sum(self) -> Tensor:
        """The sum of all rows."""
        return self.values.sum(0)

    def dense(self) -> Tensor:
        """The tensor itself."""
        return self.values


@dataclass(frozen=True, eq=False)
class MaskedRows:
    """Rows that are zero but at a mask's coordinates, of which only the values there are held, (count, mask).

    Example:
        >>> rows = MaskedRows(torch.tensor([[3.0, 4.0]]), torch.tensor([1, 3]), dim=5)
        >>> rows.norms().tolist(), rows.dense().tolist(), rows.select(rows.mask).dense().tolist()
        ([5.0], [[0.0, 3.0, 0.0, 4.0, 0.0]], [[3.0, 4.0]])
    """

    values: Tensor
    mask: Tensor  # ascending
    dim: int

    @property
    def count(self) -> int:
        """How many rows."""
        return self.values.shape[0]

    @property
    def dtype(self) -> torch.dtype:
        """The type of the numbers."""
        return self.values.dtype

    def norms(self) -> Tensor:
        """Those of the values."""
        return self._held.norms()

    def scaled(self, factors: Tensor) -> "MaskedRows":
        """Every row times its factor."""
        return MaskedRows(self._held.scaled(factors).values, self.mask, self.dim)

    def layer_norms(self, layers: tuple[int, ...]) -> Tensor:
        """Those of the values that fall into each layer."""
        return self._held.layer_norms(self._within(layers))

    def layer_scaled(self, factors: Tensor, layers: tuple[int, ...]) -> "MaskedRows":
        """Every row's layers times their factors."""
        return MaskedRows(self._held.layer_scaled(factors, self._within(layers)).values, self.mask, self.dim)

    def keep(self, which: Tensor) -> "MaskedRows":
        """The rows where `which` is true."""
        return MaskedRows(self.values[which], self.mask, self.dim)

    def select(self, coordinates: Tensor) -> DenseRows:
        """The values themselves, if the mask is asked for."""
        if coordinates is self.mask or torch.equal(coordinates, self.mask):
            return self._held
        return DenseRows(self.dense()[:, coordinates])

    def sum(self) -> Tensor:
        """The sum of the values, spread out."""
        return self._spread(self.values.sum(0))

    def dense(self) -> Tensor:
        """The values among zeros."""
        return self._spread(self.values)

    @cached_property
    def _held(self) -> DenseRows:
        return DenseRows(self.values)

    def _spread(self, values: Tensor) -> Tensor:
        return values.new_zeros(*values.shape[:-1], self.dim).index_copy_(-1, self.mask, values)

    def _within(self, layers: tuple[int, ...]) -> tuple[int, ...]:
        """How many of the mask's coordinates fall into each layer."""
        ends = torch.searchsorted(self.mask, torch.tensor(layers).cumsum(0))
        return tuple(ends.diff(prepend=ends.new_zeros(1)).tolist())


def _lengths(rows: Tensor) -> Tensor:
    """L2 norms by blocks, whose squares are added up in float64: in float32, a million come to 2e-5 too little."""
    count = rows.shape[1] // BLOCK
    blocks: Tensor = torch.linalg.vector_norm(rows[:, : count * BLOCK].reshape(len(rows), count, BLOCK), dim=2)
    rest: Tensor = torch.linalg.vector_norm(rows[:, count * BLOCK :], dim=1)
    return torch.cat([blocks, rest[:, None]], dim=1).double().square().sum(1).sqrt()
