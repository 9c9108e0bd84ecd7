"""Features that everybody can compute alike: public functions of a sample, which cost no privacy.

A linear model on good features has far fewer weights than a network on pixels, and under differential privacy the noise
grows with the number of weights.
"""

from math import pi

import torch
import torch.nn.functional as F
from torch import Tensor

CELL = 4  # pixels
AT_ONCE = 4096  # images


def oriented_gradients(images: Tensor, *, bins: int = 8) -> Tensor:
    """Histograms of oriented gradients: how strong edges of each direction are, cell by cell.

    Gradients are central differences; each pixel's strength is shared between the two nearest of `bins` directions
    around the circle, averaged over cells of 4 by 4 pixels, and divided by the strength of the neighbourhood.

    Args:
        images: (samples, 1, height, width) in [0, 1].
        bins: number of directions.

    Returns:
        (samples, bins · cells): 392 for 28 by 28 pixels and 8 directions.

    Reference: Dalal, Triggs. Histograms of Oriented Gradients for Human Detection. CVPR 2005.

    Example:
        >>> oriented_gradients(torch.rand(3, 1, 28, 28)).shape
        torch.Size([3, 392])
    """
    return torch.cat([_histograms(part, bins) for part in torch.split(images, AT_ONCE)])


def _histograms(images: Tensor, bins: int) -> Tensor:
    padded = F.pad(images, (1, 1, 1, 1), mode="replicate")
    across = padded[:, :, 1:-1, 2:] - padded[:, :, 1:-1, :-2]
    down = padded[:, :, 2:, 1:-1] - padded[:, :, :-2, 1:-1]
    strength = torch.hypot(across, down)
    turn = torch.atan2(down, across) * (bins / (2 * pi)) % bins
    distance = (turn - torch.arange(bins).view(1, -1, 1, 1)).abs()
    share = (1 - torch.minimum(distance, bins - distance)).clamp(min=0)
    cells = F.avg_pool2d(strength * share, CELL)
    energy = F.avg_pool2d(cells.square().sum(1, keepdim=True), 3, stride=1, padding=1, count_include_pad=False)
    return (cells / (energy.sqrt() + 0.05)).flatten(1)
