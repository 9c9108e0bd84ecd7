import gzip
import hashlib
import struct
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tacit.core.keys import Key
from tacit.errors import DataError, UserError
from tacit.tasks import datasets, images
from tacit.tasks.datasets import DataSet, File
from tacit.tasks.sources import MNIST


def test_digits_need_no_files():
    task = images.digits()
    people = task.population
    assert (len(people), set(people.sizes.tolist())) == (100, {15})
    assert task.test is not None
    assert task.public is not None
    assert (len(task.test[0]), len(task.public[0])) == (287, 10)
    assert (float(people.x.min()), float(people.x.max())) == (0.0, 1.0)
    assert task.make_model(Key.from_seed(0))(people.x[:2]).shape == (2, 10)


def test_seed_changes_the_split_and_not_the_test_set():
    one, other, again = images.digits(seed=0), images.digits(seed=1), images.digits(seed=0)
    assert torch.equal(one.population.owned, again.population.owned)
    assert not torch.equal(one.population.owned, other.population.owned)
    assert one.test is not None
    assert other.test is not None
    assert torch.equal(one.test[0], other.test[0])


@pytest.mark.parametrize("partition", ["iid", "shards", "dirichlet"])
def test_partitions_of_digits_cover_the_pool(partition):
    people = images.digits(clients=20, partition=partition).population
    assert torch.equal(people.owned.sort().values, torch.arange(1500))


def test_wrong_arguments():
    with pytest.raises(UserError, match="public=500"):
        images.digits(public=500)
    with pytest.raises(UserError, match="Did you mean 'iid'"):
        images.digits(partition="idd")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="Did you mean 'digits-net'"):
        images.digits(model="digit-net")


def written(folder: Path, path: str, *shape: int) -> File:
    body = bytes(i % 10 for i in range(int(torch.tensor(shape).prod())))
    content = struct.pack(f">BBBB{len(shape)}I", 0, 0, 8, len(shape), *shape) + body
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    (folder / path).write_bytes(gzip.compress(content))
    return File(path, hashlib.sha256(content).hexdigest(), len(content))


@pytest.fixture
def tiny_mnist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DataSet:
    monkeypatch.setenv("TACIT_DATA", str(tmp_path))
    names = [file.path for file in MNIST.files]
    shapes = ((40, 28, 28), (40,), (10, 28, 28), (10,))
    tiny = replace(MNIST, files=tuple(written(tmp_path, n, *s) for n, s in zip(names, shapes, strict=True)))
    monkeypatch.setattr(images, "MNIST", tiny)
    return tiny


def test_mnist_from_files(tiny_mnist):
    task = images.mnist(clients=8)
    assert task.population.sizes.tolist() == [5] * 8
    assert task.population.x.shape == (40, 1, 28, 28)
    assert float(task.population.x.max()) == pytest.approx(9 / 255)
    assert task.population.y.tolist() == [i % 10 for i in range(40)]


def test_mnist_can_be_cut_to_a_pool_with_images_held_out_and_public(tiny_mnist):
    task, whole = images.mnist(clients=4, pool=30, held_out=6, public=4), images.mnist(clients=4)
    assert task.test is not None
    assert task.public is not None
    assert [len(y) for y in (task.population.y, task.test[1], task.public[1])] == [20, 6, 4]
    parts = torch.cat([x for x, _ in (task.test, task.public, (task.population.x, None))]).flatten(1)
    everything = {image.numpy().tobytes() for image in whole.population.x.flatten(1)}
    assert {image.numpy().tobytes() for image in parts} <= everything
    again = images.mnist(clients=4, pool=30, held_out=6, public=4)
    assert torch.equal(again.population.y, task.population.y)
    assert not torch.equal(images.mnist(clients=4, pool=30, seed=1).population.y, images.mnist(4, pool=30).population.y)
    assert whole.public is None
    features = images.mnist(clients=4, public=4, features="oriented-gradients", model="mlp")
    assert features.public is not None
    assert features.public[0].shape == (4, 392)


@pytest.mark.parametrize("wrong", [{"pool": 41}, {"pool": 5, "held_out": 5}, {"public": -1}, {"public": 40}])
def test_mnist_refuses_a_pool_that_cannot_be(tiny_mnist, wrong):
    with pytest.raises(UserError, match="held_out"):
        images.mnist(clients=2, **wrong)


def test_mnist_clients_share_images_when_there_are_many(tiny_mnist):
    people = images.mnist(clients=101, partition="shards").population
    assert set(people.sizes.tolist()) == {600}


def test_mnist_refuses_a_changed_file(tiny_mnist, tmp_path):
    file = tiny_mnist.files[1]
    (tmp_path / file.path).write_bytes(gzip.compress(bytes(file.size)))
    with pytest.raises(DataError, match=file.sha256):
        images.mnist(clients=8)


def test_fashion_has_public_images_only_if_mnist_is_there(tiny_mnist, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(datasets, "DEBIAN", tmp_path / "debian")
    monkeypatch.setattr(images, "FASHION_MNIST", tiny_mnist)
    task = images.fashion_mnist(clients=10, samples=2)
    assert task.public is not None
    assert task.public[0].shape == (10, 1, 28, 28)
    monkeypatch.setattr(images, "MNIST", MNIST)  # right names, but the real ones are elsewhere
    for file in MNIST.files[:2]:
        (tmp_path / file.path).rename(tmp_path / f"{file.path}.away")
    assert images._public_digits(10, Key.from_seed(0)) is None


def test_mnist_writers(data_folder):
    task = images.mnist_writers()
    sizes = task.population.sizes
    assert (len(sizes), int(sizes.min()), int(sizes.max()), int(sizes.median())) == (539, 19, 131, 116)
    assert task.test is not None
    assert torch.bincount(task.test[1]).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]


def test_fashion_mnist_as_fl_top_splits_it(data_folder):
    task = images.fashion_mnist()
    assert (len(task.population), set(task.population.sizes.tolist())) == (6000, {10})
    assert torch.bincount(task.population.y).tolist() == [6000] * 10
    assert task.public is not None
    assert len(task.public[0]) == 10


def test_cifar_10_takes_the_batches_that_are_there(data_folder, monkeypatch):
    monkeypatch.setattr(images, "locate", lambda file: "data_batch_1" in file.name)  # unpacking takes seconds
    task = images.cifar_10()
    assert task.population.x.shape == (10_000, 3, 32, 32)
    assert task.population.y[:10].tolist() == [6, 9, 9, 4, 1, 1, 2, 7, 8, 3]
    assert task.test is not None
    assert torch.bincount(task.test[1]).tolist() == [1000] * 10


def test_features_need_a_model_that_takes_them(data_folder):
    with pytest.raises(UserError, match=r"to take features as inputs\. Take softmax-regression"):
        images.mnist(features="oriented-gradients", model="lenet")
    task = images.mnist(features="oriented-gradients", model="softmax-regression")
    assert task.population.x.shape == (60_000, 392)
