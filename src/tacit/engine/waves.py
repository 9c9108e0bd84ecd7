"""The division of a cohort into waves, and the training of a wave.

A wave is a few clients stacked in one set of tensors, small enough to stay in cache. The division depends only on the
cohort and the model, never on the number of workers, so that sums are the same to the last bit.
"""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import torch
from torch import Tensor, nn

from tacit.core import ClientKeys, Descent, Key, Loss, Perturbation, Query, Rows
from tacit.core.rows import ClippedSum
from tacit.core.schema import list_names
from tacit.core.wave import Shapes
from tacit.data import Population, Samples, Task
from tacit.data.adapted import first_line
from tacit.engine.batches import Batches, make_batches
from tacit.engine.layout import Layout, has_batch_statistics, has_dropout, is_slow_under_vmap
from tacit.engine.learners.functional import FunctionalLearner
from tacit.engine.learners.kernels import KernelLearner, kernel_learner
from tacit.engine.learners.records.record_learners import CANNOT_MAP, AutoRecords
from tacit.engine.learners.records.term_sums import term_sum
from tacit.engine.learners.reference import ReferenceLearner
from tacit.engine.scoring import HypothesisScorer
from tacit.errors import ModelError, TacitError

CACHE = 8 << 20  # bytes of weights and inputs per wave; the best of 4, 8 and 12 MiB with 32 MiB of shared cache
EVALUATED_AT_ONCE = 256  # test samples, or more if they are small
LARGEST = 128  # clients of a small model; more would leave too few waves for the workers
MIN_WAVES = 8  # so that several workers share a small cohort
LIGHT = 1 << 12  # products per local step below which one large wave is faster than several
MIN_MASKED = 4  # a wave shares most weights, so larger waves pay: each of 25 clients costs 17 % less than of 10
_ONE_STEP = Descent(1.0, 1, None, None, 0.0, 0.0, ClientKeys(Key.from_seed(0)))


class AutoLearner:
    """Kernels where the model and the descent allow them, otherwise `torch.func`, otherwise the reference.

    The choice depends only on the model, the loss and the descent, never on timing or on the number of workers.

    Args:
        model: the module.
        loss: what it minimises.
        like: a few samples, to test whether `torch.func` can map the module over clients.
    """

    def __init__(self, model: nn.Module, loss: Loss, like: Samples | None = None) -> None:
        self.model, self.loss, self._like = model, loss, like
        self.layout = Layout.of(model)
        self.kernels: KernelLearner | None = kernel_learner(model, loss)
        self.scorer = HypothesisScorer(model, loss)
        if self.kernels is None:
            _ = self.fallback  # chosen here, before worker processes start

    @classmethod
    def of(cls, model: nn.Module, task: Task) -> Self:
        """The learner for this task; tested on public samples where the clients' are elsewhere."""
        return cls(model, task.loss, like=task.public if task.population.is_remote else task.population[0])

    @cached_property
    def fallback(self) -> FunctionalLearner | ReferenceLearner:
        """The learner without kernels; chosen at its first use, since `torch.func` takes seconds to import."""
        if has_dropout(self.model) or has_batch_statistics(self.model) or is_slow_under_vmap(self.model):
            return ReferenceLearner(self.model, self.loss)
        functional = FunctionalLearner(self.model, self.loss)
        mappable = self._like is None or _can_map(functional, self._like)
        return functional if mappable else ReferenceLearner(self.model, self.loss)

    @property
    def why_slow(self) -> str:
        """Why clients are trained one after the other by the reference, a sentence; empty: they are not."""
        if self.kernels is not None or not isinstance(self.fallback, ReferenceLearner):
            return ""
        reasons = {
            "it has dropout, whose coins are drawn for each client": has_dropout(self.model),
            "its layers normalise by statistics of a batch": has_batch_statistics(self.model),
            "torch.func maps some of its layers slowly": is_slow_under_vmap(self.model),
        }
        why = next((reason for reason, holds in reasons.items() if holds), "torch.func cannot map it over clients")
        return f"Clients are trained one after the other, which is slow, because the model cannot be batched: {why}."

    @cached_property
    def records(self) -> AutoRecords:
        """The sums of single records' clipped gradients."""
        return AutoRecords(self.model, self.loss)

    @property
    def min_wave_size(self) -> int:
        """The least number of clients for which a wave is efficient: kernels share products between clients."""
        return 10 if self.kernels is not None else 4

    def descend(self, weights: Tensor, batches: Batches, descent: Descent, clients: Tensor) -> Rows:
        """The update of every client, all from one vector of weights or each from its own row."""
        kernels = self.kernels
        if kernels is not None and kernels.supports(weights, batches, descent):
            return kernels.descend(weights, batches, descent, clients)
        return self.fallback.descend(weights, batches, descent, clients)

    def perturbed_scores(self, weights: Tensor, data: Samples, perturbation: Perturbation) -> Tensor:
        """The scores of one client's weights on its data, (1 + groups,): unperturbed, and with each group perturbed."""
        scores = None if self.kernels is None else self.kernels.perturbed_scores(weights, data, perturbation)
        return self.fallback.perturbed_scores(weights, data, perturbation) if scores is None else scores


Learner = AutoLearner | ReferenceLearner


@dataclass(frozen=True, eq=False)
class StackedClients:
    """A few clients and their learner: the engine's `Wave`."""

    clients: Tensor
    population: Population
    learner: Learner

    @property
    def samples(self) -> Tensor:
        return self.population.sizes_of(self.clients)

    @property
    def units(self) -> Tensor:
        return self.population.unit_sizes[self.clients]

    @property
    def shapes(self) -> Shapes:
        return self.learner.layout.shapes

    def descend(self, weights: Tensor, descent: Descent) -> Rows:
        batches = make_batches(self.population, self.clients, descent, weights.dtype)
        try:
            return self.learner.descend(weights, batches, descent, self.clients)
        except TacitError:
            raise
        except (RuntimeError, ValueError, TypeError, IndexError, KeyError, AttributeError) as error:
            labels = list_names(map(self.population.label, self.clients.tolist()[:3]))
            raise ModelError(
                f"The model or the loss failed on a batch of {labels}{' and others' * (len(self.clients) > 3)}: "
                f"{type(error).__name__}: {first_line(error)}. Batches can have any size from one sample on."
            ) from error

    def clipped_sums(
        self, weights: Tensor, batches: Sequence[Tensor], clip: float, mask: Tensor | None
    ) -> list[ClippedSum]:
        sums, population = [], self.population
        for row, (client, batch) in enumerate(zip(self.clients.tolist(), batches, strict=True)):
            (index, counts), own = population.samples_of(client, batch), weights if weights.dim() == 1 else weights[row]
            x, y = population.x[index], population.y[index]
            sums.append(self.learner.records.clipped_sum(own, x, y, clip, mask, counts))
        return sums

    def term_sums(self, query: Query, state: Tensor, *, cells: bool = False) -> Tensor:
        sums, population = state.new_zeros(len(self.clients), query.length, dtype=torch.float64), self.population
        for total, client in zip(sums, self.clients.tolist(), strict=True):
            index, counts = population.samples_of(client, torch.arange(int(population.unit_sizes[client])))
            total.copy_(term_sum(query, state, population.x[index], population.y[index], counts, cells=cells))
        return sums

    def perturbed_scores(self, weights: Tensor, perturbation: Perturbation) -> Tensor:
        pairs = zip(weights, self.clients.tolist(), strict=True)
        return torch.stack(
            [self.learner.perturbed_scores(own, self.population[client], perturbation) for own, client in pairs]
        )

    def losses(self, hypotheses: Tensor) -> Tensor:
        return self.learner.scorer.losses(hypotheses, self.population, self.clients)

    def keep(self, which: Tensor) -> "StackedClients":
        return replace(self, clients=self.clients[which])


def divide(cohort: Tensor, population: Population, owned: int, least: int, fewest: int = MIN_WAVES) -> list[Tensor]:
    """The cohort in waves of about equal size, if possible of `least` clients; clients of similar size share a wave.

    `owned` is the number of weights that each client has a copy of; there are at least `fewest` waves.
    """
    if len(cohort) == 0:
        return []
    sizes = population.sizes_of(cohort)
    ordered = cohort[torch.argsort(sizes, stable=True)]
    count = -(-len(cohort) // _wave_size(len(cohort), population, owned, least, fewest))
    return list(torch.tensor_split(ordered, count))


def _wave_size(cohort: int, population: Population, owned: int, least: int, fewest: int) -> int:
    sample = population.x[0].numel() * population.x.element_size()
    samples = int(min(population.mean_size, 64))
    per_client = owned * population.x.element_size() + sample * samples
    fits = min(max(CACHE // per_client, least), LARGEST)
    if owned * samples <= LIGHT:
        return fits
    return max(1, min(fits, -(-cohort // fewest)))


def _can_map(functional: FunctionalLearner, like: Samples) -> bool:
    """Whether `torch.func` can map the module over clients without a fallback that would be slower."""
    x, y = like
    two_clients = Population.of([(x[:1], y[:1]), (x[:1], y[:1])])
    weights = functional.layout.flatten(functional.model)
    numbers = torch.arange(2)
    batches = make_batches(two_clients, numbers, _ONE_STEP, weights.dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            functional.descend(weights, batches, _ONE_STEP, numbers)
        except CANNOT_MAP:
            return False
    return True


@contextmanager
def single_thread() -> Iterator[None]:
    """Run PyTorch's operators with one thread, so that sums are the same in any process."""
    before = torch.get_num_threads()
    if before != 1:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        if before != 1:
            torch.set_num_threads(before)
