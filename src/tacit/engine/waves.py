"""A cohort in waves: how it is divided, and what one wave computes.

A wave is a few clients stacked in one set of tensors, small enough to stay in cache. The division depends on the
cohort and the model alone, never on the number of workers, so that sums come out the same to the last bit.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tacit.core import Descent, Perturbation, Population, Rows
from tacit.core.wave import Shapes
from tacit.engine.batches import plan_batches
from tacit.engine.learners import Learner

CACHE = (
    8 << 20
)  # bytes of weights and inputs that a wave may hold; of 4, 8 and 12 MiB the best with 32 MiB of shared cache
LARGEST = 128  # clients of a small model; more would leave too few waves to share out
FEWEST_WAVES = 8  # so that several workers share a small cohort
LIGHT = 1 << 12  # products a step of a client takes, below which a wave costs more than it shares: one is enough
FEWEST_MASKED = 4  # where most weights are shared by a wave, larger ones pay: 25 clients cost 17 % less each than 10


@dataclass(frozen=True, eq=False)
class StackedClients:
    """A few clients and the way they are trained: what trainers know as a wave."""

    clients: Tensor
    population: Population
    learner: Learner

    @property
    def samples(self) -> Tensor:
        """How many samples each has."""
        return self.population.sizes[self.clients]

    @property
    def shapes(self) -> Shapes:
        """The shapes of the model's parameters."""
        return self.learner.layout.shapes

    def descend(self, weights: Tensor, how: Descent) -> Rows:
        """Every client descends on its own data."""
        batches = plan_batches(self.population, self.clients, how, weights.dtype)
        return self.learner.descend(weights, batches, how, self.clients)

    def perturbed_scores(self, weights: Tensor, nudge: Perturbation) -> Tensor:
        """How well every client's weights do on its own data, as they are and with each group nudged."""
        pairs = zip(weights, self.clients.tolist(), strict=True)
        return torch.stack(
            [self.learner.perturbed_scores(own, self.population[client], nudge) for own, client in pairs]
        )

    def losses(self, hypotheses: Tensor) -> Tensor:
        """What each hypothesis loses on each client's own data."""
        return self.learner.judge.losses(hypotheses, self.population, self.clients)

    def only(self, which: Tensor) -> "StackedClients":
        """The clients where `which` is true."""
        return replace(self, clients=self.clients[which])


def divide(cohort: Tensor, population: Population, owned: int, least: int, fewest: int = FEWEST_WAVES) -> list[Tensor]:
    """The cohort in waves of about equal size, if possible of `least` clients; alike clients stand together.

    `owned` is how many weights a client has for itself; there are at least `fewest` waves.
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
