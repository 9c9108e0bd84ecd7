"""Who owns which samples: ways to deal one pool out to clients.

Each function returns one int64 index tensor per client, never an empty one, and the same for the same key.
Label shards follow McMahan et al. 2017 and, where the clients outnumber the data, Geyer et al. 2017;
Dirichlet label skew follows Hsu et al. 2019.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from tacit.core.keys import Key
from tacit.errors import DataError, expect

Parts = list[Tensor]


def iid(count: int, clients: int, key: Key, *, samples: int | None = None) -> Parts:
    """Deal samples at random, in equal parts.

    Args:
        count: samples in the pool.
        clients: parts to make.
        key: the stream that shuffles.
        samples: samples per client; some of the pool may then stay unused. Without it the whole pool is
            dealt, and sizes differ by at most one.

    Returns:
        Disjoint index tensors.

    Example:
        >>> [len(part) for part in iid(10, 3, Key.from_seed(0))]
        [4, 3, 3]
    """
    _expect_enough(count, clients, 1 if samples is None else samples)
    expect(samples != 0, "samples=0 > 0")
    order = torch.randperm(count, generator=key.torch())
    if samples is not None:
        order = order[: clients * samples]
    return list(order.tensor_split(clients))


def label_shards(labels: Tensor, clients: int, key: Key, *, shards: int = 2, samples: int | None = None) -> Parts:
    """Sort by label, cut into shards, and deal each client a few: most clients see few classes.

    Where `clients * samples` exceeds the pool, every class is permuted and repeated as often as needed, so
    clients share samples (and one client may hold a sample twice).

    Args:
        labels: class numbers of the pool.
        clients: parts to make.
        key: the stream that shuffles within classes and deals shards.
        shards: shards per client.
        samples: samples per client, a multiple of `shards`. Without it the whole pool is cut into
            `clients * shards` shards of equal size up to one, and parts are disjoint.

    Example:
        >>> parts = label_shards(torch.arange(10).repeat_interleave(6), 10, Key.from_seed(0))
        >>> [len(part) for part in parts] == [6] * 10
        True
    """
    expect(shards > 0, f"shards={shards} > 0")
    _expect_enough(len(labels), clients, shards if samples is None else 0)
    if samples is None:
        pool = _by_class(labels, 1, key)
        pieces = list(pool.tensor_split(clients * shards))
    else:
        expect(samples > 0 and samples % shards == 0, f"samples={samples} to be a multiple of shards={shards}")
        pool = _by_class(labels, -(-clients * samples // len(labels)), key)
        pieces = [piece for piece in torch.split(pool, samples // shards) if len(piece) == samples // shards]
    deal = torch.randperm(len(pieces), generator=key.child("deal").torch())[: clients * shards]
    return [torch.cat([pieces[int(piece)] for piece in hand]) for hand in deal.view(clients, shards)]


def dirichlet(labels: Tensor, clients: int, key: Key, *, alpha: float) -> Parts:
    """Split each class over the clients in proportions drawn from a symmetric Dirichlet distribution.

    Small `alpha` gives clients of few classes and unequal sizes, large `alpha` is nearly iid. The parts are
    disjoint and cover the pool. A client left without data takes one sample from the largest.

    Example:
        >>> parts = dirichlet(torch.arange(1000) % 10, 5, Key.from_seed(0), alpha=0.1)
        >>> sum(len(part) for part in parts)
        1000
    """
    expect(alpha > 0, f"alpha={alpha} > 0")
    _expect_enough(len(labels), clients, 1)
    draw = key.child("dirichlet").numpy()
    hands: list[list[Tensor]] = [[] for _ in range(clients)]
    pool, counts = _by_class(labels, 1, key), torch.unique(labels, return_counts=True)[1]
    for mine in torch.split(pool, counts.tolist()):
        share = np.nan_to_num(draw.dirichlet(np.full(clients, alpha)))
        cuts = np.round(np.cumsum(share)[:-1] * len(mine)).astype(np.int64)
        for hand, piece in zip(hands, mine.tensor_split(torch.from_numpy(cuts)), strict=True):
            hand.append(piece)
    return _none_empty([torch.cat(hand) for hand in hands])


def by_key(keys: Tensor | np.ndarray | Sequence[str]) -> Parts:
    """One client per distinct value of a natural key (writer, hospital), in the order of the values.

    Example:
        >>> [part.tolist() for part in by_key(["b", "a", "b"])]
        [[1], [0, 2]]
    """
    values = np.asarray(keys)
    expect(values.ndim == 1, f"one key per sample, got an array of shape {values.shape}")
    if len(values) == 0:
        raise DataError("Expected at least one sample to split by key, got none.")
    _, owner, counts = np.unique(values, return_inverse=True, return_counts=True)
    order = torch.from_numpy(np.argsort(owner, kind="stable").astype(np.int64))
    return list(torch.split(order, counts.tolist()))


def _by_class(labels: Tensor, repeats: int, key: Key) -> Tensor:
    """All sample numbers, class after class; each class is `repeats` fresh permutations of itself."""
    expect(labels.dim() == 1, f"one label per sample, got shape {tuple(labels.shape)}")
    chance = key.child("classes").torch()
    pool = []
    for label in torch.unique(labels):
        mine = (labels == label).nonzero().flatten()
        pool += [mine[torch.randperm(len(mine), generator=chance)] for _ in range(repeats)]
    return torch.cat(pool)


def _none_empty(parts: Parts) -> Parts:
    """Give every empty client one sample of the client that then has most."""
    sizes = torch.tensor([len(part) for part in parts])
    for poor in (sizes == 0).nonzero().flatten().tolist():
        rich = int(sizes.argmax())
        parts[poor], parts[rich] = parts[rich][-1:].clone(), parts[rich][:-1]
        sizes[poor], sizes[rich] = 1, sizes[rich] - 1
    return parts


def _expect_enough(count: int, clients: int, each: int) -> None:
    """There are clients, there is data, and it is enough for all if nothing is shared."""
    expect(clients > 0, f"clients={clients} > 0")
    expect(each >= 0, f"samples={each} > 0")
    if count < max(1, clients * each):
        advice = f" Take at most {count // each} clients, or fewer samples for each." if each else ""
        raise DataError(f"Expected {clients} clients to share {clients * each} samples or more, got {count}.{advice}")
