"""The gradient of each loss at the outputs of a stack of clients; the samples' weights are multiplied in."""

import torch
from torch import Tensor

from tacit.core import BinaryCrossEntropy, CrossEntropy, Loss, MeanSquared, RootBrier, RootMeanSquared


def cross_entropy(z: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    """Softmax − one-hot."""
    g = torch.softmax(z, -1)
    g.scatter_add_(-1, y[..., None], torch.full_like(y[..., None], -1.0, dtype=z.dtype))
    return g.mul_(weight[..., None])


def mean_squared(z: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    """2·(z − y), over the number of a sample's outputs."""
    return (z - y).mul_(_per_output(z, weight)).mul_(2)


def binary_cross_entropy(z: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    """Sigmoid − target, over the number of a sample's outputs."""
    return (torch.sigmoid(z) - y).mul_(_per_output(z, weight))


def root_mean_squared(z: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    """(z − y) over the root of its own mean square, over the number of a sample's outputs."""
    off = z - y
    root = (off.square().flatten(2).mean(2) * weight).sum(1).sqrt_()
    return off.mul_(_per_output(z, weight)).div_(_no_zero(root, z))


def root_brier(z: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    """That of the distance to the right class, over its root, through the softmax."""
    p = torch.softmax(z, -1)
    off = p.scatter_add(-1, y[..., None], torch.full_like(y[..., None], -1.0, dtype=z.dtype))
    root = (off.square().sum(-1) * weight).sum(1).sqrt_()
    off.mul_(weight[..., None]).div_(_no_zero(root, z))
    return p.mul_(off - (p * off).sum(-1, keepdim=True))


def _no_zero(root: Tensor, like: Tensor) -> Tensor:
    """A root per client that can be divided by; where it is zero, so is the gradient."""
    return root.masked_fill(root == 0, 1.0).view(-1, *[1] * (like.dim() - 1))


def _per_output(z: Tensor, weight: Tensor) -> Tensor:
    return weight.view(*weight.shape, *[1] * (z.dim() - 2)) / z[0, 0].numel()


GRADIENTS = {
    CrossEntropy: cross_entropy,
    MeanSquared: mean_squared,
    BinaryCrossEntropy: binary_cross_entropy,
    RootMeanSquared: root_mean_squared,
    RootBrier: root_brier,
}


def has_gradient(loss: Loss) -> bool:
    """Whether the loss is one of those above."""
    return type(loss) in GRADIENTS
