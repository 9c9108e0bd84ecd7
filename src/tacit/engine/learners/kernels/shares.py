"""What a mask leaves of each layer: the coordinates that fall into it, and the block of outputs and inputs they touch.

A mask found by large gradients touches few outputs and few inputs of a layer, so that the block is small; a random
mask touches nearly all of them. The forms of a layer are chosen by counting, never by timing.

Between two fully connected layers features may stand in any order. A `Seam` puts those that one layer's mask touches
next to each other, and so those of the other's: then a block is a slice of the activations, and nothing is gathered.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from tacit.engine.learners.kernels.shape import Slot


@dataclass(frozen=True, eq=False)
class Seam:
    """The order of the features between two layers: touched by the lower one, by both, by the upper one, by none."""

    order: Tensor
    lower: int  # how many the lower layer touches: the first ones
    begin: int  # where those of the upper layer begin

    @classmethod
    def of(cls, outputs: Tensor, columns: Tensor, total: int) -> "Seam":
        """The seam of a layer that touches `outputs` under one that touches `columns`."""
        low, high = (torch.zeros(total, dtype=torch.bool).index_fill_(0, at, True) for at in (outputs, columns))
        rank = torch.where(low, high.long(), 3 - high.long())
        return cls(torch.argsort(rank, stable=True), len(outputs), int((rank == 0).sum()))


@dataclass(frozen=True, eq=False)
class Pick:
    """Some features of a layer's inputs or outputs: a slice where they stand side by side, otherwise gathered."""

    features: Tensor
    start: int | None

    @classmethod
    def of(cls, features: Tensor) -> "Pick":
        """Features in their own order."""
        together = len(features) == 0 or int(features[-1] - features[0]) + 1 == len(features)
        return cls(features, (int(features[0]) if len(features) else 0) if together else None)

    @cached_property
    def count(self) -> int:
        """How many."""
        return len(self.features)

    def take(self, x: Tensor) -> Tensor:
        """These features of the last dimension."""
        if self.start is None:
            return x.index_select(-1, self.features)
        return x if x.shape[-1] == self.count else x.narrow(-1, self.start, self.count)

    def add_product(self, out: Tensor, left: Tensor, right: Tensor) -> None:
        """`out += left·right` at these features, in place; a product straight into a slice would be slower."""
        if self.start is not None:
            self.take(out).add_(torch.bmm(left, right))
        else:
            out[..., self.features] += torch.bmm(left, right)


@dataclass(frozen=True, eq=False)
class Share:
    """A mask's part in one layer, its weights seen as a matrix (outputs, inputs).

    Attributes:
        weights: positions in the flat matrix, ascending.
        biases: positions in the bias, ascending.
        shape: of the matrix.
        above: the seam to the next layer, which orders the outputs; None: they keep their order.
        below: the seam to the layer before, which orders the inputs.
    """

    weights: Tensor
    biases: Tensor
    shape: tuple[int, int]
    above: Seam | None = None
    below: Seam | None = None

    @classmethod
    def of(cls, mask: Tensor, slots: tuple[Slot, ...], outputs: int) -> "Share":
        """The part of an ascending mask that falls into a layer."""
        weights = _within(mask, slots[0])
        biases = _within(mask, slots[1]) if len(slots) > 1 else weights[:0]
        return cls(weights, biases, (outputs, (slots[0][1] - slots[0][0]) // outputs))

    @property
    def empty(self) -> bool:
        """Whether nothing of the layer moves."""
        return len(self.weights) == len(self.biases) == 0

    @cached_property
    def outputs(self) -> Tensor:
        """Outputs whose weights or bias move."""
        outputs: Tensor = torch.unique(torch.cat([self.weights // self.shape[1], self.biases]))
        return outputs

    @cached_property
    def inputs(self) -> Tensor:
        """Inputs with a weight that moves."""
        inputs: Tensor = torch.unique(self.weights % self.shape[1])
        return inputs

    @cached_property
    def rows(self) -> Pick:
        """The block's outputs, as they stand in the outputs."""
        return Pick.of(self.outputs) if self.above is None else Pick(self.above.order[: self.above.lower], 0)

    @cached_property
    def columns(self) -> Pick:
        """The block's inputs, as they stand in the inputs."""
        if self.below is None:
            return Pick.of(self.inputs)
        begin = self.below.begin
        return Pick(self.below.order[begin : begin + len(self.inputs)], begin)

    @cached_property
    def width(self) -> int:
        """Columns of the block; a bias is the weight of one more input that is always 1."""
        return self.columns.count + (1 if len(self.biases) else 0)

    @cached_property
    def places(self) -> tuple[Tensor, Tensor]:
        """Where the weights and the biases of the mask are in the flat block."""
        row, column = (_ranks(pick, n) for pick, n in zip((self.rows, self.columns), self.shape, strict=True))
        weights = row[self.weights // self.shape[1]] * self.width + column[self.weights % self.shape[1]]
        return weights, row[self.biases] * self.width + self.width - 1

    @cached_property
    def inside(self) -> Tensor:
        """The block: True in the mask."""
        block = torch.zeros(self.rows.count * self.width, dtype=torch.bool)
        return block.index_fill_(0, torch.cat(self.places), True).view(self.rows.count, self.width)

    @property
    def dense(self) -> bool:
        """Whether so much moves that every client had better own all weights: an eighth, all over the matrix."""
        entries = self.shape[0] * self.shape[1]
        return 8 * len(self.weights) > entries and 2 * self.rows.count * self.width > entries

    @property
    def blockwise(self) -> bool:
        """Whether a dense block, of at most half the matrix, is cheaper than scattered coordinates.

        Counted in quarters of a nanosecond per batch of ten, as measured: a block's entry takes part in three
        products (3), a coordinate in two sums (12), and its gradient is gathered (46) or read from a whole one (4),
        every entry of which costs 1.
        """
        entries, k, block = self.shape[0] * self.shape[1], len(self.weights), self.rows.count * self.width
        return 2 * block <= entries and 3 * block <= 12 * k + 4 * len(self.biases) + min(46 * k, entries + 4 * k)

    @property
    def gathers(self) -> bool:
        """Whether a coordinate's gradient is cheaper by itself than as part of a whole one (see `blockwise`)."""
        return 42 * len(self.weights) <= self.shape[0] * self.shape[1]

    @cached_property
    def at(self) -> Tensor:
        """Where the mask's weights are in the flat matrix in the order of the seams."""
        row, column = self.weights // self.shape[1], self.weights % self.shape[1]
        row = row if self.above is None else torch.argsort(self.above.order)[row]
        return row * self.shape[1] + (column if self.below is None else torch.argsort(self.below.order)[column])

    @cached_property
    def frozen(self) -> Tensor:
        """The whole matrix in the order of the seams: True outside the mask."""
        return torch.ones(self.shape, dtype=torch.bool).view(-1).index_fill_(0, self.at, False).view(self.shape)


def _within(mask: Tensor, slot: Slot) -> Tensor:
    begin, end = torch.searchsorted(mask, torch.tensor(slot)).tolist()
    return mask[begin:end] - slot[0]


def _ranks(pick: Pick, total: int) -> Tensor:
    """For every feature its place in the block."""
    return torch.zeros(total, dtype=torch.int64).index_copy_(0, pick.features, torch.arange(pick.count))
