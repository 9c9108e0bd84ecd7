"""A task from a table with a column that names the client: roles of columns, encoding, split, model.

Held-out rows are the clients' own unless whole clients are held out, so their metrics are not covered by a guarantee,
and neither are constants of the encoding that come from the clients' rows.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tacit.core.keys import Key
from tacit.core.losses import BinaryCrossEntropy, CrossEntropy
from tacit.core.schema import list_names
from tacit.core.standardised import StandardisedLinear
from tacit.data.adapted import attempt
from tacit.data.column_doubts import RARE_ROWS, doubt_inputs
from tacit.data.data_frames import find_column
from tacit.data.encoding import MAX_INPUTS, Encoding, Preprocessing, TargetColumn, limits_of, show_limit
from tacit.data.population import Population, Samples, by_key, owners_of
from tacit.data.tables import Table, factorize, read_table
from tacit.data.written_numbers import EXACT
from tacit.errors import DataError, expect, one_of

TABLE_MODELS = ("logistic", "mlp", "standardised")
MAX_CATEGORIES = 100  # different values of a column that is not an identifier
MAX_CLASSES = 20  # different whole numbers of a target that is a class
TargetKind = Literal["auto", "classes", "number"]
PUBLIC_ROWS = 100  # random ones, if there are no public rows
HIDDEN = 32  # units of the default model
MAX_WEIGHTS = 1 << 26  # 256 MiB: the sizes come from a manifest or a plan, which may be hostile


@dataclass(frozen=True, kw_only=True, eq=False)
class TableSettings:
    """The settings of a task from a table; `Task.from_table` describes the fields."""

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
    kind: TargetKind = "auto"
    classes: Sequence[str] = ()
    person: str | None = None
    name: str = ""
    seed: int = 0

    def __post_init__(self) -> None:
        for field in ("target", "client", "person"):  # frames may have numbers as names
            if getattr(self, field) is not None:
                object.__setattr__(self, field, str(getattr(self, field)))
        for field in ("drop", "categories", "classes"):
            value = getattr(self, field)
            object.__setattr__(self, field, (value,) if isinstance(value, str) else tuple(map(str, value)))

    @property
    def fraction(self) -> float | None:
        """The fraction of rows that is held out; None: a separate table, or nothing."""
        return self.test if isinstance(self.test, int | float) else None

    @property
    def test_table(self) -> Table | None:
        return None if self.test is None or self.fraction is not None else read_table(self.test, "the test table")

    @property
    def public_table(self) -> Table | None:
        return None if self.public is None else read_table(self.public, "the public table")

    def with_roles_of(self, declared: Encoding, table: Table) -> "TableSettings":
        """The same, with the columns' roles from a file where none are given."""
        more = [name for name in declared.dropped if name in table.columns and name not in self.drop]
        client = self.client if self.client or table.client else declared.client or None
        return replace(self, client=client, person=self.person or declared.person or None, drop=(*self.drop, *more))


def task_arguments(source: Any, given: TableSettings) -> dict[str, Any]:
    """The arguments of the task of a table."""
    table, declared = read_table(source, partial=True), read_encoding(given)
    settings = given if declared is None else given.with_roles_of(declared, table)
    table.check_complete({*settings.drop, *(() if declared is None else declared.columns)})
    client = client_column(table, settings.client)
    inputs = input_columns(table, client, settings)
    names, parts = clients_of(table, client)
    key, fraction, test = Key.from_seed(settings.seed, "table"), settings.fraction, settings.test_table
    persons = np.array(table.texts(settings.person)) if settings.person else None
    rows = whole(parts) if fraction is None else split_rows(parts, fraction, settings.split, key, persons)
    public = settings.public_table
    encoding = make_encoding(table, client, inputs, settings, rows.training, public)
    x = encoding.inputs(table)
    model = build_model(settings.model, x.shape[1], encoding.known_target.outputs)
    loss = _loss(settings, encoding, model, x)
    y = encoding.targets(table, loss)
    held_out = None if test is None else encoding.samples(test, loss)
    held_persons = test.texts(settings.person) if test is not None and settings.person in test.columns else None
    if rows.held_out is not None:
        held_out = x[rows.held_out], y[rows.held_out]
        held_persons = None if persons is None else persons[rows.held_out.numpy()]
    own = rows.held_out is not None and settings.split == "rows"
    return {
        "model": model,
        "clients": Population.split(x, y, rows.clients, [names[each] for each in rows.numbers]),
        "test": held_out,
        "owners": rows.owners,
        "loss": loss,
        "public": public_samples(encoding, public, key, loss),
        "name": settings.name or Path(table.name).name.split(".")[0],
        "preprocessing": encoding.preprocessing,
        "test_overlap": "intended" if own else "coincidental",
        "person": None if persons is None else [persons[part.numpy()] for part in rows.clients],
        "test_person": held_persons,
        "encoding": encoding,
        "notes": (
            *_notes(table, encoding, rows, x, random_public=public is None),
            *doubt_inputs(table, inputs, settings.target),
        ),
    }


def public_samples(encoding: Encoding, public: Table | None, key: Key, loss: object) -> Samples:
    """The samples of public rows; without any, random ones, which depend on no data."""
    return encoding.random(PUBLIC_ROWS, key, loss) if public is None else encoding.samples(public, loss)


def input_columns(table: Table, client: str, settings: TableSettings) -> list[str]:
    """The input columns; raises `DataError` for conflicting roles."""
    for role, column in (("client", client), ("person", settings.person)):
        if column == settings.target:
            raise DataError(f"Expected different columns as {role} and target of {table.name}, got {column!r} as both.")
    dropped = [find_column(table.columns, name, table.name, "drop") for name in settings.drop]
    roles = {"target": settings.target, "client": client} | ({"person": settings.person} if settings.person else {})
    for role, column in roles.items():
        table.check_known(column, role)
        if column in dropped:
            raise DataError(f"Expected {column!r} of {table.name} either as {role} or in drop, got both.")
    inputs = [each for each in table.columns if each not in (*roles.values(), *dropped)]
    if not inputs:
        raise DataError(f"Expected {table.name} to have columns beside {client!r} and {settings.target!r}, got none.")
    return inputs


def read_encoding(settings: TableSettings) -> Encoding | None:
    """The encoding in a file; None: there is no file, and constants come from rows."""
    return None if settings.encoding in (None, "public") else Encoding.read(settings.encoding or "")


def make_encoding(
    table: Table,
    client: str,
    inputs: Sequence[str],
    settings: TableSettings,
    training: NDArray[np.int64],
    public: Table | None,
) -> Encoding:
    """The encoding of a table's inputs and target, and the source of its constants."""
    declared = read_encoding(settings)
    if declared is None:
        base = _fit(table, inputs, settings, training, public)
    else:
        base = declared.for_inputs(inputs, table.name, Path(settings.encoding or ""))
    target = base.target
    private = target is None and not settings.classes and public is None
    if settings.classes or target is None:
        target = _target_of(table if public is None else public, settings)
    elif target.name != settings.target:
        raise DataError(f"Expected the target {target.name!r}, which {settings.encoding} has, got {settings.target!r}.")
    return replace(
        base,
        target=target,
        client=client,
        person=settings.person or "",
        dropped=tuple(settings.drop),
        preprocessing=base.preprocessing.with_target(target.name) if private else base.preprocessing,
    )


def _fit(
    table: Table, inputs: Sequence[str], settings: TableSettings, training: NDArray[np.int64], public: Table | None
) -> Encoding:
    """The encoding with constants from public rows, if there are any, or from the training rows."""
    for name in settings.categories:
        find_column(inputs, name, table.name, "categories")
    expect(
        settings.encoding is None or public is not None,
        "public rows for encoding='public', got none",
        "Give public.",
    )
    texts = [name for name in inputs if name in settings.categories or table.columns[name].dtype.kind == "O"]
    numbers = [name for name in inputs if name not in texts]
    source, rows = (table, training) if public is None else (public, np.arange(public.rows))
    unclear = [name for name in inputs if name in table.ambiguous_columns and name not in settings.categories]
    problems = [
        *(table.ambiguous_columns[name] for name in unclear),
        *_category_problems(source, [name for name in texts if name not in unclear]),
        *filter(None, map(table.infinity, numbers)),
    ]
    if problems:  # all of them, not one a run
        raise DataError(" ".join(problems))
    encoding = Encoding.of(source, numbers, texts, rows)
    where = "all training rows" if public is None else f"{len(rows)} public rows"
    detail = f"minima, maxima and categories are those of {where}."
    if public is None:
        detail = f"{detail} A file that declares them (encoding=...) avoids it."
        return replace(encoding, preprocessing=Preprocessing("private", detail))
    return replace(encoding, preprocessing=Preprocessing("public", detail.capitalize()))


def _target_of(table: Table, settings: TableSettings) -> TargetColumn:
    """The classes of the target, or its limits."""
    target, kind = settings.target, settings.kind
    if settings.classes:
        return TargetColumn(target, tuple(settings.classes))
    column = table.column(target, "target")
    expect(kind in ("auto", "classes", "number"), f"kind={kind!r} to be one of auto, classes, number")
    if kind != "classes":
        table.check_readable(target)
    values = sorted(factorize(column)[0], key=_order)
    whole = column.dtype.kind == "f" and bool((column == np.round(column)).all())
    if whole and float(np.abs(column).max(initial=0.0)) > EXACT:  # such as 1e30: its neighbours are the same class
        whole = False
        expect(kind != "classes", f"classes of {target!r} in {table.name} as texts, or as numbers up to 2^53")
    classes = column.dtype.kind == "O" or (whole and len(values) <= MAX_CLASSES)
    if len(values) < 2:
        raise DataError(
            f"Expected different values of {target!r} in {table.name}, got only {values[0]!r} in {table.rows} rows: "
            "there is nothing to learn."
        )
    if kind == "number" or (kind == "auto" and not classes):
        return TargetColumn(target, limits=limits_of(table.numbers(target), dates=table.has_dates(target)))
    if len(values) > MAX_CATEGORIES:
        raise DataError(
            f"Expected at most {MAX_CATEGORIES} classes of {target!r} in {table.name}, got {len(values)}. Is it a "
            "number (kind='number'), or another column?"
        )
    return TargetColumn(target, tuple(values))


def _order(text: str) -> tuple[float, str]:
    """Numbers by their size, then texts."""
    try:
        return float(text), text
    except ValueError:
        return float("inf"), text


def _category_problems(table: Table, names: Iterable[str]) -> Iterator[str]:
    """A sentence for every column of texts with too many values."""
    for name in names:
        values, codes = factorize(table.column(name, "input"))
        known = [(text, int(count)) for text, count in zip(values, np.bincount(codes), strict=True) if text]
        if len(known) > MAX_CATEGORIES:
            common = sum(count >= RARE_ROWS for _, count in known)
            yield (
                f"Expected at most {MAX_CATEGORIES} categories in column {name!r} of {table.name}, got {len(known)}, "
                f"such as {known[0][0]!r}, {common} of them in at least {RARE_ROWS} rows. Declare those that matter in "
                "an encoding, and any other value sets no input (tacit data look --draft writes one); or leave it out: "
                f"drop=[{name!r}] (on the command line --drop {name})."
            )


@dataclass(frozen=True)
class TableModel:
    """A built-in model for tables, by name.

    `logistic` is linear, `standardised` is linear with inputs that the first round of dp-fedsgd standardises, and `mlp`
    has one hidden layer of this many units. A model that the user did not choose may give way to one that suits the
    method.

    Example:
        >>> TableModel("logistic", inputs=3, outputs=1)()
        Linear(in_features=3, out_features=1, bias=True)
    """

    name: Literal["logistic", "mlp", "standardised"] = "mlp"
    hidden: int = HIDDEN
    inputs: int = 1
    outputs: int = 1
    chosen: bool = True

    def __post_init__(self) -> None:
        one_of(TABLE_MODELS, model=self.name)
        sizes = (self.inputs, self.outputs, self.hidden)
        expect(
            all(1 <= size <= MAX_INPUTS for size in sizes), f"1 to {MAX_INPUTS} inputs, outputs and units, got {sizes}"
        )
        expect(self.weights <= MAX_WEIGHTS, f"at most {MAX_WEIGHTS} weights of a model for tables, got {self.weights}")

    @property
    def weights(self) -> int:
        """The number of weights, without biases."""
        if self.name != "mlp":
            return self.inputs * self.outputs
        return self.hidden * (self.inputs + self.outputs)

    def __call__(self) -> nn.Module:
        """The module, with random weights."""
        if self.name == "logistic":
            return nn.Linear(self.inputs, self.outputs)
        if self.name == "standardised":
            return StandardisedLinear(self.inputs, self.outputs)
        hidden = nn.Linear(self.inputs, self.hidden)
        return nn.Sequential(nn.Flatten(), hidden, nn.ReLU(), nn.Linear(self.hidden, self.outputs))


def _loss(settings: TableSettings, encoding: Encoding, model: Any, x: Tensor) -> Any:
    """The given loss, or the one that fits the target and a model with an output for each of two classes."""
    loss = encoding.known_target.loss if settings.loss is None else settings.loss
    if isinstance(loss, BinaryCrossEntropy) and settings.model is not None and _outputs_of(model, x) == 2:
        return CrossEntropy()
    return loss


def build_model(model: Any, inputs: int, outputs: int) -> nn.Module | Callable[[], nn.Module]:
    """The given model, by name or as a function of the numbers of inputs and outputs; none: `mlp`."""
    if isinstance(model, nn.Module):
        return model
    named = model
    if model is None or isinstance(model, str):
        named = TableModel(model or "mlp", chosen=model is not None)  # type: ignore[arg-type]  # which checks the name
    if isinstance(named, TableModel):
        return replace(named, inputs=inputs, outputs=outputs)
    make: Callable[..., nn.Module] = model
    try:
        parameters = inspect.signature(make).parameters
    except (TypeError, ValueError):
        return make
    sizes = {name: size for name, size in (("inputs", inputs), ("outputs", outputs)) if name in parameters}
    return (lambda: make(**sizes)) if sizes else make


def _outputs_of(model: nn.Module | Callable[[], nn.Module], x: Tensor) -> int:
    """The number of a model's outputs for a sample; 0 if it does not accept it."""

    def width() -> int:
        module = model if isinstance(model, nn.Module) else model()
        return int(module(x[:2]).shape[-1])

    return attempt(width) or 0


def _notes(table: Table, encoding: Encoding, rows: "RowSplit", x: Tensor, *, random_public: bool) -> Iterable[str]:
    sizes = sorted(len(part) for part in rows.clients)
    held = 0 if rows.held_out is None else len(rows.held_out)
    spread = f"{sizes[0]}" if sizes[0] == sizes[-1] else f"{sizes[0]} to {sizes[-1]}"
    yield (
        f"{table.name}: {len(sizes)} clients with {spread} rows to train on, {held} held out; {x.shape[1]} inputs from "
        f"{len(encoding.columns)} columns."
    )
    dates = [name for name in encoding.numbers if table.has_dates(name)]
    if dates:
        yield f"Dates are numbers of days: {list_names(dates)}."
    texts = {name: len(values) for name, values in encoding.categories.items()}
    if texts:
        yield f"Categories: {', '.join(f'{name} ({count} values)' for name, count in texts.items())}."
    target = encoding.known_target
    if not target.classes:
        low, high = map(show_limit, target.limits or ())
        yield f"{target.name} is a number: {low} to {high} are scaled to 0 to 1, and so are its errors."
    elif target.classes != tuple(map(str, range(len(target.classes)))):  # the numbers themselves
        yield f"Classes of {target.name}: {', '.join(f'{v} is {n}' for n, v in enumerate(target.classes))}."
    if random_public:
        yield (
            f"No public rows were given: methods that need them choose coordinates and clipping bounds on "
            f"{PUBLIC_ROWS} random rows, which depend on no data and fit less well."
        )


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
            f"Expected the column of {table.name} that names the client, got none; it has {list_names(table.columns)}. "
            "Add client='...' (on the command line --client ...)."
        )
    return client


def clients_of(table: Table, column: str) -> tuple[list[str], list[Tensor]]:
    """The names of the clients, and the rows of each."""
    names, numbers = factorize(table.columns[column])
    return names, by_key(numbers)


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
        held_parts = [parts[each] for each in held]
        return RowSplit([parts[each] for each in kept], kept, torch.cat(held_parts), owners_of(held_parts))
    divided = [_divide(part, test, None if persons is None else persons[part.numpy()], generator) for part in parts]
    rest, held_rows = [each for each, _ in divided], [each for _, each in divided]
    if not sum(map(len, held_rows)):
        return whole(rest)
    return RowSplit(rest, list(range(len(parts))), torch.cat(held_rows), owners_of(held_rows))


def _divide(
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
