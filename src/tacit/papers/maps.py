"""What matters to a client in some rounds, found by playing finished runs again. It needs the data."""

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from tacit.core import Method, Task
from tacit.engine import ClientTrace, client_traces
from tacit.errors import RunError
from tacit.papers.jobs import Job
from tacit.pieces.mechanisms import Inputs
from tacit.pieces.mechanisms.importance import MEASURES, Importance
from tacit.report.comparison import Curves, Row
from tacit.report.maps import MEAN, name_of
from tacit.report.plots import Maps
from tacit.runs.run import size_noise


def with_maps(rows: Sequence[Row], jobs: Sequence[Sequence[Job]], plot: Maps) -> tuple[Row, ...]:
    """The rows, and with the first one's trials the maps of the client."""
    trials = [replace(trial, curves=_maps(job, plot)) for trial, job in zip(rows[0].trials, jobs[0], strict=True)]
    return (replace(rows[0], trials=tuple(trials)), *rows[1:])


def _maps(job: Job, plot: Maps) -> Curves:
    """All maps of one run, six digits each."""
    task = job.experiment.build_task()
    shape = _shape(task, job)
    method = size_noise(job.method, len(task.population))
    found = {MEAN: task.population[plot.client][0].double().mean(0)}
    at = [number for number in plot.at if number <= method.rounds]
    for seen in client_traces(method, task, client=plot.client, at=at, seed=job.seed):
        for measure in plot.importance:
            found[name_of(measure, seen.now.index + 1)] = _importance(seen, method, MEASURES[measure], plot.noise)
    shortened = {name: tuple(float(f"{v:.6g}") for v in values.flatten().tolist()) for name, values in found.items()}
    return {"shape": tuple(map(float, shape)), **shortened}


def _importance(seen: ClientTrace, method: Method, measure: Importance, noise: float) -> Tensor:
    rows, received = seen.messages.rows.dense(), seen.view.weights
    weights = rows if method.trainer.sends == "weights" else rows + received
    return measure.of(weights, received, seen.data, Inputs().of(seen.data.shapes), noise)[0]


def _shape(task: Task, job: Job) -> tuple[int, ...]:
    """That of a sample, if it is a picture of one channel and every pixel is an input."""
    shape = tuple(task.population.x.shape[1:])
    if len(shape) == 3 and shape[0] == 1:
        shape = shape[1:]
    if len(shape) != 2:
        raise RunError(f"Expected {job.label} to learn from pictures of one channel, got samples of shape {shape}.")
    return shape
