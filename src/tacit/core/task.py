"""What is learnt: data split over clients, a model, a loss.

The population keeps all samples in one pool with an index per client, so that ten thousand clients cost no
more than their indices, data may be shared between clients (label shards with repetition), and worker
processes see one copy of it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Self, overload

import torch
from torch import Tensor, nn

from tacit.core.keys import Key
from tacit.core.losses import CrossEntropy, Loss
from tacit.errors import DataError, ModelError, expect

Samples = tuple[Tensor, Tensor]


@dataclass(frozen=True, eq=False)
class Population(Sequence[Samples]):
    """All clients' data: a pool of samples, and for every client the indices of its own.

    Example:
        >>> x, y = torch.zeros(5, 2), torch.tensor([0, 1, 0, 1, 0])
        >>> people = Population.split(x, y, [torch.tensor([0, 1, 2]), torch.tensor([3, 4])])
        >>> people.sizes.tolist(), people[1][1].tolist()
        ([3, 2], [1, 0])
    """

    x: Tensor
    y: Tensor
    sample_indices: Tensor  # all clients' sample numbers, one client after the other
    offsets: Tensor  # (clients + 1,): client i has sample_indices[offsets[i]:start[i + 1]]

    @classmethod
    def split(cls, x: Tensor, y: Tensor, parts: Sequence[Tensor]) -> Self:
        """A pool and one index tensor per client."""
        expect(len(parts) > 0, "at least one client, got none")
        sizes = torch.tensor([len(part) for part in parts])
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)])
        return cls(x, y, torch.cat(list(parts)).long(), offsets)

    @classmethod
    def of(cls, clients: Sequence[Samples]) -> "Population":
        """A population from any sequence of `(x, y)` pairs; a population is returned as it is."""
        if isinstance(clients, Population):
            return clients
        expect(len(clients) > 0, "at least one client, got none")
        for number, (x, y) in enumerate(clients):
            if len(x) != len(y):
                raise DataError(f"Client {number} has {len(x)} samples but {len(y)} targets.")
        x, y = (torch.cat(column) for column in zip(*clients, strict=True))
        sizes = torch.tensor([len(labels) for _, labels in clients])
        return cls.split(x, y, torch.split(torch.arange(len(x)), sizes.tolist()))

    @property
    def sizes(self) -> Tensor:
        """How many samples each client has."""
        return self.offsets.diff()

    def indices(self, client: int) -> Tensor:
        """Where in the pool this client's samples are."""
        return self.sample_indices[int(self.offsets[client]) : int(self.offsets[client + 1])]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @overload
    def __getitem__(self, client: int) -> Samples: ...
    @overload
    def __getitem__(self, client: slice) -> list[Samples]: ...
    def __getitem__(self, client: int | slice) -> Samples | list[Samples]:
        if isinstance(client, slice):
            return [self[i] for i in range(*client.indices(len(self)))]
        if not -len(self) <= client < len(self):
            raise IndexError(f"client {client} of {len(self)}")
        mine = self.indices(client % len(self))
        return self.x[mine], self.y[mine]


@dataclass(frozen=True, kw_only=True, eq=False)
class Task:
    """A model, the clients' data, and held-out data.

    Args:
        model: a `torch.nn.Module`, whose weights are the starting point, or a function that makes one; the
            function is called under the run's seed.
        clients: one `(x, y)` pair of tensors per client, of any sizes; or a `Population`.
        test: held-out `(x, y)`; without it no metrics are measured.
        owners: for every held-out sample the number of the held-out client that it belongs to. Where a method trains
            several hypotheses, each of these clients takes the one that fits its own samples best; without owners
            they all count as one client's.
        loss: `CrossEntropy()` (the default), `MeanSquared()`, `BinaryCrossEntropy()`, `RootMeanSquared()`,
            `RootBrier()`, or your own `Loss`.
        public: `(x, y)` that everybody may see; some methods choose coordinates or bounds from it.
        name: what reports call the task.
    """

    model: nn.Module | Callable[[], nn.Module]
    clients: Sequence[Samples]
    test: Samples | None = None
    owners: Tensor | None = None
    loss: Loss = field(default_factory=CrossEntropy)
    public: Samples | None = None
    name: str = "custom"

    def __post_init__(self) -> None:
        object.__setattr__(self, "clients", Population.of(self.clients))
        _check_population(self.population)
        for what, samples in (("test", self.test), ("public", self.public)):
            if samples is not None:
                _check_samples(what, samples, self.population)
        _check_owners(self.owners, self.test)

    @property
    def population(self) -> Population:
        """The clients' data as one pool."""
        return Population.of(self.clients)

    def make_model(self, key: Key) -> nn.Module:
        """The module at its starting weights, in training mode, checked against the data."""
        if isinstance(self.model, nn.Module):
            model = self.model
        else:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(key.integer())
                model = self.model()
        if not isinstance(model, nn.Module):
            raise ModelError(f"Expected the task's model to be a torch.nn.Module, got {type(model).__name__}.")
        return model


def _check_population(population: Population) -> None:
    sizes = population.sizes
    if int(sizes.min()) == 0:
        empty = (sizes == 0).nonzero().flatten().tolist()
        raise DataError(
            f"Expected every client to have data, but client {empty[0]} has none "
            f"({len(empty)} of {len(sizes)} are empty). Leave empty clients out."
        )
    if len(population.x) != len(population.y):
        raise DataError(f"Expected one target per sample, got {len(population.x)} and {len(population.y)}.")
    if int(population.sample_indices.min()) < 0 or int(population.sample_indices.max()) >= len(population.x):
        raise DataError(f"A client's index points outside the pool of {len(population.x)} samples.")
    if population.x.is_floating_point() and not bool(torch.isfinite(population.x).all()):
        raise DataError(f"Expected finite data, but {_owner_of_bad(population)} has NaN or infinite values.")


def _owner_of_bad(population: Population) -> str:
    bad = ~torch.isfinite(population.x).flatten(1).all(1)
    where = bad[population.sample_indices].nonzero().flatten()
    if len(where) == 0:
        return "a sample that no client owns"
    client = int(torch.searchsorted(population.offsets, where[0], right=True)) - 1
    return f"client {client} (its sample {int(where[0] - population.offsets[client])})"


def _check_owners(owners: Tensor | None, test: Samples | None) -> None:
    if owners is None:
        return
    count = 0 if test is None else len(test[1])
    if owners.dtype != torch.int64 or owners.shape != (count,) or int(owners.min()) < 0:
        raise DataError(
            f"Expected owners as one int64 >= 0 for each of {count} held-out samples, got {owners.dtype} of shape "
            f"{tuple(owners.shape)}."
        )


def _check_samples(what: str, samples: Samples, population: Population) -> None:
    x, y = samples
    if len(x) != len(y) or len(x) == 0:
        raise DataError(f"Expected the {what} data as non-empty (x, y) of equal length, got {len(x)} and {len(y)}.")
    theirs = population.x
    if x.shape[1:] != theirs.shape[1:] or x.dtype != theirs.dtype:
        raise DataError(
            f"Expected the {what} data like the clients' ({theirs.dtype}, shape {tuple(theirs.shape[1:])}), "
            f"got {x.dtype}, shape {tuple(x.shape[1:])}."
        )
    if x.is_floating_point() and not bool(torch.isfinite(x).all()):
        raise DataError(f"Expected finite {what} data, got NaN or infinite values.")
