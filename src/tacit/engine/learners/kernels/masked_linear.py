"""Fully connected layers under a mask, in three forms: mostly the broadcast weights are shared by all clients.

| form | when | what a client owns |
|---|---|---|
| `BlockLinear` | the mask's coordinates stand close together, or there are none | a dense block of corrections |
| `ScatteredLinear` | they do not | corrections of single weights |
| `OwnLinear` | they are many | all weights |

With broadcast weights W₀ and a correction D over outputs J and inputs I, `x·Wᵀ = x·W₀ᵀ` plus, in J, `x_I·Dᵀ`.
"""

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from tacit.engine.learners.kernels.linear import Weights
from tacit.engine.learners.kernels.rows import DenseBlock
from tacit.engine.learners.kernels.shape import Blocks
from tacit.engine.learners.kernels.shares import Share


class Corrected(Protocol):
    """A layer that corrects the product of its inputs with the broadcast weights."""

    weights: Weights

    def touched(self, x: Tensor) -> Tensor:
        """What the correction needs of the inputs."""
        ...

    def correct(self, out: Tensor, touched: Tensor) -> Tensor:
        """The corrected product, in place."""
        ...

    def backward(self, g: Tensor) -> Tensor | None:
        """The step, and the gradient at the inputs."""
        ...

    def blocks(self) -> Blocks:
        """The update at the mask's coordinates."""
        ...


class BlockLinear:
    """A correction in the block that the mask touches.

    Args:
        weights: as broadcast, in the order of the share's seams.
        share: what may move.
        lr: learning rate.
        clients: how many.
        wanted: at how many inputs, the first ones, the gradient is asked for.
    """

    def __init__(self, weights: Weights, share: Share, lr: float, clients: int, wanted: int) -> None:
        self.weights, self.share, self.lr, self.wanted = weights, share, lr, wanted
        self.down = weights.matrix[:, :wanted]
        self.block = weights.matrix.new_zeros(clients, share.rows.count, share.width)
        self.inside = share.inside.to(weights.matrix.dtype)
        self.moves, self.moved = not share.empty, False
        reach = share.columns.count if share.below is None else min(share.columns.count, wanted - share.below.begin)
        self.reach = max(reach, 0)  # how many of the block's columns lie among the wanted inputs

    def forward(self, x: Tensor) -> Tensor:
        """The shared product, corrected."""
        return self.correct(self.weights.apply(x), self.touched(x))

    def touched(self, x: Tensor) -> Tensor:
        """The block's inputs, and a 1 if a bias moves."""
        taken = self.share.columns.take(x)
        return taken if self.share.width == taken.shape[-1] else F.pad(taken, (0, 1), value=1.0)

    def correct(self, out: Tensor, touched: Tensor) -> Tensor:
        """The corrected product, in place."""
        self.x = touched
        if self.moved:
            self.share.rows.add_product(out, touched, self.block.transpose(1, 2))
        return out

    def backward(self, g: Tensor) -> Tensor | None:
        """The gradient at the wanted inputs, then the step of the block."""
        rows = self.share.rows.take(g) if self.moves else g
        below = self._below(g, rows) if self.wanted else None
        if self.moves:
            self.block.baddbmm_(rows.transpose(1, 2), self.x, alpha=-self.lr).mul_(self.inside)
            self.moved = True
        return below

    def _below(self, g: Tensor, rows: Tensor) -> Tensor:
        below = (g.reshape(-1, g.shape[-1]) @ self.down).view(*g.shape[:-1], -1)
        if self.moved and self.reach:
            part = self.block[:, :, : self.reach]
            if self.reach == self.share.columns.count:
                self.share.columns.add_product(below, rows, part)
            else:
                below[..., -self.reach :].add_(torch.bmm(rows, part))
        return below

    def blocks(self) -> Blocks:
        """The update at the mask's coordinates."""
        values = (DenseBlock(self.block.flatten(1)[:, at]) for at in self.share.places)
        return [*zip(self.weights.slots, values, strict=False)]


class ScatteredLinear:
    """A correction at single weights, as weighted sums of features (`embedding_bag`), a client's batch being a row.

    Its inputs and outputs keep their order.
    """

    def __init__(self, weights: Weights, share: Share, lr: float, clients: int, wanted: int) -> None:
        outputs, inputs = share.shape
        self.weights, self.share, self.lr, self.wanted = weights, share, lr, wanted
        self.row, self.column = share.weights // inputs, share.weights % inputs
        self.values = weights.matrix.new_zeros(clients, len(share.weights))
        self.across = Bags(self.row, self.column, outputs, inputs, clients)
        self.bias = BiasStep(share, weights.matrix, clients)
        self.whole = weights.matrix.new_zeros(0 if share.gathers else clients, outputs, inputs)
        if wanted:
            self.turn = torch.argsort(self.column, stable=True)
            self.back = Bags(self.column[self.turn], self.row[self.turn], inputs, outputs, clients)

    def forward(self, x: Tensor) -> Tensor:
        """The shared product, corrected."""
        return self.correct(self.weights.apply(x), x)

    def touched(self, x: Tensor) -> Tensor:
        """All inputs."""
        return x

    def correct(self, out: Tensor, touched: Tensor) -> Tensor:
        """The corrected product, in place."""
        self.x, self.wide = touched, touched.transpose(1, 2).contiguous()
        out += self.across.sums(self.wide, self.values).transpose(1, 2)
        self.bias.add(out)
        return out

    def backward(self, g: Tensor) -> Tensor | None:
        """The gradient at the inputs, then the step."""
        wide = g.transpose(1, 2).contiguous()
        below = self._below(g, wide) if self.wanted else None
        if self.share.gathers:
            products = wide.index_select(1, self.row).mul_(self.wide.index_select(1, self.column))
            self.values.sub_(products.sum(2), alpha=self.lr)
        else:
            self._read(g)
        self.bias.step(g, self.lr)
        return below

    def _below(self, g: Tensor, wide: Tensor) -> Tensor:
        below = (g.reshape(-1, g.shape[-1]) @ self.weights.matrix).view(*g.shape[:-1], -1)
        return below.add_(self.back.sums(wide, self.values.index_select(1, self.turn)).transpose(1, 2))

    def _read(self, g: Tensor) -> None:
        """Read the mask's coordinates from whole updates; what these gather elsewhere, nobody ever reads."""
        self.whole.baddbmm_(g.transpose(1, 2), self.x, alpha=-self.lr)
        self.values = self.whole.view(len(g), -1).index_select(1, self.share.weights)

    def blocks(self) -> Blocks:
        """The update at the mask's coordinates."""
        return [*zip(self.weights.slots, (DenseBlock(self.values), self.bias.block()), strict=False)]


class OwnLinear:
    """Weights per client, whose gradient is masked."""

    def __init__(self, weights: Weights, share: Share, lr: float, clients: int, *, lowest: bool) -> None:
        self.weights, self.share, self.lowest = weights, share, lowest
        self.matrix = weights.matrix.repeat(clients, 1, 1)
        self.step = torch.full_like(weights.matrix, lr).masked_fill_(share.frozen, 0.0)
        self.bias, self.lr = BiasStep(share, weights.matrix, clients), lr

    def forward(self, x: Tensor) -> Tensor:
        """Every client's batch through its own weights."""
        self.x, wide, shared = x, self.matrix.transpose(1, 2), self.weights.bias
        out = torch.bmm(x, wide) if shared is None else torch.baddbmm(shared, x, wide)
        self.bias.add(out)
        return out

    def backward(self, g: Tensor) -> Tensor | None:
        """The gradient at the inputs, then the step in place."""
        below = None if self.lowest else torch.bmm(g, self.matrix)
        self.matrix.sub_(torch.bmm(g.transpose(1, 2), self.x).mul_(self.step))
        self.bias.step(g, self.lr)
        return below

    def blocks(self) -> Blocks:
        """The update at the mask's coordinates."""
        at = self.share.at
        values = self.matrix.flatten(1)[:, at] - self.weights.matrix.flatten()[at]
        return [*zip(self.weights.slots, (DenseBlock(values), self.bias.block()), strict=False)]


class Bags:
    """For every client, weighted sums of some of its rows: `out[to] += value · rows[from]`, `to` ascending."""

    def __init__(self, to: Tensor, source: Tensor, outputs: int, inputs: int, clients: int) -> None:
        client, count = torch.arange(clients)[:, None], torch.bincount(to, minlength=outputs)
        self.index = (source + inputs * client).flatten().int()
        self.offsets = (count.cumsum(0) - count + len(to) * client).flatten().int()

    def sums(self, rows: Tensor, values: Tensor) -> Tensor:
        """(clients, outputs, batch) from rows (clients, inputs, batch) and values (clients, coordinates)."""
        bags = torch.embedding_bag(rows.flatten(0, 1), self.index, self.offsets, False, 0, False, values.flatten())
        sums: Tensor = bags[0]
        return sums.view(len(rows), -1, rows.shape[2])


class OpenedLinear:
    """A first layer on changing batches: products with the broadcast weights are taken once for every sample.

    It is fed with the numbers of samples instead of the samples.
    """

    def __init__(self, inner: Corrected, x: Tensor) -> None:
        self.inner, self.product, self.touched = inner, inner.weights.apply(x), inner.touched(x)

    def forward(self, x: Tensor) -> Tensor:
        """The rows of the product, corrected; `x` are sample numbers (clients, batch)."""
        product, touched = (rows.index_select(0, x.reshape(-1)) for rows in (self.product, self.touched))
        return self.inner.correct(product.view(*x.shape, -1), touched.view(*x.shape, -1))

    def backward(self, g: Tensor) -> Tensor | None:
        """The step."""
        return self.inner.backward(g)

    def blocks(self) -> Blocks:
        """The update at the mask's coordinates."""
        return self.inner.blocks()


class BiasStep:
    """What clients add to a bias, where the mask lets them."""

    def __init__(self, share: Share, like: Tensor, clients: int) -> None:
        self.at, self.moves = share.biases, len(share.biases) > 0
        self.inside = like.new_zeros(share.shape[0]).index_fill_(0, self.at, 1.0)
        self.delta = like.new_zeros(clients, 1, share.shape[0])

    def add(self, out: Tensor) -> None:
        """To the outputs (clients, batch, outputs), in place."""
        if self.moves:
            out += self.delta

    def step(self, g: Tensor, lr: float) -> None:
        """The batch's sum of output gradients."""
        if self.moves:
            self.delta.sub_(g.sum(1, keepdim=True).mul_(self.inside), alpha=lr)

    def block(self) -> DenseBlock:
        """The update at the mask's coordinates."""
        return DenseBlock(self.delta[:, 0, self.at])
