"""Layers of a stack of clients: what a layer is, its part of the update, and the layers without parameters.

Activations are (clients, batch, ...). A layer with parameters takes its SGD step inside its backward pass, so the
gradient of its weights need not be stored.

The update is a stack of rows in blocks, one per parameter: dense, or factored as a sum of outer products. After T steps
on batches of B samples, the update of a fully connected layer is `Gᵀ·X` with T·B rows of output gradients G and inputs
X. Its norm follows from the Gram matrices, ‖GᵀX‖² = Σ (X·Xᵀ)∘(G·Gᵀ), and the scaled sum over all clients is one matrix
product, so the weights of single clients are never computed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.utils import _pair

from tacit.core import BinaryCrossEntropy, CrossEntropy, DenseRows, Loss, MeanSquared, RootBrier, RootMeanSquared

Span = tuple[int, int]  # the start and the end of a parameter in a row
_aten = torch.ops.aten


@dataclass(frozen=True, eq=False)
class DenseBlock:
    """One parameter's part of every row of a stack: the values themselves, (clients, ...)."""

    values: Tensor

    def squared_norms(self) -> Tensor:
        """The squared L2 norm of every row's part; below the true one by at most the rounding of the result."""
        return DenseRows(self.values.flatten(1)).norms().double().square()

    def write_sum(self, out: Tensor, factors: Tensor | None) -> None:
        """Write the sum of all rows' parts, each times its factor, to the flat `out`."""
        flat = self.values.flatten(1)
        torch.sum(flat, 0, out=out) if factors is None else torch.mv(flat.t(), factors, out=out)

    def dense(self) -> Tensor:
        """The parts as a matrix, (clients, size)."""
        return self.values.flatten(1)

    def keep(self, which: Tensor) -> "DenseBlock":
        return DenseBlock(self.values[which])


@dataclass(frozen=True, eq=False)
class FactoredBlock:
    """The update of a weight matrix as `leftᵀ · right`, with the Gram matrix of the inputs, `right · rightᵀ`."""

    left: Tensor  # (clients, rank, outputs)
    right: Tensor  # (clients, rank, inputs)
    gram: Tensor  # (clients, rank, rank)

    def squared_norms(self) -> Tensor:
        """Σ gram∘(left·leftᵀ), rounded up by the largest error of cancellation, so that a clipping bound holds."""
        products = torch.bmm(self.left, self.left.transpose(1, 2)).mul_(self.gram).flatten(1).double()
        slack = 4 * torch.finfo(self.left.dtype).eps
        return (products.sum(1) + slack * products.abs().sum(1)).clamp(min=0)

    def write_sum(self, out: Tensor, factors: Tensor | None) -> None:
        left = self.left if factors is None else self.left * factors[:, None, None]
        outputs, inputs = left.shape[2], self.right.shape[2]
        torch.mm(left.reshape(-1, outputs).t(), self.right.reshape(-1, inputs), out=out.view(outputs, inputs))

    def dense(self) -> Tensor:
        return torch.bmm(self.left.transpose(1, 2), self.right).flatten(1)

    def keep(self, which: Tensor) -> "FactoredBlock":
        return FactoredBlock(self.left[which], self.right[which], self.gram[which])


@dataclass(frozen=True, eq=False)
class BlockRows:
    """A stack of rows, block by block, with a factor per row that is applied when rows are summed."""

    blocks: tuple[tuple[int, int, DenseBlock | FactoredBlock], ...]  # start, stop, block
    count: int
    dim: int
    dtype: torch.dtype
    factors: Tensor | None = None

    def norms(self) -> Tensor:
        return self._norms if self.factors is None else self._norms * self.factors.abs()

    @cached_property
    def _norms(self) -> Tensor:
        return torch.stack([block.squared_norms() for _, _, block in self.blocks]).sum(0).sqrt()

    def scaled(self, factors: Tensor) -> "BlockRows":
        factors = factors.to(self.dtype)
        scaled = replace(self, factors=factors if self.factors is None else self.factors * factors)
        scaled.__dict__["_norms"] = self._norms
        return scaled

    def layer_norms(self, layers: tuple[int, ...]) -> Tensor:
        if layers != tuple(stop - start for start, stop, _ in self.blocks):
            return DenseRows(self.dense()).layer_norms(layers)
        norms = torch.stack([block.squared_norms() for _, _, block in self.blocks], dim=1).sqrt()
        return norms if self.factors is None else norms * self.factors.abs()[:, None]

    def layer_scaled(self, factors: Tensor, layers: tuple[int, ...]) -> DenseRows:
        return DenseRows(self.dense()).layer_scaled(factors, layers)

    def keep(self, which: Tensor) -> "BlockRows":
        blocks = tuple((start, stop, block.keep(which)) for start, stop, block in self.blocks)
        factors = None if self.factors is None else self.factors[which]
        return BlockRows(blocks, int(which.sum()), self.dim, self.dtype, factors)

    def select(self, coordinates: Tensor) -> DenseRows:
        return DenseRows(self.dense()[:, coordinates])

    def sum(self) -> Tensor:
        out = torch.empty(self.dim, dtype=self.dtype, device=self._norms.device)
        for start, stop, block in self.blocks:
            block.write_sum(out[start:stop], self.factors)
        return out

    def dense(self) -> Tensor:
        parts = torch.cat([block.dense() for _, _, block in self.blocks], dim=1)
        return parts if self.factors is None else parts * self.factors[:, None]


Blocks = Sequence[DenseBlock | FactoredBlock]  # of a weight and its bias


class Layer(Protocol):
    """One layer of a wave of clients."""

    def forward(self, x: Tensor) -> Tensor:
        """The layer's outputs; keeps what `backward` needs."""

    def backward(self, g: Tensor) -> Tensor | None:
        """Take the step and return the gradient at the inputs, or None if no layer below needs it."""

    def blocks(self) -> Blocks:
        """The layer's part of the update, after the last step."""


@dataclass(frozen=True, eq=False)
class ProximalStep:
    """The proximal term's part of an SGD step, for one parameter.

    w − lr·(g + s·(w − t)) = (1 − lr·s)·w + lr·s·t − lr·g: the parameter is first interpolated towards its target by
    `rate` = lr·s, then the gradient step is taken. Weight decay is a proximal step towards zero.
    """

    parameter: Tensor  # (clients, ...), as the layer holds it
    target: Tensor | None  # None: zero
    rate: float

    def apply(self, client: int | slice = slice(None)) -> None:
        """Interpolate in place, for all clients or one."""
        if self.target is None:
            self.parameter[client].mul_(1 - self.rate)
        else:
            self.parameter[client].lerp_(self.target[client], self.rate)


class PerClientLayer(Layer, Protocol):
    """A layer that holds a copy of its parameters for each client, so that proximal steps can be applied to them."""

    proximal_steps: tuple[ProximalStep, ...]

    @property
    def parameters(self) -> tuple[Tensor, ...]:
        """The clients' parameters, in the order of the layer's spans."""


class Parameterless:
    """A layer without parameters, which contributes nothing to the update."""

    def blocks(self) -> Blocks:
        return []


class Elementwise(Parameterless):
    """A function of every number, whose gradient follows from its outputs."""

    def __init__(self, function: Callable[[Tensor], Tensor], gradient: Callable[[Tensor, Tensor], Tensor]) -> None:
        self.function, self.gradient = function, gradient

    def forward(self, x: Tensor) -> Tensor:
        self.out = self.function(x)
        return self.out

    def backward(self, g: Tensor) -> Tensor:
        return self.gradient(g, self.out)


class Flatten(Parameterless):
    """All dimensions but clients and batch as one."""

    def forward(self, x: Tensor) -> Tensor:
        self.shape = x.shape
        return x.flatten(2)

    def backward(self, g: Tensor) -> Tensor:
        return g.reshape(self.shape)


class MaxPool(Parameterless):
    """Max pooling in channels-last layout, for which PyTorch's kernel is many times faster."""

    def __init__(self, module: nn.MaxPool2d) -> None:
        sides = (module.kernel_size, module.stride, module.padding, module.dilation)
        self.geometry = (*map(_pair, sides), module.ceil_mode)

    def forward(self, x: Tensor) -> Tensor:
        """The outputs are in the default layout, which the next layer expects."""
        self.x, self.shape = _channels_last(x), x.shape
        out, self.index = _aten.max_pool2d_with_indices(self.x, *self.geometry)
        return _per_client(out.contiguous(), self.shape)

    def backward(self, g: Tensor) -> Tensor:
        below = _aten.max_pool2d_with_indices_backward(_channels_last(g), self.x, *self.geometry, self.index)
        return _per_client(below, self.shape)


class AvgPool(Parameterless):
    """Average pooling."""

    def __init__(self, module: nn.AvgPool2d) -> None:
        kernel, stride, padding = map(_pair, (module.kernel_size, module.stride, module.padding))
        options = (module.ceil_mode, module.count_include_pad, module.divisor_override)
        self.geometry = (kernel, stride, padding, *options)

    def forward(self, x: Tensor) -> Tensor:
        self.x, self.shape = x.flatten(0, 1), x.shape
        return _per_client(F.avg_pool2d(self.x, *self.geometry), self.shape)

    def backward(self, g: Tensor) -> Tensor:
        return _per_client(_aten.avg_pool2d_backward(g.flatten(0, 1), self.x, *self.geometry), self.shape)


PARAMETERLESS: dict[type[nn.Module], Callable[[Any], Layer]] = {  # the layers of modules without parameters
    nn.ReLU: lambda _: Elementwise(torch.relu, lambda g, out: _aten.threshold_backward(g, out, 0)),
    nn.Sigmoid: lambda _: Elementwise(torch.sigmoid, _aten.sigmoid_backward),
    nn.Tanh: lambda _: Elementwise(torch.tanh, _aten.tanh_backward),
    nn.MaxPool2d: MaxPool,
    nn.AvgPool2d: AvgPool,
    nn.Flatten: lambda _: Flatten(),
}


def _channels_last(x: Tensor) -> Tensor:
    return x.flatten(0, 1).contiguous(memory_format=torch.channels_last)


def _per_client(x: Tensor, shape: torch.Size) -> Tensor:
    return x.view(shape[0], shape[1], *x.shape[1:])


def cross_entropy_gradient(z: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    """softmax(z) − one_hot(y), times the sample weights, as all gradients below."""
    g = torch.softmax(z, -1)
    g.scatter_add_(-1, y[..., None], torch.full_like(y[..., None], -1.0, dtype=z.dtype))
    return g.mul_(weight[..., None])


def mean_squared_gradient(z: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    """2·(z − y) / outputs per sample."""
    return (z - y).mul_(_weight_per_output(z, weight)).mul_(2)


def binary_cross_entropy_gradient(z: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    """(sigmoid(z) − y) / outputs per sample."""
    return (torch.sigmoid(z) - y).mul_(_weight_per_output(z, weight))


def root_mean_squared_gradient(z: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    """(z − y) / RMSE / outputs per sample."""
    error = z - y
    root = (error.square().flatten(2).mean(2) * weight).sum(1).sqrt_()
    return error.mul_(_weight_per_output(z, weight)).div_(_nonzero(root, z))


def root_brier_gradient(z: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    """The gradient of the root Brier score at the probabilities, (p − one_hot(y)) / root, through the softmax."""
    p = torch.softmax(z, -1)
    error = p.scatter_add(-1, y[..., None], torch.full_like(y[..., None], -1.0, dtype=z.dtype))
    root = (error.square().sum(-1) * weight).sum(1).sqrt_()
    error.mul_(weight[..., None]).div_(_nonzero(root, z))
    return p.mul_(error - (p * error).sum(-1, keepdim=True))


def _nonzero(root: Tensor, like: Tensor) -> Tensor:
    """One root per client to divide by, with 1 for 0; where the root is zero, so is the gradient."""
    return root.masked_fill(root == 0, 1.0).view(-1, *[1] * (like.dim() - 1))


def _weight_per_output(z: Tensor, weight: Tensor) -> Tensor:
    return weight.view(*weight.shape, *[1] * (z.dim() - 2)) / z[0, 0].numel()


LOSS_GRADIENTS: dict[type[Loss], Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    CrossEntropy: cross_entropy_gradient,
    MeanSquared: mean_squared_gradient,
    BinaryCrossEntropy: binary_cross_entropy_gradient,
    RootMeanSquared: root_mean_squared_gradient,
    RootBrier: root_brier_gradient,
}
