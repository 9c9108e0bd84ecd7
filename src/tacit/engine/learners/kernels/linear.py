"""Fully connected layers for a stack of clients, in forms that compute the same: four of them without a mask.

| form | when | what it saves |
|---|---|---|
| `GramLinear` | first layer, every step on the same samples | all but two products with the inputs |
| `FactoredLinear` | few steps of small batches | every client's copy of the weights |
| `WindowLinear` | first layer, many small batches | passes over the weights: one for several steps |
| `DenseLinear` | otherwise | the gradient's buffer |

After steps on inputs X with output gradients G the weights are `W₀ − lr·Gᵀ·X`, so
`x·Wᵀ = x·W₀ᵀ − lr·(x·Xᵀ)·G`. A bias is the weight of an additional input that is always 1: it adds 1 to every inner
product.

Under a mask there are three, and mostly all clients share the broadcast weights.

| form | when | what is held per client |
|---|---|---|
| `BlockLinear` | the mask's coordinates are close together, or there are none | a dense block of corrections |
| `ScatteredLinear` | they are scattered | corrections of single weights |
| `PerClientLinear` | they are many | all weights |

With broadcast weights W₀ and a correction D over outputs J and inputs I, `x·Wᵀ = x·W₀ᵀ` plus, at J, `x_I·Dᵀ`.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from tacit.engine.layout import per_client
from tacit.engine.learners.kernels.layer_masks import LayerMask
from tacit.engine.learners.kernels.layers import Blocks, DenseBlock, FactoredBlock, ProximalStep

WINDOW = 4  # steps that share one pass over the weights; 3 and 6 were about 4 % slower on the MLP of the benchmarks


@dataclass(frozen=True, eq=False)
class LinearWeights:
    """A fully connected layer before training: matrix, and bias or None."""

    matrix: Tensor  # (outputs, inputs), or one for each client
    bias: Tensor | None

    def apply(self, x: Tensor) -> Tensor:
        """All clients' inputs through the broadcast weights, in one large product."""
        flat = x.reshape(-1, x.shape[-1])
        product = flat @ self.matrix.t() if self.bias is None else torch.addmm(self.bias, flat, self.matrix.t())
        return product.view(*x.shape[:-1], -1)

    @property
    def bias_product(self) -> float:
        """The bias's part of an inner product of inputs."""
        return 0.0 if self.bias is None else 1.0

    def update_blocks(self, left: Tensor, right: Tensor, gram: Tensor) -> Blocks:
        """The update `leftᵀ·right` of the matrix, and that of the bias."""
        factored = FactoredBlock(left, right, gram)
        return [factored] if self.bias is None else [factored, DenseBlock(left.sum(1))]


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
        return self.weights.update_blocks(self.total * -self.lr, self.x, self.gram)


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
        return self.weights.update_blocks(self.g * -self.lr, self.x, self.gram)


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
        """Store the step; at the end of the window apply all its steps at once."""
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


class BlockLinear:
    """A correction in the block that the mask touches.

    Args:
        weights: the broadcast weights, in the feature order of the layer's mask.
        mask: the coordinates that may change.
        lr: learning rate.
        clients: number of clients.
        lowest: whether no layer below needs a gradient.
    """

    def __init__(self, weights: LinearWeights, mask: LayerMask, lr: float, clients: int, *, lowest: bool) -> None:
        self.weights, self.mask, self.lr, self.lowest = weights, mask, lr, lowest
        self.block = weights.matrix.new_zeros(clients, mask.block_outputs.count, mask.block_width)
        self.block_mask = mask.block_mask.to(weights.matrix.dtype)
        self.trains, self.trained = not mask.empty, False

    def forward(self, x: Tensor) -> Tensor:
        """The shared product, corrected by the block's inputs, and a 1 if the mask has a bias."""
        out, inputs = self.weights.apply(x), self.mask.block_inputs.take(x)
        self.x = inputs if self.mask.block_width == inputs.shape[-1] else F.pad(inputs, (0, 1), value=1.0)
        if self.trained:
            self.mask.block_outputs.add_product(out, self.x, self.block.transpose(1, 2))
        return out

    def backward(self, g: Tensor) -> Tensor | None:
        block_g = self.mask.block_outputs.take(g) if self.trains else g
        below = None if self.lowest else self._input_gradient(g, block_g)
        if self.trains:
            self.block.baddbmm_(block_g.transpose(1, 2), self.x, alpha=-self.lr).mul_(self.block_mask)
            self.trained = True
        return below

    def _input_gradient(self, g: Tensor, block_g: Tensor) -> Tensor:
        below = (g.reshape(-1, g.shape[-1]) @ self.weights.matrix).view(*g.shape[:-1], -1)
        if self.trained:
            columns = self.block[:, :, : self.mask.block_inputs.count]
            self.mask.block_inputs.add_product(below, block_g, columns)
        return below

    def blocks(self) -> Blocks:
        return [DenseBlock(self.block.flatten(1)[:, positions]) for positions in self.mask.block_positions]


class ScatteredLinear:
    """A correction at single weights, as a sparse product per client; inputs and outputs keep their order."""

    def __init__(self, weights: LinearWeights, mask: LayerMask, lr: float, clients: int, *, lowest: bool) -> None:
        outputs, inputs = mask.shape
        self.weights, self.mask, self.lr, self.lowest = weights, mask, lr, lowest
        self.row, self.column = mask.weights // inputs, mask.weights % inputs
        self.values = weights.matrix.new_zeros(clients, len(mask.weights))
        self.product = SparseProduct(self.row, self.column, outputs, inputs, clients)
        self.bias = MaskedBias(mask, weights.matrix, clients)
        self.whole = weights.matrix.new_zeros(0 if mask.gathers_gradient else clients, outputs, inputs)
        if not lowest:
            self.by_column = torch.argsort(self.column, stable=True)
            rows, columns = self.row[self.by_column], self.column[self.by_column]
            self.transposed_product = SparseProduct(columns, rows, inputs, outputs, clients)

    def forward(self, x: Tensor) -> Tensor:
        self.x, self.x_transposed = x, x.transpose(1, 2).contiguous()
        out = self.weights.apply(x)
        out += self.product.apply(self.x_transposed, self.values).transpose(1, 2)
        self.bias.add(out)
        return out

    def backward(self, g: Tensor) -> Tensor | None:
        g_transposed = g.transpose(1, 2).contiguous()
        below = None if self.lowest else self._input_gradient(g, g_transposed)
        if self.mask.gathers_gradient:
            x = self.x_transposed.index_select(1, self.column)
            self.values.sub_(g_transposed.index_select(1, self.row).mul_(x).sum(2), alpha=self.lr)
        else:  # accumulate whole updates and read the mask's coordinates; the other coordinates are never used
            self.whole.baddbmm_(g.transpose(1, 2), self.x, alpha=-self.lr)
            self.values = self.whole.view(len(g), -1).index_select(1, self.mask.weights)
        self.bias.step(g, self.lr)
        return below

    def _input_gradient(self, g: Tensor, g_transposed: Tensor) -> Tensor:
        below = (g.reshape(-1, g.shape[-1]) @ self.weights.matrix).view(*g.shape[:-1], -1)
        values = self.values.index_select(1, self.by_column)
        return below.add_(self.transposed_product.apply(g_transposed, values).transpose(1, 2))

    def blocks(self) -> Blocks:
        return [DenseBlock(self.values), self.bias.block()]


class PerClientLinear:
    """Weights per client, with a masked gradient."""

    def __init__(self, weights: LinearWeights, mask: LayerMask, lr: float, clients: int, *, lowest: bool) -> None:
        self.weights, self.mask, self.lowest = weights, mask, lowest
        self.matrix = weights.matrix.repeat(clients, 1, 1)
        self.learning_rates = torch.full_like(weights.matrix, lr).masked_fill_(mask.frozen, 0.0)
        self.bias, self.lr = MaskedBias(mask, weights.matrix, clients), lr

    def forward(self, x: Tensor) -> Tensor:
        self.x, transposed, shared = x, self.matrix.transpose(1, 2), self.weights.bias
        out = torch.bmm(x, transposed) if shared is None else torch.baddbmm(shared, x, transposed)
        self.bias.add(out)
        return out

    def backward(self, g: Tensor) -> Tensor | None:
        below = None if self.lowest else torch.bmm(g, self.matrix)
        self.matrix.sub_(torch.bmm(g.transpose(1, 2), self.x).mul_(self.learning_rates))
        self.bias.step(g, self.lr)
        return below

    def blocks(self) -> Blocks:
        at = self.mask.ordered_weights
        values = self.matrix.flatten(1)[:, at] - self.weights.matrix.flatten()[at]
        return [DenseBlock(values), self.bias.block()]


class SparseProduct:
    """The product of a sparse matrix per client with its dense rows: `out[row] += value · rows[column]`.

    It is computed by `embedding_bag`. All clients have the same coordinates, with ascending rows.
    """

    def __init__(self, row: Tensor, column: Tensor, outputs: int, inputs: int, clients: int) -> None:
        client, count = torch.arange(clients)[:, None], torch.bincount(row, minlength=outputs)
        self.index = (column + inputs * client).flatten().int()
        self.offsets = (count.cumsum(0) - count + len(row) * client).flatten().int()

    def apply(self, rows: Tensor, values: Tensor) -> Tensor:
        """(clients, outputs, batch) from rows (clients, inputs, batch) and values (clients, coordinates)."""
        bags = torch.embedding_bag(rows.flatten(0, 1), self.index, self.offsets, False, 0, False, values.flatten())
        sums: Tensor = bags[0]
        return sums.view(len(rows), -1, rows.shape[2])


class MaskedBias:
    """The clients' corrections of a bias under a mask."""

    def __init__(self, mask: LayerMask, like: Tensor, clients: int) -> None:
        self.at, self.trains = mask.biases, len(mask.biases) > 0
        self.mask = like.new_zeros(mask.shape[0]).index_fill_(0, self.at, 1.0)
        self.delta = like.new_zeros(clients, 1, mask.shape[0])

    def add(self, out: Tensor) -> None:
        """Add to the outputs, (clients, batch, outputs), in place."""
        if self.trains:
            out += self.delta

    def step(self, g: Tensor, lr: float) -> None:
        """Take a step with the batch's output gradients."""
        if self.trains:
            self.delta.sub_(g.sum(1, keepdim=True).mul_(self.mask), alpha=lr)

    def block(self) -> DenseBlock:
        """The update at the mask's coordinates."""
        return DenseBlock(self.delta[:, 0, self.at])


def _differences(weights: LinearWeights, matrix: Tensor, bias: Tensor | None) -> Blocks:
    """Trained minus initial weights."""
    blocks = [DenseBlock(matrix.sub_(weights.matrix))]
    if bias is not None and weights.bias is not None:
        blocks.append(DenseBlock(bias.sub_(weights.bias.unsqueeze(-2))))
    return blocks
