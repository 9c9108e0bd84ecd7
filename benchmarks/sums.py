"""The secure sums that are raced: one definition that all contestants import. NumPy is all it needs.

Integers are what is summed. Flower takes floats and makes integers of them; it gets the floats that its own
quantisation maps to exactly these integers, so that everybody sums the same.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

STEPS = 1 << 22  # a client's numbers are below this; both sides count modulo 2^32
CLIP = 8.0  # Flower's default: floats within ±8 become integers within [0, STEPS)
CNN = 1_663_370  # weights of the CNN of W2


@dataclass(frozen=True, kw_only=True)
class Case:
    """One round of secure aggregation.

    Attributes:
        title: for the table.
        dim: how many numbers each client adds.
        level: against which server, in Tacit's words.
        neighbours: with how many others a client shares a pad and its secrets, as Tacit finds it.
        threshold: how many shares give a secret, as Tacit finds it.
        clients: how many are invited.
        lost: how many of them share their secrets and then deliver nothing.
    """

    title: str
    dim: int
    level: str
    neighbours: int
    threshold: int
    clients: int = 100
    lost: int = 10

    @property
    def delivering(self) -> range:
        """The clients that deliver."""
        return range(self.clients - self.lost)

    def integers(self, client: int) -> NDArray[np.uint32]:
        """What a client adds."""
        return np.random.default_rng(client).integers(0, STEPS, self.dim, np.uint32)

    def floats(self, client: int) -> NDArray[np.float32]:
        """The same on Flower's scale; float32 holds it exactly."""
        return (self.integers(client) * (2 * CLIP / STEPS) - CLIP).astype(np.float32)

    def total(self) -> NDArray[np.uint32]:
        """The sum that must come out."""
        return sum((self.integers(client) for client in self.delivering), np.zeros(self.dim, np.uint32))


def _cases(dim: int, name: str, title: str) -> dict[str, Case]:
    """A dimension at both levels."""
    return {
        f"{name}-active": Case(title=title, dim=dim, level="active_server", neighbours=32, threshold=22),
        f"{name}-semi": Case(title=title, dim=dim, level="semi_honest", neighbours=22, threshold=11),
    }


DEFAULT = {
    **_cases(CNN, "n", "all 1,663,370 weights of a CNN"),
    **_cases(8316, "k", "8,316 of them (FL-TOP)"),
}
TINY = Case(title="for tests", dim=50, level="active_server", neighbours=7, threshold=7, clients=8, lost=1)
CASES = {**DEFAULT, "tiny": TINY}
SIGMAS = {f"sigma-{sigma}": float(sigma) for sigma in (3, 10, 1000)}  # of the noise that is raced
