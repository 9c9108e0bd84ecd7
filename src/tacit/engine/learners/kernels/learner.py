"""Trains a wave with hand-batched layers: chooses the form of each layer, runs the steps, collects the update."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import cast

import torch
from torch import Tensor, nn

from tacit.core import Descent, Loss, MaskedRows, Perturbation
from tacit.data import Samples
from tacit.engine.batches import Batches
from tacit.engine.layout import Layout
from tacit.engine.learners.kernels.conv import ConvWeights, LoopConv, MaskedConv, MaskedPatchConv, PatchConv
from tacit.engine.learners.kernels.layer_masks import ChainMask, LayerMask
from tacit.engine.learners.kernels.layers import (
    LOSS_GRADIENTS,
    PARAMETERLESS,
    BlockRows,
    Layer,
    PerClientLayer,
    ProximalStep,
)
from tacit.engine.learners.kernels.linear import (
    WINDOW,
    BlockLinear,
    DenseLinear,
    FactoredLinear,
    GramLinear,
    LinearWeights,
    PerClientLinear,
    ScatteredLinear,
    WindowLinear,
)
from tacit.engine.learners.kernels.perturbations import PerturbedScorer
from tacit.engine.learners.kernels.tracing import Chain, TracedLayer, trace_chain


def kernel_learner(model: nn.Module, loss: Loss) -> "KernelLearner | None":
    """The kernels for this module and loss, or None if the module is not a chain or the loss has no kernel."""
    plain = type(loss) in LOSS_GRADIENTS and loss == type(loss)()  # with class weights, gradients are others
    chain = trace_chain(model) if plain else None
    return None if chain is None else KernelLearner(chain, Layout.of(model), loss)


class KernelLearner:
    """Trains all clients of a wave at once, by SGD without momentum, through a chain of known layers."""

    def __init__(self, chain: Chain, layout: Layout, loss: Loss) -> None:
        self.flattens = chain[0].kind is nn.Flatten  # the inputs, as they are fetched
        self.chain, self.layout, self.loss = chain[1:] if self.flattens else chain, layout, loss
        self.loss_gradient = LOSS_GRADIENTS[type(loss)]
        self.chain_mask: ChainMask | None = None  # of the last mask, which stays for many waves, often for all rounds

    def supports(self, weights: Tensor, batches: Batches, descent: Descent) -> bool:
        """Whether the kernels can run this descent.

        They have no momentum and no gradient clipping. Proximal terms and weight decay need equal numbers of steps;
        masks need shared weights, and neither of these.
        """
        proximal = descent.proximal is not None or descent.weight_decay > 0
        if descent.momentum or descent.clip is not None or (proximal and not batches.equal_steps):
            return False
        return descent.mask is None or not (proximal or weights.dim() > 1)

    @torch.no_grad()
    def descend(self, weights: Tensor, batches: Batches, descent: Descent, clients: Tensor) -> BlockRows | MaskedRows:
        """The update of every client, in blocks, or at the mask's coordinates."""
        builder = LayerBuilder(self, weights, batches, descent)
        layers = builder.layers()
        if batches.constant:
            self._constant_batch(layers, batches, first_trained=builder.first_trained)
        else:
            self._train_on_batches(layers, batches)
        blocks = []
        for traced, layer in zip(self.chain, layers, strict=True):  # a block of a bias that does not exist is empty
            spans = map(self.layout.span, traced.parameters)
            blocks += [(*span, block) for span, block in zip(spans, layer.blocks(), strict=False)]
        blocks.sort(key=lambda block: block[0])
        if descent.mask is None:
            return BlockRows(tuple(blocks), len(clients), self.layout.dim, weights.dtype)
        values = [weights.new_zeros(len(clients), 0), *(block.dense() for _, _, block in blocks)]  # the mask ascends
        return MaskedRows(torch.cat(values, dim=1), descent.mask, self.layout.dim)

    @torch.no_grad()
    def perturbed_scores(self, weights: Tensor, data: Samples, perturbation: Perturbation) -> Tensor | None:
        """One client's scores with each group perturbed; None if the groups are not groups of inputs."""
        scorer = PerturbedScorer.of(self.chain, self.layout, perturbation)
        return None if scorer is None else scorer.scores(self.loss, self.layout.views(weights), data)

    def _constant_batch(self, layers: list[Layer], batches: Batches, *, first_trained: int) -> None:
        """Every step uses the same samples: layers below the first trained one are computed once."""
        x, y = self._samples(batches, 0, 1)
        for layer in layers[:first_trained]:
            x = layer.forward(x)
        for step in range(batches.steps if first_trained < len(layers) else 0):
            self._step(layers[first_trained:], x, y, batches.weights(step))

    def _samples(self, batches: Batches, begin: int, end: int) -> tuple[Tensor, Tensor]:
        x, y = batches.x(begin, end), batches.y(begin, end)
        return x.flatten(2) if self.flattens else x, y

    def _train_on_batches(self, layers: list[Layer], batches: Batches) -> None:
        """Each step has its own samples; a first layer that uses windows receives those of several steps together."""
        first = layers[0] if isinstance(layers[0], WindowLinear) else None
        window = 1 if first is None else WINDOW
        for begin in range(0, batches.steps, window):
            end = min(begin + window, batches.steps)
            x, y = self._samples(batches, begin, end)
            if first is not None:
                first.start_window(x)
            for step in range(begin, end):
                batch = slice((step - begin) * batches.size, (step - begin + 1) * batches.size)
                self._step(layers, x[:, batch], y[:, batch], batches.weights(step))

    def _step(self, layers: list[Layer], x: Tensor, y: Tensor, weight: Tensor) -> None:
        for layer in layers:
            x = layer.forward(x)
        g: Tensor | None = self.loss_gradient(x, y, weight)
        for layer in reversed(layers):
            if g is None:
                break
            g = layer.backward(g)


@dataclass(frozen=True, eq=False)
class LayerBuilder:
    """Chooses the form of every layer for one wave."""

    learner: KernelLearner
    weights: Tensor
    batches: Batches
    descent: Descent

    def layers(self) -> list[Layer]:
        """The chain's layers."""
        return [self._layer(traced, index) for index, traced in enumerate(self.learner.chain)]

    @property
    def proximal(self) -> bool:
        """Whether steps have a proximal part, towards targets or (weight decay) towards zero."""
        return self.descent.proximal is not None or self.descent.weight_decay > 0

    @property
    def separate_weights(self) -> bool:
        """Whether every client needs its own weights from the start: initial weights or targets differ."""
        return self.weights.dim() > 1 or self.proximal

    def _with_proximal_steps(self, layer: PerClientLayer, traced: TracedLayer) -> PerClientLayer:
        layer.proximal_steps = tuple(self._proximal_steps(layer, traced)) if self.proximal else ()
        return layer

    def _proximal_steps(self, layer: PerClientLayer, traced: TracedLayer) -> Iterator[ProximalStep]:
        """A proximal term of strength s towards t and decay d are one term of strength s + d towards t·s/(s + d)."""
        lr, decay, layout = self.descent.lr, self.descent.weight_decay, self.learner.layout
        term = self.descent.proximal
        for name, parameter in zip(traced.parameters, layer.parameters, strict=True):
            strength = 0.0 if term is None else term.strengths[layout.names.index(name)]
            if term is not None and strength:
                target = layout.views(term.target)[name].view_as(parameter)
                scaled = target * (strength / (strength + decay)) if decay else target
                yield ProximalStep(parameter, scaled, lr * (strength + decay))
            elif decay:
                yield ProximalStep(parameter, None, lr * decay)

    @cached_property
    def chain_mask(self) -> ChainMask | None:
        """The mask layer by layer, if there is one."""
        mask, cached = self.descent.mask, self.learner.chain_mask
        if mask is None:
            return None
        if cached is None or not (cached.mask is mask or torch.equal(cached.mask, mask)):
            cached = self.learner.chain_mask = ChainMask.of(mask, self.learner.chain, self.learner.layout)
        return cached

    @cached_property
    def first_trained(self) -> int:
        """The index of the first layer in which anything changes."""
        if self.chain_mask is not None:
            return self.chain_mask.first_trained
        return next(index for index, traced in enumerate(self.learner.chain) if traced.parameters)

    def _layer(self, traced: TracedLayer, index: int) -> Layer:
        lowest, masks = index <= self.first_trained, self.chain_mask
        if not traced.parameters:
            return PARAMETERLESS[traced.kind](traced.module)
        if traced.kind is nn.Linear:
            linear = LinearWeights(*self._parameters(traced))
            if masks is not None:
                return self._linear_layer(linear, index, masks)
            if self.separate_weights:
                dense = DenseLinear(linear, self.descent.lr, self.batches.clients, lowest=lowest)
                return self._with_proximal_steps(dense, traced)
            return self._linear(linear, lowest, index)
        conv = ConvWeights(cast(nn.Conv2d, traced.module), *self._parameters(traced))
        if masks is not None:
            return self._conv_layer(conv, index, masks)
        return self._with_proximal_steps(self._conv(conv, lowest), traced)

    def _parameters(self, traced: TracedLayer) -> tuple[Tensor, Tensor | None]:
        """The weight of a layer and its bias, if it has one."""
        views = self.learner.layout.views(self.weights)
        weight, *bias = (views[name] for name in traced.parameters)
        return weight, bias[0] if bias else None

    def _linear(self, weights: LinearWeights, lowest: bool, index: int) -> Layer:
        """The form for weights that all clients share at first."""
        batches, lr = self.batches, self.descent.lr
        outputs, inputs = weights.matrix.shape
        if lowest and batches.constant and batches.size <= 2 * batches.steps * outputs:
            return GramLinear(weights, lr)
        rank = batches.steps * batches.size
        if rank * (inputs + outputs) <= inputs * outputs // 2:
            return FactoredLinear(weights, lr, batches.clients, rank, lowest=lowest)
        if index == 0 and not batches.constant:
            return WindowLinear(weights, lr, batches.clients)
        return DenseLinear(weights, lr, batches.clients, lowest=lowest)

    def _conv(self, weights: ConvWeights, lowest: bool) -> PerClientLayer:
        if lowest and weights.has_small_patches:
            return self._patch_conv(weights)
        return LoopConv(weights, self.descent.lr, self.batches.clients, lowest=lowest)

    def _patch_conv(self, weights: ConvWeights) -> PatchConv:
        return PatchConv(weights, self.descent.lr, self.batches.clients, constant=self.batches.constant)

    def _linear_layer(self, weights: LinearWeights, index: int, masks: ChainMask) -> Layer:
        """Broadcast weights with a correction of a block or of single weights, or weights per client if many change."""
        mask, lr, clients = masks.layers[index], self.descent.lr, self.batches.clients
        lowest = index <= masks.first_trained
        if mask.is_dense:
            return PerClientLinear(_reorder(weights, mask), mask, lr, clients, lowest=lowest)
        if mask.is_blockwise:
            return BlockLinear(_reorder(weights, mask), mask, lr, clients, lowest=lowest)
        return ScatteredLinear(weights, mask, lr, clients, lowest=lowest)

    def _conv_layer(self, weights: ConvWeights, index: int, masks: ChainMask) -> Layer:
        """Filters per client; a first layer that changes is computed on patches."""
        mask, lowest = masks.layers[index], index <= masks.first_trained
        if lowest and weights.has_small_patches and not mask.empty:
            return MaskedPatchConv(self._patch_conv(weights), mask)
        return MaskedConv(weights, mask, self.descent.lr, self.batches.clients, lowest=lowest)


def _reorder(weights: LinearWeights, mask: LayerMask) -> LinearWeights:
    """The broadcast weights with their outputs and inputs in feature order."""
    matrix, bias = weights.matrix, weights.bias
    if mask.output_order is not None:
        order = mask.output_order.order
        matrix, bias = matrix[order], None if bias is None else bias[order]
    columns = matrix if mask.input_order is None else matrix[:, mask.input_order.order]
    return LinearWeights(columns, bias)
