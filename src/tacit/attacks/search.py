"""Search for the canary and the statistic that show the most, and test them on runs of their own.

1. *Observe*: runs without a canary show the noise of everything that is released.
2. *Search*: for each canary of a catalog, its exact effect is the difference of two runs with the same keys, with and
   without it. With the observed noise, this predicts how well each linear test separates them.
3. *Choose*: runs with and without the most promising canaries are scored by all statistics. The best statistics and
   their thresholds are fixed.
4. *Test*: all bounds come from further runs, which had no part in any choice. If they refute the claim, the test is
   repeated on fresh runs, and what these show is the result.

A lie of the server that clients answer with a message of another length is observed and searched like an honest server.
"""

from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import poisson

from tacit.attacks.auditing import FAILED, SUM_BOUNDS, Audit, Canary, coordinate_effects
from tacit.attacks.bounds import ErrorCounts, ScoreGap, mu_of_rates
from tacit.attacks.canaries import CanaryCatalog
from tacit.attacks.claims import (
    COUNTS_ALPHA,
    GAP_ALPHA,
    AuditEvidence,
    AuditResult,
    Claim,
    choose_threshold,
    expected_rates,
)
from tacit.attacks.lies import Lie
from tacit.attacks.recording import Record, Recorder
from tacit.attacks.sampling import batch_problems, sampler_problems
from tacit.attacks.statistics import (
    FloatVector,
    MeasuredNoise,
    Noise,
    Statistic,
    commonest,
    energies,
    linear,
    nearest,
    off_grid,
    sampled_linear,
    together,
)
from tacit.core import Key
from tacit.errors import expect

MIN_RUNS = 100
OBSERVED, CHOSEN = 0.2, 0.2  # of all runs: for observing the noise, and for choosing statistics
FINALISTS = 2  # canaries that are run to choose among statistics, besides those of other kinds
MIN_CHOSEN = 20  # runs of each of them, with and without it
CLEAR = 20.0  # standard deviations, beyond which one statistic is enough
SIMPLE = "weighted by variance"  # of which nothing but variances is fitted
FITTED = 0.9  # of what others promise
STATISTICS = 4  # linear ones of each kind of release that are compared
COMMON = 1e-3  # the probability of a value of exact noise, which has thousands of steps per bound
_CHANCE = 1e-6  # that a value of correct noise is called too common
_SMALL = 64  # releases of at most this many numbers are never ignored
_MAX_NUMBERS = 4e7  # in memory at once
UNSTEADY_KEYS = 6  # over which an effect is averaged, if it differs between keys
SWEPT = 512  # coordinates tried at once
STEADY = 1.05  # an effect is steady if it differs between keys by no more than this factor
Stacks = dict[str, NDArray[np.float64] | NDArray[np.float32]]


@dataclass(frozen=True, eq=False)
class CanaryTrial:
    """A canary with its effect on all releases.

    Attributes:
        canary: its updates.
        effects: by the name of the release.
        others: the same with another key; very different where the noise depends on the canary.
        offsets: the effects of the other clients' updates.
        separation: the best predicted separation of any linear test.
    """

    canary: Canary
    effects: Mapping[str, FloatVector]
    others: Mapping[str, FloatVector]
    offsets: Mapping[str, FloatVector]
    separation: float

    def shift_of(self, statistic: Statistic) -> float | None:
        """Its shift of a linear statistic, the same in every run; None if it depends on the run."""
        if statistic.weights is None:
            return None
        one, other = (float(statistic.weights @ each[statistic.released]) for each in (self.effects, self.others))
        return min(one, other) if 0 < max(one, other) <= STEADY * min(one, other) else None


@dataclass(frozen=True, eq=False)
class Scored:
    """A statistic with its scores in runs with and without a canary, (2, runs).

    `moved` is the canary's shift of each score, if it is the same in every run.
    """

    canary: Canary
    statistic: Statistic
    scores: NDArray[np.float64]
    moved: float | None = None

    @property
    def worlds(self) -> tuple[FloatVector, FloatVector]:
        """The scores with, and without the canary."""
        return self.scores[0], self.scores[1]

    @property
    def spread(self) -> float:
        """The standard deviation of the scores, with and without the canary."""
        return float(np.sqrt(self.scores.var(1).mean()))

    @property
    def gap(self) -> float:
        """The difference of the mean scores in standard deviations."""
        difference = float(self.scores[0].mean() - self.scores[1].mean())
        return difference / max(self.spread, abs(difference) / 1e6, 1e-100)


@dataclass(eq=False)
class Search:
    """One audit by many runs.

    Attributes:
        audit: what is run.
        claim: the claim to be tested.
        runs: how many, for observing, choosing and testing; the search itself takes a few hundred more.
        key: of all randomness.
        lie: of the server in all runs; None: it is honest but for the lies of single canaries.
        evidence: the result, once all `steps` are done.
    """

    audit: Audit
    claim: Claim
    runs: int
    key: Key
    lie: Lie | None = None
    evidence: AuditEvidence = field(init=False)

    def __post_init__(self) -> None:
        expect(self.runs >= MIN_RUNS, f"runs={self.runs} >= {MIN_RUNS}", "Fewer runs cannot prove anything.")
        sampled = self.claim.epsilon is not None and self.claim.amplified is None
        self.record = Recorder(self.audit, sampled, self.lie)
        self.tried = 0  # canaries
        self.empty: dict[tuple[Key, bool], Record] = {}
        self.rates = np.array(self.claim.rates or (1.0,) * self.audit.rounds)

    def steps(self) -> Iterator[int]:
        """Run everything, until there is evidence; yields after every run that counts."""
        catalog = self._catalog()
        stacks, noises = yield from self._observe(catalog)
        best, who = (yield from self._choose(catalog, noises)), self
        for number, lie in enumerate(self._list_lies_answered(catalog)):
            other = Search(self.audit, self.claim, self.runs, self.key.child("lie", number), lie)
            there = other._catalog()
            _, observed = yield from other._observe(there)
            second = yield from other._choose(there, observed)
            self.tried += other.tried
            if other._promise(second) > who._promise(best):
                best, who = second, other
        evidence = yield from who._test(best, "test")
        if AuditResult.of(self.claim, evidence).violated:  # seldom by chance, and far more seldom twice
            evidence = yield from who._test(best, "test again")
        noise = self._measured_noise(stacks)
        problems = (*self._describe_repetition(noises), *self._lumps(stacks, noises), *_describe_missing(noise))
        premises = (*self._premises(), *problems)
        self.evidence = replace(evidence, premises=premises, noise=noise, canaries=self.tried)

    def _observe(self, catalog: CanaryCatalog) -> Generator[int, None, tuple[Stacks, dict[str, Noise]]]:
        """Runs without a canary, and the noise in them."""
        self._ignore_repetitions(catalog.first())
        stacks = yield from self._stacks(catalog.first(), self._observed_runs)
        effects = self._effects(catalog.first())[0]
        return stacks, {name: Noise.of(stack, float(np.abs(effects[name]).max())) for name, stack in stacks.items()}

    def _choose(self, catalog: CanaryCatalog, noises: Mapping[str, Noise]) -> Generator[int, None, Scored]:
        """The best canary and statistic."""
        candidates, finalists = self._finalists(catalog, noises), list[Scored]()
        each = max(self._chosen_runs // len(candidates), MIN_CHOSEN)
        for number, candidate in enumerate(candidates):
            finalists += yield from self._compare(candidate, noises, each, number)
        return max(finalists, key=self._promise)

    def _list_lies_answered(self, catalog: CanaryCatalog) -> Iterator[Lie]:
        """Broadcasts that clients answer with a sum of another length, which needs observations of its own."""
        for number, lie in enumerate(self.audit.lies):
            canary, key = replace(catalog.first(), lie=lie), self.key.child("answer", number)
            total = self.audit.run(canary, key, included=True, sampled=False).get("sum")
            if total is not None and total.numel() not in (0, self.record.sizes.get("sum")):
                yield lie

    @property
    def _chosen_runs(self) -> int:
        return max(int(self.runs * CHOSEN / 2), 20)

    @property
    def _tested_runs(self) -> int:
        return max((self.runs - self._observed_runs - 2 * self._chosen_runs) // 2, 30)

    def _measured_noise(self, stacks: Mapping[str, NDArray[Any]]) -> MeasuredNoise | None:
        """The noise of sums of zeros; None: the claim declares none for whole sums, or rounds failed."""
        rounds, declared = self.audit.rounds, np.array(self.claim.noise)
        sums, bounds = stacks.get("sum"), stacks.get(SUM_BOUNDS)
        if sums is None or bounds is None or not len(declared) or not self._is_steady or stacks[FAILED].any():
            return None
        if sums.shape[1] % rounds:  # rounds of different lengths, as after a vote
            return None
        bounds = bounds.reshape(len(bounds), rounds, -1)
        if bounds.shape[2] != 3 or bounds[:, :, 2].any():  # a bound for every layer, or axes
            return None
        return MeasuredNoise.of(sums.reshape(len(sums), rounds, -1), bounds[:, :, 0], declared)

    @property
    def _is_steady(self) -> bool:
        """Whether observed cohorts are the same in all runs, so that none of them is empty by chance."""
        return bool((self.rates == 1).all())

    def _lumps(self, stacks: Mapping[str, NDArray[Any]], noises: Mapping[str, Noise]) -> Iterator[str]:
        """Whether one value of the noise is far commoner than Gaussian noise has it, in words."""
        if "sum" not in stacks or not self._is_steady or self.claim.epsilon is None:
            return
        sums = stacks["sum"]
        count, expected = commonest(sums, noises["sum"].steps)
        expected = max(expected, COMMON * sums.size) if expected else 0.0
        if expected and poisson.sf(count - 1, expected) * sums.size < _CHANCE:
            yield (
                f"one value occurs {count} times among the {sums.size} numbers of noise in {len(sums)} runs, where "
                f"Gaussian noise has each of its values about {expected:.2g} times at most"
            )

    def _describe_repetition(self, noises: Mapping[str, Noise]) -> Iterator[str]:
        """Whether runs with different keys had the same noise, in words."""
        for name in ("sum", "model"):
            for index in noises[name].repetitions(self.audit.rounds) if name in noises else ():
                yield f"the noise of round {index + 1} was the same in two of {len(noises[name].observed)} runs"
                return

    def _catalog(self) -> CanaryCatalog:
        hostile = self.audit.records, () if self.lie else self.audit.lies
        catalog = CanaryCatalog(self.audit.state, self.audit.rounds, 1.0, self.key.child("canaries"), *hostile)
        bounds = self.record(catalog.first(), self.key.child("bound"), included=True).get(SUM_BOUNDS)
        usable = [] if bounds is None else [value for value in bounds[:1].tolist() if 0 < value < 1e6]
        return replace(catalog, bound=usable[0] if usable else 1.0)

    def _ignore_repetitions(self, canary: Canary) -> None:
        """Ignore large releases that never change, and those that are multiples of the model's change."""
        keys = [self.key.child("probe", number) for number in range(3)]
        probes = [self.record(canary, key, included=flag, sampled=False) for key in keys for flag in (True, False)]
        kept: list[str] = []
        for name, size in self.record.sizes.items():
            values = [probe[name] for probe in probes]
            constant = all(np.array_equal(values[0], value) for value in values[1:])
            repeated = any(_are_multiples(values, [probe[other] for probe in probes]) for other in kept)
            if size <= _SMALL or not (constant or repeated):
                kept += [name] * (size > _SMALL)
            else:
                self.record.ignored |= {name}

    @property
    def _observed_runs(self) -> int:
        numbers = sum(size for name, size in self.record.sizes.items() if name not in self.record.ignored)
        return int(min(max(self.runs * OBSERVED, 36), max(_MAX_NUMBERS / max(numbers, 1), 36)))

    def _stacks(self, canary: Canary, runs: int) -> Generator[int, None, Stacks]:
        stacks: Stacks = {}
        for number in range(runs):
            record = self.record(canary, self.key.child("observe", number), included=False)
            for name, value in record.items():
                if number == 0:
                    stacks[name] = np.empty((runs, len(value)), value.dtype)
                stacks[name][number] = value
            yield number
        return stacks

    def _effects(self, canary: Canary) -> tuple[dict[str, FloatVector], dict[str, FloatVector], dict[str, FloatVector]]:
        """The exact effect of a canary, by runs with the same keys; for a single key; and that of the other clients."""
        keys = [self.key.child("effect", number) for number in range(2)]
        without = [self._leave_out(canary, key) for key in keys]
        with_it = [self.record(canary, key, included=True, sampled=False) for key in keys]
        effects, of_one_key, unsteady = {}, {}, []
        for name in with_it[0]:
            first, second = (a[name].astype(np.float64) - b[name] for a, b in zip(with_it, without, strict=True))
            effects[name], of_one_key[name] = (first + second) / 2, second
            if np.linalg.norm(first - second) > 0.05 * np.linalg.norm(effects[name]) and len(first) > 1:
                unsteady.append(name)
        if unsteady:
            effects |= self._odd_and_even(canary, unsteady)
        alone = without[0] if canary.is_among_zeros else self._leave_out(canary.among_zeros, keys[0])
        return effects, of_one_key, {name: without[0][name].astype(np.float64) - alone[name] for name in effects}

    def _odd_and_even(self, canary: Canary, names: list[str]) -> dict[str, FloatVector]:
        """The effect where the noise itself depends on the canary.

        Opposite updates leave the noise as it is, so that half of their difference is exact. What they have in common
        is a mean over keys, and counts only if it is more than the noise of that mean.
        """
        keys = [self.key.child("effect", number) for number in range(UNSTEADY_KEYS)]
        opposite = canary.opposite
        plus = [self.record(canary, key, included=True, sampled=False) for key in keys]
        without = [self._leave_out(canary, key) for key in keys]
        minus = [self.record(opposite, key, included=True, sampled=False) for key in keys] if opposite else plus
        effects = {}
        for name in names:
            up, down, none = (
                np.stack([run[name] for run in runs]).astype(np.float64) for runs in (plus, minus, without)
            )
            odd, even = ((up - down) / 2).mean(0), (up + down) / 2 - none
            mean, noise = even.mean(0), even.var(0, ddof=1) / len(keys)
            effects[name] = odd + mean if float((mean**2).sum()) > 3 * float(noise.sum()) else odd
            if not odd.any():
                effects[name] = mean
        return effects

    def _leave_out(self, canary: Canary, key: Key) -> Record:
        """A run without the canary, which is the same for most canaries."""
        usual = canary.is_among_zeros and not (canary.absent or canary.alone)
        if not usual or self.audit.adjacency == "replace-one":
            return self.record(canary, key, included=False, sampled=False)
        if (key, canary.first) not in self.empty:
            self.empty[key, canary.first] = self.record(canary, key, included=False, sampled=False)
        return self.empty[key, canary.first]

    def _finalists(self, catalog: CanaryCatalog, noises: Mapping[str, Noise]) -> list[CanaryTrial]:
        """The canaries with the best predicted separation, and the best of kinds whose effects linear tests miss."""
        trials = [self._candidate(canary, noises) for canary in (*catalog.all(), *self._swept(catalog, noises))]
        best = max(trials, key=lambda candidate: candidate.separation)
        trials += [self._candidate(canary, noises) for canary in catalog.variants(best.canary)]
        self.tried = len(trials)
        trials.sort(key=lambda candidate: -candidate.separation)
        finalists = trials[:FINALISTS]
        for kind in (1, self.audit.state.dim):
            alike = [trial for trial in trials if trial.canary.coordinates == kind]
            finalists += alike[:1] if alike and alike[0] not in finalists else []
        return finalists + [self._candidate(canary, noises) for canary in self._unseen(finalists[0].canary)]

    def _unseen(self, canary: Canary) -> Iterator[Canary]:
        """The canary in cohorts that are random: absent where it is not drawn, and where nobody else is drawn."""
        if self.claim.hides_cohort and not self.record.sampled:
            if self.audit.adjacency != "add-or-remove":
                yield replace(canary, name=f"{canary.name}, or absent", absent=True)
            if self.audit.can_be_alone:
                yield replace(canary, name=f"{canary.name}, alone in its cohort", alone=True, others=None)

    def _candidate(self, canary: Canary, noises: Mapping[str, Noise]) -> CanaryTrial:
        effects, others, offsets = self._effects(canary)
        best = max(
            noise.separation(effects[name], direction)
            for name, noise in noises.items()
            for _, direction in noise.directions(effects[name])
        )
        return CanaryTrial(canary, effects, others, offsets, best)

    def _swept(self, catalog: CanaryCatalog, noises: Mapping[str, Noise]) -> Iterator[Canary]:
        """The single coordinate in which a huge update has the largest effect, of many tried at once."""
        dim = self.audit.state.dim
        order = torch.randperm(dim, generator=self.key.child("sweep").public_generator())[
            : min(SWEPT, 10_000_000 // dim + 8)
        ]
        effects = coordinate_effects(self.audit, order, self.key.child("sweep"))
        if "model" in noises and len(noises["model"].scale) >= dim:
            ratio = np.abs(effects.numpy()) / noises["model"].scale[order.numpy()]
            yield catalog.coordinate(int(order[int(ratio.argmax())]))

    def _compare(
        self, candidate: CanaryTrial, noises: Mapping[str, Noise], runs: int, number: int
    ) -> Generator[int, None, list[Scored]]:
        """All statistics on runs with and without this canary."""
        statistics = list(self._statistics(candidate, noises))
        scores = yield from self._scores(candidate.canary, statistics, runs, self.key.child("choose", number))
        moved = [None if bool((self.rates < 1).any()) else candidate.shift_of(each) for each in statistics]
        results = [Scored(candidate.canary, *_orient(s, scores[:, i]), moved[i]) for i, s in enumerate(statistics)]
        linear_ones, energy = (
            [scored for scored in results if scored.statistic.family == family] for family in ("linear", "energy")
        )
        if not energy:
            return results
        first, second = (max(some, key=lambda scored: scored.gap) for some in (linear_ones, energy))
        if max(first.gap, second.gap) > CLEAR or min(first.gap, second.gap) <= 0:
            return results  # one of them is enough, or one of them shows nothing
        weights = first.gap / first.spread, second.gap / second.spread
        both = together(first.statistic, second.statistic, weights)
        return [*results, Scored(candidate.canary, both, weights[0] * first.scores + weights[1] * second.scores)]

    def _statistics(self, candidate: CanaryTrial, noises: Mapping[str, Noise]) -> Iterator[Statistic]:
        rounds, layers = self.audit.rounds, self.audit.state.layers
        for name, noise in noises.items():
            effect, centre = candidate.effects[name], noise.centre + candidate.offsets[name]
            directions = [(noise.separation(effect, d), label, d) for label, d in noise.directions(effect)]
            directions.sort(key=lambda direction: -direction[0])
            for _, label, direction in directions[:STATISTICS]:
                yield linear(name, label, centre, direction / noise.scale)
                if bool((self.rates < 1).any()) and len(direction) % rounds == 0:
                    yield self._sampled(name, label, centre, direction, effect, noise)
            yield from energies(name, centre, noise.scale, rounds, layers)
            yield from nearest(name, noise, candidate.offsets[name], effect)
            if noise.steps.any():
                yield off_grid(name, noise.example, noise.steps)

    def _sampled(
        self, name: str, label: str, centre: FloatVector, direction: FloatVector, effect: FloatVector, noise: Noise
    ) -> Statistic:
        """The same test, round by round, for a canary that is sampled."""
        shape = self.audit.rounds, -1
        by_round = direction.reshape(shape)
        moved = (by_round * (effect / noise.scale).reshape(shape)).sum(1)
        check = noise.check.reshape(len(noise.check), *shape)
        spread = (check * by_round.astype(np.float32)).sum(-1, dtype=np.float64).std(0) + np.abs(moved) / 1e6 + 1e-30
        weights = by_round / noise.scale.reshape(shape) / spread[:, None]
        return sampled_linear(name, f"{label}, for sampled rounds", centre, weights, moved / spread, self.rates)

    def _scores(
        self, canary: Canary, statistics: list[Statistic], runs: int, key: Key
    ) -> Generator[int, None, NDArray[np.float64]]:
        """(2, statistics, runs): scores of runs with and without the canary."""
        scores = np.zeros((2, len(statistics), runs))
        for run in range(runs):
            for world, included in enumerate((True, False)):
                record = self.record(canary, key.child("with" if included else "without", run), included=included)
                scores[world, :, run] = [statistic.score(record) for statistic in statistics]
                yield run
        return scores

    def _promise(self, scored: Scored) -> float:
        """The expected bound of further runs; linear statistics have a sharper one under Gaussian noise."""
        runs = self._tested_runs
        if not (self.claim.full_participation or self.claim.epsilon is None):
            return choose_threshold(scored.worlds, runs, self.claim)[1]
        by_counts = mu_of_rates(*expected_rates(scored.worlds, runs, self.claim))
        if not scored.statistic.linear:
            return FITTED * by_counts
        mu = scored.gap if scored.moved is None else scored.moved / max(scored.spread, 1e-6 * scored.moved)
        gap = ScoreGap(mu, runs, runs, True, 1 - GAP_ALPHA, exact=scored.moved is not None)
        promised = max(gap.mu_lower_bound, by_counts)
        return promised if scored.statistic.name == SIMPLE else FITTED * promised

    def _test(self, chosen: Scored, name: str) -> Generator[int, None, AuditEvidence]:
        """The chosen statistic on fresh runs."""
        runs, lie = self._tested_runs, "" if self.lie is None else f", and the server sends {self.lie.name}"
        scores = yield from self._scores(chosen.canary, [chosen.statistic], runs, self.key.child(name))
        included, excluded = scores[:, 0]
        threshold, _ = choose_threshold(chosen.worlds, runs, self.claim)
        return AuditEvidence(
            canary=f"{chosen.canary.name}{lie}",
            released=chosen.statistic.released,
            statistic=chosen.statistic.name,
            counts=ErrorCounts.at(threshold, included, excluded, 1 - COUNTS_ALPHA),
            gap=ScoreGap.of(included, excluded, 1 - GAP_ALPHA, chosen.moved) if chosen.statistic.linear else None,
            runs=self.runs,
            always_in_cohort=not self.record.sampled,
        )

    def _premises(self) -> tuple[str, ...]:
        """How cohorts and batches are not drawn as declared, in words."""
        audit = self.audit
        cohorts = sampler_problems(audit.method.sampler, audit.clients + 1, audit.rounds, self.key)
        return *cohorts, *batch_problems(audit.method, audit.unit, audit.units_of_batches, self.key)


def _describe_missing(noise: MeasuredNoise | None) -> Iterator[str]:
    """Whether noise is missing, in words."""
    if noise is not None and noise.is_less:
        yield f"the noise of the sum is {noise.ratio:.3f} ± {noise.error:.3f} times as large as the claim assumes"


def _orient(statistic: Statistic, scores: NDArray[np.float64]) -> tuple[Statistic, NDArray[np.float64]]:
    """An energy, signed so that it is larger for runs with the canary."""
    if statistic.family != "energy" or scores[0].mean() >= scores[1].mean():
        return statistic, scores
    return replace(statistic, score=lambda run: -statistic.score(run)), -scores


def _are_multiples(first: list[FloatVector], second: list[FloatVector]) -> bool:
    """Whether one is the same multiple of the other in all runs."""
    if len(first[0]) != len(second[0]):
        return False
    a, b = (np.concatenate(values).astype(np.float64) for values in (first, second))
    norm = float(b @ b)
    factor = float(a @ b) / norm if norm else 0.0
    rounding = 1e-12 if first[0].dtype == np.float64 else 1e-4  # low-order bits count where they were recorded
    return factor != 0 and float(np.linalg.norm(a - factor * b)) <= rounding * float(np.linalg.norm(a))


def search(audit: Audit, claim: Claim, runs: int, key: Key) -> AuditEvidence:
    """Audit by many runs, to the end."""
    searching = Search(audit, claim, runs, key)
    for _ in searching.steps():
        pass
    return searching.evidence
