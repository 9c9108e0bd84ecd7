"""A model's outputs without gradients: the same numbers as the model's own, sooner where it is a chain of layers."""

import torch
from torch import Tensor, nn

from tacit.engine.learners.kernels.chain import chain_of, pair


class Halve(nn.Module):
    """Max pooling of 2 x 2, as the larger of every two rows and columns, which PyTorch vectorises."""

    def forward(self, x: Tensor) -> Tensor:
        """An odd row or column at the end is left out, as pooling does."""
        height, width = (side // 2 * 2 for side in x.shape[-2:])
        rows = torch.maximum(x[..., 0:height:2, :width], x[..., 1:height:2, :width])
        return torch.maximum(rows[..., 0::2], rows[..., 1::2])


def forward_of(model: nn.Module) -> nn.Module:
    """The model for evaluation, with the very same parameters; the model itself if it is no chain of known layers."""
    links = chain_of(model)
    if links is None:
        return model.eval()
    return nn.Sequential(*(Halve() if _halves(link.module) else link.module for link in links)).eval()


def _halves(module: nn.Module) -> bool:
    if not isinstance(module, nn.MaxPool2d) or module.ceil_mode:
        return False
    geometry = (module.kernel_size, module.stride, module.padding, module.dilation)
    return [pair(value) for value in geometry] == [(2, 2), (2, 2), (0, 0), (1, 1)]
