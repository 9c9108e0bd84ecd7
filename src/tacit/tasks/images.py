"""Image tasks: embedded digits, MNIST (also by writer), Fashion-MNIST, CIFAR-10.

Pixels are scaled to [0, 1] and nothing else. Every factory's signature is the schema of its options.
"""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from tacit.core.keys import Key
from tacit.core.schema import choose
from tacit.core.task import Population, Samples, Task
from tacit.errors import DataError, expect
from tacit.tasks import partition as split
from tacit.tasks.datasets import DataSet, locate, read
from tacit.tasks.features import oriented_gradients
from tacit.tasks.formats import image_records, parse_idx
from tacit.tasks.handwriting import LOSSES, ClassLoss, turned
from tacit.tasks.models import find_model
from tacit.tasks.sources import CIFAR_10, FASHION_MNIST, MNIST, QMNIST_WRITERS

Partition = Literal["iid", "shards", "dirichlet"]
Features = Literal["pixels", "oriented-gradients"]


def digits(
    clients: int = 100,
    partition: Partition = "iid",
    alpha: float = 0.5,
    public: int = 10,
    model: str = "digits-net",
    seed: int = 0,
) -> Task:
    """Handwritten digits of 8x8 that come with scikit-learn; needs no download.

    Of 1,797 images, 1,500 are dealt to the clients, `public` are public, the others are held out.

    Args:
        clients: number of clients.
        partition: `iid`, `shards` (two per client) or `dirichlet`.
        alpha: concentration of `dirichlet`.
        public: images that everybody may see, owned by no client.
        model: name of a model for (1, 8, 8) inputs.
        seed: of the split; a run has its own.
    """
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    x = torch.from_numpy(images).float().view(-1, 1, 8, 8) / 16
    y = torch.from_numpy(labels).long()
    expect(0 <= public < 297, f"0 <= public={public} < 297")
    order = torch.randperm(len(x), generator=Key.from_seed(0, "digits").torch())  # the same test set for all
    train, shown, test = order[:1500], order[1500 : 1500 + public], order[1500 + public :]
    parts = _deal(y[train], clients, partition, alpha, None, _key(seed))
    return Task(
        model=find_model(model),
        clients=Population.split(x[train], y[train], parts),
        test=(x[test], y[test]),
        public=(x[shown], y[shown]) if public else None,
        name="digits",
    )


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
    """MNIST digits, dealt at random or by label.

    Args:
        clients: number of clients.
        partition: `iid`; `shards`, two per client; or `dirichlet`.
        samples: images per client for `iid` and `shards`; left out, all there are are dealt, except that
            `shards` gives 600 to each of more than 100 clients, so that they share images (Geyer et al.).
        alpha: concentration of `dirichlet`.
        features: `pixels`, or `oriented-gradients`, 392 numbers that everybody computes alike from an image.
        pool: work with so many of the 60,000 training images, drawn at random; left out, with all.
        held_out: so many of these are the test images; left out, the 10,000 that come with MNIST are.
        public: so many of these everybody may see, and no client owns.
        model: name of a model for (1, 28, 28) inputs, or for as many inputs as there are features.
        seed: of the split.
    """
    aside = (public, held_out or 0)
    shown, own_test, (x, y) = _set_aside(_idx_images(MNIST, "train"), aside, pool, _key(seed).child("pool"))
    test = own_test if held_out else _idx_images(MNIST, "t10k")
    if partition == "shards" and samples is None and clients > 100:
        samples = 600
    parts = _deal(y, clients, partition, alpha, samples, _key(seed))
    make: Callable[..., nn.Module] = find_model(model)
    if features == "oriented-gradients":
        advice = "Take softmax-regression or mlp, or pixels."
        expect("inputs" in inspect.signature(make).parameters, f"model={model!r} to take features as inputs", advice)
        x, test = oriented_gradients(x), (oriented_gradients(test[0]), test[1])
        shown = oriented_gradients(shown[0]), shown[1]
        make = partial(make, inputs=x.shape[1])
    known = shown if public else None
    return Task(model=make, clients=Population.split(x, y, parts), test=test, public=known, name="mnist")


def mnist_writers(
    rotated: bool = False, loss: ClassLoss = "cross-entropy", model: str = "mcmahan-cnn", seed: int = 0
) -> Task:
    """MNIST with its 539 writers as clients; the test images are by 297 others.

    Args:
        rotated: turn all images of half of the writers by 90 degrees, which makes two groups, also in the test.
        loss: `cross-entropy`, or `rmse` between softmax and the right class.
        model: name of a model for (1, 28, 28) inputs.
        seed: of who is turned.
    """
    (x, y), (test_x, test_y) = _idx_images(MNIST, "train"), _idx_images(MNIST, "t10k")
    parts = _by_writer("train", y)
    held_out = _by_writer("test", test_y)
    if rotated:
        key = Key.from_seed(seed, "turned")
        x, test_x = turned(x, parts, key.child("train")), turned(test_x, held_out, key.child("test"))
    owners = torch.empty(len(test_y), dtype=torch.int64)
    for number, part in enumerate(held_out):
        owners[part] = number
    return Task(
        model=find_model(model),
        clients=Population.split(x, y, parts),
        test=(test_x, test_y),
        owners=owners,
        loss=choose(LOSSES, loss, "loss"),
        name="mnist-writers",
    )


def fashion_mnist(
    clients: int = 6000,
    samples: int | None = 10,
    partition: Partition = "iid",
    alpha: float = 0.5,
    public: int = 10,
    model: str = "mcmahan-cnn",
    seed: int = 0,
) -> Task:
    """Fashion-MNIST as FL-TOP splits it: 6,000 clients of 10 images, and 10 MNIST images in public.

    The public images are there if MNIST is; otherwise the task has none.

    Args:
        clients: number of clients.
        samples: images per client; `none` deals all 60,000. `dirichlet` takes no notice of it.
        partition: `iid`, `shards` or `dirichlet`.
        alpha: concentration of `dirichlet`.
        public: MNIST images that everybody may see; 0 for none.
        model: name of a model for (1, 28, 28) inputs.
        seed: of the split.
    """
    (x, y), test = _idx_images(FASHION_MNIST, "train"), _idx_images(FASHION_MNIST, "t10k")
    parts = _deal(y, clients, partition, alpha, samples, _key(seed))
    return Task(
        model=find_model(model),
        clients=Population.split(x, y, parts),
        test=test,
        public=_public_digits(public, _key(seed).child("public")),
        name="fashion-mnist",
    )


def cifar_10(
    clients: int = 100,
    partition: Partition = "iid",
    samples: int | None = None,
    shards: int = 2,
    alpha: float = 0.5,
    model: str = "mobilenet-v2",
    seed: int = 0,
) -> Task:
    """CIFAR-10; as many of its five training batches as are present.

    The population says how many images there are: 20,000 with two batches, 50,000 with all.

    Args:
        clients: number of clients.
        partition: `iid`, `shards` or `dirichlet`.
        samples: images per client for `iid` and `shards`; left out, all are dealt.
        shards: per client, each mostly of one class.
        alpha: concentration of `dirichlet`.
        model: name of a model for (3, 32, 32) inputs.
        seed: of the split.
    """
    train = [file for file in CIFAR_10.files if "data_batch" in file.name and locate(file)]
    batches = [_batch(file.name) for file in train] or [_batch("data_batch_1.npz")]
    x, y = (torch.cat(column) for column in zip(*batches, strict=True))
    parts = _deal(y, clients, partition, alpha, samples, _key(seed), shards)
    return Task(
        model=find_model(model),
        clients=Population.split(x, y, parts),
        test=_batch("test_batch.npz"),
        name="cifar-10",
    )


def _deal(
    y: Tensor, clients: int, partition: str, alpha: float, samples: int | None, key: Key, shards: int = 2
) -> split.Parts:
    """Split by one of the three ways."""
    ways: dict[str, Callable[[], split.Parts]] = {
        "iid": lambda: split.iid(len(y), clients, key, samples=samples),
        "shards": lambda: split.label_shards(y, clients, key, shards=shards, samples=samples),
        "dirichlet": lambda: split.dirichlet(y, clients, key, alpha=alpha),
    }
    return choose(ways, partition, "partition")()


def _set_aside(samples: Samples, counts: tuple[int, ...], pool: int | None, key: Key) -> list[Samples]:
    """So many samples for each count, then the rest of the pool; in their own order if nothing is left out."""
    x, y = samples
    for count in counts:
        expect(count >= 0, f"public and held_out of {count} >= 0")
    size = len(y) if pool is None else pool
    expect(sum(counts) < size <= len(y), f"public + held_out = {sum(counts)} < pool = {size} <= {len(y)}")
    order = torch.arange(len(y))
    if size < len(y) or any(counts):
        order = torch.randperm(len(y), generator=key.torch())[:size]
    return [(x[part], y[part]) for part in torch.split(order, [*counts, size - sum(counts)])]


def _key(seed: int) -> Key:
    return Key.from_seed(seed, "partition")


def _by_writer(part: str, y: Tensor) -> split.Parts:
    """Every writer's images, by QMNIST's table of `train` or of `test`, which begins with MNIST's own images."""
    file = QMNIST_WRITERS.file(f"qmnist-{part}-labels-idx2-int.gz")
    rows = parse_idx(read(file), file.path)[: len(y)]
    if rows.shape != (len(y), 8) or not np.array_equal(rows[:, 0], y.numpy()):
        raise DataError(f"Expected {file.path} to label the {len(y):,} MNIST images, but its classes differ.")
    return split.by_key(rows[:, 2])


def _idx_images(data: DataSet, part: str) -> Samples:
    """Images (count, 1, 28, 28) in [0, 1] and labels of `train` or `t10k`."""
    image_file, label_file = (data.file(f"{part}-{what}-ubyte.gz") for what in ("images-idx3", "labels-idx1"))
    images = parse_idx(read(image_file), image_file.path)
    labels = parse_idx(read(label_file), label_file.path)
    return _pixels(images[:, None]), torch.from_numpy(labels.astype(np.int64))


def _batch(name: str) -> Samples:
    """One CIFAR batch."""
    labels, images = image_records(read(CIFAR_10.file(name)))
    return _pixels(images), torch.from_numpy(labels.astype(np.int64))


def _pixels(images: NDArray[Any]) -> Tensor:
    return torch.from_numpy(images).float().div_(255)


def _public_digits(count: int, key: Key) -> Samples | None:
    """A few MNIST images, if MNIST is there."""
    expect(count >= 0, f"public={count} >= 0")
    if count == 0 or any(locate(file) is None for file in MNIST.files[:2]):
        return None
    x, y = _idx_images(MNIST, "train")
    some = torch.randperm(len(x), generator=key.torch())[:count]
    return x[some], y[some]
