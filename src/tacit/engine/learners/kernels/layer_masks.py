"""A mask layer by layer: the coordinates that may change in each layer, and the block of outputs and inputs they touch.

A mask of the largest gradients touches few outputs and few inputs of a layer, so the block is small; a random mask
touches nearly all. The form of each layer is chosen by counting, never by timing.

Between two fully connected layers features may be permuted. A `FeatureOrder` makes the features that each layer's mask
touches contiguous: a block is then a slice of the activations, and nothing has to be gathered.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import torch
from torch import Tensor, nn

from tacit.engine.layout import Layout
from tacit.engine.learners.kernels.layers import Span
from tacit.engine.learners.kernels.tracing import ELEMENTWISE, Chain


@dataclass(frozen=True, eq=False)
class FeatureOrder:
    """The order of the features between two layers: touched by the lower one only, by both, by the upper one, by none.

    Attributes:
        order: the features in this order.
        lower_count: the number of features that the lower layer touches, which are the first ones.
        upper_start: the position of the first feature that the upper layer touches.
    """

    order: Tensor
    lower_count: int
    upper_start: int

    @classmethod
    def of(cls, outputs: Tensor, inputs: Tensor, features: int) -> "FeatureOrder":
        """The order between a layer that touches `outputs` and the next one, which touches `inputs`."""
        lower, upper = (torch.zeros(features, dtype=torch.bool).index_fill_(0, at, True) for at in (outputs, inputs))
        rank = torch.where(lower, upper.long(), 3 - upper.long())
        return cls(torch.argsort(rank, stable=True), len(outputs), int((rank == 0).sum()))


@dataclass(frozen=True, eq=False)
class FeatureSlice:
    """Some features of a layer's inputs or outputs: a slice if they are contiguous, otherwise gathered."""

    features: Tensor
    start: int | None  # None: not contiguous

    @classmethod
    def of(cls, features: Tensor) -> "FeatureSlice":
        """From ascending features."""
        contiguous = len(features) == 0 or int(features[-1] - features[0]) + 1 == len(features)
        return cls(features, (int(features[0]) if len(features) else 0) if contiguous else None)

    @cached_property
    def count(self) -> int:
        return len(self.features)

    def take(self, x: Tensor) -> Tensor:
        """These features of the last dimension."""
        if self.start is None:
            return x.index_select(-1, self.features)
        return x if x.shape[-1] == self.count else x.narrow(-1, self.start, self.count)

    def add_product(self, out: Tensor, left: Tensor, right: Tensor) -> None:
        """`out += left·right` at these features, in place; a product directly into a slice would be slower."""
        if self.start is not None:
            self.take(out).add_(torch.bmm(left, right))
        else:
            out[..., self.features] += torch.bmm(left, right)


@dataclass(frozen=True, eq=False)
class LayerMask:
    """The part of a mask in one layer, whose weights are seen as a matrix (outputs, inputs).

    Attributes:
        weights: positions in the flat matrix, ascending.
        biases: positions in the bias, ascending.
        shape: of the matrix.
        output_order: the order of the outputs, shared with the next layer; None: the model's own order.
        input_order: the order of the inputs, shared with the previous layer.
    """

    weights: Tensor
    biases: Tensor
    shape: tuple[int, int]
    output_order: FeatureOrder | None = None
    input_order: FeatureOrder | None = None

    @classmethod
    def of(cls, mask: Tensor, spans: tuple[Span, ...], outputs: int) -> "LayerMask":
        """The part of an ascending mask that falls into a layer."""
        weights = _within(mask, spans[0])
        biases = _within(mask, spans[1]) if len(spans) > 1 else weights[:0]
        return cls(weights, biases, (outputs, (spans[0][1] - spans[0][0]) // outputs))

    @property
    def empty(self) -> bool:
        return len(self.weights) == len(self.biases) == 0

    @cached_property
    def touched_outputs(self) -> Tensor:
        """Outputs with a weight or bias in the mask."""
        outputs: Tensor = torch.unique(torch.cat([self.weights // self.shape[1], self.biases]))
        return outputs

    @cached_property
    def touched_inputs(self) -> Tensor:
        """Inputs with a weight in the mask."""
        inputs: Tensor = torch.unique(self.weights % self.shape[1])
        return inputs

    @cached_property
    def block_outputs(self) -> FeatureSlice:
        """The block's outputs among the layer's outputs."""
        if self.output_order is None:
            return FeatureSlice.of(self.touched_outputs)
        return FeatureSlice(self.output_order.order[: self.output_order.lower_count], 0)

    @cached_property
    def block_inputs(self) -> FeatureSlice:
        """The block's inputs among the layer's inputs."""
        if self.input_order is None:
            return FeatureSlice.of(self.touched_inputs)
        start = self.input_order.upper_start
        return FeatureSlice(self.input_order.order[start : start + len(self.touched_inputs)], start)

    @cached_property
    def block_width(self) -> int:
        """Columns of the block; a bias is the weight of an additional input that is always 1."""
        return self.block_inputs.count + (1 if len(self.biases) else 0)

    @cached_property
    def block_positions(self) -> tuple[Tensor, Tensor]:
        """The positions of the mask's weights and of its biases in the flat block."""
        sides = (self.block_outputs, self.block_inputs)
        row, column = (_ranks(side, n) for side, n in zip(sides, self.shape, strict=True))
        weights = row[self.weights // self.shape[1]] * self.block_width + column[self.weights % self.shape[1]]
        return weights, row[self.biases] * self.block_width + self.block_width - 1

    @cached_property
    def block_mask(self) -> Tensor:
        """The block, True where the mask is."""
        block = torch.zeros(self.block_outputs.count * self.block_width, dtype=torch.bool)
        masked = block.index_fill_(0, torch.cat(self.block_positions), True)
        return masked.view(self.block_outputs.count, self.block_width)

    @property
    def is_dense(self) -> bool:
        """Whether weights per client are cheapest: more than an eighth of them change, spread over the matrix."""
        entries = self.shape[0] * self.shape[1]
        return 8 * len(self.weights) > entries and 2 * self.block_outputs.count * self.block_width > entries

    @property
    def is_blockwise(self) -> bool:
        """Whether a dense block, of at most half the matrix, is cheaper than scattered coordinates.

        Costs are measured ones, in quarters of a nanosecond per batch of ten: an entry of a block takes part in three
        products (3), a coordinate in two sums (12), and its gradient is gathered (46) or read from a whole one (4),
        of which every entry costs 1.
        """
        entries, k = self.shape[0] * self.shape[1], len(self.weights)
        block = self.block_outputs.count * self.block_width
        return 2 * block <= entries and 3 * block <= 12 * k + 4 * len(self.biases) + min(46 * k, entries + 4 * k)

    @property
    def gathers_gradient(self) -> bool:
        """Whether the gradient is cheaper coordinate by coordinate than as a whole (see `is_blockwise`)."""
        return 42 * len(self.weights) <= self.shape[0] * self.shape[1]

    @cached_property
    def ordered_weights(self) -> Tensor:
        """The positions of the mask's weights in the flat matrix with outputs and inputs in feature order."""
        row, column = self.weights // self.shape[1], self.weights % self.shape[1]
        row = row if self.output_order is None else torch.argsort(self.output_order.order)[row]
        column = column if self.input_order is None else torch.argsort(self.input_order.order)[column]
        return row * self.shape[1] + column

    @cached_property
    def frozen(self) -> Tensor:
        """The whole matrix in feature order, True outside the mask."""
        frozen = torch.ones(self.shape, dtype=torch.bool).view(-1)
        return frozen.index_fill_(0, self.ordered_weights, False).view(self.shape)


@dataclass(frozen=True, eq=False)
class ChainMask:
    """A mask, layer by layer.

    Attributes:
        mask: the mask itself.
        layers: the masks of the layers with parameters, by their index in the chain.
        first_trained: the index of the first layer in which anything changes; the length of the chain if none.
    """

    mask: Tensor
    layers: dict[int, LayerMask]
    first_trained: int

    @classmethod
    def of(cls, mask: Tensor, chain: Chain, layout: Layout) -> "ChainMask":
        """From an ascending mask of the parameters in this layout."""
        layers = {
            i: LayerMask.of(mask, tuple(map(layout.span, layer.parameters)), layout.shape(layer.parameters[0])[0])
            for i, layer in enumerate(chain)
            if layer.parameters
        }
        first = next((i for i in layers if not layers[i].empty), len(chain))
        return cls(mask, _with_feature_orders(chain, layers), first)


def _with_feature_orders(chain: Chain, layers: dict[int, LayerMask]) -> dict[int, LayerMask]:
    """Order the features above every fully connected layer that is corrected in a block, if the next layer allows."""
    ordered = dict(layers)
    for low, high in pairwise(layers):
        linear = chain[low].kind is chain[high].kind is nn.Linear
        sliced = layers[low].is_blockwise and (layers[high].is_blockwise or layers[high].is_dense)
        if linear and sliced and all(layer.kind in ELEMENTWISE for layer in chain[low + 1 : high]):
            order = FeatureOrder.of(layers[low].touched_outputs, layers[high].touched_inputs, layers[low].shape[0])
            ordered[low] = replace(ordered[low], output_order=order)
            ordered[high] = replace(ordered[high], input_order=order)
    return ordered


def _within(mask: Tensor, span: Span) -> Tensor:
    begin, end = torch.searchsorted(mask, torch.tensor(span)).tolist()
    return mask[begin:end] - span[0]


def _ranks(features: FeatureSlice, total: int) -> Tensor:
    """The position in the block of every feature."""
    return torch.zeros(total, dtype=torch.int64).index_copy_(0, features.features, torch.arange(features.count))
