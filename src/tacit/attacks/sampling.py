"""Whether cohorts and batches are drawn as they are declared, which a claim of amplification assumes."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import sqrt
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import binom, norm
from torch import Tensor

from tacit.attacks.claims import SAMPLER_ALPHA
from tacit.core import ClientKeys, ClientRound, Key, Method, View
from tacit.core.interfaces import Sampler
from tacit.core.prices import Sampling, Unit
from tacit.core.rows import ClippedSum
from tacit.core.wave import EmptyWave

_DRAWS = 500
PAIRED = 64  # clients whose pairs are all tested, in the first rounds
PAIRED_ROUNDS = 4
FAR = float(norm.isf(1e-6))  # standard deviations; there are at most a few dozen such tests
Cohorts = NDArray[np.bool_]  # (draws, rounds, population)


@dataclass(frozen=True)
class _Words:
    """What is drawn, into what, and when."""

    member: str
    group: str
    time: str
    who: str


_COHORT_WORDS = _Words("client", "cohort", "round", "sampler")


def sampler_problems(sampler: Sampler, population: int, rounds: int, key: Key) -> tuple[str, ...]:
    """Differences between the cohorts of many draws and the declaration, in words; usually none.

    Formal guarantees: a sampler that draws as it declares is reported with a probability of at most 0.005.
    """
    drawn = (
        [
            sampler.cohort(population, index, key.child("sampler", draw).child("round", index).child("cohort"))
            for index in range(rounds)
        ]
        for draw in range(_DRAWS)
    )
    declared = [sampler.sampling(population, index) for index in range(rounds)]
    return _problems(drawn, declared, population, _COHORT_WORDS)


def batch_problems(method: Method, unit: Unit, samples: int, key: Key) -> tuple[str, ...]:
    """The same about the batches of a client with this many records or persons, in the first steps of a round."""
    if not unit.within_client:
        return ()
    price = method.terms.price(unit, samples=samples)
    repeated = None if price is None else price.accounted
    if repeated is None:
        return ()
    view = View(torch.zeros(4), {}, torch.arange(0, 4, 2) if method.trainer.masked else None)
    declared = [repeated.release.sampling] * min(repeated.times, PAIRED_ROUNDS)

    def draw(number: int) -> list[Tensor]:
        asked = _Batches(((4,),), samples)
        method.trainer.train(view, asked, _round(method, key.child("batches", number)))
        return asked.batches[: len(declared)]

    return _problems(map(draw, range(_DRAWS)), declared, samples, _Words(str(unit), "batch", "step", "trainer"))


@dataclass(frozen=True)
class _Batches(EmptyWave):
    """A client whose records have gradients of zero, and which remembers the batches it was asked for."""

    count: int
    batches: list[Tensor] = field(default_factory=list)
    clients: ClassVar[Tensor] = torch.zeros(1, dtype=torch.int64)

    @property
    def units(self) -> Tensor:  # type: ignore[override]
        return torch.tensor([self.count])

    samples = units

    def clipped_sums(
        self, weights: Tensor, batches: Sequence[Tensor], clip: float, mask: Tensor | None
    ) -> list[ClippedSum]:
        self.batches.extend(batches)
        zero = torch.zeros(weights.shape[-1] if mask is None else len(mask), dtype=torch.float64)
        return [ClippedSum(zero.clone(), torch.zeros(len(batch), dtype=torch.float64)) for batch in batches]

    def keep(self, which: Tensor) -> "_Batches":
        return self


def _round(method: Method, key: Key) -> ClientRound:
    shared, population = Key.from_seed(0, "shared"), max(method.channel.min_cohort, 1)
    return ClientRound(0, population, float(population), population, shared, ClientKeys(key))


def _problems(
    drawn: Iterable[Sequence[Tensor]], declared: Sequence[Sampling], members: int, words: _Words
) -> tuple[str, ...]:
    groups, repeated = np.zeros((_DRAWS, len(declared), members), dtype=bool), 0
    for draw, of_times in enumerate(drawn):
        for index, group in enumerate(of_times):
            groups[draw, index, group.numpy()] = True
            repeated += len(set(group.tolist())) < len(group)
    count = _DRAWS * len(declared)
    many = f"{repeated} of {count} {_plural(words.group)} contain a {words.member} more than once"
    tests = (_inclusion, _sizes, _repetition, _dependence)
    return (*(many,) * (repeated > 0), *(problem for test in tests for problem in test(groups, declared, words)))


def _plural(word: str) -> str:
    return f"{word}es" if word.endswith("ch") else f"{word}s"


def _inclusion(cohorts: Cohorts, declared: Sequence[Sampling], words: _Words) -> Iterator[str]:
    """Every client is in the declared part of the cohorts."""
    draws, rounds, population = cohorts.shape
    for index, sampling in enumerate(declared):
        counts = cohorts[:, index].sum(0)
        tails = np.minimum(binom.cdf(counts, draws, sampling.rate), binom.sf(counts - 1, draws, sampling.rate))
        client = int(tails.argmin())
        if 2 * tails[client] < SAMPLER_ALPHA / 2 / (rounds * population):
            yield (
                f"{words.member} {client} was in {counts[client]} of {draws} {_plural(words.group)} of {words.time} "
                f"{index + 1}, where the {words.who} declares a rate of {sampling.rate:.3g}"
            )
            return


def _sizes(cohorts: Cohorts, declared: Sequence[Sampling], words: _Words) -> Iterator[str]:
    """Sizes vary as declared under Poisson sampling, and are fixed otherwise."""
    draws, _, population = cohorts.shape
    for index, sampling in enumerate(declared):
        sizes, rate = cohorts[:, index].sum(1), sampling.rate
        if sampling.kind != "poisson":
            if sizes.min() != sizes.max():
                few = f"{sizes.min()} to {sizes.max()} {words.member}s"
                yield f"{_plural(words.group)} of {words.time} {index + 1} have {few}, not a fixed number"
                return
            continue
        variance = population * rate * (1 - rate)
        squares = float(((sizes - population * rate) ** 2).mean()) / variance
        deviation = sqrt((2 + (1 - 6 * rate * (1 - rate)) / variance) / draws)
        if abs(squares - 1) > (FAR + 2) * deviation:
            yield (
                f"the variance of {words.group} sizes in {words.time} {index + 1} is {squares:.2g} times that of "
                f"independent coins, which the {words.who} declares"
            )
            return


def _repetition(cohorts: Cohorts, declared: Sequence[Sampling], words: _Words) -> Iterator[str]:
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
                time, more = words.time, "more" if excess > 0 else "fewer"
                which = f"two runs in {time} {first + 1}" if same else f"{time}s {first + 1} and {second + 1}"
                yield f"the {_plural(words.group)} of {which} share {more} {words.member}s than independent ones"
                return


def _dependence(cohorts: Cohorts, declared: Sequence[Sampling], words: _Words) -> Iterator[str]:
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
                f"{words.member} {one} in {words.time} {first + 1} and {words.member} {other} in {words.time} "
                f"{second + 1} were drawn together {together[one, other]} times in {draws}, where independent draws "
                f"have {draws * expected:.3g}"
            )
            return


def _overlap_variance(population: int, first: Sampling, second: Sampling) -> float:
    """Of the number of clients that two independent cohorts share."""
    p, q = first.rate, second.rate
    if first.kind == second.kind == "fixed":
        return population * p * q * (1 - p) * (1 - q) * population / max(population - 1, 1)
    return population * p * q * (1 - p * q)
