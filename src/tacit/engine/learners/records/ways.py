"""Two ways to compute per-record gradients: layer rules, and `torch.func` for all other models.

A rule is a function for one type of layer: how the gradients at its parameters follow from its inputs and the gradient
at its outputs. The rules need one forward and one backward pass. In the backward pass the gradients at the outputs of
layers are computed, not those of parameters; norms follow from them, then the clipping factors, and from these the
clipped sum (Bu et al. 2023, «book-keeping»). `torch.func` forms the gradient of every record.

The rules compute records together, so they require a proof that the model treats records independently (`is_proved`).
`torch.func` gives any model one record at a time.
"""

import copy
from collections.abc import Callable, Collection, Mapping
from functools import partial
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.instancenorm import _InstanceNorm

from tacit.core import BinaryCrossEntropy, CrossEntropy, Loss, MeanSquared
from tacit.core.losses import SequenceCrossEntropy
from tacit.engine.layout import Layout
from tacit.engine.learners.records.gradients import (
    FormedGradients,
    LookupGradients,
    OuterGradients,
    RecordGradients,
    product_gradients,
)
from tacit.engine.learners.records.independence import fresh_copy, trace_model, treats_records_alone, with_fast_pooling

PROVED_LOSSES = (CrossEntropy, SequenceCrossEntropy, MeanSquared, BinaryCrossEntropy)
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


def is_loss_proved(loss: Loss, outputs: Tensor, y: Tensor) -> bool:
    """Whether a loss of Tacit's own compares every record with its own target: shapes that broadcast would mix them."""
    if type(loss) in (CrossEntropy, SequenceCrossEntropy):
        return outputs.dim() == y.dim() + 1
    return type(loss) in PROVED_LOSSES and outputs.shape == y.shape


def fresh_loss(loss: Loss) -> Loss:
    """A copy of a loss that is not Tacit's own: what it keeps of a record stays in the copy."""
    return loss if type(loss) in PROVED_LOSSES else copy.deepcopy(loss)


class LayerRules:
    """Gradients by the rules of layers.

    Every layer must be called once, with the records in the first dimension. `follows_rules` checks that all trained
    parameters belong to known layers; the comparison with the reference checks that nothing else uses them. The graph
    of the model's operations is executed, not its forward function.
    """

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        self.layout, self.loss = Layout.of(model), loss
        self.model = copy.deepcopy(model).train()
        graph = trace_model(self.model)
        self.graph = None if graph is None else with_fast_pooling(graph)
        self.names: dict[nn.Module, dict[str, str]] = {}  # of a layer's trained parameters, by their name in the layer
        for path, module in self.model.named_modules():
            trained = [name for name, p in module.named_parameters(recurse=False) if p.requires_grad]
            if trained:
                self.names[module] = {name: f"{path}.{name}" if path else name for name in trained}
                module.register_forward_hook(self._observe)
        self.model.requires_grad_(False)
        self._wanted: Collection[str] = ()
        self._found: dict[str, RecordGradients] = {}
        self._sizes = 0
        self._start = torch.zeros((), requires_grad=True)  # the input of autograd's backward pass

    @staticmethod
    def follows_rules(model: nn.Module) -> bool:
        """Whether every trained parameter belongs to a layer with a rule, and to only one."""
        own = [
            (type(module), p) for module in model.modules() for p in module.parameters(recurse=False) if p.requires_grad
        ]
        return all(kind in RULES for kind, _ in own) and len({id(p) for _, p in own}) == len(own)

    def is_proved(self, x: Tensor) -> bool:
        """Whether no record can change what is computed for another; `x` has records of the shape of all others."""
        self._wanted = ()
        return self.graph is not None and treats_records_alone(self.graph, x)

    def load(self, weights: Tensor) -> None:
        """Set the weights."""
        views = self.layout.views(weights)
        for module, names in self.names.items():
            for own, name in names.items():
                module.get_parameter(own).data = views[name]

    def gradients(self, x: Tensor, y: Tensor, wanted: Collection[str]) -> dict[str, RecordGradients]:
        """The gradients of every record at the parameters with these names; those that are missing are zero."""
        self._wanted, self._found, self._sizes = wanted, {}, 0
        if self.graph is None:
            raise ValueError("Expected a model whose operations can be traced. Use MappedGradient.")
        with torch.enable_grad():
            loss = self._losses(self.graph.forward(x), y).sum()
            torch.autograd.grad(loss, self._start, allow_unused=True)
        gradients, self._found = self._found, {}
        return gradients

    def memory(self, x: Tensor, y: Tensor) -> int:
        """The approximate working memory of one record, in bytes."""
        by_name = self.gradients(x, y, self.layout.names)
        return self._sizes + sum(gradients.bytes for gradients in by_name.values())

    def _losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The loss of every record; an unknown loss gets one record's output and target at a time."""
        if is_loss_proved(self.loss, outputs, y):
            return self.loss.per_sample(outputs, y)
        from torch.func import vmap  # takes seconds to import

        loss = fresh_loss(self.loss)
        return vmap(lambda output, target: loss.per_sample(output[None], target[None]).sum())(outputs, y)

    def _observe(self, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor | None:
        """Keep a layer's inputs until the gradient at its outputs is known."""
        names = {own: name for own, name in self.names[module].items() if name in self._wanted}
        if not names:
            return None
        x = inputs[0].detach()
        self._sizes += (2 * x.numel() + 4 * output.numel() + _patch_numbers(module, output)) * output.element_size()
        output = output.clone() if output._is_view() else output
        observer = partial(self._record, module, names, x)
        observed: Tensor = _Observed.apply(output, self._start, observer)  # type: ignore[no-untyped-call]
        return observed

    def _record(self, module: nn.Module, names: dict[str, str], x: Tensor, g: Tensor) -> None:
        gradients = RULES[type(module)](module, x, g)
        self._found |= {name: gradients[own] for own, name in names.items()}


def _patch_numbers(module: nn.Module, output: Tensor) -> int:
    """How many numbers the patches of a convolution have."""
    if not isinstance(module, _ConvNd):
        return 0
    return output.numel() // module.out_channels * module.in_channels * prod(module.kernel_size)


class _Observed(torch.autograd.Function):
    """The identity, which passes its gradient to an observer; below the first observed layer, none is computed."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, _: Tensor, observer: Any) -> Tensor:
        ctx.observer = observer
        ctx.mark_dirty(output)  # the same tensor, so that a function in place may follow
        return output

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, None, None]:
        with torch.no_grad():
            ctx.observer(g)
        ctx.observer = None  # with the layer's inputs
        return (g if ctx.needs_input_grad[0] else None), None, None


class MappedGradient:
    """Gradients of any module, with `torch.func`: `vmap` over records of the gradient at the same weights.

    The model sees batches of one record. State that it keeps of them is discarded with the copy.
    """

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        from torch.func import functional_call, grad, vmap  # takes seconds to import

        self.layout, self.loss = Layout.of(model), loss
        self.model = copy.deepcopy(model).train()
        self.parameters: dict[str, Tensor] = {}
        self._call, self._fresh, self._fresh_loss = functional_call, self.model, loss
        self._mapped = vmap(grad(self._loss), in_dims=(None, 0, 0))

    def load(self, weights: Tensor) -> None:
        self.parameters = self.layout.views(weights)

    def gradients(self, x: Tensor, y: Tensor, wanted: Collection[str]) -> dict[str, RecordGradients]:
        trained = {name: value for name, value in self.parameters.items() if name in wanted}
        self._fresh, self._fresh_loss = fresh_copy(self.model), fresh_loss(self.loss)
        with sdpa_kernel(SDPBackend.MATH):  # the only form of attention that can be mapped
            gradients = self._mapped(trained, x, y)
        return {name: FormedGradients(value.flatten(1)) for name, value in gradients.items()}

    def memory(self, x: Tensor, y: Tensor) -> int:
        return 3 * sum(value.numel() * value.element_size() for value in self.parameters.values())

    def _loss(self, trained: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        outputs = self._call(self._fresh, {**self.parameters, **trained}, (x[None],))
        return self._fresh_loss.per_sample(outputs, y[None]).sum()
