"""Trains a wave one client after the other, with autograd and batches without padding: slow and simple.

Every faster learner must agree with this one. It also trains models that cannot be stacked: with dropout (every client
has its own random stream), with batch statistics (padding would change them), recurrent ones, and convolutions that are
not part of a chain.
"""

import copy

import torch
from torch import Tensor, nn

from tacit.core import DenseRows, Descent, Loss, MaskedRows, Perturbation, ProximalTerm
from tacit.core.losses import scores
from tacit.data import Samples
from tacit.engine.batches import Batches
from tacit.engine.layout import Layout, StartingWeights
from tacit.engine.learners.records.record_learners import ReferenceRecords
from tacit.engine.scoring import HypothesisScorer


class ReferenceLearner:
    """Trains a wave client by client."""

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        self.model = copy.deepcopy(model).train()
        self.loss = loss
        self.scorer = HypothesisScorer(model, loss)
        self.records = ReferenceRecords(model, loss)
        self.layout = Layout.of(model)
        self.parameters: list[Tensor] = [p for p in self.model.parameters() if p.requires_grad]

    def descend(self, weights: Tensor, batches: Batches, descent: Descent, clients: Tensor) -> DenseRows | MaskedRows:
        start = StartingWeights(weights, descent.mask)
        trained = start.copies(len(clients))
        for row, client in enumerate(clients.tolist()):
            with torch.random.fork_rng(devices=[]):  # a forward pass may be random without a module of dropout
                torch.manual_seed(descent.keys.child("dropout").of(client).integer())
                self._train(trained[row], batches, descent, row, start.of(row))
        return start.updates(trained)

    @torch.no_grad()
    def perturbed_scores(self, weights: Tensor, data: Samples, perturbation: Perturbation) -> Tensor:
        x, y = data
        model, means = copy.deepcopy(self.model).eval(), []
        for group in (None, *range(perturbation.count)):
            raised = weights if group is None else weights + perturbation.amount * (perturbation.groups == group)
            self.layout.load(model, raised)
            means.append(scores(self.loss, model(x), y).mean())
        return torch.stack(means)

    def _train(self, flat: Tensor, batches: Batches, descent: Descent, row: int, start: StartingWeights) -> None:
        """Train in place: the module's parameters are views of `flat`."""
        for parameter, view in zip(self.parameters, self.layout.views(flat).values(), strict=True):
            parameter.data = view
        velocity = [torch.zeros_like(p) for p in self.parameters] if descent.momentum else None
        for step in range(batches.steps):
            x, y = batches.batch_of(row, step)
            if len(x) == 0:
                break
            loss = self.loss.from_mean(self.loss.per_sample(self.model(x), y).mean())
            gradients = list(torch.autograd.grad(loss, self.parameters, allow_unused=True, materialize_grads=True))
            with torch.no_grad():
                if descent.proximal is not None:
                    self._add_proximal_gradient(gradients, descent.proximal, row)
                self._step(gradients, velocity, descent)
                start.restore(flat)

    def _add_proximal_gradient(self, gradients: list[Tensor], proximal: ProximalTerm, row: int) -> None:
        targets = self.layout.views(proximal.target[row]).values()
        pairs = zip(gradients, self.parameters, targets, proximal.strengths, strict=True)
        for gradient, parameter, target, strength in pairs:
            if strength:
                gradient.add_(parameter - target, alpha=strength)

    def _step(self, gradients: list[Tensor], velocity: list[Tensor] | None, descent: Descent) -> None:
        if descent.clip is not None:
            norm = torch.stack([g.norm() for g in gradients]).norm()
            torch._foreach_mul_(gradients, (descent.clip / norm).clamp(max=1))
        if descent.weight_decay:
            torch._foreach_add_(gradients, self.parameters, alpha=descent.weight_decay)
        if velocity is not None:
            torch._foreach_mul_(velocity, descent.momentum)
            torch._foreach_add_(velocity, gradients)
            gradients = velocity
        torch._foreach_add_(self.parameters, gradients, alpha=-descent.lr)
