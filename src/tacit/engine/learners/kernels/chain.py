"""A module as a chain of known layers, or None if it is anything else.

`torch.fx` follows the module's own forward function, so that nested modules and functional calls
(`F.relu`, `torch.flatten`) are understood too, whatever style the model is written in.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn

TRAINED = (nn.Linear, nn.Conv2d)
WEIGHTLESS = (nn.ReLU, nn.Sigmoid, nn.Tanh, nn.MaxPool2d, nn.AvgPool2d, nn.Flatten)


@dataclass(frozen=True, eq=False)
class Link:
    """One layer of a chain: the module, and its name if it has weights."""

    name: str
    module: nn.Module


def chain_of(model: nn.Module) -> tuple[Link, ...] | None:
    """The module's layers in order, if they form a chain of known ones whose weights are all trained and used once."""
    wrapped = nn.Sequential(model)  # so that a model that is a single layer is a leaf of the trace
    try:
        graph = fx.symbolic_trace(wrapped).graph
    except Exception:  # a forward function may do anything; what cannot be traced is simply not a chain
        return None
    links = _links(list(graph.nodes), dict(wrapped.named_modules()))
    if links is None or not _covers(links, model):
        return None
    return _pool_before_relu(links)


def _links(nodes: list[fx.Node], modules: dict[str, nn.Module]) -> tuple[Link, ...] | None:
    if len(nodes) < 3 or nodes[0].op != "placeholder" or nodes[-1].op != "output" or nodes[-1].args != (nodes[-2],):
        return None
    links = []
    for before, node in pairwise(nodes[:-1]):
        if node.all_input_nodes != [before]:
            return None
        link = _link(node, modules)
        if link is None:
            return None
        links.append(link)
    return tuple(link for link in links if not _does_nothing(link.module))


def _link(node: fx.Node, modules: dict[str, nn.Module]) -> Link | None:
    if node.op == "call_module":
        module = modules[str(node.target)]
        name = str(node.target).removeprefix("0").removeprefix(".")
        return Link(name, module) if _is_known(module) else None
    make = _FUNCTIONS.get(node.target) if node.op in ("call_function", "call_method") else None
    if make is None:
        return None
    try:
        module = make(*node.args[1:], **node.kwargs)
    except TypeError:  # arguments that the module form does not have
        return None
    return Link("", module) if _is_known(module) else None


def _flatten(start_dim: int = 0, end_dim: int = -1) -> nn.Module:
    return nn.Flatten(start_dim, end_dim)


def _max_pool(*args: Any, **options: Any) -> nn.Module:
    return nn.MaxPool2d(*args, **options)


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
    F.max_pool2d: _max_pool,
    F.avg_pool2d: nn.AvgPool2d,
}


def _is_known(module: nn.Module) -> bool:
    if type(module) is nn.Conv2d:
        return module.padding_mode == "zeros" and not (module.padding == "same" and _is_lopsided(module))
    if type(module) is nn.Flatten:
        return module.start_dim == 1 and module.end_dim == -1
    if type(module) is nn.MaxPool2d:
        return not module.return_indices
    return type(module) in (*TRAINED, *WEIGHTLESS) or _does_nothing(module)


def _is_lopsided(module: nn.Conv2d) -> bool:
    return any(d * (k - 1) % 2 for d, k in zip(module.dilation, module.kernel_size, strict=True))


def _does_nothing(module: nn.Module) -> bool:
    return isinstance(module, nn.Identity) or (isinstance(module, nn.Dropout) and module.p == 0)


def _covers(links: tuple[Link, ...], model: nn.Module) -> bool:
    """Whether every parameter of the model is trained and belongs to exactly one link."""
    mine = [p for link in links for p in link.module.parameters(recurse=False)]
    theirs = list(model.parameters())
    hooked = any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    once = len({id(p) for p in mine}) == len(mine) == len(theirs)
    return once and not hooked and all(p.requires_grad for p in theirs)


def _pool_before_relu(links: tuple[Link, ...]) -> tuple[Link, ...]:
    """Swap ReLU and max pooling, which commute exactly: then ReLU has fewer numbers to work on."""
    order = list(links)
    for i in range(len(order) - 1):
        if isinstance(order[i].module, nn.ReLU) and isinstance(order[i + 1].module, nn.MaxPool2d):
            order[i], order[i + 1] = order[i + 1], order[i]
    return tuple(order)


def pair(value: int | tuple[int, ...]) -> tuple[int, int]:
    """Height and width of a geometry that may be given as one number.

    Example:
        >>> pair(2), pair((2, 3))
        ((2, 2), (2, 3))
    """
    return (value, value) if isinstance(value, int) else (value[0], value[1])
