"""The slow and obvious way: one client after the other, plain autograd, batches without padding.

Every faster way must agree with it. It also trains what cannot be stacked: models with dropout (every client has
its own stream of randomness), with batch statistics (padding would change them), recurrent ones, and convolutions that
are not part of a chain.
"""

import copy

import torch
from torch import Tensor, nn

from tacit.core import DenseRows, Descent, Key, Loss, MaskedRows, Perturbation, ProximalTerm, Samples
from tacit.core.losses import scores
from tacit.engine.batches import Batches
from tacit.engine.layout import Layout, Received, draws_randomness
from tacit.engine.scoring import HypothesisScorer


class Reference:
    """Trains a wave client by client."""

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        self.model = copy.deepcopy(model).train()
        self.loss = loss
        self.judge = HypothesisScorer(model, loss)
        self.layout = Layout.of(model)
        self.random = draws_randomness(model)
        self.parameters: list[Tensor] = [p for p in self.model.parameters() if p.requires_grad]

    def descend(self, weights: Tensor, batches: Batches, how: Descent, clients: Tensor) -> DenseRows | MaskedRows:
        """The update of every client."""
        received = Received(weights, how.mask)
        trained = received.copies(len(clients))
        for row, client in enumerate(clients.tolist()):
            if self.random:
                with torch.random.fork_rng(devices=[]):
                    torch.manual_seed(dropout_key(how, client).integer())
                    self._train(trained[row], batches, how, row, received.of(row))
            else:
                self._train(trained[row], batches, how, row, received.of(row))
        return received.updates(trained)

    @torch.no_grad()
    def perturbed_scores(self, weights: Tensor, data: Samples, nudge: Perturbation) -> Tensor:
        """How well one client's weights do on its data, one group after the other."""
        x, y = data
        model, found = copy.deepcopy(self.model).eval(), []
        for group in (None, *range(nudge.count)):
            moved = weights if group is None else weights + nudge.amount * (nudge.groups == group)
            self.layout.load(model, moved)
            found.append(scores(self.loss, model(x), y).mean())
        return torch.stack(found)

    def _train(self, flat: Tensor, batches: Batches, how: Descent, row: int, received: Received) -> None:
        """Descend in place: the module's parameters are views of `flat`."""
        for parameter, view in zip(self.parameters, self.layout.views(flat).values(), strict=True):
            parameter.data = view
        velocity = [torch.zeros_like(p) for p in self.parameters] if how.momentum else None
        targets = None if how.proximal is None else self.layout.views(how.proximal.target[row])
        for step in range(batches.steps):
            x, y = batches.single(row, step)
            if len(x) == 0:
                break
            loss = self.loss.of_mean(self.loss.per_sample(self.model(x), y).mean())
            gradients = list(torch.autograd.grad(loss, self.parameters))
            with torch.no_grad():
                if how.proximal is not None and targets is not None:
                    self._pull(gradients, targets, how.proximal)
                self._step(gradients, velocity, how)
                received.restore(flat)

    def _pull(self, gradients: list[Tensor], targets: dict[str, Tensor], proximal: ProximalTerm) -> None:
        """Add the gradient of the proximal term."""
        pairs = zip(gradients, self.parameters, targets.values(), proximal.strengths, strict=True)
        for gradient, parameter, target, strength in pairs:
            if strength:
                gradient.add_(parameter - target, alpha=strength)

    def _step(self, gradients: list[Tensor], velocity: list[Tensor] | None, how: Descent) -> None:
        if how.clip is not None:
            norm = torch.stack([g.norm() for g in gradients]).norm()
            torch._foreach_mul_(gradients, (how.clip / norm).clamp(max=1))
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
