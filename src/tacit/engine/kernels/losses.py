"""The gradient of each loss at the outputs of a stack of clients; the samples' weights are multiplied in."""

import torch
from torch import Tensor

from tacit.core import BinaryCrossEntropy, CrossEntropy, Loss, MeanSquared


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


def _per_output(z: Tensor, weight: Tensor) -> Tensor:
    return weight.view(*weight.shape, *[1] * (z.dim() - 2)) / z[0, 0].numel()


GRADIENTS = {CrossEntropy: cross_entropy, MeanSquared: mean_squared, BinaryCrossEntropy: binary_cross_entropy}


def has_gradient(loss: Loss) -> bool:
    """Whether the loss is one of those above."""
    return type(loss) in GRADIENTS
