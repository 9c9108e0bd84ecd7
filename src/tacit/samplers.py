"""Who takes part in a round.

The sampler decides how privacy is amplified: Poisson sampling and fixed-size sampling without replacement have
different bounds, so each is its own record.
"""

from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from tacit.core.errors import expect
from tacit.core.keys import Key


@dataclass(frozen=True)
class Everyone:
    """The whole population, every round. Nothing is amplified."""

    def cohort(self, population: int, index: int, key: Key) -> Tensor:
        """All clients."""
        return torch.arange(population)

    def expected(self, population: int, index: int) -> float:
        """All of them."""
        return float(population)


@dataclass(frozen=True)
class FixedSize:
    """A uniformly random subset of exactly `size` clients, without replacement."""

    size: int

    def __post_init__(self) -> None:
        expect(self.size >= 1, f"size={self.size} >= 1")

    def cohort(self, population: int, index: int, key: Key) -> Tensor:
        """`size` different clients."""
        return _subset(population, int(self.expected(population, index)), key)

    def expected(self, population: int, index: int) -> float:
        """Exactly `size`."""
        _check_fits("size", self.size, population)
        return float(self.size)


@dataclass(frozen=True)
class Poisson:
    """Every client joins on its own with probability `size / population`; `size` clients on average.

    This is the sampling that tight privacy amplification is proved for. A cohort may be empty.
    """

    size: float

    def __post_init__(self) -> None:
        expect(self.size > 0, f"size={self.size} > 0")

    def cohort(self, population: int, index: int, key: Key) -> Tensor:
        """Those whose coin fell right."""
        rate = self.expected(population, index) / population
        coins = torch.rand(population, generator=key.torch(), dtype=torch.float64)
        return (coins < rate).nonzero().flatten()

    def expected(self, population: int, index: int) -> float:
        """The mean size of the cohort."""
        _check_fits("size", self.size, population)
        return float(self.size)


@dataclass(frozen=True)
class Growing:
    """Fixed-size cohorts whose size follows a schedule of `(rounds, size)` stages; the last one goes on for good.

    Example:
        >>> growing = Growing(stages=((3, 20), (1, 40)))
        >>> [growing.expected(100, index) for index in range(6)]
        [20.0, 20.0, 20.0, 40.0, 40.0, 40.0]
    """

    stages: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        expect(len(self.stages) > 0, "at least one (rounds, size) stage, got none")
        for rounds, size in self.stages:
            expect(rounds >= 1 and size >= 1, f"stage ({rounds}, {size}) with rounds >= 1 and size >= 1")

    def cohort(self, population: int, index: int, key: Key) -> Tensor:
        """As many different clients as this round's stage says."""
        return _subset(population, int(self.expected(population, index)), key)

    def expected(self, population: int, index: int) -> float:
        """The size of this round's stage."""
        ends = accumulate(rounds for rounds, _ in self.stages)
        sizes = (size for (_, size), end in zip(self.stages, ends, strict=True) if index < end)
        size = next(sizes, self.stages[-1][1])
        _check_fits("size", size, population)
        return float(size)


def _subset(population: int, size: int, key: Key) -> Tensor:
    return torch.randperm(population, generator=key.torch())[:size].sort().values


def _check_fits(what: str, size: float, population: int) -> None:
    expect(
        size <= population,
        f"a cohort of {what}={size:g} <= population={population}",
        "Take a smaller cohort or a task with more clients.",
    )
