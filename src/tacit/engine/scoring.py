"""The loss of several hypotheses on each client's data."""

import copy
from functools import cached_property

import torch
from torch import Tensor, nn

from tacit.core import Loss
from tacit.core.losses import mean_losses
from tacit.data import Population
from tacit.engine.layout import Layout, has_batch_statistics
from tacit.engine.learners.kernels import evaluation_module

SAMPLES_PER_PASS = 256


class HypothesisScorer:
    """Computes the loss of hypotheses on clients' own data, in evaluation mode, for all clients of a wave at once."""

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        self.model, self.loss, self.layout = copy.deepcopy(model), loss, Layout.of(model)
        self.separately = has_batch_statistics(model)

    @cached_property
    def forward(self) -> nn.Module:
        """The model in evaluation form; built lazily, because only methods with several hypotheses need it."""
        return evaluation_module(self.model)

    @torch.no_grad()
    def losses(self, hypotheses: Tensor, population: Population, clients: Tensor) -> Tensor:
        """The loss of each of the hypotheses, (k, dim), on each client's data: (clients, k)."""
        owned = [population.indices(client) for client in clients.tolist()]
        sizes = torch.tensor([len(samples) for samples in owned])
        chunks = owned if self.separately else list(torch.split(torch.cat(owned), SAMPLES_PER_PASS))
        owners = torch.arange(len(clients)).repeat_interleave(sizes)
        return torch.stack([self._losses_of(weights, population, chunks, owners) for weights in hypotheses], dim=1)

    def _losses_of(self, weights: Tensor, population: Population, chunks: list[Tensor], owners: Tensor) -> Tensor:
        self.layout.load(self.model, weights)
        outputs = [self.forward(population.x[chunk]) for chunk in chunks]
        return mean_losses(self.loss, torch.cat(outputs), population.y[torch.cat(chunks)], owners)
