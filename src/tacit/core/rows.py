"""Stacks of rows, one vector per client, behind an interface of few operations; and the noise in them that is removed.

Clipping and summing need norms and weighted sums, not the numbers themselves. A stack is therefore either a tensor
(`DenseRows`) or a factored form that never materialises a client's whole vector (`tacit.engine`). Pieces use the
operations below where they can, and `dense()` where they must.

Rows may contain noise beyond the target, which is removed once it is known how many clients delivered (`Surplus`). Of a
cohort of n clients, up to t may be lost. Every client adds noise of variance V/(n − t) to its row, so the shares of
n − t clients are the noise of a sum. After d losses there are n − d shares, and those of t − d survivors are subtracted
from the sum, whole. That leaves n − t shares, and the variance V, for every d up to t. Whose shares are subtracted does
not matter for the sum's distribution, because all have the same; it is a public rule: those of the survivors with the
lowest numbers. The server learns the noise of these clients, and not their rows, which only the sum contains.

Reference: Jiang, Wang, Chen. Dordis: Efficient Federated Learning with Dropout-Resilient Differential Privacy. EuroSys
2024 (XNoise), where every share has t + 1 components, and components of every survivor are subtracted.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Protocol, Self

import torch
from torch import Tensor

from tacit.core.keys import Key

_TINY = 1e-15  # below it, squares may underflow in float32
_BLOCK = 1024
DEPTH = 80  # additions in float32 that follow on each other, in a sum of clipped gradients


class Rows(Protocol):
    """A stack of vectors of equal length, one per client; only `sum` combines them."""

    @property
    def count(self) -> int:
        """The number of rows."""

    @property
    def dim(self) -> int:
        """The length of every row."""

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the numbers."""

    def norms(self) -> Tensor:
        """The L2 norm of every row; infinite or NaN only where the row is not finite."""

    def scaled(self, factors: Tensor) -> "Rows":
        """Every row multiplied by its factor."""

    def layer_norms(self, layers: tuple[int, ...]) -> Tensor:
        """The L2 norm of every layer of every row, (count, layers); `layers` are their sizes."""

    def layer_scaled(self, factors: Tensor, layers: tuple[int, ...]) -> "Rows":
        """Every layer of every row multiplied by its factor, (count, layers)."""

    def keep(self, which: Tensor) -> "Rows":
        """The rows where the boolean `which` is true."""

    def select(self, coordinates: Tensor) -> "Rows":
        """The given coordinates of every row."""

    def sum(self) -> Tensor:
        """The sum of all rows."""

    def dense(self) -> Tensor:
        """All rows as a tensor, (count, dim)."""


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
        if not bool(((norms > _TINY) & (norms < torch.inf)).all()):
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
        return self._stored.layer_norms(self._mask_layers(layers))

    def layer_scaled(self, factors: Tensor, layers: tuple[int, ...]) -> "MaskedRows":
        return MaskedRows(self._stored.layer_scaled(factors, self._mask_layers(layers)).values, self.mask, self.dim)

    def keep(self, which: Tensor) -> "MaskedRows":
        return MaskedRows(self.values[which], self.mask, self.dim)

    def select(self, coordinates: Tensor) -> DenseRows:
        if coordinates is self.mask or torch.equal(coordinates, self.mask):
            return self._stored
        return DenseRows(self.dense()[:, coordinates])

    def sum(self) -> Tensor:
        return self._scatter(self.values.sum(0))

    def dense(self) -> Tensor:
        return self._scatter(self.values)

    @cached_property
    def _stored(self) -> DenseRows:
        return DenseRows(self.values)

    def _scatter(self, values: Tensor) -> Tensor:
        return values.new_zeros(*values.shape[:-1], self.dim).index_copy_(-1, self.mask, values)

    def _mask_layers(self, layers: tuple[int, ...]) -> tuple[int, ...]:
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
        norms: of every record's gradient before clipping; infinite or NaN: the record was left out.
        wide: whether norms, factors and sums were computed in float64, with a factor of 1 + 2⁻⁴⁰ at most.
    """

    total: Tensor
    norms: Tensor
    wide: bool = False


def _blockwise_norms(rows: Tensor) -> Tensor:
    """L2 norms, with the squares of blocks added in float64: in float32, a million numbers lose 2e-5 of the norm."""
    count = rows.shape[1] // _BLOCK
    blocks: Tensor = torch.linalg.vector_norm(rows[:, : count * _BLOCK].reshape(len(rows), count, _BLOCK), dim=2)
    rest: Tensor = torch.linalg.vector_norm(rows[:, count * _BLOCK :], dim=1)
    return torch.cat([blocks, rest[:, None]], dim=1).double().square().sum(1).sqrt()


@dataclass(frozen=True)
class Surplus:
    """The removable noise in some messages, or in their sum.

    Attributes:
        tolerated: t, the number of losses for which the shares of the noise provide.
        seeds: of shares, by client; empty where noise is drawn at once. In a simulation these are the secrets of all
            clients; in a protocol, what was opened.

    Example:
        >>> whole = Surplus(3, {client: Key(bytes(32)) for client in (4, 5, 7, 9)})
        >>> list(whole.opened(losses=1).seeds)
        [4, 5]
    """

    tolerated: int
    seeds: Mapping[int, Key] = field(default_factory=dict)

    def __add__(self, other: "Surplus") -> "Surplus":
        return replace(self, seeds={**self.seeds, **other.seeds})

    def of(self, clients: Iterable[int]) -> "Surplus":
        """The surplus of these clients alone."""
        return replace(self, seeds={client: self.seeds[client] for client in clients} if self.seeds else {})

    def opened(self, losses: int) -> "Surplus":
        """The seeds of the shares that are removed after this many losses."""
        removed = to_remove(self.tolerated, losses, self.seeds)
        return replace(self, seeds={client: self.seeds[client] for client in removed})


def to_remove(tolerated: int, losses: int, survivors: Iterable[int]) -> list[int]:
    """The survivors whose shares of the noise are removed after this many losses."""
    return sorted(survivors)[: max(tolerated - losses, 0)]


def add_surplus(one: Surplus | None, other: Surplus | None) -> Surplus | None:
    """The surplus of two sums; None if neither has one."""
    return one + other if one is not None and other is not None else one or other
