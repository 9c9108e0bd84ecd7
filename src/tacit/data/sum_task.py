"""A task whose model is not a network but the sums that answer a query: a table, encoded, and the state's length."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tacit.core.losses import MeanSquared
from tacit.core.schema import list_names
from tacit.data.encoding import Encoding, Limits, Preprocessing
from tacit.data.population import Population
from tacit.data.table_task import MAX_WEIGHTS, client_column, clients_of
from tacit.data.tables import Table
from tacit.data.task import Task
from tacit.errors import DataError, expect


class Sums(nn.Module):
    """The state of an analysis in the place of a model: numbers in float64, zero at first. It predicts nothing.

    Args:
        length: how many numbers.
        outputs: the width of its predictions, which are zeros.
    """

    def __init__(self, length: int, outputs: int = 1) -> None:
        super().__init__()
        self.sums, self.outputs = nn.Parameter(torch.zeros(length, dtype=torch.float64)), outputs

    def forward(self, x: Tensor) -> Tensor:
        """Zeros, for each row."""
        return x.new_zeros(len(x), self.outputs)


@dataclass(frozen=True)
class SumModel:
    """The factory of `Sums`.

    Example:
        >>> SumModel(3)().sums.tolist()
        [0.0, 0.0, 0.0]
    """

    length: int
    outputs: int = 1

    def __post_init__(self) -> None:
        expect(1 <= self.length <= MAX_WEIGHTS, f"1 to {MAX_WEIGHTS} sums, got {self.length}")

    def __call__(self) -> Sums:
        """The module."""
        return Sums(self.length, self.outputs)


def sum_task(table: Table, encoding: Encoding, length: int, *, client: str | None, person: str = "", name: str) -> Task:
    """The task of a query of this length on all rows of a table; nothing is held out.

    Args:
        table: the rows.
        encoding: how they become inputs and, if it has a target, targets.
        length: of the state.
        client: the column that names the client; None: each of the table's files is a client.
        person: the column of person ids; empty: each row is a person of its own.
        name: of the task.
    """
    column = client_column(table, client)
    table.check_known(column, "client")
    names, parts = clients_of(table, column)
    if person:
        table.check_known(person, "person")
    ids = np.array(table.texts(person)) if person else None
    target = encoding.target
    return Task(
        model=SumModel(length, 1 if target is None else target.outputs),
        clients=Population.split(*encoding.samples(table), parts, names),
        loss=MeanSquared() if target is None else target.loss,
        person=None if ids is None else [ids[part.numpy()] for part in parts],
        preprocessing=encoding.preprocessing,
        encoding=encoding,
        name=name,
    )


def choose_encoding(
    table: Table, numbers: tuple[str, ...], categories: tuple[str, ...], declared: Encoding | None, advice: str
) -> Encoding:
    """The encoding of these columns: with declared constants or, where none are declared, with those of all rows.

    The second is not covered by a guarantee, which states it.

    Args:
        table: the rows.
        numbers: columns of numbers.
        categories: columns of categories.
        declared: ranges and categories that are public; None: there are none.
        advice: how to declare them.
    """
    for name in (*numbers, *categories):
        table.check_known(name, "input") if name not in table.columns else None
    if declared is None:
        computed = Encoding.of(table, numbers, categories, np.arange(table.rows))
        detail = f"minima, maxima and categories are those of all rows. {advice}"
        return _with_indicators(computed, Preprocessing("private", detail))
    wanted = {"a range": (numbers, declared.numbers), "categories": (categories, declared.categories)}
    for what, (names, known) in wanted.items():
        lacking = [name for name in names if name not in known]
        if lacking:
            raise DataError(f"Expected {what} of {list_names(lacking)} to be declared, got none. {advice}")
    detail = "Minima, maxima and categories are declared to be public."
    chosen = Encoding(
        numbers={name: _as_read(declared.numbers[name]) for name in numbers},
        categories={name: declared.categories[name] for name in categories},
    )
    source = Preprocessing("public", detail) if declared.preprocessing.source == "public" else declared.preprocessing
    return _with_indicators(chosen, source)


def _as_read(limits: Limits) -> Limits:
    """Limits as they are read from a file, so that their digest stays the same."""
    low, high = (limit if isinstance(limit, str) else float(limit) for limit in limits)
    return low, high


def _with_indicators(encoding: Encoding, source: Preprocessing) -> Encoding:
    """The same, with an input that marks missing values for each column of numbers: which have some is private."""
    values: dict[str, Any] = {"numbers": encoding.numbers, "categories": encoding.categories}
    return Encoding(**values, preprocessing=source)
