"""Two ways to the gradients of single records: the rules of a model's layers, and `torch.func` for all other models.

The rules need one forward and one backward pass. In the backward pass the gradients at the outputs of layers are
computed, not those of parameters; norms follow from them, then the clipping factors, and from these the clipped sum (Bu
et al. 2023, «book-keeping»). `torch.func` forms the gradient of every record.

With the rules, records are computed together, so that they are for models only of which it is proved that no record
changes another's numbers (`is_proved`). `torch.func` shows the model one record at a time, whatever it is.
"""

import copy
from collections.abc import Collection
from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.conv import _ConvNd

from tacit.core import Loss
from tacit.engine.layout import Layout
from tacit.engine.learners.records.gradients import FormedGradients, RecordGradients
from tacit.engine.learners.records.independence import fresh_copy, is_loss_proved, traced, treats_records_alone
from tacit.engine.learners.records.pooling import with_fast_pooling
from tacit.engine.learners.records.rules import RULES


class LayerRules:
    """Gradients by the rules of layers.

    Every layer must be called once, with the records in the first dimension. `follows_rules` says whether all trained
    parameters belong to known layers; that nothing else uses them is found by comparing with the reference. What is
    computed is the graph of the model's operations, and not its forward function.
    """

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        self.layout, self.loss = Layout.of(model), loss
        self.model = copy.deepcopy(model).train()
        graph = traced(self.model)
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
        self._start = torch.zeros((), requires_grad=True)  # from which gradients are asked for

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
        views = self.layout.views(weights)
        for module, names in self.names.items():
            for own, name in names.items():
                module.get_parameter(own).data = views[name]

    def gradients(self, x: Tensor, y: Tensor, wanted: Collection[str]) -> dict[str, RecordGradients]:
        self._wanted, self._found, self._sizes = wanted, {}, 0
        if self.graph is None:
            raise ValueError("Expected a model whose operations can be traced. Use MappedGradient.")
        with torch.enable_grad():
            loss = self._losses(self.graph.forward(x), y).sum()
            torch.autograd.grad(loss, self._start, allow_unused=True)
        found, self._found = self._found, {}
        return found

    def memory(self, x: Tensor, y: Tensor) -> int:
        found = self.gradients(x, y, self.layout.names)
        return self._sizes + sum(gradients.bytes for gradients in found.values())

    def _losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The loss of every record, of a loss that is not known by its own output and target alone."""
        if is_loss_proved(self.loss, outputs, y):
            return self.loss.per_sample(outputs, y)
        from torch.func import vmap  # takes seconds to import

        return vmap(lambda output, target: self.loss.per_sample(output[None], target[None]).sum())(outputs, y)

    def _observe(self, module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor | None:
        """Keep a layer's inputs until the gradient at its outputs is known."""
        names = {own: name for own, name in self.names[module].items() if name in self._wanted}
        if not names:
            return None
        x = inputs[0].detach()
        self._sizes += (2 * x.numel() + 4 * output.numel() + _patches(module, output)) * output.element_size()
        output = output.clone() if output._is_view() else output
        observer = partial(self._record, module, names, x)
        observed: Tensor = _Observed.apply(output, self._start, observer)  # type: ignore[no-untyped-call]
        return observed

    def _record(self, module: nn.Module, names: dict[str, str], x: Tensor, g: Tensor) -> None:
        gradients = RULES[type(module)](module, x, g)
        self._found |= {name: gradients[own] for own, name in names.items()}


def _patches(module: nn.Module, output: Tensor) -> int:
    """How many numbers the patches of a convolution have."""
    if not isinstance(module, _ConvNd):
        return 0
    return output.numel() // module.out_channels * module.in_channels * prod(module.kernel_size)


class _Observed(torch.autograd.Function):
    """The identity, whose gradient is shown to an observer; below the first observed layer, none is computed."""

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

    The model sees batches of one record. What it keeps of them is lost with the copy that saw them.
    """

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        from torch.func import functional_call, grad, vmap  # takes seconds to import

        self.layout, self.loss = Layout.of(model), loss
        self.model = copy.deepcopy(model).train()
        self.parameters: dict[str, Tensor] = {}
        self._call, self._fresh = functional_call, self.model
        self._mapped = vmap(grad(self._loss), in_dims=(None, 0, 0))

    def load(self, weights: Tensor) -> None:
        self.parameters = self.layout.views(weights)

    def gradients(self, x: Tensor, y: Tensor, wanted: Collection[str]) -> dict[str, RecordGradients]:
        trained = {name: value for name, value in self.parameters.items() if name in wanted}
        self._fresh = fresh_copy(self.model)
        with sdpa_kernel(SDPBackend.MATH):  # the only form of attention that can be mapped
            found = self._mapped(trained, x, y)
        return {name: FormedGradients(value.flatten(1)) for name, value in found.items()}

    def memory(self, x: Tensor, y: Tensor) -> int:
        return 3 * sum(value.numel() * value.element_size() for value in self.parameters.values())

    def _loss(self, trained: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        outputs = self._call(self._fresh, {**self.parameters, **trained}, (x[None],))
        return self.loss.per_sample(outputs, y[None]).sum()
