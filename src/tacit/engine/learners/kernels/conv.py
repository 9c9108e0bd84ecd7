"""Convolutions for a stack of clients, in two forms that compute the same.

The first layer's inputs do not depend on weights, so their patches are unfolded once and every product is a
matrix product (`PatchConv`). Higher up, PyTorch's own convolution, client by client, is close to what the
arithmetic allows (`LoopConv`).
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tacit.engine.layout import per_client
from tacit.engine.learners.kernels.chain import pair
from tacit.engine.learners.kernels.rows import DenseBlock
from tacit.engine.learners.kernels.shape import Blocks, Slot, Tug

PATCH_LIMIT = 128  # inputs per output; unfolding wins clearly at 25 and loses at 800


@dataclass(frozen=True, eq=False)
class Filters:
    """A convolution as received: weights, bias or none, where they lie in a row, and its geometry."""

    weight: Tensor  # (outputs, inputs / groups, height, width), or one of them for each client
    bias: Tensor | None
    slots: tuple[Slot, ...]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    groups: int

    @classmethod
    def of(cls, module: nn.Conv2d, weight: Tensor, bias: Tensor | None, slots: tuple[Slot, ...]) -> "Filters":
        """The geometry of a module with the given weights."""
        stride, dilation = pair(module.stride), pair(module.dilation)
        return cls(weight, bias, slots, stride, _padding(module), dilation, module.groups)

    @property
    def patch(self) -> int:
        """How many inputs an output depends on."""
        return self.weight.shape[-3:].numel()

    def outputs(self, height: int, width: int) -> tuple[int, int]:
        """Height and width of the output."""
        sides = zip((height, width), self.weight.shape[-2:], self.stride, self.padding, self.dilation, strict=True)
        rows, columns = ((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in sides)
        return rows, columns

    def input_gradient(self, g: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        """The gradient at the inputs alone, of which only the shape is needed."""
        return self._backward(g, x, weight, (True, False))[0]

    def weight_gradient(self, g: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        """The gradient at the weights alone, of which only the shape is needed."""
        return self._backward(g, x, weight, (False, True))[1]

    def gradients(self, g: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Both."""
        return self._backward(g, x, weight, (True, True))

    def _backward(self, g: Tensor, x: Tensor, weight: Tensor, wanted: tuple[bool, bool]) -> tuple[Tensor, Tensor]:
        geometry = (self.stride, self.padding, self.dilation, False, [0, 0], self.groups)
        gx, gw, _ = torch.ops.aten.convolution_backward(g, x, weight, None, *geometry, [*wanted, False])
        return gx, gw


class PatchConv:
    """The first layer: patches of the inputs times filters, outputs channels-last.

    A bias is the weight of one more input that is always 1.
    """

    tugs: tuple[Tug, ...] = ()

    def __init__(self, filters: Filters, lr: float, clients: int, *, constant: bool) -> None:
        self.filters, self.lr, self.constant = filters, lr, constant
        columns = [filters.weight.flatten(-3)] + ([] if filters.bias is None else [filters.bias[..., None]])
        self.start = torch.cat(columns, dim=-1)
        self.matrix = per_client(self.start, clients, dims=2)
        self.patches: Tensor | None = None

    @property
    def owned(self) -> tuple[Tensor, ...]:
        """Filters and bias."""
        filters, bias = self.matrix[:, :, : self.filters.patch], self.matrix[:, :, self.filters.patch :]
        return (filters,) if self.filters.bias is None else (filters, bias[:, :, 0])

    def forward(self, x: Tensor) -> Tensor:
        """(clients, batch, channels, height, width), with the channels innermost in memory."""
        if self.patches is None or not self.constant:
            self.patches = self._unfold(x)
        flat = torch.bmm(self.patches, self.matrix.transpose(1, 2))
        rows, columns = self.filters.outputs(x.shape[3], x.shape[4])
        return flat.view(x.shape[0], x.shape[1], rows, columns, -1).permute(0, 1, 4, 2, 3)

    def backward(self, g: Tensor) -> None:
        """The step in place; nothing lies below."""
        assert self.patches is not None
        flat = g.permute(0, 1, 3, 4, 2).reshape(g.shape[0], -1, g.shape[2])
        for tug in self.tugs:
            tug.take()
        self.matrix.baddbmm_(flat.transpose(1, 2), self.patches, alpha=-self.lr)

    def blocks(self) -> Blocks:
        """Trained minus broadcast weights."""
        moved, patch = self.matrix.sub_(self.start), self.filters.patch
        parts = (moved[:, :, :patch], moved[:, :, patch:])
        return [(slot, DenseBlock(part)) for slot, part in zip(self.filters.slots, parts, strict=False)]

    def _unfold(self, x: Tensor) -> Tensor:
        f = self.filters
        kernel = (f.weight.shape[-2], f.weight.shape[-1])
        columns = F.unfold(x.flatten(0, 1), kernel, f.dilation, f.padding, f.stride)
        if f.bias is not None:
            columns = F.pad(columns, (0, 0, 0, 1), value=1.0)
        return columns.transpose(1, 2).reshape(x.shape[0], -1, columns.shape[1])


class LoopConv:
    """A convolution with filters per client, computed client by client."""

    tugs: tuple[Tug, ...] = ()

    def __init__(self, filters: Filters, lr: float, clients: int, *, lowest: bool) -> None:
        self.filters, self.lr, self.lowest = filters, lr, lowest
        self.weight = per_client(filters.weight, clients, dims=4)
        self.bias = None if filters.bias is None else per_client(filters.bias, clients, dims=1)

    @property
    def owned(self) -> tuple[Tensor, ...]:
        """Filters and bias."""
        return (self.weight,) if self.bias is None else (self.weight, self.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Every client's batch through its own filters."""
        self.x, f = x.contiguous(), self.filters
        biases = [None] * len(x) if self.bias is None else self.bias
        out = [
            F.conv2d(xc, w, b, f.stride, f.padding, f.dilation, f.groups)
            for xc, w, b in zip(self.x, self.weight, biases, strict=True)
        ]
        return out[0][None] if len(out) == 1 else torch.stack(out)

    def backward(self, g: Tensor) -> Tensor | None:
        """The gradient at the inputs, then the step in place."""
        g = g.contiguous()
        below = None if self.lowest else torch.empty_like(self.x)
        for client in range(len(g)):
            here = (g[client], self.x[client], self.weight[client])
            if below is None:
                gw = self.filters.weight_gradient(*here)
            else:
                below[client], gw = self.filters.gradients(*here)
            for tug in self.tugs:
                tug.take(client)
            self.weight[client].sub_(gw, alpha=self.lr)
        if self.bias is not None:
            self.bias.sub_(g.sum((1, 3, 4)), alpha=self.lr)
        return below

    def blocks(self) -> Blocks:
        """Trained minus broadcast weights."""
        blocks = [(self.filters.slots[0], DenseBlock(self.weight.sub_(self.filters.weight)))]
        if self.bias is not None and self.filters.bias is not None:
            blocks.append((self.filters.slots[1], DenseBlock(self.bias.sub_(self.filters.bias))))
        return blocks


def _padding(module: nn.Conv2d) -> tuple[int, int]:
    if module.padding == "valid":
        return 0, 0
    if module.padding == "same":
        height, width = (d * (k - 1) // 2 for d, k in zip(pair(module.dilation), module.kernel_size, strict=True))
        return height, width
    assert not isinstance(module.padding, str)
    return pair(module.padding)
