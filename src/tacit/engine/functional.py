"""The general way through a wave: `torch.func` maps the gradient of any module over a stack of clients."""

import copy

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from tacit.core import DenseRows, Descent, Loss, MaskedRows
from tacit.engine.batches import Batches
from tacit.engine.layout import Layout, Received


class Functional:
    """Trains all clients of a wave at once with `vmap(grad(...))`."""

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        self.model = copy.deepcopy(model).train()
        self.loss = loss
        self.layout = Layout.of(model)
        self.gradient = vmap(grad(self._weighted_loss))

    def descend(self, weights: Tensor, batches: Batches, how: Descent, clients: Tensor) -> DenseRows | MaskedRows:
        """The update of every client."""
        trained, received = weights.repeat(len(clients), 1), Received(weights, how.mask)
        parameters = self.layout.views(trained)
        velocity = {name: torch.zeros_like(p) for name, p in parameters.items()} if how.momentum else None
        for step in range(batches.steps):
            x, y = batches.x(step, step + 1), batches.y(step, step + 1)
            gradients = self.gradient(parameters, x, y, batches.weights(step))
            self._step(parameters, gradients, velocity, how, batches.active(step))
            received.restore(trained)
        return received.updates(trained)

    def _weighted_loss(self, parameters: dict[str, Tensor], x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        outputs = functional_call(self.model, parameters, (x,))
        return self.loss.of_mean((self.loss.per_sample(outputs, y) * weight).sum())

    def _step(
        self,
        parameters: dict[str, Tensor],
        gradients: dict[str, Tensor],
        velocity: dict[str, Tensor] | None,
        how: Descent,
        active: Tensor,
    ) -> None:
        """One step in place; a client that is done stands still, whatever momentum or decay would do."""
        done = None if bool(active.all()) else ~active
        for name, parameter in parameters.items():
            move = gradients[name]
            if how.weight_decay:
                move = move.add(parameter, alpha=how.weight_decay)
            if velocity is not None:
                move = velocity[name].mul_(how.momentum).add_(move)
            if done is not None:
                move = move.masked_fill(done.view(-1, *[1] * (move.dim() - 1)), 0.0)
            parameter.add_(move, alpha=-how.lr)
