"""Convolutions under a mask: filters per client only where they change, weight gradients only in tiles of the mask.

A tile is a rectangle of some outputs by some input channels. A mask of the largest gradients is concentrated: few
outputs, or few channels, have most of its coordinates, and many have one or two. One rectangle around all of them is
nearly the whole layer. So the fullest lines are separated from the others, and each strip of lines spans only the
crossing lines that it touches.
"""

from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from tacit.engine.learners.kernels.block_rows import DenseBlock
from tacit.engine.learners.kernels.conv import ConvWeights, PatchConv
from tacit.engine.learners.kernels.layer_masks import LayerMask
from tacit.engine.learners.kernels.layers import Blocks
from tacit.engine.learners.kernels.masked_linear import MaskedBias

LANES = 8  # outputs and channels are computed in groups of this size, needed or not
TILE_OVERHEAD = 32  # a tile's own overhead, of gathering its inputs, is 1/32 of the work of the whole layer
Strip = tuple[Tensor, Tensor]  # lines, and the crossing lines that they touch


class FrozenConv:
    """A layer in which nothing changes: one convolution for all clients."""

    def __init__(self, weights: ConvWeights, *, lowest: bool) -> None:
        self.weights, self.lowest = weights, lowest

    def forward(self, x: Tensor) -> Tensor:
        w, self.x = self.weights, x
        out = F.conv2d(x.flatten(0, 1), w.weight, w.bias, w.stride, w.padding, w.dilation, w.groups)
        return out.view(*x.shape[:2], *out.shape[1:])

    def backward(self, g: Tensor) -> Tensor | None:
        if self.lowest:
            return None
        below = self.weights.input_gradient(g.flatten(0, 1), self.x.flatten(0, 1), self.weights.weight)
        return below.view(self.x.shape)

    def blocks(self) -> Blocks:
        return []


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
    """Filters per client; the weight gradient is computed only in tiles around the mask's coordinates.

    Args:
        weights: the broadcast weights.
        mask: the coordinates that may change.
        lr: learning rate.
        clients: number of clients.
        needed: the channels at which the gradient of the inputs is needed; None: all.
        lowest: whether no layer below needs a gradient.
    """

    def __init__(
        self, weights: ConvWeights, mask: LayerMask, lr: float, clients: int, *, needed: Tensor | None, lowest: bool
    ) -> None:
        self.weights, self.mask, self.lr, self.lowest, self.needed = weights, mask, lr, lowest, needed
        self.filters = weights.weight.repeat(clients, 1, 1, 1, 1)
        self.bias = MaskedBias(mask, weights.weight, clients)
        self.tiles = gradient_tiles(mask, weights.weight.shape[1], weights.groups)

    def forward(self, x: Tensor) -> Tensor:
        self.x, w = x.contiguous(), self.weights
        convolved = [
            F.conv2d(xc, filters, w.bias, w.stride, w.padding, w.dilation, w.groups)
            for xc, filters in zip(self.x, self.filters, strict=True)
        ]
        out = convolved[0][None] if len(convolved) == 1 else torch.stack(convolved)
        if self.bias.trains:
            out += self.bias.delta[:, :, :, None, None]
        return out

    def backward(self, g: Tensor) -> Tensor | None:
        g = g.contiguous()
        below = None if self.lowest else self._input_gradient(g)
        for filters, gc, xc in zip(self.filters.flatten(1), g, self.x, strict=True):
            for tile in self.tiles:
                filters[tile.weights] -= self.lr * tile.gradient(self.weights, gc, xc)
        if self.bias.trains:
            self.bias.step(g.sum((3, 4)), self.lr)
        return below

    def _input_gradient(self, g: Tensor) -> Tensor:
        """Zero at the channels where the gradient is not needed."""
        w, needed = self.weights, self.needed
        if needed is None or w.groups > 1 or 4 * len(needed) > 3 * self.x.shape[2]:
            below = torch.empty_like(self.x)
            for client in range(len(g)):
                below[client] = w.input_gradient(g[client], self.x[client], self.filters[client])
            return below
        below, like = torch.zeros_like(self.x), self.x.new_empty(self.x.shape[1], len(needed), *self.x.shape[3:])
        for client in range(len(g)):
            gx = w.input_gradient(g[client], like, self.filters[client][:, needed])
            below[client].index_copy_(1, needed, gx)
        return below

    def blocks(self) -> Blocks:
        at = self.mask.weights
        values = self.filters.flatten(1)[:, at] - self.weights.weight.flatten()[at]
        return [*zip(self.weights.spans, (DenseBlock(values), self.bias.block()), strict=False)]


@dataclass(frozen=True, eq=False)
class GradientTile:
    """A rectangle of a convolution's weights, and the mask's coordinates in it.

    Attributes:
        outputs: None: all.
        channels: None: all.
        weights: the mask's coordinates, as positions in the flat weights.
        positions: the same coordinates, as positions in the flat tile.
    """

    outputs: Tensor | None
    channels: Tensor | None
    weights: Tensor
    positions: Tensor

    def gradient(self, conv: ConvWeights, g: Tensor, x: Tensor) -> Tensor:
        """The weight gradient at the mask's coordinates, for one client."""
        g = g if self.outputs is None else g.index_select(1, self.outputs)
        x = x if self.channels is None else x.index_select(1, self.channels)
        like = conv.weight.new_empty(g.shape[1], x.shape[1] // conv.groups, *conv.weight.shape[2:])
        return conv.weight_gradient(g, x, like).flatten()[self.positions]


@lru_cache(maxsize=32)
def gradient_tiles(mask: LayerMask, depth: int, groups: int) -> tuple[GradientTile, ...]:
    """The tiles of a layer with `depth` input channels per output; a grouped convolution is one tile.

    Cached, because every wave needs the same ones (layer masks are compared by identity).
    """
    outputs, window = mask.shape[0], mask.shape[1] // depth
    if not len(mask.weights):
        return ()
    if groups > 1:
        return (GradientTile(None, None, mask.weights, mask.weights),)
    touched = torch.zeros(outputs, depth, dtype=torch.bool)
    touched.view(-1)[mask.weights // window] = True
    rows = strips_of(touched)
    columns = [(outputs, channels) for channels, outputs in strips_of(touched.T)]
    strips = min(rows, columns, key=lambda found: sum(_work(strip, touched.numel()) for strip in found))
    return tuple(_tile(mask.weights, window, touched.shape, *strip) for strip in strips)


def strips_of(touched: Tensor) -> list[Strip]:
    """The non-empty lines, fullest first, in strips of multiples of `LANES` with the least total work.

    Example:
        >>> touched = torch.zeros(32, 32, dtype=torch.bool)
        >>> touched[3], touched[20:30, 7] = True, True
        >>> [(len(lines), len(crossing)) for lines, crossing in strips_of(touched)]
        [(8, 32), (3, 1)]
    """
    count = touched.sum(1)
    lines = torch.argsort(count, descending=True, stable=True)[: int((count > 0).sum())]
    ends = [*range(LANES, len(lines), LANES), len(lines)]
    best: dict[int, tuple[int, list[Strip]]] = {0: (0, [])}
    for end in ends:
        options = [(best[begin], _strip(touched, lines[begin:end])) for begin in best]
        found = [(cost + _work(strip, touched.numel()), [*before, strip]) for (cost, before), strip in options]
        best[end] = min(found, key=lambda option: option[0])
    return best[len(lines)][1]


def _strip(touched: Tensor, lines: Tensor) -> Strip:
    lines = lines.sort().values
    return lines, touched[lines].any(0).nonzero()[:, 0]


def _work(strip: Strip, whole: int) -> int:
    """In pairs of an output and a channel, of which the layer has `whole`."""
    lines, crossing = strip
    return _round_to_lanes(len(lines)) * _round_to_lanes(len(crossing)) + whole // TILE_OVERHEAD


def _tile(weights: Tensor, window: int, shape: torch.Size, outputs: Tensor, channels: Tensor) -> GradientTile:
    """The tile of these outputs and channels, with the mask's coordinates in it."""
    total, depth = shape
    some_outputs, some_channels = _some_or_all(outputs, total), _some_or_all(channels, depth)
    down = torch.arange(total) if some_outputs is None else some_outputs
    across = torch.arange(depth) if some_channels is None else some_channels
    number = torch.full(shape, -1)  # of every pair in the tile
    number[down[:, None], across] = torch.arange(len(down) * len(across)).view(len(down), -1)
    at = number.view(-1)[weights // window]
    inside = at >= 0
    positions = at[inside] * window + weights[inside] % window
    return GradientTile(some_outputs, some_channels, weights[inside], positions)


def _some_or_all(side: Tensor, total: int) -> Tensor | None:
    """None, for all of them, where that costs no more."""
    return side if _round_to_lanes(len(side)) < total else None


def _round_to_lanes(count: int) -> int:
    return -(-count // LANES) * LANES
