"""Whether a sampler draws cohorts as it declares, which a claim of amplification assumes."""

from collections.abc import Iterator
from math import sqrt

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom, norm

from tacit.attacks.claims import SAMPLER_ALPHA
from tacit.core import Key
from tacit.core.interfaces import Sampler
from tacit.core.prices import Sampling

_DRAWS = 500
PAIRED = 64  # clients whose pairs are all tested, in the first rounds
PAIRED_ROUNDS = 4
FAR = float(norm.isf(1e-6))  # standard deviations; there are at most a few dozen such tests
Cohorts = NDArray[np.bool_]  # (draws, rounds, population)


def sampler_problems(sampler: Sampler, population: int, rounds: int, key: Key) -> tuple[str, ...]:
    """Differences between the cohorts of many draws and the declaration, in words; usually none.

    Formal guarantees: a sampler that draws as it declares is reported with a probability of at most 0.005.
    """
    cohorts, repeated = np.zeros((_DRAWS, rounds, population), dtype=bool), 0
    for draw in range(_DRAWS):
        for index in range(rounds):
            cohort = sampler.cohort(population, index, key.child("sampler", draw).child("round", index).child("cohort"))
            cohorts[draw, index, cohort.numpy()] = True
            repeated += len(set(cohort.tolist())) < len(cohort)
    declared = [sampler.sampling(population, index) for index in range(rounds)]
    twice = (f"{repeated} of {_DRAWS * rounds} cohorts contain a client more than once",) if repeated else ()
    tests = (_inclusion, _sizes, _repetition, _dependence)
    return (*twice, *(problem for test in tests for problem in test(cohorts, declared)))


def _inclusion(cohorts: Cohorts, declared: list[Sampling]) -> Iterator[str]:
    """Every client is in the declared part of the cohorts."""
    draws, rounds, population = cohorts.shape
    for index, sampling in enumerate(declared):
        counts = cohorts[:, index].sum(0)
        tails = np.minimum(binom.cdf(counts, draws, sampling.rate), binom.sf(counts - 1, draws, sampling.rate))
        client = int(tails.argmin())
        if 2 * tails[client] < SAMPLER_ALPHA / 2 / (rounds * population):
            yield (
                f"client {client} was in {counts[client]} of {draws} cohorts of round {index + 1}, "
                f"where the sampler declares a rate of {sampling.rate:.3g}"
            )
            return


def _sizes(cohorts: Cohorts, declared: list[Sampling]) -> Iterator[str]:
    """Sizes vary as declared under Poisson sampling, and are fixed otherwise."""
    draws, _, population = cohorts.shape
    for index, sampling in enumerate(declared):
        sizes, rate = cohorts[:, index].sum(1), sampling.rate
        if sampling.kind != "poisson":
            if sizes.min() != sizes.max():
                yield f"cohorts of round {index + 1} have {sizes.min()} to {sizes.max()} clients, not a fixed number"
                return
            continue
        variance = population * rate * (1 - rate)
        squares = float(((sizes - population * rate) ** 2).mean()) / variance
        deviation = sqrt((2 + (1 - 6 * rate * (1 - rate)) / variance) / draws)
        if abs(squares - 1) > (FAR + 2) * deviation:
            yield (
                f"the variance of cohort sizes in round {index + 1} is {squares:.2g} times that of independent coins, "
                "which the sampler declares"
            )
            return


def _repetition(cohorts: Cohorts, declared: list[Sampling]) -> Iterator[str]:
    """Cohorts of different rounds, and of different keys, do not resemble each other."""
    for first in range(cohorts.shape[1]):
        for second in range(first, cohorts.shape[1]):
            a, b = declared[first], declared[second]
            if a.rate == 1 or b.rate == 1:
                continue
            same = first == second  # compare draws with draws, each of them once
            left, right = (cohorts[::2], cohorts[1::2]) if same else (cohorts, cohorts)
            left, right = left[:, first], right[:, second]
            excess = float((left & right).sum(1).mean()) - cohorts.shape[2] * a.rate * b.rate
            if abs(excess) > FAR * sqrt(_overlap_variance(cohorts.shape[2], a, b) / len(left)):
                which = f"two runs in round {first + 1}" if same else f"rounds {first + 1} and {second + 1}"
                yield f"the cohorts of {which} share {'more' if excess > 0 else 'fewer'} clients than independent ones"
                return


def _dependence(cohorts: Cohorts, declared: list[Sampling]) -> Iterator[str]:
    """No two clients are drawn together, in one round or in two, more or less often than by independent draws."""
    included = cohorts[:, :PAIRED_ROUNDS, :PAIRED].astype(np.int32)
    draws, rounds, clients = included.shape
    random = [index for index in range(rounds) if declared[index].rate < 1]
    chosen = [(a, b) for a in random for b in random if a <= b]
    for first, second in chosen:
        a, b = declared[first], declared[second]
        expected = a.rate * b.rate
        if first == second and a.kind == "fixed":
            expected = a.rate * max(a.rate * cohorts.shape[2] - 1, 0) / max(cohorts.shape[2] - 1, 1)
        together = included[:, first].T @ included[:, second]
        tails = np.minimum(binom.cdf(together, draws, expected), binom.sf(together - 1, draws, expected))
        if first == second:
            tails[np.tril_indices(clients)] = 1.0  # every pair once
        one, other = np.unravel_index(int(tails.argmin()), tails.shape)
        if 2 * tails[one, other] < SAMPLER_ALPHA / 4 / (len(chosen) * tails.size):
            yield (
                f"client {one} in round {first + 1} and client {other} in round {second + 1} were drawn together "
                f"{together[one, other]} times in {draws}, where independent draws have {draws * expected:.3g}"
            )
            return


def _overlap_variance(population: int, first: Sampling, second: Sampling) -> float:
    """Of the number of clients that two independent cohorts share."""
    p, q = first.rate, second.rate
    if first.kind == second.kind == "fixed":
        return population * p * q * (1 - p) * (1 - q) * population / max(population - 1, 1)
    return population * p * q * (1 - p * q)
