"""Likeness of images against scikit-image 0.26 (Gaussian weights, σ = 1.5, no sample covariance), values pinned."""

import numpy as np
import pytest
import torch

from tacit.attacks.scores import mse, psnr, ssim
from tacit.errors import UserError

ROW, COLUMN = np.mgrid[0:28, 0:28]
WAVES = (np.sin(ROW / 3) * np.cos(COLUMN / 4) + 1) / 2
RIPPLED = np.clip(WAVES + 0.2 * np.sin(ROW * COLUMN / 7.0), 0, 1)


def stack(image: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(image)[None, None]


@pytest.mark.parametrize(
    ("other", "expected"),
    [(RIPPLED, 0.6509212479220539), (1 - WAVES, -0.7599946184403994), (np.full_like(WAVES, 0.5), 0.04780047704395577)],
    ids=["rippled", "inverted", "grey"],
)
def test_similarity_is_that_of_scikit_image(other: np.ndarray, expected: float) -> None:
    assert float(ssim(stack(WAVES), stack(other))) == pytest.approx(expected, abs=1e-9)


def test_similarity_knows_equal_images_channels_and_small_ones() -> None:
    images = torch.rand(3, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(ssim(images, images), torch.ones(3, dtype=torch.float64))
    assert float(ssim(images[:1], images[1:2]).abs()) < 0.4
    single = torch.stack([ssim(images[:1, c : c + 1], images[1:2, c : c + 1]) for c in range(3)])
    assert float(ssim(images[:1], images[1:2])) == pytest.approx(float(single.mean()))


def test_errors_and_their_ratio_to_the_peak() -> None:
    zero, tenth = torch.zeros(2, 1, 4, 4), torch.full((2, 1, 4, 4), 0.1)
    assert mse(zero, tenth).tolist() == pytest.approx([0.01, 0.01])
    assert psnr(zero, tenth).tolist() == pytest.approx([20.0, 20.0])
    assert psnr(zero, zero).isinf().all()


def test_other_shapes_are_refused() -> None:
    with pytest.raises(UserError, match="two stacks of images"):
        ssim(torch.zeros(4, 4), torch.zeros(4, 4))
