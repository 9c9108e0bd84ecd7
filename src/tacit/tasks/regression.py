"""The regression tasks of the group-privacy paper (Galli et al. 2023): synthetic data and hospital charges.

*Synthetic* (Eq. 23 and 24): two groups of clients with y = xᵀθ* + u, u uniform in [0, 1], θ₁* = (5, 6) and
θ₂* = (4, −4.5). The paper does not specify the distribution of x; here it is standard normal.

*Hospital charges* (section 5.2): from the payments to US hospitals in 2011, the four most widely treated conditions are
used: DRG 194 (simple pneumonia), 690 (kidney and urinary tract infections), 292 (heart failure and shock), 392
(esophagitis and digestive disorders), each with complications where the DRG says so. Inputs are the index of the
condition (0 to 3), longitude / 100 and latitude / 100 of the hospital's ZIP code; the target is the average total
payment / 10,000. Nothing is standardised, since a client could not know the mean over all clients.

The paper reports 2,947 clients. In this table 3,151 hospitals have at least one of the four conditions (3,062 two,
2,964 three, 2,738 all four), in 2,948 ZIP codes. The paper's clients were therefore probably ZIP codes, one of them
without coordinates; `by="zip"` makes that population.
"""

from collections import defaultdict
from typing import Literal

import torch
from torch import Tensor

from tacit.core.keys import Key
from tacit.core.losses import Loss, MeanSquared, RootMeanSquared
from tacit.core.schema import choose
from tacit.data.population import owners_of
from tacit.data.tables import parse_texts
from tacit.data.task import Population, Preprocessing, Samples, Task
from tacit.errors import DataError, expect, whole
from tacit.tasks.datasets import read
from tacit.tasks.models import hospital_net, linear
from tacit.tasks.sources import CMS_IPPS, ZIP_LATLON

_LOSSES: dict[str, Loss] = {"rmse": RootMeanSquared(), "mean-squared": MeanSquared()}
THETA = torch.tensor([[5.0, 6.0], [4.0, -4.5]])
_MAX_SAMPLES = 10**7  # of the synthetic clients together
CONDITIONS = {"194": 0, "690": 1, "292": 2, "392": 3}


def synthetic(
    clients: int = 100, samples: int = 10, loss: Literal["rmse", "mean-squared"] = "rmse", seed: int = 0
) -> Task:
    """Linear regression with two groups: even clients follow θ₁*, odd ones θ₂*; needs no download.

    The test data are the samples of as many held-out clients.

    Args:
        clients: number of clients.
        samples: samples per client.
        loss: `rmse`, the paper's, or `mean-squared`.
        seed: seed of the data.

    Example:
        >>> task = synthetic(clients=4)
        >>> len(task.population), task.population.x.shape
        (4, torch.Size([40, 2]))
    """
    whole(1, clients=clients, samples=samples)
    expect(clients * samples <= _MAX_SAMPLES, f"clients={clients} times samples={samples} <= {_MAX_SAMPLES}")
    key = Key.from_seed(seed, "synthetic")
    x, y = _draw(clients, samples, key.child("train"))
    parts: list[Tensor] = list(torch.arange(len(x)).tensor_split(clients))
    return Task(
        model=linear,
        clients=Population.split(x, y, parts),
        test=_draw(clients, samples, key.child("test")),
        owners=torch.arange(clients).repeat_interleave(samples),
        loss=choose(_LOSSES, loss, "loss"),
        name="synthetic",
        preprocessing=Preprocessing("row", "Inputs are used as they are drawn."),
    )


def hospital_charges(by: Literal["hospital", "zip"] = "hospital", seed: int = 0) -> Task:
    """Predict average payments to US hospitals; hospitals are clients, 70 % of them train.

    The loss is the root mean squared error, as in the paper.

    Args:
        by: a client is a hospital, or all hospitals of a ZIP code.
        seed: seed of the split of clients into 70 % that train and 30 % held out.
    """
    rows_of = _rows_of_clients(by)
    order = torch.randperm(len(rows_of), generator=Key.from_seed(seed, "hospitals").public_generator()).tolist()
    cut = round(0.7 * len(rows_of))
    train = [rows_of[client] for client in sorted(order[:cut])]
    held_out = [rows_of[client] for client in sorted(order[cut:])]
    test, rows = torch.cat(held_out), torch.cat(train)
    parts = list(torch.split(torch.arange(len(rows)), [len(part) for part in train]))
    return Task(
        model=hospital_net,
        clients=Population.split(rows[:, :3], rows[:, 3:], parts),
        test=(test[:, :3], test[:, 3:]),
        owners=owners_of(held_out),
        loss=RootMeanSquared(),
        name="hospital-charges",
        preprocessing=Preprocessing("public", "Conditions and scales are those of the paper."),
    )


def _draw(clients: int, samples: int, key: Key) -> Samples:
    """Samples of all clients, one client after the other."""
    generator = key.public_generator()
    group = (torch.arange(clients) % 2).repeat_interleave(samples)
    x = torch.randn(len(group), 2, generator=generator)
    noise = torch.rand(len(group), generator=generator)
    return x, ((x * THETA[group]).sum(1) + noise)[:, None]


def _rows_of_clients(by: str) -> list[Tensor]:
    """Rows (condition, longitude, latitude, payment) of every hospital or ZIP code, in the order of their numbers."""
    file = CMS_IPPS.files[0]
    table, coordinates = parse_texts(read(file), file.path), _coordinates()
    rows: dict[int, list[list[float]]] = defaultdict(list)
    columns = ("DRG Definition", "Provider Id", "Provider Zip Code", "Average Total Payments")
    for condition, provider, zip_code, payment in zip(*(table[name] for name in columns), strict=True):
        index = CONDITIONS.get(condition[:3])
        if index is not None:
            client = int(provider if by == "hospital" else zip_code)
            target = float(payment.lstrip("$")) / 10_000
            rows[client].append([float(index), *_position(coordinates, zip_code), target])
    return [torch.tensor(rows[client]) for client in sorted(rows)]


def _position(coordinates: dict[str, tuple[float, float]], zip_code: str) -> tuple[float, float]:
    """Position of a ZIP code, which the table of payments writes without leading zeros."""
    padded = zip_code.zfill(5)
    if padded not in coordinates:
        raise DataError(f"Expected coordinates of ZIP code {padded} in {ZIP_LATLON.name}, got none.")
    return coordinates[padded]


def _coordinates() -> dict[str, tuple[float, float]]:
    """Longitude / 100 and latitude / 100 of every ZIP code."""
    file = ZIP_LATLON.files[0]
    table = parse_texts(read(file), file.path)
    rows = zip(table["zip"], table["lon"], table["lat"], strict=True)
    return {zip_code: (float(longitude) / 100, float(latitude) / 100) for zip_code, longitude, latitude in rows}
