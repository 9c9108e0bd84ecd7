"""What becomes of a model's accuracy when all weights of one input are raised a little, for hundreds of inputs at once.

If each weight of the first fully connected layer that belongs to input i grows by r, every hidden unit's sum grows by
the same `r·x_i`. So the layer's product is taken once, and a sample goes through the rest of the chain only for those
inputs that are not zero in it: of 784 pixels of a handwritten digit, some 150. Of these, only the few are left by which
a class can change at all: how far outputs can move follows from the weights, as no activation moves more than its
input does.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn
from torch.func import functional_call

from tacit.core import CrossEntropy, Loss, Nudge, Samples
from tacit.core.losses import scores
from tacit.engine.kernels.chain import TRAINED, Link
from tacit.engine.layout import Layout

ROUNDING = 1e-5  # of the largest output: what differences of outputs may be off by
AT_ONCE = 1024  # pairs of a sample and an input; with 256 hidden units they take one megabyte


@dataclass(frozen=True, eq=False)
class Nudged:
    """A chain cut open behind its first fully connected layer, and which of that layer's inputs move together."""

    before: tuple[Link, ...]
    first: Link
    after: tuple[Link, ...]
    members: Tensor  # each input's group; -1: none
    nudge: Nudge

    @classmethod
    def of(cls, links: tuple[Link, ...], layout: Layout, nudge: Nudge) -> Self | None:
        """None if the first layer with weights is another one, or if groups are not made of its inputs."""
        place = next(i for i, link in enumerate(links) if isinstance(link.module, TRAINED))
        first = links[place]
        if not isinstance(first.module, nn.Linear):
            return None
        groups = layout.views(nudge.groups)
        own = groups.pop(_named(first, "weight"))
        if bool((own != own[0]).any()) or any(bool((other >= 0).any()) for other in groups.values()):
            return None
        return cls(links[:place], first, links[place + 1 :], own[0], nudge)

    def scores(self, loss: Loss, parameters: Mapping[str, Tensor], data: Samples) -> Tensor:
        """The mean score as the weights are, and with each group nudged, (1 + groups,)."""
        x, y = data
        x = _through(self.before, parameters, x).flatten(1)
        z = _through((self.first,), parameters, x)
        outputs = _through(self.after, parameters, z)
        here = scores(loss, outputs, y)
        raised = self._raised(x)
        told = raised.abs() > self._needed(loss, parameters, outputs, y)[:, None]
        change = here.new_zeros(self.nudge.count)
        for pairs in torch.split(told.nonzero(), AT_ONCE):
            sample, group = pairs.unbind(1)
            hidden = z[sample].add_(raised[sample, group][:, None])
            there = scores(loss, _through(self.after, parameters, hidden), y[sample])
            change.index_add_(0, group, there - here[sample])
        return torch.cat([here.sum()[None], here.sum() + change]) / len(y)

    def _raised(self, x: Tensor) -> Tensor:
        """By how much each group raises every hidden unit, (samples, groups)."""
        moving = (self.members >= 0).nonzero().flatten()
        sums = x.new_zeros(self.nudge.count, len(x)).index_add_(0, self.members[moving], x.t()[moving])
        return sums.mul_(self.nudge.amount).t()

    def _needed(self, loss: Loss, parameters: Mapping[str, Tensor], outputs: Tensor, y: Tensor) -> Tensor:
        """By how much every sample's hidden units must at least be raised before its score can change."""
        reach = _reach(self.after, parameters) if isinstance(loss, CrossEntropy) else None
        if reach is None:
            return outputs.new_zeros(len(y))
        said, truth = outputs.argmax(1), outputs.gather(1, y[:, None])
        lead = truth - outputs  # of the true class over each other; negative where another one leads
        slack = ROUNDING * outputs.abs().amax(1)
        right = (lead.sub(slack[:, None]) / reach[y]).scatter(1, y[:, None], torch.inf).amin(1)
        wrong = (-lead.gather(1, said[:, None])[:, 0] - slack) / reach[y, said]
        return torch.where(said == y, right, wrong).clamp(min=0)


def _reach(links: tuple[Link, ...], parameters: Mapping[str, Tensor]) -> Tensor | None:
    """How far any two outputs can part per unit by which all hidden units are raised; None if that is not known."""
    if not links or not isinstance(links[-1].module, nn.Linear):
        return None
    moved: Tensor | None = None
    for link in links[:-1]:
        if isinstance(link.module, nn.Linear):
            weight = parameters[_named(link, "weight")].abs()
            moved = weight.sum(1) if moved is None else weight @ moved
        elif not isinstance(link.module, nn.ReLU | nn.Tanh | nn.Sigmoid):
            return None
    last = parameters[_named(links[-1], "weight")]
    last = last if moved is None else last * moved
    return torch.cdist(last, last, p=1)


def _through(links: tuple[Link, ...], parameters: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """One client's samples through some links, with its own weights."""
    for link in links:
        own = {name: parameters[_named(link, name)] for name, _ in link.module.named_parameters(recurse=False)}
        x = functional_call(link.module, own, (x,)) if own else link.module(x)
    return x


def _named(link: Link, name: str) -> str:
    return f"{link.name}.{name}" if link.name else name
