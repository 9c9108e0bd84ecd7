"""Max pooling where records are computed together: PyTorch's kernel is many times faster with the channels last."""

from typing import TypeVar

import torch
from torch import Tensor, nn

Net = TypeVar("Net", bound=nn.Module)


class ChannelsLastPool(nn.Module):
    """Max pooling in channels-last layout, for which PyTorch's kernel is many times faster."""

    def __init__(self, pool: nn.MaxPool2d) -> None:
        super().__init__()
        self.pool = pool

    def forward(self, x: Tensor) -> Tensor:
        pooled: Tensor = self.pool(x.contiguous(memory_format=torch.channels_last))
        return pooled.contiguous()


def with_fast_pooling(model: Net) -> Net:
    """The model with faster max pooling, in place."""
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if type(child) is nn.MaxPool2d and not child.return_indices:
                setattr(parent, name, ChannelsLastPool(child))
    return model
