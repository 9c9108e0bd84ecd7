"""Layers without weights: activations, pooling, flattening."""

import torch
import torch.nn.functional as F
from torch import Tensor

from tacit.engine.learners.kernels.shape import Blocks

_aten = torch.ops.aten
Pair = tuple[int, int]


class Weightless:
    """What layers without weights have in common: no part in the update."""

    def blocks(self) -> Blocks:
        """None."""
        return []


class Relu(Weightless):
    """max(x, 0)."""

    def forward(self, x: Tensor) -> Tensor:
        """Elementwise."""
        self.out = torch.relu(x)
        return self.out

    def backward(self, g: Tensor) -> Tensor:
        """Where the output is positive."""
        below: Tensor = _aten.threshold_backward(g, _first(self.out, g), 0)
        return below


class Sigmoid(Weightless):
    """1 / (1 + exp(-x))."""

    def forward(self, x: Tensor) -> Tensor:
        """Elementwise."""
        self.out = torch.sigmoid(x)
        return self.out

    def backward(self, g: Tensor) -> Tensor:
        """G · s · (1 − s)."""
        below: Tensor = _aten.sigmoid_backward(g, _first(self.out, g))
        return below


class Tanh(Weightless):
    """tanh(x)."""

    def forward(self, x: Tensor) -> Tensor:
        """Elementwise."""
        self.out = torch.tanh(x)
        return self.out

    def backward(self, g: Tensor) -> Tensor:
        """G · (1 − t²)."""
        below: Tensor = _aten.tanh_backward(g, _first(self.out, g))
        return below


class Flatten(Weightless):
    """All but clients and batch in one dimension."""

    def forward(self, x: Tensor) -> Tensor:
        """(clients, batch, features)."""
        self.shape = x.shape
        return x.flatten(2)

    def backward(self, g: Tensor) -> Tensor:
        """Back to the shape."""
        return g.reshape(self.shape)


class MaxPool(Weightless):
    """Max pooling, channels-last: PyTorch's kernel for that layout is many times faster than the other."""

    def __init__(self, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair, ceil: bool) -> None:
        self.geometry = (kernel, stride, padding, dilation, ceil)

    def forward(self, x: Tensor) -> Tensor:
        """The largest of every window, in the usual layout again for what comes next."""
        self.x, self.shape = _channels_last(x), x.shape
        out, self.index = _aten.max_pool2d_with_indices(self.x, *self.geometry)
        return _stacked(out.contiguous(), self.shape)

    def backward(self, g: Tensor) -> Tensor:
        """To where the largest was."""
        below = _aten.max_pool2d_with_indices_backward(_channels_last(g), self.x, *self.geometry, self.index)
        return _stacked(below, self.shape)


class AvgPool(Weightless):
    """Average pooling."""

    def __init__(
        self, kernel: Pair, stride: Pair, padding: Pair, ceil: bool, include: bool, divisor: int | None
    ) -> None:
        self.geometry = (kernel, stride, padding, ceil, include, divisor)

    def forward(self, x: Tensor) -> Tensor:
        """The mean of every window."""
        self.x, self.shape = x.flatten(0, 1), x.shape
        return _stacked(F.avg_pool2d(self.x, *self.geometry), self.shape)

    def backward(self, g: Tensor) -> Tensor:
        """Spread evenly."""
        return _stacked(_aten.avg_pool2d_backward(g.flatten(0, 1), self.x, *self.geometry), self.shape)


def _first(out: Tensor, g: Tensor) -> Tensor:
    """The outputs whose gradient is there: under a mask it may be that of the first features only."""
    return out if out.shape[-1] == g.shape[-1] else out[..., : g.shape[-1]]


def _channels_last(x: Tensor) -> Tensor:
    return x.flatten(0, 1).contiguous(memory_format=torch.channels_last)


def _stacked(x: Tensor, shape: torch.Size) -> Tensor:
    return x.view(shape[0], shape[1], *x.shape[1:])
