"""Losses that clients minimise, with the metrics measured on held-out data.

A loss is computed per sample, so that padding can be given weight zero. The loss of a batch is a function of their
mean, usually the mean itself.
"""

import copy
import inspect
from abc import abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Protocol, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from tacit.core.event_metrics import event_metrics, is_rare
from tacit.core.target_checks import (
    check_classes,
    check_mean,
    check_no_parameters,
    check_real,
    class_advice,
    different_targets,
    function_advice,
    position_advice,
)
from tacit.errors import DataError, UserError, expect


class Loss(Protocol):
    """A loss per sample, the check of its targets, and its metrics."""

    @abstractmethod
    def per_sample(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The loss of every sample; both arguments have the samples in their first dimension."""

    @abstractmethod
    def validate(self, y: Tensor, outputs: Tensor) -> None:
        """Raise `DataError` if the targets do not fit outputs of this shape."""

    @abstractmethod
    def metrics(self, outputs: Tensor, y: Tensor) -> dict[str, float]:
        """Metrics on held-out data by name, the most important first."""

    def from_mean(self, mean: Tensor) -> Tensor:
        """The loss of a batch or a client, from the mean loss of its samples."""
        return mean

    def logits(self, outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor] | None:
        """The logit of an event's probability, and whether it happened; None: targets are no event."""
        return None


@dataclass(frozen=True, repr=False)
class CrossEntropy(Loss):
    """Classification: outputs are logits (samples, classes), targets are class numbers (int64).

    Args:
        weight: one weight per class, for rare classes; the loss of a sample is multiplied by that of its class. The
            loss of a batch is the mean over its samples, not divided by the sum of their weights.

    Example:
        >>> CrossEntropy(), CrossEntropy(weight=(1, 5))
        (CrossEntropy(), CrossEntropy(weight=(1.0, 5.0)))
    """

    weight: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "weight", _class_weights(self.weight))

    def __repr__(self) -> str:
        return "CrossEntropy()" if self.weight is None else f"CrossEntropy(weight={self.weight})"

    def per_sample(self, outputs: Tensor, y: Tensor) -> Tensor:
        loss = F.cross_entropy(outputs, y, reduction="none")
        return loss if self.weight is None else loss * outputs.new_tensor(self.weight)[y]

    def validate(self, y: Tensor, outputs: Tensor) -> None:
        if y.dtype != torch.int64 or y.dim() != 1:
            raise DataError(
                f"Expected class labels as one int64 per sample, got {y.dtype} of shape {tuple(y.shape)}. "
                + class_advice(y)
            )
        if outputs.dim() != 2:
            raise DataError(
                f"Expected outputs of shape (samples, classes) for one label per sample, got {tuple(outputs.shape)}. "
                "Let the model return one logit for each class; for labels (samples, T), give targets of that shape."
            )
        check_classes(y, outputs.shape[-1], self.weight)

    def metrics(self, outputs: Tensor, y: Tensor) -> dict[str, float]:
        """Accuracy and mean loss; of two classes of which one is rare first what says something, as for one logit."""
        correct = (outputs.argmax(-1) == y).float().mean()
        plain = {"accuracy": float(correct), "loss": float(self.per_sample(outputs, y).double().mean())}
        event = self.logits(outputs, y)
        if event is None or not is_rare(event[1]):
            return plain
        return {"auroc": auroc(*event), **event_metrics(*event), **plain}

    def logits(self, outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor] | None:
        """Those of the second of two classes."""
        return (outputs[:, 1] - outputs[:, 0], y == 1) if outputs.shape[1:] == (2,) and y.ndim == 1 else None


@dataclass(frozen=True)
class SequenceCrossEntropy(Loss):
    """Classification of every position: targets are class numbers (samples, T, ...), as in tagging or segmentation.

    Outputs are logits with the classes last, (samples, T, classes), or second as in PyTorch, (samples, classes, T).
    The loss of a sample is the mean over its positions.

    Args:
        weight: one weight per class.
        ignore: positions with this target count neither in the loss nor in the metrics, such as padding.
    """

    weight: tuple[float, ...] | None = None
    ignore: int = -100

    def __post_init__(self) -> None:
        object.__setattr__(self, "weight", _class_weights(self.weight))

    def per_sample(self, outputs: Tensor, y: Tensor) -> Tensor:
        valid = y != self.ignore
        labels = torch.where(valid, y, 0)
        log_p = torch.log_softmax(self._classes_last(outputs, y), -1)
        loss = -log_p.gather(-1, labels[..., None])[..., 0] * valid
        if self.weight is not None:
            loss = loss * outputs.new_tensor(self.weight)[labels]
        return loss.flatten(1).sum(1) / valid.flatten(1).sum(1).clamp(min=1)

    def validate(self, y: Tensor, outputs: Tensor) -> None:
        if y.dtype != torch.int64 or y.dim() < 2:
            raise DataError(
                f"Expected one int64 per position, of shape (samples, T), got {y.dtype} of shape {tuple(y.shape)}."
            )
        last, second = outputs.shape[1:-1] == y.shape[1:], outputs.shape[2:] == y.shape[1:]
        if outputs.dim() != y.dim() + 1 or not (last or second):
            raise DataError(
                f"Expected logits of shape (samples, {', '.join(map(str, y.shape[1:]))}, classes) for labels of shape "
                f"{tuple(y.shape)}, got {tuple(outputs.shape)}. {position_advice(y, outputs)}"
            )
        labels = y[y != self.ignore]
        check_classes(labels, outputs.shape[-1 if last else 1], self.weight)

    def metrics(self, outputs: Tensor, y: Tensor) -> dict[str, float]:
        valid = y != self.ignore
        correct = (self._classes_last(outputs, y).argmax(-1) == y)[valid]
        return {"accuracy": _mean_or_nan(correct), "loss": float(self.per_sample(outputs, y).double().mean())}

    def _classes_last(self, outputs: Tensor, y: Tensor) -> Tensor:
        return outputs if outputs.shape[1:-1] == y.shape[1:] else outputs.movedim(1, -1)


@dataclass(frozen=True)
class MeanSquared(Loss):
    """Regression: outputs and targets have the same shape; the mean over all but the samples."""

    def per_sample(self, outputs: Tensor, y: Tensor) -> Tensor:
        return (outputs - y).square().flatten(1).mean(1)

    def validate(self, y: Tensor, outputs: Tensor) -> None:
        check_real("regression targets", y, outputs)

    def metrics(self, outputs: Tensor, y: Tensor) -> dict[str, float]:
        loss = float(self.per_sample(outputs, y).double().mean())
        return {"rmse": loss**0.5, "loss": loss}


@dataclass(frozen=True)
class BinaryCrossEntropy(Loss):
    """Two classes: outputs are logits (samples, 1), targets are 0.0 or 1.0 of the same shape."""

    def per_sample(self, outputs: Tensor, y: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(outputs, y, reduction="none").flatten(1).mean(1)

    def validate(self, y: Tensor, outputs: Tensor) -> None:
        check_real("binary targets", y, outputs)
        if len(y) and not bool(((y >= 0) & (y <= 1)).all()):
            raise DataError("Expected binary targets in [0, 1]. Encode the two classes as 0.0 and 1.0.")

    def metrics(self, outputs: Tensor, y: Tensor) -> dict[str, float]:
        """Balanced accuracy at 0.5, area under the ROC curve, and mean loss; of a rare event first what says something.

        These are AUROC, average precision, base rate and mean predicted probability, which agree if it is calibrated,
        and balanced accuracy where scores above the base rate predict the event.
        """
        positive, predicted = y.flatten() > 0.5, outputs.flatten() > 0
        balanced = 0.5 * (_mean_or_nan(predicted[positive]) + _mean_or_nan(~predicted[~positive]))
        ranked = {"auroc": auroc(outputs.flatten(), positive)}
        loss = {"loss": float(self.per_sample(outputs, y).double().mean())}
        if is_rare(positive):
            return {**ranked, **event_metrics(outputs.flatten(), positive), "balanced_accuracy": balanced, **loss}
        return {"balanced_accuracy": balanced, **ranked, **loss}

    def logits(self, outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The logit of the event's probability, and whether it happened, of every sample."""
        return outputs.flatten(), y.flatten() > 0.5


@dataclass(frozen=True)
class RootMeanSquared(Loss):
    """Regression by the root of the mean squared error of a batch (Galli et al. 2023, Eq. 10).

    Its gradient is that of `MeanSquared` divided by twice the root. Its norm hardly depends on the size of the error,
    so that all steps of gradient descent are about equally long.
    """

    def per_sample(self, outputs: Tensor, y: Tensor) -> Tensor:
        return MeanSquared().per_sample(outputs, y)

    def validate(self, y: Tensor, outputs: Tensor) -> None:
        MeanSquared().validate(y, outputs)

    def from_mean(self, mean: Tensor) -> Tensor:
        return _root(mean)

    def metrics(self, outputs: Tensor, y: Tensor) -> dict[str, float]:
        rmse = float(self.per_sample(outputs, y).double().mean().sqrt())
        return {"rmse": rmse, "loss": rmse}


@dataclass(frozen=True)
class RootBrier(Loss):
    """Classification by the root of the Brier score: the RMSE between softmax and the one-hot label."""

    def per_sample(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Squared distance between the probabilities and the one-hot label."""
        p = torch.softmax(outputs, -1)
        return p.square().sum(-1) - 2 * p.gather(-1, y[..., None])[..., 0] + 1

    def from_mean(self, mean: Tensor) -> Tensor:
        return _root(mean)

    def validate(self, y: Tensor, outputs: Tensor) -> None:
        CrossEntropy().validate(y, outputs)

    def metrics(self, outputs: Tensor, y: Tensor) -> dict[str, float]:
        correct = (outputs.argmax(-1) == y).float().mean()
        return {"accuracy": float(correct), "loss": float(self.per_sample(outputs, y).double().mean().sqrt())}


@dataclass(frozen=True, repr=False)
class FunctionLoss(Loss):
    """A function or module of your own, of outputs and targets; it is applied to every sample alone.

    Args:
        function: returns one loss per sample, or one number for a batch of one sample. Targets have the shape of the
            outputs where they have as many numbers.
    """

    function: Callable[[Tensor, Tensor], Tensor]

    def __repr__(self) -> str:
        function = getattr(self.function, "func", self.function)  # of a partial
        name = repr(function) if isinstance(function, torch.nn.Module) else getattr(function, "__qualname__", "")
        return f"FunctionLoss({name or type(function).__name__})"

    def per_sample(self, outputs: Tensor, y: Tensor) -> Tensor:
        y = _like(y, outputs)
        values = self.function(outputs, y)
        if not isinstance(values, Tensor):
            raise TypeError(f"it returns {type(values).__name__} instead of a tensor")
        if values.dim() == 0:  # a mean over the batch: one sample at a time
            rows = zip(torch.split(outputs, 1), torch.split(y, 1), strict=True)
            return torch.stack([self.function(*row).reshape(()) for row in rows])
        return values if values.dim() == 1 else values.flatten(1).mean(1)

    def validate(self, y: Tensor, outputs: Tensor) -> None:
        if y.is_floating_point() and not bool(torch.isfinite(y).all()):
            raise DataError("Expected finite targets, got NaN or infinity. Remove or fill those samples.")
        check_no_parameters(self.function)
        shapes = f"outputs of shape {tuple(outputs.shape[1:])} and targets of shape {tuple(y.shape[1:])} ({y.dtype})"
        pair = different_targets(y, len(outputs))
        with torch.enable_grad():
            outputs = outputs.detach().requires_grad_()
            try:
                losses = self.per_sample(outputs, y[pair])
                alone = torch.stack(
                    [self.per_sample(outputs[i : i + 1], y[pair][i : i + 1])[0] for i in range(len(pair))]
                )
                together = self._together(outputs, y[pair])
            except Exception as error:  # a user's function may fail in any way
                reason = "".join(str(error).strip().splitlines()[:1])
                advice = function_advice(y, outputs)
                raise DataError(f"{self!r} does not accept {shapes} per sample: {reason}. {advice}") from error
        if losses.shape != (len(outputs),) or not losses.is_floating_point():
            raise DataError(
                f"Expected {self!r} to return one float per sample, or their mean, got {losses.dtype} of shape "
                f"{tuple(losses.shape)} for {len(outputs)} samples with {shapes}."
            )
        if not losses.requires_grad:
            raise DataError(
                f"Expected {self!r} to be differentiable, but it has no gradient, so nothing would be learned. Compute "
                "it from the outputs, without detach(), argmax or comparisons."
            )
        if not torch.allclose(losses, alone, rtol=1e-3, atol=1e-5):
            raise DataError(
                f"Expected {self!r} to return the loss of each sample by itself, but two samples together have others. "
                f"Targets have the shape of the outputs, {tuple(outputs.shape)}: compare them as they are."
            )
        check_mean(repr(self), together, losses.detach())

    def _together(self, outputs: Tensor, y: Tensor) -> list[Tensor]:
        """The loss of a batch, with targets in the shape of the outputs and unchanged; empty: one per sample."""
        first = self.function(outputs, _like(y, outputs))
        if first.dim() > 0:
            return []
        try:
            return [first.detach(), self.function(outputs, y).detach()]
        except Exception:  # with these shapes it is not called otherwise
            return [first.detach()]

    def metrics(self, outputs: Tensor, y: Tensor) -> dict[str, float]:
        loss = float(self.per_sample(outputs, y).double().mean())
        if y.dtype == torch.int64 and outputs.dim() == 2 and outputs.shape[1] > 1 and y.dim() == 1:
            valid = y >= 0  # negative ones are ignored, as by ignore_index
            return {"accuracy": _mean_or_nan((outputs.argmax(-1) == y)[valid]), "loss": loss}
        return {"loss": loss}


def as_loss(loss: object) -> Loss:
    """A `Loss` from one, from a loss of `torch.nn`, or from any function of outputs and targets; None: cross-entropy.

    Example:
        >>> as_loss(torch.nn.MSELoss()), as_loss(torch.nn.HuberLoss())
        (MeanSquared(), FunctionLoss(HuberLoss()))
    """
    match loss:
        case None:
            return CrossEntropy()
        case torch.nn.CrossEntropyLoss(label_smoothing=0.0, ignore_index=-100):
            return CrossEntropy(None if loss.weight is None else tuple(loss.weight.tolist()))
        case torch.nn.MSELoss():
            return MeanSquared()
        case torch.nn.BCEWithLogitsLoss(weight=None, pos_weight=None):
            return BinaryCrossEntropy()
        case type():
            raise UserError(f"Expected a loss, got the class {loss.__name__}. Write loss={loss.__name__}().")
        case torch.nn.Module():
            return FunctionLoss(remove_reduction(loss))
    members = ("per_sample", "from_mean", "validate", "metrics")
    if all(hasattr(loss, name) for name in members):
        return cast(Loss, loss)
    if callable(loss):
        return FunctionLoss(remove_reduction(loss))
    examples = "tacit.CrossEntropy(), tacit.MeanSquared(), tacit.BinaryCrossEntropy()"
    raise UserError(
        f"Expected a loss such as {examples}, a torch.nn loss or a function of outputs and targets, got {loss!r}."
    )


def remove_reduction(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The same loss without the mean over the samples, where it has an argument `reduction`."""
    if isinstance(function, torch.nn.Module):
        plain = copy.deepcopy(function)
        if hasattr(plain, "reduction"):
            setattr(plain, "reduction", "none")  # noqa: B010
        return plain
    try:
        reduces = "reduction" in inspect.signature(function).parameters
    except (TypeError, ValueError):
        reduces = False
    return partial(function, reduction="none") if reduces else function


def _like(y: Tensor, outputs: Tensor) -> Tensor:
    """Targets with a number for every output, as floats in the shape of the outputs, so that nothing is broadcast."""
    return y.reshape(outputs.shape).to(outputs.dtype) if y.numel() == outputs.numel() else y


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


def _class_weights(weight: Iterable[float] | None) -> tuple[float, ...] | None:
    """One positive number per class, from any sequence or tensor."""
    if weight is None:
        return None
    weights = tuple(float(value) for value in weight)
    expect(bool(weights) and all(value >= 0 for value in weights), f"one weight >= 0 per class, got {weights}")
    return weights


def _mean_or_nan(values: Tensor) -> float:
    return float(values.double().mean()) if len(values) else float("nan")


def _root(mean: Tensor) -> Tensor:
    """The square root, with a gradient of zero at zero."""
    return mean.clamp(min=torch.finfo(mean.dtype).tiny).sqrt()
