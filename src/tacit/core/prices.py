"""Privacy prices of a round, and budgets, as plain values: only `tacit.privacy` computes ε from them.

A mechanism returns a price: a `Release` (a bounded sum with noise), `Leakage` (d-privacy), `Unproved` with the reason,
or `Uncalibrated` while its noise multiplier is unknown. A sampler returns a `Sampling`, which amplifies a release.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import ClassVar, Literal, Self, get_args

from tacit.errors import UserError, at_least, expect, one_of, positive, whole, within

RECIPIENTS = "anyone who receives the models; the server is trusted"
MIN_DELTA = 1e-12
MAX_NOISE = 1e9
MAX_ROUNDS = 10**6
IDENTITY_DIGITS = 16  # hexadecimal digits of the identity of a client's data
NO_LIMIT = 1e9  # the ε of a ledger without a budget of its own
TOLERANCE = 1 + 1e-9  # of a leakage limit: in floating point, six times 0.4 is slightly above 2.4


class Unit(StrEnum):
    """The unit whose presence a guarantee protects.

    A release about a client concerns each of its records and persons, too (`Release.within_client`); a release about
    records bounds nothing about their client.
    """

    CLIENT = "client"
    RECORD = "record"
    PERSON = "person"  # all records of one person at one client

    @property
    def within_client(self) -> bool:
        """Whether a client has many of them."""
        return self is not Unit.CLIENT


class Adjacency(StrEnum):
    """The relation by which two populations are neighbours."""

    ADD_OR_REMOVE = "add-or-remove"
    ZERO_OUT = "zero-out"
    REPLACE_ONE = "replace-one"

    @property
    def meaning(self) -> str:
        """The meaning of a guarantee for one client, in a sentence."""
        return _MEANINGS[self]

    def meaning_for(self, unit: Unit) -> str:
        """The meaning of a guarantee for one of these units, in a sentence."""
        if not unit.within_client or self is not Adjacency.ADD_OR_REMOVE:
            return self.meaning
        return f"What is released would be about as likely if the {unit} were not among the data of its client."


_MEANINGS = {
    Adjacency.ADD_OR_REMOVE: "What is released would be about as likely if the client were not in the population.",
    Adjacency.ZERO_OUT: (
        "What is released would be about as likely if the client had sent zeros instead of its update, with its share "
        "of the noise; that it belongs to the population is not protected."
    ),
    Adjacency.REPLACE_ONE: "What is released would be about as likely if the client had quite different data.",
}


@dataclass(frozen=True)
class Sampling:
    """The sampling of cohorts.

    Attributes:
        kind: everyone takes part, each client independently (`poisson`), or a cohort of fixed size.
        rate: the probability that a given client is in the cohort; 1 for everyone and for nothing else.
    """

    kind: Literal["everyone", "poisson", "fixed"] = "everyone"
    rate: float = 1.0

    def __post_init__(self) -> None:
        one_of(("everyone", "poisson", "fixed"), kind=self.kind)
        within("(0, 1]", rate=self.rate)
        expect((self.kind == "everyone") == (self.rate == 1), f"sampling={self.kind!r} to fit rate={self.rate}")

    @classmethod
    def at(cls, rate: float, kind: Literal["poisson", "fixed"]) -> Self:
        """Sampling at this rate, which is that of everyone if the rate is 1."""
        return cls() if rate == 1 else cls(kind, rate)

    def mean_cohort(self, population: int) -> float:
        """The mean size of a cohort, to nine decimals: what is given as a whole number stays one."""
        return round(self.rate * population, 9)

    def sensitivity(self, adjacency: Adjacency) -> int:
        """Sensitivity of a sum over such cohorts, relative to the most that one client can add to it.

        | sampling | add-or-remove, zero-out | replace-one |
        |---|---|---|
        | everyone | 1 | 2 |
        | Poisson | 1 | 2 |
        | fixed size, without replacement | 2: another client takes the removed client's place in the cohort | 2 |

        For fixed-size cohorts and add-or-remove, couple the cohort that contains the client with the cohort in which
        another client takes its place: by joint convexity, the pair is dominated by the sampled Gaussian with
        sensitivity 2. A bound with sensitivity 1 does not hold, not even for a client whose update is set to zero: the
        other clients may lie on the opposite side.
        """
        return 2 if adjacency is Adjacency.REPLACE_ONE or self.kind == "fixed" else 1


@dataclass(frozen=True)
class Budget:
    """The privacy budget (ε, δ). A run stops before the round that would exceed it."""

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        positive(epsilon=self.epsilon)
        check_delta(self.delta)

    @property
    def limited(self) -> bool:
        """Whether it limits ε at all."""
        return self.epsilon < NO_LIMIT

    def __str__(self) -> str:
        return f"ε = {self.epsilon:g} at δ = {self.delta:g}" if self.limited else f"any ε at δ = {self.delta:g}"


def check_delta(delta: float, name: str = "delta") -> None:
    """Raise `UserError` unless δ is below 1, and large enough for the accountants, which round up tails of 1e-15."""
    advice = "δ bounds the probability that the guarantee fails: use 1e-5."
    within("(0, 1)", advice, **{name: delta})
    expect(delta >= MIN_DELTA, f"{name}={delta:g} >= {MIN_DELTA:g}: no smaller probability is accounted for", advice)


def check_rounds(rounds: int, name: str = "rounds") -> None:
    """Raise `UserError` unless there is a round, and no more rounds than can be accounted for one by one."""
    whole(1, **{name: rounds})
    shown = rounds if rounds < 10**15 else "far more"  # a number may have hundreds of digits
    expect(rounds <= MAX_ROUNDS, f"{name} <= {MAX_ROUNDS}, got {shown}")


@dataclass(frozen=True)
class Gaussian:
    """The privacy loss of a sum with Gaussian noise.

    Attributes:
        noise_multiplier: standard deviation of the noise, relative to the most that one client can add to the sum.
    """

    noise_multiplier: float
    xi: ClassVar[float] = 0.0  # as of `Zcdp`
    adjacencies: ClassVar[tuple[Adjacency, ...]] = tuple(Adjacency)

    def __post_init__(self) -> None:
        noise = self.noise_multiplier
        expect(0 <= noise <= MAX_NOISE, f"noise multiplier {noise} in [0, {MAX_NOISE:g}]")

    @property
    def rho(self) -> float:
        """ρ of zero-concentrated differential privacy: D_α = ρ·α; infinite without noise."""
        return 1 / (2 * self.noise_multiplier**2) if self.noise_multiplier else math.inf

    def at_distance(self, times: int) -> "Gaussian":
        """The loss of a unit that can move the sum `times` as far."""
        return self.scaled(times)

    def scaled(self, times: float) -> "Gaussian":
        """The loss if a unit changes the sum by this many times its bound."""
        return Gaussian(self.noise_multiplier / times)


@dataclass(frozen=True)
class Laplace:
    """The privacy loss of a sum with Laplace noise, which bounds it for every output: pure ε.

    Attributes:
        noise_multiplier: scale of the noise, relative to the most that a unit can add to the sum in L1: 1/ε.
    """

    noise_multiplier: float
    xi: ClassVar[float] = 0.0  # as of `Zcdp`
    adjacencies: ClassVar[tuple[Adjacency, ...]] = tuple(Adjacency)

    def __post_init__(self) -> None:
        positive(noise_multiplier=self.noise_multiplier)

    @property
    def epsilon(self) -> float:
        """The largest privacy loss of any output."""
        return 1 / self.noise_multiplier

    @property
    def rho(self) -> float:
        """ρ of zero-concentrated differential privacy: ε²/2 (Bun, Steinke 2016, Proposition 3.3)."""
        return self.epsilon**2 / 2

    def at_distance(self, times: int) -> "Laplace":
        """The loss of a unit that can move the sum `times` as far."""
        return self.scaled(times)

    def scaled(self, times: float) -> "Laplace":
        """The loss if a unit changes the sum by this many times its bound."""
        return Laplace(self.noise_multiplier / times)


@dataclass(frozen=True)
class Zcdp:
    """A linear bound on the Rényi divergences of a sum: D_α ≤ ρ·α + ξ at integer orders, in both directions.

    Attributes:
        rho: ρ of zero-concentrated differential privacy.
        xi: ξ, added at every order.
        symmetric: whether the noise is added to the sum, and as likely as its negative.
    """

    rho: float
    xi: float = 0.0
    symmetric: bool = False
    adjacencies: ClassVar[tuple[Adjacency, ...]] = tuple(Adjacency)

    def __post_init__(self) -> None:
        positive(rho=self.rho)
        at_least(0, xi=self.xi)

    def at_distance(self, times: int) -> "Zcdp":
        """The loss of a unit that can move the sum `times` as far, by repeated doubling.

        At twice the distance, D_α ≤ 2α/(2α−1) · D_{2α−1} + D_{2α} ≤ 4·ρ·α + 7/3·ξ at every integer order.

        Reference: Bun, Steinke 2016. Concentrated Differential Privacy, Lemma 5.2 with k = 2.
        """
        doublings = (times - 1).bit_length()
        return Zcdp(4**doublings * self.rho, (7 / 3) ** doublings * self.xi, self.symmetric)

    def scaled(self, times: float) -> "Zcdp":
        """The loss if a unit changes the sum by this many times its bound."""
        return Zcdp(self.rho * times**2, self.xi, self.symmetric)


@dataclass(frozen=True)
class Release:
    """A sum over a cohort, with noise.

    Sampling amplifies a release only if its noise is the same for every cohort. Where noise in shares is not, as after
    more losses than it provides for, its variance reveals how many took part, and therefore, to an adversary who knows
    the others, whether a client did. Such a release is proved for zero-out adjacency, where the client takes part on
    both sides, and without amplification.

    Attributes:
        loss: the privacy loss of the sum for a unit that is in the cohort, or in the batch of its client.
        distance: total variation distance between the actual release and a sum with this loss; it costs
            `distance * (1 + e^ε)` of δ.
        sampling: how the cohort is drawn; of a unit within a client, how its batches are.
        adversary: against whom participants are protected, in words.
        caveat: a sentence on noise that is not covered; empty: all is.
        constant: whether the noise is the same for any number of participants and losses, and the adversary knows
            nobody's share of it.
        failure: the probability, for any data, that the round is not the one priced here; it is added to δ.
        replaces_row: whether the sum is over clients and the unit is within one of them, so that its removal replaces
            its client's row: whatever the accountant's adjacency is, this release is composed for replace-one.
    """

    loss: Gaussian | Laplace | Zcdp
    distance: float = 0.0
    sampling: Sampling = Sampling()
    adversary: str = field(default=RECIPIENTS, compare=False)
    caveat: str = field(default="", compare=False)
    constant: bool = True
    failure: float = 0.0
    replaces_row: bool = False
    reason: ClassVar[str] = ""
    figures: ClassVar[Mapping[str, float]] = {}
    leakage: ClassVar[None] = None

    def __post_init__(self) -> None:
        within("[0, 1]", distance=self.distance, failure=self.failure)

    @property
    def accounted(self) -> "Repeated":
        """The event that an accountant composes for a round of it."""
        return Repeated(self)

    @property
    def amplification(self) -> Sampling:
        """The sampling that amplifies it, for an adversary who does not know the participants; everyone: none does."""
        return self.sampling if self.constant else Sampling()

    @property
    def adjacencies(self) -> tuple[Adjacency, ...]:
        """The adjacencies for which the loss and its amplification are proved."""
        if self.amplification.kind == "fixed" and not isinstance(self.loss, Gaussian):
            return ()
        proved = self.loss.adjacencies
        return proved if self.constant else tuple(each for each in proved if each is not Adjacency.ADD_OR_REMOVE)

    def adjacency_under(self, adjacency: Adjacency) -> Adjacency:
        """The adjacency for which an accountant with this adjacency composes it."""
        return Adjacency.REPLACE_ONE if self.replaces_row else adjacency

    def check_proved(self, adjacency: Adjacency) -> None:
        """Raise `UserError` unless it is proved for this adjacency."""
        if self.adjacency_under(adjacency) in self.adjacencies:
            return
        if not self.constant and adjacency is Adjacency.ADD_OR_REMOVE:
            raise UserError(
                "Expected zero-out adjacency, got add-or-remove: the noise of clients' shares can reveal how many "
                "clients took part. Account for it in a ledger of its own."
            )
        raise UserError("Expected Poisson cohorts: for this noise nothing is proved about those of a fixed size.")

    def sampled(self, sampling: Sampling) -> Self:
        """The same sum over a cohort of this sampling; the distance does not depend on the participants."""
        return replace(self, sampling=sampling)

    def within_client(self) -> Self:
        """The release about one record, or person, of a client by a sum over clients.

        Without it, the client still takes part, and sends another row within the same bound: the two sums are twice as
        far apart as with and without a client.
        """
        return replace(self, replaces_row=True)

    def at_clients(self, clients: int) -> Self:
        """The release about a unit that occurs at this many clients of the sum, or within them.

        Without it, the sum moves that many times as far, in every round that draws at least one of these clients. Fewer
        of them cost no more, by joint convexity.
        """
        if clients == 1:
            return self
        rate = self.sampling.rate
        drawn = 1 - (1 - rate) ** clients if self.sampling.kind == "poisson" else min(1.0, clients * rate)
        sampling = Sampling() if drawn == 1 else replace(self.sampling, rate=drawn)
        return replace(self, loss=self.loss.at_distance(clients), sampling=sampling)


@dataclass(frozen=True)
class AggregateNoise:
    """Clipping and noise of an aggregate, as far as they are public before the first round.

    Attributes:
        bound: the largest L2 norm of a row; longer ones are scaled down to it.
        deviation: the standard deviation of the noise in every coordinate of the aggregate.
    """

    bound: float = math.inf
    deviation: float = 0.0

    def __post_init__(self) -> None:
        expect(self.bound > 0, f"bound={self.bound} > 0")
        at_least(0, deviation=self.deviation)


@dataclass(frozen=True)
class Leakage:
    """d-privacy (metric privacy) of every message: two points at distance d leak d / radius times the leakage.

    It is not an ε of (ε, δ)-differential privacy, and the two are never added. A client's rounds add up.

    Attributes:
        noise_multiplier: mean norm of the noise over the radius.
        radius: the radius, public and fixed beforehand; None: it depends on the data.
        limit: the total leakage within the radius at which a client declines to take part; None: unlimited.
        adversary: against whom participants are protected, in words.
    """

    noise_multiplier: float
    radius: float | None
    limit: float | None = None
    adversary: str = "the server and anyone else who sees a message"
    reason: ClassVar[str] = ""
    figures: ClassVar[Mapping[str, float]] = {}
    accounted: ClassVar[None] = None

    @property
    def leakage(self) -> Self:
        """Itself: it is accounted for as d-privacy."""
        return self

    def per_message(self, dim: int) -> float:
        """The leakage of one message of `dim` numbers, for points at the distance of the radius."""
        return dim / self.noise_multiplier

    def max_participations(self, dim: int) -> int | None:
        """In how many rounds a client takes part before it declines; None: unlimited."""
        if self.limit is None:
            return None
        rounds = math.ceil(self.limit * TOLERANCE / self.per_message(dim))
        return rounds if rounds * self.per_message(dim) <= self.limit * TOLERANCE else rounds - 1


@dataclass(frozen=True)
class Repeated:
    """The releases of a round about a unit: the same one, several times over.

    Attributes:
        release: of one step of local training, whose sampling is that of a client's batches, or of a whole round.
        times: how many such steps a client takes in a round.
    """

    release: Release
    times: int = 1
    reason: ClassVar[str] = ""
    figures: ClassVar[Mapping[str, float]] = {}
    leakage: ClassVar[None] = None

    def __post_init__(self) -> None:
        whole(1, times=self.times)

    @property
    def accounted(self) -> Self:
        """Itself: an accountant composes it for a round."""
        return self


@dataclass(frozen=True)
class Unproved:
    """Nothing is proved.

    Attributes:
        reason: why, in words.
        nominal: the price if the reason did not apply; None: there is none.
        figures: privacy figures of the mechanism's paper that are not a guarantee, by name.
        noisy: whether noise is added at all.
    """

    reason: str
    nominal: Release | Leakage | None = None
    figures: Mapping[str, float] = field(default_factory=dict)
    noisy: bool = True

    @property
    def accounted(self) -> Repeated | None:
        """The nominal event that an accountant composes, as if the reason did not apply."""
        return None if self.nominal is None else self.nominal.accounted

    @property
    def leakage(self) -> Leakage | None:
        """The nominal d-privacy, as if the reason did not apply."""
        return None if self.nominal is None else self.nominal.leakage


@dataclass(frozen=True)
class Uncalibrated:
    """The noise multiplier follows from the budget and the population, and is not known yet."""

    reason: ClassVar[str] = ""
    figures: ClassVar[Mapping[str, float]] = {}
    accounted: ClassVar[None] = None
    leakage: ClassVar[None] = None


Price = Release | Leakage | Unproved | Uncalibrated  # of a mechanism
RecordPrice = Repeated | Unproved | Uncalibrated  # of a trainer
UnitPrice = Repeated | Leakage | Unproved | Uncalibrated  # of a method, for a unit: `Terms`


@dataclass(frozen=True)
class ClientUnits:
    """The units of every client, as far as they are public.

    Attributes:
        sizes: how many of them every client has.
        unit: which: records, persons, or the client itself, of which every client has one.
        clients: at how many clients one of them occurs, at most; 0: unknown, so that each counts by itself.
        identities: of each client's data, equal for equal ones; only their owner can compute them. Names are none:
            equal ones do not show that data are equal. Empty: unknown.
    """

    sizes: tuple[int, ...]
    unit: Unit = Unit.RECORD
    clients: int = 0
    identities: tuple[str, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        expect(0 <= self.clients <= len(self.sizes), f"clients={self.clients} of {len(self.sizes)}")
        clients, digests = len(self.sizes), f"[0-9a-f]{{{IDENTITY_DIGITS}}}"
        known = len(self.identities) == clients and all(re.fullmatch(digests, each) for each in self.identities)
        expect(
            known or not self.identities,
            f"identities of {clients} clients as digests of their data, {IDENTITY_DIGITS} hexadecimal digits each",
            "A name shows neither that data are equal nor that they are disjoint. Leave identities out: a ledger then "
            "adds the worst of each run.",
        )

    @classmethod
    def whole(cls, clients: int) -> Self:
        """The clients themselves, this many of them."""
        return cls((1,) * clients, Unit.CLIENT)

    @property
    def copies(self) -> int:
        """The number of clients at which one of them is assumed to occur."""
        return max(1, self.clients)


RecordSums = Literal["float32", "float64", "cells"]  # clipped and summed so; or 1 in one number at most, else 0


@dataclass(frozen=True)
class RecordSum:
    """A row that is a sum over records of a Poisson batch: adding or removing one changes it by at most `bound`.

    Attributes:
        bound: the largest L2 norm of what one record adds to the row.
        rate: the probability with which a record is in the batch, the same for all clients.
        sums: how it is computed, from which rounding errors follow that noise has to provide for.
    """

    bound: float
    rate: float
    sums: RecordSums = "float32"

    def __post_init__(self) -> None:
        positive(bound=self.bound)
        within("(0, 1]", rate=self.rate)
        one_of(get_args(RecordSums), sums=self.sums)
