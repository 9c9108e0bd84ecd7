"""The data of all clients: one pool of samples, and the indices of every client's samples.

Ten thousand clients therefore cost no more than their indices, clients may share samples (label shards with
repetition), and worker processes share one copy.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self, overload

import numpy as np
import torch
from torch import Tensor

from tacit.core.prices import ClientUnits, Unit
from tacit.data import client_samples
from tacit.data.adapted import SINGLE, InputFields
from tacit.data.persons import number_persons
from tacit.data.tensors import to_tensor
from tacit.errors import DataError, expect

Samples = tuple[Tensor, Tensor]


@dataclass(frozen=True, eq=False, repr=False)
class Population(Sequence[Samples]):
    """The data of all clients: a pool of samples, and the indices of every client's samples.

    Attributes:
        x: the inputs of the pool.
        y: the targets of the pool.
        sample_indices: indices into the pool, those of client 0 first.
        offsets: (clients + 1,); client i has `sample_indices[offsets[i]:offsets[i + 1]]`.
        names: what the clients are called; empty: their numbers.
        is_remote: whether the clients' data are not on this machine.
        columns: the names of the inputs' columns, if they come from frames.
        persons: for every one of `sample_indices`, the number of its person, from 0 within each client; None: unknown.
        clients_per_person: at how many clients one person has samples, at most; 0: unknown.

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
    names: tuple[str, ...] = ()
    is_remote: bool = False
    columns: tuple[str, ...] = ()
    persons: Tensor | None = None
    clients_per_person: int = 0

    def __repr__(self) -> str:
        """Its form, without data."""
        if self.is_remote:
            return f"Population({len(self)} remote clients)"
        shape = ", ".join(map(str, self.x.shape[1:]))
        return f"Population({len(self)} clients, {len(self.sample_indices)} samples of ({shape}) {self.x.dtype})"

    @classmethod
    def split(cls, x: Any, y: Any, parts: Sequence[Any], names: Sequence[str] = ()) -> Self:
        """A population from a pool, in tensors or arrays, and the indices of each client's samples."""
        expect(len(parts) > 0, "at least one client, got none")
        indices = [to_tensor(part, f"the indices of client {number}") for number, part in enumerate(parts)]
        sizes = torch.tensor([len(part) for part in indices])
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)])
        inputs, targets = to_tensor(x, "the inputs of the pool"), to_tensor(y, "the targets of the pool")
        return cls(inputs, targets, torch.cat(indices).long(), offsets, tuple(names))

    @classmethod
    def of(cls, clients: Sequence[Samples]) -> "Population":
        """A population from any sequence of `(x, y)` pairs; a population is returned unchanged."""
        return clients if isinstance(clients, Population) else read_clients(clients, None, None, None)[0]

    def label(self, client: int) -> str:
        """The name of a client in error messages."""
        return f"client {self.names[client]!r}" if self.names else f"client {client}"

    @classmethod
    def remote(cls, clients: int, like: Samples | None = None, samples: int = 0, unit: Unit = Unit.RECORD) -> Self:
        """Clients with data on other machines, as the server of a federation knows them: only their number.

        Args:
            clients: their number.
            like: samples of the same form, such as public ones, if there are any.
            samples: how many of them, or of persons, each client declares to have.
            unit: whether these are records or persons.

        Example:
            >>> len(Population.remote(8)), Population.remote(8).is_remote
            (8, True)
        """
        expect(clients > 0, "at least one client, got none")
        x, y = (torch.zeros(0, 1), torch.zeros(0, dtype=torch.int64)) if like is None else (part[:0] for part in like)
        none = torch.zeros(0, dtype=torch.int64)
        persons = none if unit is Unit.PERSON else None
        return cls(x, y, none, samples * torch.arange(clients + 1), is_remote=True, persons=persons)

    @classmethod
    def open(cls, folder: Path | str) -> "Population":
        """A population on disk: the folder that `Population.write` or a `PopulationWriter` wrote."""
        from tacit.data.population_files import open_population  # it needs this class

        return open_population(folder)

    @classmethod
    def write(cls, folder: Path | str, clients: Iterable[Sequence[Any]]) -> "Population":
        """Write clients' samples to a new folder, one client after the other, and open it: they stay on disk.

        A client is `(x, y)`, or `(x, y, persons)` with the id of every sample's person.
        """
        from tacit.data.population_files import write_population

        return write_population(folder, clients)

    @classmethod
    def from_parquet(
        cls, folder: Path | str, source: Path | str, *, target: str, client: str | None = None, **options: Any
    ) -> "Population":
        """Write the rows of Parquet files to a new folder, encoded and sorted by client, and open it.

        Memory depends neither on the number of rows nor on that of clients. `Task.from_table(folder, target=...)` makes
        a task of the folder.

        Args:
            folder: a folder that does not exist.
            source: a Parquet file, a folder with folders named COLUMN=VALUE, or a folder with one file per client.
            target: the column to predict.
            client: the column that names the client; its rows need not follow one another. Not for one file per client.
            **options: `person`, `public`, `drop`, `categories`, `encoding`, `kind` and `classes`, as for
                `Task.from_table`.
        """
        from tacit.data.parquet_population import convert_parquet

        return convert_parquet(folder, source, target=target, client=client, **options)

    @property
    def sizes(self) -> Tensor:
        """The number of samples of every client."""
        return self.offsets.diff()

    def sizes_of(self, clients: Tensor) -> Tensor:
        """The number of samples of each of these clients, in time that does not depend on the others."""
        return self.offsets[clients + 1] - self.offsets[clients]

    @property
    def mean_size(self) -> float:
        """The mean number of samples of a client."""
        return int(self.offsets[-1] - self.offsets[0]) / len(self)

    @property
    def unit(self) -> Unit:
        """The unit that is protected within a client: a person where records are assigned to persons, else a record."""
        return Unit.RECORD if self.persons is None else Unit.PERSON

    @cached_property
    def unit_sizes(self) -> Tensor:
        """The number of such units of every client."""
        if self.persons is None or self.is_remote:
            return self.sizes
        return torch.from_numpy(np.maximum.reduceat(self.persons.numpy(), self.offsets[:-1].numpy())) + 1

    @property
    def client_units(self) -> ClientUnits:
        """The public numbers of every client's records or persons."""
        return ClientUnits(tuple(self.unit_sizes.tolist()), self.unit, self.clients_per_person)

    def samples_of(self, client: int, units: Tensor) -> tuple[Tensor, Tensor | None]:
        """The indices of the samples of these ascending units of a client, one unit after the other.

        Also the number of samples of each unit, if units are persons; None: one each.
        """
        if self.persons is None:
            return self.indices(client)[units], None
        numbers = self.persons[int(self.offsets[client]) : int(self.offsets[client + 1])]
        chosen = torch.zeros(int(self.unit_sizes[client]), dtype=torch.bool)
        chosen[units] = True
        order = numbers.argsort(stable=True)
        order = order[chosen[numbers[order]]]
        return self.indices(client)[order], numbers.bincount()[units]

    def with_persons(self, ids: object) -> "Population":
        """The population with these ids of persons, one vector per client.

        Equal ids are one person, at one client or at several.
        """
        labels = [self.label(client) for client in range(len(self))]
        persons, clients = number_persons(ids, labels, self.sizes.tolist())
        return replace(self, persons=persons, clients_per_person=clients)

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


def check_not_empty(sizes: Sequence[int], label: Callable[[int], str]) -> None:
    """Raise `DataError` if a client has no samples."""
    empty = [client for client, size in enumerate(sizes) if size <= 0]
    if empty:
        raise DataError(
            f"Expected every client to have data, but {label(empty[0])} has none "
            f"({len(empty)} of {len(sizes)} are empty). Remove empty clients."
        )


def read_clients(
    clients: object, persons: object, target: str | None, inputs: InputFields | None
) -> tuple[Population, InputFields | None]:
    """The clients' data in one pool, with the ids of persons if there are any, and the fields of packed inputs."""
    if isinstance(clients, Population):
        return clients if persons is None else clients.with_persons(persons), inputs
    names: list[str] = []
    rows: list[client_samples.ClientSamples] = []
    for who, data in client_samples.each_client(clients):
        names.append(who)
        samples = client_samples.read_rows(data, who, target)
        rows.append(samples.align_columns(rows[0].columns if rows else (), who))
    expect(len(rows) > 0, "at least one client, got none")
    check_not_empty([each.count for each in rows], lambda client: names[client])
    fields = None if SINGLE in rows[0].x else inputs or InputFields.of(rows[0].x)
    x, y = client_samples.pool(rows, names, fields)
    parts = torch.split(torch.arange(len(x)), [each.count for each in rows])
    named = tuple(str(name) for name in clients) if isinstance(clients, Mapping) else ()
    population = replace(Population.split(x, y, parts, named), columns=rows[0].columns)
    return population if persons is None else population.with_persons(persons), fields


def read_held(
    data: object, name: str, target: str | None, inputs: InputFields | None, columns: tuple[str, ...]
) -> Samples | None:
    """Held-out or public data, with the clients' columns."""
    if data is None:
        return None
    who = f"the {'held-out' if name == 'test' else name} data"
    rows = client_samples.read_rows(data, who, target).align_columns(columns, who)
    if SINGLE in rows.x:  # one input, or several that were packed before
        return rows.x[SINGLE], rows.y
    return client_samples.pool([rows], [who], inputs)


def owners_of(parts: Sequence[Tensor]) -> Tensor:
    """The number of each row's part, in the order of the parts.

    Example:
        >>> owners_of([torch.zeros(2), torch.zeros(1)])
        tensor([0, 0, 1])
    """
    return torch.arange(len(parts)).repeat_interleave(torch.tensor([len(part) for part in parts]))


def by_key(keys: Tensor | np.ndarray | Sequence[str]) -> list[Tensor]:
    """One client per distinct value of a natural key (writer, hospital), in the order of the values.

    Example:
        >>> [part.tolist() for part in by_key(["b", "a", "b"])]
        [[1], [0, 2]]
    """
    values = np.asarray(keys)
    expect(values.ndim == 1, f"one key per sample, got an array of shape {values.shape}")
    if len(values) == 0:
        raise DataError("Expected at least one sample to split by key, got none.")
    _, owner, counts = np.unique(values, return_inverse=True, return_counts=True)
    order = torch.from_numpy(np.argsort(owner, kind="stable").astype(np.int64))
    return list(torch.split(order, counts.tolist()))
