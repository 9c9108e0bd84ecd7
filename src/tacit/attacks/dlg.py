"""Deep leakage from gradients: find the samples whose update is the one that was seen.

The adversary knows the protocol and the model that was broadcast. It descends on made-up samples until the update that
they would cause is the one it holds. As published, made-up labels are found along with the images; since then it was
seen that labels can be read off the last layer (iDLG), and that the angle between updates is a better distance than
their difference where scale means little (Geiping et al.), for example behind clipping.

References: Zhu, Liu, Han. Deep Leakage from Gradients. NeurIPS 2019. Zhao, Mopuri, Bilen. iDLG. 2020. Geiping,
Bauermeister, Dröge, Moeller. Inverting Gradients. NeurIPS 2020.
"""

import copy
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn
from torch.func import functional_call

from tacit.attacks.scores import mse, psnr, ssim
from tacit.attacks.views import Trace, recipe
from tacit.core import Descent, Key
from tacit.errors import expect

Labels = Literal["inferred", "optimised"]
Distance = Literal["squared", "cosine"]
RECOVERED, UNRECOGNISABLE = 0.9, 0.3  # SSIM
CLOSE = 1e-4  # a distance at which no second start is needed


@dataclass(frozen=True, kw_only=True)
class Dlg:
    """How the adversary goes about it.

    Args:
        samples: how many samples stand behind an update; known to the adversary.
        labels: `inferred` from the last layer, or `optimised` along with the images, as published.
        distance: `squared` difference of updates, as published, or `cosine` of the angle between them.
        smoothness: weight of the images' total variation, which the cosine distance is commonly used with.
        steps: of L-BFGS, per start.
        starts: how many random beginnings at the most; the one that comes nearest counts.
    """

    samples: int = 1
    labels: Labels = "inferred"
    distance: Distance = "squared"
    smoothness: float = 0.0
    steps: int = 300
    starts: int = 2

    def __post_init__(self) -> None:
        for name in ("samples", "steps", "starts"):
            expect(getattr(self, name) >= 1, f"{name}={getattr(self, name)} >= 1")
        expect(self.smoothness >= 0, f"smoothness={self.smoothness} >= 0")

    @classmethod
    def published(cls, samples: int = 1) -> "Dlg":
        """As first published, but for a line search, with which L-BFGS needs fewer steps."""
        return cls(samples=samples, labels="optimised")

    @classmethod
    def improved(cls, samples: int = 1) -> "Dlg":
        """With what was learnt since: labels read off, the angle as the distance, smooth images; longer for more."""
        return cls(samples=samples, distance="cosine", smoothness=1e-4, steps=300 * samples)


@dataclass(frozen=True, eq=False)
class Found:
    """What the adversary believes: images, labels, and how far their update is from the one it saw."""

    x: Tensor
    y: Tensor
    distance: float


@dataclass(frozen=True, eq=False)
class Likeness:
    """Originals and what was found, pair by pair."""

    originals: Tensor
    found: Tensor
    labels: Tensor  # whether each label is right

    @property
    def mse(self) -> Tensor:
        """Mean squared errors."""
        return mse(self.originals, self.found)

    @property
    def psnr(self) -> Tensor:
        """Peak signal-to-noise ratios, decibel."""
        return psnr(self.originals, self.found)

    @property
    def ssim(self) -> Tensor:
        """Structural similarities."""
        return ssim(self.originals, self.found)

    @property
    def recovered(self) -> int:
        """How many are recognisable beyond doubt."""
        return int((self.ssim > RECOVERED).sum())


def invert(trace: Trace, model: nn.Module, like: Tensor, how: Dlg, key: Key) -> Found:
    """The samples that would have left this trace; `like` is of the shape of one sample."""
    goal = _Goal(trace, model, how)
    best: Found | None = None
    for start in range(how.starts):
        found = _descend(goal, like, how, key.child("start", start))
        if best is None or found.distance < best.distance:
            best = found
        if best.distance < CLOSE:
            break
    assert best is not None
    return best


def compare(found: Found, x: Tensor, y: Tensor) -> Likeness:
    """Originals beside what was found; a batch has no order, so pairs are matched for the least squared error."""
    guess = found.x.clamp(0, 1).to(x.dtype)
    cost = (x[:, None] - guess[None]).square().flatten(2).mean(2)
    order = torch.as_tensor(linear_sum_assignment(cost.numpy())[1])
    return Likeness(x, guess[order], y == found.y[order])


class _Goal:
    """How far the update of made-up samples is from the one that was seen, in double precision."""

    def __init__(self, trace: Trace, model: nn.Module, how: Dlg) -> None:
        self.trace, self.how = trace, how
        self.model = copy.deepcopy(model).double()
        trainable = [(name, p.shape) for name, p in model.named_parameters() if p.requires_grad]
        self.names, self.shapes = [name for name, _ in trainable], [shape for _, shape in trainable]
        self.descent = recipe(trace.seen.method, trace.seen.before, trace.seen.now)
        self.steps = _steps(self.descent, how.samples)
        self.first = trace.start.double()
        self.unmoved = trace.would_be(torch.zeros_like(self.first)).detach()
        self.seen = trace.values.double() - self.unmoved

    def distance(self, x: Tensor, target: Tensor) -> Tensor:
        """From what was seen: squared and relative to no update at all, or one minus the cosine."""
        said = self.trace.would_be(self._update(x, target)) - self.unmoved
        if self.how.distance == "squared":
            return (said - self.seen).square().sum() / self.seen.square().sum().clamp(min=1e-300)
        return 1 - F.cosine_similarity(said, self.seen, dim=0)

    def infer(self, like: Tensor) -> Tensor | None:
        """Labels from the last layer: each lifts its own output by its share; whatever is highest is taken, in turn.

        A bias is lifted by exactly that share less the mean probability; of several samples made-up ones tell that well
        enough. None, if the codec does not say the last layer as it is.
        """
        size = self.shapes[-1].numel()
        if not self.trace.broadcast_parts(torch.arange(self.first.numel() - size, self.first.numel())):
            return None
        last = self.trace.update().double()[-size:]
        lifted = last.view(self.shapes[-1][0], -1).sum(1) / (self.descent.lr * self.steps)
        if self.how.samples > 1 and last.shape == self.shapes[-1]:
            lifted += self.outputs(like, self.first).softmax(1).mean(0)
        labels: list[int] = []
        for _ in range(self.how.samples):
            labels.append(int(lifted.argmax()))
            lifted[labels[-1]] -= 1 / self.how.samples
        return torch.tensor(labels)

    def outputs(self, x: Tensor, weights: Tensor) -> Tensor:
        """The model's, at these weights."""
        parts = torch.split(weights, [shape.numel() for shape in self.shapes])
        views = {n: part.view(shape) for n, part, shape in zip(self.names, parts, self.shapes, strict=True)}
        found: Tensor = functional_call(self.model, views, (x,))
        return found

    def _update(self, x: Tensor, target: Tensor) -> Tensor:
        """What a client does, step by step, in full batches; outside a mask nothing moves."""
        how, weights = self.descent, self.first.clone().requires_grad_()
        for _ in range(self.steps):
            loss = F.cross_entropy(self.outputs(x, weights), target)
            (gradient,) = torch.autograd.grad(loss, weights, create_graph=True)
            if how.clip is not None:
                gradient = gradient * (how.clip / gradient.norm()).clamp(max=1.0)
            step = how.lr * (gradient + how.weight_decay * weights)
            weights = weights - (
                step if how.mask is None else torch.zeros_like(step).index_copy(0, how.mask, step[how.mask])
            )
        return weights - self.first


def _descend(goal: _Goal, like: Tensor, how: Dlg, key: Key) -> Found:
    """L-BFGS with a line search from one random beginning."""
    chance = key.torch()
    x = torch.randn(how.samples, *like.shape, generator=chance, dtype=torch.float64, requires_grad=True)
    classes = goal.outputs(x.detach(), goal.first).shape[1]
    free = torch.randn(how.samples, classes, generator=chance, dtype=torch.float64, requires_grad=True)
    labels = goal.infer(x.detach()) if how.labels == "inferred" else None
    unknown = [x] if labels is not None else [x, free]
    descent = torch.optim.LBFGS(
        unknown, max_iter=how.steps, max_eval=2 * how.steps, history_size=50, tolerance_grad=0.0, tolerance_change=0.0,
        line_search_fn="strong_wolfe",
    )  # fmt: skip

    def distance() -> Tensor:
        return goal.distance(x, free.softmax(1) if labels is None else labels)

    def objective() -> Tensor:
        value = distance() + how.smoothness * _variation(x)
        for variable, gradient in zip(unknown, torch.autograd.grad(value, unknown), strict=True):
            variable.grad = gradient
        return value.detach()

    descent.step(objective)  # type: ignore[no-untyped-call]
    guessed = free.detach().argmax(1) if labels is None else labels
    return Found(x.detach(), guessed, float(distance().detach().nan_to_num(torch.inf)))


def _steps(how: Descent, samples: int) -> int:
    """How many steps a client with so many samples takes."""
    if how.steps is not None:
        return how.steps
    batch = min(how.batch_size or samples, samples)
    return (how.epochs or 0) * -(-samples // batch)


def _variation(x: Tensor) -> Tensor:
    """Total variation: the mean difference of neighbouring pixels."""
    return x.diff(dim=-1).abs().mean() + x.diff(dim=-2).abs().mean()
