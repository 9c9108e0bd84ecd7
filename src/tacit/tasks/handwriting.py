"""Handwriting by writer, some of it turned: FEMNIST as LEAF writes it, and MNIST by its writers in its place.

Galli et al. 2023, Section 5.3: every writer is a client, and all images of half of the writers are turned by 90 degrees
counter-clockwise, so that there are two groups. A tenth of the writers is held out.
"""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from tacit.core.keys import Key
from tacit.core.losses import CrossEntropy, Loss, RootBrier
from tacit.core.schema import choose
from tacit.core.task import Population, Task
from tacit.errors import DataError, expect
from tacit.tasks.datasets import folders
from tacit.tasks.models import find_model

ClassLoss = Literal["cross-entropy", "rmse"]
LOSSES: dict[str, Loss] = {"cross-entropy": CrossEntropy(), "rmse": RootBrier()}
PIXELS, CLASSES = 784, 62


def femnist(
    folder: str = "femnist",
    rotated: bool = True,
    held_out: float = 0.1,
    loss: ClassLoss = "cross-entropy",
    model: str = "femnist-cnn",
    seed: int = 0,
) -> Task:
    """FEMNIST by writer, from the JSON files that LEAF's preprocessing writes; half of the writers turned.

    Args:
        folder: where the files lie, at any depth: a path, or a name below `$TACIT_DATA` or the cache folder. A writer
            that stands in several files, as in LEAF's train and test, has the samples of all.
        rotated: turn all images of half of the writers.
        held_out: the part of the writers that is held out.
        loss: `cross-entropy`, or `rmse` between softmax and the right class.
        model: name of a model for (1, 28, 28) inputs and 62 classes.
        seed: of who is turned and who is held out.
    """
    expect(0 < held_out < 1, f"held_out={held_out:g} in (0, 1)")
    x, y, parts = read_leaf(_folder(folder))
    expect(len(parts) >= 2, f"at least 2 writers in {folder}, got {len(parts)}")
    key = Key.from_seed(seed, "femnist")
    if rotated:
        x = turned(x, parts, key.child("turned"))
    order = torch.randperm(len(parts), generator=key.child("held out").torch()).tolist()
    cut = min(max(round(held_out * len(parts)), 1), len(parts) - 1)
    others, train = [parts[i] for i in sorted(order[:cut])], [parts[i] for i in sorted(order[cut:])]
    test = torch.cat(others)
    return Task(
        model=find_model(model),
        clients=Population.split(x, y, train),
        test=(x[test], y[test]),
        owners=torch.arange(len(others)).repeat_interleave(torch.tensor([len(part) for part in others])),
        loss=choose(LOSSES, loss, "loss"),
        name="femnist",
    )


def turned(x: Tensor, parts: list[Tensor], key: Key) -> Tensor:
    """Images with those of half of the writers turned by 90 degrees counter-clockwise."""
    chosen = torch.randperm(len(parts), generator=key.torch())[: len(parts) // 2].tolist()
    x = x.clone()
    for writer in chosen:
        x[parts[writer]] = torch.rot90(x[parts[writer]], 1, (2, 3))
    return x


def read_leaf(folder: Path) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Images (count, 1, 28, 28), classes, and every writer's indices, in the order of their names."""
    images: dict[str, list[np.ndarray]] = defaultdict(list)
    labels: dict[str, list[np.ndarray]] = defaultdict(list)
    for file in sorted(folder.rglob("*.json")):
        for writer, (x, y) in _parsed(file).items():
            images[writer].append(x)
            labels[writer].append(y)
    writers = [writer for writer in sorted(images) if sum(map(len, labels[writer]))]
    if not writers:
        raise DataError(f"Expected samples in LEAF's JSON files in {folder}, got none.")
    sizes = [sum(map(len, labels[writer])) for writer in writers]
    x = np.concatenate([piece for writer in writers for piece in images[writer]])
    y = np.concatenate([piece for writer in writers for piece in labels[writer]])
    parts = list(torch.split(torch.arange(len(y)), sizes))
    return torch.from_numpy(x).view(-1, 1, 28, 28), torch.from_numpy(y), parts


def _parsed(file: Path) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Every writer's pixels and classes in one file; anything but LEAF's format is a `DataError`."""
    try:
        table = json.loads(file.read_bytes())
        return {str(writer): _arrays(table["user_data"][writer]) for writer in table["users"]}
    except OSError as error:
        raise DataError(f"Could not read {file}: {error.strerror}.") from error
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"Expected {file} as LEAF writes FEMNIST, with users and user_data of x ({PIXELS} numbers each) and y "
            f"(classes 0 to {CLASSES - 1}): {error}."
        ) from error


def _arrays(data: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    x = np.asarray(data["x"], dtype=np.float32).reshape(-1, PIXELS)
    y = np.asarray(data["y"], dtype=np.int64).reshape(-1)
    if len(x) != len(y):
        raise ValueError(f"{len(x)} images but {len(y)} classes")
    if len(y) and not 0 <= y.min() <= y.max() < CLASSES:
        raise ValueError(f"classes {y.min()} to {y.max()}")
    return x, y


def _folder(name: str) -> Path:
    """The folder of this name or path."""
    places = [place / name for place in folders()]  # a path of its own stays what it is
    found = next((place for place in places if any(place.rglob("*.json"))), None)
    if found is None:
        raise DataError(
            f"Expected LEAF's FEMNIST in {', '.join(map(str, places))}, but there is no JSON file. Make it with LEAF "
            "(github.com/TalwalkarLab/leaf, data/femnist, preprocess.sh) and put its data folder there, or give folder."
        )
    return found
