"""What sums with integer noise cost, against two adversaries.

A mechanism on a lattice emits a `dp_accounting.ZCDpEvent`: D_α ≤ ρ·α + ξ at integer orders. Whoever sees the sums and
knows who took part (the server of a secure aggregation has the roster) gets that much of a client in every round that
it took part in. For those who see only the models, and cannot know the cohorts, Poisson sampling amplifies (Zhu, Wang
2019).

Sums with discrete Gaussian noise also follow from a continuous Gaussian mechanism by rounding, but for a distance that
is added to δ; so every accountant of Gaussian sums prices them too, amplification included, and the lower ε is taken.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import dp_accounting as dp
import numpy as np
from dp_accounting import rdp as dp_rdp
from scipy.special import gammaln, logsumexp

from tacit.books.accountants import Accountant, Adjacency, Pld
from tacit.books.events import Release
from tacit.books.privacy import check_delta
from tacit.books.renyi import Array
from tacit.core import Event
from tacit.core.errors import UserError, expect

ORDERS: Array = np.arange(2.0, 257.0)  # the bounds hold at integer orders


@dataclass(frozen=True)
class LatticeRelease:
    """One round's sum with integer noise.

    Attributes:
        rho: D_α ≤ ρ·α + ξ at integer orders.
        xi: what is added to it.
        rate: the probability that a client is in the cohort, by a coin of its own.
        noise: multiplier of a continuous Gaussian sum that costs no less; None if none is known.
        failure: total variation between what is released and what is priced: the samplers' errors, for one.
    """

    rho: float
    xi: float = 0.0
    rate: float = 1.0
    noise: float | None = None
    failure: float = 0.0

    def __post_init__(self) -> None:
        expect(self.rho > 0, f"rho={self.rho} > 0")
        expect(0 <= self.xi < math.inf, f"xi={self.xi} >= 0 and finite")
        expect(0 < self.rate <= 1, f"rate={self.rate} in (0, 1]")
        expect(0 <= self.failure <= 1, f"failure={self.failure} in [0, 1]")

    @classmethod
    def of(cls, event: Event, *, rate: float = 1.0, failure: float = 0.0) -> "LatticeRelease":
        """The release that a mechanism's event describes.

        Example:
            >>> LatticeRelease.of(dp.ZCDpEvent(0.5), rate=0.1)
            LatticeRelease(rho=0.5, xi=0.0, rate=0.1, noise=None, failure=0.0)
        """
        if not isinstance(event, dp.ZCDpEvent):
            raise UserError(f"Expected a ZCDpEvent, got {event}.")
        return cls(float(event.rho), float(event.xi), rate, failure=failure)

    def rounding(self, event: Event, distance: float) -> "LatticeRelease":
        """The same, known to be within this distance of the rounded release of a Gaussian event."""
        if not isinstance(event, dp.GaussianDpEvent):
            raise UserError(f"Expected a GaussianDpEvent, got {event}.")
        return replace(self, noise=float(event.noise_multiplier), failure=min(1.0, self.failure + distance))

    def divergences(self) -> Array:
        """At all orders, the cohort's coins unseen."""
        whole: Array = self.rho * ORDERS + self.xi
        return whole if self.rate == 1 or math.isinf(self.rho) else amplified(whole, self.rate)


@dataclass(frozen=True)
class LatticePrice:
    """(ε, δ) of some rounds, against both adversaries.

    An ε is infinite where so much could be told apart that the samplers' errors, times e^ε, are no longer small.

    Attributes:
        server: ε against whoever sees the sums and knows who took part.
        participations: of a client that took part in so many of the rounds.
        recipients: ε against whoever receives the models, and cannot know the cohorts.
        rounds: how many.
        delta: the whole δ.
        slack: the part of δ that pays for the samplers' errors.
    """

    server: float
    participations: int
    recipients: float
    rounds: int
    delta: float
    slack: float

    def __str__(self) -> str:
        return (
            f"ε = {self.recipients:.4g} against recipients of the models, after {self.rounds} rounds. "
            f"ε = {self.server:.4g} against the server, which knows the cohorts, for who took part in "
            f"{self.participations}. δ = {self.delta:g}, of which {self.slack:.1g} for the samplers' errors."
        )


def price(
    release: LatticeRelease,
    rounds: int,
    delta: float,
    *,
    participations: int | None = None,
    accountant: Accountant | None = None,
) -> LatticePrice:
    """What so many rounds cost together.

    Args:
        release: what each round releases.
        rounds: how many rounds there are.
        delta: the whole δ.
        participations: the most rounds that one client took part in; all, if not given.
        accountant: for the continuous Gaussian sum, if there is one; `Pld()` if not given.

    Formal guarantees: if every round's real distribution is within η of the priced one in total variation, T rounds are
    within T·η, and (ε, δ') becomes (ε, δ' + (1 + e^ε)·T·η). The sum is the δ that was asked for. Against the server, η
    counts in all rounds.

    Example:
        >>> release = LatticeRelease(rho=0.21, rate=1 / 60, noise=1.54, failure=1e-29)
        >>> print(price(release, rounds=200, delta=1e-5, participations=10))
        ε = 0.6806 against recipients of the models, after 200 rounds. ε = 10.33 against the server, which knows the \
cohorts, for who took part in 10. δ = 1e-05, of which 8e-23 for the samplers' errors.
    """
    check_delta(delta)
    expect(rounds >= 1, f"rounds={rounds} >= 1")
    taken = rounds if participations is None else participations
    expect(0 <= taken <= rounds, f"participations={taken} in [0, rounds={rounds}]")
    failure, by = rounds * release.failure, accountant or Pld()
    expect(by.adjacency is Adjacency.ADD_OR_REMOVE, "an accountant for clients that are added or removed")
    server = _paid(_epsilons(replace(release, rate=1.0), taken, by), delta, failure)
    recipients = _paid(_epsilons(release, rounds, by), delta, failure)
    slack = max(server.slack, recipients.slack)
    return LatticePrice(server.epsilon, taken, recipients.epsilon, rounds, delta, slack)


def amplified(divergences: Array, rate: float) -> Array:
    """Poisson amplification of any mechanism whose divergences at the orders 2, 3, … are given.

    Formal guarantees: holds for integer orders and a client that is added or removed, if each client takes part by a
    coin of its own that the adversary does not see.

    Reference: Zhu, Wang 2019. Poisson Subsampled Rényi Differential Privacy, Theorem 5.
    """
    order = np.arange(2.0, len(divergences) + 2)
    alpha = order[:, None]
    binomial = gammaln(alpha + 1) - gammaln(order + 1) - gammaln(np.maximum(alpha - order, 0) + 1)
    weights = binomial + order * math.log(rate) + np.maximum(alpha - order, 0) * math.log1p(-rate)
    moments = weights + (order - 1) * divergences + np.where(order == 2, 0.0, math.log(3))
    first = (order - 1) * math.log1p(-rate) + np.log1p((order - 1) * rate)
    higher = logsumexp(np.where(order <= alpha, moments, -np.inf), axis=1)
    value: Array = np.minimum(np.logaddexp(first, higher) / (order - 1), divergences)
    return value


@dataclass(frozen=True)
class _Paid:
    epsilon: float
    slack: float


def _epsilons(release: LatticeRelease, count: int, accountant: Accountant) -> Callable[[float], float]:
    """The ε of so many releases at every δ, the least of what is proved."""
    divergences = count * release.divergences() if count else np.zeros_like(ORDERS)
    if release.noise is None or not count:
        return lambda delta: _epsilon(divergences, delta)
    gaussian = Release(release.noise, release.rate, "everyone" if release.rate == 1 else "poisson")
    spent = accountant.nothing().compose(gaussian, count)
    return lambda delta: min(_epsilon(divergences, delta), spent.epsilon(delta))


def _paid(epsilon: Callable[[float], float], delta: float, failure: float) -> _Paid:
    """ε at what is left of δ; the slack is computed with the ε of half of δ, which is no smaller."""
    at_half = epsilon(delta / 2) if failure else 0.0
    slack = (1 + math.exp(min(at_half, 700.0))) * failure
    return _Paid(epsilon(delta - slack), slack) if slack <= delta / 2 else _Paid(math.inf, delta)


def _epsilon(divergences: Array, delta: float) -> float:
    return float(dp_rdp.compute_epsilon(ORDERS, divergences, delta)[0]) if divergences.any() else 0.0
