"""A learning task: data partitioned over clients, a model and a loss."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn

from tacit.core.keys import Key
from tacit.core.losses import (
    BinaryCrossEntropy,
    CrossEntropy,
    FunctionLoss,
    MeanSquared,
    RootBrier,
    RootMeanSquared,
    SequenceCrossEntropy,
    as_loss,
    remove_reduction,
)
from tacit.core.prices import Unit
from tacit.core.schema import check_names
from tacit.data.adapted import (
    AdaptedModel,
    InputFields,
    Output,
    accepts,
    adapt,
    build,
    check_task_model,
    floats_of,
    full_precision,
    try_build,
)
from tacit.data.checks import check_overlap, check_owners, check_population, check_samples
from tacit.data.encoding import Encoding, Preprocessing
from tacit.data.parquet_population import is_converted, population_arguments
from tacit.data.persons import HeldPersons, drop_person_column, shares_persons, take_person_column
from tacit.data.population import Population, Samples, read_clients, read_held
from tacit.data.table_task import TableSettings, task_arguments
from tacit.data.tensors import MappedTensor
from tacit.errors import DataError, ModelError, expect

__all__ = ["Population", "Preprocessing", "Samples", "Task", "TestOverlap"]

TestOverlap = Literal["refused", "coincidental", "intended"]


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
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
        preprocessing: the source of the constants in the inputs; the guarantee lists what it does not cover.
        test_overlap: held-out samples that a client owns are `refused`; `coincidental` if different units may have
            equal samples, as in a table with few columns; `intended` if they are the clients' own, which the guarantee
            then lists as not covered. Only `refused` compares the samples.
        person: which samples are one person's, so that methods which protect records protect persons: the column of
            person ids, if clients are frames or dictionaries of columns, or one vector of ids per client. It becomes
            part of the population.
        test_person: whose the held-out samples are, one id per sample; taken from the column `person`, if it is one.
            Metrics are exact, so a guarantee for persons lists them unless nobody in training is held out, too.
        target: the column to predict, if clients are frames or dictionaries.
        output: which part of the model's output is the prediction, if it returns a tuple (a number), a dictionary or
            dataclass (a name), or anything else (a function of it).
        inputs: how several inputs are packed; filled in.
        encoding: how rows of a table become inputs and targets, for tasks that were made `from_table`.
        notes: what users should know about how the data were read, as sentences.

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
    person: Any = None
    test_person: Any = None
    target: str | None = None
    output: Output | None = None
    inputs: InputFields | None = None
    encoding: Encoding | None = None
    notes: tuple[str, ...] = ()

    @classmethod
    def from_table(cls, table: Any, *, target: str, client: str | None = None, test: Any = 0.2, **options: Any) -> Self:
        """A task from one table with a column that names the client, or from a folder with one file per client.

        Numbers are scaled, categories and missing values get columns of their own, and the split, the model and the
        loss are chosen by what the columns contain. `run.predict(rows)` encodes new rows by the same `task.encoding`.

        Args:
            table: a CSV file (also `.csv.gz`) or Parquet file, a folder of them, a frame of pandas, Polars or pyarrow,
                a dictionary of columns, or a dictionary of tables by client; or a folder of `Population.from_parquet`.
            target: the column to predict.
            client: the column that names the client; not for one table per client.
            test: the fraction of rows that is held out, or a table of its own.
            **options: `public`, a table of public rows (None: random rows, which depend on no data); `model`, a
                module, a name (`logistic`; `mlp`, with one hidden layer, is the default), or a function of `inputs` and
                `outputs` that returns a module; `loss` (None: cross-entropy for classes, squared error for numbers);
                `drop` and `categories`, columns to leave out and columns of numbers that are categories;
                `encoding`, a TOML file that declares minima, maxima and categories, or `public` (None: those of the
                clients' rows, which no guarantee covers); `split`, which holds out `rows` of each client or whole
                `clients`; `person`, the column that says which rows are one person's, of which all or none are held
                out; `kind` of the target, `classes` or `number`; `classes`, its values, where they are declared to be
                public; `name` and `seed`.

        Example:
            >>> rows = {"hospital": ["A", "B"] * 10, "age": range(20), "sex": ["f", "m"] * 10, "died": [0, 1] * 10}
            >>> task = Task.from_table(rows, client="hospital", target="died")
            >>> len(task.population), task.population.names, task.population.x.shape, task.preprocessing.source
            (2, ('A', 'B'), torch.Size([20, 3]), 'private')
        """
        check_names(options, (each.name for each in fields(TableSettings)), "Task.from_table")
        settings = TableSettings(target=target, client=client, test=test, **options)
        return cls(**(population_arguments if is_converted(table) else task_arguments)(table, settings))

    def __post_init__(self) -> None:
        set_field = partial(object.__setattr__, self)
        check_task_model(self.model)
        clients, persons = self.clients, self.person
        if isinstance(persons, str) and not isinstance(clients, Population):
            clients, persons = take_person_column(clients, persons)
        population, inputs = read_clients(clients, persons, self.target, self.inputs)
        test, held_ids = drop_person_column(self.test, self.person)
        set_field("test", test)
        set_field("public", drop_person_column(self.public, self.person)[0])
        set_field("person", None)
        held = {
            name: read_held(data, name, self.target, inputs, population.columns)
            for name, data in (("test", self.test), ("public", self.public))
        }
        loss = _loss_for(self.loss, population.y)
        set_field("loss", loss)
        set_field("inputs", inputs)
        dtype, floats = _types(population.x, self.model, inputs, self.output)
        x = population.x if dtype is None else population.x.to(dtype)
        set_field("clients", replace(population, x=x, y=_cast_targets(population.y, loss, floats)))
        for name, samples in held.items():
            cast = samples and (_cast_like(samples[0], x), _cast_targets(samples[1], loss, floats))
            set_field(name, cast)
        held_ids = self.test_person if held_ids is None else held_ids
        if self.test is not None and not isinstance(held_ids, HeldPersons):
            _check_ids(held_ids, len(self.test[1]))
            set_field("test_person", HeldPersons(self.test[0], shares_persons(persons, held_ids)))
        self._check()

    def _check(self) -> None:
        check_population(self.population)
        for name, samples in (("test", self.test), ("public", self.public)):
            if samples is not None:
                check_samples(name, samples, self.population)
        check_owners(self.owners, self.test)
        allowed = ("refused", "coincidental", "intended")
        expect(self.test_overlap in allowed, f"test_overlap={self.test_overlap!r} to be one of {', '.join(allowed)}")
        if self.test is not None and self.test_overlap == "refused":
            check_overlap(self.test, self.population)

    def __repr__(self) -> str:
        """Its form, without data."""
        held_out = 0 if self.test is None else len(self.test[1])
        return f"Task({self.name!r}, {self.population!r}, {held_out} held out, {self.loss!r})"

    @property
    def not_covered(self) -> tuple[str, ...]:
        """Sentences on what no guarantee of a run on this task covers."""
        metrics = "Held-out metrics, and what is decided by them: they are computed on samples that clients own."
        if self.test_overlap != "intended":
            known = self.test is not None and self.population.unit is Unit.PERSON
            metrics = self.test_person.not_covered(self.test[0]) if known else ""
        return tuple(filter(None, (self.preprocessing.not_covered, metrics)))

    @property
    def population(self) -> Population:
        return Population.of(self.clients)

    def on(self, population: Population) -> "Task":
        """The same task with other clients, whose data are not checked: as attacks and their tests need them."""
        other = copy.copy(self)
        object.__setattr__(other, "clients", population)
        return other

    def without_code(self) -> "Task":
        """The same data and loss, without the model."""
        bare = copy.copy(self)
        object.__setattr__(bare, "model", nn.Identity())
        return bare

    def make_model(self, key: Key) -> nn.Module:
        """The module with its initial weights, as the engine calls it: one tensor in, one tensor out."""
        if isinstance(self.model, nn.Module):
            model = self.model
        else:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(key.integer())
                model = build(self.model)
        if not isinstance(model, nn.Module):
            raise ModelError(f"Expected the task's model to be a torch.nn.Module, got {type(model).__name__}.")
        return adapt(full_precision(model), self.population.x, self.inputs, self.output)


def _check_ids(ids: Any, samples: int) -> None:
    """Raise `DataError` unless there is one id for each held-out sample, or none at all."""
    if ids is not None and len(ids) != samples:
        raise DataError(f"Expected test_person as one id for each of {samples} held-out samples, got {len(ids)}.")


def _types(
    x: Tensor, model: Any, inputs: InputFields | None, output: Output | None
) -> tuple[torch.dtype | None, torch.dtype]:
    """The types to which inputs (None: unchanged) and targets other than classes are converted.

    They are those in which the model computes. A function is called once where the data do not determine them.
    """
    if x.dtype == torch.float32 and not isinstance(model, nn.Module):
        return None, torch.float32
    probe = model if isinstance(model, nn.Module) else try_build(model)
    floats = torch.float32 if probe is None else floats_of(probe)
    if inputs is not None or isinstance(x, MappedTensor) or probe is None:
        return None, floats
    if x.is_floating_point():
        return floats, floats
    model = probe if output is None else AdaptedModel(probe, None, output)
    if x.dtype == torch.bool or (not accepts(model, x[:2]) and accepts(model, x[:2].to(floats))):
        return floats, floats
    return torch.int64 if accepts(model, x[:2].long()) else None, floats


def _cast_targets(y: Tensor, loss: Any, floats: torch.dtype) -> Tensor:
    if type(loss) in (MeanSquared, RootMeanSquared, BinaryCrossEntropy):
        return y.to(floats)[:, None] if y.dim() == 1 else y.to(floats)
    if y.is_floating_point():
        return y.to(floats)
    classes = isinstance(loss, CrossEntropy | RootBrier) and y.dim() == 2 and y.shape[1] == 1
    return (y[:, 0] if classes else y).long()


def _cast_like(x: Tensor, pool: Tensor) -> Tensor:
    return x.to(pool.dtype) if x.dtype != pool.dtype and torch.can_cast(x.dtype, pool.dtype) else x


def _loss_for(loss: object, y: Tensor) -> Any:
    """The given loss; cross-entropy over every position, if labels have several."""
    converted = as_loss(loss)
    several = y.dim() >= 2 and y.shape[1:] != (1,) and not y.is_floating_point()
    if isinstance(loss, nn.CrossEntropyLoss):
        if y.is_floating_point() and y.dim() > 1:  # probabilities of the classes
            return FunctionLoss(remove_reduction(loss))
        if several and loss.label_smoothing == 0:
            return SequenceCrossEntropy(None if loss.weight is None else tuple(loss.weight.tolist()), loss.ignore_index)
    if type(converted) is CrossEntropy and several and not _one_hot(y):
        return SequenceCrossEntropy(converted.weight)
    return converted


def _one_hot(y: Tensor) -> bool:
    return y.dim() == 2 and bool((y.sum(1) == 1).all()) and bool(((y == 0) | (y == 1)).all())
