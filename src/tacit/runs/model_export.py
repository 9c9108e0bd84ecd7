"""A trained model as a file for other programs: safetensors, a `state_dict`, ONNX, or a program of `torch.export`.

ONNX and `torch.export` hold the model's computation, not only its weights. They are traced on random inputs, because
such files keep their example inputs, and compared with the model before anything is written.
"""

import io
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from tacit.core.discovery import need
from tacit.core.schema import list_names
from tacit.data import Task
from tacit.data.adapted import Arguments, own_arguments, own_module
from tacit.errors import ModelError, UserError

MADE_FROM, COMPARED_ON = 2, 3  # samples: different numbers, because the file must take any
CLOSE = 1e-4  # relative to the largest output: other programs round in another order


@dataclass(frozen=True, eq=False)
class ExportedModel:
    """A model to export.

    Attributes:
        adapted: the trained module as the engine calls it.
        task: the task that it was trained on, for the form of its inputs.
        caveat: the warning that every output of the run carries; empty: none.
    """

    adapted: nn.Module
    task: Task
    caveat: str = ""

    @property
    def module(self) -> nn.Module:
        """The user's own module, in evaluation mode."""
        return own_module(self.adapted).eval()

    @property
    def made_from(self) -> Arguments:
        """Random inputs of the right form; integers are zeros, which every embedding table has."""
        return own_arguments(self.adapted, self._samples[:1].expand(MADE_FROM, *self._samples.shape[1:])).map(_random)

    @property
    def compared_on(self) -> Arguments:
        """Inputs on which outputs are compared; they are written nowhere."""
        rows = [number % len(self._samples) for number in range(COMPARED_ON)]
        return own_arguments(self.adapted, self._samples[rows])

    @property
    def _samples(self) -> Tensor:
        task = self.task
        x: Tensor = next(part[0] for part in (task.test, task.public, (task.population.x,)) if part is not None)
        if len(x) == 0:
            raise ModelError("Expected a sample, of which the exported model takes the form, but the task has none.")
        return x[:COMPARED_ON]


def as_safetensors(model: ExportedModel) -> bytes:
    """The named tensors of a model."""
    tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in model.module.state_dict().items()}
    return safetensors.torch.save(tensors, {"caveat": model.caveat} if model.caveat else None)


def as_state_dict(model: ExportedModel) -> bytes:
    """The named tensors as `torch.save` writes them; `torch.load(file, weights_only=True)` reads them."""
    content = io.BytesIO()
    torch.save(dict(model.module.state_dict()), content)
    return content.getvalue()


def as_onnx(model: ExportedModel) -> bytes:
    """The model in ONNX, for any number of samples."""
    need(["onnx", "onnxscript", "onnxruntime"], "onnx", "ONNX")
    example = model.made_from
    with _explain_errors("ONNX"):
        program = torch.onnx.export(
            model.module,
            example.args,
            kwargs=example.kwargs,
            dynamic_shapes=_any_number(example),
            dynamo=True,
            verbose=False,
        )
        assert program is not None
        proto = program.model_proto
        if model.caveat:
            proto.metadata_props.add(key="caveat", value=model.caveat)
        content: bytes = proto.SerializeToString()
    _compare(model, "ONNX", lambda arguments: _run_onnx(content, arguments))
    return content


def as_program(model: ExportedModel) -> bytes:
    """The model as a program of `torch.export`, for any number of samples; `torch.export.load` reads it."""
    example, content = model.made_from, io.BytesIO()
    with _explain_errors("torch.export"):
        program = torch.export.export(model.module, example.args, example.kwargs, dynamic_shapes=_any_number(example))
        torch.export.save(program, content, extra_files={"caveat.txt": model.caveat} if model.caveat else None)
        content.seek(0)
        loaded = torch.export.load(content).module()
    _compare(model, "torch.export", lambda arguments: pytree.tree_leaves(loaded(*arguments.args, **arguments.kwargs)))
    return content.getvalue()


FORMS: Mapping[str, Callable[[ExportedModel], bytes]] = {
    ".safetensors": as_safetensors,
    ".pt": as_state_dict,
    ".onnx": as_onnx,
    ".pt2": as_program,
}


def form_of(path: Path) -> Callable[[ExportedModel], bytes]:
    """The writer of a file of this name."""
    if path.suffix not in FORMS:
        raise UserError(f"Expected a file name that ends in one of {list_names(FORMS)}, got {path.name}.")
    return FORMS[path.suffix]


def encoding_beside(path: Path) -> Path:
    """The file with the encoding of a model's inputs, beside the file of the model."""
    return path.with_suffix(".encoding.json")


def choose_model(count: int, number: int | None, how: str) -> int:
    """The number of the model that is exported, of this many; `how` says how one is chosen."""
    if number is None and count > 1:
        raise UserError(f"Expected one model, but the run trained {count}. Choose one of 0 to {count - 1} with {how}.")
    if not 0 <= (number or 0) < count:
        raise UserError(f"Expected a model from 0 to {count - 1}, got {number}.")
    return number or 0


def _any_number(given: Arguments) -> Any:
    """Shapes in which the number of samples is open."""
    open_first = {0: torch.export.Dim.DYNAMIC}
    return dict.fromkeys(given.kwargs, open_first) if given.kwargs else tuple(open_first for _ in given.args)


def _random(example: Tensor) -> Tensor:
    return torch.randn_like(example) if example.is_floating_point() else torch.zeros_like(example)


def _run_onnx(content: bytes, arguments: Arguments) -> Sequence[Tensor]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    tensors = [*arguments.args, *arguments.kwargs.values()]
    inputs = {node.name: tensor.numpy() for node, tensor in zip(session.get_inputs(), tensors, strict=True)}
    return [torch.from_numpy(output) for output in session.run(None, inputs)]


def _compare(model: ExportedModel, form: str, compute: Callable[[Arguments], Sequence[Tensor]]) -> None:
    """Raise `ModelError` unless the exported model computes what the run's does."""
    arguments = model.compared_on
    with torch.no_grad():
        expected = _tensors(pytree.tree_leaves(model.module(*arguments.args, **arguments.kwargs)))
        with _explain_errors(form):
            actual = _tensors(compute(arguments))
    for own, other in zip(expected, actual, strict=len(expected) == len(actual)):
        scale = float(own.abs().max()) if own.numel() else 0.0
        if own.shape != other.shape or not torch.allclose(own, other.to(own.dtype), CLOSE, CLOSE * scale):
            raise ModelError(
                f"The model in {form} computes something else than the trained one on {COMPARED_ON} samples, so that "
                "nothing was written. Its output may be random or depend on the other samples. Use a state_dict."
            )


def _tensors(outputs: Sequence[object]) -> list[Tensor]:
    return [each.detach() for each in outputs if isinstance(each, Tensor)]


@contextmanager
def _explain_errors(form: str) -> Iterator[None]:
    """Inside this block, whatever a model's graph cannot hold is a `ModelError` that names it."""
    logging.disable(logging.WARNING)  # with the warnings, those of PyTorch about itself
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except Exception as error:  # of compilers: they raise whatever the model's code raises
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        reason = next((line.strip() for line in str(cause).splitlines() if line.strip()), type(cause).__name__)
        raise ModelError(
            f"The model cannot be exported to {form}: {reason.rstrip('.')}. A graph must be the same for all inputs "
            "and any number of samples: write forward without branches on values, or export a state_dict, which "
            "needs none."
        ) from error
    finally:
        logging.disable(logging.NOTSET)
