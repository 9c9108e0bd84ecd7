"""Statistics of what a run released: linear ones along a canary's effect, and the energy of the noise.

The noise of runs without the canary is observed first. From it follow, for the known effect of a canary, linear tests:
with the variance of each number on its own; with all covariances, more or less shrunk (Fisher's discriminant), which
finds directions without noise; and with the differences of numbers whose noise is the same. The energy, the sum of
squares, shows a canary that changes the amount of noise. The distance to the nearest observed noise shows noise of the
wrong shape, and low-order bits show sums that are finer than their noise.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

FloatVector = NDArray[np.float64]
Stack = NDArray[np.float32]
RIDGES = (1.0, 1e-2, 1e-6)
SAME = 0.999  # correlation of numbers whose noise is the same
MIN_VARIED = 8  # numbers that two runs do not all share by chance
MIN_ENERGY = 8  # numbers, below which the energy is not tested
_MAX_MU = 1e6
NEIGHBOURS = 5  # the distance to the fifth nearest of numbers estimates their density
_TINY = 1e-6  # standard deviations within which numbers are the same
_MAX_COMPARED = 1024  # numbers compared with the observed ones
MIN_REFERENCE, MAX_REFERENCE = 100, 20_000  # of the latter
LESS = 4.3  # standard errors
COARSE_VALUES = 0.05  # probability of a value, above which noise is too coarse to look for common ones
GRID_BITS = {np.dtype(np.float64): 44, np.dtype(np.float32): 20}  # below the largest number, of a grid that is sought
MIN_GRID = 16  # of these units, below which a grid is that of the number type


@dataclass(frozen=True, eq=False)
class Noise:
    """The noise of one kind of release, observed in runs without a canary.

    Attributes:
        centre: the mean of each number.
        scale: its standard deviation, at least as much as rounding.
        fit: standardised numbers of the runs for fitting tests, (runs, numbers).
        check: those of other runs, for comparing tests.
        example: the numbers of a run.
        steps: of a grid on which each number differs from the example, much coarser than the number type; 0: none.
    """

    centre: FloatVector
    scale: FloatVector
    fit: Stack
    check: Stack
    example: FloatVector
    steps: FloatVector

    @classmethod
    def of(cls, runs: NDArray[np.float64] | Stack, effect_size: float) -> "Noise":
        """The noise in these runs; `effect_size` is that of the largest effect of a canary."""
        fitted = len(runs) * 2 // 3
        centre, spread = runs[:fitted].mean(0, dtype=np.float64), runs[:fitted].std(0, dtype=np.float64)
        rounding = 1e-6 * max(float(np.abs(runs).max(initial=0.0)), effect_size, 1e-30)
        scale = np.maximum(spread, rounding)
        standard = ((runs - centre) / scale).astype(np.float32)
        return cls(centre, scale, standard[:fitted], standard[fitted:], runs[0].astype(np.float64), _grid_steps(runs))

    @cached_property
    def _gram(self) -> FloatVector:
        fit = self.fit.astype(np.float64)
        product: FloatVector = fit @ fit.T
        return product

    @cached_property
    def _repeated(self) -> NDArray[np.int64]:
        """Pairs of numbers with the same noise up to its sign, (pairs, 3): both positions and the sign."""
        lengths = np.linalg.norm(self.fit, axis=0)
        moving = np.flatnonzero(lengths > 0.5 * np.sqrt(len(self.fit)))
        if len(moving) < 2 or len(self.fit) < 10:
            return np.zeros((0, 3), np.int64)
        unit = self.fit[:, moving] / lengths[moving]
        hashed = np.random.default_rng(0).standard_normal(len(unit)).astype(np.float32) @ unit
        order = np.argsort(np.abs(hashed))
        products = (unit[:, order[:-1]] * unit[:, order[1:]]).sum(0)
        matches = np.flatnonzero(np.abs(products) > SAME)
        signs = np.sign(products[matches]).astype(np.int64)
        return np.stack([moving[order[matches]], moving[order[matches + 1]], signs], 1)

    def directions(self, effect: FloatVector) -> Iterator[tuple[str, FloatVector]]:
        """Linear tests for this effect, of standardised numbers, by name."""
        shift = effect / self.scale
        yield "weighted by variance", shift
        if len(shift) < 2:
            return
        along = self.fit @ shift
        for ridge in RIDGES:
            inner = np.linalg.solve(self._gram + ridge * len(self.fit) * np.eye(len(self.fit)), along)
            yield f"Fisher, ridge {ridge:g}", shift - inner @ self.fit
        if len(self._repeated):
            first, second, sign = self._repeated.T
            differences, weights = shift[first] - sign * shift[second], np.zeros_like(shift)
            np.add.at(weights, first, differences)
            np.add.at(weights, second, -sign * differences)
            yield "repeated noise", weights

    def separation(self, effect: FloatVector, direction: FloatVector) -> float:
        """The effect's shift of this test in standard deviations of the noise, on runs not used for fitting."""
        direction = direction / max(float(np.abs(direction).max(initial=0.0)), 1e-300)
        moved = float(direction @ (effect / self.scale))
        spread = float((self.check @ direction.astype(np.float32)).std(dtype=np.float64))
        return moved / (spread + abs(moved) / _MAX_MU) if moved > 0 else 0.0

    @property
    def observed(self) -> Stack:
        """The standardised numbers of all runs."""
        return np.concatenate([self.fit, self.check])

    @property
    def pooled(self) -> tuple[FloatVector, FloatVector]:
        """Zero and a common deviation, if the numbers do not contradict them; otherwise their own."""
        runs, common = len(self.fit), float(np.sqrt(np.mean(self.scale**2)))
        alike = float(np.std(self.scale / common)) < 2 / np.sqrt(2 * runs)
        centred = float(np.mean((self.centre / self.scale) ** 2)) < 2 / runs
        scale = np.full_like(self.scale, common) if alike else self.scale
        return np.zeros_like(self.centre) if centred else self.centre, scale

    def repetitions(self, rounds: int) -> Iterator[int]:
        """The rounds in which two runs had the same noise, which has too few values then."""
        observed = self.observed
        if observed.shape[1] % rounds:
            return
        for index, part in enumerate(np.split(observed, rounds, axis=1)):
            varied = part[:, part.std(0) > 0.5]
            if varied.shape[1] >= MIN_VARIED and len(np.unique(varied.round(3), axis=0)) < len(varied):
                yield index


@dataclass(frozen=True)
class MeasuredNoise:
    """The noise of the released sums of many runs, relative to what a claim declares.

    Attributes:
        ratio: its standard deviation over the declared one.
        error: one standard error of that ratio, if the noise is Gaussian.
    """

    ratio: float
    error: float

    @classmethod
    def of(cls, sums: NDArray[Any], bounds: FloatVector, declared: FloatVector) -> "MeasuredNoise":
        """The noise in sums of zeros.

        Args:
            sums: of the runs, (runs, rounds, numbers).
            bounds: of their rounds, (runs, rounds).
            declared: the declared standard deviation in every round, relative to the bound, (rounds,).
        """
        standard = sums / (bounds * declared)[:, :, None]
        mean = float((standard.astype(np.float64) ** 2).mean())
        return cls(float(np.sqrt(mean)), float(np.sqrt(mean / 2 / standard.size)))

    @property
    def is_less(self) -> bool:
        """Whether it is less than declared, which happens by chance with a probability of 1e-5 at most."""
        return self.ratio + LESS * self.error < 1


def commonest(runs: NDArray[Any], steps: FloatVector) -> tuple[int, float]:
    """How often the commonest value occurs among all numbers of the runs, and how often it is expected to.

    Gaussian noise on a grid of this step has each of its values with a probability of step / (√(2π)·σ) at most.
    Numbers without noise are left out, and those on so coarse a grid that every value is common.
    """
    spread = runs.std(0, dtype=np.float64)
    largest = np.abs(runs).max(0).astype(np.float64)
    steps = np.maximum(steps, np.spacing(largest.astype(runs.dtype)).astype(np.float64))
    chance = steps / (np.sqrt(2 * np.pi) * np.maximum(spread, 1e-300))
    which = (spread > 1e-6 * largest) & (chance < COARSE_VALUES)
    if not which.any():
        return 0, 0.0
    values = runs[:, which].ravel()
    return int(np.unique(values, return_counts=True)[1].max()), values.size * float(chance[which].max())


def _grid_steps(runs: NDArray[np.float64] | Stack) -> FloatVector:
    """The step of the grid on which each number differs between runs; 0: there is none but that of its type."""
    bits = GRID_BITS[runs.dtype]
    largest = np.abs(runs).max(0).astype(np.float64)
    unit = np.exp2(np.floor(np.log2(np.maximum(largest, 1e-300))) - bits)
    differences = np.rint((runs.astype(np.float64) - runs[0]) / unit)
    common = np.gcd.reduce(np.abs(differences).astype(np.int64), axis=0)
    steps: FloatVector = np.where(common >= MIN_GRID, common * unit, 0.0)
    return steps


@dataclass(frozen=True, eq=False)
class Statistic:
    """A number that distinguishes runs with a canary from runs without.

    Attributes:
        released: the kind of release from which it is (mainly) computed.
        name: in words.
        family: what it measures.
        score: computes it from the numbers of a run.
        weights: of each number, if it is linear in what was released.
    """

    released: str
    name: str
    family: Literal["linear", "energy", "nearest", "grid", "together"]
    score: Callable[[Mapping[str, FloatVector]], float]
    weights: FloatVector | None = None

    @property
    def linear(self) -> bool:
        """Whether it is linear in what was released."""
        return self.weights is not None


def linear(released: str, name: str, centre: FloatVector, weights: FloatVector) -> Statistic:
    """The sum of all numbers, minus their centre, with these weights."""
    return Statistic(released, name, "linear", lambda run: float((run[released] - centre) @ weights), weights)


def sampled_linear(
    released: str, name: str, centre: FloatVector, weights: FloatVector, effects: FloatVector, rates: FloatVector
) -> Statistic:
    """The likelihood ratio of a canary that is in the cohort of each round with some probability.

    Args:
        released: the kind of release.
        name: of the test.
        centre: is subtracted.
        weights: of each number, (rounds, numbers).
        effects: of the canary on each round's score, in standard deviations.
        rates: the probability of taking part in each round.
    """
    absent = np.log(np.maximum(1 - rates, 1e-300))

    def ratio(run: Mapping[str, FloatVector]) -> float:
        scores = ((run[released] - centre).reshape(weights.shape) * weights).sum(1) * effects - effects**2 / 2
        return float(logsumexp(np.stack([absent, np.log(rates) + scores]), axis=0).sum())

    return Statistic(released, name, "linear", ratio)


def together(first: Statistic, second: Statistic, weights: tuple[float, float]) -> Statistic:
    """Two statistics, weighted by the evidence of each."""

    def score(run: Mapping[str, FloatVector]) -> float:
        return weights[0] * first.score(run) + weights[1] * second.score(run)

    return Statistic(first.released, f"{first.name} with {second.name}", "together", score)


def off_grid(released: str, example: FloatVector, steps: FloatVector) -> Statistic:
    """The share of numbers off the grid on which all runs without the canary were; steps of 0 are no grid."""
    there = steps > 0

    def share(run: Mapping[str, FloatVector]) -> float:
        offsets = (run[released][there] - example[there]) / steps[there]
        return float((np.abs(offsets - np.rint(offsets)) > 1 / MIN_GRID / 2).mean())

    return Statistic(released, "low-order bits", "grid", share)


def nearest(released: str, noise: Noise, offset: FloatVector, effect: FloatVector) -> Iterator[Statistic]:
    """The likelihood ratio of the numbers with the largest effects, by their distance to observed noise."""
    centre, scale = noise.pooled
    shifts = effect / scale
    observed = (noise.observed * noise.scale + (noise.centre - centre)) / scale
    if not 0 < float(np.abs(shifts).max(initial=0.0)) < _MAX_MU or observed.size < MIN_REFERENCE:
        return
    which = np.sort(np.argsort(-np.abs(shifts))[:_MAX_COMPARED])
    reference = np.sort(observed.ravel()[:: max(observed.size // MAX_REFERENCE, 1)])
    around, width, moved = (centre + offset)[which], scale[which], shifts[which]

    def ratio(run: Mapping[str, FloatVector]) -> float:
        standard = (run[released][which] - around) / width
        return float(np.log(_distances(standard, reference) / _distances(standard - moved, reference)).sum())

    yield Statistic(released, "nearest noise of each number", "nearest", ratio)


def _distances(values: FloatVector, reference: FloatVector) -> FloatVector:
    """The distance of each value to the fifth nearest in a sorted reference."""
    around = np.searchsorted(reference, values)[:, None] + np.arange(-NEIGHBOURS, NEIGHBOURS)
    inside = (around >= 0) & (around < len(reference))
    near = reference[around.clip(0, len(reference) - 1)]
    distances = np.where(inside, np.abs(near - values[:, None]), np.inf)
    fifth: FloatVector = np.partition(distances, NEIGHBOURS - 1, axis=1)[:, NEIGHBOURS - 1] + _TINY
    return fifth


def energies(
    released: str, centre: FloatVector, scale: FloatVector, rounds: int, layers: tuple[int, ...]
) -> Iterator[Statistic]:
    """The energies of all numbers, of those of each round, and of each of the model's parameters."""
    count = len(centre)
    if count < MIN_ENERGY:
        return
    places = np.arange(count).reshape(rounds, -1) if count % rounds == 0 else np.arange(count)[None]
    groups = {"": np.arange(count)}
    if len(places) > 1:
        groups |= {f" of round {number + 1}": place for number, place in enumerate(places)}
    if places.shape[1] == sum(layers) and len(layers) > 1:
        parts = np.split(places, np.cumsum(layers)[:-1], axis=1)
        groups |= {f" of parameter {n}": part.ravel() for n, part in enumerate(parts) if part.size >= MIN_ENERGY}
    for name, which in groups.items():
        yield _energy(released, f"energy{name}", centre[which], scale[which], which)


def _energy(released: str, name: str, centre: FloatVector, scale: FloatVector, which: NDArray[np.int64]) -> Statistic:
    """The logarithm of the mean square of some standardised numbers."""

    def energy(run: Mapping[str, FloatVector]) -> float:
        return float(np.log(np.mean(((run[released][which] - centre) / scale) ** 2) + 1e-12))

    return Statistic(released, name, "energy", energy)
