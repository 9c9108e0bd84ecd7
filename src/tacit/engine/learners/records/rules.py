"""How the gradients of single records at a layer's parameters follow from its inputs and the gradient at its outputs.

A rule is a function for one type of layer; `RULES` lists them. Models with other layers are computed by `torch.func`.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.instancenorm import _InstanceNorm

from tacit.engine.learners.records.gradients import (
    FormedGradients,
    LookupGradients,
    OuterGradients,
    RecordGradients,
    product_gradients,
)

ByName = Mapping[str, RecordGradients]  # of a layer's own parameters
Rule = Callable[[Any, Tensor, Tensor], ByName]


def linear(_: nn.Linear, x: Tensor, g: Tensor) -> ByName:
    """Inputs are vectors, or sequences of vectors."""
    if x.dim() == 2:
        return {"weight": OuterGradients(g, x), "bias": FormedGradients(g)}
    x, g = (side.reshape(len(side), -1, side.shape[-1]) for side in (x, g))
    return {"weight": product_gradients(g, x), "bias": FormedGradients(g.sum(1))}


def convolution(module: _ConvNd, x: Tensor, g: Tensor) -> ByName:
    """A fully connected layer on patches; one of one dimension is one of two with a height of 1."""
    patches = _patches(module, x)  # (records, positions of the output, positions of the filter, channels)
    (records, places, size, channels), groups = patches.shape, module.groups
    g = g.reshape(records, module.out_channels, places)
    bias = {"bias": FormedGradients(g.sum(2))}
    outputs, inputs = module.out_channels // groups, channels // groups
    if groups == 1:
        order = (outputs, size, inputs)
        return {"weight": product_gradients(g.mT, patches.view(records, places, -1), order), **bias}
    split = patches.view(records, places, size, groups, inputs).permute(0, 3, 1, 2, 4)
    product = torch.matmul(g.view(records, groups, outputs, places), split.reshape(records, groups, places, -1))
    return {"weight": FormedGradients(product.flatten(1), (module.out_channels, size, inputs)), **bias}


def embedding(module: nn.Embedding, x: Tensor, g: Tensor) -> ByName:
    """Only the lines that a record reads have a gradient; that of the padding has none."""
    read, g = x.reshape(len(x), -1), g.reshape(len(x), -1, g.shape[-1])
    if module.padding_idx is not None:
        g = g.masked_fill((read == module.padding_idx)[..., None], 0.0)
    return {"weight": LookupGradients.of(read, g, module.num_embeddings)}


def group_norm(module: nn.GroupNorm, x: Tensor, g: Tensor) -> ByName:
    """Scale and shift of normalised channels."""
    return _per_channel(F.group_norm(x, module.num_groups, eps=module.eps), g)


def instance_norm(module: _InstanceNorm, x: Tensor, g: Tensor) -> ByName:
    """Group norm with a group for every channel."""
    return _per_channel(F.instance_norm(x, eps=module.eps), g)


def layer_norm(module: nn.LayerNorm, x: Tensor, g: Tensor) -> ByName:
    """Scale and shift of every normalised number."""
    normal = F.layer_norm(x, module.normalized_shape, eps=module.eps)
    shape = (len(x), -1, *module.normalized_shape)
    weight, bias = ((side.reshape(shape).sum(1)).flatten(1) for side in (g * normal, g))
    return {"weight": FormedGradients(weight), "bias": FormedGradients(bias)}


RULES: dict[type[nn.Module], Rule] = {
    nn.Linear: linear,
    nn.Conv1d: convolution,
    nn.Conv2d: convolution,
    nn.Embedding: embedding,
    nn.GroupNorm: group_norm,
    nn.InstanceNorm1d: instance_norm,
    nn.InstanceNorm2d: instance_norm,
    nn.LayerNorm: layer_norm,
}


def _per_channel(normal: Tensor, g: Tensor) -> ByName:
    """Scale and shift of every channel; channels are the second dimension."""
    g, normal = g.flatten(2), normal.flatten(2)
    return {"weight": FormedGradients((g * normal).sum(2)), "bias": FormedGradients(g.sum(2))}


def _patches(module: _ConvNd, x: Tensor) -> Tensor:
    """The inputs of every output position, (records, outputs, filter, channels).

    With the channels last, a row of a filter is contiguous in memory, so that patches are copied quickly.
    """
    sides = [*module._reversed_padding_repeated_twice]
    if any(sides):
        x = F.pad(x, sides, mode="constant" if module.padding_mode == "zeros" else module.padding_mode)
    if x.dim() == 3:
        x = x[:, :, None]
    kernel, stride, dilation = (
        (1, value[0]) if len(value) == 1 else (value[0], value[1])
        for value in (module.kernel_size, module.stride, module.dilation)
    )
    x = x.permute(0, 2, 3, 1).contiguous()
    records, height, width, channels = x.shape
    rows, columns = (
        (side - d * (k - 1) - 1) // s + 1
        for side, k, s, d in zip((height, width), kernel, stride, dilation, strict=True)
    )
    line = width * channels
    view = x.as_strided(
        (records, rows, columns, *kernel, channels),
        (height * line, stride[0] * line, stride[1] * channels, dilation[0] * line, dilation[1] * channels, 1),
    )
    return view.reshape(records, rows * columns, kernel[0] * kernel[1], channels)
