"""What a method claims for the audited rounds, what an audit found, and what it could have missed."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.stats import beta

from tacit.attacks.auditing import Audit
from tacit.attacks.bounds import (
    CONFIDENCE,
    MAX_EPSILON,
    MAX_MU,
    ErrorCounts,
    OneRunGuesses,
    PrivacyProfile,
    ScoreGap,
    Scores,
    epsilon_of_gaussian,
)
from tacit.attacks.statistics import MeasuredNoise
from tacit.core import Turnout
from tacit.core.prices import Adjacency, Gaussian, Release, Sampling, UnitPrice

COUNTS_ALPHA, GAP_ALPHA, SAMPLER_ALPHA = 0.03, 0.01, 0.005  # together less than 0.05: a union bound
GRID = 40  # values of ε at which a claimed profile is evaluated
TENTH = 10.0  # the mechanism with a tenth of the noise, against which the power of an audit is reported
REPEATS = 60  # simulated audits for each figure of its power
POWER = 0.9  # a leak counts as found if this share of the simulated audits finds it


@dataclass(frozen=True)
class Claim:
    """The privacy that a method claims for the audited rounds.

    Attributes:
        epsilon: the claimed ε at this δ; None if nothing is claimed.
        delta: the δ of the claim.
        profile: the claimed δ at any ε; None if nothing is claimed.
        reason: why nothing is claimed.
        full_participation: whether every client is in every cohort, so that the bound for Gaussian noise applies.
        effects: the most that one client can change each round's sum, in standard deviations of the claimed noise.
        rates: the probability with which a client is in each round's cohort.
        amplified: the claimed ε for clients that are sampled, if the claim above is for one that is in every cohort.
        noise: the declared standard deviation of each round's sum, relative to its bound; empty: the claim is about
            other noise than that of whole sums.
        hides_cohort: whether sampling amplifies every round, so that nothing may show whether the client was drawn.
    """

    epsilon: float | None
    delta: float
    profile: PrivacyProfile | None = None
    reason: str = ""
    full_participation: bool = False
    effects: tuple[float, ...] = ()
    rates: tuple[float, ...] = ()
    amplified: float | None = None
    noise: tuple[float, ...] = ()
    hides_cohort: bool = False

    @cached_property
    def grid(self) -> tuple[Scores, Scores] | None:
        """The claimed profile at some ε; linear interpolation between them is above it, because it is convex."""
        if self.profile is None or self.epsilon is None:
            return None
        epsilons = np.linspace(0.01, min(2 * self.epsilon, MAX_EPSILON) + 1.0, GRID)
        return epsilons, np.array([self.profile(float(epsilon)) for epsilon in epsilons])

    @property
    def mu(self) -> float:
        """The claimed μ of μ-Gaussian differential privacy, if every client takes part in every round."""
        if self.epsilon is None or self.epsilon <= 0:
            return 0.0
        claimed = self.epsilon

        def excess(mu: float) -> float:
            return epsilon_of_gaussian(mu, self.delta) - claimed

        return MAX_MU if excess(MAX_MU) <= 0 else float(brentq(excess, 1e-6, MAX_MU))


def claim_of(audit: Audit, canaries: int = 1, *, sampled: bool = False) -> Claim:
    """The privacy that the method claims for the rounds of an audit, with its dropouts.

    The claim for sampled clients rests on two others: that cohorts are drawn as declared, and that a sum has Gaussian
    noise for a client that is in the cohort. The second has a sharper test, so it is what is returned, unless the claim
    for `sampled` clients is requested, or the noise is not Gaussian. Of records, which are the only ones of
    their clients, the same holds for batches.
    """
    method, of_records = audit.method, audit.unit.within_client
    population = audit.clients + canaries
    price = _record_price(audit, population) if of_records else method.mechanism.price(0)
    accounted = None if price is None or (price.reason and not of_records) else price.accounted
    if accounted is None:
        return Claim(None, method.delta, reason=(price and price.reason) or "no noise is added")
    rounds = [[accounted.release] * accounted.times] * audit.rounds if of_records else _planned_rounds(audit, canaries)
    releases = [release for released in rounds for release in released]
    claim = _claim_of(audit, population, rounds)
    if sampled or claim.full_participation or not all(isinstance(release.loss, Gaussian) for release in releases):
        return claim
    unsampled = [[release.sampled(Sampling()) for release in released] for released in rounds]
    hides = not of_records and all(release.amplification.rate < 1 for release in releases)
    return replace(_claim_of(audit, population, unsampled), amplified=claim.epsilon, hides_cohort=hides)


def _record_price(audit: Audit, population: int) -> UnitPrice | None:
    turnout = Turnout(population, population - int(audit.dropouts * population)) if audit.dropouts else None
    return audit.method.terms.price(audit.unit, samples=audit.units_of_client, turnout=turnout)


def _planned_rounds(audit: Audit, canaries: int) -> list[list[Release]]:
    """The releases of every round about a client: the same for any number of dropouts."""
    from tacit.privacy.planned_charges import release_of

    rounds = []
    for index in range(audit.rounds):
        release = release_of(audit.method, audit.clients + canaries, index)
        rounds += [] if release is None else [[release]]
    return rounds


def _claim_of(audit: Audit, population: int, rounds: list[list[Release]]) -> Claim:
    """The claim for the same release in every round."""
    from tacit.privacy.accountants import Accounting
    from tacit.privacy.planned_charges import accountant_for

    adjacency, delta = _adjacency_of(audit), audit.method.delta
    accountant = replace(accountant_for(audit.method, population), adjacency=adjacency)
    releases = [release for released in rounds for release in released]
    accounting = Accounting.of(accountant, releases)
    unsampled = all(release.sampling.rate == 1 for release in releases)
    of_sums = audit.method.terms.noisy_slot(audit.unit) == "mechanism" and len(releases) == len(rounds) > 0
    return Claim(
        accounting.epsilon(delta),
        delta,
        accounting.delta,
        full_participation=unsampled and all(isinstance(release.loss, Gaussian) for release in releases),
        effects=tuple(math.sqrt(len(released)) * _effect(released[0], adjacency) for released in rounds),
        rates=tuple(released[0].sampling.rate for released in rounds),
        noise=tuple(_noise_of_sum(audit, population, released[0]) for released in rounds) if of_sums else (),
    )


def _noise_of_sum(audit: Audit, population: int, release: Release) -> float:
    """The declared standard deviation of a round's whole sum, relative to its bound.

    Noise in shares is more than what the release is priced with: what a client knows, its own share, comes on top.
    """
    mechanism = audit.method.mechanism
    aggregate = mechanism.aggregate_noise(audit.state, population)
    if aggregate is None:
        return 1 / math.sqrt(2 * release.loss.rho)
    bound = (mechanism.record_bound if audit.unit.within_client else None) or aggregate.bound
    return aggregate.deviation * population / bound


def _adjacency_of(audit: Audit) -> Adjacency:
    """The adjacency of the claim's accounting; add-or-remove if the audit's is no `Adjacency`."""
    by_value = {adjacency.value: adjacency for adjacency in Adjacency}
    return by_value.get(audit.adjacency, Adjacency.ADD_OR_REMOVE)


def _effect(release: Release, adjacency: Adjacency) -> float:
    change, rho = 2 if adjacency is Adjacency.REPLACE_ONE else 1, release.loss.rho
    return change * math.sqrt(2 * rho) if rho < math.inf else MAX_MU


@dataclass(frozen=True)
class AuditEvidence:
    """What many runs showed: one statistic of runs with and without one canary, both chosen on other runs.

    All bounds hold together with a confidence of 95 %.

    Attributes:
        canary: its name.
        released: what the statistic is of.
        statistic: its name.
        counts: wrong guesses at a threshold that was fixed beforehand.
        gap: of the scores, for statistics that are linear in what was released; otherwise None.
        premises: in words, how the sampler differs from what it declares.
        runs: how many runs there were, for choosing and testing.
        noise: of the released sums, relative to what the claim assumes; None: not measured.
        canaries: how many were tried.
        always_in_cohort: whether the canary was put into every cohort, which are the same in all runs.
    """

    canary: str
    released: str
    statistic: str
    counts: ErrorCounts
    gap: ScoreGap | None = None
    premises: tuple[str, ...] = ()
    runs: int = 0
    noise: MeasuredNoise | None = None
    canaries: int = 0
    always_in_cohort: bool = False
    confidence: float = CONFIDENCE

    def lower_bounds(self, delta: float, *, gaussian: bool) -> dict[str, float]:
        """Lower bounds on ε by name; with `gaussian`, also the one that holds for Gaussian noise only."""
        bounds = {"Clopper-Pearson": self.counts.epsilon_lower_bound(delta)}
        if not gaussian:
            return bounds
        by_gap = 0.0 if self.gap is None else self.gap.epsilon_lower_bound(delta)
        return {**bounds, "Gaussian": max(by_gap, self.counts.gaussian_lower_bound(delta))}

    def refutes(self, profile: PrivacyProfile) -> bool:
        """Whether the errors contradict a claimed profile at any ε."""
        return self.counts.refutes(profile)

    def __str__(self) -> str:
        return str(self.counts)


@dataclass(frozen=True)
class AuditResult:
    """A claim and the lower bounds on ε that an audit found; all bounds hold together with the audit's confidence.

    Attributes:
        claim: what the method claims.
        lower_bounds: lower bounds on ε at the claim's δ, by the name of the bound.
        profile_refuted: whether the errors contradict the claimed privacy profile at any ε.
        premises: in words, assumptions of the claim that do not hold.
        bootstrap: an estimate of ε by resampling the runs; None for one run.
    """

    claim: Claim
    lower_bounds: Mapping[str, float]
    profile_refuted: bool = False
    premises: tuple[str, ...] = ()
    bootstrap: float | None = None

    @classmethod
    def of(cls, claim: Claim, guesses: AuditEvidence | OneRunGuesses) -> "AuditResult":
        gaussian = claim.full_participation or claim.epsilon is None
        bounds = guesses.lower_bounds(claim.delta, gaussian=gaussian)
        refuted = claim.profile is not None and guesses.refutes(claim.profile)
        if isinstance(guesses, OneRunGuesses):
            return cls(claim, bounds, refuted)
        bootstrap = guesses.counts.bootstrap_lower_bound(claim.delta, gaussian=gaussian)
        return cls(claim, bounds, refuted, guesses.premises, bootstrap)

    @property
    def best(self) -> float:
        """The largest lower bound on ε."""
        return max(self.lower_bounds.values())

    @property
    def violated(self) -> bool:
        """Whether the claim is proved wrong."""
        if self.claim.epsilon is None:
            return False
        return self.profile_refuted or bool(self.premises) or self.best > self.claim.epsilon


@dataclass(frozen=True)
class Power:
    """What an audit with these runs would have found, by simulation of its tests.

    Attributes:
        tenth: the share of audits that refute the claim if a tenth of the noise is added.
        epsilon: the ε of the smallest excess of leakage that is refuted nine times in ten; None: none that was tried.
        factor: how many times less noise than claimed that is.
    """

    tenth: float
    epsilon: float | None
    factor: float | None


FACTORS = (1.1, 1.2, 1.3, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 6.0, 10.0)


def power_of(claim: Claim, evidence: AuditEvidence | OneRunGuesses) -> Power | None:
    """The power of such an audit; None without a claim."""
    if claim.epsilon is None or not claim.effects or not claim.epsilon < math.inf:
        return None

    def rate_of_refutation(factor: float) -> float:
        rng = np.random.default_rng(0)
        return float(np.mean([_is_refuted(claim, evidence, factor, rng) for _ in range(REPEATS)]))

    tenth = rate_of_refutation(TENTH)
    if tenth < POWER:
        return Power(tenth, None, None)
    low, high = 0, len(FACTORS) - 1  # the least factor found, as power grows with it
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if rate_of_refutation(FACTORS[middle]) >= POWER else (middle + 1, high)
    factor = FACTORS[low]
    epsilon = epsilon_of_gaussian(min(claim.mu * factor, MAX_MU), claim.delta) if claim.full_participation else None
    return Power(tenth, epsilon, factor)


def _is_refuted(claim: Claim, evidence: AuditEvidence | OneRunGuesses, factor: float, rng: np.random.Generator) -> bool:
    """Whether one simulated audit refutes the claim if noise is less by this factor."""
    effects, rates = np.array(claim.effects) * factor, np.array(claim.rates)
    if isinstance(evidence, OneRunGuesses):
        return AuditResult.of(claim, _guess(evidence, effects, rates, rng)).violated
    each = evidence.counts.included
    chosen, tested = (_simulate(effects, rates, count, rng) for count in (each // 3 + 10, each))
    threshold, _ = choose_threshold(chosen, each, claim)
    counts = ErrorCounts.at(threshold, *tested, 1 - COUNTS_ALPHA)
    if _margins(claim, *(np.array([rate]) for rate in counts.rates))[0] > 0:
        return True
    moved = float((effects**2).sum())
    return claim.full_participation and ScoreGap.of(*tested, 1 - GAP_ALPHA, moved).mu_lower_bound > claim.mu


def _guess(evidence: OneRunGuesses, effects: Scores, rates: Scores, rng: np.random.Generator) -> OneRunGuesses:
    """The guesses of one simulated run."""
    included = rng.random(evidence.canaries) < 0.5
    scores = np.where(included, *_simulate(effects, rates, evidence.canaries, rng))
    order, each = np.argsort(-scores), evidence.guesses // 2
    correct = int(included[order[:each]].sum()) + int((~included[order[-each:]]).sum())
    return replace(evidence, correct=correct)


def _simulate(effects: Scores, rates: Scores, count: int, rng: np.random.Generator) -> tuple[Scores, Scores]:
    """Likelihood ratios of runs with and without a canary that saturates the claim."""
    noise = rng.standard_normal((2, count, len(effects)))
    noise[0] += effects * (rng.random((count, len(effects))) < rates)
    with np.errstate(over="ignore", divide="ignore"):
        ratios = np.logaddexp(np.log(1 - rates), np.log(rates) + noise * effects - effects**2 / 2)
    scores = ratios.sum(-1)
    return scores[0], scores[1]


def choose_threshold(scores: tuple[Scores, Scores], runs: int, claim: Claim) -> tuple[float, float]:
    """The threshold that promises most against the claim, for this many further runs of either kind, and how much."""
    included, excluded = scores
    middle = (included.mean() + excluded.mean()) / 2
    thresholds = np.unique([*np.quantile(np.concatenate(scores), np.linspace(0.01, 0.99, 60)), middle])
    margins = _margins(claim, *_expected_rates(scores, thresholds, runs))
    candidates = thresholds[margins >= margins.max() - 1e-12]
    return float(candidates[np.abs(candidates - middle).argmin()]), float(margins.max())


def expected_rates(scores: tuple[Scores, Scores], runs: int, claim: Claim) -> tuple[float, float]:
    """The expected upper bounds on the error rates of this many further runs, at that threshold."""
    threshold, _ = choose_threshold(scores, runs, claim)
    fnr, fpr = _expected_rates(scores, np.array([threshold]), runs)
    return float(fnr[0]), float(fpr[0])


def _expected_rates(scores: tuple[Scores, Scores], thresholds: Scores, runs: int) -> tuple[Scores, Scores]:
    """For each threshold, the expected upper bounds on the error rates of further runs."""
    included, excluded = scores
    fnr = (np.searchsorted(np.sort(included), thresholds) + 0.5) / (len(included) + 1)
    fpr = (len(excluded) - np.searchsorted(np.sort(excluded), thresholds) + 0.5) / (len(excluded) + 1)
    errors = np.minimum(np.array([fnr, fpr]) * runs, runs - 1e-9)
    upper = beta.ppf(1 - COUNTS_ALPHA / 2, errors + 1, np.maximum(runs - errors, 1e-9))
    return upper[0], upper[1]


def _margins(claim: Claim, fnr: Scores, fpr: Scores) -> Scores:
    """By how much these error rates exceed what the claim permits; without a claim, the log of their ratio."""
    if claim.grid is None:
        with np.errstate(divide="ignore"):
            first, second = (np.log(np.maximum(1 - a, 1e-300) / b) for a, b in ((fnr, fpr), (fpr, fnr)))
        return np.asarray(np.maximum(first, second))
    epsilons, deltas = claim.grid
    powers: NDArray[np.float64] = np.exp(epsilons)[:, None]
    needed = np.maximum(1 - fnr - powers * fpr, 1 - fpr - powers * fnr)
    margins: Scores = (needed - deltas[:, None]).max(0)
    return margins
