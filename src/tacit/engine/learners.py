"""Which way a model goes through a wave."""

from typing import Protocol

from torch import Tensor, nn

from tacit.core import Descent, Loss, Rows
from tacit.engine.batches import Batches
from tacit.engine.functional import Functional
from tacit.engine.kernels import Kernels, kernels_for
from tacit.engine.layout import draws_randomness, is_recurrent, mixes_samples
from tacit.engine.reference import Reference


class Learner(Protocol):
    """A way through a wave."""

    def descend(self, weights: Tensor, batches: Batches, how: Descent, clients: Tensor) -> Rows:
        """The update of every client."""
        ...


class Fastest:
    """Kernels where the model and the descent allow it; otherwise the general way, otherwise the reference.

    The choice depends on the model, the loss and the descent alone, never on timing or on the number of workers.
    """

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        self.kernels: Kernels | None = kernels_for(model, loss)
        one_by_one = draws_randomness(model) or mixes_samples(model) or is_recurrent(model)
        self.general: Learner = Reference(model, loss) if one_by_one else Functional(model, loss)

    def descend(self, weights: Tensor, batches: Batches, how: Descent, clients: Tensor) -> Rows:
        """The update of every client."""
        learner = self.kernels if self.kernels is not None and self.kernels.takes(how) else self.general
        return learner.descend(weights, batches, how, clients)
