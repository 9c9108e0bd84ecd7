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
from math import fsum
from pathlib import Path

import torch
from torch import Tensor

from tacit.core import Method, Report
from tacit.core.prices import ClientUnits, Unit
from tacit.core.state import final_weights
from tacit.papers.comparison import LOWER_IS_BETTER
from tacit.pieces.mechanisms.clipping import BOUND
from tacit.pieces.samplers import Poisson
from tacit.privacy.accountants import Accounting, RdpClassic
from tacit.privacy.planned_charges import release_of
from tacit.runs import checkpoint
from tacit.runs.bandwidth import Bandwidth, cost
from tacit.runs.directory import CHECKPOINT, read_manifest
from tacit.runs.records import final_metrics
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
        clients: the size of the population.
        parameters: the number of weights of the model.
        reports: one per round.
        directory: the folder of its files.
        not_covered: what no guarantee covers because of the task, a sentence each.
        units: what is protected within clients, if a guarantee depends on it.
    """

    method: Method
    clients: int
    parameters: int
    reports: Sequence[Report]
    directory: Path
    not_covered: Sequence[str] = ()
    units: ClientUnits | None = None

    @property
    def unit(self) -> Unit:
        """What is protected within clients, if anything is."""
        return Unit.RECORD if self.units is None else self.units.unit

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


def derived(run: FinishedRun, columns: Sequence[str]) -> dict[str, float | None]:
    """Compute those of the columns that are not reported for every run anyway."""
    found = {name: DERIVED[name](run) for name in columns if name in DERIVED}
    best = run.best()
    metrics = best.metrics if best else {}
    found |= {name: metrics.get(name.removesuffix(AT_BEST)) for name in columns if name.endswith(AT_BEST)}
    return found | {name: OVER_ROUNDS[name](run) for name in columns if name in OVER_ROUNDS}


def _first(metric: str) -> Callable[[FinishedRun], float | None]:
    return lambda run: next((report.metrics[metric] for report in run.reports if metric in report.metrics), None)


def _mean(metric: str) -> Callable[[FinishedRun], float | None]:
    def quantity(run: FinishedRun) -> float | None:
        measured = [report.metrics[metric] for report in run.reports if metric in report.metrics]
        return fsum(measured) / len(measured) if measured else None

    return quantity


def values_up(run: FinishedRun) -> int:
    """The number of values in a client's message, by its measured length."""
    return (min(length for report in run.reports for length in report.up) - HEADERS) // 4


def values_down(run: FinishedRun) -> int:
    """The number of weights sent to a client: all of them if every frame is long enough, else as many as it sends."""
    shortest = min(length for report in run.reports for length in report.down)
    return run.parameters if shortest >= HEADERS + 4 * run.parameters else values_up(run)


def _best_round(run: FinishedRun) -> float | None:
    best = run.best()
    return best.round if best else None


def _cost(values: Callable[[FinishedRun], int]) -> Callable[[FinishedRun], float | None]:
    def quantity(run: FinishedRun) -> float | None:
        rounds = len(run.until_best())
        if not rounds or not any(report.clients for report in run.reports):
            return None
        expected = sum(
            run.method.sampler.sampling(run.clients, index).mean_cohort(run.clients) for index in range(rounds)
        )
        return cost(values(run), rounds, expected / rounds / run.clients)

    return quantity


def _kilobytes(direction: Callable[[Bandwidth], int]) -> Callable[[FinishedRun], float]:
    return lambda run: direction(Bandwidth.of(run.until_best())) / run.clients / 1000


def _volume(direction: Callable[[Bandwidth], int]) -> Callable[[FinishedRun], float | None]:
    def quantity(run: FinishedRun) -> float | None:
        pruning = _pruning(run)
        return None if pruning is None else direction(Bandwidth.of(pruning)) / 1e6

    return quantity


def _uploads(run: FinishedRun) -> float | None:
    pruning = _pruning(run)
    return None if pruning is None else Bandwidth.of(pruning).up / 1e6 / max(len(pruning), 1)


def _pruning(run: FinishedRun) -> Sequence[Report] | None:
    """The rounds after the warm-up; None for a method that does not prune."""
    warm_up = getattr(run.method.trainer, "warm_up", None)
    return None if warm_up is None else run.reports[warm_up:]


def _epsilon_classic(run: FinishedRun) -> float | None:
    method, rounds = run.method, len(run.until_best())
    if not rounds or Unit.CLIENT not in method.terms.accounted:
        return None
    sizes = [method.sampler.sampling(run.clients, index).mean_cohort(run.clients) for index in range(rounds)]
    as_poisson = {size: replace(method, sampler=Poisson(size)) for size in set(sizes)}
    releases = [release_of(as_poisson[size], run.clients, index) for index, size in enumerate(sizes)]
    return Accounting.of(RdpClassic(), [release for release in releases if release is not None]).epsilon(method.delta)


def _bound(run: FinishedRun) -> float | None:
    state = checkpoint.read(run.directory / CHECKPOINT)
    return float(state.memory[BOUND]) if state is not None and BOUND in state.memory else None


def _leakage(run: FinishedRun) -> float | None:
    return run.reports[-1].leakage if run.reports else None


def _hypotheses(run: FinishedRun) -> Tensor | None:
    """The final hypotheses of a run on synthetic data, (k, 2)."""
    state = checkpoint.read(run.directory / CHECKPOINT)
    known = state is not None and read_manifest(run.directory).task.name == "synthetic"
    return final_weights(state).view(-1, 2) if known and state is not None else None


def _miss(run: FinishedRun) -> float | None:
    found = _hypotheses(run)
    return None if found is None else float(torch.cdist(THETA, found).min(1).values.max())


def _found(run: FinishedRun) -> float | None:
    miss = _miss(run)
    return None if miss is None else float(miss <= NEAR)


def _right(run: FinishedRun) -> float | None:
    """Zero if one hypothesis is the nearest to both optima."""
    found = _hypotheses(run)
    if found is None:
        return None
    nearest = torch.cdist(THETA, found).argmin(1)
    population = synthetic(**(read_manifest(run.directory).task.args or {})).population  # type: ignore[arg-type]
    errors = (population.y - population.x @ found.T).square().view(len(population), -1, len(found)).mean(1)
    right = errors.argmin(1) == nearest[torch.arange(len(population)) % 2]
    return float(right.float().mean()) if nearest[0] != nearest[1] else 0.0


DERIVED: dict[str, Callable[[FinishedRun], float | None]] = {
    "best_round": _best_round,
    "cost_down": _cost(values_down),
    "cost_up": _cost(values_up),
    "kilobytes_down": _kilobytes(lambda traffic: traffic.down),
    "kilobytes_up": _kilobytes(lambda traffic: traffic.up),
    "epsilon_classic": _epsilon_classic,
    "bound": _bound,
    "volume": _volume(lambda traffic: traffic.up + traffic.down),
    "volume_up": _volume(lambda traffic: traffic.up),
    "volume_down": _volume(lambda traffic: traffic.down),
    "uploads": _uploads,
    "leakage": _leakage,
    "miss": _miss,
    "found": _found,
    "right": _right,
}
OVER_ROUNDS = {f"first_{name}": _first(name) for name in METRICS} | {f"mean_{name}": _mean(name) for name in METRICS}
_BEST = (*(f"best_{name}" for name in METRICS), *(name + AT_BEST for name in METRICS))
KNOWN = (*METRICS, *_BEST, *ALWAYS, *OVER_ROUNDS, *DERIVED)
