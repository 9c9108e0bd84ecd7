"""Convolutions under a mask: filters per client only where they move, weight gradients only where the mask is."""

import torch
import torch.nn.functional as F
from torch import Tensor

from tacit.engine.learners.kernels.conv import Filters, PatchConv
from tacit.engine.learners.kernels.cuts import cuts_of
from tacit.engine.learners.kernels.masked_linear import BiasStep
from tacit.engine.learners.kernels.rows import DenseBlock
from tacit.engine.learners.kernels.shape import Blocks
from tacit.engine.learners.kernels.shares import Share


class FrozenConv:
    """Nothing moves: one convolution for all clients."""

    def __init__(self, filters: Filters, *, lowest: bool) -> None:
        self.filters, self.lowest = filters, lowest

    def forward(self, x: Tensor) -> Tensor:
        """All samples through the broadcast filters."""
        f, self.x = self.filters, x
        out = F.conv2d(x.flatten(0, 1), f.weight, f.bias, f.stride, f.padding, f.dilation, f.groups)
        return out.view(*x.shape[:2], *out.shape[1:])

    def backward(self, g: Tensor) -> Tensor | None:
        """The gradient at the inputs."""
        if self.lowest:
            return None
        below = self.filters.input_gradient(g.flatten(0, 1), self.x.flatten(0, 1), self.filters.weight)
        return below.view(self.x.shape)

    def blocks(self) -> Blocks:
        """Nothing."""
        return []


class MaskedPatchConv:
    """The first layer on patches; the matrices are so small that whatever moved outside the mask is put back."""

    def __init__(self, inner: PatchConv, share: Share) -> None:
        self.inner, self.share = inner, share
        start = inner.start
        self.frozen = torch.ones_like(start, dtype=torch.bool)
        self.frozen[:, : share.shape[1]] = share.frozen
        if start.shape[1] > share.shape[1]:
            self.frozen[share.biases, -1] = False

    def forward(self, x: Tensor) -> Tensor:
        """Patches times filters."""
        return self.inner.forward(x)

    def backward(self, g: Tensor) -> None:
        """The step in place; nothing lies below."""
        self.inner.backward(g)
        torch.where(self.frozen, self.inner.start, self.inner.matrix, out=self.inner.matrix)

    def blocks(self) -> Blocks:
        """The update at the mask's coordinates."""
        at = (self.share.weights, self.share.biases)
        blocks = zip(self.inner.blocks(), at, strict=False)
        return [(slot, DenseBlock(block.dense()[:, where])) for (slot, block), where in blocks]


class MaskedConv:
    """Filters per client; the weight gradient is computed in rectangles around the mask's coordinates only."""

    def __init__(
        self, filters: Filters, share: Share, lr: float, clients: int, *, wanted: Tensor | None, lowest: bool
    ) -> None:
        self.filters, self.share, self.lr, self.lowest, self.wanted = filters, share, lr, lowest, wanted
        self.weight = filters.weight.repeat(clients, 1, 1, 1, 1)
        self.bias = BiasStep(share, filters.weight, clients)
        self.cuts = cuts_of(share, filters.weight.shape[1], filters.groups)

    def forward(self, x: Tensor) -> Tensor:
        """Every client's batch through its own filters."""
        self.x, f = x.contiguous(), self.filters
        convolved = [
            F.conv2d(xc, w, f.bias, f.stride, f.padding, f.dilation, f.groups)
            for xc, w in zip(self.x, self.weight, strict=True)
        ]
        out = convolved[0][None] if len(convolved) == 1 else torch.stack(convolved)
        if self.bias.moves:
            out += self.bias.delta[:, :, :, None, None]
        return out

    def backward(self, g: Tensor) -> Tensor | None:
        """The gradient at the inputs, then the step in place."""
        g = g.contiguous()
        below = None if self.lowest else self._below(g)
        for weight, gc, xc in zip(self.weight.flatten(1), g, self.x, strict=True):
            for cut in self.cuts:
                weight[cut.weights] -= self.lr * cut.gradient(self.filters, gc, xc)
        if self.bias.moves:
            self.bias.step(g.sum((3, 4)), self.lr)
        return below

    def _below(self, g: Tensor) -> Tensor:
        """Where the gradient is not wanted, zeros stand."""
        f, wanted = self.filters, self.wanted
        if wanted is None or f.groups > 1 or 4 * len(wanted) > 3 * self.x.shape[2]:
            below = torch.empty_like(self.x)
            for client in range(len(g)):
                below[client] = f.input_gradient(g[client], self.x[client], self.weight[client])
            return below
        below, like = torch.zeros_like(self.x), self.x.new_empty(self.x.shape[1], len(wanted), *self.x.shape[3:])
        for client in range(len(g)):
            gx = f.input_gradient(g[client], like, self.weight[client][:, wanted])
            below[client].index_copy_(1, wanted, gx)
        return below

    def blocks(self) -> Blocks:
        """The update at the mask's coordinates."""
        at = self.share.weights
        values = self.weight.flatten(1)[:, at] - self.filters.weight.flatten()[at]
        return [*zip(self.filters.slots, (DenseBlock(values), self.bias.block()), strict=False)]
