"""Fully connected layers under a mask, in two forms that compute the same.

| form | when | what it saves |
|---|---|---|
| `BlockLinear` | the mask touches a small block, or nothing | clients' weights: products with W₀ are shared |
| `OwnLinear` | otherwise | the weight gradient, if few coordinates move |

With the broadcast weights W₀ and a client's block D over outputs J and inputs I, `x·Wᵀ = x·W₀ᵀ` plus, in J, `x_I·Dᵀ`.
"""

import torch
from torch import Tensor

from tacit.engine.kernels.linear import Weights
from tacit.engine.kernels.rows import DenseBlock
from tacit.engine.kernels.shape import Blocks
from tacit.engine.kernels.shares import Share


class BlockLinear:
    """Shared weights and, for every client, a correction in the block that the mask touches.

    Args:
        weights: as broadcast.
        share: what may move.
        lr: learning rate.
        clients: how many.
        wanted: the inputs at which the gradient is asked for; None: all of them.
        lowest: whether it is asked for at none.
    """

    def __init__(
        self, weights: Weights, share: Share, lr: float, clients: int, *, wanted: Tensor | None, lowest: bool
    ) -> None:
        self.weights, self.share, self.lr, self.lowest = weights, share, lr, lowest
        self.wanted = None if wanted is None or 2 * len(wanted) > share.shape[1] else wanted
        self.down = weights.matrix if self.wanted is None else weights.matrix[:, self.wanted]
        self.block = weights.matrix.new_zeros(clients, len(share.rows), len(share.columns))
        self.inside = share.inside(weights.matrix)
        self.bias = BiasStep(share, weights.matrix, clients)
        self.moved = False

    def forward(self, x: Tensor) -> Tensor:
        """The shared product, corrected."""
        return self.correct(self.weights.apply(x), x[..., self.share.columns])

    def correct(self, out: Tensor, touched: Tensor) -> Tensor:
        """The product with the broadcast weights, corrected in place by the inputs of the block."""
        self.touched = touched
        if self.moved:
            if len(self.share.rows):
                _add(out, self.share.rows, torch.bmm(touched, self.block.transpose(1, 2)))
            self.bias.add(out)
        return out

    def backward(self, g: Tensor) -> Tensor | None:
        """The gradient at the inputs, then the step of the block."""
        rows = g if len(self.share.rows) == g.shape[2] else g[..., self.share.rows]
        below = None if self.lowest else self._below(g, rows)
        if len(self.share.rows):
            self.block.baddbmm_(rows.transpose(1, 2), self.touched, alpha=-self.lr).mul_(self.inside)
        self.bias.step(g, self.lr)
        self.moved = True
        return below

    def _below(self, g: Tensor, rows: Tensor) -> Tensor:
        """Where the gradient is not wanted, anything may stand."""
        below = (g.reshape(-1, g.shape[-1]) @ self.down).view(*g.shape[:-1], -1)
        if self.wanted is not None:
            below = g.new_zeros(*g.shape[:-1], self.share.shape[1]).index_copy_(2, self.wanted, below)
        if self.moved and len(self.share.rows):
            _add(below, self.share.columns, torch.bmm(rows, self.block))
        return below

    def blocks(self) -> Blocks:
        """The update at the mask's coordinates."""
        values = self.block.flatten(1)[:, self.share.places]
        return [*zip(self.weights.slots, (DenseBlock(values), self.bias.block()), strict=False)]


class OpenedLinear:
    """A first layer under a mask: the product of the inputs with the broadcast weights is taken once for all steps.

    It is fed with the numbers of samples instead of the samples.
    """

    def __init__(self, inner: BlockLinear, x: Tensor) -> None:
        self.inner, self.product, self.touched = inner, inner.weights.apply(x), x[:, inner.share.columns]

    def forward(self, x: Tensor) -> Tensor:
        """The rows of the product, corrected; `x` are sample numbers (clients, batch)."""
        flat = x.reshape(-1)
        out = self.product.index_select(0, flat).view(*x.shape, -1)
        return self.inner.correct(out, self.touched.index_select(0, flat).view(*x.shape, -1))

    def backward(self, g: Tensor) -> Tensor | None:
        """The step."""
        return self.inner.backward(g)

    def blocks(self) -> Blocks:
        """The update at the mask's coordinates."""
        return self.inner.blocks()


class OwnLinear:
    """Weights per client, of which only those in the mask move."""

    def __init__(self, weights: Weights, share: Share, lr: float, clients: int, *, lowest: bool) -> None:
        self.weights, self.share, self.lr, self.lowest = weights, share, lr, lowest
        self.matrix = weights.matrix.repeat(clients, 1, 1)
        self.bias = BiasStep(share, weights.matrix, clients)
        self.frozen = None if share.sparse else share.frozen()

    def forward(self, x: Tensor) -> Tensor:
        """Every client's batch through its own weights."""
        self.x = x
        wide = self.matrix.transpose(1, 2)
        shared = self.weights.bias
        out = torch.bmm(x, wide) if shared is None else torch.baddbmm(shared, x, wide)
        self.bias.add(out)
        return out

    def backward(self, g: Tensor) -> Tensor | None:
        """The gradient at the inputs, then the step in place."""
        below = None if self.lowest else torch.bmm(g, self.matrix)
        if self.frozen is None:
            self._gathered_step(g)
        else:
            self.matrix.baddbmm_(g.transpose(1, 2), self.x, alpha=-self.lr)
            torch.where(self.frozen, self.weights.matrix, self.matrix, out=self.matrix)
        self.bias.step(g, self.lr)
        return below

    def _gathered_step(self, g: Tensor) -> None:
        """Single coordinates; in the transposed layout a coordinate's batch is contiguous."""
        inputs = self.share.shape[1]
        outs = g.transpose(1, 2).contiguous().index_select(1, self.share.weights // inputs)
        ins = self.x.transpose(1, 2).contiguous().index_select(1, self.share.weights % inputs)
        self.matrix.flatten(1)[:, self.share.weights] -= self.lr * outs.mul_(ins).sum(2)

    def blocks(self) -> Blocks:
        """The update at the mask's coordinates."""
        at = self.share.weights
        values = self.matrix.flatten(1)[:, at] - self.weights.matrix.flatten()[at]
        return [*zip(self.weights.slots, (DenseBlock(values), self.bias.block()), strict=False)]


class BiasStep:
    """What clients add to a bias, where the mask lets them."""

    def __init__(self, share: Share, like: Tensor, clients: int) -> None:
        self.at = share.biases
        self.inside = like.new_zeros(share.shape[0]).index_fill_(0, self.at, 1.0)
        self.delta = like.new_zeros(clients, 1, share.shape[0])

    def add(self, out: Tensor) -> None:
        """To the outputs, in place."""
        if len(self.at):
            out += self.delta

    def step(self, g: Tensor, lr: float) -> None:
        """The batch's sum of output gradients; as a product, which is much faster than a strided sum."""
        if len(self.at):
            ones = g.new_ones(1, 1, 1).expand(len(g), 1, g.shape[1])
            self.delta.baddbmm_(ones, g, alpha=-lr).mul_(self.inside)

    def block(self) -> DenseBlock:
        """The update at the mask's coordinates."""
        return DenseBlock(self.delta[:, 0, self.at])


def _add(out: Tensor, at: Tensor, values: Tensor) -> None:
    """Add to some features, in place."""
    if len(at) == out.shape[-1]:
        out += values
    else:
        out[..., at] += values
