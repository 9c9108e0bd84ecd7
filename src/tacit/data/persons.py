"""Records by person: ids of any kind, as numbers of persons within each client."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
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
    per_client = [_number_persons(*each) for each in zip(vectors, names, sizes, strict=True)]
    numbers = [number for values, numbered in per_client for number in map(numbered.__getitem__, values)]
    clients = Counter(person for _, numbered in per_client for person in numbered)
    return torch.tensor(numbers), max(clients.values(), default=0)


def take_person_column(clients: Any, column: str) -> tuple[Any, list[Any]]:
    """Clients as frames or dictionaries of columns, without the column of person ids, and these ids."""
    named = clients.items() if isinstance(clients, Mapping) else enumerate(clients)
    pairs = [(name, *_take_column(data, column, f"client {name!r}")) for name, data in named]
    rest = {name: data for name, data, _ in pairs} if isinstance(clients, Mapping) else [data for _, data, _ in pairs]
    return rest, [ids for _, _, ids in pairs]


def drop_person_column(data: Any, column: object) -> tuple[Any, Any]:
    """Held-out or public data without the column of person ids, and these ids; None: they have no such column."""
    named = isinstance(data, Mapping) or is_frame(data)
    return (
        _take_column(data, column, "the data")
        if isinstance(column, str) and named and _has(data, column)
        else (data, None)
    )


@dataclass(frozen=True, eq=False)
class HeldPersons:
    """Whether held-out samples are of persons who are in training, too.

    Attributes:
        held: the inputs of the held-out samples; of others, nothing is known.
        shared: whether one of them is of a person in training; None: unknown.
    """

    held: Tensor
    shared: bool | None = None

    def not_covered(self, held: Tensor) -> str:
        """What a guarantee for persons does not cover if metrics are those of these samples, a sentence or empty."""
        shared = self.shared if held is self.held else None
        if shared is False:
            return ""
        why = "some of the held-out rows are of persons in training" if shared else HELD_UNKNOWN
        return f"Held-out metrics, which are exact, and what is decided by them: {why}."


HELD_UNKNOWN = "whether held-out rows are of persons in training is not known"


def shares_persons(ids: Any, held: Any) -> bool | None:
    """Whether a person is in both: one vector of ids per client, and one of held-out samples; None: not both known.

    Ids are compared as texts, so that 7 and "7" are the same.

    Example:
        >>> shares_persons([[1, 2], [3]], ["3", "4"]), shares_persons([[1, 2], [3]], [5]), shares_persons([[1]], None)
        (True, False, None)
    """
    if ids is None or held is None:
        return None
    vectors = ids.values() if isinstance(ids, Mapping) else ids
    return not {str(each) for vector in vectors for each in _values(vector)}.isdisjoint(map(str, _values(held)))


def _values(ids: Any) -> list[Any]:
    return ids.tolist() if hasattr(ids, "tolist") else list(ids)


def _has(data: Any, column: str) -> bool:
    return column in (data if isinstance(data, Mapping) else columns_of(data, "the data"))


def _take_column(data: Any, column: str, who: str) -> tuple[Any, Any]:
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


def _number_persons(ids: Any, who: str, size: int) -> tuple[list[Any], dict[Any, int]]:
    """A client's ids, and the number of each person among them."""
    values = _values(ids)
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
