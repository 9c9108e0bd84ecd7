import torch
from torch import Tensor

from tacit.tasks.features import oriented_gradients


def edge(angle: str) -> Tensor:
    """A bright half plane: an edge of one direction."""
    image = torch.zeros(1, 1, 28, 28)
    if angle == "right":
        image[..., 14:] = 1
    if angle == "down":
        image[..., 14:, :] = 1
    if angle == "left":
        image[..., :14] = 1
    return image


def test_edges_land_in_the_bin_of_their_direction() -> None:
    for angle, expected in (("right", 0), ("down", 2), ("left", 4)):
        histograms = oriented_gradients(edge(angle)).view(8, 7, 7)
        assert int(histograms.sum((1, 2)).argmax()) == expected
        others = torch.tensor([i for i in range(8) if i != expected])
        assert float(histograms[others].abs().max()) < 1e-6


def test_flat_images_have_no_features() -> None:
    assert float(oriented_gradients(torch.full((2, 1, 28, 28), 0.7)).abs().max()) == 0


def test_contrast_hardly_matters() -> None:
    strong, weak = oriented_gradients(edge("right")), oriented_gradients(0.5 * edge("right"))
    assert float((strong - weak).norm() / strong.norm()) < 0.5


def test_a_samples_features_are_its_own() -> None:
    images = torch.rand(5, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    together = oriented_gradients(images)
    alone = torch.cat([oriented_gradients(image[None]) for image in images])
    torch.testing.assert_close(together, alone)
    assert together.shape == (5, 392)
    assert bool(torch.isfinite(together).all())
