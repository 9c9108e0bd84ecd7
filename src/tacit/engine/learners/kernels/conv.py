"""Convolutions for a stack of clients, in forms that compute the same.

The inputs of the first layer do not depend on weights, so their patches are unfolded once and every product is a
matrix product (`PatchConv`). In higher layers a loop over clients with PyTorch's convolution is close to the
arithmetic limit (`LoopConv`).

Under a mask the same two have filters that change only at its coordinates (`MaskedPatchConv`, `MaskedConv`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tacit.engine.layout import per_client
from tacit.engine.learners.kernels.layer_masks import LayerMask
from tacit.engine.learners.kernels.layers import Blocks, DenseBlock, ProximalStep, Span
from tacit.engine.learners.kernels.linear import MaskedBias
from tacit.engine.learners.kernels.tracing import pair

PATCH_LIMIT = 128  # inputs per output; unfolding is clearly faster at 25 and slower at 800


@dataclass(frozen=True, eq=False)
class ConvWeights:
    """A convolution before training: weights, bias or None, their spans in a row, and the geometry."""

    weight: Tensor  # (outputs, inputs / groups, height, width), or one for each client
    bias: Tensor | None
    spans: tuple[Span, ...]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    groups: int

    @classmethod
    def of(cls, module: nn.Conv2d, weight: Tensor, bias: Tensor | None, spans: tuple[Span, ...]) -> "ConvWeights":
        """The geometry of a module, with the given weights."""
        stride, dilation = pair(module.stride), pair(module.dilation)
        return cls(weight, bias, spans, stride, _padding(module), dilation, module.groups)

    @property
    def patch_size(self) -> int:
        """The number of inputs that an output depends on."""
        return self.weight.shape[-3:].numel()

    @property
    def has_small_patches(self) -> bool:
        """Whether unfolding the inputs pays."""
        return self.groups == 1 and self.patch_size <= PATCH_LIMIT

    def output_size(self, height: int, width: int) -> tuple[int, int]:
        """Height and width of the output."""
        sides = zip((height, width), self.weight.shape[-2:], self.stride, self.padding, self.dilation, strict=True)
        rows, columns = ((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in sides)
        return rows, columns

    def apply(self, x: Tensor, filters: Tensor, biases: Sequence[Tensor | None] | Tensor) -> Tensor:
        """Every client's inputs through its own filters and bias."""
        out = [
            F.conv2d(own, weight, bias, self.stride, self.padding, self.dilation, self.groups)
            for own, weight, bias in zip(x, filters, biases, strict=True)
        ]
        return out[0][None] if len(out) == 1 else torch.stack(out)

    def input_gradient(self, g: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        """The gradient at the inputs; of `x`, only the shape is used."""
        return self._backward(g, x, weight, (True, False))[0]

    def weight_gradient(self, g: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        """The gradient at the weights; of `weight`, only the shape is used."""
        return self._backward(g, x, weight, (False, True))[1]

    def gradients(self, g: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """The gradients at the inputs and at the weights."""
        return self._backward(g, x, weight, (True, True))

    def _backward(self, g: Tensor, x: Tensor, weight: Tensor, needed: tuple[bool, bool]) -> tuple[Tensor, Tensor]:
        geometry = (self.stride, self.padding, self.dilation, False, [0, 0], self.groups)
        gx, gw, _ = torch.ops.aten.convolution_backward(g, x, weight, None, *geometry, [*needed, False])
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
        parts = (update[:, :, :patch], update[:, :, patch:])
        return [(span, DenseBlock(part)) for span, part in zip(self.weights.spans, parts, strict=False)]

    def _unfold(self, x: Tensor) -> Tensor:
        w = self.weights
        kernel = (w.weight.shape[-2], w.weight.shape[-1])
        columns = F.unfold(x.flatten(0, 1), kernel, w.dilation, w.padding, w.stride)
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
            if below is None:
                gw = self.weights.weight_gradient(*operands)
            else:
                below[client], gw = self.weights.gradients(*operands)
            for proximal in self.proximal_steps:
                proximal.apply(client)
            self.filters[client].sub_(gw, alpha=self.lr)
        if self.bias is not None:
            self.bias.sub_(g.sum((1, 3, 4)), alpha=self.lr)
        return below

    def blocks(self) -> Blocks:
        blocks = [(self.weights.spans[0], DenseBlock(self.filters.sub_(self.weights.weight)))]
        if self.bias is not None and self.weights.bias is not None:
            blocks.append((self.weights.spans[1], DenseBlock(self.bias.sub_(self.weights.bias))))
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
        at = (self.mask.weights, self.mask.biases)
        blocks = zip(self.inner.blocks(), at, strict=False)
        return [(span, DenseBlock(block.dense()[:, positions])) for (span, block), positions in blocks]


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
            self._step(g)
        if self.bias.trains:
            self.bias.step(g.sum((3, 4)), self.lr)
        return below

    def _step(self, g: Tensor) -> None:
        at, like = self.mask.weights, self.weights.weight
        for filters, gc, xc in zip(self.filters.flatten(1), g, self.x, strict=True):
            filters[at] -= self.lr * self.weights.weight_gradient(gc, xc, like).flatten()[at]

    def _input_gradient(self, g: Tensor) -> Tensor:
        below = torch.empty_like(self.x)
        for client in range(len(g)):
            below[client] = self.weights.input_gradient(g[client], self.x[client], self.filters[client])
        return below

    def blocks(self) -> Blocks:
        at = self.mask.weights
        values = self.filters.flatten(1)[:, at] - self.weights.weight.flatten()[at]
        return [*zip(self.weights.spans, (DenseBlock(values), self.bias.block()), strict=False)]


def _padding(module: nn.Conv2d) -> tuple[int, int]:
    match module.padding:
        case "valid":
            return 0, 0
        case str():  # "same"
            height, width = (d * (k - 1) // 2 for d, k in zip(pair(module.dilation), module.kernel_size, strict=True))
            return height, width
        case sides:
            return pair(sides)
