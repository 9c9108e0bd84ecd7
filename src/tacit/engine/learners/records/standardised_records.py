"""Sums of clipped gradients of a `StandardisedLinear`, a few hundred records at a time, by closed forms in float64.

The gradient of a record is g·[z, 1]ᵀ with its standardised input z and the slope g of the loss at its output. It is
formed only for persons with several records, whose mean is clipped.
"""

import torch
from torch import Tensor, nn

from tacit.core import BinaryCrossEntropy, CrossEntropy, Loss, MeanSquared
from tacit.core.rows import ClippedSum
from tacit.core.standardised import StandardisedLayout, StandardisedLinear
from tacit.engine.layout import Layout

_AT_ONCE = 256  # records, which fit the cache
_FORMED = 1 << 21  # numbers of gradients that are formed at a time
_LONGEST = 2.0**60  # as for other ways: a longer gradient is dropped


class StandardisedRecords:
    """The sums of clipped gradients at the weights that have one; centre and scale have none.

    Formal guarantees: those of a wide `ClippedSum`: norm, factor, product and sum are computed in float64, so that no
    gradient is longer than the bound by a factor of more than 1 + 2⁻⁴⁰. A record's input, output and gradient are
    computed from its own row alone.
    """

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        self.loss = loss
        layout = StandardisedLayout.of(Layout.of(model).shapes)
        assert layout is not None, "fits() checked"
        self.layout = layout

    @staticmethod
    def fits(model: nn.Module, loss: Loss, mask: Tensor | None) -> bool:
        """Whether these sums are those of this model, loss and mask."""
        if type(model) is not StandardisedLinear or mask is None:
            return False
        layout = StandardisedLayout.of(Layout.of(model).shapes)
        known = type(loss) in (BinaryCrossEntropy, MeanSquared) or (type(loss) is CrossEntropy and loss.weight is None)
        return known and layout is not None and len(mask) == layout.dim - layout.first and int(mask[0]) == layout.first

    @torch.no_grad()
    def clipped_sum(self, weights: Tensor, x: Tensor, y: Tensor, clip: float, counts: Tensor | None) -> ClippedSum:
        """The sum over records, or persons with this many each, of their clipped (mean) gradients."""
        parts = self.layout.split(weights.double())
        total = torch.zeros(self.layout.dim - self.layout.first, dtype=torch.float64, device=weights.device)
        norms = []
        for few, labels, own in _pieces(x, y, counts, min(_AT_ONCE, max(1, _FORMED // len(total)))):
            norms.append(self._add(total, parts, few, labels, clip, own))
        return ClippedSum(total, torch.cat(norms) if norms else total[:0], wide=True)

    def _add(
        self,
        total: Tensor,
        parts: tuple[Tensor, Tensor, Tensor, Tensor],
        x: Tensor,
        y: Tensor,
        clip: float,
        counts: Tensor | None,
    ) -> Tensor:
        """Add the clipped gradients of a few records or persons, and return their norms."""
        centre, scale, matrix, bias = parts
        z = (x.double() - centre).mul_(scale)
        g = self._slope(torch.addmm(bias, z, matrix.T), y)
        if counts is None or bool((counts == 1).all()):
            return self._add_records(total, z, g, clip)
        several = counts > 1
        of_several = several.repeat_interleave(counts)
        norms = torch.empty(len(counts), dtype=torch.float64, device=x.device)
        norms[~several] = self._add_records(total, z[~of_several], g[~of_several], clip)
        norms[several] = self._add_persons(total, z[of_several], g[of_several], clip, counts[several])
        return norms

    def _add_records(self, total: Tensor, z: Tensor, g: Tensor, clip: float) -> Tensor:
        slopes: Tensor = torch.linalg.vector_norm(g, dim=1)
        norms: Tensor = slopes * torch.hypot(torch.linalg.vector_norm(z, dim=1), slopes.new_ones(()))
        usable = norms <= clip * _LONGEST  # false for NaN, too
        if not bool(usable.all()):
            self._add_records(total, z[usable], g[usable], clip)
            return norms
        scaled = g * (clip / norms).clamp(max=1)[:, None]
        size = self.layout.outputs * self.layout.inputs
        total[:size] += (scaled.T @ z).flatten()
        total[size:] += scaled.sum(0)
        return norms

    def _add_persons(self, total: Tensor, z: Tensor, g: Tensor, clip: float, counts: Tensor) -> Tensor:
        gradients = torch.cat([(g[:, :, None] * z[:, None, :]).flatten(1), g], 1)
        person = torch.arange(len(counts)).repeat_interleave(counts)
        means = gradients.new_zeros(len(counts), gradients.shape[1])
        means.index_add_(0, person, gradients / counts[person, None])
        norms: Tensor = torch.linalg.vector_norm(means, dim=1)
        usable = norms <= clip * _LONGEST
        total += (clip / norms[usable]).clamp(max=1) @ means[usable]
        return norms

    def _slope(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The gradient of every record's loss at its outputs."""
        match self.loss:
            case BinaryCrossEntropy():
                return (torch.sigmoid(outputs) - y.double()) / outputs.shape[1]
            case CrossEntropy():
                slope = torch.softmax(outputs, 1)
                slope[torch.arange(len(y)), y] -= 1
                return slope
        return 2 * (outputs - y.double()) / outputs.shape[1]


def _pieces(x: Tensor, y: Tensor, counts: Tensor | None, size: int) -> list[tuple[Tensor, Tensor, Tensor | None]]:
    """At most `size` records at a time, or whole persons with this many, at least one."""
    if counts is None:
        parts = zip(torch.split(x, size), torch.split(y, size), strict=True)
        return [(few, labels, None) for few, labels in parts]
    pieces: list[tuple[Tensor, Tensor, Tensor | None]] = []
    ends, first, begin = counts.cumsum(0), 0, 0
    while first < len(counts):
        last = max(first + 1, int(torch.searchsorted(ends, begin + size, right=True)))
        end = int(ends[last - 1])
        pieces.append((x[begin:end], y[begin:end], counts[first:last]))
        first, begin = last, end
    return pieces
