"""Two groups of clients on two lines: the synthetic experiment of the group-privacy paper (Eq. 23 and 24).

Galli et al. 2023: y = xᵀθ* + u with u uniform in [0, 1], θ₁* = (5, 6) and θ₂* = (4, −4.5). The paper does not
say how x is drawn; here it is standard normal.
"""

from typing import Literal

import torch
from torch import Tensor

from tacit.core.keys import Key
from tacit.core.losses import Loss, MeanSquared, RootMeanSquared
from tacit.core.schema import choose
from tacit.core.task import Population, Samples, Task
from tacit.errors import expect
from tacit.tasks.models import linear

LOSSES: dict[str, Loss] = {"rmse": RootMeanSquared(), "mean-squared": MeanSquared()}
THETA = torch.tensor([[5.0, 6.0], [4.0, -4.5]])


def synthetic(
    clients: int = 100, samples: int = 10, loss: Literal["rmse", "mean-squared"] = "rmse", seed: int = 0
) -> Task:
    """Linear data of two groups; even clients follow θ₁*, odd ones θ₂*.

    As many clients again are held out, and their samples are the test data.

    Args:
        clients: number of clients.
        samples: samples per client.
        loss: `rmse`, the paper's, or `mean-squared`.
        seed: of the data.

    Example:
        >>> task = synthetic(clients=4)
        >>> len(task.population), task.population.x.shape
        (4, torch.Size([40, 2]))
    """
    expect(clients > 0, f"clients={clients} > 0")
    expect(samples > 0, f"samples={samples} > 0")
    key = Key.from_seed(seed, "synthetic")
    x, y = _draw(clients, samples, key.child("train"))
    parts: list[Tensor] = list(torch.arange(len(x)).tensor_split(clients))
    return Task(
        model=linear,
        clients=Population.split(x, y, parts),
        test=_draw(clients, samples, key.child("test")),
        owners=torch.arange(clients).repeat_interleave(samples),
        loss=choose(LOSSES, loss, "loss"),
        name="synthetic",
    )


def _draw(clients: int, samples: int, key: Key) -> Samples:
    """Samples of all clients, one client after the other."""
    chance = key.torch()
    group = (torch.arange(clients) % 2).repeat_interleave(samples)
    x = torch.randn(len(group), 2, generator=chance)
    noise = torch.rand(len(group), generator=chance)
    return x, ((x * THETA[group]).sum(1) + noise)[:, None]
