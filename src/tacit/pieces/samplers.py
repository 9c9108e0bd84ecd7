"""Samplers: which clients take part in a round.

The sampler determines privacy amplification. Poisson sampling and fixed-size sampling without replacement have
different bounds, so each is a separate record and declares its own `Sampling`.
"""

from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from tacit.core.interfaces import Sampler
from tacit.core.keys import FEW, Key
from tacit.core.prices import Sampling
from tacit.errors import expect, positive, whole

__all__ = ["Everyone", "FixedSize", "Growing", "Poisson"]


@dataclass(frozen=True)
class Everyone(Sampler):
    """Full participation: the whole population in every round. There is no amplification."""

    def cohort(self, population: int, index: int, key: Key) -> Tensor:
        return torch.arange(population)

    def sampling(self, population: int, index: int) -> Sampling:
        return Sampling()


@dataclass(frozen=True)
class FixedSize(Sampler):
    """A uniformly random subset of exactly `size` clients, without replacement."""

    size: int

    def __post_init__(self) -> None:
        whole(1, size=self.size)

    def cohort(self, population: int, index: int, key: Key) -> Tensor:
        _check_fits(self.size, population)
        return key.stream().subset(population, self.size)

    def sampling(self, population: int, index: int) -> Sampling:
        _check_fits(self.size, population)
        return Sampling.at(self.size / population, "fixed")


@dataclass(frozen=True)
class Poisson(Sampler):
    """Poisson sampling: every client joins independently with probability `size / population`.

    Tight privacy amplification is proved for this sampling. A cohort has `size` clients on average and may be empty.
    In a large population, the cohort's size is drawn first, then its clients: the same distribution, in time that
    depends on the cohort only.
    """

    size: float

    def __post_init__(self) -> None:
        positive(size=self.size)

    def cohort(self, population: int, index: int, key: Key) -> Tensor:
        stream, rate = key.stream(), self.sampling(population, index).rate
        if population <= FEW:
            return (stream.uniform(population) < rate).nonzero().flatten()
        return stream.subset(population, stream.binomial(population, rate))

    def sampling(self, population: int, index: int) -> Sampling:
        _check_fits(self.size, population)
        return Sampling.at(self.size / population, "poisson")


@dataclass(frozen=True)
class Growing(Sampler):
    """A schedule of `(rounds, sampler)` stages; the last stage continues to the end.

    Example:
        >>> growing = Growing(stages=((3, Poisson(20)), (1, Poisson(40))))
        >>> [growing.sampling(100, index).rate for index in range(6)]
        [0.2, 0.2, 0.2, 0.4, 0.4, 0.4]
    """

    stages: tuple[tuple[int, Sampler], ...]

    def __post_init__(self) -> None:
        expect(len(self.stages) > 0, "at least one (rounds, sampler) stage, got none")
        for rounds, _ in self.stages:
            whole(1, rounds=rounds)

    def cohort(self, population: int, index: int, key: Key) -> Tensor:
        return self._at(index).cohort(population, index, key)

    def sampling(self, population: int, index: int) -> Sampling:
        return self._at(index).sampling(population, index)

    def _at(self, index: int) -> Sampler:
        ends = accumulate(rounds for rounds, _ in self.stages)
        current = (sampler for (_, sampler), end in zip(self.stages, ends, strict=True) if index < end)
        return next(current, self.stages[-1][1])


def _check_fits(size: float, population: int) -> None:
    expect(
        size <= population,
        f"a cohort of size={size:g} <= population={population}",
        "Use a smaller cohort or a task with more clients.",
    )
