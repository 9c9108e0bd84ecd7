"""Rejects models in which records visibly influence each other, by a test on a few records.

The clipping bound does not depend on this test. Models without a proof of independence run on batches of one; a model
that compares records finds nothing to compare there, and would learn something else.
"""

import copy

import torch
from torch import Tensor, nn

from tacit.core import Loss
from tacit.errors import ModelError

BATCH_SIZE = 17  # records in a batch
_LARGE = 1e3  # times as large as others
_KINDS = 6
BATCHES = ([0, 1], [2, 3], [3, 0, 4], [5, 3], [*range(BATCH_SIZE)], [*reversed(range(BATCH_SIZE))])
_AGREEMENT = 1e-3, 1e-5  # of a loss, relative to itself and to the outputs
MIXED = (
    "The {} of a record depends on the other records of its batch, so that clipping gradients does not bound its "
    "influence. Use a model and a loss that treat every record by itself: group or layer norm instead of batch "
    "statistics, and a loss per record without weights over the batch."
)


def check_independent(model: nn.Module, loss: Loss, x: Tensor, y: Tensor) -> None:
    """Raise `ModelError` if the loss of a record, or its gradient, depends on other records, or on earlier ones."""
    own = copy.deepcopy(model).cpu().train()  # there, a record that a model does not accept is an ordinary error
    x, y = _replace_rejected(own, loss, *different_records(x.cpu(), y.cpu()))
    first, again = (_losses(own, loss, x, y)[0] for _ in range(2))
    if not torch.equal(first.nan_to_num(), again.nan_to_num()):
        raise ModelError(
            "The loss of a record changes when it is computed again: the model keeps a state from batch to batch, or "
            "draws random numbers, so that earlier records change the gradients of later ones, and clipping does not "
            "bound their influence. Use a model without running statistics and without random numbers."
        )
    singles = [_losses(own, loss, x[i : i + 1], y[i : i + 1]) for i in range(len(x))]
    alone, slack = (torch.cat(side) for side in zip(*singles, strict=True))
    for batch in BATCHES:
        together = _losses(own, loss, x[batch], y[batch])[0]
        if together.shape != alone[batch].shape or not _agree(together, alone[batch], slack[batch]):
            raise ModelError(MIXED.format("loss"))
    if _gradients_differ(own, loss, x, y):
        raise ModelError(MIXED.format("gradient"))


def different_records(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Variants of the first record: mirrored, random, far larger, empty, negative; with its target and others."""
    source, (first,) = torch.Generator().manual_seed(0), x[:1]
    records = []
    for number in range(BATCH_SIZE):
        mirrored = first.flip(tuple(range(first.dim())))
        if first.is_floating_point():
            random = torch.randn(first.shape, generator=source, dtype=torch.float64).to(first.dtype)
            kinds = (first + 0.1 * number * random, mirrored + 0.1 * number * random, random, _LARGE * random)
            records.append((*kinds, torch.zeros_like(first), -first)[number % _KINDS])
        else:
            order = torch.randperm(first.numel(), generator=source)
            kinds = (first, mirrored, first.flatten()[order].view_as(first), torch.full_like(first, first.max()))
            records.append((*kinds, torch.zeros_like(first), torch.full_like(first, first.min()))[number % _KINDS])
    targets = [y[0], torch.zeros_like(y[0]), torch.ones_like(y[0]) if y.is_floating_point() else y[0]]
    return torch.stack(records), torch.stack([targets[number % 3] for number in range(BATCH_SIZE)])


def _replace_rejected(model: nn.Module, loss: Loss, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The records, with the first in place of those that the model rejects, such as unknown words."""
    accepted = [i if i == 0 or _accepts(model, loss, x[i : i + 1], y[i : i + 1]) else 0 for i in range(len(x))]
    return x[accepted], y[accepted]


def _accepts(model: nn.Module, loss: Loss, x: Tensor, y: Tensor) -> bool:
    try:
        _losses(copy.deepcopy(model), loss, x, y)
    except Exception:  # a user's module may fail in any way; on its own records it raises later
        return False
    return True


@torch.no_grad()
def _losses(model: nn.Module, loss: Loss, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The loss of every record, and the size of its outputs, by which rounding errors are measured."""
    outputs = model(x)
    return loss.per_sample(outputs, y), 1 + outputs.abs().reshape(len(outputs), -1).amax(1)


def _agree(total: Tensor, expected: Tensor, sizes: Tensor) -> bool:
    same = (total - expected).abs() <= _AGREEMENT[0] * expected.abs() + _AGREEMENT[1] * sizes
    return bool((same | (total == expected) | ~torch.isfinite(expected)).all())


def _gradients_differ(model: nn.Module, loss: Loss, x: Tensor, y: Tensor) -> bool:
    """Whether the gradients of ordinary records do not add up to that of their batch."""
    few = [i for i in range(BATCH_SIZE) if i % _KINDS in (0, 1, 2)]
    together, apart = _gradient(model, loss, x[few], y[few]), [_gradient(model, loss, x[[i]], y[[i]]) for i in few]
    difference = float((together - torch.stack(apart).sum(0)).norm())
    return difference > _AGREEMENT[0] * float(torch.stack(apart).norm(dim=1).sum()) + _AGREEMENT[1]


def _gradient(model: nn.Module, loss: Loss, x: Tensor, y: Tensor) -> Tensor:
    """The gradient of the sum of these records' losses at all trained weights."""
    trained = [p for p in model.parameters() if p.requires_grad]
    total = loss.per_sample(model(x), y).sum()
    gradients = torch.autograd.grad(total, trained, allow_unused=True, materialize_grads=True)
    return torch.cat([part.flatten() for part in gradients]).double()
