"""Data as people have them, as tensors: arrays, lists, frames, data sets, loaders, named inputs, one per client.

Every refusal names the client, what came, what was expected, and the line that would fix it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from tacit.core.adapted import InputFields
from tacit.core.intake.data_frames import as_numbers, columns_of, is_frame, take_target
from tacit.core.intake.tensors import joined, to_tensor
from tacit.core.schema import listed
from tacit.errors import DataError

TARGETS = ("labels", "label", "target", "y")  # of a data set with named columns, if no target is given
Inputs = Tensor | dict[str, Tensor] | tuple[Tensor, ...]
PAIR = "one pair (x, y) per client"


@dataclass(frozen=True, eq=False)
class ClientSamples:
    """One client's samples as tensors: inputs, of which there may be several, and targets."""

    x: Inputs
    y: Tensor

    @property
    def count(self) -> int:
        first = self.x if isinstance(self.x, Tensor) else next(iter(_parts(self.x).values()))
        return len(first)


def each_client(clients: object) -> Iterator[tuple[str, object]]:
    """The clients with a name for error messages: of a dictionary its keys, otherwise their numbers."""
    if isinstance(clients, Mapping):
        yield from ((f"client {name!r}", data) for name, data in clients.items())
        return
    if is_frame(clients):
        raise DataError(
            f"Expected {PAIR}, got one table. Say which column names the client and which is predicted: "
            "tacit.Task.from_table(table, client='...', target='...')."
        )
    if isinstance(clients, Tensor | np.ndarray | Dataset | DataLoader) and not isinstance(clients, Iterator):
        raise DataError(
            f"Expected {PAIR}, got a single {type(clients).__name__}. Divide it among clients; for one client write "
            "clients=[data]."
        )
    if not isinstance(clients, Iterable) or isinstance(clients, str | bytes):
        raise DataError(
            f"Expected {PAIR}, got {_described(clients)}. For a file or a folder use tacit.Task.from_table(path, ...)."
        )
    for number, data in enumerate(clients):
        yield f"client {number}", data


def read_rows(data: Any, who: str, target: object = None) -> ClientSamples:
    """The samples of one client, or held-out or public data, in whatever form they are."""
    x, y = _inputs_and_targets(data, who, target)
    inputs, targets = _inputs(x, who), to_tensor(y, f"the targets of {who}")
    if targets.dim() == 0:
        raise DataError(f"Expected one target per sample of {who}, got a single number.")
    found = ClientSamples(inputs, targets)
    if found.count != len(targets):
        raise DataError(f"{capitalized(who)} has {found.count} samples but {len(targets)} targets.")
    return found


def pool(rows: Sequence[ClientSamples], names: Sequence[str], fields: InputFields | None) -> tuple[Tensor, Tensor]:
    """All samples in one pair of tensors, those of the first client first; memory-mapped ones stay on disk."""
    xs = [_single(each, fields, who) for each, who in zip(rows, names, strict=True)]
    ys = [each.y for each in rows]
    _check_alike(xs, names, "inputs")
    _check_alike(ys, names, "targets")
    return joined(xs), joined(ys)


def _inputs_and_targets(data: Any, who: str, target: object) -> tuple[Any, Any]:
    if isinstance(data, DataLoader):
        return _from_batches(_loader_batches(data), who, target)
    if isinstance(data, TensorDataset) and len(data.tensors) == 2:
        return data.tensors
    if hasattr(data, "column_names") and hasattr(data, "features"):
        return _from_columns(dict(data[:]), who, target)
    if is_frame(data):
        columns = columns_of(data, who)
        y = take_target(columns, target, who)
        numbers = [as_numbers(name, column, who) for name, column in columns.items()]
        if not numbers:
            raise DataError(f"Expected {who} to have columns beside the target {target!r}, got none.")
        return np.stack([column.astype(np.float32) for column in numbers], axis=1), y
    if isinstance(data, Dataset):
        return _from_batches(_dataset_samples(data, who), who, target)
    if isinstance(data, Mapping):
        return _from_columns(dict(data), who, target)
    if isinstance(data, Iterator):
        return _from_pairs(list(data), who)
    if isinstance(data, list) and data and all(isinstance(pair, tuple) and len(pair) == 2 for pair in data):
        return _from_pairs(data, who)
    if isinstance(data, tuple | list) and len(data) == 2:
        return data[0], data[1]
    raise DataError(
        f"Expected {who} as a pair (x, y), got {_described(data)}. Write one pair per client, such as "
        "clients=[(x0, y0), (x1, y1)]; for one client, clients=[(x, y)]."
    )


def _from_columns(columns: dict[str, Any], who: str, target: object) -> tuple[Any, Any]:
    """Named inputs and the column that is predicted; a single input is not named."""
    name = target if target is not None else next((each for each in TARGETS if each in columns), None)
    if name is None or name not in columns:
        has = listed(map(str, columns))
        raise DataError(f"Expected a column to predict in {who}, which has {has}. Name it with target='...'.")
    y = columns.pop(name)
    if not columns:
        raise DataError(f"Expected {who} to have inputs beside the target {name!r}, got none.")
    return (columns if len(columns) > 1 else next(iter(columns.values()))), y


def _from_batches(batches: Iterable[Any], who: str, target: object) -> tuple[Any, Any]:
    pairs = [_inputs_and_targets(batch, who, target) for batch in batches]
    if not pairs:
        raise DataError(f"Expected {who} to have samples, got none.")
    xs = [_inputs(x, who) for x, _ in pairs]
    _check_parts(xs, who)
    y = torch.cat([to_tensor(y, f"the targets of {who}") for _, y in pairs])
    return _cat_inputs(xs), y


def _from_pairs(pairs: list[Any], who: str) -> tuple[Any, Any]:
    """Samples that come one by one."""
    if not pairs:
        raise DataError(f"Expected {who} to have samples, got none.")
    try:
        xs, ys = zip(*pairs, strict=True)
    except (TypeError, ValueError) as error:
        raise DataError(f"Expected {who} as pairs (x, y), got {_described(pairs[0])}.") from error
    return _stacked(xs, who), _stacked(ys, f"the targets of {who}")


def _loader_batches(loader: "DataLoader[Any]") -> Iterator[Any]:
    """What the loader makes of its data set, in the data set's order; its batch size plays no role in training."""
    data, size = loader.dataset, loader.batch_size
    if size is None or isinstance(data, IterableDataset) or not hasattr(data, "__len__"):
        yield from loader
        return
    for begin in range(0, len(data), size):
        yield loader.collate_fn([data[i] for i in range(begin, min(begin + size, len(data)))])


def _dataset_samples(data: "Dataset[Any]", who: str) -> Iterator[Any]:
    """Every sample of a data set as a batch of one."""
    if isinstance(data, IterableDataset):
        samples: Iterable[Any] = data
    elif hasattr(data, "__len__"):
        samples = (data[i] for i in range(len(data)))
    else:
        raise DataError(f"Expected {who} to know its length: give {type(data).__name__} a __len__.")
    for sample in samples:
        yield _batch_of_one(sample, who)


def _batch_of_one(sample: Any, who: str) -> Any:
    if isinstance(sample, Mapping):
        return {name: _stacked((value,), who) for name, value in sample.items()}
    if isinstance(sample, tuple | list) and len(sample) == 2:
        x, y = sample
        return _one(x, who), _stacked((y,), who)
    if isinstance(sample, tuple | list) and len(sample) > 2:
        return tuple(_stacked((x,), who) for x in sample[:-1]), _stacked((sample[-1],), who)
    raise DataError(f"Expected samples (x, y) in the data set of {who}, got {_described(sample)}.")


def _one(x: Any, who: str) -> Any:
    if isinstance(x, Mapping):
        return {name: _stacked((value,), who) for name, value in x.items()}
    return tuple(_stacked((value,), who) for value in x) if isinstance(x, tuple) else _stacked((x,), who)


def _stacked(values: Sequence[Any], who: str) -> Tensor:
    return torch.stack([to_tensor(value, who) for value in values])


def _inputs(x: Any, who: str) -> Inputs:
    if isinstance(x, Mapping):
        return {str(name): to_tensor(value, f"input {name!r} of {who}") for name, value in x.items()}
    if _are_several(x):
        return tuple(to_tensor(part, f"input {number} of {who}") for number, part in enumerate(x))
    if is_frame(x):
        columns = columns_of(x, who)
        x = np.stack([as_numbers(name, column, who).astype(np.float32) for name, column in columns.items()], axis=1)
    found = to_tensor(x, f"the inputs of {who}")
    if found.dim() == 0:
        raise DataError(f"Expected samples for {who}, got a single number.")
    return found


def _are_several(x: object) -> bool:
    """Whether this is a tuple of inputs with as many samples each, and not one input as a tuple of samples."""
    if not isinstance(x, tuple) or len(x) < 2 or not all(isinstance(part, Tensor | np.ndarray) for part in x):
        return False
    return len({len(part) if part.ndim else -1 for part in x}) == 1


def _single(rows: ClientSamples, fields: InputFields | None, who: str) -> Tensor:
    """The inputs in one tensor."""
    if isinstance(rows.x, Tensor):
        if fields is not None:
            raise DataError(f"Expected several inputs for {who}, as for the first client, got a single tensor.")
        return rows.x
    if fields is None:
        raise DataError(f"Expected a single tensor of inputs for {who}, as for the first client, got several.")
    return fields.pack(rows.x, who)


def _parts(x: Inputs) -> dict[str, Tensor]:
    match x:
        case Tensor():
            return {"": x}
        case tuple():
            return {str(number): part for number, part in enumerate(x)}
    return x


def _check_parts(xs: Sequence[Inputs], who: str) -> None:
    kinds = {tuple((name, tuple(part.shape[1:])) for name, part in _parts(x).items()) for x in xs}
    if len(kinds) > 1:
        shapes = sorted({shape for kind in kinds for _, shape in kind})
        found = ", ".join(map(str, shapes))
        raise DataError(f"Expected samples of one shape for {who}, got {found}. Pad or crop them.")


def _cat_inputs(xs: Sequence[Inputs]) -> Inputs:
    first = xs[0]
    if isinstance(first, Tensor):
        return torch.cat([x for x in xs if isinstance(x, Tensor)])
    joined = {name: torch.cat([_parts(x)[name] for x in xs]) for name in _parts(first)}
    return tuple(joined.values()) if isinstance(first, tuple) else joined


def _check_alike(parts: Sequence[Tensor], names: Sequence[str], what: str) -> None:
    first = parts[0]
    for part, who in zip(parts, names, strict=True):
        if part.shape[1:] != first.shape[1:]:
            raise DataError(
                f"Expected {what} like those of {names[0]} ({_kind(first)}), but {who} has {_kind(part)}. Give all "
                "clients the same columns in the same shape."
            )
        if what == "targets" and part.is_floating_point() != first.is_floating_point():
            raise DataError(
                f"Expected targets of one kind, class labels as one int64 or floats, but {names[0]} has {first.dtype} "
                f"and {who} has {part.dtype}. Convert those of {who}, with y.long() or y.float()."
            )


def _kind(part: Tensor) -> str:
    return f"{part.dtype}, shape {tuple(part.shape[1:])} per sample"


def capitalized(who: str) -> str:
    """At the beginning of a sentence."""
    return who[:1].upper() + who[1:]


def _described(data: object) -> str:
    match data:
        case None:
            return "None"
        case str() | bytes() | int() | float():
            return f"{data!r}"[:80]
        case Tensor() | np.ndarray():
            return f"a {type(data).__name__} of shape {tuple(data.shape)}"
        case tuple() | list():
            return f"a {type(data).__name__} of {len(data)}"
    return f"a {type(data).__name__}"
