"""Groups of weights: by input feature, combined features, or single weights."""

import pytest
import torch

from tacit.errors import UserError
from tacit.pieces.mechanisms import InputFeatures, SingleWeights
from tacit.pieces.mechanisms.groups import Groups

MLP = ((256, 784), (256,), (10, 256), (10,))


def test_a_fifth_of_the_inputs_of_the_paper_s_model() -> None:
    """The paper counts 0.2 · 784 · 256 = 40,141 of 203,530 weights, 0.19; whole inputs are 157 of 784."""
    sizes = InputFeatures().of(MLP).sizes()
    total = sum(len(torch.empty(shape).flatten()) for shape in MLP)
    assert total == 203_530
    assert round(0.2 * int(sizes.sum())) == 40_141
    assert round(40_141 / total, 3) == 0.197
    assert int(sizes[: round(0.2 * 784)].sum()) == 40_192


def test_inputs_of_a_linear_layer() -> None:
    groups = InputFeatures().of([(2, 3), (2,)])
    assert (groups.of.tolist(), groups.count) == ([0, 1, 2, 0, 1, 2, -1, -1], 3)


def test_inputs_of_a_convolution_are_positions_in_its_kernels() -> None:
    groups = InputFeatures().of([(6, 2, 3, 3), (6,), (10, 5)])
    assert groups.count == 18
    assert groups.sizes().tolist() == [6] * 18
    assert bool((groups.of[6 * 18 :] == -1).all())


def test_the_first_layer_need_not_be_the_first_parameter() -> None:
    assert InputFeatures().of([(4,), (1, 2)]).of.tolist() == [-1, -1, -1, -1, 0, 1]
    with pytest.raises(UserError, match="a linear or convolutional layer"):
        InputFeatures().of([(4,)])


def test_inputs_can_be_combined() -> None:
    groups = InputFeatures(groups=(1, -1, 0)).of([(2, 3)])
    assert (groups.of.tolist(), groups.count) == ([1, -1, 0, 1, -1, 0], 2)
    with pytest.raises(UserError, match="a group for each of 3 inputs, got 2"):
        InputFeatures(groups=(0, 1)).of([(2, 3)])
    with pytest.raises(UserError, match="without gaps"):
        InputFeatures(groups=(0, 2))


def test_every_weight_can_be_a_group() -> None:
    groups = SingleWeights().of([(2, 3), (2,)])
    assert (groups.of.tolist(), groups.count) == ([*range(8)], 8)


def test_sums_and_spreads() -> None:
    groups = Groups(torch.tensor([1, 0, -1, 1]), 2)
    assert groups.sums(torch.tensor([[1.0, 2.0, 4.0, 8.0]])).tolist() == [[2.0, 9.0]]
    assert groups.spread(torch.tensor([[5.0, 7.0]]), 1.0).tolist() == [[7.0, 5.0, 1.0, 7.0]]


def test_weights_in_no_group_are_grouped_by_layer() -> None:
    groups = InputFeatures(groups=(0, -1)).of([(2, 2), (1,), (3,)]).with_layers([(2, 2), (1,), (3,)])
    assert (groups.of.tolist(), groups.count) == ([0, 1, 0, 1, 2, 3, 3, 3], 4)
    assert int(groups.sizes().sum()) == 8
