from typing import Literal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.core.keys import Key
from tacit.errors import UserError
from tacit.tasks.partition import by_key, dirichlet, iid, label_shards, split_samples

KEY = Key.from_seed(7)
quick = settings(max_examples=50, deadline=None)
pools = st.tuples(st.integers(1, 12), st.integers(1, 200)).flatmap(
    lambda size: st.lists(st.integers(0, size[0] - 1), min_size=size[1], max_size=size[1])
)


def exactly_once(parts: list[torch.Tensor], count: int) -> bool:
    return torch.equal(torch.cat(parts).sort().values, torch.arange(count))


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@quick
@given(st.integers(1, 50), st.integers(0, 500), st.integers(0, 9))
def test_iid_covers_the_pool_in_equal_parts(clients, extra, seed):
    key, count = Key.from_seed(seed), clients + extra
    parts = iid(count, clients, key)
    sizes = [len(part) for part in parts]
    assert exactly_once(parts, count)
    assert max(sizes) - min(sizes) <= 1
    assert same(parts, iid(count, clients, key))


@quick
@given(st.integers(1, 20), st.integers(1, 20), st.integers(0, 50))
def test_iid_with_samples_is_disjoint(clients, samples, extra):
    parts = iid(clients * samples + extra, clients, KEY, samples=samples)
    assert [len(part) for part in parts] == [samples] * clients
    assert len(torch.cat(parts).unique()) == clients * samples


@quick
@given(pools, st.data())
def test_shards_cover_the_pool(pool, data):
    labels = torch.tensor(pool)
    shards = data.draw(st.integers(1, min(3, len(pool))))
    clients = data.draw(st.integers(1, len(pool) // shards))
    parts = label_shards(labels, clients, KEY, shards=shards)
    assert exactly_once(parts, len(pool))
    assert min(len(part) for part in parts) > 0
    assert same(parts, label_shards(labels, clients, KEY, shards=shards))


@quick
@given(pools, st.integers(1, 40), st.integers(1, 30))
def test_shards_repeat_if_clients_need_more_samples_than_there_are(pool, clients, half):
    parts = label_shards(torch.tensor(pool), clients, KEY, samples=2 * half)
    assert [len(part) for part in parts] == [2 * half] * clients
    uses = torch.bincount(torch.cat(parts), minlength=len(pool))
    assert int(uses.max()) <= -(-clients * 2 * half // len(pool))


@pytest.mark.parametrize("clients", [100, 1000, 10_000])
def test_geyer_populations(clients):
    labels = torch.arange(60_000) % 10
    parts = label_shards(labels, clients, KEY, samples=600)
    assert {len(part) for part in parts} == {600}
    uses = torch.bincount(torch.cat(parts), minlength=60_000)
    assert set(uses.tolist()) == {clients // 100}
    assert max(len(labels[part].unique()) for part in parts) <= 2


@quick
@given(pools, st.floats(1e-4, 100), st.data())
def test_dirichlet_covers_the_pool_and_leaves_no_client_empty(pool, alpha, data):
    labels, clients = torch.tensor(pool), data.draw(st.integers(1, len(pool)))
    parts = dirichlet(labels, clients, KEY, alpha=alpha)
    assert exactly_once(parts, len(pool))
    assert min(len(part) for part in parts) > 0
    assert same(parts, dirichlet(labels, clients, KEY, alpha=alpha))


def test_alpha_controls_the_label_skew():
    labels = torch.arange(20_000) % 10
    classes = [
        sum(len(labels[part].unique()) for part in dirichlet(labels, 20, KEY, alpha=alpha))
        for alpha in (0.01, 0.3, 1000.0)
    ]
    assert classes[0] < classes[1] < classes[2] == 200


@quick
@given(st.lists(st.text("abc", max_size=2), min_size=1, max_size=60))
def test_by_key_gives_each_value_one_client(keys):
    parts = by_key(keys)
    assert exactly_once(parts, len(keys))
    assert [{keys[i] for i in part.tolist()} for part in parts] == [{key} for key in sorted(set(keys))]


def test_another_key_gives_another_partition():
    labels, other = torch.arange(100) % 10, Key.from_seed(8)
    assert not same(iid(100, 10, KEY), iid(100, 10, other))
    assert not same(label_shards(labels, 10, KEY), label_shards(labels, 10, other))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda: iid(5, 6, KEY), "got 5"),
        (lambda: iid(5, 0, KEY), "clients=0 >= 1"),
        (lambda: iid(5, 2, KEY, samples=3), "at least 6 samples for 2 clients, got 5"),
        (lambda: iid(5, 2, KEY, samples=0), "samples=0 > 0"),
        (lambda: label_shards(torch.zeros(5), 3, KEY), "got 5"),
        (lambda: label_shards(torch.zeros(5), 3, KEY, samples=3), "multiple of shards=2"),
        (lambda: label_shards(torch.zeros(0), 3, KEY, samples=2), "got 0"),
        (lambda: dirichlet(torch.zeros(5), 3, KEY, alpha=0.0), "alpha=0.0 > 0"),
        (lambda: dirichlet(torch.zeros(5), 6, KEY, alpha=1.0), "at most 5 clients"),
        (lambda: by_key([]), "at least one sample"),
    ],
)
def test_impossible_partitions_are_refused(wrong, words):
    with pytest.raises(UserError, match=words):
        wrong()


@pytest.mark.parametrize("partition", ["iid", "shards", "dirichlet"])
def test_own_samples_are_split_by_a_seed(partition: Literal["iid", "shards", "dirichlet"]) -> None:
    x, y = np.random.default_rng(0).normal(size=(90, 2)), np.arange(90) % 3
    first, again, other = (split_samples(x, y, 9, partition, seed=seed) for seed in (1, 1, 2))
    assert len(first) == 9
    assert int(first.sizes.sum()) == 90
    assert torch.equal(first.sample_indices, again.sample_indices)
    assert not torch.equal(first.sample_indices, other.sample_indices)
    with pytest.raises(UserError, match="partition"):
        split_samples(x, y, 9, "random")  # type: ignore[arg-type]
