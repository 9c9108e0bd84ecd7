"""What a kernel layer is: forward, backward with the step taken in it, and the blocks of the update."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from tacit.engine.learners.kernels.rows import DenseBlock, FactoredBlock

Slot = tuple[int, int]  # where a parameter starts and stops in a row
Blocks = Sequence[tuple[Slot, DenseBlock | FactoredBlock]]


@dataclass(frozen=True, eq=False)
class Tug:
    """A parameter's part of a pull: with every step it also goes a share of the way to its target.

    w − lr·(g + s·(w − t)) is w, lr·s of the way to t, minus lr·g: it is taken between the gradient and the step.
    """

    owned: Tensor  # (clients, ...), as the layer holds it
    target: Tensor | None  # None: zero
    share: float

    def take(self, client: int | slice = slice(None)) -> None:
        """Go that share in place, all clients or one."""
        if self.target is None:
            self.owned[client].mul_(1 - self.share)
        else:
            self.owned[client].lerp_(self.target[client], self.share)


class Owner(Protocol):
    """A layer with weights per client, which can be pulled."""

    tugs: tuple[Tug, ...]

    @property
    def owned(self) -> tuple[Tensor, ...]:
        """The clients' own parameters, in the order of the layer's slots."""
        ...


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
