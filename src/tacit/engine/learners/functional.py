"""The general way through a wave: `torch.func` maps the gradient of any module over a stack of clients."""

import copy

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from tacit.core import DenseRows, Descent, Loss, MaskedRows, Perturbation, ProximalTerm, Samples
from tacit.core.losses import scores
from tacit.engine.batches import Batches
from tacit.engine.layout import Layout, Received

AT_ONCE = 16  # candidates whose outputs are computed together


class Functional:
    """Trains all clients of a wave at once with `vmap(grad(...))`."""

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        self.model = copy.deepcopy(model).train()
        self.loss = loss
        self.layout = Layout.of(model)
        self.gradient = vmap(grad(self._weighted_loss))

    def descend(self, weights: Tensor, batches: Batches, how: Descent, clients: Tensor) -> DenseRows | MaskedRows:
        """The update of every client."""
        received = Received(weights, how.mask)
        trained = received.copies(len(clients))
        parameters = self.layout.views(trained)
        velocity = {name: torch.zeros_like(p) for name, p in parameters.items()} if how.momentum else None
        for step in range(batches.steps):
            x, y = batches.x(step, step + 1), batches.y(step, step + 1)
            gradients = self.gradient(parameters, x, y, batches.weights(step))
            if how.proximal is not None:
                self._pull(parameters, gradients, how.proximal)
            self._step(parameters, gradients, velocity, how, batches.active(step))
            received.restore(trained)
        return received.updates(trained)

    @torch.no_grad()
    def perturbed_scores(self, weights: Tensor, data: Samples, nudge: Perturbation) -> Tensor:
        """How well one client's weights do on its data; a few groups at once."""
        (x, y), model = data, copy.deepcopy(self.model).eval()
        outputs = vmap(lambda parameters: functional_call(model, parameters, (x,)))
        found = []
        for some in torch.split(torch.arange(-1, nudge.count), AT_ONCE):  # -1: nothing is nudged
            moves = (nudge.groups == some[:, None]) & (some >= 0)[:, None]
            candidates = self.layout.views(weights + nudge.amount * moves)
            found += [scores(self.loss, output, y).mean() for output in outputs(candidates)]
        return torch.stack(found)

    def _weighted_loss(self, parameters: dict[str, Tensor], x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        outputs = functional_call(self.model, parameters, (x,))
        return self.loss.of_mean((self.loss.per_sample(outputs, y) * weight).sum())

    def _pull(self, parameters: dict[str, Tensor], gradients: dict[str, Tensor], proximal: ProximalTerm) -> None:
        """Add the gradient of the proximal term."""
        targets = self.layout.views(proximal.target)
        for name, strength in zip(parameters, proximal.strengths, strict=True):
            if strength:
                gradients[name] = gradients[name].add(parameters[name] - targets[name], alpha=strength)

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
        if how.clip is not None:
            gradients = _clipped(gradients, how.clip)
        for name, parameter in parameters.items():
            move = gradients[name]
            if how.weight_decay:
                move = move.add(parameter, alpha=how.weight_decay)
            if velocity is not None:
                move = velocity[name].mul_(how.momentum).add_(move)
            if done is not None:
                move = move.masked_fill(done.view(-1, *[1] * (move.dim() - 1)), 0.0)
            parameter.add_(move, alpha=-how.lr)


def _clipped(gradients: dict[str, Tensor], clip: float) -> dict[str, Tensor]:
    """Every client's gradient, scaled down as a whole if it is longer than that."""
    norms = torch.stack([g.flatten(1).norm(dim=1) for g in gradients.values()]).norm(dim=0)
    factors = (clip / norms).clamp(max=1)
    return {name: g * factors.view(-1, *[1] * (g.dim() - 1)) for name, g in gradients.items()}
