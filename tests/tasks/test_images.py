import gzip
import hashlib
import math
import random
import struct
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from tacit.core.keys import Key
from tacit.errors import DataError, UserError
from tacit.tasks import datasets, images
from tacit.tasks.datasets import DataSet, File
from tacit.tasks.formats import pack
from tacit.tasks.images import oriented_gradients
from tacit.tasks.sources import CIFAR_10, MNIST


def test_the_embedded_digits_are_those_of_scikit_learn():
    """Digests of `sklearn.datasets.load_digits(return_X_y=True)`, float64 pixels and int64 classes."""
    x, y = images.load_digits()
    pixels, classes = x.reshape(-1, 64).astype(np.float64), y.astype(np.int64)
    assert hashlib.sha256(pixels.tobytes()).hexdigest() == (
        "20def7f70a702f0af9732fbba4375e147a7d54fe70d8c45569b8e7c1c7010c10"
    )
    assert hashlib.sha256(classes.tobytes()).hexdigest() == (
        "a3c91c262eddcf7ba8f0e37507c30284493c9b20412ffe4af30d536401f7ba21"
    )


def test_the_embedded_digits_come_with_their_licence():
    licence = images.DIGITS.with_name("digits.LICENSE.txt").read_text()
    assert "CC BY 4.0" in licence
    assert "The scikit-learn developers" in licence


def test_digits_need_no_files():
    task = images.digits()
    population = task.population
    assert (len(population), set(population.sizes.tolist())) == (100, {15})
    assert task.test is not None
    assert task.public is not None
    assert (len(task.test[0]), len(task.public[0])) == (287, 10)
    assert (float(population.x.min()), float(population.x.max())) == (0.0, 1.0)
    assert task.make_model(Key.from_seed(0))(population.x[:2]).shape == (2, 10)


def test_the_seed_changes_the_partition_and_not_the_test_set():
    one, other, again = images.digits(seed=0), images.digits(seed=1), images.digits(seed=0)
    assert torch.equal(one.population.sample_indices, again.population.sample_indices)
    assert not torch.equal(one.population.sample_indices, other.population.sample_indices)
    assert one.test is not None
    assert other.test is not None
    assert torch.equal(one.test[0], other.test[0])


@pytest.mark.parametrize("partition", ["iid", "shards", "dirichlet"])
def test_partitions_of_digits_cover_the_pool(partition):
    population = images.digits(clients=20, partition=partition).population
    assert torch.equal(population.sample_indices.sort().values, torch.arange(1500))


def test_wrong_arguments():
    with pytest.raises(UserError, match="public=500"):
        images.digits(public=500)
    with pytest.raises(UserError, match="Did you mean 'iid'"):
        images.digits(partition="idd")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="Did you mean 'digits-net'"):
        images.digits(model="digit-net")


def write_idx(folder: Path, path: str, *shape: int) -> File:
    """Classes 0 to 9 in turn, or images that are all different."""
    count, different = math.prod(shape), random.Random(path)
    body = bytes(i % 10 if len(shape) == 1 else different.randrange(10) for i in range(count))
    content = struct.pack(f">BBBB{len(shape)}I", 0, 0, 8, len(shape), *shape) + body
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    (folder / path).write_bytes(gzip.compress(content))
    return File(path, hashlib.sha256(content).hexdigest(), len(content))


@pytest.fixture
def tiny_mnist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DataSet:
    monkeypatch.setenv("TACIT_DATA", str(tmp_path))
    names = [file.path for file in MNIST.files]
    shapes = ((40, 28, 28), (40,), (10, 28, 28), (10,))
    tiny = replace(MNIST, files=tuple(write_idx(tmp_path, n, *s) for n, s in zip(names, shapes, strict=True)))
    monkeypatch.setattr(images, "MNIST", tiny)
    return tiny


def test_mnist_from_files(tiny_mnist):
    task = images.mnist(clients=8)
    assert task.population.sizes.tolist() == [5] * 8
    assert task.population.x.shape == (40, 1, 28, 28)
    assert float(task.population.x.max()) == pytest.approx(9 / 255)
    assert task.population.y.tolist() == [i % 10 for i in range(40)]


def test_mnist_reduced_to_a_pool_with_held_out_and_public_images(tiny_mnist):
    task, whole = images.mnist(clients=4, pool=30, held_out=6, public=4), images.mnist(clients=4)
    assert task.test is not None
    assert task.public is not None
    assert [len(y) for y in (task.population.y, task.test[1], task.public[1])] == [20, 6, 4]
    parts = torch.cat([x for x, _ in (task.test, task.public, (task.population.x, None))]).flatten(1)
    originals = {image.numpy().tobytes() for image in whole.population.x.flatten(1)}
    assert {image.numpy().tobytes() for image in parts} <= originals
    again = images.mnist(clients=4, pool=30, held_out=6, public=4)
    assert torch.equal(again.population.y, task.population.y)
    assert not torch.equal(images.mnist(clients=4, pool=30, seed=1).population.y, images.mnist(4, pool=30).population.y)
    assert whole.public is None
    features = images.mnist(clients=4, public=4, features="oriented-gradients", model="mlp")
    assert features.public is not None
    assert features.public[0].shape == (4, 392)


@pytest.mark.parametrize("wrong", [{"pool": 41}, {"pool": 5, "held_out": 5}, {"public": -1}, {"public": 40}])
def test_mnist_refuses_an_impossible_pool(tiny_mnist, wrong):
    with pytest.raises(UserError, match="held_out"):
        images.mnist(clients=2, **wrong)


def test_many_mnist_clients_share_images(tiny_mnist):
    population = images.mnist(clients=101, partition="shards").population
    assert set(population.sizes.tolist()) == {600}


def test_mnist_refuses_a_changed_file(tiny_mnist, tmp_path):
    file = tiny_mnist.files[1]
    (tmp_path / file.path).write_bytes(gzip.compress(bytes(file.size)))
    with pytest.raises(DataError, match=file.sha256):
        images.mnist(clients=8)


def test_fashion_has_public_images_only_if_mnist_is_present(tiny_mnist, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(datasets, "DEBIAN", tmp_path / "debian")
    monkeypatch.setattr(images, "FASHION_MNIST", tiny_mnist)
    task = images.fashion_mnist(clients=10, samples=2)
    assert task.public is not None
    assert task.public[0].shape == (10, 1, 28, 28)
    monkeypatch.setattr(images, "MNIST", MNIST)  # whose files are renamed below
    for file in MNIST.files[:2]:
        (tmp_path / file.path).rename(tmp_path / f"{file.path}.moved")
    assert images._public_digits(10, Key.from_seed(0)) is None


@pytest.mark.law("real data")
def test_fashion_mnist_as_fl_top_splits_it(data_folder):
    task = images.fashion_mnist()
    assert (len(task.population), set(task.population.sizes.tolist())) == (6000, {10})
    assert torch.bincount(task.population.y).tolist() == [6000] * 10
    assert task.public is not None
    assert len(task.public[0]) == 10


def write_batch(folder: Path, path: str, label: int) -> File:
    """A CIFAR batch of 20 images of one class."""
    content = bytes([label, *([7 * label] * 3072)]) * 20
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    pack(content, folder / path)
    return File(path, hashlib.sha256(content).hexdigest(), len(content), member="batch.bin")


@pytest.fixture
def tiny_cifar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DataSet:
    monkeypatch.setenv("TACIT_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    files = [write_batch(tmp_path, file.path, label) for label, file in enumerate(CIFAR_10.files)]
    tiny = replace(CIFAR_10, files=tuple(files))
    monkeypatch.setattr(images, "CIFAR_10", tiny)
    return tiny


def test_cifar_10_takes_the_batches_that_are_present(tiny_cifar, tmp_path):
    assert images.cifar_10(clients=5).population.y.tolist() == [label for label in range(5) for _ in range(20)]
    for file in tiny_cifar.files[1:4]:
        (tmp_path / file.path).unlink()
    task = images.cifar_10(clients=5)
    assert task.population.x.shape == (40, 3, 32, 32)
    assert task.population.y.tolist() == [0] * 20 + [4] * 20
    assert float(task.population.x.max()) == pytest.approx(28 / 255)
    assert task.test is not None
    assert task.test[1].tolist() == [5] * 20
    (tmp_path / tiny_cifar.files[0].path).unlink()
    (tmp_path / tiny_cifar.files[4].path).unlink()
    with pytest.raises(DataError, match=r"cifar-10/data_batch_1.npz is missing"):
        images.cifar_10()


@pytest.mark.law("real data")
def test_real_batches_of_cifar_10(data_folder):
    """Only this test decompresses a real batch, which takes seconds: its checksum, shape and classes."""
    x, y = images._load_batch("test_batch.npz")
    assert x.shape == (10_000, 3, 32, 32)
    assert torch.bincount(y).tolist() == [1000] * 10
    with np.load(data_folder / CIFAR_10.files[0].path, allow_pickle=False) as first:
        assert first["y"][:10].tolist() == [6, 9, 9, 4, 1, 1, 2, 7, 8, 3]
        assert len(first["y"]) == 10_000


def test_features_need_a_model_that_takes_them(tiny_mnist, monkeypatch):
    with pytest.raises(UserError, match=r"to take features as inputs\. Use softmax-regression"):
        images.mnist(features="oriented-gradients", model="lenet")
    monkeypatch.setattr(images, "FEATURE_BATCH", 16)  # so that the 40 images are several batches
    task = images.mnist(clients=8, features="oriented-gradients", model="softmax-regression")
    assert task.population.x.shape == (40, 392)
    assert task.make_model(Key.from_seed(0))(task.population.x).shape == (40, 10)


def edge(direction: str) -> Tensor:
    """An image with one edge, by the direction of its gradient."""
    image = torch.zeros(1, 1, 28, 28)
    if direction == "right":
        image[..., 14:] = 1
    if direction == "down":
        image[..., 14:, :] = 1
    if direction == "left":
        image[..., :14] = 1
    return image


def test_edges_are_counted_in_the_bin_of_their_direction():
    for direction, expected in (("right", 0), ("down", 2), ("left", 4)):
        histograms = oriented_gradients(edge(direction)).view(8, 7, 7)
        assert int(histograms.sum((1, 2)).argmax()) == expected
        others = torch.tensor([i for i in range(8) if i != expected])
        assert float(histograms[others].abs().max()) < 1e-6


def test_uniform_images_have_no_features():
    assert float(oriented_gradients(torch.full((2, 1, 28, 28), 0.7)).abs().max()) == 0


def test_contrast_hardly_matters():
    strong, weak = oriented_gradients(edge("right")), oriented_gradients(0.5 * edge("right"))
    assert float((strong - weak).norm() / strong.norm()) < 0.5


def test_features_of_a_sample_depend_on_that_sample_only():
    images = torch.rand(5, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    together = oriented_gradients(images)
    alone = torch.cat([oriented_gradients(image[None]) for image in images])
    assert torch.allclose(together, alone, rtol=1.3e-6, atol=1e-5)
    assert together.shape == (5, 392)
    assert bool(torch.isfinite(together).all())


def test_inputs_of_noise_beside_the_pixels(tiny_mnist):
    """The pixels stay, every image has numbers of its own, and another partition has others."""
    with_noise = partial(images.mnist, clients=8, features="pixels-and-noise", model="mlp")
    task = with_noise()
    x = task.population.x
    assert torch.equal(x[:, :784], images.mnist(clients=8).population.x.flatten(1))
    noise = x[:, 784:]
    assert noise.shape == (40, images.IRRELEVANT)
    assert len(noise.unique(dim=0)) == 40
    assert 0 <= float(noise.min()) < 0.05 < 0.95 < float(noise.max()) < 1
    assert abs(float(noise.mean()) - 0.5) < 0.02
    assert not torch.equal(noise, with_noise(seed=1).population.x[:, 784:])
    assert task.make_model(Key.from_seed(0))(x).shape == (40, 10)
