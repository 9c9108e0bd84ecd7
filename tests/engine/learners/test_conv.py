import pytest
import torch
from torch import Tensor, nn

from tacit.engine.learners.kernels.conv import ConvWeights, gradient_tiles, strips_of
from tacit.engine.learners.kernels.layer_masks import LayerMask


def concentrated(outputs: int, depth: int, window: int, seed: int) -> Tensor:
    """A mask with most of its coordinates in few lines, as ascending positions in the flat weights."""
    source = torch.Generator().manual_seed(seed)
    rows, columns = (torch.rand(n, generator=source) ** 6 for n in (outputs, depth))
    likely = rows[:, None, None] * columns[None, :, None]
    return (torch.rand(outputs, depth, window, generator=source) < likely).flatten().nonzero()[:, 0]


def mask_of(weights: Tensor, outputs: int, depth: int, window: int) -> LayerMask:
    return LayerMask(weights, weights[:0], (outputs, depth * window))


@pytest.mark.parametrize(("outputs", "depth"), [(64, 32), (12, 40), (5, 3), (1, 1)])
@pytest.mark.parametrize("seed", range(5))
def test_every_coordinate_has_its_gradient_once(outputs: int, depth: int, seed: int) -> None:
    conv = nn.Conv2d(depth, outputs, 3, padding=1).double()
    layer = ConvWeights.of(conv, conv.weight.detach(), None, ())
    weights = concentrated(outputs, depth, 9, seed)
    x, g = (torch.randn(2, channels, 6, 5, dtype=torch.float64) for channels in (depth, outputs))
    whole = layer.weight_gradient(g, x, layer.weight).flatten()
    found = torch.full_like(whole, torch.nan)
    tiles = gradient_tiles(mask_of(weights, outputs, depth, 9), depth, 1)
    for tile in tiles:
        found[tile.weights] = tile.gradient(layer, g, x)
    assert sum(len(tile.weights) for tile in tiles) == len(weights)
    torch.testing.assert_close(found[weights], whole[weights])


@pytest.mark.parametrize("transposed", [False, True])
def test_full_lines_are_separated_from_nearly_empty_ones(transposed: bool) -> None:
    """16 full lines and 20 with one coordinate each: two tiles of 16 x 64 and 24 x 8, or of the same sizes."""
    touched = torch.zeros(64, 64, dtype=torch.bool)
    touched[8:24], touched[40:60, 5] = True, True
    pairs = (touched.T if transposed else touched).flatten().nonzero()[:, 0]
    tiles = gradient_tiles(mask_of(pairs * 9 + 4, 64, 64, 9), 64, 1)
    sides = [[64 if side is None else -(-len(side) // 8) * 8 for side in (t.outputs, t.channels)] for t in tiles]
    assert len(tiles) == 2
    assert sum(height * width for height, width in sides) == 16 * 64 + 24 * 8


def test_a_scattered_mask_is_one_tile() -> None:
    weights = torch.arange(0, 64 * 32 * 25, 7)
    (tile,) = gradient_tiles(mask_of(weights, 64, 32, 25), 32, 1)
    assert (tile.outputs, tile.channels) == (None, None)
    assert torch.equal(tile.positions, weights)


def test_a_grouped_convolution_is_one_tile_and_an_empty_mask_has_none() -> None:
    weights = torch.tensor([3, 8])
    (tile,) = gradient_tiles(mask_of(weights, 4, 2, 9), 2, 2)
    assert (tile.outputs, tile.channels, tile.positions.tolist()) == (None, None, [3, 8])
    assert gradient_tiles(mask_of(weights[:0], 4, 2, 9), 2, 1) == ()


def test_strips_hold_every_line_once() -> None:
    touched = torch.rand(50, 30, generator=torch.Generator().manual_seed(0)) < torch.linspace(0, 0.3, 50)[:, None]
    strips = strips_of(touched)
    lines = torch.cat([lines for lines, _ in strips]).sort().values
    assert torch.equal(lines, touched.any(1).nonzero()[:, 0])
    for across, crossing in strips:
        assert torch.equal(crossing, touched[across].any(0).nonzero()[:, 0])
