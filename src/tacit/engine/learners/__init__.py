"""Which way a model goes through a wave."""

import warnings
from typing import Protocol

import torch
from torch import Tensor, nn

from tacit.core import Descent, Key, Loss, Perturbation, Population, Rows, Samples
from tacit.engine.batches import Batches, plan_batches
from tacit.engine.layout import Layout, draws_randomness, has_slow_mapping, mixes_samples
from tacit.engine.learners.functional import Functional
from tacit.engine.learners.kernels import Kernels, kernels_for
from tacit.engine.learners.reference import Reference
from tacit.engine.scoring import HypothesisScorer

_ONE_STEP = Descent(1.0, 1, None, None, 0.0, 0.0, Key.from_seed(0))


class Learner(Protocol):
    """A way through a wave."""

    judge: HypothesisScorer

    @property
    def layout(self) -> Layout:
        """Where the model's parameters lie in a row."""
        ...

    def descend(self, weights: Tensor, batches: Batches, how: Descent, clients: Tensor) -> Rows:
        """The update of every client, all from one vector of weights or each from its own row."""
        ...

    def perturbed_scores(self, weights: Tensor, data: Samples, nudge: Perturbation) -> Tensor:
        """How well one client's weights do on its data, (1 + groups,): as they are, and with each group nudged."""
        ...


class Fastest:
    """Kernels where the model and the descent allow it; otherwise the general way, otherwise the reference.

    The choice depends on the model, the loss and the descent alone, never on timing or on the number of workers.

    Args:
        model: the module.
        loss: what it minimises.
        like: a few samples, to see whether the general way can take the module at all.
    """

    def __init__(self, model: nn.Module, loss: Loss, like: Samples | None = None) -> None:
        self.layout = Layout.of(model)
        self.kernels: Kernels | None = kernels_for(model, loss)
        self.judge = HypothesisScorer(model, loss)
        one_by_one = draws_randomness(model) or mixes_samples(model) or has_slow_mapping(model)
        functional = None if one_by_one else Functional(model, loss)
        if functional is not None and like is not None and not _can_map(functional, like):
            functional = None
        self.general: Functional | Reference = functional or Reference(model, loss)

    @property
    def least(self) -> int:
        """How many clients a wave should have at the least: kernels share products between them."""
        return 10 if self.kernels is not None else 4

    def descend(self, weights: Tensor, batches: Batches, how: Descent, clients: Tensor) -> Rows:
        """The update of every client."""
        kernels = self.kernels
        if kernels is not None and kernels.takes(weights, batches, how):
            return kernels.descend(weights, batches, how, clients)
        return self.general.descend(weights, batches, how, clients)

    def perturbed_scores(self, weights: Tensor, data: Samples, nudge: Perturbation) -> Tensor:
        """How well one client's weights do on its data, as they are and with each group nudged."""
        fast = None if self.kernels is None else self.kernels.perturbed_scores(weights, data, nudge)
        return self.general.perturbed_scores(weights, data, nudge) if fast is None else fast


def _can_map(functional: Functional, like: Samples) -> bool:
    """Whether `torch.func` can map the module over clients, without falling back to something slower."""
    x, y = like
    pair = Population.of([(x[:1], y[:1]), (x[:1], y[:1])])
    weights = functional.layout.flatten(functional.model)
    both = torch.arange(2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            functional.descend(weights, plan_batches(pair, both, _ONE_STEP, weights.dtype), _ONE_STEP, both)
        except (RuntimeError, ValueError, TypeError, NotImplementedError, Warning):
            return False
    return True
