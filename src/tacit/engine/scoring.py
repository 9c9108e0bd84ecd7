"""Several hypotheses on one set of samples: what each loses on each client's data, and which fits a client best."""

import copy
from functools import cached_property

import torch
from torch import Tensor, nn

from tacit.core import Loss, Population
from tacit.engine.layout import Layout, mixes_samples
from tacit.engine.learners.kernels import forward_of

AT_ONCE = 256  # samples


class HypothesisScorer:
    """Measures what hypotheses lose on clients' own data, in evaluation mode: every hypothesis sees a wave at once."""

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        self.model, self.loss, self.layout = copy.deepcopy(model), loss, Layout.of(model)
        self.alone = mixes_samples(model)

    @cached_property
    def forward(self) -> nn.Module:
        """The model as it is evaluated; found when it is needed, which is for several hypotheses only."""
        return forward_of(self.model)

    @torch.no_grad()
    def losses(self, hypotheses: Tensor, population: Population, clients: Tensor) -> Tensor:
        """What each of the hypotheses, (k, dim), loses on each client: (clients, k)."""
        owned = [population.indices(client) for client in clients.tolist()]
        sizes = torch.tensor([len(mine) for mine in owned])
        pieces = owned if self.alone else list(torch.split(torch.cat(owned), AT_ONCE))
        owners = torch.arange(len(clients)).repeat_interleave(sizes)
        return torch.stack([self._lost(weights, population, pieces, owners) for weights in hypotheses], dim=1)

    def _lost(self, weights: Tensor, population: Population, pieces: list[Tensor], owners: Tensor) -> Tensor:
        self.layout.load(self.model, weights)
        outputs = [self.forward(population.x[piece]) for piece in pieces]
        return mean_losses(self.loss, torch.cat(outputs), population.y[torch.cat(pieces)], owners)


def mean_losses(loss: Loss, outputs: Tensor, y: Tensor, owners: Tensor) -> Tensor:
    """What each owner's samples lose together."""
    lost, owners = loss.per_sample(outputs, y).double(), owners.to(outputs.device)
    totals = lost.new_zeros(int(owners.max()) + 1).index_add_(0, owners, lost)
    return loss.of_mean(totals / torch.bincount(owners).clamp(min=1))


def fitting(loss: Loss, outputs: Tensor, y: Tensor, owners: Tensor | None) -> Tensor:
    """Of the outputs of k hypotheses, (k, samples, ...), for every owner's samples those of the one that fits best."""
    if len(outputs) == 1:
        return outputs[0]
    owners = torch.zeros(len(y), dtype=torch.int64) if owners is None else owners.cpu()
    best = torch.stack([mean_losses(loss, output, y, owners) for output in outputs]).argmin(0)
    return outputs[best[owners], torch.arange(len(y))]
