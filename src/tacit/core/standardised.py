"""A linear model whose inputs are centred and scaled by weights of its own, which a method sets before it trains.

Centre and scale are among the weights, so that a broadcast, a checkpoint and an export hold them as they hold all
others. The first round of private training buys them (`Moments`); no gradient changes them.
"""

from dataclasses import dataclass
from math import prod
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tacit.core.wave import Shapes


class StandardisedLinear(nn.Module):
    """(x − centre) · scale, and a linear layer whose weights start at zero.

    Example:
        >>> model = StandardisedLinear(3, 1)
        >>> [name for name, _ in model.named_parameters()], model(torch.ones(2, 3)).tolist()
        (['centre', 'scale', 'weight', 'bias'], [[0.0], [0.0]])
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        nn.Module.__init__(self)
        self.centre = nn.Parameter(torch.zeros(inputs))
        self.scale = nn.Parameter(torch.ones(inputs))
        self.weight = nn.Parameter(torch.zeros(outputs, inputs))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """The outputs, (records, outputs)."""
        return F.linear((x - self.centre) * self.scale, self.weight, self.bias)


@dataclass(frozen=True)
class StandardisedLayout:
    """Where the parts of such a model are in the vector of its weights."""

    inputs: int
    outputs: int

    @classmethod
    def of(cls, shapes: Shapes) -> Self | None:
        """The layout of parameters of these shapes; None: they are not those of such a model."""
        match shapes:
            case ((inputs,), (scales,), (outputs, columns), (biases,)) if inputs == scales == columns:
                return cls(inputs, outputs) if biases == outputs else None
        return None

    @property
    def dim(self) -> int:
        """The number of weights."""
        return self.first + self.outputs * (self.inputs + 1)

    @property
    def first(self) -> int:
        """The first coordinate that has a gradient, after centre and scale."""
        return 2 * self.inputs

    @property
    def trained(self) -> Tensor:
        """The coordinates that have a gradient."""
        return torch.arange(self.first, self.dim)

    def split(self, weights: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Centre, scale, weight matrix and bias, as views of a vector of the model's weights."""
        shapes = ((self.inputs,), (self.inputs,), (self.outputs, self.inputs), (self.outputs,))
        parts = torch.split(weights, [prod(shape) for shape in shapes])
        centre, scale, matrix, bias = (part.view(shape) for part, shape in zip(parts, shapes, strict=True))
        return centre, scale, matrix, bias
