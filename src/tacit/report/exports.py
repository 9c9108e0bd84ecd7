"""Exports of a run from its directory, for other programs: its rounds to a log, its model to a format."""

import io
from contextlib import closing

import safetensors.torch
import torch

from tacit.engine.layout import make_model
from tacit.errors import StorageError
from tacit.report.run_data import RunData
from tacit.runs.model_export import ExportedModel, as_onnx, as_program, choose_model
from tacit.runs.round_logs import LogHeader, RoundLog
from tacit.runs.saved_model import load, read_tensors, rebuild_task, tensors_of

GRAPHS = {"onnx": as_onnx, "torch-export": as_program}


def write_log(run: RunData, log: RoundLog) -> None:
    """Write the rounds of a run that a log lacks."""
    log.validate(run.path)
    try:
        with closing(log.open(LogHeader.of(run.manifest, run.path))) as writer:
            writer.write(run.reports)
            if run.manifest.status == "finished":
                writer.finish("\n\n".join(map(str, run.guarantees.values())))
    except Exception as error:  # of any library, on any disk or network
        reason = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise StorageError(f"Could not write {run.path} for {log.label}: {reason.rstrip('.')}.") from error


def model_content(run: RunData, to: str, number: int | None, *, trusted: bool) -> bytes:
    """The model of a finished run in a format; `trusted` allows running the manifest's Python file."""
    models = 1 if run.method is None else run.method.aggregator.models
    if to in GRAPHS:
        return GRAPHS[to](_export(run, choose_model(models, number, "--model"), models, trusted=trusted))
    tensors = read_tensors(run.path)
    if number is not None:
        tensors = tensors_of(tensors, choose_model(models, number, "--model"), models)
    if to == "safetensors":
        return safetensors.torch.save(tensors, {"caveat": run.manifest.caveat} if run.manifest.caveat else None)
    content = io.BytesIO()
    torch.save(tensors, content)
    return content.getvalue()


def _export(run: RunData, number: int, models: int, *, trusted: bool) -> ExportedModel:
    """The model as the run built it, with the weights of its file."""
    tensors = tensors_of(read_tensors(run.path), number, models)
    instead = "Export it there, with run.export('model.onnx')."
    task = rebuild_task(run.path, run.manifest, instead, trusted=trusted)
    adapted = make_model(task, run.manifest.seed)
    load(adapted, tensors, run.path)
    return ExportedModel(adapted, task, run.manifest.caveat)
