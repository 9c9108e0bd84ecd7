"""Accounting of a record or person at unknown clients: the worst choice counts.

A person is at several clients of a run, and a record of several runs at a client of each. Where choices are few, each
is composed tightly. Otherwise the Rényi divergence of each group of clients is bounded, order by order, by the largest
among its clients: for every choice, the divergences are at most the sum of these bounds.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import accumulate, combinations_with_replacement, product

import numpy as np
import numpy.typing as npt

from tacit.core.prices import Adjacency, Release, Sampling
from tacit.privacy.accountants import FAST_PLD, Accountant, Accounting, Pld, Rdp, default_accountant
from tacit.privacy.renyi import RenyiComposition

FINE = Pld(interval=2e-4)  # for guarantees over many steps, where the error of a coarser grid adds up
MANY_STEPS = 1000
MAX_CHOICES = 10  # that are composed one by one
_MAX_COMPARED = 64  # clients of a group that are compared with one another, and of which one is chosen as often

Key = frozenset[tuple[Release, int]]  # what was released about a record of a client, and how often
Group = tuple[frozenset[Key], int]  # the clients of a run, and at how many of them one record, or person, is


def key_of(releases: Counter[Release]) -> Key:
    """The releases in hashable form."""
    return frozenset(releases.items())


def tightest(key: Key, *, fine: bool) -> Accountant:
    """The tightest accountant that can account for all of these releases."""
    accountant = default_accountant(*(release for release, _ in key))
    many = fine and _steps(key) > MANY_STEPS
    return FINE if many and accountant is FAST_PLD else accountant


def accounting_of(key: Key, accountant: Accountant) -> Accounting:
    """These releases, each as a round."""
    return Accounting.of(accountant).compose_all(dict(key), _steps(key))


def _steps(key: Key) -> int:
    return sum(count for _, count in key)


@lru_cache(maxsize=1024)
def worst_choice(groups: tuple[Group, ...], delta: float, *, fine: bool) -> Accounting:
    """The accounting of one record or person, at the clients of each group for which ε at this δ is largest.

    Formal guarantees: for every choice of clients, ε is at most that of the accounting.
    """
    many = any(max(len(clients), picks) > _MAX_COMPARED for clients, picks in groups)
    choices = [] if many else _choices(groups)
    if not choices:
        return _bound(groups)
    composed = (accounting_of(key, tightest(key, fine=fine)) for key in choices)
    return max(composed, key=lambda each: each.epsilon(delta))


def _choices(groups: Iterable[Group]) -> list[Key]:
    """All choices of clients; none if there are many."""
    costly = [(list(drop_dominated(map(Counter, map(dict, clients)))), picks) for clients, picks in groups]
    if math.prod(math.comb(len(clients) + picks - 1, picks) for clients, picks in costly) > MAX_CHOICES:
        return []
    chosen = product(*(combinations_with_replacement(clients, picks) for clients, picks in costly))
    return [key_of(sum((client for group in each for client in group), Counter())) for each in chosen]


def _bound(groups: Sequence[Group]) -> Accounting:
    """The bound by Rényi divergences."""
    releases = {release for clients, _ in groups for key in clients for release, _ in key}
    rdp = Rdp(default_accountant(*releases).adjacency)
    worst = [(_largest(clients, rdp.adjacency), picks) for clients, picks in groups if clients]
    empty = rdp.empty()
    return Accounting(
        rdp,
        replace(empty, divergences=empty.divergences + sum(picks * _divergences(each) for each, picks in worst)),
        rounds=sum(picks * each.rounds for each, picks in worst),
        distance=sum(picks * each.distance for each, picks in worst),
        failure=sum(picks * each.failure for each, picks in worst),
    )


@lru_cache(maxsize=256)
def _largest(clients: frozenset[Key], adjacency: Adjacency) -> Accounting:
    """As if one client of a group had its largest divergence at each order, number of steps, and errors."""
    rdp = Rdp(adjacency)
    accountings = [accounting_of(key, rdp) for key in clients]
    return Accounting(
        rdp,
        replace(rdp.empty(), divergences=np.max([_divergences(each) for each in accountings], axis=0)),
        rounds=max(each.rounds for each in accountings),
        distance=max(each.distance for each in accountings),
        failure=max(each.failure for each in accountings),
    )


def _divergences(accounting: Accounting) -> npt.NDArray[np.float64]:
    assert isinstance(accounting.composition, RenyiComposition)  # as that of `Rdp` is
    return accounting.composition.divergences


def drop_dominated(releases: Iterable[Counter[Release]]) -> Iterator[Counter[Release]]:
    """The releases that no others dominate; of equal ones, one."""
    distinct = {key_of(each): each for each in releases}.values()
    kept: list[Counter[Release]] = []
    for each in sorted(distinct, key=_weight, reverse=True):  # what dominates has at least the weight
        if not any(_dominates(other, each) for other in kept):
            kept.append(each)
            yield each


def _weight(releases: Counter[Release]) -> float:
    return sum(times * release.sampling.rate for release, times in releases.items())


def _dominates(costlier: Counter[Release], other: Counter[Release]) -> bool:
    """Whether the first provably costs at least as much: as many releases of each kind, at rates at least as high.

    At rate q' < q, a release is that at rate q with probability q'/q, and otherwise what it is without the unit: by
    joint convexity it costs no more.
    """
    kinds = {_drop_rate(release) for release in other}
    return all(_at_least(_rates(costlier, kind), _rates(other, kind)) for kind in kinds)


def _drop_rate(release: Release) -> Release:
    return release.sampled(Sampling())


def _rates(releases: Counter[Release], kind: Release) -> list[tuple[float, int]]:
    """The rates of this kind of release, descending, each with the number of releases at it or above."""
    counts = sorted(((each.sampling.rate, n) for each, n in releases.items() if _drop_rate(each) == kind), reverse=True)
    return [(rate, total) for (rate, _), total in zip(counts, accumulate(n for _, n in counts), strict=True)]


def _at_least(costlier: list[tuple[float, int]], other: list[tuple[float, int]]) -> bool:
    return all(max((n for each, n in costlier if each >= rate), default=0) >= total for rate, total in other)
