"""Trains a wave with `torch.func`, which maps the gradient of any module over a stack of clients."""

import copy

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from tacit.core import DenseRows, Descent, Loss, MaskedRows, Perturbation, ProximalTerm
from tacit.core.losses import scores
from tacit.data import Samples
from tacit.engine.batches import Batches
from tacit.engine.layout import Layout, StartingWeights

_ByName = dict[str, Tensor]  # by the names of parameters
CANDIDATES_PER_PASS = 16  # perturbed weights whose outputs are computed together


class FunctionalLearner:
    """Trains all clients of a wave at once with `vmap(grad(...))`."""

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        self.model = copy.deepcopy(model).train()
        self.loss = loss
        self.layout = Layout.of(model)
        self.gradient = vmap(grad(self._weighted_loss))

    def descend(self, weights: Tensor, batches: Batches, descent: Descent, clients: Tensor) -> DenseRows | MaskedRows:
        start = StartingWeights(weights, descent.mask)
        trained = start.copies(len(clients))
        parameters = self.layout.views(trained)
        velocity = {name: torch.zeros_like(p) for name, p in parameters.items()} if descent.momentum else None
        for step in range(batches.steps):
            x, y = batches.x(step, step + 1), batches.y(step, step + 1)
            gradients = self.gradient(parameters, x, y, batches.weights(step))
            if descent.proximal is not None:
                self._add_proximal_gradient(parameters, gradients, descent.proximal)
            _step(parameters, gradients, velocity, descent, batches.active(step))
            start.restore(trained)
        return start.updates(trained)

    @torch.no_grad()
    def perturbed_scores(self, weights: Tensor, data: Samples, perturbation: Perturbation) -> Tensor:
        (x, y), model = data, copy.deepcopy(self.model).eval()
        outputs = vmap(lambda parameters: functional_call(model, parameters, (x,)))
        means = []
        for groups in torch.split(torch.arange(-1, perturbation.count), CANDIDATES_PER_PASS):  # -1: unperturbed
            raised = (perturbation.groups == groups[:, None]) & (groups >= 0)[:, None]
            candidates = self.layout.views(weights + perturbation.amount * raised)
            means += [scores(self.loss, output, y).mean() for output in outputs(candidates)]
        return torch.stack(means)

    def _weighted_loss(self, parameters: dict[str, Tensor], x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        outputs = functional_call(self.model, parameters, (x,))
        return self.loss.from_mean((self.loss.per_sample(outputs, y) * weight).sum())

    def _add_proximal_gradient(self, parameters: _ByName, gradients: _ByName, proximal: ProximalTerm) -> None:
        targets = self.layout.views(proximal.target)
        for name, strength in zip(parameters, proximal.strengths, strict=True):
            if strength:
                gradients[name] = gradients[name].add(parameters[name] - targets[name], alpha=strength)


def _step(parameters: _ByName, gradients: _ByName, velocity: _ByName | None, descent: Descent, active: Tensor) -> None:
    """One step in place; a client that has finished does not change, whatever its momentum or decay."""
    finished = None if bool(active.all()) else ~active
    if descent.clip is not None:
        gradients = _clip(gradients, descent.clip)
    for name, parameter in parameters.items():
        direction = gradients[name]
        if descent.weight_decay:
            direction = direction.add(parameter, alpha=descent.weight_decay)
        if velocity is not None:
            direction = velocity[name].mul_(descent.momentum).add_(direction)
        if finished is not None:
            direction = direction.masked_fill(finished.view(-1, *[1] * (direction.dim() - 1)), 0.0)
        parameter.add_(direction, alpha=-descent.lr)


def _clip(gradients: _ByName, clip: float) -> _ByName:
    """Every client's gradient, scaled down as a whole to a norm of at most `clip`."""
    norms = torch.stack([g.flatten(1).norm(dim=1) for g in gradients.values()]).norm(dim=0)
    factors = (clip / norms).clamp(max=1)
    return {name: g * factors.view(-1, *[1] * (g.dim() - 1)) for name, g in gradients.items()}
