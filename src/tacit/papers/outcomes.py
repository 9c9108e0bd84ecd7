"""What finished runs come to, set beside the paper's numbers. It needs the runs' files, and for maps the data."""

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from tacit.core import Report
from tacit.errors import BudgetError
from tacit.papers.histograms import with_histograms
from tacit.papers.jobs import Job
from tacit.papers.maps import with_maps
from tacit.papers.quantities import AT_BEST, Finished, derived
from tacit.papers.studies import Study
from tacit.privacy.leakage import LeakageAccounting
from tacit.report.comparison import Comparison, Curves, Row, Trial
from tacit.report.plots import Histogram, Maps, Plot
from tacit.runs.directory import read_manifest, read_rounds
from tacit.runs.manifest import versions
from tacit.runs.run import guarantee_of, size_noise

if TYPE_CHECKING:
    from tacit.privacy.charging import Charges

MOST_POINTS = 100


def compare(study: Study, jobs: Iterable[Sequence[Job]], *, fast: bool) -> Comparison:
    """What came of a study's jobs, a row for each group of them; all of them are finished."""
    groups = [*jobs]
    rows = tuple(_row(group, study) for group in groups)
    return Comparison(
        name=study.name,
        title=study.title,
        fast=fast,
        versions=versions(),
        rows=_drawn(rows, groups, study),
        plot=study.plot,
        columns=study.columns,
        stand_in=study.stand_in,
        orders=study.orders,
    )


def _drawn(rows: tuple[Row, ...], groups: Sequence[Sequence[Job]], study: Study) -> tuple[Row, ...]:
    """The rows with what only a picture needs."""
    if isinstance(study.plot, Histogram):
        return with_histograms(rows, groups, study.plot)
    return with_maps(rows, groups, study.plot) if isinstance(study.plot, Maps) else rows


def thinned(reports: Sequence[Report], most: int = MOST_POINTS) -> list[Report]:
    """At most so many rounds, evenly spread, with the first and the last."""
    if len(reports) <= most:
        return list(reports)
    return [reports[round(i * (len(reports) - 1) / (most - 1))] for i in range(most)]


def _row(jobs: Sequence[Job], study: Study) -> Row:
    job, experiment = jobs[0], jobs[0].experiment
    runs = [_finished(each) for each in jobs]
    longest = max(runs, key=lambda run: len(run.reports))
    charges = _spending(longest)
    book = LeakageAccounting.of(longest.method, longest.parameters, longest.clients, longest.reports)
    guarantee = guarantee_of(longest.method, longest.reports, charges, book)
    delta = charges.delta_at_budget if charges else None
    return Row(
        name=job.row.name,
        method=experiment.method,
        args=experiment.typed_args(),
        task=experiment.task,
        task_args=experiment.typed_task_args(),
        trials=tuple(_trial(each.seed, run, delta, study) for each, run in zip(jobs, runs, strict=True)),
        paper=job.row.paper,
        source=job.row.source,
        proved=guarantee.proved,
        guarantee=str(guarantee),
        spent=charges is not None and _spent(charges),
        caveat=job.method.channel.caveat,
    )


def _finished(job: Job) -> Finished:
    task = read_manifest(job.directory).task
    return Finished(
        method=size_noise(job.method, task.clients),
        clients=task.clients,
        parameters=task.parameters,
        reports=read_rounds(job.directory),
        directory=job.directory,
    )


def _trial(seed: int, run: Finished, delta: float | None, study: Study) -> Trial:
    main = run.main()
    quantities = study.plot.y if isinstance(study.plot, Plot) else (main,) * bool(main)
    more = {name: _told(name, value) for name, value in derived(run, study.columns).items()}
    return Trial(seed=seed, values={**_values(run, delta), **more}, curves=_curves(run.reports, quantities))


def _values(run: Finished, delta: float | None) -> dict[str, float | None]:
    main, reports, best = run.main(), run.reports, run.best()
    last = run.final_metrics()
    values = {
        **{name: _short(value) for name, value in last.items()},
        **({f"best_{main}": _short(best.metrics[main])} if best else {}),
        "rounds": len(reports),
        "cost": sum(len(report.clients) for report in reports),
        "epsilon": reports[-1].epsilon if reports else None,
        "delta": delta,
        "up": sum(sum(report.up) for report in reports),
        "down": sum(sum(report.down) for report in reports),
        "seconds": sum(report.seconds for report in reports),
    }
    return {name: _finite(value) for name, value in values.items()}


def _curves(reports: Sequence[Report], quantities: Sequence[str]) -> Curves:
    """The quantities over the rounds in which any was measured, six digits each."""
    measured = [report for report in reports if any(_quantity(report, name) is not None for name in quantities)]
    shown = thinned(measured or reports)
    curves = {name: tuple(_short(_quantity(report, name)) for report in shown) for name in quantities}
    return {"round": tuple(report.round for report in shown), **curves}


def _quantity(report: Report, name: str) -> float | None:
    own = {"variance": report.variance, "scale": report.scale, "norm": report.norm, "epsilon": report.epsilon}
    return own[name] if name in own else report.metrics.get(name)


def _short(value: float | None) -> float | None:
    """Six digits: metrics come in single precision, where 0.78 is a little less than 0.78."""
    finite = _finite(value)
    return None if finite is None else float(f"{finite:.6g}")


def _told(name: str, value: float | None) -> float | None:
    """Metrics shortened, all else as it is."""
    return _short(value) if name.endswith(AT_BEST) else _finite(value)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _spending(run: Finished) -> "Charges | None":
    """What a run's rounds cost; None if its method adds no noise."""
    if not run.method.priced:
        return None
    from tacit.privacy.charging import Charges

    return Charges.begin(run.method, run.clients, [report.turnout for report in run.reports])


def _spent(charges: "Charges") -> bool:
    """Whether the budget allows no further round."""
    try:
        charges.reserve()  # without a ledger, nothing is charged
    except BudgetError:
        return True
    return False
