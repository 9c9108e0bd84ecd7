"""Boosted additive models (EBM) by histograms: a curve for each column, from sums of residuals in cells.

The first round counts the values of every column in fine cells, and events. Neighbouring cells are merged into bins of
similar counts. In every other round the bins of each column are divided at random into a few groups, by public
randomness, and the residuals of each group are summed, for all columns at once: a patient is in one cell of each
column, so that the norm of a vector of terms is at most the square root of their number. The scores of a group move by
its mean residual, as in Newton's method with the weight of the base rate, drawn to zero as the noise requires. No split
is chosen by data, so that the whole budget goes to these sums; what many random groups have in common is a smooth
curve. A last round releases a histogram of scores by outcome, as for logistic regression.

References: Lou, Caruana, Gehrke 2012 and Nori et al. 2021 (EBM, DP-EBM, in cyclic order with random splits).
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from math import cos, log, pi, sqrt
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.analyses.fitting import FitPlan
from tacit.analyses.sums import Sums64, bins, one_hot
from tacit.core import Query, State
from tacit.core.interfaces import Payload, ServerUpdate
from tacit.errors import whole

FINE_CELLS = 64  # cells of a number, which are merged into bins
BINS = 16  # of a number, at most
GROUPS = 3  # of the bins of a column in each round
LAST_RATE = 0.1  # of the first
MODEL_SCORE_CELLS, LONGEST_SCORE = 20, 4.0  # of the histogram of scores around the base rate
RATES = (0.01, 0.99)  # limits of a base rate


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Which inputs of an encoding make the columns of an additive model.

    Attributes:
        numbers: the inputs that are numbers.
        missing: those that mark a missing one.
        categories: those of the values of each categorical column; what is in none of them is a further cell.
    """

    numbers: tuple[int, ...] = ()
    missing: tuple[int, ...] = ()
    categories: tuple[tuple[int, ...], ...] = ()

    @property
    def count(self) -> int:
        """The number of columns."""
        return len(self.numbers) + len(self.categories)

    @cached_property
    def widths(self) -> tuple[int, ...]:
        """The cells of each column; the last is that of missing, or other, values."""
        return (*(FINE_CELLS + 1 for _ in self.numbers), *(len(each) + 1 for each in self.categories))

    @property
    def slices(self) -> list[slice]:
        """The cells of each column among all."""
        ends = np.cumsum((0, *self.widths)).tolist()
        return [slice(start, stop) for start, stop in pairwise(ends)]

    def cells(self, x: Tensor) -> Tensor:
        """The cell of each row in each column, (rows, columns), among those of all columns."""
        places = [torch.where(x[:, gone] > 0.5, FINE_CELLS, bins(x[:, number], FINE_CELLS))
                  for number, gone in zip(self.numbers, self.missing, strict=True)]  # fmt: skip
        for inputs in self.categories:
            known = x[:, list(inputs)] > 0.5
            places.append(torch.where(known.any(1), known.int().argmax(1), len(inputs)))
        return torch.stack(places, 1) + torch.tensor([each.start for each in self.slices])


@dataclass(frozen=True, kw_only=True)
class BoostStep(ServerUpdate):
    """A step of boosting: counts first, then scores of groups of bins, at last a histogram.

    Args:
        columns: of the model.
        plan: the rounds; `noise` is that of a sum.
        start_scale: what counts were multiplied by.
    """

    columns: Columns
    plan: FitPlan
    start_scale: float
    expects: ClassVar[Payload] = "terms"

    def apply(self, state: State, aggregate: Tensor) -> State:
        before, total = (each.double().cpu().numpy() for each in (state.weights, aggregate))
        return replace(state, weights=torch.from_numpy(self.step(before.copy(), total)).to(state.weights))

    def step(self, state: Sums64, total: Sums64) -> Sums64:
        """The next state, in place."""
        parts, done = BoostParts(self.columns), round(float(state[0]))
        state[0] = done + 1
        if done == 0:
            counts = np.maximum(total[parts.counts] / self.start_scale, 0.0)
            state[parts.counts] = counts.astype(np.float32).round()  # the same at every party, also after float32
            first = self.columns.slices[0]
            state[1] = float(total[1]) / self.start_scale / max(float(counts[first].sum()), 1.0)
        elif done < self.plan.fitted:
            self._move(state, total, parts, done)
        else:
            state[parts.histogram] = total[parts.histogram]
        return state

    def _move(self, state: Sums64, total: Sums64, parts: "BoostParts", done: int) -> None:
        """Newton's step of every group, with the weight of the base rate, shrunk by the noise."""
        base, counts, residuals = base_rate(state), state[parts.counts], total[parts.scores]
        for of_column, group in zip(self.columns.slices, parts.groups(counts, done, self.merging), strict=True):
            size = int(group.max()) + 1
            persons = np.bincount(group, counts[of_column], size).astype(np.float64)
            change = -self.moves(base, persons, done) * residuals[of_column][:size]
            state[parts.scores][of_column] += change[group]

    def moves(self, base: float, persons: Sums64, done: int) -> Sums64:
        """By how much the scores of groups of these sizes move in a round, for residuals with a sum of −1.

        It is Newton's step, drawn towards zero as the noise of a round requires for scores with a deviation of 1.
        """
        part = (1 + cos(pi * (done - 0.5) / self.plan.rounds)) / 2
        rate = self.plan.lr * (LAST_RATE + (1 - LAST_RATE) * part)
        weight = base * (1 - base) * persons
        return np.asarray(rate * weight / (weight**2 + self.plan.noise**2 + 1e-9), dtype=np.float64)

    @property
    def merging(self) -> float:
        """The persons of a bin, at least: what is below cannot be told from the noise."""
        return 2 * self.plan.noise / min(self.start_scale, 1.0)


@dataclass(frozen=True)
class BoostParts:
    """Where the parts of boosting are in the state, and in a vector of terms.

    The first number is that of rounds done; the second, in the state, the base rate, and in the first sum the events.
    """

    columns: Columns

    @property
    def cells(self) -> int:
        """The number of cells of all columns."""
        return sum(self.columns.widths)

    @property
    def scores(self) -> slice:
        """The score of each cell; in a sum, the residuals of each group, from the first cell of its column on."""
        return slice(2, 2 + self.cells)

    @property
    def counts(self) -> slice:
        """The persons in each cell."""
        return slice(2 + self.cells, 2 + 2 * self.cells)

    @property
    def histogram(self) -> slice:
        """Persons by outcome and score."""
        return slice(2 + 2 * self.cells, self.length)

    @property
    def length(self) -> int:
        """The length of a state, and of a vector of terms."""
        return 2 + 2 * self.cells + 2 * MODEL_SCORE_CELLS

    def groups(self, counts: Sums64, round_number: int, merging: float) -> Iterator[NDArray[np.int64]]:
        """For every column the group of each of its cells in a round."""
        for number, of_column in enumerate(self.columns.slices):
            merged, ordered = merge_cells(counts[of_column], merging), number < len(self.columns.numbers)
            if not ordered:
                merged = np.arange(len(merged))
            yield group_bins(merged, (round_number, number), ordered=ordered)


def merge_cells(counts: Sums64, least: float) -> NDArray[np.int64]:
    """The bin of each cell of a number, the last cell, of missing values, in a bin of its own.

    Example:
        >>> merge_cells(np.array([5.0, 1, 1, 4, 1, 9]), 4.0).tolist()
        [0, 1, 1, 1, 1, 2]
    """
    known = counts[:-1]
    enough = max(float(known.sum()) / BINS, least)
    merged, number, reached = np.zeros(len(counts), dtype=np.int64), 0, 0.0
    for cell, count in enumerate(known.tolist()):
        merged[cell] = number
        reached += count
        if reached >= enough:
            number, reached = number + 1, 0.0
    last = merged[:-1].max(initial=0)
    if reached < enough and last > 0 and last == number:
        merged[:-1][merged[:-1] == last] = last - 1
    merged[-1] = merged[:-1].max(initial=0) + 1
    return merged


def group_bins(merged: NDArray[np.int64], seed: tuple[int, int], *, ordered: bool) -> NDArray[np.int64]:
    """The group of each cell, of a few at random: neighbouring bins of a number, any of a category.

    Missing values of a number are a group of their own. The randomness is public, and the same for all parties.

    Example:
        >>> group_bins(np.arange(9), (1, 0), ordered=True).tolist()
        [0, 0, 0, 1, 1, 2, 2, 2, 3]
    """
    count = int(merged.max()) + 1 - ordered  # without missing values
    keys = [_mix(*seed, number) for number in range(count)]
    if ordered:
        cuts = sorted(sorted(range(1, count), key=lambda number: keys[number])[: GROUPS - 1])
        groups = [sum(number >= cut for cut in cuts) for number in range(count)]
        groups.append(len(cuts) + 1)
    else:
        order = sorted(range(count), key=lambda number: keys[number])
        groups = [0] * count
        for place, number in enumerate(order):
            groups[number] = place % GROUPS
    return np.array(groups, dtype=np.int64)[merged]


def _mix(*numbers: int) -> int:
    """A public number without visible pattern, from whole numbers alone: the same on every machine (SplitMix64)."""
    mixed = 0
    for number in numbers:
        mixed = (mixed + number + 0x9E3779B97F4A7C15) & (1 << 64) - 1
        mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & (1 << 64) - 1
        mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & (1 << 64) - 1
        mixed ^= mixed >> 31
    return mixed


def base_rate(state: Tensor | Sums64) -> float:
    """The part of all persons with the event, within limits."""
    return min(max(float(state[1]), RATES[0]), RATES[1])


@dataclass(frozen=True, kw_only=True)
class BoostTerms(Query):
    """Counts of cells and events, residuals of groups, or a histogram of scores, by the round.

    Args:
        columns: of the model.
        target: the input that is the outcome.
        unknown: that which marks an unknown outcome.
        plan: the rounds.
    """

    columns: Columns
    target: int
    unknown: int
    plan: FitPlan

    def __post_init__(self) -> None:
        whole(1, columns=self.columns.count)

    @property
    def parts(self) -> BoostParts:
        """Where the parts of a vector of terms are."""
        return BoostParts(self.columns)

    @property
    def length(self) -> int:
        return self.parts.length

    @property
    def bound(self) -> float:
        return sqrt(self.columns.count)

    @property
    def start_scale(self) -> float:
        """What the counts of all columns, and an event, are multiplied by."""
        return sqrt(self.columns.count / (self.columns.count + 1))

    @property
    def step(self) -> BoostStep:
        """The server's part."""
        return BoostStep(columns=self.columns, plan=self.plan, start_scale=self.start_scale)

    def terms(self, state: Tensor, x: Tensor, y: Tensor) -> Tensor:
        cells, outcome = self.columns.cells(x), x[:, self.target].double()
        parts, done = self.parts, round(float(state[0]))
        terms = torch.zeros(len(x), parts.length, dtype=torch.float64)
        if done == 0:
            terms[:, parts.counts].scatter_(1, cells, self.start_scale)
            terms[:, 1] = outcome * self.start_scale
        else:
            base = base_rate(state)
            scores = state[parts.scores].double()[cells].sum(1)
            if done < self.plan.fitted:
                residual = torch.sigmoid(scores + log(base / (1 - base))) - outcome
                terms[:, parts.scores].scatter_(1, self._find_groups(state, cells), residual[:, None].expand_as(cells))
            else:
                place = bins((scores / LONGEST_SCORE + 1) / 2, MODEL_SCORE_CELLS)
                cell = place + MODEL_SCORE_CELLS * (outcome > 0.5)
                terms[:, parts.histogram] = self.bound * one_hot(cell, 2 * MODEL_SCORE_CELLS)
        return torch.where((x[:, self.unknown] < 0.5)[:, None], terms, 0.0)

    def _find_groups(self, state: Tensor, cells: Tensor) -> Tensor:
        """The place of the group of each row's cell, in each column."""
        counts = state[self.parts.counts].double().cpu().numpy()
        groups = self.parts.groups(counts, round(float(state[0])), self.step.merging)
        starts = zip(self.columns.slices, groups, strict=True)
        return torch.from_numpy(np.concatenate([each.start + group for each, group in starts]))[cells]
