"""Convolutions for a stack of clients, in forms that compute the same.

The inputs of the first layer do not depend on weights, so their patches are unfolded once and every product is a
matrix product (`PatchConv`). In higher layers a loop over clients with PyTorch's convolution is close to the
arithmetic limit (`LoopConv`).

Under a mask the same two have filters that change only at its coordinates (`MaskedPatchConv`, `MaskedConv`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.utils import _pair

from tacit.engine.layout import per_client
from tacit.engine.learners.kernels.layer_masks import LayerMask
from tacit.engine.learners.kernels.layers import Blocks, DenseBlock, ProximalStep
from tacit.engine.learners.kernels.linear import MaskedBias
from tacit.engine.learners.kernels.tracing import even_padding

PATCH_LIMIT = 128  # inputs per output; unfolding is clearly faster at 25 and slower at 800


@dataclass(frozen=True, eq=False)
class ConvWeights:
    """A convolution before training: its geometry, weights, and bias or None."""

    module: nn.Conv2d
    weight: Tensor  # (outputs, inputs / groups, height, width), or one for each client
    bias: Tensor | None

    @cached_property
    def geometry(self) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int]]:
        """Stride, padding and dilation, of rows and columns."""
        padding = even_padding(self.module)
        assert padding is not None  # a chain has no other
        return _pair(self.module.stride), padding, _pair(self.module.dilation)

    @property
    def patch_size(self) -> int:
        """The number of inputs that an output depends on."""
        return self.weight.shape[-3:].numel()

    @property
    def has_small_patches(self) -> bool:
        """Whether unfolding the inputs is faster."""
        return self.module.groups == 1 and self.patch_size <= PATCH_LIMIT

    def output_size(self, height: int, width: int) -> tuple[int, int]:
        """Height and width of the output."""
        sides = zip((height, width), self.weight.shape[-2:], *self.geometry, strict=True)
        rows, columns = ((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in sides)
        return rows, columns

    def apply(self, x: Tensor, filters: Tensor, biases: Sequence[Tensor | None] | Tensor) -> Tensor:
        """Every client's inputs through its own filters and bias."""
        geometry = (*self.geometry, self.module.groups)
        out = [F.conv2d(own, weight, bias, *geometry) for own, weight, bias in zip(x, filters, biases, strict=True)]
        return out[0][None] if len(out) == 1 else torch.stack(out)

    def gradients(self, g: Tensor, x: Tensor, weight: Tensor, *, of: tuple[bool, bool]) -> tuple[Tensor, Tensor]:
        """The gradients at the inputs and at the weights, of which those are computed that `of` names."""
        geometry = (*self.geometry, False, [0, 0], self.module.groups)
        gx, gw, _ = torch.ops.aten.convolution_backward(g, x, weight, None, *geometry, [*of, False])
        return gx, gw


class PatchConv:
    """The first layer: patches of the inputs times filters, outputs channels-last.

    A bias is the weight of an additional input that is always 1.
    """

    proximal_steps: tuple[ProximalStep, ...] = ()

    def __init__(self, weights: ConvWeights, lr: float, clients: int, *, constant: bool) -> None:
        self.weights, self.lr, self.constant = weights, lr, constant
        columns = [weights.weight.flatten(-3)] + ([] if weights.bias is None else [weights.bias[..., None]])
        self.initial = torch.cat(columns, dim=-1)
        self.matrix = per_client(self.initial, clients, dims=2)
        self.patches: Tensor | None = None

    @property
    def parameters(self) -> tuple[Tensor, ...]:
        patch = self.weights.patch_size
        filters, bias = self.matrix[:, :, :patch], self.matrix[:, :, patch:]
        return (filters,) if self.weights.bias is None else (filters, bias[:, :, 0])

    def forward(self, x: Tensor) -> Tensor:
        """The outputs, (clients, batch, channels, height, width), with channels innermost in memory."""
        if self.patches is None or not self.constant:
            self.patches = self._unfold(x)
        flat = torch.bmm(self.patches, self.matrix.transpose(1, 2))
        rows, columns = self.weights.output_size(x.shape[3], x.shape[4])
        return flat.view(x.shape[0], x.shape[1], rows, columns, -1).permute(0, 1, 4, 2, 3)

    def backward(self, g: Tensor) -> None:
        assert self.patches is not None
        flat = g.permute(0, 1, 3, 4, 2).reshape(g.shape[0], -1, g.shape[2])
        for proximal in self.proximal_steps:
            proximal.apply()
        self.matrix.baddbmm_(flat.transpose(1, 2), self.patches, alpha=-self.lr)

    def blocks(self) -> Blocks:
        update, patch = self.matrix.sub_(self.initial), self.weights.patch_size
        return [DenseBlock(update[:, :, :patch]), DenseBlock(update[:, :, patch:])]

    def _unfold(self, x: Tensor) -> Tensor:
        w = self.weights
        (stride, padding, dilation), kernel = w.geometry, (w.weight.shape[-2], w.weight.shape[-1])
        columns = F.unfold(x.flatten(0, 1), kernel, dilation, padding, stride)
        if w.bias is not None:
            columns = F.pad(columns, (0, 0, 0, 1), value=1.0)
        return columns.transpose(1, 2).reshape(x.shape[0], -1, columns.shape[1])


class LoopConv:
    """A convolution with filters per client, computed client by client."""

    proximal_steps: tuple[ProximalStep, ...] = ()

    def __init__(self, weights: ConvWeights, lr: float, clients: int, *, lowest: bool) -> None:
        self.weights, self.lr, self.lowest = weights, lr, lowest
        self.filters = per_client(weights.weight, clients, dims=4)
        self.bias = None if weights.bias is None else per_client(weights.bias, clients, dims=1)

    @property
    def parameters(self) -> tuple[Tensor, ...]:
        return (self.filters,) if self.bias is None else (self.filters, self.bias)

    def forward(self, x: Tensor) -> Tensor:
        self.x = x.contiguous()
        return self.weights.apply(self.x, self.filters, [None] * len(x) if self.bias is None else self.bias)

    def backward(self, g: Tensor) -> Tensor | None:
        g = g.contiguous()
        below = None if self.lowest else torch.empty_like(self.x)
        for client in range(len(g)):
            operands = (g[client], self.x[client], self.filters[client])
            gx, gw = self.weights.gradients(*operands, of=(below is not None, True))
            if below is not None:
                below[client] = gx
            for proximal in self.proximal_steps:
                proximal.apply(client)
            self.filters[client].sub_(gw, alpha=self.lr)
        if self.bias is not None:
            self.bias.sub_(g.sum((1, 3, 4)), alpha=self.lr)
        return below

    def blocks(self) -> Blocks:
        blocks = [DenseBlock(self.filters.sub_(self.weights.weight))]
        if self.bias is not None and self.weights.bias is not None:
            blocks.append(DenseBlock(self.bias.sub_(self.weights.bias)))
        return blocks


class MaskedPatchConv:
    """The first layer on patches. Its matrices are small, so changes outside the mask are undone after each step."""

    def __init__(self, inner: PatchConv, mask: LayerMask) -> None:
        self.inner, self.mask = inner, mask
        initial = inner.initial
        self.frozen = torch.ones_like(initial, dtype=torch.bool)
        self.frozen[:, : mask.shape[1]] = mask.frozen
        if initial.shape[1] > mask.shape[1]:
            self.frozen[mask.biases, -1] = False

    def forward(self, x: Tensor) -> Tensor:
        return self.inner.forward(x)

    def backward(self, g: Tensor) -> None:
        self.inner.backward(g)
        torch.where(self.frozen, self.inner.initial, self.inner.matrix, out=self.inner.matrix)

    def blocks(self) -> Blocks:
        weights, biases = self.inner.blocks()
        return [DenseBlock(weights.dense()[:, self.mask.weights]), DenseBlock(biases.dense()[:, self.mask.biases])]


class MaskedConv:
    """Filters per client, which take the steps of the mask's coordinates only."""

    def __init__(self, weights: ConvWeights, mask: LayerMask, lr: float, clients: int, *, lowest: bool) -> None:
        self.weights, self.mask, self.lr, self.lowest = weights, mask, lr, lowest
        self.trains = len(mask.weights) > 0
        self.filters = weights.weight.expand(clients, -1, -1, -1, -1)
        if self.trains:
            self.filters = self.filters.clone()
        self.bias = MaskedBias(mask, weights.weight, clients)

    def forward(self, x: Tensor) -> Tensor:
        self.x = x.contiguous()
        out = self.weights.apply(self.x, self.filters, [self.weights.bias] * len(x))
        if self.bias.trains:
            out += self.bias.delta[:, :, :, None, None]
        return out

    def backward(self, g: Tensor) -> Tensor | None:
        g = g.contiguous()
        below = None if self.lowest else self._input_gradient(g)
        if self.trains:
            at, like = self.mask.weights, self.weights.weight
            for filters, gc, xc in zip(self.filters.flatten(1), g, self.x, strict=True):
                filters[at] -= self.lr * self.weights.gradients(gc, xc, like, of=(False, True))[1].flatten()[at]
        if self.bias.trains:
            self.bias.step(g.sum((3, 4)), self.lr)
        return below

    def _input_gradient(self, g: Tensor) -> Tensor:
        below = torch.empty_like(self.x)
        for client in range(len(g)):
            operands = (g[client], self.x[client], self.filters[client])
            below[client] = self.weights.gradients(*operands, of=(True, False))[0]
        return below

    def blocks(self) -> Blocks:
        at = self.mask.weights
        values = self.filters.flatten(1)[:, at] - self.weights.weight.flatten()[at]
        return [DenseBlock(values), self.bias.block()]
