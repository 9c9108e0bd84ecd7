"""A run for other programs, from its directory: its rounds to a log, its model as other programs read it."""

import io
from collections.abc import Mapping
from pathlib import Path

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from tacit.data.adapted import own_module
from tacit.engine.layout import make_model
from tacit.errors import RunError, StorageError
from tacit.report.run_data import RunData
from tacit.runs.directory import MANIFEST, MODEL
from tacit.runs.experiment import Experiment
from tacit.runs.model_export import ExportedModel, as_onnx, as_program, choose_model
from tacit.runs.round_logs import LogHeader, RoundLog

GRAPHS = {"onnx": as_onnx, "torch-export": as_program}


def write_log(run: RunData, log: RoundLog) -> None:
    """Write the rounds of a run that a log does not have yet."""
    log.check(run.path)
    try:
        writer = log.open(LogHeader.of(run.manifest, run.path))
        try:
            writer.write(run.reports)
            if run.manifest.status == "finished":
                writer.finish("\n\n".join(map(str, run.guarantees)))
        finally:
            writer.close()
    except Exception as error:  # of any library, on any disk or network
        reason = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise StorageError(f"Could not write {run.path} for {log.label}: {reason.rstrip('.')}.") from error


def model_content(run: RunData, to: str, number: int | None, *, trusted: bool) -> bytes:
    """The model of a finished run in a format; `trusted`: a Python file that the manifest names may be run."""
    models = 1 if run.method is None else run.method.aggregator.models
    if to in GRAPHS:
        return GRAPHS[to](_exported(run, choose_model(models, number, "--model"), models, trusted=trusted))
    tensors = _tensors(run.path / MODEL)
    if number is not None:
        tensors = _of_model(tensors, choose_model(models, number, "--model"), models)
    if to == "safetensors":
        return safetensors.torch.save(tensors, {"caveat": run.manifest.caveat} if run.manifest.caveat else None)
    content = io.BytesIO()
    torch.save(tensors, content)
    return content.getvalue()


def _exported(run: RunData, number: int, models: int, *, trusted: bool) -> ExportedModel:
    """The model, built as the run built it, with the weights of its file."""
    manifest = run.manifest
    tensors = _of_model(_tensors(run.path / MODEL), number, models)
    if manifest.task.args is None:
        raise RunError(
            f"The run in {run.path} was started from Python, so that its model cannot be built here. Export it there, "
            "with run.export('model.onnx')."
        )
    named_in = str(run.path / MANIFEST)
    given = Experiment(method="", task=manifest.task.name, task_args=manifest.task.args, named_in=named_in)
    given = given.trusting(trusted)
    task = given.build_task()
    adapted = make_model(task, manifest.seed)
    try:
        own_module(adapted).load_state_dict(tensors)
    except RuntimeError as error:
        raise RunError(
            f"Expected the model of task {task.name} to have the tensors of {run.path / MODEL}, but it has others. "
            "The task's code has changed since. Export with the code that trained it."
        ) from error
    return ExportedModel(adapted, task, manifest.caveat)


def _of_model(tensors: Mapping[str, Tensor], number: int, models: int) -> dict[str, Tensor]:
    """Of the tensors of several models, those of one, without its number."""
    if models == 1:
        return dict(tensors)
    prefix = f"{number}."
    return {name.removeprefix(prefix): each for name, each in tensors.items() if name.startswith(prefix)}


def _tensors(file: Path) -> dict[str, Tensor]:
    if not file.exists():
        raise RunError(
            f"Expected a finished run, but there is no {file}. Finish it with tacit run --resume {file.parent}."
        )
    try:
        return safetensors.torch.load_file(file)
    except (SafetensorError, OSError) as error:
        raise RunError(f"Could not read the model {file}: {error}.") from error
