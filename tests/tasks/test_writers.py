import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import torch

import tacit
from tacit.core import RootBrier
from tacit.core.keys import Key
from tacit.errors import DataError
from tacit.tasks import writers
from tacit.tasks.images import load_idx
from tacit.tasks.writers import femnist, mnist_writers, read_leaf, rotate_half


def leaf(**counts_and_labels: tuple[int, int]) -> dict[str, object]:
    """A file in LEAF's format: for each writer this many images of one class."""
    data = {
        name: {"x": [[number / 10 + i / 1000 for i in range(784)] for number in range(count)], "y": [label] * count}
        for name, (count, label) in counts_and_labels.items()
    }
    counts = [count for count, _ in counts_and_labels.values()]
    return {"users": list(data), "num_samples": counts, "user_data": data}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TACIT_DATA", str(tmp_path))
    for part, content in (("train", leaf(f0001=(3, 61), f0002=(2, 0), f0003=(4, 35))), ("test", leaf(f0001=(1, 61)))):
        (tmp_path / "femnist" / part).mkdir(parents=True)
        (tmp_path / "femnist" / part / f"all_data_0_{part}.json").write_text(json.dumps(content))
    return tmp_path


def test_files_of_leaf(folder):
    x, y, parts = read_leaf(folder / "femnist")
    assert x.shape == (10, 1, 28, 28)
    assert [y[part].tolist() for part in parts] == [[61] * 4, [0] * 2, [35] * 4]
    assert x[0, 0, 27, 27] == pytest.approx(0.783)
    assert x[int(parts[1][1]), 0, 0, 1] == pytest.approx(0.101)


def test_femnist(folder):
    task = femnist(held_out=0.34, loss="rmse")
    assert len(task.population) == 2
    assert task.loss == RootBrier()
    assert task.owners is not None
    assert task.owners.unique().tolist() == [0]
    assert tacit.tasks.TASKS["femnist"].ready
    run = tacit.train(tacit.methods.ifca(rounds=1, cohort=2), task, workers=1, randomness="seeded")
    assert run.state.weights.shape == (2, 1_206_590)


def test_half_of_the_writers_are_rotated():
    x = torch.arange(4 * 784.0).view(4, 1, 28, 28)
    parts = [torch.tensor([0]), torch.tensor([1]), torch.tensor([2]), torch.tensor([3])]
    after = rotate_half(x, parts, Key.from_seed(0))
    unchanged = [number for number in range(4) if torch.equal(after[number], x[number])]
    assert len(unchanged) == 2
    for number in set(range(4)) - set(unchanged):
        assert after[number, 0, 0, 0] == x[number, 0, 0, 27]  # counter-clockwise: the right column becomes the top row


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"{", "in LEAF's format of FEMNIST"),
        (b'{"users": ["a"]}', "user_data"),
        (json.dumps(leaf(a=(1, 62))).encode(), "classes 62 to 62"),
        (b'{"users": ["a"], "user_data": {"a": {"x": [[1, 2]], "y": [0]}}}', "reshape"),
        (b'{"users": [], "user_data": {}}', "Expected samples"),
    ],
)
def test_other_formats_are_refused(tmp_path, content, words):
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(DataError, match=words):
        read_leaf(tmp_path)


def test_without_files(tmp_path, monkeypatch):
    monkeypatch.setenv("TACIT_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert not tacit.tasks.TASKS["femnist"].ready
    with pytest.raises(DataError, match=r"no JSON file\. Generate it with LEAF"):
        femnist()


@pytest.fixture(scope="module")
def mnist_data(real_data: Path) -> Iterator[None]:
    """The real images, read once for all tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TACIT_DATA", str(real_data))
        patch.setattr(writers, "load_idx", cache(load_idx))
        yield


@pytest.mark.law("real data")
def test_mnist_writers(mnist_data):
    task = mnist_writers()
    sizes = task.population.sizes
    assert (len(sizes), int(sizes.min()), int(sizes.max()), int(sizes.median())) == (539, 19, 131, 116)
    assert task.test is not None
    assert torch.bincount(task.test[1]).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]


@pytest.mark.law("real data")
def test_mnist_writers_in_two_groups(mnist_data):
    plain, task = (mnist_writers(rotated=rotated) for rotated in (False, True))
    changed = [not torch.equal(plain.population[i][0], task.population[i][0]) for i in range(539)]
    assert sum(changed) == 269
    assert task.owners is not None
    assert plain.owners is not None
    assert len(task.owners.unique()) == 297
    assert task.owners.bincount().tolist() == plain.owners.bincount().tolist()
    assert plain.test is not None
    assert task.test is not None
    moved = (plain.test[0] != task.test[0]).flatten(1).any(1)
    assert len(task.owners[moved].unique()) == 148
