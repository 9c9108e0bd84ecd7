"""Noise beyond the target, in components that are removed once it is known how many clients delivered.

Of a cohort of n clients, up to t may be lost. Every client adds t + 1 independent components to its row, of variance
V/n and, for k = 1 … t, V/((n − k + 1)(n − k)): components 0 … k together have V/(n − k). After d losses, components
d + 1 … t of the n − d others are subtracted from the sum, which leaves the variance V for every d up to t.

The seeds of a client's components 1 … t are a chain: each derives from the one before it, and not the other way round.
The seed of component d + 1 reproduces all that is removed, and nothing of what stays.

Reference: Jiang, Wang, Chen. Dordis: Efficient Federated Learning with Dropout-Resilient Differential Privacy. EuroSys
2024 (XNoise).
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from tacit.core.keys import Key
from tacit.errors import TacitError


def seed_after(seed: Key, steps: int = 1) -> Key:
    """The seed of the component that is `steps` later in a client's chain."""
    for _ in range(steps):
        seed = seed.child("next component")
    return seed


@dataclass(frozen=True)
class Surplus:
    """The removable noise in some messages, or in their sum.

    Attributes:
        tolerated: t, the number of losses for which the shares of the noise provide.
        seeds: by client, the seed of component `first` and thereby of all later ones; empty where noise is drawn at
            once. In a simulation these are the clients' secrets; in a protocol, what was opened.
        first: the first component that the seeds reproduce.

    Example:
        >>> whole = Surplus(3, {7: Key(bytes(32))})
        >>> [k for k, _ in whole.opened(losses=1).components()]
        [2, 3]
    """

    tolerated: int
    seeds: Mapping[int, Key] = field(default_factory=dict)
    first: int = 1

    def __add__(self, other: "Surplus") -> "Surplus":
        return replace(self, seeds={**self.seeds, **other.seeds})

    def of(self, clients: Iterable[int]) -> "Surplus":
        """That of these clients alone."""
        return replace(self, seeds={client: self.seeds[client] for client in clients} if self.seeds else {})

    def opened(self, losses: int) -> "Surplus":
        """What is removed after this many losses; a seed that was opened earlier in the chain is an error."""
        if losses >= self.tolerated:
            return Surplus(self.tolerated, first=self.tolerated + 1)
        if losses + 1 < self.first:
            raise TacitError(f"Expected the seeds of component {losses + 1}, got those of component {self.first}.")
        seeds = {client: seed_after(seed, losses + 1 - self.first) for client, seed in self.seeds.items()}
        return Surplus(self.tolerated, seeds, losses + 1)

    def components(self) -> Iterator[tuple[int, Key]]:
        """The number and the stream of every component that the seeds reproduce."""
        for client in sorted(self.seeds):
            seed = self.seeds[client]
            for k in range(self.first, self.tolerated + 1):
                yield k, seed.child("component")
                seed = seed_after(seed)


def added(one: Surplus | None, other: Surplus | None) -> Surplus | None:
    """The surplus of two sums; None if neither has one."""
    return one + other if one is not None and other is not None else one or other
