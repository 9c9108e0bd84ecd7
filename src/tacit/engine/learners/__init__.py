"""Learners: three ways to train a wave, and the choice between them."""

import warnings
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor, nn

from tacit.core import ClientKeys, Descent, Key, Loss, Perturbation, Population, Rows, Samples
from tacit.engine.batches import Batches, plan_batches
from tacit.engine.layout import Layout, has_batch_statistics, has_dropout, is_slow_under_vmap
from tacit.engine.learners.functional import FunctionalLearner
from tacit.engine.learners.kernels import KernelLearner, kernel_learner
from tacit.engine.learners.reference import ReferenceLearner
from tacit.engine.scoring import HypothesisScorer

_ONE_STEP = Descent(1.0, 1, None, None, 0.0, 0.0, ClientKeys(Key.from_seed(0)))


class Learner(Protocol):
    """Trains a wave of clients."""

    scorer: HypothesisScorer

    @property
    def layout(self) -> Layout:
        """The positions of the model's parameters in a row."""
        ...

    def descend(self, weights: Tensor, batches: Batches, descent: Descent, clients: Tensor) -> Rows:
        """The update of every client, all from one vector of weights or each from its own row."""
        ...

    def perturbed_scores(self, weights: Tensor, data: Samples, perturbation: Perturbation) -> Tensor:
        """The scores of one client's weights on its data, (1 + groups,): unperturbed, and with each group perturbed."""
        ...


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

    @cached_property
    def fallback(self) -> FunctionalLearner | ReferenceLearner:
        """For what the kernels do not support; chosen at its first use, since `torch.func` takes seconds to import."""
        if has_dropout(self.model) or has_batch_statistics(self.model) or is_slow_under_vmap(self.model):
            return ReferenceLearner(self.model, self.loss)
        functional = FunctionalLearner(self.model, self.loss)
        mappable = self._like is None or _can_map(functional, self._like)
        return functional if mappable else ReferenceLearner(self.model, self.loss)

    @property
    def min_wave_size(self) -> int:
        """The least number of clients for which a wave is efficient: kernels share products between clients."""
        return 10 if self.kernels is not None else 4

    def descend(self, weights: Tensor, batches: Batches, descent: Descent, clients: Tensor) -> Rows:
        kernels = self.kernels
        if kernels is not None and kernels.supports(weights, batches, descent):
            return kernels.descend(weights, batches, descent, clients)
        return self.fallback.descend(weights, batches, descent, clients)

    def perturbed_scores(self, weights: Tensor, data: Samples, perturbation: Perturbation) -> Tensor:
        scores = None if self.kernels is None else self.kernels.perturbed_scores(weights, data, perturbation)
        return self.fallback.perturbed_scores(weights, data, perturbation) if scores is None else scores


def _can_map(functional: FunctionalLearner, like: Samples) -> bool:
    """Whether `torch.func` can map the module over clients without a fallback that would be slower."""
    x, y = like
    two_clients = Population.of([(x[:1], y[:1]), (x[:1], y[:1])])
    weights = functional.layout.flatten(functional.model)
    numbers = torch.arange(2)
    batches = plan_batches(two_clients, numbers, _ONE_STEP, weights.dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            functional.descend(weights, batches, _ONE_STEP, numbers)
        except (RuntimeError, ValueError, TypeError, NotImplementedError, Warning):
            return False
    return True
