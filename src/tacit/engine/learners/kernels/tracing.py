"""Traces a module into a chain of known layers, which kernels can train and evaluate.

`torch.fx` follows the module's own forward function, so nested modules and functional calls (`F.relu`,
`torch.flatten`) are recognised too. A module that is not such a chain is trained and evaluated by other means.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.nn.modules.utils import _pair

ELEMENTWISE = (nn.ReLU, nn.Sigmoid, nn.Tanh)
_IDENTITIES = (nn.Identity, nn.Dropout)  # the latter with p=0
_KNOWN: dict[type[nn.Module], Callable[[Any], bool]] = {  # whether kernels support a module, by its settings
    **dict.fromkeys((*ELEMENTWISE, nn.Linear, nn.AvgPool2d, nn.Identity), lambda _: True),
    nn.Conv2d: lambda module: module.padding_mode == "zeros" and even_padding(module) is not None,
    nn.Dropout: lambda module: module.p == 0,
    nn.Flatten: lambda module: (module.start_dim, module.end_dim) == (1, -1),
    nn.MaxPool2d: lambda module: not module.return_indices,
}


@dataclass(frozen=True, eq=False)
class TracedLayer:
    """One layer of a chain.

    Attributes:
        module: has its geometry.
        parameters: the names of its weight and its bias in the model; empty if it is not trained.
    """

    module: nn.Module
    parameters: tuple[str, ...]

    @property
    def kind(self) -> type[nn.Module]:
        """What it computes."""
        return type(self.module)


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
    modules = (MaxPool2x2() if _is_2x2_pooling(layer) else layer.module for layer in chain)
    return nn.Sequential(*modules).eval()


class MaxPool2x2(nn.Module):
    """Max pooling of 2 x 2 as the maximum of every two rows and columns, which PyTorch vectorises."""

    def forward(self, x: Tensor) -> Tensor:
        """An odd last row or column is dropped, as `nn.MaxPool2d` does."""
        height, width = (side // 2 * 2 for side in x.shape[-2:])
        rows = torch.maximum(x[..., 0:height:2, :width], x[..., 1:height:2, :width])
        return torch.maximum(rows[..., 0::2], rows[..., 1::2])


def even_padding(module: nn.Conv2d) -> tuple[int, int] | None:
    """The rows above and below, and the columns at both sides, also of "same"; None if one side gets more."""
    if module.padding == "same":
        rows, columns = (d * (k - 1) for d, k in zip(_pair(module.dilation), module.kernel_size, strict=True))
        return None if rows % 2 or columns % 2 else (rows // 2, columns // 2)
    rows, columns = _pair(0 if module.padding == "valid" else module.padding)
    return rows, columns


def _chain(nodes: list[fx.Node], modules: dict[str, nn.Module]) -> Chain | None:
    if len(nodes) < 3 or nodes[0].op != "placeholder" or nodes[-1].op != "output" or nodes[-1].args != (nodes[-2],):
        return None
    layers = []
    for before, node in pairwise(nodes[:-1]):
        layer = _layer(node, modules) if node.all_input_nodes == [before] else None
        if layer is None:
            return None
        layers.append(layer)
    return tuple(layer for layer in layers if layer.kind not in _IDENTITIES)


def _layer(node: fx.Node, modules: dict[str, nn.Module]) -> TracedLayer | None:
    if node.op == "call_module":
        return _trace(str(node.target).removeprefix("0").removeprefix("."), modules[str(node.target)])
    make = _FUNCTIONS.get(node.target) if node.op in ("call_function", "call_method") else None
    if make is None:
        return None
    try:
        module = make(*node.args[1:], **node.kwargs)
    except TypeError:  # arguments that the module form does not have
        return None
    return _trace("", module)


def _trace(name: str, module: nn.Module) -> TracedLayer | None:
    """A module with this name in the model; None if kernels do not compute it."""
    is_known = _KNOWN.get(type(module), lambda _: False)
    parameters = (f"{name}.{own}" if name else own for own, _ in module.named_parameters(recurse=False))
    return TracedLayer(module, tuple(parameters)) if is_known(module) else None


_FUNCTIONS: dict[Any, Callable[..., nn.Module]] = {  # by function, or by the name of a tensor's method
    **dict.fromkeys((F.relu, torch.relu, "relu"), nn.ReLU),
    **dict.fromkeys((F.sigmoid, torch.sigmoid, "sigmoid"), nn.Sigmoid),
    **dict.fromkeys((F.tanh, torch.tanh, "tanh"), nn.Tanh),
    **dict.fromkeys((torch.flatten, "flatten"), lambda start_dim=0, end_dim=-1: nn.Flatten(start_dim, end_dim)),
    F.max_pool2d: nn.MaxPool2d,
    F.avg_pool2d: nn.AvgPool2d,
}


def _is_2x2_pooling(layer: TracedLayer) -> bool:
    if layer.kind is not nn.MaxPool2d or layer.module.ceil_mode:
        return False
    names = ("kernel_size", "stride", "padding", "dilation")
    return [_pair(getattr(layer.module, name)) for name in names] == [(2, 2), (2, 2), (0, 0), (1, 1)]


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
        if (order[i].kind, order[i + 1].kind) == (nn.ReLU, nn.MaxPool2d):
            order[i], order[i + 1] = order[i + 1], order[i]
    return tuple(order)
