"""Hospital charges: what a service costs, by place and kind (Galli et al. 2023, section 5.2).

From the payments of US hospitals in 2011 the four most widely treated conditions are kept: DRG 194 (simple
pneumonia), 690 (kidney and urinary tract infections), 292 (heart failure and shock), 392 (esophagitis and
digestive disorders), each with complications where the DRG says so. Inputs are an index 0 to 3 of the
condition, longitude / 100 and latitude / 100 of the hospital's ZIP code; the target is the average total
payment / 10,000. Nothing is standardised, since a client could not know the mean of all.

The paper counts 2,947 clients. In this table 3,151 hospitals have at least one of the four conditions (3,062 two,
2,964 three, 2,738 all four), in 2,948 ZIP codes. So the paper's clients were probably ZIP codes, one of them
without coordinates; `by="zip"` makes that population.
"""

from collections import defaultdict
from typing import Literal

import torch
from torch import Tensor

from tacit.core.keys import Key
from tacit.core.losses import RootMeanSquared
from tacit.core.task import Population, Task
from tacit.errors import DataError
from tacit.tasks.datasets import read
from tacit.tasks.formats import parse_csv
from tacit.tasks.models import hospital_net
from tacit.tasks.sources import CMS_IPPS, ZIP_LATLON

CONDITIONS = {"194": 0, "690": 1, "292": 2, "392": 3}


def hospital_charges(by: Literal["hospital", "zip"] = "hospital", seed: int = 0) -> Task:
    """Predict average payments of US hospitals; hospitals are clients, 70 % of them train.

    The loss is the root of the mean squared error, as in the paper.

    Args:
        by: a client is a hospital, or all hospitals of a ZIP code.
        seed: of the split of clients into 70 % that train and 30 % held out.
    """
    everyone = _everyone(by)
    order = torch.randperm(len(everyone), generator=Key.from_seed(seed, "hospitals").torch()).tolist()
    cut = round(0.7 * len(everyone))
    train = [everyone[number] for number in sorted(order[:cut])]
    others = [everyone[number] for number in sorted(order[cut:])]
    test, rows = torch.cat(others), torch.cat(train)
    parts = list(torch.split(torch.arange(len(rows)), [len(part) for part in train]))
    return Task(
        model=hospital_net,
        clients=Population.split(rows[:, :3], rows[:, 3:], parts),
        test=(test[:, :3], test[:, 3:]),
        owners=torch.arange(len(others)).repeat_interleave(torch.tensor([len(part) for part in others])),
        loss=RootMeanSquared(),
        name="hospital-charges",
    )


def _everyone(by: str) -> list[Tensor]:
    """Rows (index, longitude, latitude, payment) of every hospital or ZIP code, in the order of their numbers."""
    file = CMS_IPPS.files[0]
    table, places = parse_csv(read(file), file.path), _places()
    rows: dict[int, list[list[float]]] = defaultdict(list)
    names = ("DRG Definition", "Provider Id", "Provider Zip Code", "Average Total Payments")
    for condition, provider, code, payment in zip(*(table[name] for name in names), strict=True):
        index = CONDITIONS.get(condition[:3])
        if index is not None:
            owner = int(provider if by == "hospital" else code)
            cost = float(payment.lstrip("$")) / 10_000
            rows[owner].append([float(index), *_place(places, code), cost])
    return [torch.tensor(rows[owner]) for owner in sorted(rows)]


def _place(places: dict[str, tuple[float, float]], code: str) -> tuple[float, float]:
    """Where a ZIP code is; the table writes them without leading zeros."""
    if code.zfill(5) not in places:
        raise DataError(f"Expected a place for ZIP code {code.zfill(5)} in {ZIP_LATLON.name}, got none.")
    return places[code.zfill(5)]


def _places() -> dict[str, tuple[float, float]]:
    """Longitude / 100 and latitude / 100 of every ZIP code."""
    file = ZIP_LATLON.files[0]
    table = parse_csv(read(file), file.path)
    places = zip(table["zip"], table["lon"], table["lat"], strict=True)
    return {code: (float(longitude) / 100, float(latitude) / 100) for code, longitude, latitude in places}
