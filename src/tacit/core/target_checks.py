"""Checks that targets fit a model's outputs and a loss; errors say what to do."""

import torch
from torch import Tensor

from tacit.errors import DataError


def check_classes(y: Tensor, classes: int, weight: tuple[float, ...] | None) -> None:
    """Raise `DataError` unless class numbers and weights fit this many outputs."""
    if weight is not None and len(weight) != classes:
        raise DataError(f"Expected {classes} class weights for a model with {classes} outputs, got {len(weight)}.")
    if len(y) and (int(y.min()) < 0 or int(y.max()) >= classes):
        raise DataError(
            f"Expected labels in 0..{classes - 1} for a model with {classes} outputs, "
            f"got {int(y.min())}..{int(y.max())}. {_label_advice(int(y.min()), int(y.max()), classes)}"
        )


def check_real(name: str, y: Tensor, outputs: Tensor) -> None:
    """Raise `DataError` unless targets are finite floats in the shape of the outputs."""
    if not y.is_floating_point() or y.shape[1:] != outputs.shape[1:]:
        raise DataError(
            f"Expected {name} as floats of shape (samples, {', '.join(map(str, outputs.shape[1:]))}), "
            f"got {y.dtype} of shape {tuple(y.shape)}. Let the model return one output for each target, or reshape y, "
            "for example with y.float().view(len(y), -1)."
        )
    if not bool(torch.isfinite(y).all()):
        raise DataError(f"Expected finite {name}, got NaN or infinity. Remove or fill those samples.")


def class_advice(y: Tensor) -> str:
    """Advice on targets that are not class numbers."""
    if y.dim() == 2 and y.shape[1] > 1 and bool((y.sum(1) == 1).all()) and bool(((y == 0) | (y == 1)).all()):
        return "These are one-hot targets: convert them with y.argmax(1)."
    if y.is_floating_point() and y.dim() == 2 and y.shape[1] > 1:
        return (
            "For probabilities of the classes give the task loss=torch.nn.CrossEntropyLoss(), for regression "
            "loss=tacit.MeanSquared()."
        )
    if y.is_floating_point():
        whole = bool((y == y.round()).all())
        return (
            "For regression give the task loss=tacit.MeanSquared(), for two classes as 0.0 and 1.0 "
            f"loss=tacit.BinaryCrossEntropy(){'; for class numbers convert with y.long()' * whole}."
        )
    return "Give one class number per sample, or logits for every position."


def position_advice(y: Tensor, outputs: Tensor) -> str:
    """Advice on several labels for one prediction."""
    if outputs.shape[1:] == y.shape[1:] and bool(((y == 0) | (y == 1)).all()):
        return "If each label is 0 or 1 by itself, use loss=tacit.BinaryCrossEntropy(); if y is one-hot, y.argmax(1)."
    return "If these are one-hot targets, use y.argmax(1)."


def function_advice(y: Tensor, outputs: Tensor) -> str:
    """Advice on a function that fails."""
    if not y.is_floating_point() and outputs.dim() > 2 and outputs.shape[1:-1] == y.shape[1:]:
        return "Losses of torch.nn expect the classes second: tacit.Task(..., output=lambda z: z.movedim(-1, 1))."
    return "Give a function of these two: loss=lambda outputs, y: ..., which returns one loss per sample."


def check_no_parameters(function: object) -> None:
    """Raise `DataError` for a loss with trainable parameters."""
    if isinstance(function, torch.nn.Module):
        trained = [name for name, parameter in function.named_parameters() if parameter.requires_grad]
        if trained:
            raise DataError(
                f"Expected a loss without trainable parameters, but {type(function).__name__} has {trained[0]}. Make "
                "it part of the model, or freeze it: loss.requires_grad_(False)."
            )


def check_mean(name: str, together: list[Tensor], alone: Tensor) -> None:
    """A loss of a batch must be the mean (or the sum) over its samples: it is applied to every sample alone."""
    pairs = [(batch, total) for batch in together for total in (alone.mean(), alone.sum())]
    if not pairs or any(torch.allclose(batch, total, rtol=1e-3, atol=1e-5) for batch, total in pairs):
        return
    raise DataError(
        f"Expected {name} to be a mean over the samples of a batch, but of two samples it is {float(together[0]):.4g}, "
        f"and of each alone {', '.join(f'{float(each):.4g}' for each in alone)}. Return one loss per sample "
        "(reduction='none'): weights of classes, ignored targets and comparisons between samples are no mean."
    )


def different_targets(y: Tensor, count: int) -> Tensor:
    """The first samples, with different targets if there are any."""
    others = (y != y[0]).flatten(1).any(1) if y.dim() > 1 else y != y[0]
    order = torch.cat([torch.zeros(1, dtype=torch.int64), others.nonzero().flatten()[:1], torch.arange(1, count)])
    return (order if len(y) >= count else torch.zeros(count, dtype=torch.int64))[:count]


def _label_advice(low: int, high: int, classes: int) -> str:
    """Advice on labels out of range."""
    if low == 1 and high == classes:
        return "They begin at 1: use y - 1, or widen the last layer."
    if classes == 1:
        return "For two classes with one output use loss=tacit.BinaryCrossEntropy(), or let the model return two."
    if (low, high) == (-1, 1):
        return "If these are two classes, use (y > 0).long()."
    if low == -100:
        return "Remove samples whose label is -100: they have none."
    return "Renumber the labels or widen the last layer."
