"""From a table with a column that names the client to a task: roles of columns, encoding, split, model.

Held-out rows are the clients' own unless whole clients are held out, so their metrics are not covered by a guarantee,
and neither are constants of the encoding that come from the clients' rows.
"""

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from tacit.core.keys import Key
from tacit.core.losses import BinaryCrossEntropy, CrossEntropy
from tacit.core.schema import listed
from tacit.data.data_frames import find_column
from tacit.data.population import Population, Samples
from tacit.data.table_encoder import Kind, TableEncoder, as_texts, check_known, make_encoder, target_values
from tacit.data.table_split import RowSplit, client_column, clients_of, held_out_samples, split_rows, whole
from tacit.data.tables import Table, as_dates, read_table
from tacit.errors import DataError

PUBLIC_ROWS = 100  # random ones, if there are no public rows
HIDDEN = 32  # units of the default model


@dataclass(frozen=True, kw_only=True, eq=False)
class TableSettings:
    """How a table becomes a task; `Task.from_table` describes the fields."""

    target: str
    client: str | None = None
    test: Any = 0.2
    public: Any = None
    model: Any = None
    loss: Any = None
    drop: Sequence[str] = ()
    categories: Sequence[str] = ()
    encoding: str | Path | None = None
    split: Literal["rows", "clients"] = "rows"
    kind: Kind = "auto"
    classes: Sequence[str] = ()
    patient: str | None = None
    name: str = ""
    seed: int = 0

    def __post_init__(self) -> None:
        for field in ("target", "client", "patient"):  # frames may have numbers as names
            if getattr(self, field) is not None:
                object.__setattr__(self, field, str(getattr(self, field)))
        for field in ("drop", "categories", "classes"):
            given = getattr(self, field)
            object.__setattr__(self, field, (given,) if isinstance(given, str) else tuple(map(str, given)))


def task_arguments(source: Any, settings: TableSettings) -> dict[str, Any]:
    """The arguments of the task that a table makes."""
    table, target, test = read_table(source), settings.target, settings.test
    client = client_column(table, settings.client)
    inputs = input_columns(table, client, settings)
    names, parts = clients_of(table, client)
    key = Key.from_seed(settings.seed, "table")
    persons = np.array(as_texts(table.columns[settings.patient])) if settings.patient else None
    rows = split_rows(parts, test, settings.split, key, persons) if isinstance(test, int | float) else whole(parts)
    public = None if settings.public is None else read_table(settings.public, "the public table")
    classes = tuple(settings.classes)
    values = target_values(table if public is None else public, target, settings.kind, classes)
    encoder, found = make_encoder(
        table, target, inputs, settings.categories, values, rows.training, public, settings.encoding
    )
    x, y = encoder.samples(table)
    held, overlap = held_out_samples(rows, test, encoder, x, y, settings.split)
    public_samples: Samples | None = encoder.random(PUBLIC_ROWS, key) if public is None else encoder.samples(public)
    model = sized_model(settings.model, x.shape[1], encoder.outputs)
    loss = encoder.loss if settings.loss is None else settings.loss
    if isinstance(loss, BinaryCrossEntropy) and settings.model is not None and _outputs_of(model, x) == 2:
        loss = CrossEntropy()  # a model with an output for each of the two classes
    if not isinstance(loss, BinaryCrossEntropy) and len(encoder.classes) == 2:
        y, held, public_samples = y[:, 0].long(), _as_classes(held), _as_classes(public_samples)
    return {
        "model": model,
        "clients": Population.split(x, y, rows.clients, [names[each] for each in rows.numbers]),
        "test": held,
        "owners": rows.owners if held is not None and isinstance(test, int | float) else None,
        "loss": loss,
        "public": public_samples,
        "name": settings.name or Path(table.name).name.split(".")[0],
        "preprocessing": found if classes or public is not None else found.with_target(target),
        "test_overlap": overlap,
        "patient": None if persons is None else [persons[part.numpy()] for part in rows.clients],
        "encoder": encoder,
        "notes": tuple(_notes(table, encoder, rows, x, random_public=public is None)),
    }


def input_columns(table: Table, client: str, settings: TableSettings) -> list[str]:
    """The columns that are inputs, after all roles were checked."""
    for role, column in (("client", client), ("patient", settings.patient)):
        if column == settings.target:
            raise DataError(f"Expected different columns as {role} and target of {table.name}, got {column!r} as both.")
    dropped = [find_column(table.columns, name, table.name, "drop") for name in settings.drop]
    roles = {"target": settings.target, "client": client} | ({"patient": settings.patient} if settings.patient else {})
    for role, column in roles.items():
        find_column(table.columns, column, table.name, role)
        check_known(table, column, role)
        if column in dropped:
            raise DataError(f"Expected {column!r} of {table.name} either as {role} or in drop, got both.")
    inputs = [each for each in table.columns if each not in (*roles.values(), *dropped)]
    if not inputs:
        raise DataError(f"Expected {table.name} to have columns beside {client!r} and {settings.target!r}, got none.")
    return inputs


def hidden_layer(inputs: int, outputs: int, hidden: int = HIDDEN) -> nn.Module:
    """The default model: one hidden layer; without units, a linear model."""
    if hidden == 0:
        return nn.Linear(inputs, outputs)
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, outputs))


def _as_classes(samples: Samples | None) -> Samples | None:
    """Two classes as the numbers 0 and 1."""
    return None if samples is None else (samples[0], samples[1][:, 0].long())


def sized_model(model: Any, inputs: int, outputs: int) -> nn.Module | Callable[[], nn.Module]:
    """The model that was given, or a function of the numbers of inputs and outputs; none: one hidden layer."""
    if isinstance(model, nn.Module):
        return model
    make: Callable[..., nn.Module] = hidden_layer if model is None else model
    try:
        wanted = inspect.signature(make).parameters
    except (TypeError, ValueError):
        return make
    sizes = {name: size for name, size in (("inputs", inputs), ("outputs", outputs)) if name in wanted}
    return (lambda: make(**sizes)) if sizes else make


def _outputs_of(model: nn.Module | Callable[[], nn.Module], x: Tensor) -> int:
    """How many outputs a model has for a sample; 0 if it does not accept it."""
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        try:
            made = model if isinstance(model, nn.Module) else model()
            return int(made(x[:2]).shape[-1])
        except Exception:  # a user's model may fail in any way; the task reports it
            return 0


def _notes(table: Table, encoder: TableEncoder, rows: RowSplit, x: Tensor, *, random_public: bool) -> Iterable[str]:
    sizes = sorted(len(part) for part in rows.clients)
    held = 0 if rows.held_out is None else len(rows.held_out)
    spread = f"{sizes[0]}" if sizes[0] == sizes[-1] else f"{sizes[0]} to {sizes[-1]}"
    yield (
        f"{table.name}: {len(sizes)} clients with {spread} rows to train on, {held} held out; {x.shape[1]} inputs from "
        f"{len(encoder.numbers) + len(encoder.categories)} columns."
    )
    dates = [name for name in encoder.numbers if as_dates(table.columns[name])]
    if dates:
        yield f"Dates are numbers of days: {listed(dates)}."
    texts = {name: len(values) for name, values in encoder.codebook.categories.items()}
    if texts:
        yield f"Categories: {', '.join(f'{name} ({count} values)' for name, count in texts.items())}."
    if encoder.classes == tuple(map(str, range(len(encoder.classes)))):
        pass  # the numbers themselves
    elif encoder.classes:
        yield f"Classes of {encoder.target}: {', '.join(f'{v} is {n}' for n, v in enumerate(encoder.classes))}."
    else:
        low, high = encoder.limits
        yield f"{encoder.target} is a number: {low:g} to {high:g} are scaled to 0 to 1, and so are its errors."
    if random_public:
        yield (
            f"No public rows were given: methods that need them choose coordinates and clipping bounds on "
            f"{PUBLIC_ROWS} random rows, which depend on no data and fit less well."
        )
