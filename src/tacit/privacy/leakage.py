"""d-privacy, client by client: what each has leaked, added up over the rounds in which it took part.

A mechanism of this kind makes models hard to tell apart that are near each other: within a public radius for so much a
round, and at a distance d for d/radius times as much. Rounds add up (Galli et al. 2023, Theorem 4.2; adaptively too).
These prices are a book of their own. They are no (ε, δ), and nothing here is ever added to one.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property, reduce
from typing import Self

from tacit.core import Method, Metric, Report
from tacit.errors import expect


@dataclass(frozen=True, kw_only=True)
class LeakageGuarantee:
    """d-privacy with everything it rests on, or none and why.

    Attributes:
        leakage: what the client that took part most often has leaked, within the radius; nominal if nothing is proved.
        per_round: what taking part once costs, within the radius.
        radius: the public radius, in the model's own units; None if the scale depends on the data.
        rounds: how many rounds it covers.
        unit: whose messages are blurred.
        against: from whom.
        unaccounted: what it does not cover; a sentence each.
        reason: why nothing is proved; empty if something is.
    """

    leakage: float
    per_round: float
    radius: float | None
    rounds: int
    unit: str = "client"
    against: str = ""
    unaccounted: tuple[str, ...] = ()
    reason: str = ""

    def __post_init__(self) -> None:
        expect((self.radius is None) == bool(self.reason), "either a public radius or the reason why nothing is proved")

    @property
    def proved(self) -> bool:
        """Whether anything is."""
        return not self.reason

    def epsilon_at(self, distance: float) -> float:
        """What all rounds cost the client that took part most, for two models that were this far apart in each.

        Example:
            >>> LeakageGuarantee(leakage=2.4, per_round=0.4, radius=0.05, rounds=150).epsilon_at(0.1)
            4.8
        """
        expect(self.radius is not None, "a public radius: without one no distance has a price")
        assert self.radius is not None
        return self.leakage * distance / self.radius

    def but(self, *unaccounted: str) -> Self:
        """The same, with more that is not covered."""
        return replace(self, unaccounted=(*self.unaccounted, *unaccounted))

    def to_json(self) -> dict[str, object]:
        """Plain values; `guarantee` is true only if something is proved."""
        return {"guarantee": self.proved, "kind": "d-privacy", **asdict(self), "unaccounted": list(self.unaccounted)}

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        if self.reason:
            yield f"none: {self.reason}."
            yield f"Nominal leakage, as if the scale had been public: {self._told}."
        else:
            yield (
                f"d-privacy for every {self.unit}, against {self.against}: of two models within the public radius "
                f"{self.radius:g}, {self._told}."
            )
            yield f"Models at a distance d cost d / {self.radius:g} times as much."
        if self.unaccounted:
            yield "Not covered by it:"
            yield from (f"  {sentence}" for sentence in self.unaccounted)

    @property
    def _told(self) -> str:
        return (
            f"{self.per_round:.4g} each time a client takes part, {self.leakage:.4g} in {self.rounds} "
            f"round{'s' * (self.rounds != 1)} for the one that did most often"
        )


@dataclass(frozen=True, kw_only=True)
class LeakageAccounting:
    """What each client has leaked within the radius: a fold over reports.

    Attributes:
        per_round: what taking part once costs.
        taken: in how many rounds each client took part; one that never did is not listed.
        population: how many clients there are.
        rounds: how many rounds there were.
        radius: the public radius; None: it depends on the data, and all of this is nominal.
        limit: above which a client declines to take part.
        declined: how often clients did.
        against: from whom messages are hidden.
        unproved: why nothing is proved; empty if something is.
    """

    per_round: float
    taken: Mapping[int, int]
    population: int
    rounds: int
    radius: float | None
    limit: float | None = None
    declined: int = 0
    against: str = ""
    unproved: str = ""

    @classmethod
    def of(cls, method: Method, dim: int, population: int, reports: Iterable[Report]) -> Self | None:
        """The book of these rounds; None for a method that is not priced this way."""
        mechanism = method.mechanism
        if not isinstance(mechanism, Metric):
            return None
        book = cls(
            per_round=mechanism.leakage(dim),
            taken={},
            population=population,
            rounds=0,
            radius=mechanism.radius,
            limit=mechanism.limit,
            against=method.mechanism.against,
            unproved=method.mechanism.unproved,
        )
        return reduce(cls.after, reports, book)

    def after(self, report: Report) -> Self:
        """The book one round later."""
        taken = Counter(self.taken)
        taken.update(report.clients)
        declined = self.declined + len(report.declined)
        return replace(self, taken=taken, rounds=self.rounds + 1, declined=declined)

    def leaked(self, client: int) -> float:
        """What one client has leaked."""
        return self.per_round * self.taken.get(client, 0)

    @cached_property
    def clients(self) -> dict[int, float]:
        """What each client has leaked that ever took part, by its number."""
        return {client: self.leaked(client) for client in sorted(self.taken)}

    @property
    def most(self) -> float:
        """What the client that took part most often has leaked."""
        return self.per_round * max(self.taken.values(), default=0)

    @property
    def mean(self) -> float:
        """The mean over all clients."""
        return self.per_round * sum(self.taken.values()) / self.population

    @property
    def exhausted(self) -> bool:
        """Whether every client would decline to take part again."""
        if self.limit is None:
            return False
        room = self.limit * (1 + 1e-9)
        return all(self.leaked(client) + self.per_round > room for client in range(self.population))

    def guarantee(self, *, stops: bool = False) -> LeakageGuarantee:
        """What is proved; `stops` says whether held-out clients decided when to."""
        found = LeakageGuarantee(
            leakage=self.most,
            per_round=self.per_round,
            radius=None if self.unproved else self.radius,
            rounds=self.rounds,
            against=self.against,
            reason=self.unproved,
        )
        public = "A radius and a noise that were chosen by looking at results on the same data are not accounted for."
        held_out = "Held-out clients decide when training stops; nothing is guaranteed for them."
        floats = "Noise is drawn in floating point, whose rounding the proof does not consider."
        return found.but(public, floats, *([held_out] if stops else []))

    def to_json(self) -> dict[str, object]:
        """Plain values, with every client's leakage."""
        return {
            "per_round": self.per_round,
            "radius": self.radius,
            "most": self.most,
            "mean": self.mean,
            "limit": self.limit,
            "declined": self.declined,
            "clients": {str(client): leaked for client, leaked in self.clients.items()},
        }
