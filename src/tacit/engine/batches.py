"""The samples on which each client of a wave trains in each step.

Clients of a wave may have different numbers of samples and steps. Batches are padded to one shape: a padded sample
has weight zero, and a client that has finished takes steps in which all weights are zero.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tacit.core import Descent
from tacit.data import Population


@dataclass(frozen=True, eq=False)
class Batches:
    """The samples of every client and step.

    Attributes:
        population: holds the samples of all clients in one pool.
        index: positions in the pool, (clients, steps, batch), or (clients, 1, batch) if every step uses the same.
        weight: of the same shape; 1 / (batch size), or 0 for padding.
        steps: the number of steps.
    """

    population: Population
    index: Tensor
    weight: Tensor
    steps: int

    @property
    def clients(self) -> int:
        return self.index.shape[0]

    @property
    def size(self) -> int:
        """The size of a padded batch."""
        return self.index.shape[2]

    @property
    def constant(self) -> bool:
        """Whether every step uses the same samples."""
        return self.index.shape[1] == 1

    @property
    def equal_steps(self) -> bool:
        """Whether all clients take the same number of steps."""
        return bool((self.weight[:, :, 0] > 0).all())

    def x(self, begin: int, end: int) -> Tensor:
        """The inputs of steps begin to end, (clients, (end - begin) · batch, ...)."""
        return self._take(self.population.x, begin, end)

    def y(self, begin: int, end: int) -> Tensor:
        """The targets of steps begin to end."""
        return self._take(self.population.y, begin, end)

    def weights(self, step: int) -> Tensor:
        """The sample weights of one step, (clients, batch)."""
        return self.weight[:, 0 if self.constant else step]

    def active(self, step: int) -> Tensor:
        """The clients that still train in this step, as a mask."""
        return self.weights(step)[:, 0] > 0

    def batch_of(self, client: int, step: int) -> tuple[Tensor, Tensor]:
        """One client's batch in one step, without padding."""
        row = 0 if self.constant else step
        index = self.index[client, row][self.weight[client, row] > 0]
        return self.population.x[index], self.population.y[index]

    def _take(self, pool: Tensor, begin: int, end: int) -> Tensor:
        index = self.index if self.constant else self.index[:, begin:end]
        flat = index.reshape(-1)
        first, last = int(flat[0]), int(flat[-1])
        if self.constant and last - first + 1 == len(flat) and bool((flat.diff() == 1).all()):
            samples = pool[first : last + 1]  # contiguous in the pool: no copy
        else:
            samples = pool.index_select(0, flat)
        return samples.view(index.shape[0], -1, *pool.shape[1:])


def make_batches(population: Population, clients: Tensor, descent: Descent, dtype: torch.dtype) -> Batches:
    """The batches of these clients under this descent."""
    sizes = population.sizes_of(clients)
    if descent.batch_size is None or int(sizes.max()) <= descent.batch_size:
        return _full_batches(population, clients, descent, dtype)
    orders = [_shuffle(int(n), descent, int(c)) for n, c in zip(sizes, clients, strict=True)]
    steps, size = (max(order.shape[axis] for order in orders) for axis in (0, 1))
    position = np.full((len(orders), steps, size), -1)
    for row, order in enumerate(orders):
        position[row, : order.shape[0], : order.shape[1]] = order
    return _from_positions(population, clients, torch.from_numpy(position), steps, dtype)


def _full_batches(population: Population, clients: Tensor, descent: Descent, dtype: torch.dtype) -> Batches:
    """Every step uses all samples of a client, in stored order."""
    sizes = population.sizes_of(clients)
    position = torch.arange(int(sizes.max())).expand(len(clients), 1, -1)
    position = position.where(position < sizes[:, None, None], -1)
    return _from_positions(population, clients, position, descent.steps or descent.epochs or 0, dtype)


def _shuffle(size: int, descent: Descent, client: int) -> np.ndarray:
    """(steps, batch) positions among one client's samples; -1 fills the last batch of an epoch."""
    batch = min(descent.batch_size or size, size)
    steps_per_epoch = -(-size // batch)
    steps = descent.steps if descent.steps is not None else steps_per_epoch * (descent.epochs or 0)
    epochs = -(-steps // steps_per_epoch)
    random = descent.keys.of(client).fast_generator()
    position = np.full((epochs, steps_per_epoch * batch), -1)
    for row in position:
        row[:size] = random.permutation(size)
    return position.reshape(-1, batch)[:steps]


def _from_positions(
    population: Population, clients: Tensor, position: Tensor, steps: int, dtype: torch.dtype
) -> Batches:
    """Positions among each client's samples, -1 for padding, as positions in the pool with weights."""
    valid = position >= 0
    start = population.offsets[clients][:, None, None]
    weight = valid.to(dtype) / valid.sum(2, keepdim=True).clamp(min=1)
    return Batches(population, population.sample_indices[start + position.clamp(min=0)], weight, steps)
