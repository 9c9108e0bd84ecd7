"""Where a convolution's weight gradient is computed under a mask: in rectangles, some outputs by some input channels.

A mask found by large gradients is crowded: few outputs, or few channels, have most of its coordinates, and many have
one or two. One rectangle around all of them is nearly the whole layer. So the fullest lines are set apart from the
others, and each strip of lines spans only the crossing ones that it touches.
"""

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from tacit.engine.learners.kernels.conv import Filters
from tacit.engine.learners.kernels.shares import Share

LANES = 8  # outputs and channels are computed in groups of so many, wanted or not
CALL = 32  # a rectangle costs one in so many parts of the whole layer's work beside its own: what is gathered for it
Strip = tuple[Tensor, Tensor]  # lines, and the crossing lines that they touch


@dataclass(frozen=True, eq=False)
class Cut:
    """A rectangle of a convolution's weights, and the mask's coordinates in it.

    Attributes:
        outputs: which ones; None: all.
        channels: which ones; None: all.
        weights: the mask's coordinates, as positions in the flat weights.
        places: the same, as positions in the flat rectangle.
    """

    outputs: Tensor | None
    channels: Tensor | None
    weights: Tensor
    places: Tensor

    def gradient(self, f: Filters, g: Tensor, x: Tensor) -> Tensor:
        """The weight gradient at the mask's coordinates, for one client."""
        g = g if self.outputs is None else g.index_select(1, self.outputs)
        x = x if self.channels is None else x.index_select(1, self.channels)
        like = f.weight.new_empty(g.shape[1], x.shape[1] // f.groups, *f.weight.shape[2:])
        return f.weight_gradient(g, x, like).flatten()[self.places]


@lru_cache(maxsize=32)
def cuts_of(share: Share, depth: int, groups: int) -> tuple[Cut, ...]:
    """The rectangles of a layer with so many input channels per output; with groups, the layer as a whole.

    Kept, because every wave asks for the same ones (shares are told apart by identity).
    """
    total, window = share.shape[0], share.shape[1] // depth
    if not len(share.weights):
        return ()
    if groups > 1:
        return (Cut(None, None, share.weights, share.weights),)
    touched = torch.zeros(total, depth, dtype=torch.bool)
    touched.view(-1)[share.weights // window] = True
    flat, upright = strips_of(touched), [(down, across) for across, down in strips_of(touched.T)]
    strips = min(flat, upright, key=lambda found: sum(_work(strip, touched.numel()) for strip in found))
    return tuple(_cut(share.weights, window, touched.shape, *strip) for strip in strips)


def strips_of(touched: Tensor) -> list[Strip]:
    """Lines with anything in them, the fullest first, in strips of multiples of `LANES` that are cheapest together.

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
        ways = [(best[begin], _strip(touched, lines[begin:end])) for begin in best]
        found = [(cost + _work(strip, touched.numel()), [*before, strip]) for (cost, before), strip in ways]
        best[end] = min(found, key=lambda way: way[0])
    return best[len(lines)][1]


def _strip(touched: Tensor, lines: Tensor) -> Strip:
    lines = lines.sort().values
    return lines, touched[lines].any(0).nonzero()[:, 0]


def _work(strip: Strip, whole: int) -> int:
    """In pairs of an output and a channel, of which the layer has `whole`."""
    lines, crossing = strip
    return _whole_lanes(len(lines)) * _whole_lanes(len(crossing)) + whole // CALL


def _cut(weights: Tensor, window: int, shape: torch.Size, outputs: Tensor, channels: Tensor) -> Cut:
    """The rectangle of these outputs and channels, and what of the mask lies in it."""
    total, depth = shape
    some, few = _widened(outputs, total), _widened(channels, depth)
    down, across = torch.arange(total) if some is None else some, torch.arange(depth) if few is None else few
    number = torch.full(shape, -1)  # of every pair in the rectangle
    number[down[:, None], across] = torch.arange(len(down) * len(across)).view(len(down), -1)
    at = number.view(-1)[weights // window]
    inside = at >= 0
    return Cut(some, few, weights[inside], at[inside] * window + weights[inside] % window)


def _widened(side: Tensor, total: int) -> Tensor | None:
    """None, all of them, where that costs no more."""
    return side if _whole_lanes(len(side)) < total else None


def _whole_lanes(count: int) -> int:
    return -(-count // LANES) * LANES
