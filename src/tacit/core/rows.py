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
        """The L2 norm of every row; large rows are measured again in float64 before they count as infinite."""
        return self._norms

    @cached_property
    def _norms(self) -> Tensor:
        norms: Tensor = torch.linalg.vector_norm(self.values, dim=1)
        if not bool(torch.isfinite(norms).all()):
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
