"""How weights are distributed at a mask when training ends, from the checkpoints of finished runs."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tacit.core import State
from tacit.errors import RunError
from tacit.papers.jobs import Job
from tacit.pieces.codecs.select import MASK
from tacit.report.comparison import Row
from tacit.report.plots import Histogram, Panel
from tacit.runs import checkpoint
from tacit.runs.directory import CHECKPOINT

SHOWN = 0.999  # of the weights lie within the axis; a few far ones would make it all empty
Weights = NDArray[np.float64]
Place = tuple[str, int]  # a row and a seed


def with_histograms(rows: Sequence[Row], jobs: Sequence[Sequence[Job]], plot: Histogram) -> tuple[Row, ...]:
    """The rows with the distribution of each trial's weights, and their mean magnitude."""
    places = {(job.row.name, job.seed): job for group in jobs for job in group}
    counted = dict(entry for panel in plot.panels for entry in _panel(panel, places, plot.bins).items())
    return tuple(_counted(row, counted) for row in rows)


def _counted(row: Row, counted: Mapping[Place, tuple[Weights, Weights, float]]) -> Row:
    trials = []
    for trial in row.trials:
        if (row.name, trial.seed) in counted:
            edges, density, magnitude = counted[row.name, trial.seed]
            curves = {"weight": _shortened(edges), "density": _shortened(density)}
            trial = replace(trial, values={**trial.values, "magnitude": float(f"{magnitude:.6g}")}, curves=curves)
        trials.append(trial)
    return replace(row, trials=tuple(trials))


def _panel(panel: Panel, places: Mapping[Place, Job], bins: int) -> dict[Place, tuple[Weights, Weights, float]]:
    """Edges that all of a panel share, the density between them, and the mean magnitude."""
    weights = {place: _weights(job, panel.mask, places) for place, job in places.items() if place[0] in panel.rows}
    if not weights:
        return {}
    far = float(np.quantile(np.abs(np.concatenate([*weights.values()])), SHOWN)) or 1.0
    edges = np.linspace(-far, far, bins + 1)
    width = edges[1] - edges[0]
    return {
        place: (edges, np.histogram(found, edges)[0] / (len(found) * width), float(np.abs(found).mean()))
        for place, found in weights.items()
    }


def _weights(job: Job, mask: str, places: Mapping[Place, Job]) -> Weights:
    """A run's last weights at the coordinates of the run that has the mask, with the same seed."""
    if (mask, job.seed) not in places:
        raise RunError(f"Expected a run of {mask!r} with seed {job.seed} too: {job.label} has no mask of its own.")
    own, other = _state(job), _state(places[mask, job.seed])
    if MASK not in other.memory:
        raise RunError(f"Expected the run of {mask!r} with seed {job.seed} to have a mask. Choose a row like FL-TOP.")
    if len(own.weights) != len(other.weights):
        raise RunError(f"Expected {job.label} to have as many weights as {mask!r}, whose coordinates are counted.")
    return own.weights[other.memory[MASK].long()].double().numpy()


def _state(job: Job) -> State:
    state = checkpoint.read(job.directory / CHECKPOINT)
    if state is None:
        raise RunError(f"{job.directory} has no {CHECKPOINT}. Remove it to run it anew.")
    return state


def _shortened(values: Weights) -> tuple[float, ...]:
    return tuple(float(f"{value:.6g}") for value in values)
