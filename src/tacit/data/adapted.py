"""A module as the engine calls it: one tensor in, one tensor of predictions out.

Modules with several inputs, or that return tuples or dictionaries, are wrapped. Their inputs are packed into one row
per sample, so that a population remains one pool.
"""

import copy
import inspect
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from math import prod
from typing import Any, Self, TypeVar

import torch
from torch import Tensor, nn

from tacit.core.schema import list_names
from tacit.errors import DataError, ModelError, UserError

_T = TypeVar("_T")
Output = int | str | Callable[[Any], Tensor]
Inputs = dict[str | int, Tensor]  # of a model, by keyword or by position; the only one as `SINGLE`
SINGLE = ""
HALF = (torch.float16, torch.bfloat16)
_EXACT = 1 << 24  # up to which float32 holds every whole number


@dataclass(frozen=True)
class InputFields:
    """Several inputs of a model, packed into one row of numbers per sample.

    Attributes:
        names: of the keyword arguments; empty: positional arguments.
        shapes: of each input, without the samples.
        dtypes: of each input.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[torch.dtype, ...]

    @classmethod
    def of(cls, parts: Inputs) -> Self:
        names = tuple(map(str, parts)) if 0 not in parts else ()
        return cls(names, *zip(*((tuple(part.shape[1:]), part.dtype) for part in parts.values()), strict=True))

    def pack(self, parts: Inputs, who: str) -> Tensor:
        """One row per sample; raises `DataError` if these are other inputs."""
        names: tuple[str | int, ...] = self.names or tuple(range(len(self.shapes)))
        if parts.keys() != {*names}:
            expected, actual = (list_names(map(str, each)) for each in (names, parts))
            raise DataError(f"Expected the inputs {expected} for {who}, as for the first client, got {actual}.")
        tensors = tuple(parts[name] for name in names)
        shapes = tuple(tuple(t.shape[1:]) for t in tensors)
        if shapes != self.shapes:
            raise DataError(
                f"Expected inputs of shapes {self.shapes} for {who}, as for the first client, got {shapes}. Pad them."
            )
        lengths = {len(t) for t in tensors}
        if len(lengths) > 1:
            raise DataError(f"Expected as many samples in every input of {who}, got {sorted(lengths)}.")
        wide = self._common_dtype(tensors, who)
        return torch.cat([t.reshape(len(t), -1).to(wide) for t in tensors], dim=1)

    def unpack(self, x: Tensor) -> tuple[Tensor, ...]:
        """The inputs of these samples, by operations that `torch.fx` can trace."""
        spans = pairwise(accumulate((prod(shape) for shape in self.shapes), initial=0))
        parts = (x[..., start:end] for start, end in spans)
        fields = zip(parts, self.shapes, self.dtypes, strict=True)
        return tuple((torch.unflatten(part, -1, s) if s else part[..., 0]).to(dtype) for part, s, dtype in fields)

    def _common_dtype(self, tensors: tuple[Tensor, ...], who: str) -> torch.dtype:
        floats = [dtype for dtype in self.dtypes if dtype.is_floating_point]
        if not floats:
            return torch.int64
        wide = torch.float64 if torch.float64 in floats else torch.float32
        exact = all(t.is_floating_point() or len(t) == 0 or int(t.abs().max()) <= _EXACT for t in tensors)
        if wide == torch.float32 and not exact:
            raise DataError(
                f"Expected whole numbers up to {_EXACT} beside inputs with fractions in {who}, got larger ones. "
                "Renumber them, for example with torch.unique(x, return_inverse=True)."
            )
        return wide


class AdaptedModel(nn.Module):
    """A module with its inputs, and the part of its output that is the prediction."""

    def __init__(
        self,
        module: nn.Module,
        inputs: InputFields | None = None,
        output: Output | None = None,
        floats: torch.dtype | None = None,
        column: bool = False,
    ) -> None:
        super().__init__()
        self.module, self.inputs, self.output, self.floats, self.column = module, inputs, output, floats, column

    def forward(self, x: Tensor) -> Tensor:
        """The prediction for packed samples."""
        arguments = self.arguments(x)
        prediction = _choose_output(self.module(*arguments.args, **arguments.kwargs), self.output)
        return prediction.unsqueeze(-1) if self.column else prediction

    def arguments(self, x: Tensor) -> "Arguments":
        """The module's arguments for packed samples."""
        if self.inputs is None:
            return Arguments((x if self.floats is None else x.to(self.floats),))
        parts, names = self.inputs.unpack(x), self.inputs.names
        return Arguments(kwargs=dict(zip(names, parts, strict=True))) if names else Arguments(parts)


@dataclass(frozen=True)
class Arguments:
    """Positional or keyword arguments of a module."""

    args: tuple[Tensor, ...] = ()
    kwargs: dict[str, Tensor] = field(default_factory=dict)

    def map(self, change: Callable[[Tensor], Tensor]) -> "Arguments":
        """The same arguments, each changed."""
        return Arguments(tuple(map(change, self.args)), {name: change(each) for name, each in self.kwargs.items()})


def own_arguments(model: nn.Module, x: Tensor) -> Arguments:
    """The arguments of the user's own module for packed samples."""
    arguments = Arguments((x,))
    while isinstance(model, AdaptedModel):
        arguments = model.arguments(*arguments.args)
        if model.inputs is not None:
            return arguments
        model = model.module
    return arguments


def adapt(model: nn.Module, x: Tensor, inputs: InputFields | None, output: Output | None) -> nn.Module:
    """Wrap a module whose inputs or output are not a single tensor, or that does not take whole numbers."""
    if inputs is not None or output is not None:
        model = AdaptedModel(model, inputs, output)
    if inputs is None and x.dtype != floats_of(model) and not accepts(model, x[:2]):
        floats = AdaptedModel(model, floats=floats_of(model))
        return floats if accepts(floats, x[:2]) else model
    return model


def full_precision(model: nn.Module) -> nn.Module:
    """The module with float32 instead of half-precision parameters, with a warning if there were any."""
    half = {parameter.dtype for parameter in model.parameters()} & {*HALF}
    if not half:
        return model
    warnings.warn(
        f"The model has {', '.join(sorted(map(str, half)))} parameters. They are trained, clipped and sent as "
        "torch.float32: updates are too small for half precision. Convert the trained model back if you need to.",
        stacklevel=2,
    )
    return copy.deepcopy(model).float()


def accepts(model: nn.Module, x: Tensor) -> bool:
    """Whether the model computes something from these samples."""
    return attempt(lambda: (model(x),)) is not None


def attempt(compute: Callable[[], _T]) -> _T | None:
    """The result of a user's code, with the global randomness restored; None if it fails.

    It may fail in any way, and fails again where that is reported.
    """
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        try:
            return compute()
        except Exception:
            return None


def floats_of(model: nn.Module) -> torch.dtype:
    """The floating-point type in which the model computes."""
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    return torch.float32 if dtype in HALF else dtype


def build(model: Callable[[], nn.Module]) -> nn.Module:
    """Call a function that returns a model; raises `ModelError` if it fails."""
    try:
        return model()
    except UserError:
        raise
    except Exception as error:  # a user's function may fail in any way
        raise ModelError(
            f"The task's model could not be made: {type(error).__name__}: {first_line(error)}. Call the function by "
            "itself to see where."
        ) from error


def first_line(error: Exception) -> str:
    """The first line of an error's message, without its full stop."""
    return (str(error).strip().splitlines() or [""])[0].rstrip(".")


def try_build(model: Callable[[], nn.Module]) -> nn.Module | None:
    """The model that a function returns; None if it fails."""
    module = attempt(model)
    return module if isinstance(module, nn.Module) else None


def check_task_model(model: object) -> None:
    """Raise `ModelError` unless this is a module or a function without arguments."""
    clause = "Expected the task's model to be a torch.nn.Module or a function without arguments that returns one"
    if isinstance(model, nn.Module):
        return
    if not callable(model):
        raise ModelError(f"{clause}, got {type(model).__name__}. Write model=lambda: ..., with the module's arguments.")
    try:
        inspect.signature(model).bind()
    except TypeError as error:
        name = getattr(model, "__name__", type(model).__name__)
        raise ModelError(f"{clause}, but {name} needs arguments: {error}. Write model=lambda: {name}(...).") from error
    except ValueError:
        return  # no signature to look at


def own_module(model: nn.Module) -> nn.Module:
    """The user's module, without its adapters."""
    while isinstance(model, AdaptedModel):
        model = model.module
    return model


def check_output(outputs: object, output: object) -> Tensor:
    """The output as a tensor; otherwise the error suggests an `output` that chooses one."""
    if isinstance(outputs, Tensor):
        return outputs
    if isinstance(outputs, Mapping):
        names = [str(name) for name in outputs]
        what, line = f"a dictionary with {list_names(names)}", f"output={next(iter(names), 'logits')!r}"
    elif isinstance(outputs, tuple | list):
        what, line = f"a {type(outputs).__name__} of {len(outputs)}", "output=0"
    else:
        what, line = type(outputs).__name__, "output=lambda outputs: outputs.logits"
    setting = "" if output is None else f" (with output={output!r})"
    raise ModelError(
        f"Expected the model to return a tensor of predictions, got {what}{setting}. Choose the part that is the "
        f"prediction: tacit.Task(..., {line})."
    )


def _choose_output(outputs: Any, output: Output | None) -> Tensor:
    """The part of a model's output that is the prediction."""
    if output is None or callable(output):
        return outputs if output is None else output(outputs)
    try:
        if isinstance(output, str) and not isinstance(outputs, Mapping):
            return getattr(outputs, output)  # type: ignore[no-any-return]
        return outputs[output]  # type: ignore[no-any-return]
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        has = list_names(map(str, outputs)) if isinstance(outputs, Mapping) else type(outputs).__name__
        raise ModelError(f"Expected the model's output to have {output!r} (output={output!r}), got {has}.") from error
