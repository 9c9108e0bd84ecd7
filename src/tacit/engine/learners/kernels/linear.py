"""Fully connected layers for a stack of clients, in four forms that compute the same.

| form | when | what it saves |
|---|---|---|
| `GramLinear` | first layer, every step on the same samples | all products with the inputs but two |
| `FactoredLinear` | few steps of small batches | every client's copy of the weights |
| `WindowLinear` | first layer, many small batches | passes over the weights: one for several steps |
| `DenseLinear` | otherwise | the gradient's buffer |

All use that after steps on inputs X with output gradients G the weights are `W₀ − lr·Gᵀ·X`, so that
`x·Wᵀ = x·W₀ᵀ − lr·(x·Xᵀ)·G`. A bias is one more input that is always 1: it adds 1 to every inner product.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from tacit.engine.layout import per_client
from tacit.engine.learners.kernels.rows import DenseBlock, FactoredBlock
from tacit.engine.learners.kernels.shape import Blocks, Slot, Tug

WINDOW = 4  # steps that share one pass over the weights; 3 and 6 were some 4 % slower on the MLP of the benchmarks


@dataclass(frozen=True, eq=False)
class Weights:
    """A fully connected layer as received: matrix, bias or none, and where they lie in a row."""

    matrix: Tensor  # (outputs, inputs), or one of them for each client
    bias: Tensor | None
    slots: tuple[Slot, ...]

    def apply(self, x: Tensor) -> Tensor:
        """All clients' inputs through the broadcast weights: one large product."""
        flat = x.reshape(-1, x.shape[-1])
        product = flat @ self.matrix.t() if self.bias is None else torch.addmm(self.bias, flat, self.matrix.t())
        return product.view(*x.shape[:-1], -1)

    @property
    def one(self) -> float:
        """What the bias adds to an inner product of inputs."""
        return 0.0 if self.bias is None else 1.0

    def factored(self, left: Tensor, right: Tensor, gram: Tensor) -> Blocks:
        """The update `leftᵀ·right` and the bias's share of it."""
        blocks: list[tuple[Slot, DenseBlock | FactoredBlock]] = [(self.slots[0], FactoredBlock(left, right, gram))]
        if self.bias is not None:
            blocks.append((self.slots[1], DenseBlock(left.sum(1))))
        return blocks


class GramLinear:
    """The first layer when every step sees the same samples: inner products of the inputs are taken once."""

    def __init__(self, weights: Weights, lr: float) -> None:
        self.weights, self.lr = weights, lr
        self.x: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        """`x·W₀ᵀ − lr·(x·xᵀ + 1)·ΣG`."""
        if self.x is None:
            self.x, self.first = x, self.weights.apply(x)
            self.gram = torch.bmm(x, x.transpose(1, 2))
            self.inner = self.gram + self.weights.one
            self.total = torch.zeros_like(self.first)
            return self.first
        return torch.baddbmm(self.first, self.inner, self.total, alpha=-self.lr)

    def backward(self, g: Tensor) -> None:
        """Gather the output gradients; nothing lies below."""
        self.total += g

    def blocks(self) -> Blocks:
        """The update in factored form."""
        assert self.x is not None
        return self.weights.factored(self.total * -self.lr, self.x, self.gram)


class FactoredLinear:
    """A layer whose clients never own weights: the shared ones plus a product of what was seen so far."""

    def __init__(self, weights: Weights, lr: float, clients: int, rank: int, *, lowest: bool) -> None:
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
            out = out.baddbmm_(inner[:, :, :seen] + self.weights.one, self.g[:, :seen], alpha=-self.lr)
        return out

    def backward(self, g: Tensor) -> Tensor | None:
        """The gradient at the inputs with the weights of this step, which is then taken."""
        seen, self.seen = self.seen, self.seen + g.shape[1]
        below = None if self.lowest else self._below(g, seen)
        self.g[:, seen : self.seen] = g
        return below

    def _below(self, g: Tensor, seen: int) -> Tensor:
        below = (g.reshape(-1, g.shape[-1]) @ self.weights.matrix).view(*g.shape[:-1], -1)
        if seen:
            inner = torch.bmm(g, self.g[:, :seen].transpose(1, 2))
            below = below.baddbmm_(inner, self.x[:, :seen], alpha=-self.lr)
        return below

    def blocks(self) -> Blocks:
        """The update in factored form."""
        return self.weights.factored(self.g * -self.lr, self.x, self.gram)


class WindowLinear:
    """The first layer on changing batches: the weights are read and written once for a few steps.

    The inputs of the coming steps are known, so their products with the weights and with each other are taken
    together; within the window a step's output is corrected by the steps before it.
    """

    def __init__(self, weights: Weights, lr: float, clients: int) -> None:
        self.weights, self.lr = weights, lr
        self.matrix = weights.matrix.repeat(clients, 1, 1)
        self.bias = None if weights.bias is None else weights.bias.repeat(clients, 1, 1)

    def open(self, x: Tensor) -> None:
        """Take the inputs of a window of steps, (clients, steps · batch, inputs)."""
        wide = self.matrix.transpose(1, 2)
        self.x, self.at = x, 0
        self.product = torch.bmm(x, wide) if self.bias is None else torch.baddbmm(self.bias, x, wide)
        self.inner = torch.bmm(x, x.transpose(1, 2)).add_(self.weights.one)
        self.g = torch.empty_like(self.product)

    def forward(self, x: Tensor) -> Tensor:
        """The next batch of the window; `x` is that batch."""
        here = slice(self.at, self.at + x.shape[1])
        out = self.product[:, here]
        if self.at:
            out.baddbmm_(self.inner[:, here, : self.at], self.g[:, : self.at], alpha=-self.lr)
        return out

    def backward(self, g: Tensor) -> None:
        """Note the step; at the end of the window apply all its steps at once."""
        self.g[:, self.at : self.at + g.shape[1]] = g
        self.at += g.shape[1]
        if self.at == self.x.shape[1]:
            self.matrix.baddbmm_(self.g.transpose(1, 2), self.x, alpha=-self.lr)
            if self.bias is not None:
                self.bias.sub_(self.g.sum(1, keepdim=True), alpha=self.lr)

    def blocks(self) -> Blocks:
        """Trained minus broadcast weights."""
        return _differences(self.weights, self.matrix, self.bias)


class DenseLinear:
    """A layer with weights per client; the step is added to them in the backward pass."""

    tugs: tuple[Tug, ...] = ()

    def __init__(self, weights: Weights, lr: float, clients: int, *, lowest: bool) -> None:
        self.weights, self.lr, self.lowest = weights, lr, lowest
        self.matrix = per_client(weights.matrix, clients, dims=2)
        self.bias = None if weights.bias is None else per_client(weights.bias, clients, dims=1)[:, None]

    @property
    def owned(self) -> tuple[Tensor, ...]:
        """Matrix and bias."""
        return (self.matrix,) if self.bias is None else (self.matrix, self.bias[:, 0])

    def forward(self, x: Tensor) -> Tensor:
        """Every client's batch through its own weights."""
        self.x = x
        wide = self.matrix.transpose(1, 2)
        return torch.bmm(x, wide) if self.bias is None else torch.baddbmm(self.bias, x, wide)

    def backward(self, g: Tensor) -> Tensor | None:
        """The gradient at the inputs, then the step in place."""
        below = None if self.lowest else torch.bmm(g, self.matrix)
        for tug in self.tugs:
            tug.take()
        self.matrix.baddbmm_(g.transpose(1, 2), self.x, alpha=-self.lr)
        if self.bias is not None:
            self.bias.sub_(g.sum(1, keepdim=True), alpha=self.lr)
        return below

    def blocks(self) -> Blocks:
        """Trained minus broadcast weights."""
        return _differences(self.weights, self.matrix, self.bias)


def _differences(weights: Weights, matrix: Tensor, bias: Tensor | None) -> Blocks:
    blocks: list[tuple[Slot, DenseBlock | FactoredBlock]] = [
        (weights.slots[0], DenseBlock(matrix.sub_(weights.matrix)))
    ]
    if bias is not None:
        assert weights.bias is not None
        blocks.append((weights.slots[1], DenseBlock(bias.sub_(weights.bias.unsqueeze(-2)))))
    return blocks
