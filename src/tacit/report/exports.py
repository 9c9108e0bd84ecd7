"""A run for other programs: its rounds as a table, its model as PyTorch reads it."""

import csv
import io
from pathlib import Path

import safetensors.torch
import torch
from safetensors import SafetensorError

from tacit.errors import RunError
from tacit.report.run_data import RunData, metric_names
from tacit.runs.directory import MODEL


def rounds_csv(run: RunData) -> bytes:
    """One line per round: how many took part, but not who, and not the norms of messages, which no noise hides."""
    metrics = metric_names(report.metrics for report in run.reports)
    parts = metric_names(report.timings for report in run.reports)
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    header = ["round", "cohort", "delivered", "up", "down", "epsilon", "leakage", "seconds"]
    table.writerow([*header, *metrics, *(f"seconds_{name}" for name in parts)])
    for report in run.reports:
        known = [report.round, report.turnout.cohort, report.turnout.delivered, sum(report.up), sum(report.down)]
        private = ["" if value is None else value for value in (report.epsilon, report.leakage)]
        measured = [report.metrics.get(name, "") for name in metrics]
        table.writerow([*known, *private, report.seconds, *measured, *(report.timings.get(name, "") for name in parts)])
    return text.getvalue().encode()


def state_dict(run: RunData) -> bytes:
    """The model as `torch.save` writes a `state_dict`; `torch.load(file, weights_only=True)` reads it."""
    tensors = _tensors(run.path / MODEL)
    content = io.BytesIO()
    torch.save(tensors, content)
    return content.getvalue()


def _tensors(file: Path) -> dict[str, torch.Tensor]:
    if not file.exists():
        raise RunError(
            f"Expected a finished run, but there is no {file}. Finish it with tacit run --resume {file.parent}."
        )
    try:
        return safetensors.torch.load_file(file)
    except (SafetensorError, OSError) as error:
        raise RunError(f"Could not read the model {file}: {error}.") from error
