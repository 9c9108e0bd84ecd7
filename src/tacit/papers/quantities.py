"""Quantities derived from the files of a run: the best round, and the traffic and privacy loss up to it.

| quantity | definition |
|---|---|
| `best_round` | the first round in which the main metric was best, of those that were evaluated |
| `<metric>_at_best` | another metric in that round |
| `first_<metric>`, `mean_<metric>` | a metric in the first evaluated round, and its mean over all evaluated rounds |
| `cost_down`, `cost_up` | kilobytes per client up to the best round by the usual formula, `tacit.runs.bandwidth.cost` |
| `kilobytes_down`, `kilobytes_up` | the same as measured: every byte of every frame, divided by all clients |
| `epsilon_classic` | ε up to the best round as papers report it: moments accountant, as if sampling were Poisson |
| `bound` | the clipping bound, where it was estimated on public data |
| `volume`, `volume_up`, `volume_down` | measured megabytes of all messages in the rounds after the warm-up |
| `uploads` | megabytes sent by all clients of one of these rounds, on average |
| `leakage` | d-privacy leakage of the client that took part most often, nominal or proved |
| `miss` | synthetic data: distance of the farther of the two optima from its nearest final hypothesis |
| `found` | synthetic data: 1 if both optima were found, to within 0.6, otherwise 0 |
| `right` | synthetic data: share of clients that choose the hypothesis nearest to their own group's optimum |

The number of values in a message follows from its measured length: a frame without its headers has four bytes for each.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import fsum, isfinite
from pathlib import Path
from typing import TypeAlias

import torch
from torch import Tensor

from tacit.core import Method, Report, State
from tacit.core.prices import Unit
from tacit.core.state import final_weights
from tacit.papers.comparison import LOWER_IS_BETTER
from tacit.pieces.mechanisms.clipping import BOUND
from tacit.pieces.samplers import Poisson
from tacit.privacy.accountants import Accounting, RdpClassic
from tacit.privacy.planned_charges import release_of
from tacit.runs import checkpoint
from tacit.runs.bandwidth import Bandwidth, cost
from tacit.runs.directory import CHECKPOINT
from tacit.runs.manifest import TaskEntry
from tacit.runs.run import final_metrics
from tacit.tasks.regression import THETA, synthetic
from tacit.wire import frames

AT_BEST = "_at_best"
METRICS = ("accuracy", "balanced_accuracy", "auroc", "rmse", "loss", "pruned_accuracy", "density")
ALWAYS = ("rounds", "cost", "epsilon", "delta", "up", "down", "seconds", "magnitude")  # the last only in histograms
NEAR = 0.6
HEADERS = frames.size({frames.Part.ROW: torch.empty(0)})  # of a frame with one part, in bytes


@dataclass(frozen=True, kw_only=True, eq=False)
class FinishedRun:
    """A finished run, read from its files.

    Attributes:
        method: what was run, with its noise.
        task: what it was trained on.
        reports: one per round.
        directory: the folder of its files.
    """

    method: Method
    task: TaskEntry
    reports: Sequence[Report]
    directory: Path

    @cached_property
    def state(self) -> State | None:
        """Its final state; None: there is no checkpoint."""
        return checkpoint.read(self.directory / CHECKPOINT)

    @property
    def clients(self) -> int:
        """The size of the population."""
        return self.task.clients

    def main_metric(self) -> str:
        """The metric by which rounds are compared: the first that was evaluated; empty if none was."""
        return next((next(iter(report.metrics)) for report in self.reports if report.metrics), "")

    def best(self) -> Report | None:
        """The first round in which the main metric was best; None if nothing was evaluated."""
        main = self.main_metric()
        measured = [report for report in self.reports if main in report.metrics]
        sign = -1 if main in LOWER_IS_BETTER else 1
        return max(measured, key=lambda report: sign * report.metrics[main], default=None)

    def final_metrics(self) -> Mapping[str, float]:
        """The metrics of the final model: of the last evaluation or, with patience, of the lowest loss."""
        return final_metrics(self.method, self.reports)

    def until_best(self) -> Sequence[Report]:
        best = self.best()
        return self.reports[: best.round] if best else ()


Quantity: TypeAlias = Callable[[FinishedRun], float | None]


def derive(run: FinishedRun, columns: Sequence[str]) -> dict[str, float | None]:
    """Compute the columns that are not reported for every run."""
    return {name: DERIVED[name](run) for name in columns if name in DERIVED}


def short(value: float | None) -> float | None:
    """Six digits: metrics are single precision, in which 0.78 is slightly below 0.78."""
    return None if value is None or not isfinite(value) else float(f"{value:.6g}")


def _at_best(metric: str) -> Quantity:
    def quantity(run: FinishedRun) -> float | None:
        best = run.best()
        return short(best.metrics.get(metric)) if best else None

    return quantity


def _over_rounds(metric: str, summary: Callable[[Sequence[float]], float]) -> Quantity:
    """A summary of a metric over all rounds in which it was evaluated; None if it never was."""

    def quantity(run: FinishedRun) -> float | None:
        measured = [report.metrics[metric] for report in run.reports if metric in report.metrics]
        return summary(measured) if measured else None

    return quantity


def values_up(run: FinishedRun) -> int:
    """The number of values in a client's message, by its measured length."""
    return (min(length for report in run.reports for length in report.up) - HEADERS) // 4


def values_down(run: FinishedRun) -> int:
    """The number of weights sent to a client: all of them if every frame is long enough, else as many as it sends."""
    shortest = min(length for report in run.reports for length in report.down)
    return run.task.parameters if shortest >= HEADERS + 4 * run.task.parameters else values_up(run)


def _best_round(run: FinishedRun) -> float | None:
    best = run.best()
    return best.round if best else None


def _cohorts_until_best(run: FinishedRun) -> list[float]:
    """The expected size of the cohort of every round up to the best."""
    sampler = run.method.sampler
    return [sampler.sampling(run.clients, index).mean_cohort(run.clients) for index in range(len(run.until_best()))]


def _cost(values: Callable[[FinishedRun], int]) -> Quantity:
    def quantity(run: FinishedRun) -> float | None:
        sizes = _cohorts_until_best(run)
        if not sizes or not any(report.clients for report in run.reports):
            return None
        return cost(values(run), len(sizes), sum(sizes) / len(sizes) / run.clients)

    return quantity


def _kilobytes(direction: Callable[[Bandwidth], int]) -> Quantity:
    return lambda run: direction(Bandwidth.of(run.until_best())) / run.clients / 1000


def _megabytes(direction: Callable[[Bandwidth], int], per_round: bool = False) -> Quantity:
    """The traffic of the rounds after the warm-up; None for a method that does not prune."""

    def quantity(run: FinishedRun) -> float | None:
        warm_up = getattr(run.method.trainer, "warm_up", None)
        if warm_up is None:
            return None
        pruning = run.reports[warm_up:]
        return direction(Bandwidth.of(pruning)) / 1e6 / (max(len(pruning), 1) if per_round else 1)

    return quantity


def _epsilon_classic(run: FinishedRun) -> float | None:
    method, sizes = run.method, _cohorts_until_best(run)
    if not sizes or Unit.CLIENT not in method.terms.accounted:
        return None
    as_poisson = {size: replace(method, sampler=Poisson(size)) for size in set(sizes)}
    releases = [release_of(as_poisson[size], run.clients, index) for index, size in enumerate(sizes)]
    return Accounting.of(RdpClassic(), [release for release in releases if release is not None]).epsilon(method.delta)


def _bound(run: FinishedRun) -> float | None:
    return float(run.state.memory[BOUND]) if run.state is not None and BOUND in run.state.memory else None


def _hypotheses(run: FinishedRun) -> Tensor | None:
    """The final hypotheses of a run on synthetic data, (k, 2)."""
    if run.state is None or run.task.name != "synthetic":
        return None
    return final_weights(run.state).view(-1, 2)


def _miss(run: FinishedRun) -> float | None:
    hypotheses = _hypotheses(run)
    return None if hypotheses is None else float(torch.cdist(THETA, hypotheses).min(1).values.max())


def _both_optima(run: FinishedRun) -> float | None:
    miss = _miss(run)
    return None if miss is None else float(miss <= NEAR)


def _right(run: FinishedRun) -> float | None:
    """Zero if one hypothesis is the nearest to both optima."""
    hypotheses = _hypotheses(run)
    if hypotheses is None:
        return None
    nearest = torch.cdist(THETA, hypotheses).argmin(1)
    population = synthetic(**(run.task.args or {})).population  # type: ignore[arg-type]
    errors = (population.y - population.x @ hypotheses.T).square().view(len(population), -1, len(hypotheses)).mean(1)
    right = errors.argmin(1) == nearest[torch.arange(len(population)) % 2]
    return float(right.float().mean()) if nearest[0] != nearest[1] else 0.0


DERIVED: dict[str, Quantity] = {
    "best_round": _best_round,
    "cost_down": _cost(values_down),
    "cost_up": _cost(values_up),
    "kilobytes_down": _kilobytes(lambda traffic: traffic.down),
    "kilobytes_up": _kilobytes(lambda traffic: traffic.up),
    "epsilon_classic": _epsilon_classic,
    "bound": _bound,
    "volume": _megabytes(lambda traffic: traffic.up + traffic.down),
    "volume_up": _megabytes(lambda traffic: traffic.up),
    "volume_down": _megabytes(lambda traffic: traffic.down),
    "uploads": _megabytes(lambda traffic: traffic.up, per_round=True),
    "leakage": lambda run: run.reports[-1].leakage if run.reports else None,
    "miss": _miss,
    "found": _both_optima,
    "right": _right,
    **{f"first_{name}": _over_rounds(name, lambda values: values[0]) for name in METRICS},
    **{f"mean_{name}": _over_rounds(name, lambda values: fsum(values) / len(values)) for name in METRICS},
    **{name + AT_BEST: _at_best(name) for name in METRICS},
}
KNOWN = (*METRICS, *(f"best_{name}" for name in METRICS), *ALWAYS, *DERIVED)
