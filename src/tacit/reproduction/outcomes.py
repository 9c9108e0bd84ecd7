"""What finished runs come to, set beside the paper's numbers. It needs the runs' files, and not the data."""

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from tacit.books.guarantee import Guarantee
from tacit.core import Method, Report
from tacit.manifest import versions
from tacit.report.comparison import LOWER_IS_BETTER, Comparison, Curves, Plot, Row, Trial, Values
from tacit.reproduction.jobs import Job
from tacit.reproduction.studies import Study
from tacit.results import read_manifest, read_rounds
from tacit.training import fitted

if TYPE_CHECKING:
    from tacit.spending import Spending

MOST_POINTS = 100


def compare(study: Study, jobs: Iterable[Sequence[Job]], *, fast: bool) -> Comparison:
    """What came of a study's jobs, a row for each group of them; all of them are finished."""
    return Comparison(
        name=study.name,
        title=study.title,
        fast=fast,
        versions=versions(),
        rows=tuple(_row(group, study.plot) for group in jobs),
        plot=study.plot,
    )


def thinned(reports: Sequence[Report], most: int = MOST_POINTS) -> list[Report]:
    """At most so many rounds, evenly spread, with the first and the last."""
    if len(reports) <= most:
        return list(reports)
    return [reports[round(i * (len(reports) - 1) / (most - 1))] for i in range(most)]


def _row(jobs: Sequence[Job], plot: Plot | None) -> Row:
    job, experiment = jobs[0], jobs[0].experiment
    rounds = [read_rounds(each.directory) for each in jobs]
    clients = read_manifest(job.directory).task.clients
    longest = max(rounds, key=len)
    spending = _spending(fitted(job.method, clients), clients, longest)
    if spending is None:
        guarantee = Guarantee.none(job.method.mechanism.unproved, rounds=len(longest))
    else:
        guarantee = spending.guarantee(longest)
    delta = spending.delta_at_budget if spending else None
    return Row(
        name=job.row.name,
        method=experiment.method,
        args=experiment.typed_args(),
        task=experiment.task,
        task_args=experiment.typed_task_args(),
        trials=tuple(_trial(each.seed, done, delta, plot) for each, done in zip(jobs, rounds, strict=True)),
        paper=job.row.paper,
        source=job.row.source,
        proved=guarantee.proved,
        guarantee=str(guarantee),
        spent=spending is not None and _spent(spending),
    )


def _trial(seed: int, reports: Sequence[Report], delta: float | None, plot: Plot | None) -> Trial:
    measured = [report for report in reports if report.metrics]
    main = next(iter(measured[-1].metrics), "") if measured else ""
    quantities = plot.y if plot else (main,) * bool(main)
    return Trial(seed=seed, values=_values(reports, main, delta), curves=_curves(reports, quantities))


def _values(reports: Sequence[Report], main: str, delta: float | None) -> Values:
    last = next((report.metrics for report in reversed(reports) if report.metrics), {})
    metrics = {name: _short(value) for name, value in last.items()}
    seen = [report.metrics[main] for report in reports if main in report.metrics]
    best = {f"best_{main}": _short((min if main in LOWER_IS_BETTER else max)(seen))} if seen else {}
    values = {
        **metrics,
        **best,
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
    """The quantities over the rounds, six digits each."""
    shown = thinned(reports)
    curves = {name: tuple(_short(_quantity(report, name)) for report in shown) for name in quantities}
    return {"round": tuple(report.round for report in shown), **curves}


def _quantity(report: Report, name: str) -> float | None:
    own = {"variance": report.variance, "scale": report.scale, "norm": report.norm, "epsilon": report.epsilon}
    return own[name] if name in own else report.metrics.get(name)


def _short(value: float | None) -> float | None:
    """Six digits: metrics come in single precision, where 0.78 is a little less than 0.78."""
    finite = _finite(value)
    return None if finite is None else float(f"{finite:.6g}")


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _spending(method: Method, clients: int, reports: Sequence[Report]) -> "Spending | None":
    """What these rounds of a method cost; None if it adds no noise."""
    if not method.mechanism.noisy or method.mechanism.event(0) is None:
        return None
    from tacit.spending import Spending

    return Spending.begin(method, clients, [report.turnout for report in reports])


def _spent(spending: "Spending") -> bool:
    """Whether the budget allows no further round."""
    budget = spending.method.budget
    return budget is not None and spending.reserve().epsilon > budget.epsilon
