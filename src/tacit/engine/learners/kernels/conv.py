"""Convolutions for a stack of clients, in two forms that compute the same.

The inputs of the first layer do not depend on weights, so their patches are unfolded once and every product is a
matrix product (`PatchConv`). In higher layers a loop over clients with PyTorch's convolution is close to the
arithmetic limit (`LoopConv`).
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tacit.engine.layout import per_client
from tacit.engine.learners.kernels.block_rows import DenseBlock
from tacit.engine.learners.kernels.layers import Blocks, ProximalStep, Span
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
        self.x, w = x.contiguous(), self.weights
        biases = [None] * len(x) if self.bias is None else self.bias
        out = [
            F.conv2d(xc, filters, bias, w.stride, w.padding, w.dilation, w.groups)
            for xc, filters, bias in zip(self.x, self.filters, biases, strict=True)
        ]
        return out[0][None] if len(out) == 1 else torch.stack(out)

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


def _padding(module: nn.Conv2d) -> tuple[int, int]:
    match module.padding:
        case "valid":
            return 0, 0
        case str():  # "same"
            height, width = (d * (k - 1) // 2 for d, k in zip(pair(module.dilation), module.kernel_size, strict=True))
            return height, width
        case sides:
            return pair(sides)
