"""Which samples each client of a wave sees in which step.

Clients of a wave may have different numbers of samples and of steps. Batches are padded to one shape; a padded
sample has weight zero, and a client that is done takes steps in which all weights are zero.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tacit.core import Descent, Population


@dataclass(frozen=True, eq=False)
class Batches:
    """The samples of every client and step.

    Attributes:
        population: where the samples are.
        index: (clients, steps, batch), positions in the pool; (clients, 1, batch) if every step sees the same.
        weight: of the same shape; 1 / (size of the batch), or 0 for padding.
        steps: how many steps there are.
    """

    population: Population
    index: Tensor
    weight: Tensor
    steps: int

    @property
    def clients(self) -> int:
        """How many clients."""
        return self.index.shape[0]

    @property
    def size(self) -> int:
        """How many samples a padded batch has."""
        return self.index.shape[2]

    @property
    def constant(self) -> bool:
        """Whether every step sees the same samples."""
        return self.index.shape[1] == 1

    @property
    def even(self) -> bool:
        """Whether all clients take as many steps."""
        return bool((self.weight[:, :, 0] > 0).all())

    def x(self, begin: int, end: int) -> Tensor:
        """The inputs of steps begin to end, (clients, (end - begin) · batch, ...)."""
        return self._take(self.population.x, begin, end)

    def y(self, begin: int, end: int) -> Tensor:
        """The targets of steps begin to end."""
        return self._take(self.population.y, begin, end)

    def weights(self, step: int) -> Tensor:
        """The samples' weights in one step, (clients, batch)."""
        return self.weight[:, 0 if self.constant else step]

    def active(self, step: int) -> Tensor:
        """Which clients still train in this step."""
        return self.weights(step)[:, 0] > 0

    def single(self, client: int, step: int) -> tuple[Tensor, Tensor]:
        """One client's batch in one step, without padding."""
        at = 0 if self.constant else step
        mine = self.index[client, at][self.weight[client, at] > 0]
        return self.population.x[mine], self.population.y[mine]

    def distinct(self) -> tuple[Tensor, Tensor]:
        """Every input that is used, once, and where the inputs of all steps are among them, shaped as `index`."""
        first = int(self.index.min())
        near = self.index - first
        used = near.new_zeros(int(near.max()) + 1, dtype=torch.bool).index_fill_(0, near.reshape(-1), True)
        pool = self.population.x[first : first + len(used)]
        return (pool, near) if bool(used.all()) else (pool[used], (used.cumsum(0) - 1)[near])

    def _take(self, pool: Tensor, begin: int, end: int) -> Tensor:
        index = self.index if self.constant else self.index[:, begin:end]
        flat = index.reshape(-1)
        first, last = int(flat[0]), int(flat[-1])
        if self.constant and last - first + 1 == len(flat) and bool((flat.diff() == 1).all()):
            taken = pool[first : last + 1]  # neighbours in the pool: no copy
        else:
            taken = pool.index_select(0, flat)
        return taken.view(index.shape[0], -1, *pool.shape[1:])


def plan_batches(population: Population, clients: Tensor, how: Descent, dtype: torch.dtype) -> Batches:
    """The batches of these clients under this descent."""
    sizes = population.sizes[clients]
    if how.batch_size is None or int(sizes.max()) <= how.batch_size:
        return _full_batches(population, clients, how, dtype)
    plans = [_shuffled(int(n), how, int(c)) for n, c in zip(sizes, clients, strict=True)]
    steps, size = (max(plan.shape[axis] for plan in plans) for axis in (0, 1))
    position = np.full((len(plans), steps, size), -1)
    for row, plan in enumerate(plans):
        position[row, : plan.shape[0], : plan.shape[1]] = plan
    return _located(population, clients, torch.from_numpy(position), steps, dtype)


def _full_batches(population: Population, clients: Tensor, how: Descent, dtype: torch.dtype) -> Batches:
    """Every step sees all of a client's samples, in their own order."""
    sizes = population.sizes[clients]
    position = torch.arange(int(sizes.max())).expand(len(clients), 1, -1)
    position = position.where(position < sizes[:, None, None], -1)
    return _located(population, clients, position, how.steps or how.epochs or 0, dtype)


def _shuffled(size: int, how: Descent, client: int) -> np.ndarray:
    """(steps, batch) positions among one client's samples; -1 fills the last batch of a pass."""
    batch = min(how.batch_size or size, size)
    per_pass = -(-size // batch)
    steps = how.steps if how.steps is not None else per_pass * (how.epochs or 0)
    passes = -(-steps // per_pass)
    random = how.key.child("client", client).numpy()
    position = np.full((passes, per_pass * batch), -1)
    for row in position:
        row[:size] = random.permutation(size)
    return position.reshape(-1, batch)[:steps]


def _located(population: Population, clients: Tensor, position: Tensor, steps: int, dtype: torch.dtype) -> Batches:
    """Positions among the clients' samples as positions in the pool, with weights."""
    valid = position >= 0
    start = population.start[clients][:, None, None]
    weight = valid.to(dtype) / valid.sum(2, keepdim=True).clamp(min=1)
    return Batches(population, population.owned[start + position.clamp(min=0)], weight, steps)
