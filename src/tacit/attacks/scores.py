"""How alike two images are. Pixels are in [0, 1]; images are (count, channels, height, width)."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from tacit.errors import expect

WINDOW, SIGMA = 11, 1.5
STEADY = (0.01**2, 0.03**2)  # C₁ and C₂ for a range of 1


def mse(images: Tensor, others: Tensor) -> Tensor:
    """The mean squared error of every pair."""
    return (images - others).square().flatten(1).mean(1)


def psnr(images: Tensor, others: Tensor) -> Tensor:
    """The peak signal-to-noise ratio in decibel; infinite for equal images."""
    return -10 * mse(images, others).log10()


def ssim(images: Tensor, others: Tensor) -> Tensor:
    """The structural similarity of every pair: 1 for equal images, about 0 for unrelated ones.

    A Gaussian window of 11 × 11 (σ = 1.5) over all places where it fits, mean over places and channels. Images smaller
    than the window get the largest odd window that fits.

    Reference: Wang, Bovik, Sheikh, Simoncelli. Image Quality Assessment: From Error Visibility to Structural
    Similarity. IEEE Transactions on Image Processing 13(4), 2004, Equation 13.

    Example:
        >>> image = torch.rand(1, 1, 28, 28)
        >>> round(float(ssim(image, image)), 6)
        1.0
    """
    expect(images.dim() == 4 and images.shape == others.shape, "two stacks of images (count, channels, height, width)")
    x, y = images.double(), others.double()
    mean_x, mean_y = _blurred(x), _blurred(y)
    variance_x, variance_y = _blurred(x * x) - mean_x**2, _blurred(y * y) - mean_y**2
    covariance = _blurred(x * y) - mean_x * mean_y
    c1, c2 = STEADY
    luminance = (2 * mean_x * mean_y + c1) / (mean_x**2 + mean_y**2 + c1)
    structure = (2 * covariance + c2) / (variance_x + variance_y + c2)
    return (luminance * structure).flatten(1).mean(1)


def _blurred(images: Tensor) -> Tensor:
    """Means under the window, channel by channel."""
    channels, side = images.shape[1], min(*images.shape[2:], WINDOW)
    side -= 1 - side % 2
    at = torch.arange(side, dtype=images.dtype) - side // 2
    line = torch.exp(-(at**2) / (2 * SIGMA**2)) / (SIGMA * math.sqrt(2 * math.pi))
    window = torch.outer(line, line) / line.sum() ** 2
    return F.conv2d(images, window.expand(channels, 1, side, side), groups=channels)
