"""An analysis as a method: a query, whose sum over all units is released with noise, once or in several rounds.

`method_of` composes the seven pieces, the same for every query: everyone takes part, `QuerySum` answers the query,
`DistributedGaussian` adds noise in shares that hold against every single client, `SecureSum` reveals the sum alone, and
`Total` and a server keep it. `Released` is that sum with its noise, from which an analysis computes its result.
"""

from dataclasses import dataclass, replace
from math import exp, floor

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.core import Budget, Method, Query, State
from tacit.core.interfaces import Mechanism, ServerUpdate
from tacit.errors import UserError, at_least, expect
from tacit.pieces.aggregators import Total
from tacit.pieces.channels import SecureSum
from tacit.pieces.mechanisms import DistributedGaussian, DistributedLaplace, Grid, NoNoise, TermClip
from tacit.pieces.samplers import Everyone
from tacit.pieces.servers import KeepSum
from tacit.pieces.trainers import QuerySum

Sums64 = NDArray[np.float64]
MIN_CLIENTS = 3  # of a sum that hides each of them
STEPS = (64, 4096)  # of the grid per bound: the fewest and the most
ROOM = 2**29  # steps of the sum of all units: a quarter of what 32 bits have room for
DEFAULT_DELTA = 1e-5
KEEP = KeepSum()
Z95 = 1.959963984540054  # the normal deviation of a 95 % interval
EDGE = 1e-6  # of a range: rounding of an input to float32, at most


@dataclass(frozen=True, kw_only=True)
class SumRelease:
    """How an analysis is released.

    Attributes:
        epsilon: the privacy budget ε of every person, or record, for all rounds; None: no noise, and no privacy.
        delta: the δ of ε; it should be well below one over the number of persons.
        clients: how many clients there are; public.
        units: the most persons, or records, of any client; public.
        dropouts: the fraction of the clients that may be lost in a round, for which the noise provides.
        persons: about how many persons, or records, there are at all clients; public. None: as many as there may be.
    """

    epsilon: float | None
    clients: int
    units: int
    delta: float = DEFAULT_DELTA
    dropouts: float = 0.1
    persons: float | None = None

    def __post_init__(self) -> None:
        if self.epsilon is not None and self.clients < MIN_CLIENTS:
            raise UserError(
                f"Expected at least {MIN_CLIENTS} clients, whose sum hides each of them, got {self.clients}. With "
                "fewer, let the one that the other trusts compute alone, without noise: epsilon=none."
            )
        expect(self.clients >= 1 and self.units >= 1, "at least one client with at least one row")
        at_least(1, persons=self.persons)

    @property
    def budget(self) -> Budget | None:
        """(ε, δ), if there is noise."""
        return None if self.epsilon is None else Budget(self.epsilon, self.delta)

    @property
    def about(self) -> float:
        """About how many persons, or records, there are."""
        return float(self.clients * self.units) if self.persons is None else self.persons

    @property
    def steps(self) -> int:
        """The steps of the grid per bound: as fine as 32 bits have room for, by what is public."""
        fitting = floor(ROOM / (self.clients * self.units))
        return max(STEPS[0], min(STEPS[1], fitting))


def method_of(
    name: str,
    query: Query,
    release: SumRelease,
    *,
    rounds: int = 1,
    server: ServerUpdate = KEEP,
    cells: bool = False,
) -> Method:
    """The method that releases the sum of a query over all units, in every round.

    Args:
        name: of the analysis.
        query: maps each unit's rows to a vector of bounded norm.
        release: the budget, which all rounds share, and the public sizes of the federation.
        rounds: how often the sum is released.
        server: what becomes of it; by default it is kept as the state.
        cells: each unit is in one cell at most, so that Laplace noise suffices, which is smaller.

    Formal guarantees: those of `DistributedGaussian` with `TermClip`, or of `DistributedLaplace`, against everybody who
    sees the sums, and against every single client, who knows its own share of the noise.
    """
    exact = Method(
        name=name, rounds=rounds, sampler=Everyone(), trainer=QuerySum(query, cells), aggregator=Total(), server=server
    )
    if release.budget is None:
        return replace(exact, max_row_norm=query.bound * release.units * (1 + EDGE))
    lost, colluding = floor(release.dropouts * release.clients) / release.clients, 1 / release.clients
    clip, grid = TermClip(query.bound, release.units), Grid(steps=release.steps)
    mechanism: Mechanism = (
        DistributedLaplace(units=release.units, dropouts=lost, colluding=colluding)
        if cells
        else DistributedGaussian(clip=clip, dropouts=lost, colluding=colluding, arithmetic=grid)
    )
    return replace(
        exact,
        mechanism=mechanism,
        channel=SecureSum(dropout=release.dropouts),
        budget=release.budget,
        report_delta=release.delta,
    )


def bins(x: Tensor, count: int) -> Tensor:
    """The number of the interval, of `count` equal ones from 0 to 1, in which each number is, as int64.

    An interval begins with its lower edge; 1, and what is beyond, belongs to the last. Numbers that are an edge but for
    the rounding of float32 count as the edge. NaN counts as 0.

    Example:
        >>> bins(torch.tensor([0.0, 0.7, 1.0]), 10).tolist()
        [0, 7, 9]
    """
    exact = x.double().nan_to_num() * count
    return (exact + EDGE * count).floor().clamp(0, count - 1).long()


def one_hot(places: Tensor, count: int) -> Tensor:
    """For each row a vector with a one at its place, in float64; zeros for a place below zero."""
    terms = torch.zeros(len(places), count, dtype=torch.float64)
    return terms.scatter_(1, places.clamp(min=0)[:, None], (places >= 0).double()[:, None])


def clip_terms(terms: Tensor, bound: float) -> Tensor:
    """The terms, with those that are longer than the bound scaled down to it."""
    norms: Tensor = torch.linalg.vector_norm(terms, dim=1)
    return terms * (bound / norms.clamp(min=bound))[:, None]


def places_in_grid(x: Tensor, intervals: int) -> Tensor:
    """Times in intervals since the start, from an input whose range has one interval more than the grid at both ends.

    What is clipped is then outside of the grid. A time that ends an interval but for rounding to float32 ends it, and
    NaN is before the start.

    Example:
        >>> places_in_grid(torch.tensor([0.2500001, 0.375, 1.0]), 2).tolist()
        [0.0, 0.5, 3.0]
    """
    place = (x.double().nan_to_num(-1.0) * (intervals + 2) - 1).clamp(-1.0, intervals + 1.0)
    return torch.where((place - place.round()).abs() <= EDGE * (intervals + 2), place.round(), place)


@dataclass(frozen=True)
class SumNoise:
    """The noise in every number of a released sum, all shares included: its distribution is public.

    Attributes:
        deviation: its standard deviation; 0: there is none.
        scale: of discrete Laplace noise; 0: it is Gaussian.
        shape: of the Pólya variables whose difference the former is; 1 where nobody knows a share.
    """

    deviation: float = 0.0
    scale: float = 0.0
    shape: float = 1.0

    @classmethod
    def of(cls, method: Method) -> "SumNoise":
        """The noise of a method with a known noise multiplier."""
        mechanism = method.mechanism
        if isinstance(mechanism, NoNoise):
            return cls()
        noise = mechanism.aggregate_noise(State(0, torch.empty(0)), 1.0)
        assert noise is not None  # the bound is public, and a run's noise is calibrated
        if isinstance(mechanism, DistributedLaplace):
            return cls(noise.deviation, mechanism.noise_multiplier or 0.0, mechanism.shape)
        return cls(noise.deviation)

    def draw(self, random: np.random.Generator, *shape: int) -> Sums64:
        """Independent noise of this distribution, for bootstraps; it protects nobody."""
        if not self.scale:
            return self.deviation * random.standard_normal(shape)
        stop = 1 - exp(-1 / self.scale)
        both = (random.negative_binomial(self.shape, stop, shape) for _ in range(2))
        return np.subtract(*both).astype(np.float64)


@dataclass(frozen=True, eq=False)
class Released:
    """A sum as it was released.

    Attributes:
        total: the sum over all units, with noise.
        noise: the noise in every number of it.
    """

    total: Sums64
    noise: SumNoise = SumNoise()

    @classmethod
    def of(cls, method: Method, state: State) -> "Released":
        """The sum that a state keeps (`KeepSum`)."""
        return cls(state.weights.double().numpy().copy(), SumNoise.of(method))
