"""A module's trainable parameters as one flat vector, and what a module must be like to be trained in a federation."""

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

from tacit.core import DenseRows, Key, MaskedRows, Task
from tacit.errors import ModelError


@dataclass(frozen=True)
class Layout:
    """Where each trainable parameter lies in the flat vector, in the order of `named_parameters`.

    Example:
        >>> layout = Layout.of(nn.Linear(3, 2))
        >>> layout.names, layout.shapes, layout.dim
        (('weight', 'bias'), ((2, 3), (2,)), 8)
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, model: nn.Module) -> "Layout":
        """The layout of a module's trainable parameters."""
        trainable = [(name, tuple(p.shape)) for name, p in model.named_parameters() if p.requires_grad]
        return cls(tuple(name for name, _ in trainable), tuple(shape for _, shape in trainable))

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many numbers each parameter has."""
        return tuple(prod(shape) for shape in self.shapes)

    @property
    def dim(self) -> int:
        """How many numbers there are in all."""
        return sum(self.sizes)

    def slot(self, name: str) -> tuple[int, int]:
        """Where a parameter begins and ends."""
        place = self.names.index(name)
        start = sum(self.sizes[:place])
        return start, start + self.sizes[place]

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """The parameters as views of a flat vector, or of a stack of them (leading dimensions stay in front)."""
        pieces = torch.split(flat, list(self.sizes), dim=-1)
        lead = flat.shape[:-1]
        return {n: p.view(*lead, *s) for n, p, s in zip(self.names, pieces, self.shapes, strict=True)}

    def flatten(self, model: nn.Module) -> Tensor:
        """A copy of the module's trainable parameters as one vector."""
        return torch.cat([p.detach().flatten() for p in model.parameters() if p.requires_grad])

    def load(self, model: nn.Module, flat: Tensor) -> None:
        """Write a flat vector into the module."""
        with torch.no_grad():
            for (_, parameter), value in zip(_trainable(model), self.views(flat).values(), strict=True):
                parameter.copy_(value)


@dataclass(frozen=True, eq=False)
class Received:
    """The weights a descent starts from, of all clients or of each, and which of them it may not move."""

    weights: Tensor
    mask: Tensor | None

    def copies(self, clients: int) -> Tensor:
        """A row of weights for every client, to be trained in place."""
        return per_client(self.weights, clients, dims=1)

    def of(self, row: int) -> "Received":
        """What one client received."""
        return self if self.weights.dim() == 1 else Received(self.weights[row], self.mask)

    def restore(self, trained: Tensor) -> None:
        """Undo in place what a step did outside the mask; coordinates do not mix, so that this is a masked step."""
        if self.mask is not None:
            trained.copy_(torch.where(self._frozen, self.weights, trained))

    def updates(self, trained: Tensor) -> DenseRows | MaskedRows:
        """Trained minus received weights, under a mask only at its coordinates; `trained` may be overwritten."""
        if self.mask is None:
            return DenseRows(trained.sub_(self.weights))
        moved = trained[:, self.mask].sub_(self.weights[..., self.mask])
        return MaskedRows(moved, self.mask, self.weights.shape[-1])

    @cached_property
    def _frozen(self) -> Tensor:
        assert self.mask is not None
        return torch.ones_like(self.weights, dtype=torch.bool).index_fill_(-1, self.mask, False)


def per_client(tensor: Tensor, clients: int, *, dims: int) -> Tensor:
    """A copy for every client: of what they share, which has `dims` dimensions, or of what each has already."""
    return tensor.clone() if tensor.dim() > dims else tensor.repeat(clients, *[1] * dims)


def make_hypotheses(task: Task, seed: int, count: int) -> Tensor:
    """The weights that everybody starts from: those of the task's module, or a stack of several, each drawn anew."""
    models = [make_model(task, seed, number) for number in range(count)]
    stack = torch.stack([Layout.of(model).flatten(model) for model in models])
    if count > 1 and bool((stack == stack[0]).all()):
        raise ModelError(
            f"Expected {count} hypotheses to start apart, but the task's model always starts at the same weights. "
            "Give a function that makes the model at random weights."
        )
    return stack if count > 1 else stack[0]


def make_model(task: Task, seed: int, number: int = 0) -> nn.Module:
    """A private copy of the task's module at its starting weights, in training mode, checked.

    `number` says which of several hypotheses it is to be.
    """
    model = copy.deepcopy(task.make_model(Key.from_seed(seed, "shared").child("model", number))).train()
    check_model(model)
    _check_fits(model, task)
    return model


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
    for name, module in modules_of(model, (_BatchNorm,)):
        if module.running_mean is not None:
            raise ModelError(
                f"{type(module).__name__} {name!r} keeps running statistics, which a federation neither averages nor "
                "keeps private. Use tacit.tasks.models.with_group_norm(model), or with_local_batch_norm(model) "
                "to normalise by each batch alone."
            )


def mixes_samples(model: nn.Module) -> bool:
    """Whether a sample's output depends on the other samples of its batch, so that batches cannot be padded."""
    return any(True for _ in modules_of(model, (_BatchNorm,)))


def draws_randomness(model: nn.Module) -> bool:
    """Whether the forward pass is random (dropout)."""
    return any(isinstance(module, _DropoutNd) and module.p > 0 for module in model.modules())


def has_slow_mapping(model: nn.Module) -> bool:
    """Whether the module has layers that PyTorch is slower to map over clients than to run one by one.

    Recurrent layers are mapped step by step; convolutions become grouped ones, which also need much more memory.
    """
    return any(True for _ in modules_of(model, (nn.RNNBase, _ConvNd)))


def modules_of(model: nn.Module, kinds: tuple[type[nn.Module], ...]) -> Iterator[tuple[str, nn.Module]]:
    """The submodules of these kinds, with their names."""
    return ((name, module) for name, module in model.named_modules() if isinstance(module, kinds))


def _trainable(model: nn.Module) -> Iterable[tuple[str, nn.Parameter]]:
    return ((name, p) for name, p in model.named_parameters() if p.requires_grad)


def _check_fits(model: nn.Module, task: Task) -> None:
    population = task.population
    mine = population.indices(0)[:2]
    if len(mine) == 1:
        mine = mine.repeat(2)
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        try:
            outputs = model(population.x[mine])
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            reason = str(error).strip().splitlines()[0]
            shape = tuple(population.x.shape[1:])
            raise ModelError(
                f"The model cannot take the task's samples ({population.x.dtype}, shape {shape}): {reason}"
            ) from error
    task.loss.check(population.y, outputs)
    if task.test is not None:
        task.loss.check(task.test[1], outputs)
