"""Image tasks: embedded digits, MNIST, Fashion-MNIST, CIFAR-10; and oriented gradients as public features.

Pixels are scaled to [0, 1] and not transformed otherwise. Every factory's signature is the schema of its options.
"""

import inspect
from collections.abc import Callable
from functools import partial
from math import pi
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from tacit.core.keys import Key
from tacit.core.losses import Loss
from tacit.data.task import Population, Preprocessing, Samples, Task
from tacit.errors import expect, whole
from tacit.tasks import partition as partitions
from tacit.tasks.datasets import DataSet, locate, read
from tacit.tasks.formats import image_records, parse_idx
from tacit.tasks.models import find_model
from tacit.tasks.partition import Partition
from tacit.tasks.sources import CIFAR_10, FASHION_MNIST, MNIST

Features = Literal["pixels", "oriented-gradients", "pixels-and-noise"]
DIGITS = Path(__file__).with_name("digits.npz")  # licence and attribution in digits.LICENSE.txt
SCALED_PIXELS = Preprocessing("row", "Pixels are divided by their largest possible value.")
CELL = 4  # side of a histogram's cell, in pixels
IRRELEVANT = 196  # inputs of noise beside 784 pixels: a fifth of all
FEATURE_BATCH = 4096  # images whose features are computed at once, which bounds memory


def digits(
    clients: int = 100,
    partition: Partition = "iid",
    alpha: float = 0.5,
    public: int = 10,
    model: str = "digits-net",
    seed: int = 0,
) -> Task:
    """Handwritten digits of 8x8 pixels, embedded in the package; needs no download.

    Of 1,797 images, 1,500 are the clients', `public` are public, and the others are the test set.

    Args:
        clients: number of clients.
        partition: `iid`, `shards` (two per client) or `dirichlet`.
        alpha: concentration of `dirichlet`.
        public: number of public images, which no client owns.
        model: name of a model for (1, 8, 8) inputs.
        seed: seed of the partition; a run has its own seed.

    Reference: Alpaydin, Kaynak. Optical Recognition of Handwritten Digits. UCI Machine Learning Repository, 1998.
    """
    images, labels = load_digits()
    x = torch.from_numpy(images).float().view(-1, 1, 8, 8) / 16
    y = torch.from_numpy(labels).long()
    expect(0 <= public < 297, f"0 <= public={public} < 297")
    generator = Key.from_seed(0, "digits").public_generator()  # the same test set for every seed
    order = torch.randperm(len(x), generator=generator)
    train, public_part, test = order[:1500], order[1500 : 1500 + public], order[1500 + public :]
    parts = partitions.split_labels(y[train], clients, partition, alpha, None, _key(seed))
    of_public = (x[public_part], y[public_part]) if public else None
    return image_task("digits", find_model(model), (x[train], y[train]), parts, (x[test], y[test]), public=of_public)


def mnist(
    clients: int = 100,
    partition: Partition = "iid",
    samples: int | None = None,
    alpha: float = 0.5,
    features: Features = "pixels",
    pool: int | None = None,
    held_out: int | None = None,
    public: int = 0,
    model: str = "mcmahan-cnn",
    seed: int = 0,
) -> Task:
    """MNIST digits, split among clients at random or by label.

    Args:
        clients: number of clients.
        partition: `iid`; `shards`, two per client; or `dirichlet`.
        samples: images per client for `iid` and `shards`. By default all images are assigned, except that `shards`
            gives 600 to each of more than 100 clients, which then share images (Geyer et al.).
        alpha: concentration of `dirichlet`.
        features: `pixels`; `oriented-gradients`: 392 features, a public function of each image; or `pixels-and-noise`:
            the pixels and 196 numbers that say nothing about the digit.
        pool: use only this many of the 60,000 training images, drawn at random; by default all.
        held_out: this many images of the pool are the test set; by default the 10,000 test images of MNIST are.
        public: this many images of the pool are public, and no client owns them.
        model: name of a model for (1, 28, 28) inputs, or for as many inputs as there are features.
        seed: seed of the partition.
    """
    make: Callable[..., nn.Module] = find_model(model)
    conversions: dict[str, Callable[[Tensor], Tensor]] = {
        "oriented-gradients": oriented_gradients,
        "pixels-and-noise": partial(_with_noise, key=_key(seed)),
    }
    convert = conversions.get(features)
    if convert is not None:
        advice = "Use softmax-regression or mlp, or features=pixels."
        expect("inputs" in inspect.signature(make).parameters, f"model={model!r} to take features as inputs", advice)
    reserved = (public, held_out or 0)
    public_images, own_test, (x, y) = _reserve(load_idx(MNIST, "train"), reserved, pool, _key(seed).child("pool"))
    test = own_test if held_out else load_idx(MNIST, "t10k")
    if partition == "shards" and samples is None and clients > 100:
        samples = 600
    parts = partitions.split_labels(y, clients, partition, alpha, samples, _key(seed))
    if convert is not None:
        (x, y), test, public_images = ((convert(images), labels) for images, labels in ((x, y), test, public_images))
        make = partial(make, inputs=x.shape[1])
    return image_task("mnist", make, (x, y), parts, test, public=public_images if public else None)


def fashion_mnist(
    clients: int = 6000,
    samples: int | None = 10,
    partition: Partition = "iid",
    alpha: float = 0.5,
    public: int = 10,
    model: str = "mcmahan-cnn",
    seed: int = 0,
) -> Task:
    """Fashion-MNIST as FL-TOP splits it: 6,000 clients of 10 images, and 10 public MNIST images.

    Without MNIST the task has no public images.

    Args:
        clients: number of clients.
        samples: images per client; `none` assigns all 60,000. `dirichlet` ignores it.
        partition: `iid`, `shards` or `dirichlet`.
        alpha: concentration of `dirichlet`.
        public: number of public MNIST images.
        model: name of a model for (1, 28, 28) inputs.
        seed: seed of the partition.
    """
    (x, y), test = load_idx(FASHION_MNIST, "train"), load_idx(FASHION_MNIST, "t10k")
    parts = partitions.split_labels(y, clients, partition, alpha, samples, _key(seed))
    digits = _public_digits(public, _key(seed).child("public"))
    return image_task("fashion-mnist", find_model(model), (x, y), parts, test, public=digits)


def cifar_10(
    clients: int = 100,
    partition: Partition = "iid",
    samples: int | None = None,
    shards: int = 2,
    alpha: float = 0.5,
    model: str = "mobilenet-v2",
    seed: int = 0,
) -> Task:
    """CIFAR-10, with those of its five training batches that are present.

    There are 10,000 training images per batch: 20,000 with two batches, 50,000 with all.

    Args:
        clients: number of clients.
        partition: `iid`, `shards` or `dirichlet`.
        samples: images per client for `iid` and `shards`; by default all are assigned.
        shards: shards per client, each mostly of one class.
        alpha: concentration of `dirichlet`.
        model: name of a model for (3, 32, 32) inputs.
        seed: seed of the partition.
    """
    train = [file for file in CIFAR_10.files if "data_batch" in file.name and locate(file)]
    batches = [_load_batch(file.name) for file in train] or [_load_batch("data_batch_1.npz")]
    x, y = (torch.cat(column) for column in zip(*batches, strict=True))
    parts = partitions.split_labels(y, clients, partition, alpha, samples, _key(seed), shards)
    return image_task("cifar-10", find_model(model), (x, y), parts, _load_batch("test_batch.npz"))


def image_task(
    name: str,
    model: Callable[[], nn.Module],
    samples: Samples,
    parts: partitions.RowParts,
    test: Samples,
    *,
    public: Samples | None = None,
    owners: Tensor | None = None,
    loss: Loss | None = None,
) -> Task:
    """A task on images with scaled pixels, partitioned among clients."""
    return Task(
        model=model,
        clients=Population.split(*samples, parts),
        test=test,
        owners=owners,
        loss=loss,
        public=public,
        name=name,
        preprocessing=SCALED_PIXELS,
    )


def oriented_gradients(images: Tensor, *, bins: int = 8) -> Tensor:
    """Histograms of oriented gradients (HOG): features that are a public function of each image and cost no privacy.

    A linear model on good features has far fewer weights than a network on pixels, and with differential privacy the
    noise grows with the number of weights. Gradients are central differences; each pixel's magnitude is split between
    the two nearest of `bins` directions, averaged over cells of 4 by 4 pixels, and divided by the magnitude of the
    neighbourhood.

    Args:
        images: (samples, 1, height, width) in [0, 1].
        bins: number of directions.

    Returns:
        (samples, bins · cells): 392 for 28 by 28 pixels and 8 directions.

    Reference: Dalal, Triggs. Histograms of Oriented Gradients for Human Detection. CVPR 2005.

    Example:
        >>> oriented_gradients(torch.rand(3, 1, 28, 28)).shape
        torch.Size([3, 392])
    """
    return torch.cat([_histograms(batch, bins) for batch in torch.split(images, FEATURE_BATCH)])


def _with_noise(images: Tensor, key: Key) -> Tensor:
    """The pixels of each image and uniform numbers in [0, 1), which are independent of everything else."""
    noise = torch.rand(len(images), IRRELEVANT, generator=key.child(f"noise of {len(images)}").public_generator())
    return torch.cat([images.flatten(1), noise], dim=1)


def load_digits() -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """The embedded digits: images (1797, 8, 8) with values from 0 to 16, and their classes."""
    with np.load(DIGITS, allow_pickle=False) as arrays:
        return arrays["x"], arrays["y"]


def load_idx(data: DataSet, part: str) -> Samples:
    """Images (count, 1, 28, 28) in [0, 1] and labels of `train` or `t10k`."""
    image_file, label_file = (data.file(f"{part}-{kind}-ubyte.gz") for kind in ("images-idx3", "labels-idx1"))
    images = parse_idx(read(image_file), image_file.path)
    labels = parse_idx(read(label_file), label_file.path)
    return _scale_pixels(images[:, None]), torch.from_numpy(labels.astype(np.int64))


def _histograms(images: Tensor, bins: int) -> Tensor:
    padded = F.pad(images, (1, 1, 1, 1), mode="replicate")
    dx = padded[:, :, 1:-1, 2:] - padded[:, :, 1:-1, :-2]
    dy = padded[:, :, 2:, 1:-1] - padded[:, :, :-2, 1:-1]
    magnitude = torch.hypot(dx, dy)
    angle = torch.atan2(dy, dx) * (bins / (2 * pi)) % bins
    distance = (angle - torch.arange(bins).view(1, -1, 1, 1)).abs()
    share = (1 - torch.minimum(distance, bins - distance)).clamp(min=0)
    cells = F.avg_pool2d(magnitude * share, CELL)
    energy = F.avg_pool2d(cells.square().sum(1, keepdim=True), 3, stride=1, padding=1, count_include_pad=False)
    return (cells / (energy.sqrt() + 0.05)).flatten(1)


def _reserve(samples: Samples, counts: tuple[int, int], pool: int | None, key: Key) -> list[Samples]:
    """Disjoint random subsets of these sizes, then the rest of the pool; the original order if nothing is left out."""
    x, y = samples
    expect(min(counts) >= 0, f"public and held_out of {min(counts)} >= 0")
    size = len(y) if pool is None else pool
    expect(sum(counts) < size <= len(y), f"public + held_out = {sum(counts)} < pool = {size} <= {len(y)}")
    order = torch.arange(len(y))
    if size < len(y) or any(counts):
        order = torch.randperm(len(y), generator=key.public_generator())[:size]
    return [(x[part], y[part]) for part in torch.split(order, [*counts, size - sum(counts)])]


def _key(seed: int) -> Key:
    return Key.from_seed(seed, "partition")


def _load_batch(name: str) -> Samples:
    labels, images = image_records(read(CIFAR_10.file(name)))
    return _scale_pixels(images), torch.from_numpy(labels.astype(np.int64))


def _scale_pixels(images: NDArray[Any]) -> Tensor:
    return torch.from_numpy(images).float().div_(255)


def _public_digits(count: int, key: Key) -> Samples | None:
    """Random MNIST images, if MNIST is present."""
    whole(0, public=count)
    if count == 0 or any(locate(file) is None for file in MNIST.files[:2]):
        return None
    x, y = load_idx(MNIST, "train")
    chosen = torch.randperm(len(x), generator=key.public_generator())[:count]
    return x[chosen], y[chosen]
