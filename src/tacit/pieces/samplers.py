"""Who takes part in a round.

The sampler decides how privacy is amplified: Poisson sampling and fixed-size sampling without replacement have
different bounds, so each is its own record, and wraps the mechanism's event in the only way that is right for it.
"""

from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from tacit.core import Event
from tacit.core.keys import Key
from tacit.core.pieces import Sampler
from tacit.errors import expect


@dataclass(frozen=True)
class Everyone:
    """The whole population, every round. Nothing is amplified."""

    def cohort(self, population: int, index: int, key: Key) -> Tensor:
        """All clients."""
        return torch.arange(population)

    def expected(self, population: int, index: int) -> float:
        """All of them."""
        return float(population)

    def amplify(self, event: Event, population: int, index: int) -> Event:
        """The event itself."""
        return event


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

    def amplify(self, event: Event, population: int, index: int) -> Event:
        """The event on a sample without replacement."""
        import dp_accounting  # only where a run is priced: it takes a second to load

        size = int(self.expected(population, index))
        wrapped: Event = dp_accounting.SampledWithoutReplacementDpEvent(population, size, event)
        return wrapped


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

    def amplify(self, event: Event, population: int, index: int) -> Event:
        """The event on a Poisson sample at this rate."""
        import dp_accounting  # only where a run is priced: it takes a second to load

        wrapped: Event = dp_accounting.PoissonSampledDpEvent(self.expected(population, index) / population, event)
        return wrapped


@dataclass(frozen=True)
class Growing:
    """Cohorts that follow a schedule of `(rounds, sampler)` stages; the last one goes on for good.

    Example:
        >>> growing = Growing(stages=((3, Poisson(20)), (1, Poisson(40))))
        >>> [growing.expected(100, index) for index in range(6)]
        [20.0, 20.0, 20.0, 40.0, 40.0, 40.0]
    """

    stages: tuple[tuple[int, Sampler], ...]

    def __post_init__(self) -> None:
        expect(len(self.stages) > 0, "at least one (rounds, sampler) stage, got none")
        for rounds, _ in self.stages:
            expect(rounds >= 1, f"stages of rounds={rounds} >= 1")

    def cohort(self, population: int, index: int, key: Key) -> Tensor:
        """As this round's sampler says."""
        return self._at(index).cohort(population, index, key)

    def expected(self, population: int, index: int) -> float:
        """The mean size of this round's cohort."""
        return self._at(index).expected(population, index)

    def amplify(self, event: Event, population: int, index: int) -> Event:
        """As this round's sampler does."""
        return self._at(index).amplify(event, population, index)

    def _at(self, index: int) -> Sampler:
        ends = accumulate(rounds for rounds, _ in self.stages)
        now = (sampler for (_, sampler), end in zip(self.stages, ends, strict=True) if index < end)
        return next(now, self.stages[-1][1])


def _subset(population: int, size: int, key: Key) -> Tensor:
    return torch.randperm(population, generator=key.torch())[:size].sort().values


def _check_fits(what: str, size: float, population: int) -> None:
    expect(
        size <= population,
        f"a cohort of {what}={size:g} <= population={population}",
        "Take a smaller cohort or a task with more clients.",
    )
