"""A stack of rows in blocks, one per parameter: dense, or factored as a sum of outer products.

After T steps on batches of B samples, the update of a fully connected layer is `Gᵀ·X` with T·B rows of output gradients
G and inputs X. Its norm follows from the Gram matrices, ‖GᵀX‖² = Σ (X·Xᵀ)∘(G·Gᵀ), and the scaled sum over all
clients is one matrix product, so the weights of single clients are never computed.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from tacit.core import DenseRows


class UpdateBlock(Protocol):
    """One parameter's part of every row of a stack."""

    def squared_norms(self) -> Tensor:
        """The squared L2 norm of every row's part; below the true one by at most the rounding of the result."""
        ...

    def write_sum(self, out: Tensor, factors: Tensor | None) -> None:
        """Write the sum of all rows' parts, each times its factor, to the flat `out`."""
        ...

    def dense(self) -> Tensor:
        """The parts as a matrix, (clients, size)."""
        ...

    def keep(self, which: Tensor) -> "UpdateBlock":
        """The rows where `which` is true."""
        ...


@dataclass(frozen=True, eq=False)
class DenseBlock:
    """The values themselves, (clients, ...)."""

    values: Tensor

    def squared_norms(self) -> Tensor:
        return DenseRows(self.values.flatten(1)).norms().double().square()

    def write_sum(self, out: Tensor, factors: Tensor | None) -> None:
        flat = self.values.flatten(1)
        torch.sum(flat, 0, out=out) if factors is None else torch.mv(flat.t(), factors, out=out)

    def dense(self) -> Tensor:
        return self.values.flatten(1)

    def keep(self, which: Tensor) -> "DenseBlock":
        return DenseBlock(self.values[which])


@dataclass(frozen=True, eq=False)
class FactoredBlock:
    """The update of a weight matrix as `leftᵀ · right`, with the Gram matrix of the inputs, `right · rightᵀ`."""

    left: Tensor  # (clients, rank, outputs)
    right: Tensor  # (clients, rank, inputs)
    gram: Tensor  # (clients, rank, rank)

    def squared_norms(self) -> Tensor:
        """Σ gram∘(left·leftᵀ), rounded up by the largest error of cancellation, so that a clipping bound holds."""
        products = torch.bmm(self.left, self.left.transpose(1, 2)).mul_(self.gram).flatten(1).double()
        slack = 4 * torch.finfo(self.left.dtype).eps
        return (products.sum(1) + slack * products.abs().sum(1)).clamp(min=0)

    def write_sum(self, out: Tensor, factors: Tensor | None) -> None:
        left = self.left if factors is None else self.left * factors[:, None, None]
        outputs, inputs = left.shape[2], self.right.shape[2]
        torch.mm(left.reshape(-1, outputs).t(), self.right.reshape(-1, inputs), out=out.view(outputs, inputs))

    def dense(self) -> Tensor:
        return torch.bmm(self.left.transpose(1, 2), self.right).flatten(1)

    def keep(self, which: Tensor) -> "FactoredBlock":
        return FactoredBlock(self.left[which], self.right[which], self.gram[which])


@dataclass(frozen=True, eq=False)
class BlockRows:
    """A stack of rows, block by block, with a factor per row that is applied when rows are summed."""

    blocks: tuple[tuple[int, int, UpdateBlock], ...]  # start, stop, block
    count: int
    dim: int
    dtype: torch.dtype
    factors: Tensor | None = None

    def norms(self) -> Tensor:
        return self._norms if self.factors is None else self._norms * self.factors.abs()

    @cached_property
    def _norms(self) -> Tensor:
        return torch.stack([block.squared_norms() for _, _, block in self.blocks]).sum(0).sqrt()

    def scaled(self, factors: Tensor) -> "BlockRows":
        factors = factors.to(self.dtype)
        scaled = replace(self, factors=factors if self.factors is None else self.factors * factors)
        scaled.__dict__["_norms"] = self._norms
        return scaled

    def layer_norms(self, layers: tuple[int, ...]) -> Tensor:
        if layers != tuple(stop - start for start, stop, _ in self.blocks):
            return DenseRows(self.dense()).layer_norms(layers)
        norms = torch.stack([block.squared_norms() for _, _, block in self.blocks], dim=1).sqrt()
        return norms if self.factors is None else norms * self.factors.abs()[:, None]

    def layer_scaled(self, factors: Tensor, layers: tuple[int, ...]) -> DenseRows:
        return DenseRows(self.dense()).layer_scaled(factors, layers)

    def keep(self, which: Tensor) -> "BlockRows":
        blocks = tuple((start, stop, block.keep(which)) for start, stop, block in self.blocks)
        factors = None if self.factors is None else self.factors[which]
        return BlockRows(blocks, int(which.sum()), self.dim, self.dtype, factors)

    def select(self, coordinates: Tensor) -> DenseRows:
        return DenseRows(self.dense()[:, coordinates])

    def sum(self) -> Tensor:
        out = torch.empty(self.dim, dtype=self.dtype, device=self._norms.device)
        for start, stop, block in self.blocks:
            block.write_sum(out[start:stop], self.factors)
        return out

    def dense(self) -> Tensor:
        parts = torch.cat([block.dense() for _, _, block in self.blocks], dim=1)
        return parts if self.factors is None else parts * self.factors[:, None]
