"""Groups of weights whose importance is measured together.

A group may be all weights of one input feature (a pixel, a column of a table), of several features, or a single weight.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Protocol

import torch
from torch import Tensor

from tacit.errors import UserError, expect

_Shapes = Sequence[tuple[int, ...]]  # of a model's parameters, in the order in which they make up a row


@dataclass(frozen=True, eq=False)
class Groups:
    """An assignment of coordinates to groups.

    Attributes:
        of: each coordinate's group, from 0; -1: no group.
        count: number of groups.
    """

    of: Tensor
    count: int

    def sums(self, values: Tensor) -> Tensor:
        """Sums over each group, (rows, dim) to (rows, groups)."""
        bins = self.of + 1  # bin 0 is for coordinates in no group
        rows = [torch.bincount(bins, row, minlength=self.count + 1)[1:] for row in values]
        return torch.stack(rows).to(values.dtype) if rows else values.new_zeros(0, self.count)

    def sizes(self) -> Tensor:
        """The number of coordinates of each group."""
        return self.of[self.of >= 0].bincount(minlength=self.count)

    def spread(self, values: Tensor, default: float) -> Tensor:
        """Each group's value at its coordinates, (..., groups) to (..., dim); `default` for those in no group."""
        last = values.new_full((*values.shape[:-1], 1), default)
        return torch.cat([values, last], dim=-1)[..., self.of]  # index -1 is the default

    def with_layers(self, shapes: _Shapes) -> "Groups":
        """The same groups, and one more per parameter for its coordinates that are in no group."""
        layer = torch.arange(len(shapes)).repeat_interleave(torch.tensor([prod(shape) for shape in shapes]))
        ungrouped = self.of < 0
        layers, index = torch.unique(layer[ungrouped], return_inverse=True)
        return Groups(self.of.masked_scatter(ungrouped, self.count + index), self.count + len(layers))


class Grouping(Protocol):
    """A rule that groups the weights of a model."""

    def of(self, shapes: _Shapes) -> Groups:
        """The groups of a model with parameters of these shapes."""


@dataclass(frozen=True)
class InputFeatures:
    """One group per input of the first layer: the weights of a pixel, or of a position in a convolution's kernels.

    Args:
        groups: each input's group, from 0, to combine several inputs; -1: no group. None: every input is a group.

    Example:
        >>> groups = InputFeatures().of([(256, 784), (256,), (10, 256), (10,)])
        >>> groups.count, groups.sizes().unique().tolist()
        (784, [256])
    """

    groups: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if self.groups is not None:
            used = set(self.groups) - {-1}
            complete = used == set(range(len(used))) and bool(used)
            expect(complete, f"groups of inputs numbered 0 to {len(used) - 1} without gaps")

    def of(self, shapes: _Shapes) -> Groups:
        """The groups of the first linear or convolutional layer; all other coordinates are in no group."""
        first = next((i for i, shape in enumerate(shapes) if len(shape) > 1), None)
        if first is None:
            raise UserError(f"Expected a model with a linear or convolutional layer, got parameters {shapes}.")
        outputs, inputs = shapes[first][0], prod(shapes[first][1:])
        assigned = torch.arange(inputs) if self.groups is None else torch.tensor(self.groups)
        expect(len(assigned) == inputs, f"a group for each of {inputs} inputs, got {len(assigned)}")
        before, after = (sum(map(prod, some)) for some in (shapes[:first], shapes[first + 1 :]))
        of = torch.nn.functional.pad(assigned.repeat(outputs), (before, after), value=-1)
        return Groups(of, int(assigned.max()) + 1)


@dataclass(frozen=True)
class SingleWeights:
    """Every weight of the model is a group."""

    def of(self, shapes: _Shapes) -> Groups:
        dim = sum(map(prod, shapes))
        return Groups(torch.arange(dim), dim)
