"""Losses that clients minimise, with the metrics measured on held-out data.

A loss is computed per sample, so that padding can be given weight zero. The loss of a batch is a function of their
mean, usually the mean itself.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from tacit.errors import DataError


class Loss(Protocol):
    """A loss per sample, the check of its targets, and its metrics."""

    def per_sample(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The loss of every sample; both arguments have the samples in their first dimension."""
        ...

    def from_mean(self, mean: Tensor) -> Tensor:
        """The loss of a batch or a client, from the mean loss of its samples."""
        ...

    def check(self, y: Tensor, outputs: Tensor) -> None:
        """Raise `DataError` if the targets do not fit outputs of this shape."""
        ...

    def metrics(self, outputs: Tensor, y: Tensor) -> dict[str, float]:
        """Metrics on held-out data by name, the most important first."""
        ...


@dataclass(frozen=True)
class CrossEntropy:
    """Classification: outputs are logits (samples, classes), targets are class numbers (int64)."""

    def per_sample(self, outputs: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(outputs, y, reduction="none")

    def from_mean(self, mean: Tensor) -> Tensor:
        return mean

    def check(self, y: Tensor, outputs: Tensor) -> None:
        if y.dtype != torch.int64 or y.dim() != 1:
            raise DataError(
                f"Expected class labels as one int64 per sample, got {y.dtype} of shape {tuple(y.shape)}. "
                "Convert with y.long()."
            )
        classes = outputs.shape[-1]
        if len(y) and (int(y.min()) < 0 or int(y.max()) >= classes):
            raise DataError(
                f"Expected labels in 0..{classes - 1} for a model with {classes} outputs, "
                f"got {int(y.min())}..{int(y.max())}. Renumber the labels or widen the last layer."
            )

    def metrics(self, outputs: Tensor, y: Tensor) -> dict[str, float]:
        correct = (outputs.argmax(-1) == y).float().mean()
        return {"accuracy": float(correct), "loss": float(self.per_sample(outputs, y).double().mean())}


@dataclass(frozen=True)
class MeanSquared:
    """Regression: outputs and targets have the same shape; the mean over all but the samples."""

    def per_sample(self, outputs: Tensor, y: Tensor) -> Tensor:
        return (outputs - y).square().flatten(1).mean(1)

    def from_mean(self, mean: Tensor) -> Tensor:
        return mean

    def check(self, y: Tensor, outputs: Tensor) -> None:
        _check_real("regression targets", y, outputs)

    def metrics(self, outputs: Tensor, y: Tensor) -> dict[str, float]:
        loss = float(self.per_sample(outputs, y).double().mean())
        return {"rmse": loss**0.5, "loss": loss}


@dataclass(frozen=True)
class BinaryCrossEntropy:
    """Two classes: outputs are logits (samples, 1), targets are 0.0 or 1.0 of the same shape."""

    def per_sample(self, outputs: Tensor, y: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(outputs, y, reduction="none").flatten(1).mean(1)

    def from_mean(self, mean: Tensor) -> Tensor:
        return mean

    def check(self, y: Tensor, outputs: Tensor) -> None:
        _check_real("binary targets", y, outputs)
        if len(y) and not bool(((y >= 0) & (y <= 1)).all()):
            raise DataError("Expected binary targets in [0, 1]. Encode the two classes as 0.0 and 1.0.")

    def metrics(self, outputs: Tensor, y: Tensor) -> dict[str, float]:
        """Balanced accuracy at 0.5, area under the ROC curve, and mean loss."""
        positive, predicted = y.flatten() > 0.5, outputs.flatten() > 0
        balanced = 0.5 * (_mean_or_nan(predicted[positive]) + _mean_or_nan(~predicted[~positive]))
        loss = float(self.per_sample(outputs, y).double().mean())
        return {"balanced_accuracy": balanced, "auroc": auroc(outputs.flatten(), positive), "loss": loss}


@dataclass(frozen=True)
class RootMeanSquared:
    """Regression by the root of the mean squared error of a batch (Galli et al. 2023, Eq. 10).

    Its gradient is that of `MeanSquared` divided by twice the root. Its norm hardly depends on the size of the error,
    so that all steps of gradient descent are about equally long.
    """

    def per_sample(self, outputs: Tensor, y: Tensor) -> Tensor:
        return (outputs - y).square().flatten(1).mean(1)

    def from_mean(self, mean: Tensor) -> Tensor:
        return _root(mean)

    def check(self, y: Tensor, outputs: Tensor) -> None:
        _check_real("regression targets", y, outputs)

    def metrics(self, outputs: Tensor, y: Tensor) -> dict[str, float]:
        rmse = float(self.per_sample(outputs, y).double().mean().sqrt())
        return {"rmse": rmse, "loss": rmse}


@dataclass(frozen=True)
class RootBrier:
    """Classification by the root of the Brier score: the RMSE between softmax and the one-hot label."""

    def per_sample(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Squared distance between the probabilities and the one-hot label."""
        p = torch.softmax(outputs, -1)
        return p.square().sum(-1) - 2 * p.gather(-1, y[..., None])[..., 0] + 1

    def from_mean(self, mean: Tensor) -> Tensor:
        return _root(mean)

    def check(self, y: Tensor, outputs: Tensor) -> None:
        CrossEntropy().check(y, outputs)

    def metrics(self, outputs: Tensor, y: Tensor) -> dict[str, float]:
        correct = (outputs.argmax(-1) == y).float().mean()
        return {"accuracy": float(correct), "loss": float(self.per_sample(outputs, y).double().mean().sqrt())}


def scores(loss: Loss, outputs: Tensor, y: Tensor) -> Tensor:
    """The score of every sample, in float64: 1 if its class is correct and 0 if not; without classes, minus its loss.

    Example:
        >>> scores(CrossEntropy(), torch.tensor([[2.0, 1.0], [2.0, 1.0]]), torch.tensor([0, 1])).tolist()
        [1.0, 0.0]
    """
    match loss:
        case CrossEntropy() | RootBrier():
            return (outputs.argmax(-1) == y).double()
        case BinaryCrossEntropy():
            return ((outputs > 0) == (y > 0.5)).double().flatten(1).mean(1)
        case _:
            return -loss.per_sample(outputs, y).double()


def mean_losses(loss: Loss, outputs: Tensor, y: Tensor, owners: Tensor) -> Tensor:
    """The loss over each owner's samples, (owners,)."""
    per_sample, owners = loss.per_sample(outputs, y).double(), owners.to(outputs.device)
    totals = per_sample.new_zeros(int(owners.max()) + 1).index_add_(0, owners, per_sample)
    return loss.from_mean(totals / torch.bincount(owners).clamp(min=1))


def best_outputs(loss: Loss, outputs: Tensor, y: Tensor, owners: Tensor | None) -> Tensor:
    """Of the outputs of k hypotheses, (k, samples, ...), those of the hypothesis with the least loss for each owner."""
    if len(outputs) == 1:
        return outputs[0]
    owners = torch.zeros(len(y), dtype=torch.int64) if owners is None else owners.cpu()
    best = torch.stack([mean_losses(loss, output, y, owners) for output in outputs]).argmin(0)
    return outputs[best[owners], torch.arange(len(y))]


def auroc(scores: Tensor, positive: Tensor) -> float:
    """Area under the ROC curve as the Mann–Whitney statistic; ties count one half."""
    _, inverse, counts = torch.unique(scores, return_inverse=True, return_counts=True)
    ends = counts.cumsum(0).double()
    rank = (ends - (counts.double() - 1) / 2)[inverse]
    n_pos, n_neg = int(positive.sum()), int((~positive).sum())
    if n_pos == 0 or n_neg == 0:
        return float("nan")
    return float((rank[positive].sum() - n_pos * (n_pos + 1) / 2) / (n_pos * n_neg))


def _check_real(name: str, y: Tensor, outputs: Tensor) -> None:
    if not y.is_floating_point() or y.shape[1:] != outputs.shape[1:]:
        raise DataError(
            f"Expected {name} as floats of shape (samples, {', '.join(map(str, outputs.shape[1:]))}), "
            f"got {y.dtype} of shape {tuple(y.shape)}. Reshape y, for example with y.float().view(len(y), -1)."
        )
    if not bool(torch.isfinite(y).all()):
        raise DataError(f"Expected finite {name}, got NaN or infinity. Remove or fill those samples.")


def _mean_or_nan(values: Tensor) -> float:
    return float(values.double().mean()) if len(values) else float("nan")


def _root(mean: Tensor) -> Tensor:
    """The square root, with a gradient of zero at zero."""
    return mean.clamp(min=torch.finfo(mean.dtype).tiny).sqrt()
