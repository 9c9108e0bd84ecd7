"""A learning task: data partitioned over clients, a model and a loss.

The population keeps all samples in one pool and the indices of every client's samples. Ten thousand clients therefore
cost no more than their indices, clients may share samples (label shards with repetition), and worker processes share
one copy.
"""

import copy
import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, Self, overload

import torch
from torch import Tensor, nn

from tacit.core import sample_intake
from tacit.core.adapted import AdaptedModel, InputFields, Output
from tacit.core.keys import Key
from tacit.core.losses import (
    BinaryCrossEntropy,
    CrossEntropy,
    MeanSquared,
    RootBrier,
    RootMeanSquared,
    SequenceCrossEntropy,
    as_loss,
)
from tacit.core.overlap import find_overlap
from tacit.errors import DataError, ModelError, expect

Samples = tuple[Tensor, Tensor]
TestOverlap = Literal["refused", "coincidental", "intended"]
HALF = (torch.float16, torch.bfloat16)
CHECKED_AT_ONCE = 1 << 24  # numbers


@dataclass(frozen=True, eq=False)
class Population(Sequence[Samples]):
    """The data of all clients: a pool of samples, and the indices of every client's samples.

    Attributes:
        x: the inputs of the pool.
        y: the targets of the pool.
        sample_indices: indices into the pool, those of client 0 first.
        offsets: (clients + 1,); client i has `sample_indices[offsets[i]:offsets[i + 1]]`.
        names: what the clients are called; empty: their numbers.
        is_elsewhere: whether the clients' data are not on this machine.

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
    is_elsewhere: bool = False

    @classmethod
    def split(cls, x: Any, y: Any, parts: Sequence[Any], names: Sequence[str] = ()) -> Self:
        """A population from a pool, in tensors or arrays, and the indices of each client's samples."""
        expect(len(parts) > 0, "at least one client, got none")
        indices = [
            sample_intake.to_tensor(part, f"the indices of client {number}") for number, part in enumerate(parts)
        ]
        sizes = torch.tensor([len(part) for part in indices])
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)])
        inputs, targets = (
            sample_intake.to_tensor(x, "the inputs of the pool"),
            sample_intake.to_tensor(y, "the targets of the pool"),
        )
        return cls(inputs, targets, torch.cat(indices).long(), offsets, tuple(names))

    @classmethod
    def of(cls, clients: Sequence[Samples]) -> "Population":
        """A population from any sequence of `(x, y)` pairs; a population is returned as it is."""
        return clients if isinstance(clients, Population) else _read_clients(clients, None, None)[0]

    def label(self, client: int) -> str:
        """What error messages call a client."""
        return f"client {self.names[client]!r}" if self.names else f"client {client}"

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
        return cls(x, y, torch.zeros(0, dtype=torch.int64), samples * torch.arange(clients + 1), is_elsewhere=True)

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
            with the run's seed set. Half-precision parameters are trained as float32.
        clients: one pair `(x, y)` per client, of any size, in any iterable, in a dictionary by the clients' names, or
            as a `Population`. Pairs of tensors, NumPy arrays (memory-mapped ones stay on disk) or lists; instead of a
            pair a data frame or a dictionary of columns with `target`, a `torch.utils.data.Dataset` or `DataLoader`, a
            data set of Hugging Face. Inputs may be a dictionary, which the model gets as keyword arguments, or a tuple.
        test: held-out data in the same form; without it, no metrics are measured.
        owners: the number of the held-out client that each held-out sample belongs to. If a method trains several
            hypotheses, each of these clients uses the one with the smallest loss on its samples; without owners, all
            samples belong to one client.
        loss: `CrossEntropy()` (the default; for labels (samples, T), `SequenceCrossEntropy()`), `MeanSquared()`,
            `BinaryCrossEntropy()`, `RootMeanSquared()`, `RootBrier()`, a loss of `torch.nn`, any function of outputs
            and targets, or your own `Loss`.
        public: data that is not private, in the same form; some methods choose coordinates or bounds from it.
        name: the task's name in reports.
        preprocessing: what the constants in the inputs were computed from; the guarantee lists what it does not cover.
        test_overlap: held-out samples that a client owns are `refused`; `coincidental` if different units may have
            equal samples, as in a table with few columns; `intended` if they are the clients' own, which the guarantee
            then lists as not covered. Only `refused` compares the samples.
        target: the column to predict, if clients are frames or dictionaries.
        output: which part of the model's output is the prediction, if it returns a tuple (a number), a dictionary or
            record (a name), or anything else (a function of it).
        inputs: how several inputs are packed; filled in.
        encoder: turns rows of a table into inputs, for tasks that were made `from_table`.
        notes: what users should know about how the data were read, a sentence each.

    Example:
        >>> import numpy as np
        >>> clients = {"Rome": (np.zeros((4, 3)), [0, 1, 0, 1]), "Oslo": (np.ones((2, 3)), [1, 0])}
        >>> task = Task(model=lambda: nn.Linear(3, 2), clients=clients)
        >>> task.population.names, task.population.sizes.tolist(), task.population.x.dtype
        (('Rome', 'Oslo'), [4, 2], torch.float32)
    """

    model: nn.Module | Callable[[], nn.Module]
    clients: Any
    test: Any = None
    owners: Tensor | None = None
    loss: Any = None
    public: Any = None
    name: str = "custom"
    preprocessing: Preprocessing = Preprocessing()
    test_overlap: TestOverlap = "refused"
    target: str | None = None
    output: Output | None = None
    inputs: InputFields | None = None
    encoder: Callable[[Any], Tensor] | None = None
    notes: tuple[str, ...] = ()

    @classmethod
    def from_table(
        cls,
        table: Any,
        *,
        client: str | None = None,
        target: str,
        test: Any = 0.2,
        public: Any = None,
        model: Any = None,
        loss: Any = None,
        **options: Any,
    ) -> "Task":
        """A task from one table with a column that names the client, or from a folder with one file per client.

        Numbers are scaled, categories and missing values get columns of their own, and the split, the model and the
        loss are chosen by what the columns contain. `task.encoder(rows)` encodes new rows for the trained model.

        Args:
            table: a CSV file (also `.csv.gz`) or Parquet file, a folder of them, a frame of pandas, Polars or pyarrow,
                a dictionary of columns, or a dictionary of tables by client.
            client: the column that names the client; not for one table per client.
            target: the column to predict.
            test: the fraction of rows that is held out, or a table of its own.
            public: a table of public rows; None: random rows, which depend on no data.
            model: a module, or a function of `inputs` and `outputs` that returns one; None: one hidden layer.
            loss: None: cross-entropy for classes, squared error for numbers.
            **options: `drop` and `categories`, columns to leave out and columns of numbers that are categories;
                `encoding`, a TOML file that declares minima, maxima and categories, or `public` (None: those of the
                clients' rows, which no guarantee covers); `split`, which holds out `rows` of each client or whole
                `clients`; `kind` of the target, `classes` or `number`; `classes`, its values, where they are
                declared to be public; `name` and `seed`.

        Example:
            >>> rows = {"hospital": ["A", "B"] * 10, "age": range(20), "sex": ["f", "m"] * 10, "died": [0, 1] * 10}
            >>> task = Task.from_table(rows, client="hospital", target="died")
            >>> len(task.population), task.population.names, task.population.x.shape, task.preprocessing.source
            (2, ('A', 'B'), torch.Size([20, 3]), 'private')
        """
        from tacit.tasks.intake import task_from_table  # the one import upwards, of a convenience

        return task_from_table(
            table, client=client, target=target, test=test, public=public, model=model, loss=loss, **options
        )

    def __post_init__(self) -> None:
        set_field = partial(object.__setattr__, self)
        _check_model(self.model)
        population, inputs = _read_clients(self.clients, self.target, self.inputs)
        held = {name: _read_held(getattr(self, name), name, self.target, inputs) for name in ("test", "public")}
        loss = _loss_for(self.loss, population.y)
        set_field("loss", loss)
        set_field("inputs", inputs)
        cast = _Casts.of(population, loss, self.model, inputs, self.output)
        x = cast.x(population.x)
        set_field("clients", replace(population, x=x, y=cast.y(population.y)))
        for name, samples in held.items():
            set_field(name, None if samples is None else (_cast_like(samples[0], x), cast.y(samples[1])))
        self._check()

    def _check(self) -> None:
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

    def without_code(self) -> "Task":
        """The same data and loss, without the functions that make the model and encode rows."""
        bare = copy.copy(self)
        object.__setattr__(bare, "model", nn.Identity())
        object.__setattr__(bare, "encoder", None)
        return bare

    def make_model(self, key: Key) -> nn.Module:
        """The module with its initial weights, as the engine calls it: one tensor in, one tensor out."""
        if isinstance(self.model, nn.Module):
            model = self.model
        else:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(key.integer())
                model = self.model()
        if not isinstance(model, nn.Module):
            raise ModelError(f"Expected the task's model to be a torch.nn.Module, got {type(model).__name__}.")
        return adapted(_full_precision(model), self.population.x, self.inputs, self.output)


def adapted(model: nn.Module, x: Tensor, inputs: InputFields | None, output: Output | None) -> nn.Module:
    """The module, wrapped if its inputs or its output are not a single tensor, or if it does not take whole numbers."""
    if inputs is not None or output is not None:
        model = AdaptedModel(model, inputs, output)
    if inputs is None and not x.is_floating_point() and not _accepts(model, x[:2]):
        floats = AdaptedModel(model, floats=_floats_of(model))
        return floats if _accepts(floats, x[:2]) else model
    return model


def _full_precision(model: nn.Module) -> nn.Module:
    half = {parameter.dtype for parameter in model.parameters()} & {*HALF}
    if not half:
        return model
    warnings.warn(
        f"The model has {', '.join(sorted(map(str, half)))} parameters. They are trained, clipped and sent as "
        "torch.float32: updates are too small for half precision. Convert the trained model back if you need to.",
        stacklevel=2,
    )
    return copy.deepcopy(model).float()


def _accepts(model: nn.Module, x: Tensor) -> bool:
    """Whether the model computes something from these samples."""
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        try:
            model(x)
        except (RuntimeError, ValueError, TypeError, IndexError):
            return False
    return True


def _floats_of(model: nn.Module) -> torch.dtype:
    """The type in which the model computes."""
    found = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    return torch.float32 if found in HALF else found


@dataclass(frozen=True, eq=False)
class _Casts:
    """The types that inputs and targets are converted to; None: they stay as they are."""

    inputs: torch.dtype | None
    loss: Any
    floats: torch.dtype

    @classmethod
    def of(
        cls, population: Population, loss: Any, model: Any, inputs: InputFields | None, output: Output | None
    ) -> "_Casts":
        """By what the model computes with. A function is called once, where the data do not decide."""
        x = population.x
        if x.dtype == torch.float32 and not isinstance(model, nn.Module):
            return cls(None, loss, torch.float32)
        probe = model if isinstance(model, nn.Module) else _built(model)
        floats = torch.float32 if probe is None else _floats_of(probe)
        if inputs is not None or sample_intake.is_mapped(x) or probe is None:
            return cls(None, loss, floats)
        if x.is_floating_point():
            return cls(floats, loss, floats)
        model = probe if output is None else AdaptedModel(probe, None, output)
        if x.dtype == torch.bool or (not _accepts(model, x[:2]) and _accepts(model, x[:2].to(floats))):
            return cls(floats, loss, floats)
        return cls(torch.int64 if _accepts(model, x[:2].long()) else None, loss, floats)

    def x(self, x: Tensor) -> Tensor:
        return x if self.inputs is None or x.dtype == self.inputs else x.to(self.inputs)

    def y(self, y: Tensor) -> Tensor:
        if type(self.loss) in (MeanSquared, RootMeanSquared, BinaryCrossEntropy):
            y = y.to(self.floats)
            return y[:, None] if y.dim() == 1 else y
        if y.is_floating_point():
            return y.to(self.floats)
        classes = isinstance(self.loss, CrossEntropy | RootBrier) and y.dim() == 2 and y.shape[1] == 1
        return (y[:, 0] if classes else y).long()


def _cast_like(x: Tensor, pool: Tensor) -> Tensor:
    return x.to(pool.dtype) if x.dtype != pool.dtype and torch.can_cast(x.dtype, pool.dtype) else x


def _built(model: Callable[[], nn.Module]) -> nn.Module | None:
    with torch.random.fork_rng(devices=[]):
        try:
            found = model()
        except Exception:  # a user's function may fail in any way, and will do so again where it is reported
            return None
    return found if isinstance(found, nn.Module) else None


def _check_model(model: object) -> None:
    wanted = "Expected the task's model to be a torch.nn.Module or a function without arguments that returns one"
    if isinstance(model, nn.Module):
        return
    if not callable(model):
        raise ModelError(f"{wanted}, got {type(model).__name__}. Write model=lambda: ..., with the module's arguments.")
    try:
        inspect.signature(model).bind()
    except TypeError as error:
        name = getattr(model, "__name__", type(model).__name__)
        raise ModelError(f"{wanted}, but {name} needs arguments: {error}. Write model=lambda: {name}(...).") from error
    except ValueError:
        return  # no signature to look at


def _loss_for(loss: object, y: Tensor) -> Any:
    """The loss that was given; cross-entropy over every position, if labels have several."""
    found = as_loss(loss)
    several = y.dim() >= 2 and y.shape[1:] != (1,) and not y.is_floating_point()
    if type(found) is CrossEntropy and several and not _one_hot(y):
        return SequenceCrossEntropy(found.weight)
    return found


def _one_hot(y: Tensor) -> bool:
    return y.dim() == 2 and bool((y.sum(1) == 1).all()) and bool(((y == 0) | (y == 1)).all())


def _read_clients(
    clients: object, target: str | None, inputs: InputFields | None
) -> tuple[Population, InputFields | None]:
    """The clients' data in one pool, and how their inputs are packed."""
    if isinstance(clients, Population):
        return clients, inputs
    names, rows = [], []
    for who, data in sample_intake.each_client(clients):
        names.append(who)
        rows.append(sample_intake.read_rows(data, who, target))
    expect(len(rows) > 0, "at least one client, got none")
    first = rows[0].x
    fields = None if isinstance(first, Tensor) else inputs or InputFields.of(first)
    x, y = sample_intake.pool(rows, names, fields)
    parts = torch.split(torch.arange(len(x)), [each.count for each in rows])
    named = tuple(str(name) for name in clients) if isinstance(clients, Mapping) else ()
    return Population.split(x, y, parts, named), fields


def _read_held(data: object, name: str, target: str | None, inputs: InputFields | None) -> Samples | None:
    """Held-out or public data."""
    if data is None:
        return None
    who = f"the {'held-out' if name == 'test' else name} data"
    rows = sample_intake.read_rows(data, who, target)
    if isinstance(rows.x, Tensor):  # of one input, or packed before
        return rows.x, rows.y
    return sample_intake.pool([rows], [who], inputs)


def _check_population(population: Population) -> None:
    if population.is_elsewhere:
        return
    sizes = population.sizes
    if int(sizes.min()) == 0:
        empty = (sizes == 0).nonzero().flatten().tolist()
        raise DataError(
            f"Expected every client to have data, but {population.label(empty[0])} has none "
            f"({len(empty)} of {len(sizes)} are empty). Remove empty clients."
        )
    if len(population.x) != len(population.y):
        raise DataError(f"Expected one target per sample, got {len(population.x)} and {len(population.y)}.")
    if int(population.sample_indices.min()) < 0 or int(population.sample_indices.max()) >= len(population.x):
        raise DataError(f"Expected the clients' sample indices in [0, {len(population.x)}), the size of the pool.")
    if not _finite(population.x):
        raise DataError(
            f"Expected finite data, but {_non_finite_client(population)} has NaN or infinite values. Remove or fill "
            "them, for example with torch.nan_to_num(x)."
        )


def _finite(x: Tensor) -> bool:
    """Whether all numbers are finite; a part at a time, because they may be on disk."""
    if not x.is_floating_point():
        return True
    rows = max(1, CHECKED_AT_ONCE // max(1, x[:1].numel()))
    return all(bool(torch.isfinite(part).all()) for part in torch.split(x, rows))


def _non_finite_client(population: Population) -> str:
    non_finite = ~torch.isfinite(population.x).flatten(1).all(1)
    where = non_finite[population.sample_indices].nonzero().flatten()
    if len(where) == 0:
        return "a sample that no client owns"
    client = int(torch.searchsorted(population.offsets, where[0], right=True)) - 1
    return f"{population.label(client)} (its sample {int(where[0] - population.offsets[client])})"


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
    if not _finite(x):
        raise DataError(f"Expected finite {name} data, got NaN or infinite values. Remove or fill them.")
