"""Quantities that follow from a run's files: which round was best, and what had travelled and been spent by then.

| quantity | what it is |
|---|---|
| `best_round` | the first round in which the main metric was best, of those that were measured |
| `<metric>_at_best` | another metric in that round |
| `first_<metric>`, `mean_<metric>` | a metric after the first round that was measured, and the mean of all that were |
| `cost_down`, `cost_up` | kilobytes per client up to that round by the usual formula, `tacit.runs.bandwidth.cost` |
| `kilobytes_down`, `kilobytes_up` | the same as measured: every byte of every frame, over all clients |
| `epsilon_classic` | ε up to that round as papers have it: the moments accountant, as if cohorts were Poisson |
| `bound` | the bound that clients clip to, where it came from public data |
| `volume`, `volume_up`, `volume_down` | megabytes of all messages, as measured, in the rounds after the warm-up |
| `uploads` | megabytes that all clients of one of these rounds sent, on average |
| `leakage` | what the client that took part most often has leaked (d-privacy), nominal or proved |
| `miss` | synthetic data: the farther of the two optima from the nearest hypothesis that the run leaves |
| `found` | synthetic data: 1 if both optima were found, to within 0.6, otherwise 0 |
| `right` | synthetic data: the share of clients that choose the hypothesis nearest to their own group's optimum |

A message's values follow from its measured length: a frame without its headers is four bytes for each of them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import fsum
from pathlib import Path

import torch
from torch import Tensor

from tacit.core import Method, Report
from tacit.core.stopping import final_weights
from tacit.pieces.mechanisms.clipping import BOUND
from tacit.pieces.samplers import Poisson
from tacit.pieces.trainers import AdmmPrune, MagnitudePrune
from tacit.report.comparison import LOWER_IS_BETTER
from tacit.runs import checkpoint
from tacit.runs.bandwidth import Bandwidth, cost
from tacit.runs.directory import CHECKPOINT, read_manifest
from tacit.runs.run import final_metrics
from tacit.tasks.synthetic import THETA, synthetic
from tacit.wire import frames

AT_BEST = "_at_best"
METRICS = ("accuracy", "balanced_accuracy", "auroc", "rmse", "loss", "pruned_accuracy", "density")
ALWAYS = ("rounds", "cost", "epsilon", "delta", "up", "down", "seconds", "magnitude")  # the last one in histograms only
NEAR = 0.6
HEADERS = frames.size({frames.Part.ROW: torch.empty(0)})  # of a frame with one part: 36 bytes


@dataclass(frozen=True, kw_only=True, eq=False)
class Finished:
    """A finished run as its files tell it.

    Attributes:
        method: what was run, with its noise.
        clients: the population.
        parameters: how many weights the model has.
        reports: all rounds.
        directory: where its files are.
    """

    method: Method
    clients: int
    parameters: int
    reports: Sequence[Report]
    directory: Path

    def main(self) -> str:
        """The metric by which rounds are compared: the first one that was measured."""
        return next((next(iter(report.metrics)) for report in self.reports if report.metrics), "")

    def best(self) -> Report | None:
        """The first of the rounds in which the main metric was best; None if nothing was measured."""
        main = self.main()
        measured = [report for report in self.reports if main in report.metrics]
        sign = -1 if main in LOWER_IS_BETTER else 1
        return max(measured, key=lambda report: sign * report.metrics[main], default=None)

    def final_metrics(self) -> Mapping[str, float]:
        """The metrics of the model that the run leaves: measured last or, with patience, of the least loss."""
        return final_metrics(self.method, self.reports)

    def until_best(self) -> Sequence[Report]:
        """The rounds up to the best."""
        best = self.best()
        return self.reports[: best.round] if best else ()


def derived(run: Finished, columns: Sequence[str]) -> dict[str, float | None]:
    """Those of the columns that are not told of every run anyway."""
    found = {name: DERIVED[name](run) for name in columns if name in DERIVED}
    best = run.best()
    metrics = best.metrics if best else {}
    found |= {name: metrics.get(name.removesuffix(AT_BEST)) for name in columns if name.endswith(AT_BEST)}
    return found | {name: OVER_ROUNDS[name](run) for name in columns if name in OVER_ROUNDS}


def _first(metric: str) -> Callable[[Finished], float | None]:
    return lambda run: next((report.metrics[metric] for report in run.reports if metric in report.metrics), None)


def _mean(metric: str) -> Callable[[Finished], float | None]:
    def quantity(run: Finished) -> float | None:
        measured = [report.metrics[metric] for report in run.reports if metric in report.metrics]
        return fsum(measured) / len(measured) if measured else None

    return quantity


def values_up(run: Finished) -> int:
    """How many values a client's message has, by its measured length."""
    return (min(length for report in run.reports for length in report.up) - HEADERS) // 4


def values_down(run: Finished) -> int:
    """How many weights a client is sent: all of them if there is room for so many in every frame, or those it sends."""
    least = min(length for report in run.reports for length in report.down)
    return run.parameters if least >= HEADERS + 4 * run.parameters else values_up(run)


def _best_round(run: Finished) -> float | None:
    best = run.best()
    return best.round if best else None


def _cost(values: Callable[[Finished], int]) -> Callable[[Finished], float | None]:
    def quantity(run: Finished) -> float | None:
        rounds = len(run.until_best())
        if not rounds or not any(report.clients for report in run.reports):
            return None
        expected = sum(run.method.sampler.expected(run.clients, index) for index in range(rounds))
        return cost(values(run), rounds, expected / rounds / run.clients)

    return quantity


def _kilobytes(way: Callable[[Bandwidth], int]) -> Callable[[Finished], float]:
    return lambda run: way(Bandwidth.of(run.until_best())) / run.clients / 1000


def _volume(way: Callable[[Bandwidth], int]) -> Callable[[Finished], float | None]:
    def quantity(run: Finished) -> float | None:
        trainer = run.method.trainer
        if not isinstance(trainer, AdmmPrune | MagnitudePrune):
            return None
        return way(Bandwidth.of(run.reports[trainer.warm_up :])) / 1e6

    return quantity


def _uploads(run: Finished) -> float | None:
    whole = _volume(lambda book: book.up)(run)
    trainer = run.method.trainer
    if whole is None or not isinstance(trainer, AdmmPrune | MagnitudePrune):
        return None
    return whole / max(len(run.reports) - trainer.warm_up, 1)


def _epsilon_classic(run: Finished) -> float | None:
    """Without noise there is none."""
    method, rounds = run.method, len(run.until_best())
    if not rounds or not method.priced:
        return None
    from tacit.privacy.accountants import RdpClassic
    from tacit.privacy.accounting import Accounting
    from tacit.privacy.events import event_of

    sizes = [method.sampler.expected(run.clients, index) for index in range(rounds)]
    as_poisson = {size: replace(method, sampler=Poisson(size)) for size in set(sizes)}
    events = [event_of(as_poisson[size], run.clients, index) for index, size in enumerate(sizes)]
    return Accounting.of(RdpClassic(), [event for event in events if event is not None]).epsilon(method.delta)


def _bound(run: Finished) -> float | None:
    """The one that the run's state remembers."""
    state = checkpoint.read(run.directory / CHECKPOINT)
    return float(state.memory[BOUND]) if state is not None and BOUND in state.memory else None


def _leakage(run: Finished) -> float | None:
    return run.reports[-1].leakage if run.reports else None


def _hypotheses(run: Finished) -> Tensor | None:
    """Those that a run on synthetic data leaves, (k, 2)."""
    state = checkpoint.read(run.directory / CHECKPOINT)
    known = state is not None and read_manifest(run.directory).task.name == "synthetic"
    return final_weights(state).view(-1, 2) if known and state is not None else None


def _miss(run: Finished) -> float | None:
    found = _hypotheses(run)
    return None if found is None else float(torch.cdist(THETA, found).min(1).values.max())


def _found(run: Finished) -> float | None:
    miss = _miss(run)
    return None if miss is None else float(miss <= NEAR)


def _right(run: Finished) -> float | None:
    """None is right where one hypothesis is the nearest to both optima."""
    found = _hypotheses(run)
    if found is None:
        return None
    nearest = torch.cdist(THETA, found).argmin(1)
    people = synthetic(**(read_manifest(run.directory).task.args or {})).population  # type: ignore[arg-type]
    errors = (people.y - people.x @ found.T).square().view(len(people), -1, len(found)).mean(1)
    right = errors.argmin(1) == nearest[torch.arange(len(people)) % 2]
    return float(right.float().mean()) if nearest[0] != nearest[1] else 0.0


DERIVED: dict[str, Callable[[Finished], float | None]] = {
    "best_round": _best_round,
    "cost_down": _cost(values_down),
    "cost_up": _cost(values_up),
    "kilobytes_down": _kilobytes(lambda book: book.down),
    "kilobytes_up": _kilobytes(lambda book: book.up),
    "epsilon_classic": _epsilon_classic,
    "bound": _bound,
    "volume": _volume(lambda book: book.up + book.down),
    "volume_up": _volume(lambda book: book.up),
    "volume_down": _volume(lambda book: book.down),
    "uploads": _uploads,
    "leakage": _leakage,
    "miss": _miss,
    "found": _found,
    "right": _right,
}
OVER_ROUNDS = {f"first_{name}": _first(name) for name in METRICS} | {f"mean_{name}": _mean(name) for name in METRICS}
BEST = (*(f"best_{name}" for name in METRICS), *(name + AT_BEST for name in METRICS))
KNOWN = (*METRICS, *BEST, *ALWAYS, *OVER_ROUNDS, *DERIVED)
