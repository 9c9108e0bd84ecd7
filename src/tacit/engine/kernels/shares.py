"""What a mask leaves of each layer: the coordinates that fall into it, and the block of outputs and inputs they touch.

A mask found by large gradients touches few outputs and few inputs of a layer, so that the block is small; a random
mask touches nearly all of them. The forms of a layer (`masked_linear`, `masked_conv`) are chosen by counting.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from tacit.engine.kernels.shape import Slot

DENSE = 2  # a block pays if it is at most half of the matrix
SPARSE = 100  # single coordinates pay if they are at most a hundredth of it: gathering is that much slower


@dataclass(frozen=True, eq=False)
class Share:
    """A mask's part in one layer, its weights seen as a matrix (outputs, inputs).

    Attributes:
        weights: positions in the flat matrix, ascending.
        biases: positions in the bias, ascending.
        rows: outputs with at least one weight in the mask.
        columns: inputs with at least one.
        places: for each of `weights`, its position in the flat block (rows, columns).
        shape: of the matrix.
    """

    weights: Tensor
    biases: Tensor
    rows: Tensor
    columns: Tensor
    places: Tensor
    shape: tuple[int, int]

    @classmethod
    def of(cls, mask: Tensor, slots: tuple[Slot, ...], outputs: int) -> "Share":
        """The part of an ascending mask that falls into a layer."""
        weights = _within(mask, slots[0])
        biases = _within(mask, slots[1]) if len(slots) > 1 else weights[:0]
        inputs = (slots[0][1] - slots[0][0]) // outputs
        rows, row = torch.unique(weights // inputs, return_inverse=True)
        columns, column = torch.unique(weights % inputs, return_inverse=True)
        return cls(weights, biases, rows, columns, row * len(columns) + column, (outputs, inputs))

    @property
    def empty(self) -> bool:
        """Whether nothing of the layer moves."""
        return len(self.weights) == len(self.biases) == 0

    @property
    def compact(self) -> bool:
        """Whether the block is so small that shared weights and a correction pay."""
        return DENSE * len(self.rows) * len(self.columns) <= self.shape[0] * self.shape[1]

    @property
    def sparse(self) -> bool:
        """Whether gathering single coordinates is cheaper than a whole gradient."""
        return SPARSE * len(self.weights) <= self.shape[0] * self.shape[1]

    @property
    def outputs(self) -> Tensor:
        """Outputs whose gradient the layer's own step needs."""
        outputs: Tensor = torch.unique(torch.cat([self.rows, self.biases]))
        return outputs

    def inside(self, like: Tensor) -> Tensor:
        """The block (rows, columns): 1 in the mask, else 0."""
        block = like.new_zeros(len(self.rows) * len(self.columns)).index_fill_(0, self.places, 1.0)
        return block.view(len(self.rows), len(self.columns))

    def frozen(self) -> Tensor:
        """The whole matrix: True outside the mask."""
        return torch.ones(self.shape, dtype=torch.bool).view(-1).index_fill_(0, self.weights, False).view(self.shape)


class Shares:
    """The shares of all layers under the mask seen last: most masks stay for many waves, some for all rounds."""

    def __init__(self) -> None:
        self.mask: Tensor | None = None
        self.known: dict[tuple[Slot, ...], Share] = {}

    def of(self, mask: Tensor, slots: tuple[Slot, ...], outputs: int) -> Share:
        """A layer's share; a mask is recognised by identity."""
        if mask is not self.mask:
            self.mask, self.known = mask, {}
        if slots not in self.known:
            self.known[slots] = Share.of(mask, slots, outputs)
        return self.known[slots]


def _within(mask: Tensor, slot: Slot) -> Tensor:
    begin, end = torch.searchsorted(mask, torch.tensor(slot)).tolist()
    return mask[begin:end] - slot[0]
