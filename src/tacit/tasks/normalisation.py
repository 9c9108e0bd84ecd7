"""Batch normalisation in a federation is a choice, so it is made in the open.

Running statistics are a second state that is averaged without being trained, leaks what the clients' data
look like, and is not bounded by any clipping. A model either normalises without them, or does not train here.
"""

import copy
import math
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from tacit.errors import expect

Net = TypeVar("Net", bound=nn.Module)


def with_group_norm(model: Net, *, groups: int = 8) -> Net:
    """A copy of a model in which every batch norm is a group norm with the same affine parameters.

    Args:
        model: any module; it is not changed.
        groups: groups of channels; where they do not divide a layer's channels, the greatest common divisor
            of the two is taken.

    Example:
        >>> with_group_norm(nn.Sequential(nn.BatchNorm2d(12)))[0].num_groups
        4
    """
    expect(groups > 0, f"groups={groups} > 0")

    def convert(old: _BatchNorm) -> nn.Module:
        channels = old.num_features
        return nn.GroupNorm(math.gcd(groups, channels), channels, eps=old.eps, affine=old.affine)

    return _replaced(model, convert)


def with_local_batch_norm(model: Net) -> Net:
    """A copy of a model whose batch norms use the batch at hand, in training and in evaluation.

    Example:
        >>> with_local_batch_norm(nn.BatchNorm1d(3)).running_mean is None
        True
    """

    def convert(old: _BatchNorm) -> nn.Module:
        new = copy.deepcopy(old)
        new.track_running_stats = False
        new.running_mean = new.running_var = new.num_batches_tracked = None
        return new

    return _replaced(model, convert)


def _replaced(model: Net, convert: Callable[[_BatchNorm], nn.Module]) -> Net:
    """A deep copy with every batch norm converted and its affine parameters kept."""
    if isinstance(model, _BatchNorm):
        return _converted(model, convert)  # type: ignore[return-value]  # another layer takes its place
    fresh = copy.deepcopy(model)
    for parent in list(fresh.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, _BatchNorm):
                setattr(parent, name, _converted(child, convert))
    return fresh


def _converted(old: _BatchNorm, convert: Callable[[_BatchNorm], nn.Module]) -> nn.Module:
    """One layer: shape by `convert`; weights, place and mode from the old one."""
    new = convert(old)
    if old.affine:
        new.to(old.weight.device, old.weight.dtype)
        with torch.no_grad():
            new.get_parameter("weight").copy_(old.weight)
            new.get_parameter("bias").copy_(old.bias)
        for name in ("weight", "bias"):
            new.get_parameter(name).requires_grad_(old.get_parameter(name).requires_grad)
    return new.train(old.training)
