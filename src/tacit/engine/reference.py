"""The slow and obvious way: one client after the other, plain autograd, batches without padding.

Every faster way must agree with it. It also trains what cannot be stacked: models with dropout (every client has
its own stream of randomness), with batch statistics (padding would change them), recurrent ones, and convolutions that
are not part of a chain.
"""

import copy

import torch
from torch import Tensor, nn

from tacit.core import DenseRows, Descent, Key, Loss, MaskedRows
from tacit.engine.batches import Batches
from tacit.engine.hypotheses import Judge
from tacit.engine.layout import Layout, Received, draws_randomness


class Reference:
    """Trains a wave client by client."""

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        self.model = copy.deepcopy(model).train()
        self.loss = loss
        self.judge = Judge(model, loss)
        self.layout = Layout.of(model)
        self.random = draws_randomness(model)
        self.parameters: list[Tensor] = [p for p in self.model.parameters() if p.requires_grad]

    def descend(self, weights: Tensor, batches: Batches, how: Descent, clients: Tensor) -> DenseRows | MaskedRows:
        """The update of every client."""
        trained, received = weights.repeat(len(clients), 1), Received(weights, how.mask)
        for row, client in enumerate(clients.tolist()):
            if self.random:
                with torch.random.fork_rng(devices=[]):
                    torch.manual_seed(dropout_key(how, client).integer())
                    self._train(trained[row], batches, how, row, received)
            else:
                self._train(trained[row], batches, how, row, received)
        return received.updates(trained)

    def _train(self, flat: Tensor, batches: Batches, how: Descent, row: int, received: Received) -> None:
        """Descend in place: the module's parameters are views of `flat`."""
        for parameter, view in zip(self.parameters, self.layout.views(flat).values(), strict=True):
            parameter.data = view
        velocity = [torch.zeros_like(p) for p in self.parameters] if how.momentum else None
        for step in range(batches.steps):
            x, y = batches.single(row, step)
            if len(x) == 0:
                break
            loss = self.loss.of_mean(self.loss.per_sample(self.model(x), y).mean())
            gradients = list(torch.autograd.grad(loss, self.parameters))
            with torch.no_grad():
                self._step(gradients, velocity, how)
                received.restore(flat)

    def _step(self, gradients: list[Tensor], velocity: list[Tensor] | None, how: Descent) -> None:
        if how.weight_decay:
            torch._foreach_add_(gradients, self.parameters, alpha=how.weight_decay)
        if velocity is not None:
            torch._foreach_mul_(velocity, how.momentum)
            torch._foreach_add_(velocity, gradients)
            gradients = velocity
        torch._foreach_add_(self.parameters, gradients, alpha=-how.lr)


def dropout_key(how: Descent, client: int) -> Key:
    """The stream a client's dropout draws from in this round."""
    return how.key.child("dropout").child("client", client)
