"""Handwriting with writers as clients: FEMNIST from LEAF's files, and MNIST by writer as a substitute.

Galli et al. 2023, section 5.3: every writer is a client, and all images of half of the writers are rotated by 90
degrees counter-clockwise, which makes two groups. A tenth of the writers is held out.
"""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from tacit.core import files
from tacit.core.keys import Key
from tacit.core.losses import CrossEntropy, Loss, RootBrier
from tacit.core.schema import choose
from tacit.data.population import owners_of
from tacit.data.task import Task
from tacit.errors import DataError, expect, within
from tacit.tasks import partition as partitions
from tacit.tasks.datasets import data_folders, read
from tacit.tasks.formats import parse_idx
from tacit.tasks.images import image_task, load_idx
from tacit.tasks.models import find_model
from tacit.tasks.sources import MNIST, QMNIST_WRITERS

ClassLoss = Literal["cross-entropy", "rmse"]
_LOSSES: dict[str, Loss] = {"cross-entropy": CrossEntropy(), "rmse": RootBrier()}
PIXELS, CLASSES = 784, 62
MAX_LEAF = 1 << 29  # bytes of one of LEAF's files; Python needs about eight times as many to parse it


def mnist_writers(
    rotated: bool = False, loss: ClassLoss = "cross-entropy", model: str = "mcmahan-cnn", seed: int = 0
) -> Task:
    """MNIST with its 539 writers as clients; the test images are by 297 other writers.

    Args:
        rotated: rotate all images of half of the writers by 90 degrees, which makes two groups, also in the test set.
        loss: `cross-entropy`, or `rmse` between the softmax outputs and the one-hot class.
        model: name of a model for (1, 28, 28) inputs.
        seed: seed of the choice of rotated writers.
    """
    (x, y), (test_x, test_y) = load_idx(MNIST, "train"), load_idx(MNIST, "t10k")
    parts = _by_writer("train", y)
    held_out = _by_writer("test", test_y)
    if rotated:
        key = Key.from_seed(seed, "turned")
        x, test_x = rotate_half(x, parts, key.child("train")), rotate_half(test_x, held_out, key.child("test"))
    owners = torch.empty(len(test_y), dtype=torch.int64)
    for writer, part in enumerate(held_out):
        owners[part] = writer
    test, criterion = (test_x, test_y), choose(_LOSSES, loss, "loss")
    return image_task("mnist-writers", find_model(model), (x, y), parts, test, owners=owners, loss=criterion)


def femnist(
    folder: str = "femnist",
    rotated: bool = True,
    held_out: float = 0.1,
    loss: ClassLoss = "cross-entropy",
    model: str = "femnist-cnn",
    seed: int = 0,
) -> Task:
    """FEMNIST by writer, from the JSON files of LEAF's preprocessing; half of the writers are rotated.

    Args:
        folder: folder of the files, at any depth: a path, or a name below `$TACIT_DATA` or the cache folder. A writer
            who occurs in several files, as in LEAF's train and test, has the samples of all of them.
        rotated: rotate all images of half of the writers.
        held_out: fraction of the writers that is held out.
        loss: `cross-entropy`, or `rmse` between the softmax outputs and the one-hot class.
        model: name of a model for (1, 28, 28) inputs and 62 classes.
        seed: seed of the choice of rotated and of held-out writers.
    """
    within("(0, 1)", held_out=held_out)
    x, y, parts = read_leaf(_find_folder(folder))
    expect(len(parts) >= 2, f"at least 2 writers in {folder}, got {len(parts)}")
    key = Key.from_seed(seed, "femnist")
    if rotated:
        x = rotate_half(x, parts, key.child("turned"))
    order = torch.randperm(len(parts), generator=key.child("held out").public_generator()).tolist()
    cut = min(max(round(held_out * len(parts)), 1), len(parts) - 1)
    others, train = [parts[i] for i in sorted(order[:cut])], [parts[i] for i in sorted(order[cut:])]
    rows, criterion = torch.cat(others), choose(_LOSSES, loss, "loss")
    test, owners = (x[rows], y[rows]), owners_of(others)
    return image_task("femnist", find_model(model), (x, y), train, test, owners=owners, loss=criterion)


def rotate_half(x: Tensor, parts: list[Tensor], key: Key) -> Tensor:
    """A copy with all images of half of the writers, chosen at random, rotated by 90 degrees counter-clockwise."""
    chosen = torch.randperm(len(parts), generator=key.public_generator())[: len(parts) // 2].tolist()
    x = x.clone()
    for writer in chosen:
        x[parts[writer]] = torch.rot90(x[parts[writer]], 1, (2, 3))
    return x


def read_leaf(folder: Path) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Images (count, 1, 28, 28), classes, and every writer's indices, in the order of the writers' names."""
    images: dict[str, list[np.ndarray]] = defaultdict(list)
    labels: dict[str, list[np.ndarray]] = defaultdict(list)
    for file in sorted(folder.rglob("*.json")):
        for writer, (x, y) in _parse(file).items():
            images[writer].append(x)
            labels[writer].append(y)
    writers = [writer for writer in sorted(images) if sum(map(len, labels[writer]))]
    if not writers:
        raise DataError(f"Expected samples in LEAF's JSON files in {folder}, got none.")
    sizes = [sum(map(len, labels[writer])) for writer in writers]
    x = np.concatenate([array for writer in writers for array in images[writer]])
    y = np.concatenate([array for writer in writers for array in labels[writer]])
    parts = list(torch.split(torch.arange(len(y)), sizes))
    return torch.from_numpy(x).view(-1, 1, 28, 28), torch.from_numpy(y), parts


def _parse(file: Path) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Every writer's pixels and classes in one file; another format is a `DataError`."""
    try:
        table = json.loads(files.read(file, error=DataError, limit=MAX_LEAF))
        return {str(writer): _arrays(table["user_data"][writer]) for writer in table["users"]}
    except DataError:
        raise
    except (ValueError, KeyError, TypeError, IndexError, ArithmeticError, RecursionError) as error:
        raise DataError(
            f"Expected {file} in LEAF's format of FEMNIST, with users and user_data of x ({PIXELS} numbers each) and y "
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


def _find_folder(name: str) -> Path:
    candidates = [place / name for place in data_folders()]  # an absolute path remains what it is
    leaf_folder = next((folder for folder in candidates if any(folder.rglob("*.json"))), None)
    if leaf_folder is None:
        raise DataError(
            f"Expected LEAF's FEMNIST in {', '.join(map(str, candidates))}, but there is no JSON file. Generate it "
            "with LEAF (github.com/TalwalkarLab/leaf, data/femnist, preprocess.sh) and put its data folder there, or "
            "set folder."
        )
    return leaf_folder


def _by_writer(part: str, y: Tensor) -> partitions.RowParts:
    """Every writer's images, from QMNIST's table of `train` or `test`, which begins with the images of MNIST."""
    file = QMNIST_WRITERS.file(f"qmnist-{part}-labels-idx2-int.gz")
    rows = parse_idx(read(file), file.path)[: len(y)]
    if rows.shape != (len(y), 8) or not np.array_equal(rows[:, 0], y.numpy()):
        raise DataError(f"Expected {file.path} to label the {len(y):,} MNIST images, but its classes differ.")
    return partitions.by_key(rows[:, 2])
