"""What becomes of a model's accuracy when all weights of one input are raised a little, for hundreds of inputs at once.

If each weight of the first fully connected layer that belongs to input i grows by r, every hidden unit's sum grows by
the same `r·x_i`. So the layer's product is taken once, and a sample goes through the rest of the chain only for those
inputs that are not zero in it: of 784 pixels of a handwritten digit, some 150. Of these, only the few are left by which
its class can change at all: how fast outputs move follows from the weights.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn
from torch.func import functional_call

from tacit.core import CrossEntropy, Loss, Perturbation, Samples
from tacit.core.losses import scores
from tacit.engine.layout import Layout
from tacit.engine.learners.kernels.chain import TRAINED, Link

ROUNDING = 1e-5  # of the largest output: what differences of outputs may be off by
AT_ONCE = 1024  # pairs of a sample and an input; with 256 hidden units they take one megabyte


@dataclass(frozen=True, eq=False)
class Nudged:
    """A chain cut open behind its first fully connected layer, and which of that layer's inputs move together."""

    before: tuple[Link, ...]
    first: Link
    after: tuple[Link, ...]
    members: Tensor  # each input's group; -1: none
    nudge: Perturbation

    @classmethod
    def of(cls, links: tuple[Link, ...], layout: Layout, nudge: Perturbation) -> Self | None:
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
        rates = Rates.of(self.after, parameters, z, raised) if isinstance(loss, CrossEntropy) else None
        told = raised.abs() > self._needed(rates, outputs, y)
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

    def _needed(self, rates: "Rates | None", outputs: Tensor, y: Tensor) -> Tensor:
        """By how much every sample's hidden units must at least be raised before its class can change."""
        if rates is None:
            return outputs.new_zeros(len(y), 1)
        said, true = outputs.argmax(1)[:, None], y[:, None]
        rounding = ROUNDING * outputs.abs().amax(1, keepdim=True)
        overtaken = _time(outputs.gather(1, true) - outputs - rounding, rates.of_any(over=true))
        overtaken = overtaken.scatter(1, true, torch.inf).amin(1, keepdim=True)
        lag = outputs.gather(1, said) - outputs.gather(1, true) - rounding
        overtaking = _time(lag, rates.of_any(over=said).gather(1, true))
        return torch.where(said == true, overtaken, overtaking)


@dataclass(frozen=True, eq=False)
class Rates:
    """How fast outputs move while all hidden units are raised, (samples, classes): by `sure`, give or take `unsure`."""

    sure: Tensor
    unsure: Tensor

    @classmethod
    def of(cls, links: tuple[Link, ...], parameters: Mapping[str, Tensor], z: Tensor, raised: Tensor) -> Self | None:
        """None if some layer's behaviour is not known.

        A rectified unit that is on moves as it is raised; one that stays off does not; only one that may be switched on
        is unsure. Through other layers no more is known than that no activation moves by more than its input.
        """
        if not links or not isinstance(links[-1].module, nn.Linear):
            return None
        last = parameters[_named(links[-1], "weight")]
        if len(links) == 2 and isinstance(links[0].module, nn.ReLU) and bool((raised >= 0).all()):
            on, most = z > 0, raised.amax(1, keepdim=True)
            maybe = ~on & (z > -most)
            return cls(on.to(z.dtype) @ last.t(), maybe.to(z.dtype) @ last.abs().t())
        moved = torch.ones_like(z[0])
        for link in links[:-1]:
            if isinstance(link.module, nn.Linear):
                moved = parameters[_named(link, "weight")].abs() @ moved
            elif not isinstance(link.module, nn.ReLU | nn.Tanh | nn.Sigmoid):
                return None
        unsure = (last.abs() @ moved).expand(len(z), -1)
        return cls(torch.zeros_like(unsure), unsure)

    def of_any(self, over: Tensor) -> Tensor:
        """How fast each class can at most gain on one class per sample, (samples, 1)."""
        return self.sure - self.sure.gather(1, over) + self.unsure + self.unsure.gather(1, over)


def _time(way: Tensor, rate: Tensor) -> Tensor:
    """The least that it takes to make up the way; for ever where nothing is gained."""
    return torch.where(rate > 0, way.clamp(min=0) / rate, torch.inf)


def _through(links: tuple[Link, ...], parameters: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """One client's samples through some links, with its own weights."""
    for link in links:
        own = {name: parameters[_named(link, name)] for name, _ in link.module.named_parameters(recurse=False)}
        x = functional_call(link.module, own, (x,)) if own else link.module(x)
    return x


def _named(link: Link, name: str) -> str:
    return f"{link.name}.{name}" if link.name else name
