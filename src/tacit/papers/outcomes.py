"""From finished jobs to a `Comparison`: results of all rows, and the curves, histograms or maps that a figure needs.

It reads the files of the runs; only importance maps need the data again.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from tacit.core import Method, Report
from tacit.core.prices import Unit
from tacit.core.state import MASK
from tacit.data import Task
from tacit.engine import ClientTrace, client_traces
from tacit.errors import BudgetError, RunError
from tacit.papers.comparison import Comparison, ComparisonRow, Curves, RowTrial
from tacit.papers.comparison_figures import MEAN, map_name
from tacit.papers.figure_specs import HistogramPanel, HistogramPlot, ImportanceMaps, LinePlot
from tacit.papers.jobs import AttackJob, Job
from tacit.papers.quantities import FinishedRun, derive, short
from tacit.papers.study import Study
from tacit.pieces.mechanisms import InputFeatures
from tacit.pieces.mechanisms.importance import MEASURES, Importance
from tacit.privacy.charging import Charges, begin_charges
from tacit.privacy.leakage import LeakageAccounting
from tacit.report.cards import card
from tacit.report.pictures import Gallery
from tacit.report.run_data import thin
from tacit.runs.directory import read_manifest, read_rounds
from tacit.runs.manifest import versions
from tacit.runs.run import calibrate_method, guarantees_of

MAX_POINTS = 100
SHOWN = 0.999  # share of the weights within the axis of a histogram; a few outliers would leave it empty
ATTACK_COLUMNS = ("images", "recovered", "unrecognisable", "ssim", "psnr", "mse")
Weights = NDArray[np.float64]
RunKey = tuple[str, int]  # row and seed


def compare(study: Study, jobs: Iterable[Sequence[Job]], *, fast: bool) -> Comparison:
    """Compare a study's finished jobs, grouped by row, with the published numbers."""
    groups = [*jobs]
    rows = tuple(_row(group, study) for group in groups)
    with_figure_data = _FIGURE_DATA.get(type(study.plot))
    return _comparison(study, with_figure_data(rows, groups, study.plot) if with_figure_data else rows, fast=fast)


def _comparison(study: Study, rows: tuple[ComparisonRow, ...], *, fast: bool) -> Comparison:
    return Comparison(
        name=study.name,
        title=study.title,
        fast=fast,
        versions=versions(),
        rows=rows,
        plot=study.plot,
        columns=study.columns,
        stand_in=study.stand_in,
        rankings=study.rankings,
    )


def compare_attacks(study: Study, groups: Sequence[Sequence[AttackJob]], *, fast: bool) -> Comparison:
    """Compare a study's finished attacks, grouped by row; images are those of the first seed."""
    firsts = [group[0].strips() for group in groups]
    originals = next((strips[0] for strips in firsts if len(strips) > 1), None)
    shown = [strips[-1] for strips in firsts]
    gallery = Gallery(strips=tuple([originals, *shown] if originals else shown))
    comparison = _comparison(study, tuple(_attack_row(group) for group in groups), fast=fast)
    return replace(comparison, plot=gallery, columns=ATTACK_COLUMNS, rankings=())


def _row(jobs: Sequence[Job], study: Study) -> ComparisonRow:
    job = jobs[0]
    runs = [_read_run(each) for each in jobs]
    longest = max(runs, key=lambda run: len(run.reports))
    method, task, reports = longest.method, longest.task, longest.reports
    charged = begin_charges(method, task.clients, task.units, reports)
    leakage = LeakageAccounting.of(method, task.parameters, task.clients, reports)
    guarantees = guarantees_of(method, task.unit, reports, charged, leakage, not_covered=task.not_covered).values()
    charges = charged.get(Unit.CLIENT)
    delta = charges.delta_at_budget if charges else None
    trials = [_trial(each.seed, run, delta, study) for each, run in zip(jobs, runs, strict=True)]
    return replace(
        _plain_row(job, trials, "\n".join(map(str, guarantees))),
        paper=job.row.paper,
        source=job.row.source,
        proved=all(guarantee.proved for guarantee in guarantees),
        spent=charges is not None and _is_exhausted(charges),
        caveat=job.method.channel.caveat,
    )


def _attack_row(group: Sequence[AttackJob]) -> ComparisonRow:
    job = group[0].job
    job.experiment.check_trust()
    guarantee = card(job.experiment.method, job.experiment.args).guarantee
    return _plain_row(job, [attack.trial() for attack in group], guarantee)


def _plain_row(job: Job, trials: Sequence[RowTrial], guarantee: str) -> ComparisonRow:
    """What was run, and its results, without published numbers."""
    experiment = job.experiment
    return ComparisonRow(
        name=job.row.name,
        method=experiment.method,
        args=experiment.convert_args(),
        task=experiment.task,
        task_args=experiment.convert_task_args(),
        trials=tuple(trials),
        guarantee=guarantee,
    )


def find_row(job: Job, saved: Comparison | None) -> ComparisonRow | None:
    """The saved results of a job's row, with all seeds; None: there are none, or they are of other settings."""
    own = _plain_row(job, (), "")
    rows = saved.rows if saved else ()
    return next((row for row in rows if row.name == own.name and row.same_settings(own)), None)


def _read_run(job: Job) -> FinishedRun:
    task = read_manifest(job.directory).task
    return FinishedRun(
        method=calibrate_method(job.method, task.clients, task.units),
        task=task,
        reports=read_rounds(job.directory),
        directory=job.directory,
    )


def _trial(seed: int, run: FinishedRun, delta: float | None, study: Study) -> RowTrial:
    main = run.main_metric()
    quantities = study.plot.y if isinstance(study.plot, LinePlot) else (main,) * bool(main)
    values = {**_values(run, delta), **derive(run, study.columns)}
    finite = {name: value if value is not None and math.isfinite(value) else None for name, value in values.items()}
    return RowTrial(seed=seed, values=finite, curves=_curves(run.reports, quantities))


def _values(run: FinishedRun, delta: float | None) -> dict[str, float | None]:
    main, reports, best = run.main_metric(), run.reports, run.best()
    return {
        **{name: short(value) for name, value in run.final_metrics().items()},
        **({f"best_{main}": short(best.metrics[main])} if best else {}),
        "rounds": len(reports),
        "cost": sum(len(report.clients) for report in reports),
        "epsilon": reports[-1].epsilons.get(Unit.CLIENT) if reports else None,
        "delta": delta,
        "up": sum(sum(report.up) for report in reports),
        "down": sum(sum(report.down) for report in reports),
        "seconds": sum(report.seconds for report in reports),
    }


def _curves(reports: Sequence[Report], quantities: Sequence[str]) -> Curves:
    """The quantities over the rounds in which any was measured, with six digits."""
    measured = [report for report in reports if any(_quantity(report, name) is not None for name in quantities)]
    shown = thin(measured or reports, MAX_POINTS)
    curves = {name: tuple(short(_quantity(report, name)) for report in shown) for name in quantities}
    return {"round": tuple(report.round for report in shown), **curves}


def _quantity(report: Report, name: str) -> float | None:
    epsilon = report.epsilons.get(Unit.CLIENT)
    recorded = {"variance": report.variance, "scale": report.scale, "norm": report.norm, "epsilon": epsilon}
    return recorded[name] if name in recorded else report.metrics.get(name)


def _is_exhausted(charges: Charges) -> bool:
    """Whether the budget allows no further round."""
    try:
        charges.reserve()  # without a ledger, nothing is charged
    except BudgetError:
        return True
    return False


def _with_histograms(
    rows: Sequence[ComparisonRow], groups: Sequence[Sequence[Job]], plot: HistogramPlot
) -> tuple[ComparisonRow, ...]:
    """Add the distribution of each trial's final weights at a mask, and their mean magnitude."""
    jobs = {(job.row.name, job.seed): job for group in groups for job in group}
    histograms = {key: each for panel in plot.panels for key, each in _histograms(panel, jobs, plot.bins).items()}

    def draw(row: ComparisonRow, trial: RowTrial) -> RowTrial:
        if (row.name, trial.seed) not in histograms:
            return trial
        curves, magnitude = histograms[row.name, trial.seed]
        return replace(trial, values={**trial.values, "magnitude": short(magnitude)}, curves=curves)

    return tuple(replace(row, trials=tuple(draw(row, trial) for trial in row.trials)) for row in rows)


def _histograms(panel: HistogramPanel, jobs: Mapping[RunKey, Job], bins: int) -> dict[RunKey, tuple[Curves, float]]:
    """The panel's common edges with the density between them, and the mean magnitude, by run."""
    weights = {key: _weights(job, panel.mask, jobs) for key, job in jobs.items() if key[0] in panel.rows}
    if not weights:
        return {}
    limit = float(np.quantile(np.abs(np.concatenate([*weights.values()])), SHOWN)) or 1.0
    edges = np.linspace(-limit, limit, bins + 1)
    width = edges[1] - edges[0]
    histograms: dict[RunKey, tuple[Curves, float]] = {}
    for key, own in weights.items():
        density = np.histogram(own, edges)[0] / (len(own) * width)
        histograms[key] = {"weight": _six_digits(edges), "density": _six_digits(density)}, float(np.abs(own).mean())
    return histograms


def _weights(job: Job, mask: str, jobs: Mapping[RunKey, Job]) -> Weights:
    """A run's final weights at the mask of the row `mask`, in the run with the same seed."""
    if (mask, job.seed) not in jobs:
        raise RunError(f"Expected a run of {mask!r} with seed {job.seed} too: {job.label} needs its mask.")
    state, other = job.final_state(), jobs[mask, job.seed].final_state()
    if MASK not in other.memory:
        raise RunError(f"Expected the run of {mask!r} with seed {job.seed} to have a mask. Choose a row like FL-TOP.")
    if len(state.weights) != len(other.weights):
        raise RunError(f"Expected {job.label} to have as many weights as {mask!r}, whose mask is used.")
    return state.weights[other.memory[MASK].long()].double().numpy()


def _with_maps(
    rows: Sequence[ComparisonRow], groups: Sequence[Sequence[Job]], plot: ImportanceMaps
) -> tuple[ComparisonRow, ...]:
    """Add the client's importance maps to the first row's trials."""
    trials = [replace(trial, curves=_maps(job, plot)) for trial, job in zip(rows[0].trials, groups[0], strict=True)]
    return (replace(rows[0], trials=tuple(trials)), *rows[1:])


def _maps(job: Job, plot: ImportanceMaps) -> Curves:
    """All maps of one run, to six digits; the run is repeated for them."""
    task = job.experiment.build_task()
    shape = _image_shape(task, job)
    method = calibrate_method(job.method, len(task.population), task.population.client_units)
    tensors = {MEAN: task.population[plot.client][0].double().mean(0)}
    at = [number for number in plot.at if number <= method.rounds]
    for trace in client_traces(method, task, client=plot.client, at=at, seed=job.seed):
        for measure in plot.importance:
            importance = _importance(trace, method, MEASURES[measure], plot.noise)
            tensors[map_name(measure, trace.now.index + 1)] = importance
    maps = {name: _six_digits(values.flatten().tolist()) for name, values in tensors.items()}
    return {"shape": tuple(map(float, shape)), **maps}


def _importance(trace: ClientTrace, method: Method, measure: Importance, noise: float) -> Tensor:
    rows, received = trace.messages.rows.dense(), trace.view.weights
    weights = rows if method.trainer.sends == "weights" else rows + received
    return measure.of(weights, received, trace.data, InputFeatures().of(trace.data.shapes), noise)[0]


def _image_shape(task: Task, job: Job) -> tuple[int, ...]:
    """Height and width of a sample, which must be an image of one channel."""
    shape = tuple(task.population.x.shape[1:])
    if len(shape) == 3 and shape[0] == 1:
        shape = shape[1:]
    if len(shape) != 2:
        raise RunError(f"Expected {job.label} to learn from images of one channel, got samples of shape {shape}.")
    return shape


def _six_digits(values: Iterable[float]) -> tuple[float | None, ...]:
    return tuple(map(short, values))


# Figures whose curves are not quantities over rounds.
_FIGURE_DATA: Mapping[type, Callable[..., tuple[ComparisonRow, ...]]]
_FIGURE_DATA = {HistogramPlot: _with_histograms, ImportanceMaps: _with_maps}
