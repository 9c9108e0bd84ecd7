"""A module's trainable parameters as one flat vector, and the validation of modules for federated training.

A row is one client's flat vector of parameters or updates.
"""

import copy
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from math import prod

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.instancenorm import _InstanceNorm

from tacit.core import BinaryCrossEntropy, DenseRows, Key, MaskedRows, MeanSquared, RootMeanSquared
from tacit.data import Task
from tacit.data.adapted import AdaptedModel, check_output, first_line, floats_of
from tacit.data.data_sets import capitalize
from tacit.errors import DataError, ModelError, UserError

REAL = (MeanSquared, RootMeanSquared, BinaryCrossEntropy)  # losses whose outputs have one column per target


@dataclass(frozen=True)
class Layout:
    """The position of each trainable parameter in the flat vector, in the order of `named_parameters`.

    Example:
        >>> layout = Layout.of(nn.Linear(3, 2))
        >>> layout.names, layout.shapes, layout.dim
        (('weight', 'bias'), ((2, 3), (2,)), 8)
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, model: nn.Module) -> "Layout":
        trainable = [(name, tuple(p.shape)) for name, p in model.named_parameters() if p.requires_grad]
        return cls(tuple(name for name, _ in trainable), tuple(shape for _, shape in trainable))

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of elements of each parameter."""
        return tuple(prod(shape) for shape in self.shapes)

    @property
    def dim(self) -> int:
        """The number of trainable parameters of the model."""
        return sum(self.sizes)

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a parameter."""
        return self.shapes[self.names.index(name)]

    def span(self, name: str) -> tuple[int, int]:
        """The start and the end of a parameter in the flat vector."""
        number = self.names.index(name)
        start = sum(self.sizes[:number])
        return start, start + self.sizes[number]

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """The parameters as views of a flat vector, or of a stack of them (leading dimensions are kept)."""
        parts = torch.split(flat, list(self.sizes), dim=-1)
        leading = flat.shape[:-1]
        return {n: p.view((*leading, *s)) for n, p, s in zip(self.names, parts, self.shapes, strict=True)}

    def flatten(self, model: nn.Module) -> Tensor:
        """A copy of the module's trainable parameters as one vector."""
        return torch.cat([p.detach().flatten() for p in model.parameters() if p.requires_grad])

    def load(self, model: nn.Module, flat: Tensor) -> None:
        """Copy a flat vector into the module's parameters."""
        with torch.no_grad():
            for (_, parameter), value in zip(_trainable(model), self.views(flat).values(), strict=True):
                parameter.copy_(value)


@dataclass(frozen=True, eq=False)
class StartingWeights:
    """The weights at the start of local training, and the mask of the coordinates that may change.

    Attributes:
        weights: one vector for all clients, or a row for each.
        mask: None if all coordinates may change.
    """

    weights: Tensor
    mask: Tensor | None

    def copies(self, clients: int) -> Tensor:
        """A row of weights for every client, to be trained in place."""
        return per_client(self.weights, clients, dims=1)

    def of(self, row: int) -> "StartingWeights":
        """One client's initial weights."""
        return self if self.weights.dim() == 1 else StartingWeights(self.weights[row], self.mask)

    def restore(self, trained: Tensor) -> None:
        """Undo in place what a step changed outside the mask; SGD is coordinate-wise, so this is a masked step."""
        if self.mask is not None:
            trained.copy_(torch.where(self._frozen, self.weights, trained))

    def updates(self, trained: Tensor) -> DenseRows | MaskedRows:
        """Trained minus initial weights, under a mask only at its coordinates; `trained` may be overwritten."""
        if self.mask is None:
            return DenseRows(trained.sub_(self.weights))
        values = trained[:, self.mask].sub_(self.weights[..., self.mask])
        return MaskedRows(values, self.mask, self.weights.shape[-1])

    @cached_property
    def _frozen(self) -> Tensor:
        assert self.mask is not None
        return torch.ones_like(self.weights, dtype=torch.bool).index_fill_(-1, self.mask, False)


def per_client(tensor: Tensor, clients: int, *, dims: int) -> Tensor:
    """A copy for every client: of a shared tensor with `dims` dimensions, or of a stack with one for each client."""
    return tensor.clone() if tensor.dim() > dims else tensor.repeat(clients, *[1] * dims)


def initial_weights(first: nn.Module, task: Task, seed: int, count: int) -> Tensor:
    """The weights before the first round: those of the `first` module, or a stack of `count`, each drawn anew."""
    models = [first, *(make_model(task, seed, number) for number in range(1, count))]
    stack = torch.stack([Layout.of(model).flatten(model) for model in models])
    if count > 1 and bool((stack == stack[0]).all()):
        raise ModelError(
            f"Expected {count} hypotheses with different initial weights, but the task's model always starts at the "
            "same ones. Give a function that draws the initial weights at random."
        )
    return stack if count > 1 else stack[0]


def make_model(task: Task, seed: int, number: int = 0) -> nn.Module:
    """A copy of the task's module with its initial weights, in training mode, after `check_model`.

    Args:
        task: holds the module, or a function that creates it.
        seed: of the run; the initial weights depend on it if the task has a function.
        number: which of several hypotheses to create.
    """
    model = _own_copy(task, Key.from_seed(seed, "shared").child("model", number)).train()
    check_model(model)
    if task.population.is_remote:  # every site checks its own samples
        return model
    outputs = _outputs(model, task)
    if outputs.dim() == 1 and isinstance(task.loss, REAL):
        model, outputs = AdaptedModel(model, column=True), outputs[:, None]
    _check_targets(outputs, task)
    return model


def _own_copy(task: Task, key: Key) -> nn.Module:
    """The task's module; a copy, unless a function creates it."""
    model = task.make_model(key)
    if not isinstance(task.model, nn.Module):
        return model
    try:
        return copy.deepcopy(model)
    except Exception as error:  # of lazy, pruned or weight-normed modules
        raise ModelError(
            f"Expected a model that can be copied: {first_line(error)}. Give a function instead: model=lambda: ..."
        ) from error


def check_model(model: nn.Module) -> None:
    """Raise `ModelError` for a module whose federated training would be wrong."""
    for name, parameter in model.named_parameters():
        if not parameter.is_floating_point():
            raise ModelError(
                f"Expected floating-point parameters, but {name} is {parameter.dtype}. "
                "Convert it with .float(), or register it as a buffer if it is not trained."
            )
    trainable = list(_trainable(model))
    if not trainable:
        raise ModelError("Expected a module with trainable parameters, got none. Set requires_grad on some.")
    types = {parameter.dtype for _, parameter in trainable}
    if len(types) > 1:
        raise ModelError(
            f"Expected parameters of one type, got {', '.join(sorted(map(str, types)))}. Convert with .float()."
        )
    for name, module in modules_of(model, (_BatchNorm, _InstanceNorm)):
        if module.running_mean is not None and module.track_running_stats:
            instead = (
                "tacit.tasks.models.with_group_norm(model), or with_local_batch_norm(model) to normalise by the "
                "statistics of each batch"
            )
            raise ModelError(
                f"{type(module).__name__} {name!r} keeps running statistics, which federated training neither averages "
                f"nor protects. Use {instead if isinstance(module, _BatchNorm) else 'track_running_stats=False'}."
            )


def has_batch_statistics(model: nn.Module) -> bool:
    """Whether a sample's output depends on the other samples of its batch, so that batches cannot be padded."""
    return any(True for _ in modules_of(model, (_BatchNorm,)))


def has_dropout(model: nn.Module) -> bool:
    """Whether the forward pass is random."""
    inside = modules_of(model, (nn.RNNBase, nn.MultiheadAttention))  # their dropout is no module
    return any(module.p != 0 for _, module in modules_of(model, (_DropoutNd,))) or any(m.dropout for _, m in inside)


def is_slow_under_vmap(model: nn.Module) -> bool:
    """Whether the module has layers for which `vmap` over clients is slower than a loop over clients.

    Recurrent layers are mapped step by step; convolutions become grouped convolutions, which also need much more
    memory.
    """
    return any(True for _ in modules_of(model, (nn.RNNBase, _ConvNd)))


def modules_of(model: nn.Module, kinds: tuple[type[nn.Module], ...]) -> Iterator[tuple[str, nn.Module]]:
    """The submodules of these kinds, with their names."""
    return ((name, module) for name, module in model.named_modules() if isinstance(module, kinds))


def _trainable(model: nn.Module) -> Iterable[tuple[str, nn.Parameter]]:
    return ((name, p) for name, p in model.named_parameters() if p.requires_grad)


def _outputs(model: nn.Module, task: Task) -> Tensor:
    """The model's outputs for two samples."""
    population = task.population
    samples = population.indices(0)[:2]
    if len(samples) == 1:
        samples = samples.repeat(2)
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        try:
            outputs = model(population.x[samples])
        except UserError:
            raise
        except Exception as error:  # a user's module may fail in any way
            raise ModelError(
                f"The model does not accept the task's samples ({_describe(task)}): {_reason(model, task, error)}"
                f"{_sample_advice(model, task, error)}"
            ) from error
    return check_output(outputs, task.output)


def _reason(model: nn.Module, task: Task, error: Exception) -> str:
    """The error that remains with samples of the right type, or else the original one."""
    x = task.population.x
    if task.inputs is None and x.dtype != floats_of(model) and not isinstance(error, IndexError):
        try:
            model(x[:2].to(floats_of(model)))
        except Exception as other:  # a user's module may fail in any way
            error = other
    plain = isinstance(error, RuntimeError | ValueError | TypeError | IndexError)
    return first_line(error) if plain else f"{type(error).__name__}: {first_line(error)}"


def _sample_advice(model: nn.Module, task: Task, error: Exception) -> str:
    """Advice on the most frequent mistakes, if any."""
    x = task.population.x
    if task.inputs is None and x.dim() == 1:
        return ". Give each sample a dimension: x[:, None]."
    if isinstance(error, IndexError) and not x.is_floating_point():
        return f". The largest number in the inputs is {int(x.max())}: give an embedding more rows than that."
    convolution = any(True for _ in modules_of(model, (nn.Conv2d,)))
    if convolution and x.dim() == 4 and x.shape[-1] in (1, 3, 4) and x.shape[1] not in (1, 3, 4):
        return ". These look like images with the channels last: use x.permute(0, 3, 1, 2), or x.transpose in NumPy."
    if convolution and x.dim() == 3:
        return ". Images need a channel: x[:, None]."
    return ""


def _describe(task: Task) -> str:
    x, fields = task.population.x, task.inputs
    if fields is None:
        return f"{x.dtype}, shape {tuple(x.shape[1:])}"
    names = fields.names or tuple(map(str, range(len(fields.shapes))))
    return "; ".join(f"{n}: {d}, shape {s}" for n, d, s in zip(names, fields.dtypes, fields.shapes, strict=True))


def _check_targets(outputs: Tensor, task: Task) -> None:
    """Raise `DataError` if targets do not fit the outputs; the message names the first client with such targets."""
    population = task.population
    try:
        task.loss.validate(population.y, outputs)
    except DataError as error:
        raise _of_client(error, outputs, task) from error
    if task.test is not None:
        try:
            task.loss.validate(task.test[1], outputs)
        except DataError as error:
            raise DataError(f"Held-out data: {error}") from error


def _of_client(error: DataError, outputs: Tensor, task: Task) -> DataError:
    for client in range(len(task.population)):
        try:
            task.loss.validate(task.population[client][1], outputs)
        except DataError as problem:
            return DataError(f"{capitalize(task.population.label(client))}: {problem}")
    return error
