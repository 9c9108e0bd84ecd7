"""Trains a wave with hand-batched layers: builds each layer in the form that fits, runs the steps, gathers blocks."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tacit.core import Descent, Loss
from tacit.engine.batches import Batches
from tacit.engine.kernels.chain import TRAINED, Link, chain_of
from tacit.engine.kernels.conv import PATCH_LIMIT, Filters, LoopConv, PatchConv
from tacit.engine.kernels.linear import WINDOW, DenseLinear, FactoredLinear, GramLinear, Weights, WindowLinear
from tacit.engine.kernels.losses import GRADIENTS, has_gradient
from tacit.engine.kernels.plain import AvgPool, Flatten, MaxPool, Relu, Sigmoid, Tanh
from tacit.engine.kernels.rows import BlockRows
from tacit.engine.kernels.shape import Layer, Slot
from tacit.engine.layout import Layout


def kernels_for(model: nn.Module, loss: Loss) -> "Kernels | None":
    """The fast way for this module and loss, if there is one."""
    links = chain_of(model) if has_gradient(loss) else None
    return None if links is None else Kernels(links, Layout.of(model), loss)


class Kernels:
    """Trains all clients of a wave at once, by plain SGD, through a chain of known layers."""

    def __init__(self, links: tuple[Link, ...], layout: Layout, loss: Loss) -> None:
        self.links, self.layout = links, layout
        self.gradient = GRADIENTS[type(loss)]

    def takes(self, how: Descent) -> bool:
        """Whether the descent is plain SGD of all weights."""
        return not how.momentum and not how.weight_decay and how.mask is None

    @torch.no_grad()
    def descend(self, weights: Tensor, batches: Batches, how: Descent, clients: Tensor) -> BlockRows:
        """The update of every client, in blocks."""
        layers = _Builder(self, weights, batches, how).layers()
        if batches.constant:
            x, y = self._inputs(batches, 0, 1)
            for step in range(batches.steps):
                self._step(layers, x, y, batches.weights(step))
        else:
            window = WINDOW if isinstance(layers[0], WindowLinear) else 1
            for begin in range(0, batches.steps, window):
                self._window(layers, batches, begin, min(begin + window, batches.steps))
        blocks = sorted(((*slot, block) for layer in layers for slot, block in layer.blocks()), key=lambda b: b[0])
        return BlockRows(tuple(blocks), len(clients), self.layout.dim, weights.dtype)

    def _inputs(self, batches: Batches, begin: int, end: int) -> tuple[Tensor, Tensor]:
        x, y = batches.x(begin, end), batches.y(begin, end)
        return x.flatten(2) if isinstance(self.links[0].module, nn.Flatten) else x, y

    def _window(self, layers: list[Layer], batches: Batches, begin: int, end: int) -> None:
        """A few steps whose inputs are fetched together."""
        x, y = self._inputs(batches, begin, end)
        if isinstance(layers[0], WindowLinear):
            layers[0].open(x)
        for step in range(begin, end):
            here = slice((step - begin) * batches.size, (step - begin + 1) * batches.size)
            self._step(layers, x[:, here], y[:, here], batches.weights(step))

    def _step(self, layers: list[Layer], x: Tensor, y: Tensor, weight: Tensor) -> None:
        for layer in layers:
            x = layer.forward(x)
        g: Tensor | None = self.gradient(x, y, weight)
        for layer in reversed(layers):
            if g is None:
                break
            g = layer.backward(g)


@dataclass(frozen=True, eq=False)
class _Builder:
    """Chooses the form of every layer for one wave."""

    learner: Kernels
    weights: Tensor
    batches: Batches
    how: Descent

    def layers(self) -> list[Layer]:
        """The chain's layers; flattening of the inputs is left to the caller."""
        links = self.learner.links
        if isinstance(links[0].module, nn.Flatten):
            links = links[1:]
        trained = [i for i, link in enumerate(links) if isinstance(link.module, TRAINED)]
        return [self._layer(link, lowest=i <= trained[0], first=i == 0) for i, link in enumerate(links)]

    def _layer(self, link: Link, *, lowest: bool, first: bool) -> Layer:
        module = link.module
        match module:
            case nn.Linear():
                matrix, bias, slots = self._parameters(link)
                return self._linear(Weights(matrix, bias, slots), lowest=lowest, first=first)
            case nn.Conv2d():
                return self._conv(Filters.of(module, *self._parameters(link)), lowest=lowest)
            case nn.MaxPool2d():
                k, s, p, d = (_pair(v) for v in (module.kernel_size, module.stride, module.padding, module.dilation))
                return MaxPool(k, s, p, d, module.ceil_mode)
            case nn.AvgPool2d():
                k, s, p = (_pair(v) for v in (module.kernel_size, module.stride, module.padding))
                return AvgPool(k, s, p, module.ceil_mode, module.count_include_pad, module.divisor_override)
            case nn.ReLU():
                return Relu()
            case nn.Sigmoid():
                return Sigmoid()
            case nn.Tanh():
                return Tanh()
            case _:
                return Flatten()

    def _parameters(self, link: Link) -> tuple[Tensor, Tensor | None, tuple[Slot, ...]]:
        layout, prefix = self.learner.layout, f"{link.name}." if link.name else ""
        views = layout.views(self.weights)
        names = [name for name in (f"{prefix}weight", f"{prefix}bias") if name in views]
        slots = tuple((layout.start(n), layout.start(n) + views[n].numel()) for n in names)
        return views[names[0]], views[names[1]] if len(names) > 1 else None, slots

    def _linear(self, weights: Weights, *, lowest: bool, first: bool) -> Layer:
        batches, lr = self.batches, self.how.lr
        outputs, inputs = weights.matrix.shape
        if lowest and batches.constant and batches.size <= 2 * batches.steps * outputs:
            return GramLinear(weights, lr)
        rank = batches.steps * batches.size
        if rank * (inputs + outputs) <= inputs * outputs // 2:
            return FactoredLinear(weights, lr, batches.clients, rank, lowest=lowest)
        if first and not batches.constant:
            return WindowLinear(weights, lr, batches.clients)
        return DenseLinear(weights, lr, batches.clients, lowest=lowest)

    def _conv(self, filters: Filters, *, lowest: bool) -> Layer:
        batches, lr = self.batches, self.how.lr
        if lowest and filters.groups == 1 and filters.patch <= PATCH_LIMIT:
            return PatchConv(filters, lr, batches.clients, constant=batches.constant)
        return LoopConv(filters, lr, batches.clients, lowest=lowest)


def _pair(value: int | tuple[int, int]) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else value
