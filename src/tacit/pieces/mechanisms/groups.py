"""Which weights belong together: the question that comes before which of them matter.

A group may be all weights of one input (one pixel, one column of a table), of several inputs, or a single weight.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Protocol

import torch
from torch import Tensor

from tacit.errors import UserError, expect

Shapes = Sequence[tuple[int, ...]]  # of a model's parameters, in the order in which they make up a row


@dataclass(frozen=True, eq=False)
class Groups:
    """Each coordinate's group, from 0, or -1 for none; and how many groups there are."""

    of: Tensor
    count: int

    def sums(self, values: Tensor) -> Tensor:
        """The sum over each group of values per coordinate, (rows, dim) to (rows, groups)."""
        places = self.of + 1  # the first is for those in none
        rows = [torch.bincount(places, row, minlength=self.count + 1)[1:] for row in values]
        return torch.stack(rows).to(values.dtype) if rows else values.new_zeros(0, self.count)

    def sizes(self) -> Tensor:
        """How many coordinates each group has."""
        return self.of[self.of >= 0].bincount(minlength=self.count)

    def spread(self, values: Tensor, otherwise: float) -> Tensor:
        """Each group's value at its coordinates, (..., groups) to (..., dim); `otherwise` for those in none."""
        last = values.new_full((*values.shape[:-1], 1), otherwise)
        return torch.cat([values, last], dim=-1)[..., self.of]  # -1 is the last

    def completed(self, shapes: Shapes) -> "Groups":
        """The same, with what is in no group as one more for every parameter."""
        layer = torch.arange(len(shapes)).repeat_interleave(torch.tensor([prod(shape) for shape in shapes]))
        outside = self.of < 0
        names, number = torch.unique(layer[outside], return_inverse=True)
        return Groups(self.of.masked_scatter(outside, self.count + number), self.count + len(names))


class Grouping(Protocol):
    """How a model's weights are grouped."""

    def of(self, shapes: Shapes) -> Groups:
        """The groups of a model with parameters of these shapes."""
        ...


@dataclass(frozen=True)
class Inputs:
    """All weights of each input of the first layer: of a pixel, or of a place in the kernels of a convolution.

    Args:
        together: each input's group, from 0, to make several inputs one; -1 for none. Left out, each is by itself.

    Example:
        >>> groups = Inputs().of([(256, 784), (256,), (10, 256), (10,)])
        >>> groups.count, groups.sizes().unique().tolist()
        (784, [256])
    """

    together: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if self.together is not None:
            used = set(self.together) - {-1}
            expect(
                used == set(range(len(used))) and bool(used), f"groups of inputs 0 to {len(used) - 1}, none left out"
            )

    def of(self, shapes: Shapes) -> Groups:
        """The groups of the first parameter that is a matrix or has kernels; all else is in none."""
        place = next((i for i, shape in enumerate(shapes) if len(shape) > 1), None)
        if place is None:
            raise UserError(f"Expected a model with a first layer, linear or convolutional, got parameters {shapes}.")
        outputs, inputs = shapes[place][0], prod(shapes[place][1:])
        members = torch.arange(inputs) if self.together is None else torch.tensor(self.together)
        expect(len(members) == inputs, f"a group for each of {inputs} inputs, got {len(members)}")
        before, after = (sum(map(prod, some)) for some in (shapes[:place], shapes[place + 1 :]))
        of = torch.nn.functional.pad(members.repeat(outputs), (before, after), value=-1)
        return Groups(of, int(members.max()) + 1)


@dataclass(frozen=True)
class EachWeight:
    """Every weight by itself, in all layers."""

    def of(self, shapes: Shapes) -> Groups:
        """As many groups as weights."""
        dim = sum(map(prod, shapes))
        return Groups(torch.arange(dim), dim)
