"""Accountants: what releases cost together.

`rdp-classic` is the moments accountant of the papers, `rdp` has the improved conversion, `pld` is tight and the
default for what is claimed. Each is a record that says what it assumes; what has been spent is a record of its
own, to which releases are added one by one or many at a time.

How far one client can move the sum, in units of what it can add:

| cohorts | add-or-remove | replace-one |
|---|---|---|
| everyone | 1 | 2 |
| Poisson | 1 | 2 |
| fixed size, without replacement | 2: whoever leaves the population is replaced in the cohort | 2 |

For fixed-size cohorts and add-or-remove, couple the cohort with the client to the one in which another client
stands in its place: by joint convexity the pair is dominated by the sampled Gaussian at twice the sensitivity.
A bound with once the sensitivity does not hold, not even for a client that is zeroed out: others may be as far
on the other side.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import lru_cache
from typing import ClassVar, Protocol

import dp_accounting as dp
import numpy as np
from dp_accounting import rdp as dp_rdp
from dp_accounting.pld import privacy_loss_distribution as losses

from tacit.core import Event
from tacit.core.schema import choose
from tacit.errors import UserError, expect
from tacit.privacy import renyi
from tacit.privacy.events import AnyRelease, Release, ZcdpRelease, releases
from tacit.privacy.renyi import Array

LEAST_NOISE = 0.05  # below it ε is in the hundreds, and a grid of losses would fill the memory
WHOLE = tuple(range(2, 257))  # orders
TAIL = 1e-15  # probability that a composition may move to infinite loss, always on the safe side


class Adjacency(StrEnum):
    """Which two populations must look alike."""

    ADD_OR_REMOVE = "add-or-remove"
    REPLACE_ONE = "replace-one"


class Spent(Protocol):
    """What has been released so far, as an accountant sees it."""

    def compose(self, release: AnyRelease, count: int = 1) -> "Spent":
        """And `count` times this release."""
        ...

    def epsilon(self, delta: float) -> float:
        """The ε at this δ; infinite if nothing is proved."""
        ...

    def delta(self, epsilon: float) -> float:
        """The δ at this ε."""
        ...


class Accountant(Protocol):
    """What releases cost together, under which assumptions."""

    @property
    def name(self) -> str:
        """As the command calls it."""
        ...

    @property
    def adjacency(self) -> Adjacency:
        """Which populations must look alike."""
        ...

    def nothing(self) -> Spent:
        """Nothing has been released yet."""
        ...


def sensitivity(release: Release, adjacency: Adjacency) -> int:
    """How far one client can move the sum, in units of what it can add: the table above."""
    replaced = adjacency is Adjacency.REPLACE_ONE or release.sampling == "fixed"
    return 2 if replaced else 1


@dataclass(frozen=True)
class RdpClassic:
    """The moments accountant as the papers used it: integer orders, ε = min over α of T·RDP(α) − ln δ / (α − 1).

    Geyer et al. used the orders 2 to 33.

    Reference: Abadi et al. 2016, Theorem 2; Mironov 2017, Proposition 3.
    """

    adjacency: Adjacency = Adjacency.ADD_OR_REMOVE
    orders: tuple[int, ...] = WHOLE
    name: ClassVar[str] = "rdp-classic"

    def __post_init__(self) -> None:
        expect(len(self.orders) > 0 and min(self.orders) >= 2, f"orders={self.orders} >= 2")

    def nothing(self) -> Spent:
        """No divergence at any order."""
        return Divergences(self.adjacency, self.orders, _Classic(), np.zeros(len(self.orders)))


@dataclass(frozen=True)
class Rdp:
    """Rényi accounting with the orders of `dp_accounting` and of `RdpClassic`, and the improved conversion to (ε, δ).

    Reference: Canonne, Kamath, Steinke 2020, Proposition 12.
    """

    adjacency: Adjacency = Adjacency.ADD_OR_REMOVE
    name: ClassVar[str] = "rdp"

    def nothing(self) -> Spent:
        """No divergence at any order; the bound for replaced clients is for integer orders only."""
        usual = dp_rdp.RdpAccountant().orders if self.adjacency is Adjacency.ADD_OR_REMOVE else ()
        orders = tuple(sorted({*map(float, usual), *map(float, WHOLE)}))
        return Divergences(self.adjacency, orders, _Improved(), np.zeros(len(orders)))


@dataclass(frozen=True)
class Pld:
    """Privacy-loss distributions on a grid, rounded to the safe side, through `dp_accounting`. Tight.

    Reference: Koskela et al. 2020; Doroshenko et al. 2022 ("Connect the dots").
    """

    adjacency: Adjacency = Adjacency.ADD_OR_REMOVE
    interval: float = 1e-4
    name: ClassVar[str] = "pld"

    def nothing(self) -> Spent:
        """No loss."""
        return Losses(self.adjacency, self.interval)


RUNNING = Pld(interval=1e-3)  # ten times quicker, and at most a thousandth above the finer grid's ε: for runs


def running(event: Event | None) -> Accountant:
    """The accountant for a run with such rounds: tight where it can be."""
    known = () if event is None else releases(event)
    return Rdp() if any(isinstance(release, ZcdpRelease) for release in known) else RUNNING


ACCOUNTANTS: dict[str, type[RdpClassic] | type[Rdp] | type[Pld]] = {a.name: a for a in (RdpClassic, Rdp, Pld)}


def accountant(name: str, adjacency: str = Adjacency.ADD_OR_REMOVE) -> Accountant:
    """The accountant of this name, for this adjacency."""
    kinds = {kind.value: kind for kind in Adjacency}
    return choose(ACCOUNTANTS, name, "accountant")(choose(kinds, adjacency, "adjacency"))


class Conversion(Protocol):
    """From divergences at all orders to (ε, δ)."""

    def epsilon(self, orders: Array, divergences: Array, delta: float) -> float:
        """The least ε."""
        ...

    def delta(self, orders: Array, divergences: Array, epsilon: float) -> float:
        """The least δ."""
        ...


@dataclass(frozen=True)
class _Classic:
    def epsilon(self, orders: Array, divergences: Array, delta: float) -> float:
        return max(0.0, float((divergences - math.log(delta) / (orders - 1)).min()))

    def delta(self, orders: Array, divergences: Array, epsilon: float) -> float:
        return math.exp(min(0.0, float(((orders - 1) * (divergences - epsilon)).min())))


@dataclass(frozen=True)
class _Improved:
    def epsilon(self, orders: Array, divergences: Array, delta: float) -> float:
        return float(dp_rdp.compute_epsilon(orders, divergences, delta)[0])

    def delta(self, orders: Array, divergences: Array, epsilon: float) -> float:
        return float(dp_rdp.rdp_privacy_accountant.compute_delta(orders, divergences, epsilon)[0])


@dataclass(frozen=True, eq=False)
class Divergences:
    """What has been spent, as Rényi divergences: they add up, order by order."""

    adjacency: Adjacency
    orders: tuple[float, ...]
    conversion: Conversion
    total: Array

    def compose(self, release: AnyRelease, count: int = 1) -> "Divergences":
        """The sum at every order."""
        return replace(self, total=self.total + count * _divergence(release, self.adjacency, self.orders))

    def epsilon(self, delta: float) -> float:
        """By the conversion; 0 if nothing was released."""
        return self.conversion.epsilon(np.array(self.orders), self.total, delta) if self.total.any() else 0.0

    def delta(self, epsilon: float) -> float:
        """By the conversion; 0 if nothing was released."""
        return self.conversion.delta(np.array(self.orders), self.total, epsilon) if self.total.any() else 0.0


@lru_cache(maxsize=1024)
def _divergence(release: AnyRelease, adjacency: Adjacency, orders: Sequence[float]) -> Array:
    """One release at all orders."""
    if isinstance(release, ZcdpRelease):
        return _line(release, adjacency, orders)
    noise = release.noise / sensitivity(release, adjacency)
    at = np.array(orders, dtype=np.float64)
    if noise == 0:
        return np.full(at.shape, np.inf)
    if release.rate == 1:
        return renyi.gaussian(at, noise)
    if adjacency is Adjacency.REPLACE_ONE:
        return renyi.replaced(at, noise, release.rate)
    return renyi.sampled(at, noise, release.rate)


def _line(release: ZcdpRelease, adjacency: Adjacency, orders: Sequence[float]) -> Array:
    """Divergences that are known at integer orders only; between two of them the higher one holds."""
    if adjacency is Adjacency.REPLACE_ONE or release.sampling == "fixed":
        raise UserError("Expected Poisson cohorts and add-or-remove: for this noise nothing else is proved.")
    at = np.ceil(np.array(orders, dtype=np.float64)).astype(int)
    whole: Array = release.rho * np.arange(2.0, at.max() + 1) + release.xi
    known = whole if release.rate == 1 else renyi.amplified(whole, release.rate)
    found: Array = known[np.maximum(at, 2) - 2]
    return found


@dataclass(frozen=True, eq=False)
class Losses:
    """What has been spent, as a distribution of the privacy loss: they are convolved."""

    adjacency: Adjacency
    interval: float
    total: losses.PrivacyLossDistribution | None = None
    exposed: bool = field(default=False, kw_only=True)

    def compose(self, release: AnyRelease, count: int = 1) -> "Losses":
        """The convolution; a release with next to no noise counts as exposing everything, which is safe."""
        if isinstance(release, ZcdpRelease):
            raise UserError("Expected accountant rdp: all that is known of this noise are its Rényi divergences.")
        if release.noise < LEAST_NOISE * sensitivity(release, self.adjacency):
            return replace(self, exposed=True)
        more = _loss(release, self.adjacency, self.interval, count)
        return replace(self, total=more if self.total is None else self.total.compose(more, TAIL))

    def epsilon(self, delta: float) -> float:
        """From the hockey-stick divergence."""
        if self.exposed:
            return math.inf
        return 0.0 if self.total is None else float(self.total.get_epsilon_for_delta(delta))

    def delta(self, epsilon: float) -> float:
        """The hockey-stick divergence."""
        if self.exposed:
            return 1.0
        return 0.0 if self.total is None else float(self.total.get_delta_for_epsilon(epsilon))


def _loss(release: Release, adjacency: Adjacency, interval: float, count: int) -> losses.PrivacyLossDistribution:
    if release.rate == 1:  # Gaussian sums over everyone are one Gaussian sum
        return _single(replace(release, noise=release.noise / math.sqrt(count)), adjacency, interval)
    if count == 1:
        return _trimmed(release, adjacency, interval)
    return _single(release, adjacency, interval).self_compose(count)


@lru_cache(maxsize=64)
def _trimmed(release: Release, adjacency: Adjacency, interval: float) -> losses.PrivacyLossDistribution:
    """Without the far tails, which cost time in every convolution."""
    return losses.identity(interval).compose(_single(release, adjacency, interval), TAIL)


@lru_cache(maxsize=64)
def _single(release: Release, adjacency: Adjacency, interval: float) -> losses.PrivacyLossDistribution:
    """One release. `dp_accounting` has the factor 2 of replaced clients in its own relation for Poisson cohorts."""
    noise, relation = release.noise / sensitivity(release, adjacency), dp.NeighboringRelation.ADD_OR_REMOVE_ONE
    if adjacency is Adjacency.REPLACE_ONE and release.rate < 1:
        if release.sampling == "fixed":
            raise UserError("Expected accountant rdp or rdp-classic: pld has no bound for fixed sizes and replace-one.")
        noise, relation = release.noise, dp.NeighboringRelation.REPLACE_ONE
    return losses.from_gaussian_mechanism(
        noise, value_discretization_interval=interval, sampling_prob=release.rate, neighboring_relation=relation
    )
