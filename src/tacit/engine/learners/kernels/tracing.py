"""Traces a module into a chain of known layers, which kernels can train and evaluate.

`torch.fx` follows the module's own forward function, so nested modules and functional calls (`F.relu`,
`torch.flatten`) are recognised too. A module that is not such a chain is trained and evaluated by other means.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn


class Kind(Enum):
    """What a layer computes."""

    LINEAR = auto()
    CONVOLUTION = auto()
    RELU = auto()
    SIGMOID = auto()
    TANH = auto()
    MAX_POOL = auto()
    AVERAGE_POOL = auto()
    FLATTEN = auto()
    IDENTITY = auto()


ELEMENTWISE = (Kind.RELU, Kind.SIGMOID, Kind.TANH)
_KINDS: dict[type[nn.Module], Kind] = {
    nn.Linear: Kind.LINEAR,
    nn.Conv2d: Kind.CONVOLUTION,
    nn.ReLU: Kind.RELU,
    nn.Sigmoid: Kind.SIGMOID,
    nn.Tanh: Kind.TANH,
    nn.MaxPool2d: Kind.MAX_POOL,
    nn.AvgPool2d: Kind.AVERAGE_POOL,
    nn.Flatten: Kind.FLATTEN,
}


@dataclass(frozen=True, eq=False)
class TracedLayer:
    """One layer of a chain.

    Attributes:
        kind: what it computes.
        module: has its geometry.
        parameters: the names of its weight and its bias in the model; empty if it is not trained.
    """

    kind: Kind
    module: nn.Module
    parameters: tuple[str, ...]


Chain = tuple[TracedLayer, ...]


def trace_chain(model: nn.Module) -> Chain | None:
    """The module's layers in order, or None if it is not a chain of known layers.

    All parameters must be trainable and used once.
    """
    wrapped = nn.Sequential(model)  # so that a model that is a single layer is a leaf of the trace
    try:
        graph = fx.symbolic_trace(wrapped).graph
    except Exception:  # a forward function may do anything; what cannot be traced is not a chain
        return None
    chain = _chain(list(graph.nodes), dict(wrapped.named_modules()))
    if chain is None or not _covers(chain, model):
        return None
    return _pool_before_relu(chain)


def evaluation_module(model: nn.Module) -> nn.Module:
    """The model in evaluation mode, with the same parameters and bitwise the same outputs, but faster if it is a chain.

    A model that is not a chain is returned itself.
    """
    chain = trace_chain(model)
    if chain is None:
        return model.eval()
    modules = (MaxPool2x2() if _is_2x2_pooling(layer.module) else layer.module for layer in chain)
    return nn.Sequential(*modules).eval()


class MaxPool2x2(nn.Module):
    """Max pooling of 2 x 2 as the maximum of every two rows and columns, which PyTorch vectorises."""

    def forward(self, x: Tensor) -> Tensor:
        """An odd last row or column is dropped, as `nn.MaxPool2d` does."""
        height, width = (side // 2 * 2 for side in x.shape[-2:])
        rows = torch.maximum(x[..., 0:height:2, :width], x[..., 1:height:2, :width])
        return torch.maximum(rows[..., 0::2], rows[..., 1::2])


def pair(value: int | tuple[int, ...]) -> tuple[int, int]:
    """Height and width of a geometry that may be given as one number.

    Example:
        >>> pair(2), pair((2, 3))
        ((2, 2), (2, 3))
    """
    return (value, value) if isinstance(value, int) else (value[0], value[1])


def _chain(nodes: list[fx.Node], modules: dict[str, nn.Module]) -> Chain | None:
    if len(nodes) < 3 or nodes[0].op != "placeholder" or nodes[-1].op != "output" or nodes[-1].args != (nodes[-2],):
        return None
    layers = []
    for before, node in pairwise(nodes[:-1]):
        if node.all_input_nodes != [before]:
            return None
        layer = _layer(node, modules)
        if layer is None:
            return None
        layers.append(layer)
    return tuple(layer for layer in layers if layer.kind is not Kind.IDENTITY)


def _layer(node: fx.Node, modules: dict[str, nn.Module]) -> TracedLayer | None:
    if node.op == "call_module":
        return _traced(str(node.target).removeprefix("0").removeprefix("."), modules[str(node.target)])
    make = _FUNCTIONS.get(node.target) if node.op in ("call_function", "call_method") else None
    if make is None:
        return None
    try:
        module = make(*node.args[1:], **node.kwargs)
    except TypeError:  # arguments that the module form does not have
        return None
    return _traced("", module)


def _traced(name: str, module: nn.Module) -> TracedLayer | None:
    """A module with this name in the model; None if kernels do not compute it."""
    kind = _kind(module)
    parameters = (f"{name}.{own}" if name else own for own, _ in module.named_parameters(recurse=False))
    return None if kind is None else TracedLayer(kind, module, tuple(parameters))


def _flatten(start_dim: int = 0, end_dim: int = -1) -> nn.Module:
    return nn.Flatten(start_dim, end_dim)


_FUNCTIONS: dict[Any, Callable[..., nn.Module]] = {
    F.relu: nn.ReLU,
    torch.relu: nn.ReLU,
    "relu": nn.ReLU,
    F.sigmoid: nn.Sigmoid,
    torch.sigmoid: nn.Sigmoid,
    "sigmoid": nn.Sigmoid,
    F.tanh: nn.Tanh,
    torch.tanh: nn.Tanh,
    "tanh": nn.Tanh,
    torch.flatten: _flatten,
    "flatten": _flatten,
    F.max_pool2d: nn.MaxPool2d,
    F.avg_pool2d: nn.AvgPool2d,
}


def _kind(module: nn.Module) -> Kind | None:
    """What a module computes; None if kernels do not compute it, or not with these settings."""
    match module:
        case nn.Identity() | nn.Dropout(p=0):
            return Kind.IDENTITY
        case nn.Conv2d() if module.padding_mode != "zeros" or _is_padded_unevenly(module):
            return None
        case nn.Flatten() if (module.start_dim, module.end_dim) != (1, -1):
            return None
        case nn.MaxPool2d(return_indices=True):
            return None
    return _KINDS.get(type(module))


def _is_padded_unevenly(module: nn.Conv2d) -> bool:
    sides = zip(module.dilation, module.kernel_size, strict=True)
    return module.padding == "same" and any(d * (k - 1) % 2 for d, k in sides)


def _is_2x2_pooling(module: nn.Module) -> bool:
    match module:
        case nn.MaxPool2d(ceil_mode=False):
            geometry = (module.kernel_size, module.stride, module.padding, module.dilation)
            return [pair(value) for value in geometry] == [(2, 2), (2, 2), (0, 0), (1, 1)]
    return False


def _covers(chain: Chain, model: nn.Module) -> bool:
    """Whether every parameter of the model is trainable and belongs to exactly one layer, and there are no hooks."""
    covered = [p for layer in chain for p in layer.module.parameters(recurse=False)]
    parameters = list(model.parameters())
    hooked = any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    once = len({id(p) for p in covered}) == len(covered) == len(parameters)
    return once and not hooked and all(p.requires_grad for p in parameters)


def _pool_before_relu(chain: Chain) -> Chain:
    """Swap ReLU and max pooling, which commute exactly: ReLU then processes fewer numbers."""
    order = list(chain)
    for i in range(len(order) - 1):
        if (order[i].kind, order[i + 1].kind) == (Kind.RELU, Kind.MAX_POOL):
            order[i], order[i + 1] = order[i + 1], order[i]
    return tuple(order)
