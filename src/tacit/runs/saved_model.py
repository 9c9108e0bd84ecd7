"""The trained model of a run, from its directory: its tensors, and the module that they belong to."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor, nn

from tacit.data import Task
from tacit.data.adapted import own_module
from tacit.errors import RunError
from tacit.runs.directory import MANIFEST, MODEL
from tacit.runs.experiment import Experiment
from tacit.runs.manifest import Manifest


def read_tensors(run: Path) -> dict[str, Tensor]:
    """The named tensors of a finished run; of several models, each name is prefixed by the model's number."""
    file = run / MODEL
    if not file.exists():
        raise RunError(f"Expected a finished run, but there is no {file}. Finish it with tacit run --resume {run}.")
    try:
        return safetensors.torch.load_file(file)
    except (SafetensorError, OSError) as error:
        raise RunError(f"Could not read the model {file}: {error}.") from error


def tensors_of(tensors: Mapping[str, Tensor], number: int, models: int) -> dict[str, Tensor]:
    """The tensors of one of several models, without its number."""
    if models == 1:
        return dict(tensors)
    prefix = f"{number}."
    return {name.removeprefix(prefix): each for name, each in tensors.items() if name.startswith(prefix)}


def rebuild_task(run: Path, manifest: Manifest, instead: str, *, trusted: bool) -> Task:
    """The task of a run, built as the run built it.

    Args:
        run: the run's directory.
        manifest: its manifest.
        instead: what to do if it was started from Python, as a sentence.
        trusted: whether a Python file that the manifest names may be run.
    """
    if manifest.task.args is None:
        raise RunError(f"The run in {run} was started from Python, so that its model cannot be built here. {instead}")
    named_in = str(run / MANIFEST)
    experiment = Experiment(method="", task=manifest.task.name, task_args=manifest.task.args, named_in=named_in)
    task = experiment.with_trust(trusted).build_task()
    return task if manifest.task.model is None else replace(task, model=manifest.task.model)


def load(module: nn.Module, tensors: Mapping[str, Tensor], run: Path) -> None:
    """Set a module's weights to those of the run; raises `RunError` if they are not those of this module."""
    try:
        own_module(module).load_state_dict(dict(tensors))
    except RuntimeError as error:
        raise RunError(
            f"Expected the model of the run in {run} to have the tensors of {MODEL}, but it has others. The task's "
            "code has changed since. Use the code that trained it."
        ) from error
