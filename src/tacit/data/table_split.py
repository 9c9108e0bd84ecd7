"""Which rows of a table belong to which client, and which are held out."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.core.keys import Key
from tacit.core.schema import listed
from tacit.data.encoding import Encoding
from tacit.data.population import Samples, by_key
from tacit.data.tables import Table, read_table
from tacit.errors import DataError, expect


@dataclass(frozen=True, eq=False)
class RowSplit:
    """The rows of each client that trains, and the held-out ones with the number of their client."""

    clients: list[Tensor]
    numbers: list[int]
    held_out: Tensor | None
    owners: Tensor | None

    @property
    def training(self) -> NDArray[np.int64]:
        rows: NDArray[np.int64] = torch.cat(self.clients).numpy()
        return rows


def whole(parts: list[Tensor]) -> RowSplit:
    """All rows are for training."""
    return RowSplit(parts, list(range(len(parts))), None, None)


def client_column(table: Table, client: str | None) -> str:
    """The column that names the client."""
    if table.client:
        if client is not None:
            raise DataError(f"Expected no client column for {table.name}: each of its files is a client. Leave it out.")
        return table.client
    if client is None:
        raise DataError(
            f"Expected the column of {table.name} that names the client, got none; it has {listed(table.columns)}. Add "
            "client='...' (on the command line --client ...)."
        )
    return client


def clients_of(table: Table, column: str) -> tuple[list[str], list[Tensor]]:
    """The names of the clients, and the rows of each."""
    texts = np.array(table.texts(column))
    return [str(name) for name in np.unique(texts)], by_key(texts)


def split_rows(
    parts: list[Tensor], test: float, split: str, key: Key, persons: NDArray[np.str_] | None = None
) -> RowSplit:
    """Hold out a fraction of the rows of each client, or of its persons with all of their rows, or of the clients."""
    expect(0 <= test < 1, f"test={test} to be a fraction in [0, 1)", "For a table of its own, give a file or a frame.")
    expect(split in ("rows", "clients"), f"split={split!r} to be 'rows' or 'clients'")
    if test == 0:
        return whole(parts)
    generator = key.public_generator()
    if split == "clients":
        expect(len(parts) > 1, "several clients to hold out some of them, got one", "Use split='rows'.")
        order = torch.randperm(len(parts), generator=generator).tolist()
        count = min(max(1, round(test * len(parts))), len(parts) - 1)
        held, kept = sorted(order[:count]), sorted(order[count:])
        owners = torch.arange(count).repeat_interleave(torch.tensor([len(parts[each]) for each in held]))
        return RowSplit([parts[each] for each in kept], kept, torch.cat([parts[each] for each in held]), owners)
    divided = [_divided(part, test, None if persons is None else persons[part.numpy()], generator) for part in parts]
    rest, held_rows = [each for each, _ in divided], [each for _, each in divided]
    held_out, counts = torch.cat(held_rows), torch.tensor([len(each) for each in held_rows])
    if len(held_out) == 0:
        return whole(rest)
    return RowSplit(rest, list(range(len(parts))), held_out, torch.arange(len(parts)).repeat_interleave(counts))


def _divided(
    part: Tensor, test: float, persons: NDArray[np.str_] | None, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """The rows of a client that train, and those that are held out."""
    number = np.arange(len(part)) if persons is None else np.unique(persons, return_inverse=True)[1]
    order = torch.randperm(int(number.max()) + 1, generator=generator)
    count = min(round(test * len(order)), len(order) - 1)
    if persons is None:
        return part[order[count:]].sort().values, part[order[:count]]
    held = torch.isin(torch.from_numpy(number), order[:count])
    return part[~held], part[held]


def held_out_samples(
    rows: RowSplit, test: Any, encoding: Encoding, samples: Samples, split: str, loss: object
) -> tuple[Samples | None, Literal["coincidental", "intended"]]:
    """The held-out samples, and whether they are the clients' own."""
    if not isinstance(test, int | float):
        held = None if test is None else encoding.samples(read_table(test, "the test table"), loss)
        return held, "coincidental"
    if rows.held_out is None:
        return None, "coincidental"
    x, y = samples
    return (x[rows.held_out], y[rows.held_out]), "coincidental" if split == "clients" else "intended"
