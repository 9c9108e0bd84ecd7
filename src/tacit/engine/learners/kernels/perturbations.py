"""The accuracy of a model when all weights of one input are raised by a small amount, for hundreds of inputs at once.

If each weight of input i in the first fully connected layer grows by r, every hidden pre-activation grows by the same
`r·x_i`. So the layer's product is computed once, and a sample passes through the rest of the chain only for the inputs
that are not zero in it: about 150 of the 784 pixels of a handwritten digit. Of these, only the few remain that can
change the predicted class at all, since the weights bound how fast outputs change.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn
from torch.func import functional_call

from tacit.core import CrossEntropy, Loss, Perturbation
from tacit.core.losses import scores
from tacit.data import Samples
from tacit.engine.layout import Layout
from tacit.engine.learners.kernels.tracing import ELEMENTWISE, Chain, TracedLayer

ROUNDING = 1e-5  # of the largest output: the rounding error of differences of outputs
PAIRS_PER_PASS = 1024  # of a sample and an input; with 256 hidden units they take one megabyte


@dataclass(frozen=True, eq=False)
class PerturbedScorer:
    """A chain split behind its first fully connected layer, and the perturbation of that layer's inputs.

    Attributes:
        before: the layers below the first fully connected one.
        first: the first fully connected layer.
        after: the layers above it.
        groups: the group of each input; -1: none.
        perturbation: by how much the weights of a group are raised.
    """

    before: Chain
    first: TracedLayer
    after: Chain
    groups: Tensor
    perturbation: Perturbation

    @classmethod
    def of(cls, chain: Chain, layout: Layout, perturbation: Perturbation) -> Self | None:
        """None if the first layer with weights is not fully connected, or the groups are not groups of its inputs."""
        index = next(i for i, layer in enumerate(chain) if layer.parameters)
        first = chain[index]
        if first.kind is not nn.Linear:
            return None
        groups = layout.views(perturbation.groups)
        own = groups.pop(first.parameters[0])
        if bool((own != own[0]).any()) or any(bool((other >= 0).any()) for other in groups.values()):
            return None
        return cls(chain[:index], first, chain[index + 1 :], own[0], perturbation)

    def scores(self, loss: Loss, parameters: Mapping[str, Tensor], data: Samples) -> Tensor:
        """The mean score of the unperturbed weights, and with each group perturbed, (1 + groups,)."""
        x, y = data
        x = _apply(self.before, parameters, x).flatten(1)
        hidden = _apply((self.first,), parameters, x)
        outputs = _apply(self.after, parameters, hidden)
        unperturbed = scores(loss, outputs, y)
        shift = self._shift(x)
        bounds = SlopeBounds.of(self.after, parameters, hidden, shift) if isinstance(loss, CrossEntropy) else None
        relevant = shift.abs() > self._min_shift(bounds, outputs, y)
        change = unperturbed.new_zeros(self.perturbation.count)
        for pairs in torch.split(relevant.nonzero(), PAIRS_PER_PASS):
            sample, group = pairs.unbind(1)
            shifted = hidden[sample].add_(shift[sample, group][:, None])
            perturbed = scores(loss, _apply(self.after, parameters, shifted), y[sample])
            change.index_add_(0, group, perturbed - unperturbed[sample])
        return torch.cat([unperturbed.sum()[None], unperturbed.sum() + change]) / len(y)

    def _shift(self, x: Tensor) -> Tensor:
        """By how much each group raises every hidden unit, (samples, groups)."""
        grouped = (self.groups >= 0).nonzero().flatten()
        sums = x.new_zeros(self.perturbation.count, len(x)).index_add_(0, self.groups[grouped], x.t()[grouped])
        return sums.mul_(self.perturbation.amount).t()

    def _min_shift(self, bounds: "SlopeBounds | None", outputs: Tensor, y: Tensor) -> Tensor:
        """The shift of its hidden units below which a sample's predicted class cannot change whether it is correct."""
        if bounds is None:
            return outputs.new_zeros(len(y), 1)
        predicted, true = outputs.argmax(1)[:, None], y[:, None]
        rounding = ROUNDING * outputs.abs().amax(1, keepdim=True)
        lead = outputs.gather(1, true) - outputs - rounding
        until_wrong = _shift_to_cover(lead, bounds.gain_over(true))
        until_wrong = until_wrong.scatter(1, true, torch.inf).amin(1, keepdim=True)
        lag = outputs.gather(1, predicted) - outputs.gather(1, true) - rounding
        until_right = _shift_to_cover(lag, bounds.gain_over(predicted).gather(1, true))
        return torch.where(predicted == true, until_wrong, until_right)


@dataclass(frozen=True, eq=False)
class SlopeBounds:
    """How fast outputs change while all hidden units are raised: within `known` ± `uncertain`, (samples, classes)."""

    known: Tensor
    uncertain: Tensor

    @classmethod
    def of(cls, chain: Chain, parameters: Mapping[str, Tensor], hidden: Tensor, shift: Tensor) -> Self | None:
        """None if the chain has a layer without a known bound.

        A ReLU that is on follows its input; one that stays off does not change; only one that may be switched on is
        uncertain. For other layers the bound is that no activation changes by more than its input.
        """
        if not chain or chain[-1].kind is not nn.Linear:
            return None
        last = parameters[chain[-1].parameters[0]]
        if len(chain) == 2 and chain[0].kind is nn.ReLU and bool((shift >= 0).all()):
            on, largest = hidden > 0, shift.amax(1, keepdim=True)
            maybe = ~on & (hidden > -largest)
            return cls(on.to(hidden.dtype) @ last.t(), maybe.to(hidden.dtype) @ last.abs().t())
        slope = torch.ones_like(hidden[0])
        for layer in chain[:-1]:
            if layer.kind is nn.Linear:
                slope = parameters[layer.parameters[0]].abs() @ slope
            elif layer.kind not in ELEMENTWISE:
                return None
        uncertain = (last.abs() @ slope).expand(len(hidden), -1)
        return cls(torch.zeros_like(uncertain), uncertain)

    def gain_over(self, reference: Tensor) -> Tensor:
        """How fast each class can at most gain on one reference class per sample, (samples, 1)."""
        relative = self.known - self.known.gather(1, reference)
        return relative + self.uncertain + self.uncertain.gather(1, reference)


def _shift_to_cover(distance: Tensor, slope: Tensor) -> Tensor:
    """The least shift that covers a distance; infinite where the slope is not positive."""
    return torch.where(slope > 0, distance.clamp(min=0) / slope, torch.inf)


def _apply(chain: Chain, parameters: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """One client's samples through some layers, with the client's weights."""
    for layer in chain:
        own = {name: parameters[full] for name, full in zip(("weight", "bias"), layer.parameters, strict=False)}
        x = functional_call(layer.module, own, (x,)) if own else layer.module(x)
    return x
