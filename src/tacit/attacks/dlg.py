"""Deep leakage from gradients: reconstruct the samples from the update that they caused.

The adversary knows the protocol and the broadcast model. It optimises dummy samples until their update matches the
observed one. As published, dummy labels are optimised along with the images. Later work showed that labels can be
inferred from the last layer (iDLG), and that the angle between updates is a better distance than their difference if
the scale carries little information (Geiping et al.), for example after clipping. Of methods that clip records one by
one, the adversary matches the sum of clipped gradients.

Reconstructions are scored by mean squared error, peak signal-to-noise ratio and structural similarity.

References: Zhu, Liu, Han. Deep Leakage from Gradients. NeurIPS 2019. Zhao, Mopuri, Bilen. iDLG. 2020. Geiping,
Bauermeister, Dröge, Moeller. Inverting Gradients. NeurIPS 2020.
"""

import copy
import math
from dataclasses import dataclass
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn
from torch.func import functional_call

from tacit.attacks.views import ClientObservation, local_training
from tacit.core import Key
from tacit.errors import at_least, expect, one_of, whole

Labels = Literal["inferred", "optimised"]
Distance = Literal["squared", "cosine"]
RECOVERED, UNRECOGNISABLE = 0.9, 0.3  # SSIM
CONVERGED = 1e-4  # the distance below which no further start is tried
_WINDOW, _SIGMA = 11, 1.5  # of SSIM
STABILISERS = (0.01**2, 0.03**2)  # C₁ and C₂ of SSIM for a range of 1


@dataclass(frozen=True, kw_only=True)
class Dlg:
    """Settings of the attack.

    Args:
        samples: number of samples behind an update; known to the adversary.
        labels: `inferred` from the last layer, or `optimised` along with the images, as published.
        distance: `squared` difference of updates, as published, or `cosine` of the angle between them.
        smoothness: weight of the images' total variation, which is commonly used with the cosine distance.
        steps: steps of L-BFGS, per start.
        starts: maximum number of random starts; the best one counts.
    """

    samples: int = 1
    labels: Labels = "inferred"
    distance: Distance = "squared"
    smoothness: float = 0.0
    steps: int = 300
    starts: int = 2

    def __post_init__(self) -> None:
        whole(1, samples=self.samples, steps=self.steps, starts=self.starts)
        at_least(0, smoothness=self.smoothness)
        one_of(get_args(Labels), labels=self.labels)
        one_of(get_args(Distance), distance=self.distance)

    @classmethod
    def as_published(cls, samples: int = 1) -> "Dlg":
        """As first published, plus a line search, with which L-BFGS needs fewer steps."""
        return cls(samples=samples, labels="optimised")

    @classmethod
    def with_improvements(cls, samples: int = 1) -> "Dlg":
        """With later improvements: inferred labels, cosine distance, smooth images; more steps for more samples."""
        return cls(samples=samples, distance="cosine", smoothness=1e-4, steps=300 * samples)


@dataclass(frozen=True, eq=False)
class Candidate:
    """Images and labels, and how far their update is from the observed one."""

    x: Tensor
    y: Tensor
    distance: float


@dataclass(frozen=True, eq=False)
class Reconstruction:
    """Originals and reconstructed images, pair by pair, and whether each label is correct."""

    originals: Tensor
    reconstructed: Tensor
    labels_correct: Tensor

    @property
    def mse(self) -> Tensor:
        return mse(self.originals, self.reconstructed)

    @property
    def psnr(self) -> Tensor:
        return psnr(self.originals, self.reconstructed)

    @property
    def ssim(self) -> Tensor:
        return ssim(self.originals, self.reconstructed)

    @property
    def recovered(self) -> int:
        """Number of images with SSIM above `RECOVERED`."""
        return int((self.ssim > RECOVERED).sum())


def invert(observed: ClientObservation, model: nn.Module, like: Tensor, dlg: Dlg, key: Key) -> Candidate:
    """The samples whose update best explains the observation; `like` has the shape of one sample."""
    objective = _Objective(observed, model, dlg)
    best: Candidate | None = None
    for start in range(dlg.starts):
        candidate = _optimise(objective, like, dlg, key.child("start", start))
        if best is None or candidate.distance < best.distance:
            best = candidate
        if best.distance < CONVERGED:
            break
    assert best is not None
    return best


def compare(candidate: Candidate, x: Tensor, y: Tensor) -> Reconstruction:
    """Match the candidate with the originals; a batch has no order, so the pairing minimises the squared error."""
    images = candidate.x.clamp(0, 1).to(x.dtype)
    cost = (x[:, None] - images[None]).square().flatten(2).mean(2)
    order = torch.as_tensor(linear_sum_assignment(cost.numpy())[1])
    return Reconstruction(x, images[order], y == candidate.y[order])


def mse(images: Tensor, others: Tensor) -> Tensor:
    """The mean squared error of every pair."""
    return (images - others).square().flatten(1).mean(1)


def psnr(images: Tensor, others: Tensor) -> Tensor:
    """The peak signal-to-noise ratio of every pair in decibel, for pixels in [0, 1]; infinite for equal images."""
    return -10 * mse(images, others).log10()


def ssim(images: Tensor, others: Tensor) -> Tensor:
    """The structural similarity of every pair: 1 for equal images, about 0 for unrelated ones.

    A Gaussian window of 11 × 11 (σ = 1.5) at all positions where it fits, mean over positions and channels. Images
    smaller than the window get the largest odd window that fits. Pixels are in [0, 1].

    Args:
        images: (count, channels, height, width).
        others: the same shape.

    Reference: Wang, Bovik, Sheikh, Simoncelli. Image Quality Assessment: From Error Visibility to Structural
    Similarity. IEEE Transactions on Image Processing 13(4), 2004, Equation 13.

    Example:
        >>> image = torch.rand(1, 1, 28, 28)
        >>> round(float(ssim(image, image)), 6)
        1.0
    """
    expect(images.dim() == 4 and images.shape == others.shape, "two stacks of images (count, channels, height, width)")
    x, y = images.double(), others.double()
    mean_x, mean_y = _window_means(x), _window_means(y)
    variance_x, variance_y = _window_means(x * x) - mean_x**2, _window_means(y * y) - mean_y**2
    covariance = _window_means(x * y) - mean_x * mean_y
    c1, c2 = STABILISERS
    luminance = (2 * mean_x * mean_y + c1) / (mean_x**2 + mean_y**2 + c1)
    structure = (2 * covariance + c2) / (variance_x + variance_y + c2)
    return (luminance * structure).flatten(1).mean(1)


class _Objective:
    """The distance between the update of dummy samples and the observed one, in double precision."""

    def __init__(self, observed: ClientObservation, model: nn.Module, dlg: Dlg) -> None:
        self.observed, self.dlg = observed, dlg
        self.model = copy.deepcopy(model).double()
        trainable = [(name, p.shape) for name, p in model.named_parameters() if p.requires_grad]
        self.names, self.shapes = [name for name, _ in trainable], [shape for _, shape in trainable]
        observation = observed.round
        self.local = local_training(observation.method, observation.before, observation.now, dlg.samples)
        self.start = observed.start.double()
        self.offset = observed.predict(torch.zeros_like(self.start)).detach()  # without any update
        self.target = observed.values.double() - self.offset

    def distance(self, x: Tensor, labels: Tensor) -> Tensor:
        """The squared distance relative to that of no update, or one minus the cosine."""
        predicted = self.observed.predict(self._update(x, labels)) - self.offset
        if self.dlg.distance == "squared":
            return (predicted - self.target).square().sum() / self.target.square().sum().clamp(min=1e-300)
        return 1 - F.cosine_similarity(predicted, self.target, dim=0)

    def infer_labels(self, dummy: Tensor) -> Tensor | None:
        """Labels from the last layer: each sample raises the output of its class; the largest is taken repeatedly.

        A bias rises by the class's share of the samples minus the mean predicted probability, for which dummy samples
        are a good estimate. None if the codec does not transmit the last layer unchanged.
        """
        size = self.shapes[-1].numel()
        if not self.observed.reveals(torch.arange(self.start.numel() - size, self.start.numel())):
            return None
        last = self.observed.estimate_update().double()[-size:]
        rise = last.view(self.shapes[-1][0], -1).sum(1) / (self.local.lr * self.local.steps)
        if self.local.expected is not None:  # a sum, and not a mean
            rise *= self.local.expected / self.dlg.samples
        if self.dlg.samples > 1 and last.shape == self.shapes[-1]:
            rise += self.outputs(dummy, self.start).softmax(1).mean(0)
        labels: list[int] = []
        for _ in range(self.dlg.samples):
            labels.append(int(rise.argmax()))
            rise[labels[-1]] -= 1 / self.dlg.samples
        return torch.tensor(labels)

    def outputs(self, x: Tensor, weights: Tensor) -> Tensor:
        parts = torch.split(weights, [shape.numel() for shape in self.shapes])
        views = {n: part.view(shape) for n, part, shape in zip(self.names, parts, self.shapes, strict=True)}
        outputs: Tensor = functional_call(self.model, views, (x,))
        return outputs

    def _update(self, x: Tensor, labels: Tensor) -> Tensor:
        """A client's local training in full batches; coordinates outside the mask do not change."""
        local, weights = self.local, self.start.clone().requires_grad_()
        if local.expected is not None:
            return self._update_by_records(x, labels, local.expected)
        for _ in range(local.steps):
            loss = F.cross_entropy(self.outputs(x, weights), labels)
            (gradient,) = torch.autograd.grad(loss, weights, create_graph=True)
            step = local.lr * (_clip(gradient, local.clip) + local.weight_decay * weights)
            if local.mask is not None:
                step = torch.zeros_like(step).index_copy(0, local.mask, step[local.mask])
            weights = weights - step
        return weights - self.start

    def _update_by_records(self, x: Tensor, labels: Tensor, expected: float) -> Tensor:
        """The same along sums of gradients that are clipped record by record; without noise."""
        local, weights = self.local, self.start.clone().requires_grad_()
        own = slice(None) if local.mask is None else local.mask
        velocity = torch.zeros_like(self.start[own])
        for _ in range(local.steps):
            losses = F.cross_entropy(self.outputs(x, weights), labels, reduction="none")
            gradients = (torch.autograd.grad(loss, weights, create_graph=True)[0][own] for loss in losses)
            total = torch.stack([_clip(each, local.clip) for each in gradients]).sum(0)
            velocity = local.momentum * velocity + total / expected + local.weight_decay * weights[own]
            step = torch.zeros_like(weights)
            step[own] = local.lr * velocity
            weights = weights - step
        return weights - self.start


def _optimise(objective: _Objective, like: Tensor, dlg: Dlg, key: Key) -> Candidate:
    """L-BFGS with a line search from one random start."""
    generator = key.public_generator()
    x = torch.randn(dlg.samples, *like.shape, generator=generator, dtype=torch.float64, requires_grad=True)
    classes = objective.outputs(x.detach(), objective.start).shape[1]
    logits = torch.randn(dlg.samples, classes, generator=generator, dtype=torch.float64, requires_grad=True)
    labels = objective.infer_labels(x.detach()) if dlg.labels == "inferred" else None
    variables = [x] if labels is not None else [x, logits]
    optimiser = torch.optim.LBFGS(
        variables, max_iter=dlg.steps, max_eval=2 * dlg.steps, history_size=50, tolerance_grad=0.0,
        tolerance_change=0.0, line_search_fn="strong_wolfe",
    )  # fmt: skip

    def distance() -> Tensor:
        return objective.distance(x, logits.softmax(1) if labels is None else labels)

    def closure() -> Tensor:
        value = distance() + dlg.smoothness * _total_variation(x)
        for variable, gradient in zip(variables, torch.autograd.grad(value, variables), strict=True):
            variable.grad = gradient
        return value.detach()

    optimiser.step(closure)  # type: ignore[no-untyped-call]
    guessed = logits.detach().argmax(1) if labels is None else labels
    return Candidate(x.detach(), guessed, float(distance().detach().nan_to_num(torch.inf)))


def _clip(gradient: Tensor, clip: float | None) -> Tensor:
    """A gradient of at most this norm."""
    return gradient if clip is None else gradient * (clip / gradient.norm()).clamp(max=1.0)


def _total_variation(x: Tensor) -> Tensor:
    return x.diff(dim=-1).abs().mean() + x.diff(dim=-2).abs().mean()


def _window_means(images: Tensor) -> Tensor:
    """Means under the window of SSIM, channel by channel."""
    channels, side = images.shape[1], min(*images.shape[2:], _WINDOW)
    side -= 1 - side % 2
    at = torch.arange(side, dtype=images.dtype) - side // 2
    line = torch.exp(-(at**2) / (2 * _SIGMA**2)) / (_SIGMA * math.sqrt(2 * math.pi))
    window = torch.outer(line, line) / line.sum() ** 2
    return F.conv2d(images, window.expand(channels, 1, side, side), groups=channels)
