"""Accountants compose releases into (ε, δ).

`rdp-classic` is the moments accountant of the papers, `rdp` has the improved conversion, `pld` is tight and the default
for claims. An accountant states its assumptions; its composition describes the releases so far, and `Accounting` is the
composition of a run's rounds.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import ClassVar, Self

import dp_accounting as dp
import numpy as np
from dp_accounting import rdp as dp_rdp
from dp_accounting.pld import pld_pmf as dp_pmf
from dp_accounting.pld import privacy_loss_distribution as dp_pld

from tacit.core.prices import RECIPIENTS, Adjacency, Laplace, Release, Sampling, Zcdp, check_delta
from tacit.core.schema import choose
from tacit.errors import UserError, expect, positive
from tacit.privacy.guarantee import Guarantee, detection_limit, plural
from tacit.privacy.renyi import RenyiComposition

MIN_NOISE = 0.05  # below it ε is in the hundreds, and a grid of privacy losses would fill the memory
INTEGER_ORDERS = tuple(range(2, 257))
SMALL_DELTA, COMPARED = 1e-6, 64  # up to its ε, this many values of ε are compared for a test
TAIL = 1e-15  # probability that a composition may move to infinite loss, always on the safe side
MAX_FOUND_ROUNDS = 20_000  # upper limit of every search for a number of rounds


@dataclass(frozen=True)
class RdpClassic:
    """The moments accountant as the papers used it: integer orders, ε = min over α of T·RDP(α) − ln δ / (α − 1).

    Geyer et al. used the orders 2 to 33.

    Reference: Abadi et al. 2016, Theorem 2; Mironov 2017, Proposition 3.
    """

    adjacency: Adjacency = Adjacency.ADD_OR_REMOVE
    orders: tuple[int, ...] = INTEGER_ORDERS
    name: ClassVar[str] = "rdp-classic"

    def __post_init__(self) -> None:
        expect(len(self.orders) > 0 and min(self.orders) >= 2, f"orders={self.orders} >= 2")

    def empty(self) -> RenyiComposition:
        """The composition of no releases."""
        return RenyiComposition(self.adjacency, self.orders, np.zeros(len(self.orders)), classic=True)


@dataclass(frozen=True)
class Rdp:
    """Rényi accounting with the orders of `dp_accounting` and of `RdpClassic`, and the improved conversion to (ε, δ).

    Reference: Canonne, Kamath, Steinke 2020, Proposition 12.
    """

    adjacency: Adjacency = Adjacency.ADD_OR_REMOVE
    name: ClassVar[str] = "rdp"

    def empty(self) -> RenyiComposition:
        """The composition of no releases."""
        # the bound for replace-one holds at integer orders only
        fractional = () if self.adjacency is Adjacency.REPLACE_ONE else dp_rdp.RdpAccountant().orders
        orders = tuple(sorted({*map(float, fractional), *map(float, INTEGER_ORDERS)}))
        return RenyiComposition(self.adjacency, orders, np.zeros(len(orders)))


@dataclass(frozen=True)
class Pld:
    """Privacy-loss distributions on a grid, rounded to the safe side, through `dp_accounting`. Tight.

    Reference: Koskela et al. 2020; Doroshenko et al. 2022 ("Connect the dots").
    """

    adjacency: Adjacency = Adjacency.ADD_OR_REMOVE
    interval: float = 1e-4
    name: ClassVar[str] = "pld"

    def empty(self) -> "PldComposition":
        """The composition of no releases."""
        return PldComposition(self.adjacency, self.interval)


Accountant = RdpClassic | Rdp | Pld
FAST_PLD = Pld(interval=1e-3)  # for runs: ten times faster, and ε at most a thousandth above that of the finer grid


def default_accountant(*releases: Release) -> Accountant:
    """The accountant for a run whose rounds have these releases: the tightest that can account for all of them."""
    distinct = set(releases)
    proved = all(
        release.adjacency_under(Adjacency.ADD_OR_REMOVE) in release.adjacencies or not release.adjacencies
        for release in distinct
    )
    adjacency = Adjacency.ADD_OR_REMOVE if proved else Adjacency.ZERO_OUT
    if any(isinstance(release.loss, Zcdp) for release in distinct):
        return Rdp(adjacency)
    return FAST_PLD if proved else replace(FAST_PLD, adjacency=adjacency)


ACCOUNTANTS: dict[str, type[Accountant]] = {a.name: a for a in (RdpClassic, Rdp, Pld)}


def accountant_by_name(name: str, adjacency: str = Adjacency.ADD_OR_REMOVE) -> Accountant:
    """The accountant with this name, for this adjacency."""
    kinds = {kind.value: kind for kind in Adjacency}
    return choose(ACCOUNTANTS, name, "accountant")(choose(kinds, adjacency, "adjacency"))


@dataclass(frozen=True, eq=False)
class PldComposition:
    """Composed releases as a privacy-loss distribution: distributions are convolved.

    Gaussian sums over everyone are one Gaussian sum, however many: they add no rounding of their own.

    Attributes:
        adjacency: which pairs of populations count as neighbours.
        interval: at which privacy losses are rounded up.
        distribution: of the sums over sampled cohorts; None: there are none.
        precision: 1 / z² of the sums over everyone, relative to their sensitivity, added up.
        unbounded: whether a release had almost no noise.
    """

    adjacency: Adjacency
    interval: float
    distribution: dp_pld.PrivacyLossDistribution | None = None
    precision: float = field(default=0.0, kw_only=True)
    unbounded: bool = field(default=False, kw_only=True)

    def compose(self, release: Release, count: int = 1) -> "PldComposition":
        """The convolution; a release with almost no noise counts as unbounded loss, which is safe."""
        release.check_proved(self.adjacency)
        if isinstance(release.loss, Zcdp):
            raise UserError("Expected accountant rdp: only Rényi divergences are known for this noise.")
        noise, sampling = release.loss.noise_multiplier, release.amplification
        adjacency = release.adjacency_under(self.adjacency)
        sensitivity = sampling.sensitivity(adjacency)
        if isinstance(release.loss, Laplace):  # what sampling would amplify is left aside
            pure = dp_pld.from_privacy_parameters(
                dp.pld.common.DifferentialPrivacyParameters(sensitivity / noise, 0.0),
                value_discretization_interval=self.interval,
            )
            return replace(self, distribution=_convolve(self.distribution, pure.self_compose(count)))
        if noise < MIN_NOISE * sensitivity:
            return replace(self, unbounded=True)
        if sampling.rate == 1:
            return replace(self, precision=self.precision + count * sensitivity**2 / noise**2)
        one = (noise, sampling, adjacency, self.interval)
        added = _truncate(*one) if count == 1 else _single(*one).self_compose(count)
        return replace(self, distribution=_convolve(self.distribution, added))

    def epsilon(self, delta: float) -> float:
        """The ε at this δ; infinite if a release had almost no noise."""
        if self.unbounded:
            return math.inf
        return 0.0 if self._whole is None else float(self._whole.get_epsilon_for_delta(delta))

    def delta(self, epsilon: float) -> float:
        """The δ at this ε."""
        if self.unbounded:
            return 1.0
        return 0.0 if self._whole is None else float(self._whole.get_delta_for_epsilon(epsilon))

    @cached_property
    def _whole(self) -> dp_pld.PrivacyLossDistribution | None:
        """The distribution of all."""
        if not self.precision:
            return self.distribution
        noise = 1 / math.sqrt(self.precision)
        over_everyone = _single(noise, Sampling(), Adjacency.ADD_OR_REMOVE, self.interval)
        return _convolve(self.distribution, over_everyone)


def _convolve(
    first: dp_pld.PrivacyLossDistribution | None, second: dp_pld.PrivacyLossDistribution
) -> dp_pld.PrivacyLossDistribution:
    return second if first is None else first.compose(second, TAIL)


@lru_cache(maxsize=64)
def _truncate(
    noise: float, sampling: Sampling, adjacency: Adjacency, interval: float
) -> dp_pld.PrivacyLossDistribution:
    """One release without the far tails, which cost time in every convolution."""
    return dp_pld.identity(interval).compose(_single(noise, sampling, adjacency, interval), TAIL)


@lru_cache(maxsize=64)
def _single(noise: float, sampling: Sampling, adjacency: Adjacency, interval: float) -> dp_pld.PrivacyLossDistribution:
    """One release. For Poisson cohorts, `dp_accounting` itself applies the factor 2 of replace-one."""
    replaces = adjacency is Adjacency.REPLACE_ONE and sampling.rate < 1 and sampling.kind == "poisson"
    relations = dp.NeighboringRelation
    single = dp_pld.from_gaussian_mechanism(
        noise if replaces else noise / sampling.sensitivity(adjacency),
        value_discretization_interval=interval,
        sampling_prob=sampling.rate,
        neighboring_relation=relations.REPLACE_ONE if replaces else relations.ADD_OR_REMOVE_ONE,
    )
    return _replace_one(single) if adjacency is not Adjacency.ADD_OR_REMOVE and sampling.kind == "fixed" else single


def _replace_one(removed: dp_pld.PrivacyLossDistribution) -> dp_pld.PrivacyLossDistribution:
    """One release over cohorts of fixed size, in which a client is replaced, or its row is set to zero.

    `removed`: for the pair of a sampled Gaussian at the distance of two rows, in both directions.

    Formal guarantees: let o be the row of the client that takes the place of the replaced one where that is not drawn
    (the same for both data sets), x and x' its rows, N(·) the noisy sum of the others and that row, q the rate. Given
    the others, what is released is (1 − q)·N(o) + q·N(x) or (1 − q)·N(o) + q·N(x'). For α ≥ 1, advanced joint convexity
    bounds the hockey-stick divergence of this pair, in either direction, by q·D(1 + (α − 1)/q), where D is that of two
    Gaussians at the distance of two rows: that is the divergence of `removed` when the client is removed. For α < 1,
    H_α(P‖Q) = 1 − α + α·H_{1/α}(Q‖P) gives that when it is added. The larger one of both directions at each α is
    convex (at α = 1 since the slope of D is at least −1/2 there), so that it is the curve of one pair, which dominates
    both directions and can be composed. Its losses above 0 are those of the removal, those below 0 those of the
    addition, and the rest of the probability is at 0.

    Reference: Balle, Barthe, Gaboardi 2018. Privacy Amplification by Subsampling, Theorems 2 and 9; Zhu, Dong, Wang
    2022. Optimal Accounting of Differential Privacy via Characteristic Function, Proposition 10.
    """
    above, below = removed._pmf_remove.to_dense_pmf(), removed._pmf_add.to_dense_pmf()
    gains = above._probs[max(1 - above._lower_loss, 0) :]
    first = max(above._lower_loss, 1)
    drops = below._probs[: max(-below._lower_loss, 0)]
    lowest = min(below._lower_loss, 0)
    masses = np.zeros(first + len(gains) - lowest)
    masses[: len(drops)], masses[first - lowest :] = drops, gains
    masses[-lowest] = max(0.0, 1 - above._infinity_mass - masses.sum())
    pmf = dp_pmf.DensePLDPmf(above._discretization, lowest, masses, above._infinity_mass, pessimistic_estimate=True)
    return dp_pld.PrivacyLossDistribution(pmf)


@dataclass(frozen=True, eq=False)
class Accounting:
    """The privacy accounting of a run: all of its rounds, composed by one accountant. Immutable.

    Formal guarantees: (ε, δ) holds for all composed releases together, also where later ones were chosen in view of
    earlier ones, as long as the prices themselves did not depend on private data.

    Example:
        >>> from tacit.privacy.accountants import Pld
        >>> from tacit.core.prices import Gaussian
        >>> release = Release(Gaussian(1.54), sampling=Sampling("poisson", 1 / 60))
        >>> accounting = Accounting.of(Pld()).compose(release, count=200)
        >>> accounting.rounds, round(accounting.epsilon(1e-5), 4)
        (200, 0.6806)
    """

    accountant: Accountant
    composition: RenyiComposition | PldComposition
    rounds: int = 0
    distance: float = 0.0  # total variation distance between what was released and what is composed, over all rounds
    failure: float = 0.0  # the probability that some round was not what is composed

    @classmethod
    def of(cls, accountant: Accountant, releases: Iterable[Release] = ()) -> Self:
        """The accounting of rounds with these releases; equal ones are composed at once."""
        counts = Counter(releases)
        return cls(accountant, accountant.empty()).compose_all(counts, counts.total())

    def compose(self, release: Release, count: int = 1) -> Self:
        """The accounting with `count` more rounds that have this release."""
        return self.compose_all({release: count}, count)

    def compose_all(self, counts: Mapping[Release, int], rounds: int) -> Self:
        """The accounting with `rounds` more rounds, which have these numbers of releases in total."""
        composition = self.composition
        for release, count in counts.items():
            composition = composition.compose(release, count)
        distance = self.distance + sum(count * release.distance for release, count in counts.items())
        failure = self.failure + sum(count * release.failure for release, count in counts.items())
        return replace(self, composition=composition, rounds=self.rounds + rounds, distance=distance, failure=failure)

    def epsilon(self, delta: float) -> float:
        """The ε at this δ; infinite if noise errors and failures take more than half of δ."""
        check_delta(delta)
        remaining = delta - self.noise_error(delta) - self.failure
        return self.composition.epsilon(remaining) if remaining >= delta / 2 else math.inf

    def delta(self, epsilon: float) -> float:
        """The δ at this ε."""
        positive(epsilon=epsilon)
        return min(1.0, self.composition.delta(epsilon) + _delta_of_distance(self.distance, epsilon) + self.failure)

    def detection_limit(self, false_alarms: float) -> float:
        """The highest detection rate of any test of one unit with this rate of false alarms.

        Formal guarantees: (ε, δ(ε)) holds for every ε, and each of these bounds the rate; so does the smallest bound,
        which is that of the trade-off function if ε takes all values.

        Reference: Dong, Roth, Su 2022. Gaussian Differential Privacy, Proposition 2.12.
        """
        highest = self.epsilon(SMALL_DELTA)
        if math.isinf(highest):
            return 1.0
        epsilons = (highest * step / COMPARED for step in range(1, COMPARED + 1) if highest)
        return min((detection_limit(each, self.delta(each), false_alarms) for each in epsilons), default=false_alarms)

    def noise_error(self, delta: float) -> float:
        """The part of δ that covers the distance between drawn and accounted noise.

        If the releases are within η of what is composed, (ε, δ') becomes (ε, δ' + (1 + e^ε)·η). Computed with the ε at
        δ/2, which is at least the ε at δ.
        """
        return _delta_of_distance(self.distance, self.composition.epsilon(delta / 2)) if self.distance else 0.0

    def guarantee(self, delta: float, releases: Iterable[Release], adversary: str = RECIPIENTS) -> Guarantee:
        """The guarantee at this δ; `releases`, those of the rounds, describe how cohorts were sampled."""
        all_releases = list(releases)
        if not all_releases:
            return Guarantee.none("no noise was added that an accountant could account for", rounds=self.rounds)
        epsilon = self.epsilon(delta)
        if math.isinf(epsilon):
            return Guarantee.none(f"no finite ε holds at δ = {delta:g}", rounds=self.rounds)
        return Guarantee(
            epsilon=epsilon,
            delta=delta,
            noise_error=self.noise_error(delta),
            failure=self.failure,
            rounds=self.rounds,
            adjacency=self.accountant.adjacency.value,
            sampling=describe_stages(release.sampling for release in all_releases),
            amplified=any(release.amplification.rate < 1 for release in all_releases),
            accountant=self.accountant.name,
            adversary=adversary,
        )

    def remaining_rounds(self, release: Release, epsilon: float, delta: float, guess: int = 1) -> int:
        """How many more rounds with this release stay within (ε, δ); at most `MAX_FOUND_ROUNDS`.

        The search starts at `guess`; a good one saves time.
        """
        return max_rounds(lambda rounds: self.compose(release, rounds).epsilon(delta) <= epsilon, guess)


def _delta_of_distance(distance: float, epsilon: float) -> float:
    return distance * (1 + math.exp(min(epsilon, 700.0)))


def max_rounds(fits: Callable[[int], bool], guess: int = 1) -> int:
    """The largest number of rounds that fits, if all smaller ones do; 0 if none does, at most `MAX_FOUND_ROUNDS`."""
    low, high, step = 0, max(1, guess), 1
    if fits(high):
        low = high
        while low + step <= MAX_FOUND_ROUNDS and fits(low + step):
            low, step = low + step, 2 * step
        high = min(low + step, MAX_FOUND_ROUNDS + 1)
    else:
        while high - step > 0 and not fits(high - step):
            high, step = high - step, 2 * step
        low = max(high - step, 0)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def describe_stages(samplings: Iterable[Sampling]) -> str:
    """How the cohorts of all rounds are drawn, for people: each way, and in how many rounds if there are several.

    Example:
        >>> describe_stages([Sampling("poisson", 0.2)] * 3 + [Sampling()])
        'in 3 rounds Poisson cohorts, each client with probability 0.2; in 1 round every client takes part'
    """
    rounds = Counter(map(describe_sampling, samplings))
    if len(rounds) == 1:
        return next(iter(rounds))
    return "; ".join(f"in {plural(count, 'round')} {text}" for text, count in rounds.items())


def describe_sampling(sampling: Sampling) -> str:
    """How cohorts are drawn, for people.

    Example:
        >>> describe_sampling(Sampling("fixed", 1 / 60))
        'cohorts of fixed size without replacement, 1 in 60 of the clients'
    """
    if sampling.kind == "everyone":
        return "every client takes part"
    if sampling.kind == "poisson":
        return f"Poisson cohorts, each client with probability {sampling.rate:.4g}"
    part, of = Fraction(sampling.rate).limit_denominator(100_000).as_integer_ratio()
    return f"cohorts of fixed size without replacement, {part} in {of} of the clients"
