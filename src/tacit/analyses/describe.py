"""Counts, missing values, means, deviations, histograms and quantiles of all columns, from one release.

Every column adds a group of terms: the cell of a histogram in which a value is, or that of missing ones, and for
numbers two moments. All groups have the same weight, so that a column's noise grows with the square root of how many
there are. Means and deviations are functions of three noisy sums, and their intervals come from many draws of the
noise. Quantiles come from the histogram: an interval has all edges of cells at which the sum below may be the asked
part of all.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tacit.analyses.sums import Z95, Released, Sums64, bins, one_hot
from tacit.core import Query
from tacit.errors import expect, whole

MOMENTS = 1.25  # the largest squared norm of x and x² − ½, for x in [−1, 1]
PARTS = (0.05, 0.25, 0.5, 0.75, 0.95)
NOISE_DRAWS = 4000


@dataclass(frozen=True, kw_only=True)
class DescribeTerms(Query):
    """The terms of all columns: 1, and for each column the cell of its value, and the moments of a number.

    Args:
        numbers: the inputs that are numbers, with a range from 0 to 1.
        missing: the input that marks missing values, for each of them.
        categories: the inputs of each categorical column, one for each declared value; others share a further cell.
        cells: how many cells of equal width a number's histogram has.
        sampling: whether intervals include sampling, as if rows were drawn from a larger population.
    """

    numbers: tuple[int, ...] = ()
    missing: tuple[int, ...] = ()
    categories: tuple[tuple[int, ...], ...] = ()
    cells: int = 20
    sampling: bool = False

    def __post_init__(self) -> None:
        whole(2, 1000, cells=self.cells)
        expect(len(self.numbers) == len(self.missing), "an input that marks missing values for each number")
        expect(bool(self.numbers or self.categories), "at least one column to describe")

    @property
    def bound(self) -> float:
        return math.sqrt(1 + (1 + MOMENTS) * len(self.numbers) + len(self.categories))

    @property
    def length(self) -> int:
        return 1 + (3 + self.cells) * len(self.numbers) + sum(len(inputs) + 1 for inputs in self.categories)

    def terms(self, state: Tensor, x: Tensor, y: Tensor) -> Tensor:
        groups = [torch.ones(len(x), 1, dtype=torch.float64)]
        for number, absent in zip(self.numbers, self.missing, strict=True):
            gone = x[:, absent] > 0.5
            centred = 2 * x[:, number].double() - 1
            moments = torch.stack([centred, centred.square() - 0.5], 1)
            groups.append(torch.where(gone[:, None], 0.0, moments))
            groups.append(one_hot(torch.where(gone, self.cells, bins(x[:, number], self.cells)), self.cells + 1))
        for inputs in self.categories:
            known = x[:, list(inputs)] > 0.5
            groups.append(one_hot(torch.where(known.any(1), known.int().argmax(1), len(inputs)), len(inputs) + 1))
        return torch.cat(groups, 1)

    def sums_of(self, total: Sums64) -> Iterator[tuple[Sums64, Sums64]]:
        """For each column, in order, its two moments (none of a category) and its cells, the last of other values."""
        at = 1
        for _ in self.numbers:
            yield total[at : at + 2], total[at + 2 : at + 3 + self.cells]
            at += 3 + self.cells
        for inputs in self.categories:
            yield total[:0], total[at : at + len(inputs) + 1]
            at += len(inputs) + 1


@dataclass(frozen=True)
class Estimate:
    """A number with an interval of 95 %.

    Attributes:
        value: the estimate.
        lower: of the interval; minus infinity: nothing is known.
        upper: of the interval.
    """

    value: float
    lower: float
    upper: float

    def scaled(self, by: float, start: float = 0.0) -> "Estimate":
        """The same number in other units."""
        return Estimate(*(float(start + by * each) for each in (self.value, self.lower, self.upper)))


def count_of(cells: Sums64, deviation: float) -> Estimate:
    """A count, not below zero: the sum of these cells."""
    total, spread = float(cells.sum()), Z95 * deviation * math.sqrt(cells.size)
    return Estimate(max(total, 0.0), max(total - spread, 0.0), max(total + spread, 0.0))


@dataclass(frozen=True)
class ColumnMoments:
    """The mean and the standard deviation of a number, as fractions of its range."""

    mean: Estimate
    deviation: Estimate

    @classmethod
    def of(cls, sums: Sums64, present: float, noise: float, *, sampling: bool) -> "ColumnMoments":
        """From the sums of x and x² − ½, for x in [−1, 1], and the number of values.

        Args:
            sums: with noise.
            present: the number of values that are not missing, the difference of two noisy counts.
            noise: standard deviation of the noise in a count and in each sum.
            sampling: whether to include it.
        """
        random = np.random.default_rng(0)  # of public numbers
        drawn = np.array([[*sums, present]]) + noise * np.array([1, 1, math.sqrt(2)]) * random.standard_normal(
            (NOISE_DRAWS, 3)
        )
        means, variances = _moments(drawn)
        ((mean,), (variance,)) = _moments(np.array([[*sums, present]]))
        if sampling:
            count = np.maximum(drawn[:, 2], 1.0)
            means = means + np.sqrt(variances / count) * random.standard_normal(NOISE_DRAWS)
            variances = np.maximum(variances * (1 + np.sqrt(2 / count) * random.standard_normal(NOISE_DRAWS)), 0.0)
        known = present > 2 * Z95 * noise  # else the number of values may be zero, and nothing is known
        return cls(
            _interval(mean, means, known, (-1.0, 1.0)).scaled(0.5, 0.5),
            _interval(math.sqrt(variance), np.sqrt(variances), known, (0.0, 1.0)).scaled(0.5),
        )


def _moments(drawn: Sums64) -> tuple[Sums64, Sums64]:
    """Mean and variance of x for each line of Σx, Σ(x² − ½) and the count; a count below 1 is 1."""
    count = np.maximum(drawn[:, 2], 1.0)
    means = np.clip(drawn[:, 0] / count, -1.0, 1.0)
    return means, np.clip(drawn[:, 1] / count + 0.5 - means**2, 0.0, 1.0)


def _interval(value: float, drawn: Sums64, known: bool, limits: tuple[float, float]) -> Estimate:
    if not known:
        return Estimate(value, *limits)
    lower, upper = np.quantile(drawn, [0.025, 0.975])
    return Estimate(value, float(lower), float(upper))


def quantile_of(cells: Sums64, part: float, noise: float, *, sampling: bool) -> Estimate:
    """A quantile as a fraction of the range, from the cells of a histogram.

    At an edge, Σ below − part · Σ all has a known noise. The interval is from the last edge up to which it is surely
    negative to the first from which it is surely positive.
    """
    count = len(cells)
    shares = np.clip(cells, 0.0, None)
    below = np.concatenate([[0.0], np.cumsum(cells)])
    excess = below - part * below[-1]
    summed = np.arange(count + 1)
    variance = noise**2 * ((1 - part) ** 2 * summed + part**2 * (count - summed))
    if sampling:
        variance = variance + max(below[-1], 0.0) * part * (1 - part)
    spread = Z95 * np.sqrt(variance)
    surely_below, surely_above = np.flatnonzero(excess < -spread), np.flatnonzero(excess > spread)
    lower = 0 if not len(surely_below) else int(surely_below[-1])
    upper = count if not len(surely_above) else int(surely_above[0])
    lower, upper = min(lower, upper), max(lower, upper)
    value = _inverse(shares, part) if shares.sum() > 0 else (lower + upper) / 2
    return Estimate(min(max(value, lower), upper) / count, lower / count, upper / count)


def _inverse(shares: Sums64, part: float) -> float:
    """The place, in cells, at which this part of all is reached, if values are spread evenly in each cell."""
    reached = np.cumsum(shares) / shares.sum()
    cell = int(np.searchsorted(reached, part))
    before = reached[cell - 1] if cell else 0.0
    inside = reached[cell] - before
    return float(cell + ((part - before) / inside if inside > 0 else 0.5))


@dataclass(frozen=True, eq=False)
class ColumnSummary:
    """One column as it is described.

    Attributes:
        name: of the column.
        count: of values that are not missing, or of a declared category.
        missing: of missing values; of a category, of those that are not declared.
        cells: the count in each cell of the histogram, or of each category.
        moments: of a number, as fractions of its range; None: it is a category.
        quantiles: of a number, by part.
    """

    name: str
    count: Estimate
    missing: Estimate
    cells: tuple[Estimate, ...]
    moments: ColumnMoments | None
    quantiles: dict[float, Estimate]


def summaries(query: DescribeTerms, released: Released, names: tuple[str, ...]) -> list[ColumnSummary]:
    """Every column's summary, in the order of the query."""
    noise, rows, columns = released.noise.deviation, released.total[:1], []
    for name, (moments, cells) in zip(names, query.sums_of(released.total), strict=True):
        inner, absent = cells[:-1], cells[-1:]
        count = count_of(np.concatenate([rows, -absent]), noise)
        is_number = moments.size > 0
        columns.append(
            ColumnSummary(
                name,
                count,
                count_of(absent, noise),
                tuple(count_of(cell[None], noise) for cell in inner),
                ColumnMoments.of(moments, float((rows - absent)[0]), noise, sampling=query.sampling)
                if is_number
                else None,
                {part: quantile_of(inner, part, noise, sampling=query.sampling) for part in PARTS} if is_number else {},
            )
        )
    return columns
