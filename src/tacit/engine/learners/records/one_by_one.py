"""Clipping per record or person, one record at a time with autograd: slow and simple. Other ways must agree with it.

Every record is computed by a copy of the model of its own, with the same random numbers: what the model keeps of one
record, and how many numbers it draws for it, changes nothing for the others.
"""

import copy

import torch
from torch import Tensor, nn

from tacit.core import Loss
from tacit.core.rows import ClippedSum
from tacit.engine.layout import Layout
from tacit.engine.learners.records.batched import LONGEST
from tacit.engine.learners.records.independence import fresh_copy


class ReferenceRecords:
    """Sums of clipped gradients, record by record or person by person."""

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        self.layout, self.loss = Layout.of(model), loss
        self.model = copy.deepcopy(model).train()
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]

    def clipped_sum(
        self, weights: Tensor, x: Tensor, y: Tensor, clip: float, mask: Tensor | None, counts: Tensor | None = None
    ) -> ClippedSum:
        """The sum over all weights, or those under the mask; records whose gradient is not finite add nothing to it."""
        self.layout.load(self.model, weights)
        length = self.layout.dim if mask is None else len(mask)
        total, norms = torch.zeros(length, dtype=torch.float64, device=weights.device), []
        sizes = [1] * len(x) if counts is None else counts.tolist()
        for own_x, own_y in zip(torch.split(x, sizes), torch.split(y, sizes), strict=True):
            records = [self._gradient(own_x[i : i + 1], own_y[i : i + 1]).double() for i in range(len(own_x))]
            gradient = torch.stack(records).mean(0)
            gradient = gradient if mask is None else gradient[mask]
            norm = float(gradient.norm())
            norms.append(norm)
            if norm <= clip * LONGEST:
                total += gradient * min(1.0, clip / norm if norm else 1.0)
        return ClippedSum(total, torch.tensor(norms, dtype=torch.float64, device=weights.device))

    def _gradient(self, x: Tensor, y: Tensor) -> Tensor:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            loss = self.loss.per_sample(fresh_copy(self.model)(x), y).sum()
        found = torch.autograd.grad(loss, self.parameters, allow_unused=True, materialize_grads=True)
        return torch.cat([gradient.reshape(-1) for gradient in found])
