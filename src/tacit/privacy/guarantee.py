"""What is proved about a run's privacy, and how it is printed.

A guarantee contains only what the mechanism proves; otherwise it is `none`, with the reason. Everything that depends on
private data without being accounted for is listed as not covered.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import Field, asdict, dataclass, replace
from typing import Any, ClassVar, Self

from tacit.core.prices import RECIPIENTS, Adjacency, Unit
from tacit.errors import UserError, expect, one_line

FALSE_ALARMS = 0.01  # of a test, for which a guarantee states how many it detects
PERSONS = (
    "A person with several records is protected as that many records, at one client or at several, and not as one."
)
AT_SEVERAL = "A {unit} with records at several clients is protected at each of them by itself, and not as one."
IN_COMMON = "That a client takes part, and what its records have in common, is not protected."
LAST_BITS = (
    "The last bits of a {unit}'s gradient can depend on the others of its batch; a server that chooses the weights to "
    "make this large is not covered."
)
SIZES = "The number of {unit}s of every client is public: it decides at which rate its batches are drawn."
COUNTS = "Numbers of {unit}s in the method are public, also where they were counted in the data: {counts}."
PUBLIC_POPULATION = "The number of clients, {population}, is public."
COPIES = "At how many clients a {unit} is, at most, is public: it decides how much noise is added."
TUNED = "Hyperparameters that were tuned on the same data are not accounted for."
SHARES = "Clients are assumed to add their shares of the noise."
TRUSTED_ENCLAVE = "The enclave is trusted: it sees every message, each of which has only a share of the noise."
TRUSTED_SUM = (
    "Secure aggregation is assumed: a trusted party adds up real numbers, and the noise that is missing if more "
    "clients are lost than provided for."
)
NO_NOISE_INSIDE = (
    "Nothing is guaranteed against the server and the other clients of a round: in one, nobody else delivered noise."
)
DROPOUTS = (
    "Whether a client drops out is assumed to depend neither on its data nor on who else takes part; that a round ends "
    "without a sum because too many drop out is not covered."
)


class _Claim(ABC):
    """What both kinds of guarantee have in common."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]
    not_covered: tuple[str, ...]
    reason: str
    kind: ClassVar[str]

    @property
    def proved(self) -> bool:
        return not self.reason

    def with_limits(self, *sentences: str) -> Self:
        """The same guarantee with further limits, as sentences; empty ones are left out."""
        return replace(self, not_covered=(*self.not_covered, *filter(None, sentences)))

    def to_json(self) -> dict[str, object]:
        """Plain values; `guarantee` is true only if something is proved."""
        return {"guarantee": self.proved, "kind": self.kind, **asdict(self), "not_covered": list(self.not_covered)}

    def __str__(self) -> str:
        lines = [*self._lines()]
        if self.not_covered:
            lines += ["Not covered:" if self.proved else "Note:", *(f"  {each}" for each in self.not_covered)]
        return "\n".join(map(one_line, lines))

    @abstractmethod
    def _lines(self) -> Iterator[str]:
        """What is proved, for people."""


@dataclass(frozen=True, kw_only=True)
class Guarantee(_Claim):
    """(ε, δ)-differential privacy with everything it depends on, or none and why.

    Attributes:
        epsilon: ε after the last executed round; None if nothing is proved.
        delta: the probability that the guarantee fails.
        noise_error: the part of δ that covers the difference between the noise drawn and the noise accounted.
        failure: the part of δ that covers random cohorts that are too small for the channel.
        rounds: the number of rounds it covers.
        retries: how many further attempts at them ε includes.
        unit: whose presence is protected. Guarantees for different units are never added.
        worst_client: for records or persons, the client whose are least protected: ε is theirs; None: for clients.
        steps: for records or persons, that client's number of noisy steps.
        copies: for persons, the most clients at which one has records: ε covers all of them together.
        adjacency: which pairs of populations count as neighbours.
        sampling: how cohorts were drawn.
        amplified: whether ε relies on the adversary not knowing who took part.
        accountant: the accountant that computed ε.
        adversary: against whom the unit is protected.
        server_epsilon: ε at the same δ, for zero-out, against the server and clients of the same rounds, who know who
            took part and their own noise, for the client that took part most often; None if the server is trusted, or
            if ε holds against them, too.
        server_rounds: in how many rounds that client took part.
        honest_clients: how many honest clients must have added noise, if clients add it, besides one that knows its
            own; None: not stated.
        detection: the highest detection rate of any test for a unit that is wrong about `FALSE_ALARMS` of the others,
            by everything that was accounted for; None: not computed.
        not_covered: what ε does not cover, as sentences.
        reason: why nothing is proved; empty if something is.
    """

    epsilon: float | None
    delta: float | None = None
    noise_error: float = 0.0
    failure: float = 0.0
    rounds: int = 0
    retries: int = 0
    unit: Unit = Unit.CLIENT
    worst_client: int | None = None
    steps: int = 0
    copies: int = 1
    adjacency: str = ""
    sampling: str = ""
    amplified: bool = False
    accountant: str = ""
    adversary: str = RECIPIENTS
    server_epsilon: float | None = None
    server_rounds: int = 0
    honest_clients: int | None = None
    detection: float | None = None
    not_covered: tuple[str, ...] = ()
    reason: str = ""
    kind: ClassVar[str] = "differential privacy"

    def __post_init__(self) -> None:
        expect((self.epsilon is None) == bool(self.reason), "either an epsilon or the reason why there is none")

    @property
    def detection_limit(self) -> float:
        """The highest detection rate of any test with `FALSE_ALARMS`, by what was accounted for, or else by (ε, δ)."""
        if self.epsilon is None:
            return 1.0
        by_epsilon = detection_limit(self.epsilon, self.delta or 0.0, FALSE_ALARMS)
        return by_epsilon if self.detection is None else min(self.detection, by_epsilon)

    @classmethod
    def none(cls, reason: str, rounds: int = 0, unit: Unit = Unit.CLIENT) -> Self:
        """Nothing is proved.

        Example:
            >>> print(Guarantee.none("no noise was added"))
            none: no noise was added.
        """
        return cls(epsilon=None, reason=reason.rstrip("."), rounds=rounds, unit=unit)

    def _lines(self) -> Iterator[str]:
        if self.epsilon is None:
            yield f"none: {self.reason}."
            return
        yield (
            f"(ε = {self.epsilon:.4g}, δ = {self.delta:g})-differential privacy "
            f"for every {self.unit} ({self.adjacency}), over {plural(self.rounds, 'round')}, against {self.adversary}."
        )
        if self.adjacency:
            yield f"{self.adjacency.capitalize()}: {Adjacency(self.adjacency).meaning_for(self.unit)}"
        if self.worst_client is not None:
            yield (
                f"Worst client: number {self.worst_client}, after {plural(self.steps, 'step')} with noise; no "
                f"{self.unit} of another client has a larger ε."
            )
        if self.copies > 1:
            yield (
                f"A {self.unit} is at up to {self.copies} clients, by equal ids; ε is that of all of them together. "
                "Ids that each client numbers for itself must be made different."
            )
        if self.server_epsilon is not None:
            yield (
                "Against the server and the other clients of a round, who know who took part, sampling lowers nothing: "
                f"ε = {self.server_epsilon:.4g} (zero-out; worst client, {plural(self.server_rounds, 'round')}). "
                "What is released would be about as likely if the client had sent zeros; that it took part is known."
            )
        secret = "who took part" if not self.unit.within_client else f"which {self.unit}s a batch contains"
        secrecy = f"; ε assumes that {secret} is secret" * self.amplified
        yield f"Sampling: {self.sampling}{secrecy}. Accountant: {self.accountant}."
        if self.retries:
            repeated = plural(self.retries, "further attempt")
            yield f"ε includes {repeated} at rounds that failed or were interrupted; what clients sent was charged."
        if self.delta and self.failure >= self.delta / 1000:
            yield f"δ includes {self.failure:.1g} for random cohorts that are too small for secure aggregation."
        if self.noise_error and self.delta:
            negligible = " (negligible)" * (self.noise_error < self.delta / 100)
            yield f"δ includes {self.noise_error:.1g} for imperfect noise sampling{negligible}."
        if self.honest_clients == 0:
            yield "All noise of a round may be that of one client: it knows it, and nothing is claimed against it."
        elif self.honest_clients is not None:
            yield (
                f"It assumes noise from at least {plural(self.honest_clients, 'honest client')} in every round: each "
                "client knows its own share, which is not counted against it."
            )


@dataclass(frozen=True, kw_only=True)
class LeakageGuarantee(_Claim):
    """d-privacy with everything it depends on, or none and why.

    Attributes:
        leakage: the leakage within the radius of the client that took part most often; nominal if nothing is proved.
        per_round: the leakage of taking part once, within the radius.
        radius: the public radius, in the model's units; None if the scale of the noise depends on the data.
        rounds: the number of rounds it covers.
        unit: whose messages have noise added.
        adversary: against whom the unit is protected.
        not_covered: what it does not cover, as sentences.
        reason: why nothing is proved; empty if something is.
    """

    leakage: float
    per_round: float
    radius: float | None
    rounds: int
    unit: Unit = Unit.CLIENT
    adversary: str = ""
    not_covered: tuple[str, ...] = ()
    reason: str = ""
    kind: ClassVar[str] = "d-privacy"

    def __post_init__(self) -> None:
        expect((self.radius is None) == bool(self.reason), "either a public radius or the reason why nothing is proved")

    def epsilon_at(self, distance: float) -> float:
        """The total leakage of the client that took part most often, between models at this distance in every round.

        Example:
            >>> LeakageGuarantee(leakage=2.4, per_round=0.4, radius=0.05, rounds=150).epsilon_at(0.1)
            4.8
        """
        if self.radius is None:
            raise UserError("Expected a public radius: without one, leakage is not defined at any distance.")
        return self.leakage * distance / self.radius

    def _lines(self) -> Iterator[str]:
        if self.reason:
            yield f"none: {self.reason}."
            yield f"Nominal leakage, as if the scale had been public: {self._amounts}."
        else:
            yield f"d-privacy for every {self.unit}, against {self.adversary}."
            yield f"Leakage between two models within the public radius {self.radius:g}: {self._amounts}."
            yield f"Leakage between two models at distance d: d / {self.radius:g} times as much."

    @property
    def _amounts(self) -> str:
        return (
            f"{self.per_round:.4g} each time a client takes part, at most {self.leakage:.4g} for any client in "
            f"{plural(self.rounds, 'round')}"
        )


AnyGuarantee = Guarantee | LeakageGuarantee


def plural(count: int, noun: str) -> str:
    """A number with its noun: 1 round, 2 rounds."""
    return f"{count} {noun}{'s' * (count != 1)}"


def within_adversary(*, sums: str = "") -> str:
    """Against whom a unit within a client is protected: with noise of its client's own, or of all clients in a sum.

    `sums`: against whom the sum's noise protects.
    """
    return f"{sums}, the server included" if sums else "whoever sees the messages of its client, the server included"


def delta_warning(delta: float, population: int, unit: Unit = Unit.CLIENT) -> str | None:
    """A warning if δ is not much smaller than 1/population, the number of units; None if it is.

    Example:
        >>> delta_warning(1e-3, 463)
        'δ = 0.001 is too large: choose it well below 1/463. At this δ, leaking one random client is permitted.'
    """
    if delta * population <= 0.1:
        return None
    leaked = max(1, round(delta * population))
    units = f"one random {unit}" if leaked == 1 else f"{leaked} random {unit}s"
    return f"δ = {delta:g} is too large: choose it well below 1/{population}. At this δ, leaking {units} is permitted."


def detection_limit(epsilon: float, delta: float, false_alarms: float) -> float:
    """The highest detection rate of any test with this rate of false alarms.

    (ε, δ)-differential privacy is equivalent to this bound for all tests (Kairouz, Oh, Viswanath, ICML 2015, Theorem
    2.1).

    Example:
        >>> round(detection_limit(1.0, 1e-5, 0.01), 4), detection_limit(float("inf"), 0.0, 0.01)
        (0.0272, 1.0)
    """
    if epsilon > 500:  # effectively infinite
        return 1.0
    return min(1.0, math.exp(epsilon) * false_alarms + delta, 1 - math.exp(-epsilon) * (1 - delta - false_alarms))
