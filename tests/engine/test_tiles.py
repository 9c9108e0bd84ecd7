import pytest
import torch
from torch import Tensor, nn

from tacit.engine.learners.kernels.conv import Filters
from tacit.engine.learners.kernels.cuts import cuts_of, strips_of
from tacit.engine.learners.kernels.shares import Share


def crowded(outputs: int, depth: int, window: int, seed: int) -> Tensor:
    """A mask of which some lines have most: coordinates of the flat weights, ascending."""
    source = torch.Generator().manual_seed(seed)
    rows, columns = (torch.rand(n, generator=source) ** 6 for n in (outputs, depth))
    likely = rows[:, None, None] * columns[None, :, None]
    return (torch.rand(outputs, depth, window, generator=source) < likely).flatten().nonzero()[:, 0]


def share_of(weights: Tensor, outputs: int, depth: int, window: int) -> Share:
    return Share(weights, weights[:0], (outputs, depth * window))


@pytest.mark.parametrize(("outputs", "depth"), [(64, 32), (12, 40), (5, 3), (1, 1)])
@pytest.mark.parametrize("seed", range(5))
def test_every_coordinate_has_its_gradient_once(outputs: int, depth: int, seed: int) -> None:
    conv = nn.Conv2d(depth, outputs, 3, padding=1).double()
    filters = Filters.of(conv, conv.weight.detach(), None, ())
    weights = crowded(outputs, depth, 9, seed)
    x, g = (torch.randn(2, channels, 6, 5, dtype=torch.float64) for channels in (depth, outputs))
    whole = filters.weight_gradient(g, x, filters.weight).flatten()
    found = torch.full_like(whole, torch.nan)
    cuts = cuts_of(share_of(weights, outputs, depth, 9), depth, 1)
    for cut in cuts:
        found[cut.weights] = cut.gradient(filters, g, x)
    assert sum(len(cut.weights) for cut in cuts) == len(weights)
    torch.testing.assert_close(found[weights], whole[weights])


@pytest.mark.parametrize("upright", [False, True])
def test_full_lines_are_set_apart_from_nearly_empty_ones(upright: bool) -> None:
    """16 full lines and 20 with one coordinate each: two rectangles of 16 x 64 and 24 x 8, or as large ones."""
    touched = torch.zeros(64, 64, dtype=torch.bool)
    touched[8:24], touched[40:60, 5] = True, True
    pairs = (touched.T if upright else touched).flatten().nonzero()[:, 0]
    cuts = cuts_of(share_of(pairs * 9 + 4, 64, 64, 9), 64, 1)
    sides = [[64 if side is None else -(-len(side) // 8) * 8 for side in (cut.outputs, cut.channels)] for cut in cuts]
    assert len(cuts) == 2
    assert sum(height * width for height, width in sides) == 16 * 64 + 24 * 8


def test_what_is_touched_all_over_is_one_whole() -> None:
    weights = torch.arange(0, 64 * 32 * 25, 7)
    (cut,) = cuts_of(share_of(weights, 64, 32, 25), 32, 1)
    assert (cut.outputs, cut.channels) == (None, None)
    assert torch.equal(cut.places, weights)


def test_groups_are_left_whole_and_an_empty_share_has_none() -> None:
    weights = torch.tensor([3, 8])
    (cut,) = cuts_of(share_of(weights, 4, 2, 9), 2, 2)
    assert (cut.outputs, cut.channels, cut.places.tolist()) == (None, None, [3, 8])
    assert cuts_of(share_of(weights[:0], 4, 2, 9), 2, 1) == ()


def test_strips_hold_every_line_once() -> None:
    touched = torch.rand(50, 30, generator=torch.Generator().manual_seed(0)) < torch.linspace(0, 0.3, 50)[:, None]
    strips = strips_of(touched)
    lines = torch.cat([lines for lines, _ in strips]).sort().values
    assert torch.equal(lines, touched.any(1).nonzero()[:, 0])
    for across, crossing in strips:
        assert torch.equal(crossing, touched[across].any(0).nonzero()[:, 0])
