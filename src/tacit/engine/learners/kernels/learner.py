"""Trains a wave with hand-batched layers: builds each layer in the form that fits, runs the steps, gathers blocks."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from tacit.core import Descent, Loss, MaskedRows, Perturbation, Samples
from tacit.engine.batches import Batches
from tacit.engine.layout import Layout
from tacit.engine.learners.kernels.chain import TRAINED, Link, chain_of, pair
from tacit.engine.learners.kernels.conv import PATCH_LIMIT, Filters, LoopConv, PatchConv
from tacit.engine.learners.kernels.linear import WINDOW, DenseLinear, FactoredLinear, GramLinear, Weights, WindowLinear
from tacit.engine.learners.kernels.losses import GRADIENTS, has_gradient
from tacit.engine.learners.kernels.masked_conv import FrozenConv, MaskedConv, MaskedPatchConv
from tacit.engine.learners.kernels.masked_linear import BlockLinear, Corrected, OpenedLinear, OwnLinear, ScatteredLinear
from tacit.engine.learners.kernels.nudges import Nudged
from tacit.engine.learners.kernels.plain import AvgPool, Flatten, MaxPool, Relu, Sigmoid, Tanh
from tacit.engine.learners.kernels.plans import Plan
from tacit.engine.learners.kernels.rows import BlockRows
from tacit.engine.learners.kernels.shape import Layer, Owner, Slot, Tug
from tacit.engine.learners.kernels.shares import Share


def kernels_for(model: nn.Module, loss: Loss) -> "Kernels | None":
    """The fast way for this module and loss, if there is one."""
    links = chain_of(model) if has_gradient(loss) else None
    return None if links is None else Kernels(links, Layout.of(model), loss)


class Kernels:
    """Trains all clients of a wave at once, by SGD without momentum, through a chain of known layers."""

    def __init__(self, links: tuple[Link, ...], layout: Layout, loss: Loss) -> None:
        self.links, self.layout, self.loss = links, layout, loss
        self.gradient = GRADIENTS[type(loss)]
        self.plan: Plan | None = None  # of the mask seen last: it stays for many waves, and often for all rounds

    def takes(self, weights: Tensor, batches: Batches, how: Descent) -> bool:
        """Whether it is SGD without momentum; pulls need equal numbers of steps, masks shared weights and no pull."""
        pulled = how.proximal is not None or how.weight_decay > 0
        if how.momentum or how.clip is not None or (pulled and not batches.even):
            return False
        return how.mask is None or not (pulled or weights.dim() > 1)

    @torch.no_grad()
    def descend(self, weights: Tensor, batches: Batches, how: Descent, clients: Tensor) -> BlockRows | MaskedRows:
        """The update of every client, in blocks, or at the mask's coordinates."""
        builder = _Builder(self, weights, batches, how)
        layers = builder.layers()
        if batches.constant:
            self._same_batch(layers, batches, begin=builder.still)
        elif isinstance(layers[0], BlockLinear | ScatteredLinear):
            self._opened(layers, layers[0], batches)
        else:
            window = WINDOW if isinstance(layers[0], WindowLinear) else 1
            for begin in range(0, batches.steps, window):
                self._window(layers, batches, begin, min(begin + window, batches.steps))
        blocks = sorted(((*slot, block) for layer in layers for slot, block in layer.blocks()), key=lambda b: b[0])
        if how.mask is None:
            return BlockRows(tuple(blocks), len(clients), self.layout.dim, weights.dtype)
        values = [weights.new_zeros(len(clients), 0), *(block.dense() for _, _, block in blocks)]  # the mask ascends
        return MaskedRows(torch.cat(values, dim=1), how.mask, self.layout.dim)

    @torch.no_grad()
    def perturbed_scores(self, weights: Tensor, data: Samples, nudge: Perturbation) -> Tensor | None:
        """How well one client's weights do on its data with each group nudged; None if groups are not of inputs."""
        perturbed_scores = Nudged.of(self.links, self.layout, nudge)
        return (
            None if perturbed_scores is None else perturbed_scores.scores(self.loss, self.layout.views(weights), data)
        )

    def _same_batch(self, layers: list[Layer], batches: Batches, *, begin: int) -> None:
        """Every step sees the same samples: the layers before `begin`, where nothing moves, see them once."""
        x, y = self._inputs(batches, 0, 1)
        for layer in layers[:begin]:
            x = layer.forward(x)
        for step in range(batches.steps if begin < len(layers) else 0):
            self._step(layers[begin:], x, y, batches.weights(step))

    def _opened(self, layers: list[Layer], first: Corrected, batches: Batches) -> None:
        """The first layer's product with the broadcast weights is taken once for every sample that is used."""
        x, places = batches.distinct()
        opened = [OpenedLinear(first, x.flatten(1)), *layers[1:]]
        y = batches.y(0, batches.steps)
        for step in range(batches.steps):
            here = slice(step * batches.size, (step + 1) * batches.size)
            self._step(opened, places[:, step], y[:, here], batches.weights(step))

    def _inputs(self, batches: Batches, begin: int, end: int) -> tuple[Tensor, Tensor]:
        x, y = batches.x(begin, end), batches.y(begin, end)
        return x.flatten(2) if isinstance(self.links[0].module, nn.Flatten) else x, y

    def _window(self, layers: list[Layer], batches: Batches, begin: int, end: int) -> None:
        """A few steps whose inputs are fetched together."""
        x, y = self._inputs(batches, begin, end)
        if isinstance(layers[0], WindowLinear):
            layers[0].open(x)
        for step in range(begin, end):
            here = slice((step - begin) * batches.size, (step - begin + 1) * batches.size)
            self._step(layers, x[:, here], y[:, here], batches.weights(step))

    def _step(self, layers: list[Layer], x: Tensor, y: Tensor, weight: Tensor) -> None:
        for layer in layers:
            x = layer.forward(x)
        g: Tensor | None = self.gradient(x, y, weight)
        for layer in reversed(layers):
            if g is None:
                break
            g = layer.backward(g)


@dataclass(frozen=True, eq=False)
class _Builder:
    """Chooses the form of every layer for one wave."""

    learner: Kernels
    weights: Tensor
    batches: Batches
    how: Descent

    def layers(self) -> list[Layer]:
        """The chain's layers; flattening of the inputs is left to the caller."""
        layers = [self._layer(link, i) for i, link in enumerate(self.links)]
        for link, layer in zip(self.links, layers, strict=True):
            if self.pulled and isinstance(layer, DenseLinear | PatchConv | LoopConv):
                layer.tugs = tuple(self._tugs(link, layer))
        return layers

    @property
    def pulled(self) -> bool:
        """Whether weights are pulled towards targets, or towards zero."""
        return self.how.proximal is not None or self.how.weight_decay > 0

    @property
    def apart(self) -> bool:
        """Whether every client must own its weights: they start or are pulled apart."""
        return self.weights.dim() > 1 or self.pulled

    def _tugs(self, link: Link, layer: Owner) -> Iterator[Tug]:
        """A pull by s to t and decay by d are together a pull by s + d to t·s/(s + d)."""
        lr, decay, proximal, layout = self.how.lr, self.how.weight_decay, self.how.proximal, self.learner.layout
        for name, owned in zip(self._names(link), layer.owned, strict=True):
            strength = 0.0 if proximal is None else proximal.strengths[layout.names.index(name)]
            if proximal is not None and strength:
                target = layout.views(proximal.target)[name].view_as(owned)
                scaled = target * (strength / (strength + decay)) if decay else target
                yield Tug(owned, scaled, lr * (strength + decay))
            elif decay:
                yield Tug(owned, None, lr * decay)

    def _names(self, link: Link) -> list[str]:
        """Of the link's parameters, in the order of its slots."""
        prefix = f"{link.name}." if link.name else ""
        return [name for name in (f"{prefix}weight", f"{prefix}bias") if name in self.learner.layout.names]

    @cached_property
    def links(self) -> tuple[Link, ...]:
        """The links that become layers."""
        links = self.learner.links
        return links[1:] if isinstance(links[0].module, nn.Flatten) else links

    @cached_property
    def plan(self) -> Plan | None:
        """What the mask means for the chain, if there is one."""
        mask, known = self.how.mask, self.learner.plan
        if mask is None:
            return None
        if known is None or not (known.mask is mask or torch.equal(known.mask, mask)):
            trained = [i for i, link in enumerate(self.links) if isinstance(link.module, TRAINED)]
            known = Plan.of(mask, self.links, {i: self._parameters(self.links[i])[2] for i in trained})
            self.learner.plan = known
        return known

    @cached_property
    def still(self) -> int:
        """How many layers lie before the first in which anything moves."""
        if self.plan is not None:
            return self.plan.still
        return next(i for i, link in enumerate(self.links) if isinstance(link.module, TRAINED))

    def _layer(self, link: Link, place: int) -> Layer:
        module, lowest, plan = link.module, place <= self.still, self.plan
        match module:
            case nn.Linear():
                matrix, bias, slots = self._parameters(link)
                weights = Weights(matrix, bias, slots)
                return self._linear(weights, lowest, place) if plan is None else self._masked(weights, place, plan)
            case nn.Conv2d():
                filters = Filters.of(module, *self._parameters(link))
                return self._conv(filters, lowest) if plan is None else self._masked_conv(filters, place, plan)
            case nn.MaxPool2d():
                k, s, p, d = (pair(v) for v in (module.kernel_size, module.stride, module.padding, module.dilation))
                return MaxPool(k, s, p, d, module.ceil_mode)
            case nn.AvgPool2d():
                k, s, p = (pair(v) for v in (module.kernel_size, module.stride, module.padding))
                return AvgPool(k, s, p, module.ceil_mode, module.count_include_pad, module.divisor_override)
            case nn.ReLU():
                return Relu()
            case nn.Sigmoid():
                return Sigmoid()
            case nn.Tanh():
                return Tanh()
            case _:
                return Flatten()

    def _parameters(self, link: Link) -> tuple[Tensor, Tensor | None, tuple[Slot, ...]]:
        names, views = self._names(link), self.learner.layout.views(self.weights)
        slots = tuple(self.learner.layout.slot(name) for name in names)
        return views[names[0]], views[names[1]] if len(names) > 1 else None, slots

    def _linear(self, weights: Weights, lowest: bool, place: int) -> Layer:
        batches, lr = self.batches, self.how.lr
        if self.apart:
            return DenseLinear(weights, lr, batches.clients, lowest=lowest)
        outputs, inputs = weights.matrix.shape
        if lowest and batches.constant and batches.size <= 2 * batches.steps * outputs:
            return GramLinear(weights, lr)
        rank = batches.steps * batches.size
        if rank * (inputs + outputs) <= inputs * outputs // 2:
            return FactoredLinear(weights, lr, batches.clients, rank, lowest=lowest)
        if place == 0 and not batches.constant:
            return WindowLinear(weights, lr, batches.clients)
        return DenseLinear(weights, lr, batches.clients, lowest=lowest)

    def _conv(self, filters: Filters, lowest: bool) -> Layer:
        batches, lr = self.batches, self.how.lr
        if lowest and filters.groups == 1 and filters.patch <= PATCH_LIMIT:
            return PatchConv(filters, lr, batches.clients, constant=batches.constant)
        return LoopConv(filters, lr, batches.clients, lowest=lowest)

    def _masked(self, weights: Weights, place: int, plan: Plan) -> Layer:
        """Shared weights and a correction, a block or single weights, unless so much moves that clients own all."""
        share, lr, clients = plan.shares[place], self.how.lr, self.batches.clients
        wanted = 0 if place <= plan.still else share.shape[1]
        if share.dense:
            return OwnLinear(_ordered(weights, share), share, lr, clients, lowest=not wanted)
        if not share.blockwise:
            return ScatteredLinear(weights, share, lr, clients, wanted)
        if place in plan.wanted and share.below is not None:
            wanted = share.below.lower
        return BlockLinear(_ordered(weights, share), share, lr, clients, wanted)

    def _masked_conv(self, filters: Filters, place: int, plan: Plan) -> Layer:
        """Shared filters if nothing moves, otherwise filters per client."""
        share, lowest = plan.shares[place], place <= plan.still
        if share.empty:
            return FrozenConv(filters, lowest=lowest)
        form = self._conv(filters, lowest)
        if isinstance(form, PatchConv):
            return MaskedPatchConv(form, share)
        wanted = plan.wanted.get(place)
        return MaskedConv(filters, share, self.how.lr, self.batches.clients, wanted=wanted, lowest=lowest)


def _ordered(weights: Weights, share: Share) -> Weights:
    """The broadcast weights with their outputs and inputs in the order of the seams."""
    matrix, bias = weights.matrix, weights.bias
    if share.above is not None:
        matrix, bias = matrix[share.above.order], None if bias is None else bias[share.above.order]
    return Weights(matrix if share.below is None else matrix[:, share.below.order], bias, weights.slots)
