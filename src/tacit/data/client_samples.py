"""Users' data as tensors: arrays, lists, frames, data sets, loaders, named inputs, one per client.

Every error names the client, the actual and the expected data, and the line that would fix it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset

from tacit.core.schema import list_names
from tacit.data.adapted import SINGLE, InputFields, Inputs
from tacit.data.data_frames import Columns, as_numbers, columns_of, is_frame, take_target
from tacit.data.data_sets import (
    as_pair,
    batch_of_one,
    capitalize,
    dataset_samples,
    describe,
    limit_count,
    loader_batches,
    readable,
    stack,
)
from tacit.data.tensors import concatenate, to_tensor
from tacit.errors import DataError

TARGETS = ("labels", "label", "target", "y")  # of a data set with named columns, if no target is given
_PAIR = "one pair (x, y) per client"
MAX_CLIENTS = 1 << 16  # from an iterable without a length


@dataclass(frozen=True, eq=False)
class ClientSamples:
    """One client's samples as tensors: one or several inputs, and targets.

    Attributes:
        x: the inputs.
        y: the targets.
        columns: the names of the inputs' columns, if they come from a frame.
    """

    x: Inputs
    y: Tensor
    columns: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        return len(next(iter(self.x.values())))

    def align_columns(self, columns: tuple[str, ...], who: str) -> Self:
        """Reorder the columns, if both are named; `who` must have the same ones."""
        if not columns or not self.columns or columns == self.columns:
            return self
        lacking, more = set(columns) - set(self.columns), set(self.columns) - set(columns)
        if lacking or more:
            wrong = f"lacks {list_names(sorted(lacking))}" if lacking else f"also has {list_names(sorted(more))}"
            raise DataError(
                f"Expected the columns {list_names(columns)} for {who}, as for the first client, but it {wrong}. Give "
                "all clients the same columns."
            )
        places = {name: place for place, name in enumerate(self.columns)}
        order = [places[name] for name in columns]
        return replace(self, x={SINGLE: self.x[SINGLE][:, order]}, columns=columns)


@dataclass(frozen=True, eq=False)
class _FrameInputs:
    """The inputs of a frame, which may have no missing numbers."""

    columns: Columns
    who: str

    def __array__(self, *_: object, **__: object) -> NDArray[np.float32]:
        columns = {name: as_numbers(name, column, self.who) for name, column in self.columns.items()}
        for name, column in columns.items():
            absent = np.flatnonzero(np.isnan(column.astype(np.float64)))
            if len(absent):
                raise DataError(
                    f"Expected a number in every row of column {name!r} of {self.who}, but {len(absent)} of "
                    f"{len(column)} rows have none (the first is row {absent[0] + 1}). Fill or remove them, for "
                    "example with frame.fillna(0), or use tacit.Task.from_table, which marks missing values."
                )
        return np.stack([column.astype(np.float32) for column in columns.values()], axis=1)


def each_client(clients: object) -> Iterator[tuple[str, object]]:
    """The clients with a name for error messages: of a dictionary its keys, otherwise their numbers."""
    if isinstance(clients, Mapping):
        yield from ((f"client {name!r}", data) for name, data in clients.items())
        return
    if is_frame(clients):
        raise DataError(
            f"Expected {_PAIR}, got one table. Say which column names the client and which is predicted: "
            "tacit.Task.from_table(table, client='...', target='...')."
        )
    single = isinstance(clients, Tensor | Dataset | DataLoader) and not isinstance(clients, Iterator)
    if single or (isinstance(clients, np.ndarray) and (clients.dtype != object or clients.ndim != 1)):
        raise DataError(
            f"Expected {_PAIR}, got a single {type(clients).__name__}. Divide it among clients; for one client write "
            "clients=[data]."
        )
    if not isinstance(clients, Iterable) or isinstance(clients, str | bytes):
        raise DataError(
            f"Expected {_PAIR}, got {describe(clients)}. For a file or a folder use tacit.Task.from_table(path, ...)."
        )
    if isinstance(clients, tuple | list) and _are_transposed(clients):
        raise DataError(
            f"Expected {_PAIR}, got a list of inputs and a list of targets. Write clients=list(zip(xs, ys))."
        )
    items = clients.tolist() if isinstance(clients, np.ndarray) else clients
    for number, data in enumerate(readable(items, "the clients")):
        if number == MAX_CLIENTS and isinstance(items, Iterator):
            raise DataError(
                f"Expected the clients to end, got {number} and no end. Take some: itertools.islice(clients, n); for "
                "more of them use tacit.Population.split."
            )
        yield f"client {number}", data


def _are_transposed(clients: Sequence[Any]) -> bool:
    """Whether these are all inputs and then all targets, instead of a pair for every client."""
    if len(clients) != 2 or not all(isinstance(part, tuple | list) and len(part) > 0 for part in clients):
        return False
    dims = [{getattr(each, "ndim", 0) for each in part} for part in clients]
    return dims[1] == {1} and min(dims[0]) > 1


def read_rows(data: Any, who: str, target: object = None) -> ClientSamples:
    """The samples of one client, or held-out or public data, in any supported form."""
    x, y = _inputs_and_targets(data, who, target)
    x = _FrameInputs(columns_of(x, who), who) if is_frame(x) else x
    inputs, targets = _inputs(x, who), to_tensor(y, f"the targets of {who}")
    if targets.dim() == 0:
        raise DataError(
            f"Expected one target per sample of {who}, got a single number. For one sample write (x[None], [y])."
        )
    samples = ClientSamples(inputs, targets, tuple(x.columns) if isinstance(x, _FrameInputs) else ())
    if samples.count != len(targets):
        several = isinstance(x, list) and {np.shape(part)[:1] for part in x} == {(len(targets),)}
        advice = " If these are several inputs, write ((a, b), y), with a tuple." if several else ""
        raise DataError(f"{capitalize(who)} has {samples.count} samples but {len(targets)} targets.{advice}")
    _check_targets(targets, who)
    return samples


def _check_targets(targets: Tensor, who: str) -> None:
    """Raise `DataError` for missing targets, before any loss is computed."""
    if not targets.is_floating_point():
        return
    absent = torch.isnan(targets).view(len(targets), -1).any(1).nonzero().flatten() if len(targets) else targets
    if len(absent):
        raise DataError(
            f"Expected a target for every sample of {who}, but {len(absent)} of {len(targets)} have none: NaN, the "
            f"first for sample {int(absent[0])}. Remove or fill those samples."
        )


def pool(rows: Sequence[ClientSamples], names: Sequence[str], fields: InputFields | None) -> tuple[Tensor, Tensor]:
    """All samples in one pair of tensors, those of the first client first; memory-mapped ones stay on disk."""
    xs = [_single(each, fields, who) for each, who in zip(rows, names, strict=True)]
    ys = [each.y for each in rows]
    _check_alike(xs, names, "inputs")
    _check_alike(ys, names, "targets")
    return concatenate(xs), concatenate(ys)


def _inputs_and_targets(data: Any, who: str, target: object) -> tuple[Any, Any]:
    if isinstance(data, DataLoader):
        return _from_batches(loader_batches(data, who), who, target)
    if isinstance(data, TensorDataset) and len(data.tensors) == 2:
        return data.tensors
    if hasattr(data, "column_names") and hasattr(data, "features") and hasattr(data, "__getitem__"):
        return _from_columns(dict(data[:]), who, target)
    if is_frame(data):
        columns = columns_of(data, who)
        y = take_target(columns, target, who)
        if not columns:
            raise DataError(f"Expected {who} to have columns beside the target {target!r}, got none.")
        return _FrameInputs(columns, who), y
    if isinstance(data, Dataset) or hasattr(data, "features"):
        return _from_batches(dataset_samples(data, who), who, target)
    if isinstance(data, Mapping):
        return _from_columns(dict(data), who, target)
    if isinstance(data, list) and data and all(isinstance(record, Mapping) for record in data):
        return _from_batches((batch_of_one(record, who) for record in data), who, target)
    if isinstance(data, Iterator):
        return _from_batches((batch_of_one(sample, who) for sample in limit_count(data, who)), who, target)
    if isinstance(data, list) and data and all(isinstance(pair, tuple) and len(pair) == 2 for pair in data):
        xs, ys = zip(*data, strict=True)
        return stack(xs, who), stack(ys, f"the targets of {who}")
    if isinstance(data, tuple | list) and len(data) == 2:
        return data[0], data[1]
    raise DataError(
        f"Expected {who} as a pair (x, y), got {describe(data)}. Write one pair per client, such as "
        "clients=[(x0, y0), (x1, y1)]; for one client, clients=[(x, y)]."
    )


def _from_columns(columns: dict[str, Any], who: str, target: object) -> tuple[Any, Any]:
    """Named inputs and the column to predict; a single input has no name."""
    name = target if target is not None else next((each for each in TARGETS if each in columns), None)
    if name is None or name not in columns:
        has = list_names(map(str, columns))
        raise DataError(
            f"Expected a column to predict in {who}, which has {has}. Name it with target='...' (--target)."
        )
    y = columns.pop(name)
    if not columns:
        raise DataError(f"Expected {who} to have inputs beside the target {name!r}, got none.")
    return (columns if len(columns) > 1 else next(iter(columns.values()))), y


def _from_batches(batches: Iterable[Any], who: str, target: object) -> tuple[Any, Any]:
    xs: list[Inputs] = []
    ys: list[Inputs] = []
    targets = f"the targets of {who}"
    for batch in readable(batches, f"the samples of {who}"):
        x, y = _inputs_and_targets(as_pair(batch), who, target)
        xs.append(_inputs(x, who))
        ys.append({SINGLE: to_tensor(y, targets)})
    if not xs:
        raise DataError(f"Expected {who} to have samples, got none.")
    return _concatenate(xs, who), _concatenate(ys, targets)[SINGLE]


def _concatenate(batches: Sequence[Inputs], who: str) -> Inputs:
    """The inputs of several batches, one after the other."""
    kinds = {tuple((name, tuple(part.shape[1:])) for name, part in x.items()) for x in batches}
    if len(kinds) > 1:
        shapes = ", ".join(map(str, sorted({shape for kind in kinds for _, shape in kind})))
        raise DataError(f"Expected samples of one shape for {who}, got {shapes}. Pad or crop them.")
    return {name: torch.cat([x[name] for x in batches]) for name in batches[0]}


def _inputs(x: Any, who: str) -> Inputs:
    if isinstance(x, Mapping):
        named = ((name if isinstance(name, int) else str(name), value) for name, value in x.items())
        return {name: to_tensor(value, f"input {name!r} of {who}") for name, value in named}
    if _are_several(x):
        return {number: to_tensor(part, f"input {number} of {who}") for number, part in enumerate(x)}
    tensor = to_tensor(x, f"the inputs of {who}")
    if tensor.dim() == 0:
        raise DataError(f"Expected samples for {who}, got a single number.")
    return {SINGLE: tensor}


def _are_several(x: object) -> bool:
    """Whether this is a tuple of inputs with equally many samples, and not one input as a tuple of samples."""
    if not isinstance(x, tuple) or len(x) < 2 or not all(isinstance(part, Tensor | np.ndarray) for part in x):
        return False
    return len({len(part) if part.ndim else -1 for part in x}) == 1


def _single(rows: ClientSamples, fields: InputFields | None, who: str) -> Tensor:
    """The inputs in one tensor."""
    if (SINGLE in rows.x) != (fields is None):
        expected, actual = ("a single tensor of", "several") if fields is None else ("several", "a single tensor")
        raise DataError(f"Expected {expected} inputs for {who}, as for the first client, got {actual}.")
    return rows.x[SINGLE] if fields is None else fields.pack(rows.x, who)


def _check_alike(parts: Sequence[Tensor], names: Sequence[str], what: str) -> None:
    first = parts[0]
    for part, who in zip(parts, names, strict=True):
        if part.shape[1:] != first.shape[1:]:
            raise DataError(
                f"Expected {what} like those of {names[0]} ({_kind(first)}), but {who} has {_kind(part)}. Give "
                "clients the same columns in the same shape."
            )
        if what == "targets" and part.is_floating_point() != first.is_floating_point():
            raise DataError(
                f"Expected targets of one kind, class labels as one int64 or floats, but {names[0]} has {first.dtype} "
                f"and {who} has {part.dtype}. Convert those of {who}, with y.long() or y.float()."
            )


def _kind(part: Tensor) -> str:
    return f"{part.dtype}, shape {tuple(part.shape[1:])} per sample"
