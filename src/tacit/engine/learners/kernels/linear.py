"""Fully connected layers for a stack of clients, in four forms that compute the same.

| form | when | what it saves |
|---|---|---|
| `GramLinear` | first layer, every step on the same samples | all but two products with the inputs |
| `FactoredLinear` | few steps of small batches | every client's copy of the weights |
| `WindowLinear` | first layer, many small batches | passes over the weights: one for several steps |
| `DenseLinear` | otherwise | the gradient's buffer |

After steps on inputs X with output gradients G the weights are `W₀ − lr·Gᵀ·X`, so
`x·Wᵀ = x·W₀ᵀ − lr·(x·Xᵀ)·G`. A bias is the weight of an additional input that is always 1: it adds 1 to every inner
product.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from tacit.engine.layout import per_client
from tacit.engine.learners.kernels.block_rows import DenseBlock, FactoredBlock
from tacit.engine.learners.kernels.layers import Blocks, ProximalStep, Span

WINDOW = 4  # steps that share one pass over the weights; 3 and 6 were about 4 % slower on the MLP of the benchmarks


@dataclass(frozen=True, eq=False)
class LinearWeights:
    """A fully connected layer before training: matrix, bias or None, and their spans in a row."""

    matrix: Tensor  # (outputs, inputs), or one for each client
    bias: Tensor | None
    spans: tuple[Span, ...]

    def apply(self, x: Tensor) -> Tensor:
        """All clients' inputs through the broadcast weights, in one large product."""
        flat = x.reshape(-1, x.shape[-1])
        product = flat @ self.matrix.t() if self.bias is None else torch.addmm(self.bias, flat, self.matrix.t())
        return product.view(*x.shape[:-1], -1)

    @property
    def bias_product(self) -> float:
        """What the bias adds to an inner product of inputs."""
        return 0.0 if self.bias is None else 1.0

    def factored(self, left: Tensor, right: Tensor, gram: Tensor) -> Blocks:
        """The update `leftᵀ·right` of the matrix, and that of the bias."""
        blocks: list[tuple[Span, DenseBlock | FactoredBlock]] = [(self.spans[0], FactoredBlock(left, right, gram))]
        if self.bias is not None:
            blocks.append((self.spans[1], DenseBlock(left.sum(1))))
        return blocks


class GramLinear:
    """The first layer if every step uses the same samples: inner products of the inputs are computed once."""

    def __init__(self, weights: LinearWeights, lr: float) -> None:
        self.weights, self.lr = weights, lr
        self.x: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        """`x·W₀ᵀ − lr·(x·xᵀ + 1)·ΣG`."""
        if self.x is None:
            self.x, self.first = x, self.weights.apply(x)
            self.gram = torch.bmm(x, x.transpose(1, 2))
            self.inner = self.gram + self.weights.bias_product
            self.total = torch.zeros_like(self.first)
            return self.first
        return torch.baddbmm(self.first, self.inner, self.total, alpha=-self.lr)

    def backward(self, g: Tensor) -> None:
        self.total += g

    def blocks(self) -> Blocks:
        assert self.x is not None
        return self.weights.factored(self.total * -self.lr, self.x, self.gram)


class FactoredLinear:
    """A layer without weights per client: the broadcast weights plus a product of the inputs and gradients so far."""

    def __init__(self, weights: LinearWeights, lr: float, clients: int, rank: int, *, lowest: bool) -> None:
        outputs, inputs = weights.matrix.shape
        self.weights, self.lr, self.lowest, self.seen = weights, lr, lowest, 0
        self.x = weights.matrix.new_empty(clients, rank, inputs)
        self.g = weights.matrix.new_empty(clients, rank, outputs)
        self.gram = weights.matrix.new_zeros(clients, rank, rank)

    def forward(self, x: Tensor) -> Tensor:
        """The shared product, corrected by the steps so far."""
        seen, end = self.seen, self.seen + x.shape[1]
        self.x[:, seen:end] = x
        inner = torch.bmm(x, self.x[:, :end].transpose(1, 2))
        self.gram[:, seen:end, :end] = inner
        self.gram[:, :seen, seen:end] = inner[:, :, :seen].transpose(1, 2)
        out = self.weights.apply(x)
        if seen:
            out = out.baddbmm_(inner[:, :, :seen] + self.weights.bias_product, self.g[:, :seen], alpha=-self.lr)
        return out

    def backward(self, g: Tensor) -> Tensor | None:
        seen, self.seen = self.seen, self.seen + g.shape[1]
        below = None if self.lowest else self._input_gradient(g, seen)
        self.g[:, seen : self.seen] = g
        return below

    def _input_gradient(self, g: Tensor, seen: int) -> Tensor:
        below = (g.reshape(-1, g.shape[-1]) @ self.weights.matrix).view(*g.shape[:-1], -1)
        if seen:
            inner = torch.bmm(g, self.g[:, :seen].transpose(1, 2))
            below = below.baddbmm_(inner, self.x[:, :seen], alpha=-self.lr)
        return below

    def blocks(self) -> Blocks:
        return self.weights.factored(self.g * -self.lr, self.x, self.gram)


class WindowLinear:
    """The first layer on changing batches: the weights are read and written once for several steps.

    The inputs of these steps are known in advance, so their products with the weights and with each other are computed
    together; within the window a step's output is corrected by the previous steps.
    """

    def __init__(self, weights: LinearWeights, lr: float, clients: int) -> None:
        self.weights, self.lr = weights, lr
        self.matrix = weights.matrix.repeat(clients, 1, 1)
        self.bias = None if weights.bias is None else weights.bias.repeat(clients, 1, 1)

    def start_window(self, x: Tensor) -> None:
        """Receive the inputs of a window of steps, (clients, steps · batch, inputs)."""
        transposed = self.matrix.transpose(1, 2)
        self.x, self.seen = x, 0
        self.product = torch.bmm(x, transposed) if self.bias is None else torch.baddbmm(self.bias, x, transposed)
        self.inner = torch.bmm(x, x.transpose(1, 2)).add_(self.weights.bias_product)
        self.g = torch.empty_like(self.product)

    def forward(self, x: Tensor) -> Tensor:
        """The outputs of `x`, the next batch of the window."""
        batch = slice(self.seen, self.seen + x.shape[1])
        out = self.product[:, batch]
        if self.seen:
            out.baddbmm_(self.inner[:, batch, : self.seen], self.g[:, : self.seen], alpha=-self.lr)
        return out

    def backward(self, g: Tensor) -> None:
        """Record the step; at the end of the window apply all its steps at once."""
        self.g[:, self.seen : self.seen + g.shape[1]] = g
        self.seen += g.shape[1]
        if self.seen == self.x.shape[1]:
            self.matrix.baddbmm_(self.g.transpose(1, 2), self.x, alpha=-self.lr)
            if self.bias is not None:
                self.bias.sub_(self.g.sum(1, keepdim=True), alpha=self.lr)

    def blocks(self) -> Blocks:
        return _differences(self.weights, self.matrix, self.bias)


class DenseLinear:
    """A layer with weights per client, updated in place in the backward pass."""

    proximal_steps: tuple[ProximalStep, ...] = ()

    def __init__(self, weights: LinearWeights, lr: float, clients: int, *, lowest: bool) -> None:
        self.weights, self.lr, self.lowest = weights, lr, lowest
        self.matrix = per_client(weights.matrix, clients, dims=2)
        self.bias = None if weights.bias is None else per_client(weights.bias, clients, dims=1)[:, None]

    @property
    def parameters(self) -> tuple[Tensor, ...]:
        return (self.matrix,) if self.bias is None else (self.matrix, self.bias[:, 0])

    def forward(self, x: Tensor) -> Tensor:
        self.x = x
        transposed = self.matrix.transpose(1, 2)
        return torch.bmm(x, transposed) if self.bias is None else torch.baddbmm(self.bias, x, transposed)

    def backward(self, g: Tensor) -> Tensor | None:
        below = None if self.lowest else torch.bmm(g, self.matrix)
        for proximal in self.proximal_steps:
            proximal.apply()
        self.matrix.baddbmm_(g.transpose(1, 2), self.x, alpha=-self.lr)
        if self.bias is not None:
            self.bias.sub_(g.sum(1, keepdim=True), alpha=self.lr)
        return below

    def blocks(self) -> Blocks:
        return _differences(self.weights, self.matrix, self.bias)


def _differences(weights: LinearWeights, matrix: Tensor, bias: Tensor | None) -> Blocks:
    """Trained minus initial weights."""
    blocks: list[tuple[Span, DenseBlock | FactoredBlock]] = [
        (weights.spans[0], DenseBlock(matrix.sub_(weights.matrix)))
    ]
    if bias is not None:
        assert weights.bias is not None
        blocks.append((weights.spans[1], DenseBlock(bias.sub_(weights.bias.unsqueeze(-2)))))
    return blocks
