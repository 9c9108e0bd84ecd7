"""Held-out data in two parts: one chooses among trained models, and only the other reports how good the choice is."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import nn

from tacit.core.losses import best_outputs
from tacit.core.state import final_weights
from tacit.data import Task
from tacit.engine.simulation import module_at
from tacit.errors import UserError, expect
from tacit.papers.jobs import Job


def divide(task: Task, validation: float) -> tuple[Task, Task]:
    """The task with the held-out data for choosing, and with those for testing; the same in every run."""
    if task.test is None:
        raise UserError(
            f"Expected held-out data of the task {task.name}: the best combination is chosen on a part of it."
        )
    x, y = task.test
    count = round(len(y) * validation)
    expect(0 < count < len(y), f"both parts of {len(y)} held-out samples to have some", "Change validation.")
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    parts = (order[:count].sort().values, order[count:].sort().values)
    one, two = (
        replace(task, test=(x[part], y[part]), owners=None if task.owners is None else task.owners[part])
        for part in parts
    )
    return one, two


@torch.no_grad()
def metrics_of(models: Sequence[nn.Module], task: Task) -> dict[str, float]:
    """The metrics of models on the held-out data of a task: for every owner, those of its best model."""
    assert task.test is not None  # it was divided
    x, y = task.test
    outputs = torch.stack([model(x) for model in models])
    metrics: dict[str, float] = task.loss.metrics(best_outputs(task.loss, outputs, y, task.owners), y)
    return metrics


def test_metrics(job: Job, task: Task) -> dict[str, float]:
    """The metrics of a finished run's models on the held-out data of this task."""
    state = job.final_state()
    models = [module_at(task, job.seed, weights) for weights in final_weights(state).view(-1, state.dim)]
    return metrics_of(models, task)
