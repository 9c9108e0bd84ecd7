"""Proves, operation by operation, that a model treats records independently; the proved graph is then executed.

Clipping bounds the contribution of one record only if no record changes another's gradient. No test can show that: a
model may compare records only beyond a threshold, or from the tenth batch on. So the forward function is traced once
(`torch.fx`), and every operation of the graph must be one that is known to compute f(x)ᵢ = g(xᵢ) for batches of any
size: linear layers, convolutions, norms over channels, functions of single numbers, reductions over other dimensions
than the first. The graph is then executed instead of the module, so that no other operation can run later.

Models without a proof run on batches of one record, where there is nothing to compare.
"""

import copy
import operator
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

_COPIES = 3  # of a record, on which the graph is executed to learn the shapes of its tensors
_SIZE = object()  # stands for the number of records among the arguments of an operation


class _Tracer(fx.Tracer):
    """Follows the forward functions of all modules but those of `torch.nn`."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return type(m) in MODULES or super().is_leaf_module(m, module_qualified_name)


def trace_model(model: nn.Module) -> fx.GraphModule | None:
    """The operations of a model, with the same modules and parameters; None if they depend on more than shapes."""
    wrapped = nn.Sequential(model)  # so that a model that is a single layer is a leaf of the trace
    try:
        graph = fx.GraphModule(wrapped, _Tracer().trace(wrapped))
    except Exception:  # a forward function may do anything; what cannot be traced is not proved
        return None
    return graph if all(map(_is_plain, graph.modules())) and not _has_global_hooks() else None


def treats_records_alone(graph: fx.GraphModule, x: Tensor) -> bool:
    """Whether every operation provably treats records independently, for records of the shape of the first.

    Unknown operations are not executed.
    """
    try:
        with torch.no_grad():
            _Proof(graph).run(x[:1].expand(_COPIES, *x.shape[1:]).clone())
    except Exception:  # also of the operations themselves: what fails is not proved
        return False
    return True


def fresh_copy(model: nn.Module) -> nn.Module:
    """A copy that shares only the parameters: state that the model keeps of a record stays in the copy."""
    return copy.deepcopy(model, {id(parameter): parameter for parameter in model.parameters()})


def _is_plain(module: nn.Module) -> bool:
    """Whether calling a module does nothing but its type's forward function, with the type's own methods."""
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    own = isinstance(module, fx.GraphModule) or not any(callable(getattr(type(module), n, None)) for n in vars(module))
    plain = all(type(p) is nn.Parameter for p in module.parameters(recurse=False))
    plain = plain and all(type(b) is Tensor for b in module.buffers(recurse=False))
    return own and plain and not any(getattr(module, name) for name in hooks)


def _has_global_hooks() -> bool:
    """Whether every module's call does something else, too."""
    names = ("_global_forward_hooks", "_global_forward_pre_hooks", "_global_backward_hooks")
    return any(getattr(nn.modules.module, name) for name in (*names, "_global_backward_pre_hooks"))


class _NotProvedError(Exception):
    """An operation that may mix records."""


@dataclass(frozen=True)
class Call:
    """An operation of a graph, with the values of its arguments for a few records.

    Attributes:
        args: the arguments, values in place of nodes, and `_SIZE` for the number of records.
        kwargs: the keyword arguments, in the same form.
        records: which of the tensors in them have records in their first dimension, by identity.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    records: frozenset[int]

    @property
    def x(self) -> Tensor:
        """The first argument, which has records."""
        argument = self.args[0] if self.args else self.kwargs["input"]
        if not isinstance(argument, Tensor) or id(argument) not in self.records:
            raise _NotProvedError
        return argument

    @property
    def rank(self) -> int:
        return self.x.dim()

    @property
    def leaves(self) -> list[Any]:
        """All arguments, and what is in lists among them."""
        return list(_leaves((*self.args, *self.kwargs.values())))

    @property
    def has_size(self) -> bool:
        """Whether it depends on the number of records, which only a new shape of them may."""
        return any(each is _SIZE for each in self.leaves)

    @property
    def alone(self) -> bool:
        """Whether no other argument than the first has records, or their number."""
        return [each for each in self.leaves if id(each) in self.records] == [self.x] and not self.has_size

    def argument(self, position: int, name: str, default: Any = None) -> Any:
        """An argument by position or name."""
        return self.args[position] if len(self.args) > position else self.kwargs.get(name, default)

    def beyond_first(self, dims: Any, rank: int | None = None) -> bool:
        """Whether a dimension, or all of several, are others than that of the records."""
        of, several = self.rank if rank is None else rank, dims if isinstance(dims, tuple | list) else (dims,)
        return bool(several) and all(type(dim) is int and _not_first(dim, of) for dim in several)


_Rule = Callable[[Call], bool]


def _elementwise(call: Call) -> bool:
    """Elementwise; a tensor without records has no dimension for them either, and is the same for all."""
    tensors = [each for each in call.leaves if isinstance(each, Tensor)]
    ranks = {each.dim() for each in tensors if id(each) in call.records}
    others = (each for each in tensors if id(each) not in call.records)
    rank = max(ranks, default=0)
    return (
        len(ranks) == 1
        and not call.has_size
        and all(o.dim() < rank or (o.dim() == rank and o.shape[0] == 1) for o in others)
    )


def _alone(rule: _Rule) -> _Rule:
    """A rule for calls in which only the first argument has records."""
    return lambda call: call.alone and rule(call)


_maps = _alone(lambda call: call.rank == 4)
_sequences = _alone(lambda call: call.rank == 3)
_reduction = _alone(lambda call: call.beyond_first(call.argument(1, "dim")))  # of dimensions that are named
_flatten = _alone(lambda call: call.beyond_first(call.argument(1, "start_dim", 0)))
_transpose = _alone(lambda call: call.beyond_first((call.argument(1, "dim0"), call.argument(2, "dim1"))))
_unsqueeze = _alone(lambda call: call.beyond_first(call.argument(1, "dim"), call.rank + 1))


def _permute(call: Call) -> bool:
    dims = _sizes(call)
    return call.alone and len(dims) == call.rank and dims[0] == 0


def _concatenation(call: Call) -> bool:
    """Tensors of records, concatenated along another dimension."""
    parts = call.args[0]
    same = len({part.dim() for part in parts}) == 1 and all(id(part) in call.records for part in parts)
    rank = parts[0].dim()
    return same and not call.has_size and call.beyond_first(call.argument(1, "dim", 0), rank)


def _reshape(call: Call) -> bool:
    """The numbers of a record in another shape; the first size is the number of records, or follows from the others."""
    first, *others = _sizes(call)
    if not all(type(size) is int for size in others):
        return False
    return first is _SIZE or (first == -1 and min(others, default=0) > 0 and prod(others) == call.x[0].numel())


def _item(call: Call) -> bool:
    """A part of every record: the first index is all records."""
    index = call.args[1] if isinstance(call.args[1], tuple) else (call.args[1],)
    plain = all(each is None or each is Ellipsis or type(each) is int or _is_plain_slice(each) for each in index)
    counted = sum(each is not None and each is not Ellipsis for each in index)
    return plain and call.alone and (index[0] == slice(None) or (index[0] is Ellipsis and counted < call.rank))


def _is_plain_slice(index: Any) -> bool:
    parts = (index.start, index.stop, index.step) if isinstance(index, slice) else (index,)
    return all(part is None or type(part) is int for part in parts)


def _product(call: Call) -> bool:
    """Matrix products within every record."""
    one, other = call.args
    both = id(one) in call.records and id(other) in call.records
    return both and one.dim() == other.dim() >= 3


def _sizes(call: Call) -> tuple[Any, ...]:
    """Sizes or dimensions, one by one or as a tuple."""
    sizes = call.args[1:] or tuple(call.kwargs.values())
    return tuple(sizes[0]) if len(sizes) == 1 and isinstance(sizes[0], tuple | list) else sizes


def _leaves(values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, tuple | list):
            yield from _leaves(value)
        else:
            yield value


def _module(rule: Callable[[Any, int], bool]) -> Callable[[nn.Module], _Rule]:
    """The rule of a layer, from its settings and the rank of its only input."""
    return lambda module: lambda call: call.alone and len(call.leaves) == 1 and rule(module, call.rank)


def _not_first(dim: int, rank: int) -> bool:
    return 1 <= (dim + rank if dim < 0 else dim) < rank


def _of(*kinds: type[nn.Module], rank: int | None = None) -> dict[type[nn.Module], Callable[[nn.Module], _Rule]]:
    """Layers that treat records alone if these are in the first of `rank` dimensions; None: of any number."""
    return dict.fromkeys(kinds, _module(lambda _, ranks: rank in (None, ranks)))


class ChannelsLastPool(nn.Module):
    """Max pooling in channels-last layout, for which PyTorch's kernel is many times faster."""

    def __init__(self, pool: nn.MaxPool2d) -> None:
        super().__init__()
        self.pool = pool

    def forward(self, x: Tensor) -> Tensor:
        pooled: Tensor = self.pool(x.contiguous(memory_format=torch.channels_last))
        return pooled.contiguous()


def with_fast_pooling(model: fx.GraphModule) -> fx.GraphModule:
    """The model with faster max pooling, in place."""
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if type(child) is nn.MaxPool2d and not child.return_indices:
                setattr(parent, name, ChannelsLastPool(child))
    return model


MODULES: dict[type[nn.Module], Callable[[nn.Module], _Rule]] = {
    **_of(nn.Identity, nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.CELU, nn.SELU, nn.GELU, nn.SiLU, nn.Mish),
    **_of(nn.Sigmoid, nn.LogSigmoid, nn.Tanh, nn.Tanhshrink, nn.Softplus, nn.Softsign, nn.Softshrink, nn.Hardshrink),
    **_of(nn.Hardtanh, nn.Hardsigmoid, nn.Hardswish, nn.Threshold),
    **_of(nn.Conv1d, nn.AvgPool1d, nn.AdaptiveAvgPool1d, rank=3),
    **_of(nn.Conv2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.ZeroPad2d, ChannelsLastPool, rank=4),
    nn.Linear: _module(lambda _, rank: rank >= 2),
    nn.Embedding: _module(lambda m, _: m.max_norm is None and not m.scale_grad_by_freq),
    nn.GroupNorm: _module(lambda _, rank: rank >= 2),
    nn.LayerNorm: _module(lambda m, rank: rank > len(m.normalized_shape)),
    nn.InstanceNorm1d: _module(lambda m, rank: rank == 3 and not m.track_running_stats),
    nn.InstanceNorm2d: _module(lambda m, rank: rank == 4 and not m.track_running_stats),
    nn.MaxPool1d: _module(lambda m, rank: rank == 3 and not m.return_indices),
    nn.MaxPool2d: _module(lambda m, rank: rank == 4 and not m.return_indices),
    nn.Flatten: _module(lambda m, rank: _not_first(m.start_dim, rank)),
    nn.Unflatten: _module(lambda m, rank: type(m.dim) is int and _not_first(m.dim, rank)),
    nn.Softmax: _module(lambda m, rank: m.dim is not None and _not_first(m.dim, rank)),
    nn.LogSoftmax: _module(lambda m, rank: m.dim is not None and _not_first(m.dim, rank)),
    nn.Dropout: _module(lambda m, _: m.p == 0),
    nn.Dropout2d: _module(lambda m, _: m.p == 0),
}
_ARITHMETIC = (operator.add, operator.sub, operator.mul, operator.truediv, operator.neg, operator.pow)
_OF_NUMBERS = (torch.relu, torch.tanh, torch.sigmoid, torch.exp, torch.log1p, torch.sqrt, torch.abs)
_OF_TWO = (torch.add, torch.sub, torch.mul, torch.div, torch.maximum, torch.minimum, torch.pow)
IN_PLACE = (operator.iadd, operator.isub, operator.imul, operator.itruediv, F.relu_, "add_", "mul_", "relu_")
FUNCTIONS: dict[Any, _Rule] = {  # by function, or by the name of a tensor's method
    **dict.fromkeys((*_ARITHMETIC, *_OF_NUMBERS, *_OF_TWO, *IN_PLACE), _elementwise),
    **dict.fromkeys((torch.sin, torch.cos, torch.square, torch.clamp), _elementwise),
    **dict.fromkeys((F.relu, F.relu6, F.leaky_relu, F.elu, F.selu, F.gelu, F.silu, F.mish), _elementwise),
    **dict.fromkeys((F.sigmoid, F.tanh, F.softplus, F.hardtanh, F.hardswish, F.logsigmoid), _elementwise),
    **dict.fromkeys(("add", "sub", "mul", "div", "neg", "pow", "square", "sqrt", "abs"), _elementwise),
    **dict.fromkeys(("relu", "tanh", "sigmoid", "exp", "clamp", "contiguous", "clone", "detach"), _elementwise),
    **dict.fromkeys(("float", "double", "long", "to", "type_as"), _elementwise),
    **dict.fromkeys((torch.mean, torch.sum, torch.amax, torch.amin, torch.softmax, torch.log_softmax), _reduction),
    **dict.fromkeys((F.softmax, F.log_softmax, torch.logsumexp, torch.cumsum), _reduction),
    **dict.fromkeys(("mean", "sum", "amax", "amin", "softmax", "log_softmax", "logsumexp", "cumsum"), _reduction),
    **dict.fromkeys((torch.squeeze, torch.unflatten, "squeeze", "unflatten"), _reduction),
    **dict.fromkeys((torch.unsqueeze, "unsqueeze"), _unsqueeze),
    **dict.fromkeys((torch.flatten, "flatten"), _flatten),
    **dict.fromkeys((torch.transpose, "transpose"), _transpose),
    **dict.fromkeys((torch.permute, "permute"), _permute),
    **dict.fromkeys((torch.reshape, "reshape", "view"), _reshape),
    **dict.fromkeys((torch.cat, torch.concat, torch.stack), _concatenation),
    **dict.fromkeys((torch.matmul, torch.bmm, operator.matmul, "matmul", "bmm"), _product),
    **dict.fromkeys((F.max_pool2d, F.avg_pool2d, F.adaptive_avg_pool2d), _maps),
    **dict.fromkeys((F.max_pool1d, F.avg_pool1d, F.adaptive_avg_pool1d), _sequences),
    operator.getitem: _item,
}
PURE = FUNCTIONS.keys() - {*IN_PLACE}  # which change no parameter


class _Proof(fx.Interpreter):
    """Executes a graph on a few records; raises `_NotProvedError` at the first unknown operation.

    Every value is of one of four kinds: a tensor with the records in its first dimension, the shape of one, the number
    of records, or a constant, which depends on no record.
    """

    def __init__(self, graph: fx.GraphModule) -> None:
        super().__init__(graph)
        self.records: set[fx.Node] = set()
        self.shapes: set[fx.Node] = set()
        self.sizes: set[fx.Node] = set()

    def run_node(self, n: fx.Node) -> Any:
        kind = self._kind(n)
        result = super().run_node(n)
        if kind is self.records:
            _check(isinstance(result, Tensor) and result.dim() > 0 and len(result) == _COPIES)
        if kind is not None:
            kind.add(n)
        return result

    def _kind(self, n: fx.Node) -> set[fx.Node] | None:
        """Where the result belongs; None: it is a constant."""
        tracked = self.records | self.shapes | self.sizes
        if n.op == "placeholder":
            return self.records
        if n.op == "output":
            _check(n.args[0] in self.records)
            return None
        if not any(each in tracked for each in n.all_input_nodes):
            _check(n.op == "get_attr" or n.target in PURE)
            return None
        if self._reads_shape(n):
            return self._of_shape(n)
        _check(self._rule(n)(self._call(n)))
        return self.records

    def _reads_shape(self, n: fx.Node) -> bool:
        if n.op == "call_method":
            return n.target in ("size", "dim")
        return n.target is getattr or (n.target is operator.getitem and n.args[0] in self.shapes)

    def _of_shape(self, n: fx.Node) -> set[fx.Node] | None:
        """The kind of a shape or of a part of it: its first number is that of the records."""
        source, *which = n.args
        assert isinstance(source, fx.Node)
        if source in self.records and not which and not n.kwargs:
            return self.shapes if n.target == "size" else None
        if n.target is getattr:
            _check(which[0] in ("shape", "ndim", "dtype", "device"))
            return self.shapes if which[0] == "shape" else None
        rank = self.env[source].dim() if source in self.records else len(self.env[source])
        match which:
            case [int(index)]:
                return self.sizes if index in (0, -rank) else None
            case [slice(start=int(start), step=None)] if (start + rank if start < 0 else start) >= 1:
                return None
        raise _NotProvedError

    def _rule(self, n: fx.Node) -> _Rule:
        if n.op == "call_module":
            module = self.fetch_attr(str(n.target))
            return MODULES[type(module)](module)
        return FUNCTIONS[n.target]

    def _call(self, n: fx.Node) -> Call:
        _check(not any(each in self.shapes for each in n.all_input_nodes))
        _check("out" not in n.kwargs)  # a tensor that would keep records, and count as a constant afterwards

        def value(node: fx.Node) -> Any:
            return _SIZE if node in self.sizes else self.env[node]

        args, kwargs = fx.node.map_arg((n.args, n.kwargs), value)
        records = frozenset(id(self.env[each]) for each in n.all_input_nodes if each in self.records)
        return Call(tuple(args), dict(kwargs), records)


def _check(condition: bool) -> None:
    if not condition:
        raise _NotProvedError
