"""A few clients and their data as the engine stacks them, and all that trainers and mechanisms may ask of them."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from tacit.core.keys import Key
from tacit.core.rows import Rows

Shapes = tuple[tuple[int, ...], ...]  # of a model's parameters, in the order in which they make up a row


@dataclass(frozen=True, eq=False)
class ProximalTerm:
    """A proximal term: each client's loss plus Σ (strength / 2)·‖w − target‖², over the parameters of the model.

    Attributes:
        target: where the client's weights are pulled to, (clients, dim): a row for every client of the wave.
        strengths: one for every parameter of the model, in the order of a row; 0: not pulled.
    """

    target: Tensor
    strengths: tuple[float, ...]


@dataclass(frozen=True)
class Descent:
    """Stochastic gradient descent on a client, spelled out for the engine.

    Exactly one of `steps` and `epochs` is given. A client with at most `batch_size` samples (or with
    `batch_size` None) takes full-batch steps.
    """

    lr: float
    steps: int | None
    epochs: int | None
    batch_size: int | None
    momentum: float
    weight_decay: float
    key: Key  # shuffling; client i uses key.child("client", i)
    mask: Tensor | None = None  # the coordinates that move, in ascending order; None: all of them
    clip: float | None = None  # longer gradients are scaled down to this length, as a whole; None: never
    proximal: ProximalTerm | None = None  # towards targets of the clients' own


@dataclass(frozen=True, eq=False)
class Perturbation:
    """What if all weights of one group were larger by so much? It is asked of every group by itself.

    Attributes:
        groups: each coordinate's group, from 0; -1 for those that never move.
        count: how many groups there are.
        amount: by how much a group's weights are raised.
    """

    groups: Tensor
    count: int
    amount: float


class Wave(Protocol):
    """A few clients' data, stacked by the engine, and what can be computed on them. Rows never mix."""

    @property
    def clients(self) -> Tensor:
        """Whose data it is."""
        ...

    @property
    def samples(self) -> Tensor:
        """How many samples each has."""
        ...

    @property
    def shapes(self) -> Shapes:
        """The shapes of the model's parameters, in the order in which they make up a row."""
        ...

    def descend(self, weights: Tensor, how: Descent) -> Rows:
        """Every client descends on its own data; the updates (trained minus received).

        They all start from one vector, or each from its own row of `weights`, (clients, dim).
        """
        ...

    def perturbed_scores(self, weights: Tensor, nudge: Perturbation) -> Tensor:
        """How well every client's own weights, (clients, dim), do on its own data, (clients, 1 + groups).

        First as they are, then with each of the groups nudged. It is the accuracy of a classifier, and minus the mean
        loss of anything else, in float64.
        """
        ...

    def losses(self, hypotheses: Tensor) -> Tensor:
        """What each of the hypotheses, (k, dim), loses on each client's own data: (clients, k)."""
        ...

    def keep(self, which: Tensor) -> "Wave":
        """The clients where the boolean `which` is true."""
        ...
