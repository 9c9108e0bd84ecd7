"""How a cohort is divided into waves, and what one wave computes.

A wave is a few clients stacked in one set of tensors, small enough to stay in cache. The division depends only on the
cohort and the model, never on the number of workers, so that sums are the same to the last bit.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tacit.core import Descent, Perturbation, Population, Rows
from tacit.core.wave import Shapes
from tacit.engine.batches import plan_batches
from tacit.engine.learners import Learner

CACHE = 8 << 20  # bytes of weights and inputs per wave; the best of 4, 8 and 12 MiB with 32 MiB of shared cache
LARGEST = 128  # clients of a small model; more would leave too few waves for the workers
FEWEST_WAVES = 8  # so that several workers share a small cohort
LIGHT = 1 << 12  # products per local step below which one large wave is faster than several
FEWEST_MASKED = 4  # a wave shares most weights, so larger waves pay: each of 25 clients costs 17 % less than of 10


@dataclass(frozen=True, eq=False)
class StackedClients:
    """A few clients and how they are trained: the engine's `Wave`."""

    clients: Tensor
    population: Population
    learner: Learner

    @property
    def samples(self) -> Tensor:
        return self.population.sizes[self.clients]

    @property
    def shapes(self) -> Shapes:
        return self.learner.layout.shapes

    def descend(self, weights: Tensor, descent: Descent) -> Rows:
        batches = plan_batches(self.population, self.clients, descent, weights.dtype)
        return self.learner.descend(weights, batches, descent, self.clients)

    def perturbed_scores(self, weights: Tensor, perturbation: Perturbation) -> Tensor:
        pairs = zip(weights, self.clients.tolist(), strict=True)
        return torch.stack(
            [self.learner.perturbed_scores(own, self.population[client], perturbation) for own, client in pairs]
        )

    def losses(self, hypotheses: Tensor) -> Tensor:
        return self.learner.scorer.losses(hypotheses, self.population, self.clients)

    def keep(self, which: Tensor) -> "StackedClients":
        return replace(self, clients=self.clients[which])


def divide(cohort: Tensor, population: Population, owned: int, least: int, fewest: int = FEWEST_WAVES) -> list[Tensor]:
    """The cohort in waves of about equal size, if possible of `least` clients; clients of similar size share a wave.

    `owned` is the number of weights that each client has a copy of; there are at least `fewest` waves.
    """
    if len(cohort) == 0:
        return []
    sizes = population.sizes[cohort]
    ordered = cohort[torch.argsort(sizes, stable=True)]
    count = -(-len(cohort) // _wave_size(len(cohort), population, owned, least, fewest))
    return list(torch.tensor_split(ordered, count))


def _wave_size(cohort: int, population: Population, owned: int, least: int, fewest: int) -> int:
    sample = population.x[0].numel() * population.x.element_size()
    samples = int(population.sizes.float().mean().clamp(max=64))
    held = owned * population.x.element_size() + sample * samples
    fits = min(max(CACHE // held, least), LARGEST)
    if owned * samples <= LIGHT:
        return fits
    return max(1, min(fits, -(-cohort // fewest)))
