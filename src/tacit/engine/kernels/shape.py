"""What a kernel layer is: forward, backward with the step taken in it, and the blocks of the update."""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from tacit.engine.kernels.rows import DenseBlock, FactoredBlock

Slot = tuple[int, int]  # where a parameter starts and stops in a row
Blocks = Sequence[tuple[Slot, DenseBlock | FactoredBlock]]


class Layer(Protocol):
    """One layer of a wave of clients; activations are (clients, batch, ...)."""

    def forward(self, x: Tensor) -> Tensor:
        """The layer's outputs; remembers what `backward` needs."""
        ...

    def backward(self, g: Tensor) -> Tensor | None:
        """Take the step and give the gradient at the inputs, or None if nothing below needs it."""
        ...

    def blocks(self) -> Blocks:
        """The layer's part of the update, after the last step."""
        ...
