"""Ways to partition a pool of samples among clients.

Each function returns one non-empty int64 index tensor per client, and the same ones for the same key.
Label shards follow McMahan et al. 2017 and, where clients need more samples than there are, Geyer et al. 2017;
Dirichlet label skew follows Hsu et al. 2019.
"""

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from tacit.core.keys import Key
from tacit.core.schema import choose
from tacit.data.population import Population, by_key
from tacit.errors import DataError, expect, positive, whole

__all__ = ["RowParts", "by_key", "dirichlet", "iid", "label_shards", "split_labels", "split_samples"]

RowParts = list[Tensor]
Partition = Literal["iid", "shards", "dirichlet"]


def iid(count: int, clients: int, key: Key, *, samples: int | None = None) -> RowParts:
    """Assign samples at random, in equal parts.

    Args:
        count: samples in the pool.
        clients: number of clients.
        key: randomness of the shuffle.
        samples: samples per client; part of the pool may then stay unused. By default the whole pool is assigned, and
            sizes differ by at most one.

    Returns:
        Disjoint index tensors.

    Example:
        >>> [len(part) for part in iid(10, 3, Key.from_seed(0))]
        [4, 3, 3]
    """
    _expect_enough(count, clients, 1 if samples is None else samples)
    expect(samples != 0, "samples=0 > 0")
    order = torch.randperm(count, generator=key.public_generator())
    if samples is not None:
        order = order[: clients * samples]
    return list(order.tensor_split(clients))


def label_shards(labels: Tensor, clients: int, key: Key, *, shards: int = 2, samples: int | None = None) -> RowParts:
    """Sort by label, cut into shards, and assign each client a few: most clients have few classes.

    If `clients * samples` exceeds the pool, every class is permuted and repeated as often as needed, so that clients
    share samples (and one client may have a sample twice).

    Args:
        labels: classes of the pool.
        clients: number of clients.
        key: randomness of the order within classes and of the assignment of shards.
        shards: shards per client.
        samples: samples per client, a multiple of `shards`. By default the whole pool is cut into `clients * shards`
            shards whose sizes differ by at most one, and parts are disjoint.

    Example:
        >>> parts = label_shards(torch.arange(10).repeat_interleave(6), 10, Key.from_seed(0))
        >>> [len(part) for part in parts] == [6] * 10
        True
    """
    whole(1, shards=shards)
    _expect_enough(len(labels), clients, shards if samples is None else 0)
    if samples is None:
        pool = _by_class(labels, 1, key)
        all_shards = list(pool.tensor_split(clients * shards))
    else:
        expect(samples > 0 and samples % shards == 0, f"samples={samples} to be a multiple of shards={shards}")
        pool = _by_class(labels, -(-clients * samples // len(labels)), key)
        size = samples // shards
        all_shards = [shard for shard in torch.split(pool, size) if len(shard) == size]
    order = torch.randperm(len(all_shards), generator=key.child("deal").public_generator())[: clients * shards]
    return [torch.cat([all_shards[int(shard)] for shard in assigned]) for assigned in order.view(clients, shards)]


def dirichlet(labels: Tensor, clients: int, key: Key, *, alpha: float) -> RowParts:
    """Split each class among the clients in proportions drawn from a symmetric Dirichlet distribution.

    Small `alpha` gives clients of few classes and unequal sizes, large `alpha` is nearly iid. The parts are disjoint
    and cover the pool. A client that would have no data gets one sample of the largest client.

    Example:
        >>> parts = dirichlet(torch.arange(1000) % 10, 5, Key.from_seed(0), alpha=0.1)
        >>> sum(len(part) for part in parts)
        1000
    """
    positive(alpha=alpha)
    _expect_enough(len(labels), clients, 1)
    generator = key.child("dirichlet").public_numpy()
    assigned: list[list[Tensor]] = [[] for _ in range(clients)]
    pool, counts = _by_class(labels, 1, key), torch.unique(labels, return_counts=True)[1]
    for members in torch.split(pool, counts.tolist()):
        proportions = np.nan_to_num(generator.dirichlet(np.full(clients, alpha)))
        boundaries = np.round(np.cumsum(proportions)[:-1] * len(members)).astype(np.int64)
        for own, piece in zip(assigned, members.tensor_split(torch.from_numpy(boundaries)), strict=True):
            own.append(piece)
    return _fill_empty([torch.cat(pieces) for pieces in assigned])


def split_labels(
    labels: Tensor, clients: int, partition: str, alpha: float, samples: int | None, key: Key, shards: int = 2
) -> RowParts:
    """The parts of a pool with these labels, by the name of the way."""
    ways: dict[str, Callable[[], RowParts]] = {
        "iid": lambda: iid(len(labels), clients, key, samples=samples),
        "shards": lambda: label_shards(labels, clients, key, shards=shards, samples=samples),
        "dirichlet": lambda: dirichlet(labels, clients, key, alpha=alpha),
    }
    return choose(ways, partition, "partition")()


def split_samples(
    x: Any,
    y: Any,
    clients: int,
    partition: Partition = "iid",
    *,
    alpha: float = 0.5,
    shards: int = 2,
    samples: int | None = None,
    seed: int = 0,
) -> Population:
    """Your own samples, split among clients as papers do.

    Args:
        x: the inputs, a tensor or an array; they are shared, not copied.
        y: the class of each.
        clients: number of clients.
        partition: `iid`; `shards`, by label, a few per client; or `dirichlet`, by label, in unequal parts.
        alpha: concentration of `dirichlet`: small ones give clients of few classes.
        shards: of each client.
        samples: per client, for `iid` and `shards`; None: all are assigned.
        seed: decides on the split; equal seeds give equal splits.

    Example:
        >>> population = split_samples(torch.rand(60, 3), torch.arange(60) % 3, 10, "shards")
        >>> len(population), {len(y.unique()) <= 2 for _, y in population}
        (10, {True})
    """
    targets = torch.as_tensor(y)
    key = Key.from_seed(seed, "partition")
    return Population.split(x, y, split_labels(targets, clients, partition, alpha, samples, key, shards))


def _by_class(labels: Tensor, repeats: int, key: Key) -> Tensor:
    """Indices of all samples, class by class; each class is repeated in `repeats` fresh permutations."""
    expect(labels.dim() == 1, f"one label per sample, got shape {tuple(labels.shape)}")
    generator = key.child("classes").public_generator()
    pool = []
    for label in torch.unique(labels):
        members = (labels == label).nonzero().flatten()
        pool += [members[torch.randperm(len(members), generator=generator)] for _ in range(repeats)]
    return torch.cat(pool)


def _fill_empty(parts: RowParts) -> RowParts:
    """Give every empty client one sample of the client that is largest at that moment."""
    sizes = torch.tensor([len(part) for part in parts])
    for empty in (sizes == 0).nonzero().flatten().tolist():
        largest = int(sizes.argmax())
        parts[empty], parts[largest] = parts[largest][-1:].clone(), parts[largest][:-1]
        sizes[empty], sizes[largest] = 1, sizes[largest] - 1
    return parts


def _expect_enough(count: int, clients: int, each: int) -> None:
    """Check that there are clients, and at least `each` samples for every one of them."""
    whole(1, clients=clients)
    expect(each >= 0, f"samples={each} > 0")
    needed = max(1, clients * each)
    if count < needed:
        advice = f" Use at most {count // each} clients, or fewer samples per client." if each else ""
        raise DataError(f"Expected at least {needed} samples for {clients} clients, got {count}.{advice}")
