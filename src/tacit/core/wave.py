"""The interface between pieces and the engine: a wave is a few clients whose data the engine stacks."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from tacit.core.keys import ClientKeys
from tacit.core.rows import ClippedSum, DenseRows, Rows

Shapes = tuple[tuple[int, ...], ...]  # of a model's parameters, in the order of a row


@dataclass(frozen=True, eq=False)
class ProximalTerm:
    """A proximal term that is added to each client's loss: Σ (strength / 2)·‖w − target‖², over the parameters.

    Attributes:
        target: one row per client of the wave, (clients, dim).
        strengths: one per parameter of the model, in the order of a row; 0: no term for this parameter.
    """

    target: Tensor
    strengths: tuple[float, ...]


@dataclass(frozen=True)
class Descent:
    """The configuration of stochastic gradient descent at a client.

    Exactly one of `steps` and `epochs` is set. A client with at most `batch_size` samples, or with `batch_size` None,
    takes full-batch steps.

    Attributes:
        keys: for shuffling.
        mask: the coordinates that are trained, ascending; None: all of them.
        clip: gradients are clipped to this L2 norm, as a whole; None: never.
        proximal: a proximal term with one target per client.
    """

    lr: float
    steps: int | None
    epochs: int | None
    batch_size: int | None
    momentum: float
    weight_decay: float
    keys: ClientKeys
    mask: Tensor | None = None
    clip: float | None = None
    proximal: ProximalTerm | None = None


@dataclass(frozen=True, eq=False)
class Perturbation:
    """Adding a constant to all weights of one group; evaluated for every group separately.

    Attributes:
        groups: the group of every coordinate, from 0; -1 for coordinates in no group.
        count: the number of groups.
        amount: the constant that is added.
    """

    groups: Tensor
    count: int
    amount: float


class Query(Protocol):
    """A question whose answer is a sum over units: the rows of each are mapped to one vector of bounded norm.

    A query is a frozen value, part of a method. It may depend on the state that the server broadcasts, which has as
    many numbers as a vector of terms.
    """

    @property
    def length(self) -> int:
        """The number of terms of a unit, and of numbers in the state."""

    @property
    def bound(self) -> float:
        """The largest L2 norm of a unit's terms; longer vectors are scaled down to it."""

    def terms(self, state: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """The terms of each row, (rows, length), in float64; a row whose terms are not finite adds nothing.

        Every line depends on its own row alone. The terms of a person are the mean of those of the person's rows.
        """


@dataclass(frozen=True)
class EmptyWave:
    """A wave of no clients, for a model with parameters of these shapes."""

    shapes: Shapes
    clients: ClassVar[Tensor] = torch.zeros(0, dtype=torch.int64)
    samples: ClassVar[Tensor] = clients
    units: ClassVar[Tensor] = clients

    def descend(self, weights: Tensor, how: Descent) -> Rows:
        return DenseRows(weights.new_zeros(0, weights.shape[-1]))

    def clipped_sums(
        self, weights: Tensor, batches: Sequence[Tensor], clip: float, mask: Tensor | None
    ) -> list[ClippedSum]:
        return []

    def term_sums(self, query: Query, state: Tensor, *, cells: bool = False) -> Tensor:
        return state.new_zeros(0, query.length, dtype=torch.float64)

    def perturbed_scores(self, weights: Tensor, perturbation: Perturbation) -> Tensor:
        return weights.new_zeros(0, 1 + perturbation.count, dtype=torch.float64)

    def losses(self, hypotheses: Tensor) -> Tensor:
        return hypotheses.new_zeros(0, len(hypotheses))

    def keep(self, which: Tensor) -> "EmptyWave":
        return self


class Wave(Protocol):
    """The stacked data of a few clients, and what can be computed on it, independently for every client."""

    @property
    def clients(self) -> Tensor:
        """The numbers of the clients."""

    @property
    def samples(self) -> Tensor:
        """The number of samples of every client."""

    @property
    def units(self) -> Tensor:
        """The number of persons of every client where samples are assigned to persons, otherwise of samples."""

    @property
    def shapes(self) -> Shapes:
        """The shapes of the model's parameters, in the order of a row."""

    def descend(self, weights: Tensor, how: Descent) -> Rows:
        """Train every client on its own data; returns the updates (trained minus initial weights).

        All start from one vector, or each from its own row of `weights`, (clients, dim).
        """

    def clipped_sums(
        self, weights: Tensor, batches: Sequence[Tensor], clip: float, mask: Tensor | None
    ) -> list[ClippedSum]:
        """The sum of the gradients of single records, or of the mean gradients of persons, each clipped, per client.

        Raises `ModelError` for a model or a loss in which records affect each other's gradients.

        Args:
            weights: where gradients are computed: one vector, or a row for every client.
            batches: for every client, the numbers of records, or of persons, among its `units`, ascending.
            clip: the largest L2 norm of a record's gradient, or of the mean of a person's.
            mask: the coordinates of the gradients, ascending; None: all of them.
        """

    def term_sums(self, query: Query, state: Tensor, *, cells: bool = False) -> Tensor:
        """The sum of the terms of every client's units, each clipped to the query's bound: (clients, length), float64.

        Args:
            query: maps rows to terms.
            state: what the server broadcast, of which terms may be functions.
            cells: a unit is in one cell at most: a person's first row counts, and terms other than a single 1 do not.
        """

    def perturbed_scores(self, weights: Tensor, perturbation: Perturbation) -> Tensor:
        """The score of every client's own weights, (clients, dim), on its own data: (clients, 1 + groups), float64.

        First for the unchanged weights, then with one group perturbed at a time. The score is the accuracy of a
        classifier, and minus the mean loss of other models.
        """

    def losses(self, hypotheses: Tensor) -> Tensor:
        """The loss of each of the hypotheses, (k, dim), on every client's own data: (clients, k)."""

    def keep(self, which: Tensor) -> "Wave":
        """The clients where the boolean `which` is true."""
