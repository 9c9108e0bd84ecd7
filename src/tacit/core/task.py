"""A learning task: data partitioned over clients, a model and a loss.

The population keeps all samples in one pool and the indices of every client's samples. Ten thousand clients therefore
cost no more than their indices, clients may share samples (label shards with repetition), and worker processes share
one copy.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Self, overload

import torch
from torch import Tensor, nn

from tacit.core.keys import Key
from tacit.core.losses import CrossEntropy, Loss
from tacit.core.overlap import find_overlap
from tacit.errors import DataError, ModelError, expect

Samples = tuple[Tensor, Tensor]
TestOverlap = Literal["refused", "coincidental", "intended"]


@dataclass(frozen=True, eq=False)
class Population(Sequence[Samples]):
    """The data of all clients: a pool of samples, and the indices of every client's samples.

    Attributes:
        x: the inputs of the pool.
        y: the targets of the pool.
        sample_indices: indices into the pool, those of client 0 first.
        offsets: (clients + 1,); client i has `sample_indices[offsets[i]:offsets[i + 1]]`.

    Example:
        >>> x, y = torch.zeros(5, 2), torch.tensor([0, 1, 0, 1, 0])
        >>> population = Population.split(x, y, [torch.tensor([0, 1, 2]), torch.tensor([3, 4])])
        >>> population.sizes.tolist(), population[1][1].tolist()
        ([3, 2], [1, 0])
    """

    x: Tensor
    y: Tensor
    sample_indices: Tensor
    offsets: Tensor

    @classmethod
    def split(cls, x: Tensor, y: Tensor, parts: Sequence[Tensor]) -> Self:
        """A population from a pool and one index tensor per client."""
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

    @classmethod
    def elsewhere(cls, clients: int, like: Samples | None = None, samples: int = 0) -> Self:
        """Clients whose data are not on this machine, as the server of a federation knows them: only their number.

        Args:
            clients: how many there are.
            like: samples of the same form, such as public ones, if there are any.
            samples: how many each of them declares to have.

        Example:
            >>> len(Population.elsewhere(8)), Population.elsewhere(8).is_elsewhere
            (8, True)
        """
        expect(clients > 0, "at least one client, got none")
        x, y = (torch.zeros(0, 1), torch.zeros(0, dtype=torch.int64)) if like is None else (part[:0] for part in like)
        return cls(x, y, torch.zeros(0, dtype=torch.int64), samples * torch.arange(clients + 1))

    @property
    def is_elsewhere(self) -> bool:
        """Whether the clients' data are not on this machine."""
        return len(self.x) == 0

    @property
    def sizes(self) -> Tensor:
        """The number of samples of every client."""
        return self.offsets.diff()

    def indices(self, client: int) -> Tensor:
        """The indices of this client's samples in the pool."""
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
        chosen = self.indices(client % len(self))
        return self.x[chosen], self.y[chosen]


@dataclass(frozen=True)
class Preprocessing:
    """What the constants of a task's inputs, such as ranges and categories, were computed from.

    Attributes:
        source: `row`: none were computed, since each input is a function of its own row; `public`: from public data, or
            they are declared to be public; `private`: from the clients' rows, which no guarantee covers; `undeclared`:
            the task does not say.
        detail: which constants they are, as a sentence.

    Example:
        >>> print(Preprocessing("private", "ages are scaled by their mean.").not_covered)
        Preprocessing used the clients' rows: ages are scaled by their mean.
    """

    source: Literal["row", "public", "private", "undeclared"] = "undeclared"
    detail: str = ""

    def __post_init__(self) -> None:
        choices = ("row", "public", "private", "undeclared")
        expect(
            self.source in choices, f"the source of preprocessing to be one of {', '.join(choices)}, got {self.source}"
        )
        if self.source == "private":
            expect(
                bool(self.detail), "detail of private preprocessing: a sentence that says what was computed from rows"
            )

    @property
    def not_covered(self) -> str:
        """What a guarantee does not cover because of it, as a sentence; empty if there is nothing."""
        if self.source == "private":
            return f"Preprocessing used the clients' rows: {self.detail}"
        if self.source == "undeclared":
            return (
                "Whatever was computed from the clients' rows before the run, such as ranges or categories; the task "
                "does not declare its preprocessing."
            )
        return ""


@dataclass(frozen=True, kw_only=True, eq=False)
class Task:
    """A model, the clients' data, and held-out data.

    Args:
        model: a `torch.nn.Module` with its initial weights, or a function that returns one; the function is called
            with the run's seed set.
        clients: one `(x, y)` pair of tensors per client, of any size, or a `Population`.
        test: held-out `(x, y)`; without it, no metrics are measured.
        owners: the number of the held-out client that each held-out sample belongs to. If a method trains several
            hypotheses, each of these clients uses the one with the smallest loss on its samples; without owners, all
            samples belong to one client.
        loss: `CrossEntropy()` (the default), `MeanSquared()`, `BinaryCrossEntropy()`, `RootMeanSquared()`,
            `RootBrier()`, or your own `Loss`.
        public: `(x, y)` that is not private; some methods choose coordinates or bounds from it.
        name: the task's name in reports.
        preprocessing: what the constants in the inputs were computed from; the guarantee lists what it does not cover.
        test_overlap: held-out samples that a client owns are `refused`; `coincidental` if different units may have
            equal samples, as in a table with few columns; `intended` if they are the clients' own, which the guarantee
            then lists as not covered. Only `refused` compares the samples.
    """

    model: nn.Module | Callable[[], nn.Module]
    clients: Sequence[Samples]
    test: Samples | None = None
    owners: Tensor | None = None
    loss: Loss = field(default_factory=CrossEntropy)
    public: Samples | None = None
    name: str = "custom"
    preprocessing: Preprocessing = Preprocessing()
    test_overlap: TestOverlap = "refused"

    def __post_init__(self) -> None:
        object.__setattr__(self, "clients", Population.of(self.clients))
        _check_population(self.population)
        for name, samples in (("test", self.test), ("public", self.public)):
            if samples is not None:
                _check_samples(name, samples, self.population)
        _check_owners(self.owners, self.test)
        allowed = ("refused", "coincidental", "intended")
        expect(self.test_overlap in allowed, f"test_overlap={self.test_overlap!r} to be one of {', '.join(allowed)}")
        if self.test is not None and self.test_overlap == "refused":
            _check_overlap(self.test, self.population)

    @property
    def not_covered(self) -> tuple[str, ...]:
        """What no guarantee of a run on this task covers, a sentence each."""
        metrics = "Held-out metrics, and what is decided by them: they are computed on samples that clients own."
        return tuple(filter(None, (self.preprocessing.not_covered, metrics * (self.test_overlap == "intended"))))

    @property
    def population(self) -> Population:
        return Population.of(self.clients)

    def make_model(self, key: Key) -> nn.Module:
        """The module with its initial weights."""
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
    if population.is_elsewhere:
        return
    sizes = population.sizes
    if int(sizes.min()) == 0:
        empty = (sizes == 0).nonzero().flatten().tolist()
        raise DataError(
            f"Expected every client to have data, but client {empty[0]} has none "
            f"({len(empty)} of {len(sizes)} are empty). Remove empty clients."
        )
    if len(population.x) != len(population.y):
        raise DataError(f"Expected one target per sample, got {len(population.x)} and {len(population.y)}.")
    if int(population.sample_indices.min()) < 0 or int(population.sample_indices.max()) >= len(population.x):
        raise DataError(f"Expected the clients' sample indices in [0, {len(population.x)}), the size of the pool.")
    if population.x.is_floating_point() and not bool(torch.isfinite(population.x).all()):
        raise DataError(f"Expected finite data, but {_non_finite_client(population)} has NaN or infinite values.")


def _non_finite_client(population: Population) -> str:
    non_finite = ~torch.isfinite(population.x).flatten(1).all(1)
    where = non_finite[population.sample_indices].nonzero().flatten()
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


def _check_overlap(test: Samples, population: Population) -> None:
    if test[1].dtype != population.y.dtype or test[1].shape[1:] != population.y.shape[1:]:
        return  # no target is equal, and the loss checks them
    owned = torch.unique(population.sample_indices)
    found = find_overlap(test, (population.x, population.y), owned)
    if found is None:
        return
    where = int((population.sample_indices == found.owned).nonzero()[0])
    client = int(torch.searchsorted(population.offsets, where, right=True)) - 1
    example = f"held-out sample {found.held_out} is sample {where - int(population.offsets[client])} of client {client}"
    raise DataError(
        f"Expected held-out samples that no client owns, but {found.shared} of {len(test[1])} are owned by clients "
        f"({example}). "
        "Remove them from the held-out data or from the clients. If different people may have equal samples, give the "
        "task test_overlap='coincidental'; if it is on purpose, test_overlap='intended'."
    )


def _check_samples(name: str, samples: Samples, population: Population) -> None:
    x, y = samples
    if len(x) != len(y) or len(x) == 0:
        raise DataError(f"Expected the {name} data as non-empty (x, y) of equal length, got {len(x)} and {len(y)}.")
    expected = population.x
    if x.shape[1:] != expected.shape[1:] or x.dtype != expected.dtype:
        raise DataError(
            f"Expected the {name} data like the clients' ({expected.dtype}, shape {tuple(expected.shape[1:])}), "
            f"got {x.dtype}, shape {tuple(x.shape[1:])}."
        )
    if x.is_floating_point() and not bool(torch.isfinite(x).all()):
        raise DataError(f"Expected finite {name} data, got NaN or infinite values.")
