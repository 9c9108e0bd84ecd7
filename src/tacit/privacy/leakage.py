"""d-privacy accounting: the leakage of each client, summed over the rounds in which it took part.

A metric mechanism makes nearby models hard to distinguish: within a public radius at a fixed leakage per round, and at
distance d at d/radius times as much. Rounds compose by addition, also adaptively (Galli et al. 2023, Theorem 4.2).
Leakage is not (ε, δ), and the two are never added.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from typing import Self

from tacit.core import Method, Report
from tacit.core.prices import TOLERANCE, Unit
from tacit.privacy.guarantee import PUBLIC_POPULATION, LeakageGuarantee


@dataclass(frozen=True, kw_only=True)
class LeakageAccounting:
    """The leakage of each client within the radius: a fold over reports.

    Attributes:
        per_round: the leakage of taking part once.
        participations: in how many rounds each client took part; clients that never did are not listed.
        population: the number of clients.
        rounds: the number of rounds.
        radius: the public radius; None: the scale depends on the data, and all leakage is nominal.
        limit: the leakage above which a client declines to take part; None: it never declines.
        declined: how often clients declined.
        adversary: against whom clients are protected.
        unproved: why nothing is proved; empty if something is.
    """

    per_round: float
    participations: Mapping[int, int]
    population: int
    rounds: int
    radius: float | None
    limit: float | None = None
    declined: int = 0
    adversary: str = ""
    unproved: str = ""

    @classmethod
    def of(cls, method: Method, dim: int, population: int, reports: Iterable[Report]) -> Self | None:
        """The accounting of these rounds; None for a method without d-privacy."""
        leakage = method.terms.leakage
        if leakage is None:
            return None
        start = cls(
            per_round=leakage.per_message(dim),
            participations={},
            population=population,
            rounds=0,
            radius=leakage.radius,
            limit=leakage.limit,
            adversary=leakage.adversary,
            unproved=method.terms.prices[Unit.CLIENT].reason,
        )
        return reduce(cls.after, reports, start)

    def after(self, report: Report) -> Self:
        """The accounting with one more round."""
        participations = Counter(self.participations)
        participations.update(report.clients)
        declined = self.declined + len(report.declined)
        return replace(self, participations=participations, rounds=self.rounds + 1, declined=declined)

    def leakage_of(self, client: int) -> float:
        """The leakage of one client."""
        return self.per_round * self.participations.get(client, 0)

    @cached_property
    def by_client(self) -> dict[int, float]:
        """The leakage of every client that took part, by its number."""
        return {client: self.leakage_of(client) for client in sorted(self.participations)}

    @property
    def maximum(self) -> float:
        """The leakage of the client that took part most often."""
        return self.per_round * max(self.participations.values(), default=0)

    @property
    def mean(self) -> float:
        """The mean leakage of all clients, including those that never took part."""
        return self.per_round * sum(self.participations.values()) / self.population

    @property
    def exhausted(self) -> bool:
        """Whether every client would decline to take part again."""
        if self.limit is None:
            return False
        tolerated = self.limit * TOLERANCE
        return all(self.leakage_of(client) + self.per_round > tolerated for client in range(self.population))

    def guarantee(self, *, early_stopping: bool = False) -> LeakageGuarantee:
        """The guarantee; `early_stopping`: whether held-out clients decided when training stopped."""
        guarantee = LeakageGuarantee(
            leakage=self.maximum,
            per_round=self.per_round,
            radius=None if self.unproved else self.radius,
            rounds=self.rounds,
            adversary=self.adversary,
            reason=self.unproved,
        )
        return guarantee.with_limits(
            "A radius or noise level that was tuned on the same data is not accounted for.",
            PUBLIC_POPULATION.format(population=self.population),
            "Noise is sampled in floating point; the proof does not consider its rounding.",
            "Held-out clients decide when training stops; nothing is guaranteed for them." if early_stopping else "",
        )

    def to_json(self) -> dict[str, object]:
        """Plain values, with the leakage of every client."""
        return {
            "per_round": self.per_round,
            "radius": self.radius,
            "max": self.maximum,
            "mean": self.mean,
            "limit": self.limit,
            "declined": self.declined,
            "clients": {str(client): leaked for client, leaked in self.by_client.items()},
        }
