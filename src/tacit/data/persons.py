"""Records by person: ids of any kind, as numbers of persons within each client."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.lib.recfunctions import drop_fields
from torch import Tensor

from tacit.data.data_frames import columns_of, find_column, is_frame
from tacit.errors import DataError

_ADVICE = "Give one vector of person ids per client: person=[ids0, ids1, ...]."


def number_persons(ids: object, names: Sequence[str], sizes: Sequence[int]) -> tuple[Tensor, int]:
    """The number of each record's person among those of its client, in the order of the clients.

    Also the largest number of clients that have a record of the same person, by equal ids.

    Args:
        ids: one vector of ids per client, or a dictionary of them in the clients' order; numbers or texts.
        names: what error messages call the clients.
        sizes: the number of records of every client.

    Example:
        >>> number_persons([["ann", "bob", "ann"], ["eve", "bob"]], ["client 0", "client 1"], [3, 2])
        (tensor([0, 1, 0, 0, 1]), 2)
    """
    if isinstance(ids, str) or not isinstance(ids, Iterable):
        raise DataError(f"Expected ids of persons, got {str(ids)[:80]!r}, which no client has as a column. {_ADVICE}")
    vectors = list(ids.values() if isinstance(ids, Mapping) else ids)
    if len(vectors) != len(sizes):
        raise DataError(f"Expected the person ids of {len(sizes)} clients, got those of {len(vectors)}. {_ADVICE}")
    per_client = [_known(*each) for each in zip(vectors, names, sizes, strict=True)]
    numbers = [number for values, numbered in per_client for number in map(numbered.__getitem__, values)]
    clients = Counter(person for _, numbered in per_client for person in numbered)
    return torch.tensor(numbers), max(clients.values(), default=0)


def take_person_column(clients: Any, column: str) -> tuple[Any, list[Any]]:
    """Clients as frames or dictionaries of columns, without the column of person ids, and these ids."""
    named = clients.items() if isinstance(clients, Mapping) else enumerate(clients)
    pairs = [(name, *_taken(data, column, f"client {name!r}")) for name, data in named]
    rest = {name: data for name, data, _ in pairs} if isinstance(clients, Mapping) else [data for _, data, _ in pairs]
    return rest, [ids for _, _, ids in pairs]


def without_person_column(data: Any, column: object) -> Any:
    """Held-out or public data without the column of person ids, if they have it."""
    named = isinstance(data, Mapping) or is_frame(data)
    return _taken(data, column, "the data")[0] if isinstance(column, str) and named and _has(data, column) else data


def _has(data: Any, column: str) -> bool:
    return column in (data if isinstance(data, Mapping) else columns_of(data, "the data"))


def _taken(data: Any, column: str, who: str) -> tuple[Any, Any]:
    """The data without this column, and the column."""
    if isinstance(data, Mapping):
        columns = dict(data)
        return columns, columns.pop(find_column(columns, column, who, "person"))
    if not is_frame(data):
        raise DataError(
            f"Expected {who} to have named columns for person={column!r}, got a {type(data).__name__}. {_ADVICE}"
        )
    columns = columns_of(data, who)
    ids = columns[find_column(columns, column, who, "person")]
    if isinstance(data, np.ndarray):
        return drop_fields(data, column), ids
    if hasattr(data, "drop_columns"):  # pyarrow
        return data.drop_columns([column]), ids
    return (data.drop(columns=[column]) if hasattr(data, "iloc") else data.drop(column)), ids


def _known(ids: Any, who: str, size: int) -> tuple[list[Any], dict[Any, int]]:
    """A client's ids, and the number of each person among them."""
    values = ids.tolist() if hasattr(ids, "tolist") else list(ids)
    if len(values) != size:
        raise DataError(f"Expected {size} person ids for {who}, one per record, got {len(values)}.")
    numbers: dict[Any, int] = {}
    for record, value in enumerate(values):
        if value is None or value != value or value == "":
            raise DataError(
                f"Expected a person id for every record of {who}, but record {record} has none. Fill it with an id of "
                "its own if nobody else has it, or remove the record."
            )
        numbers.setdefault(value, len(numbers))
    return values, numbers
