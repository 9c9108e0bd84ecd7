"""The cases of the secure-sum benchmark: one definition that all frameworks import. Only NumPy is needed.

Integers are summed. Flower's inputs are floats, which it quantises; it is given floats that its quantisation maps to
exactly these integers, so all frameworks sum the same.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

STEPS = 1 << 22  # a client's numbers are below this; both frameworks sum modulo 2^32
CLIP = 8.0  # Flower's default: floats within ±8 become integers within [0, STEPS)
CNN = 1_663_370  # weights of the CNN of W2


@dataclass(frozen=True, kw_only=True)
class Case:
    """One round of secure aggregation.

    Attributes:
        title: for the table.
        dim: the length of each client's vector.
        threat_model: `active_server` or `semi_honest`.
        neighbours: the number of clients with which each client shares pads and secrets, as computed by Tacit.
        threshold: the number of shares that reconstruct a secret, as computed by Tacit.
        clients: the number of clients in the cohort.
        dropouts: the number of clients that share their secrets and then send no vector.
    """

    title: str
    dim: int
    threat_model: str
    neighbours: int
    threshold: int
    clients: int = 100
    dropouts: int = 10

    @property
    def surviving(self) -> range:
        """The clients that send their vectors."""
        return range(self.clients - self.dropouts)

    def integers(self, client: int) -> NDArray[np.uint32]:
        """A client's vector."""
        return np.random.default_rng(client).integers(0, STEPS, self.dim, np.uint32)

    def floats(self, client: int) -> NDArray[np.float32]:
        """The same on Flower's scale, which float32 represents exactly."""
        return (self.integers(client) * (2 * CLIP / STEPS) - CLIP).astype(np.float32)

    def total(self) -> NDArray[np.uint32]:
        """The correct sum."""
        return sum((self.integers(client) for client in self.surviving), np.zeros(self.dim, np.uint32))


def _cases(dim: int, name: str, title: str) -> dict[str, Case]:
    """One dimension under both threat models."""
    return {
        f"{name}-active": Case(title=title, dim=dim, threat_model="active_server", neighbours=40, threshold=11),
        f"{name}-semi": Case(title=title, dim=dim, threat_model="semi_honest", neighbours=40, threshold=11),
    }


DEFAULT = {
    **_cases(CNN, "n", "all 1,663,370 weights of a CNN"),
    **_cases(8316, "k", "8,316 of them (FL-TOP)"),
}
TINY = Case(title="for tests", dim=50, threat_model="active_server", neighbours=7, threshold=6, clients=8, dropouts=1)
CASES = {**DEFAULT, "tiny": TINY}
SIGMAS = {f"sigma-{sigma}": float(sigma) for sigma in (3, 10, 1000)}  # the noise benchmark
