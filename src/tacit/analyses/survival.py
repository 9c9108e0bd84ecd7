"""Kaplan–Meier curves, medians and the log-rank test, from one histogram of time, event and arm: one cell a patient.

A cell counts the events, or the censored patients, of one arm in one interval of a declared grid; a further one counts
those who were followed beyond its end. The numbers at risk are cumulative sums from the end, so that noise in cells
adds up. Both cumulative counts, of events from the start and of patients from the end, are therefore made monotone by
isotonic least squares, with weights that follow from how many cells each adds up; neither is biased as cells are that
are cut off at zero. Within an interval, those who are censored count half (the actuarial estimate), unless the grid has
every time.

References: Kaplan, Meier 1958; Mantel 1966 (log-rank); Barlow et al. 1972 (isotonic regression).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from tacit.analyses.sums import Z95, Released, Sums64, one_hot, places_in_grid
from tacit.core import Query
from tacit.errors import expect, whole

DRAWS = 400  # of noise, for bands and p-values
LEVEL = 0.95
NEGLIGIBLE = 3.0  # standard deviations of the noise in a cell: fewer patients at risk than these are not told from none


@dataclass(frozen=True, kw_only=True)
class SurvivalCells(Query):
    """How many patients had the event, or were censored, in each interval of time, by arm: each patient is in one cell.

    Inputs are those of an encoding whose time has the range from one interval before the start to one beyond the end,
    so that what is clipped is outside: a time before the start, or a missing one, is in no cell, and one beyond the end
    is in that of patients who were followed longer. An interval ends with its upper edge.

    Args:
        time: the number of the input that is the time.
        missing: that which marks a missing time.
        event: that which marks an event.
        arms: those that mark each arm; empty: there is one, of all patients. A patient of no arm is in no cell.
        intervals: how many the grid has.
        actuarial: those who are censored within an interval count half; otherwise all of them are at risk.
        sampling: whether intervals include sampling, as if patients were drawn from a larger population.
    """

    time: int
    missing: int
    event: int
    unknown: int
    intervals: int
    arms: tuple[int, ...] = ()
    actuarial: bool = True
    sampling: bool = False

    def __post_init__(self) -> None:
        whole(1, intervals=self.intervals)
        whole(0, time=self.time, missing=self.missing, event=self.event, unknown=self.unknown)

    @property
    def of_arm(self) -> int:
        """The number of cells of an arm."""
        return 2 * self.intervals + 1

    @property
    def length(self) -> int:
        return self.of_arm * max(1, len(self.arms))

    @property
    def bound(self) -> float:
        return 1.0

    def terms(self, state: Tensor, x: Tensor, y: Tensor) -> Tensor:
        count, place = self.intervals, places_in_grid(x[:, self.time], self.intervals)
        interval = torch.where(place == 0, 0, place.ceil().long() - 1)  # the start belongs to the first
        had_event = x[:, self.event] > 0.5
        cell = torch.where(interval >= count, 2 * count, torch.where(had_event, interval, count + interval))
        known = (interval >= 0) & (x[:, self.missing] < 0.5) & (x[:, self.unknown] < 0.5)
        if self.arms:
            of_arms = x[:, list(self.arms)]
            known &= of_arms.sum(1) == 1
            cell = cell + self.of_arm * of_arms.argmax(1)
        return one_hot(torch.where(known, cell, -1), self.length)


@dataclass(frozen=True, eq=False)
class Curve:
    """A survival curve at the ends of the intervals of a grid.

    Attributes:
        at_risk: the patients at the start of each interval.
        events: those with the event in it.
        survival: the part of all patients without the event at the end of each.
    """

    at_risk: Sums64
    events: Sums64
    survival: Sums64

    @classmethod
    def of(cls, cells: Sums64, *, noise: float = 0.0, actuarial: bool = True) -> "Curve":
        """The curve of one arm's cells: events of each interval, censored of each, and those who were followed longer.

        Args:
            cells: with noise or without.
            noise: its standard deviation in a cell.
            actuarial: those who are censored within an interval count half; otherwise all of them are at risk.
        """
        count = len(cells) // 2
        events, censored, beyond = cells[:count], cells[count : 2 * count], cells[-1]
        at_risk = beyond + np.cumsum((events + censored)[::-1])[::-1]
        summed = np.arange(1, count + 1)
        if noise:
            at_risk = np.maximum(-isotonic(-at_risk, 1 / summed[::-1]), 0.0)
            events = np.diff(np.maximum(isotonic(np.cumsum(events), 1 / summed), 0.0), prepend=0.0)
        after = np.append(at_risk[1:], max(beyond, 0.0))
        left = np.clip(at_risk - after - events, 0.0, at_risk)  # censored in the interval
        exposed = np.maximum(at_risk - left / 2 if actuarial else at_risk, np.maximum(events, NEGLIGIBLE * noise))
        hazards = np.divide(events, exposed, out=np.zeros(count), where=exposed > 0)
        return cls(at_risk, events, np.cumprod(1 - np.clip(hazards, 0.0, 1.0)))


def isotonic(values: Sums64, weights: Sums64) -> Sums64:
    """The nearest ascending sequence in weighted least squares, by pooling adjacent violators.

    Example:
        >>> isotonic(np.array([1.0, 3.0, 2.0]), np.ones(3)).tolist()
        [1.0, 2.5, 2.5]
    """
    blocks: list[tuple[float, float, int]] = []  # mean, weight, length
    for value, weight in zip(values.tolist(), weights.tolist(), strict=True):
        mean, total, length = value, weight, 1
        while blocks and blocks[-1][0] > mean:
            before, other, more = blocks.pop()
            mean = (mean * total + before * other) / (total + other)
            total, length = total + other, length + more
        blocks.append((mean, total, length))
    return np.repeat([mean for mean, _, _ in blocks], [length for _, _, length in blocks])


@dataclass(frozen=True, eq=False)
class Band:
    """A curve with pointwise intervals that include the noise, and where asked sampling.

    Attributes:
        arm: its name; empty: all patients.
        patients: their number, with its interval.
        curve: the estimate.
        lower: of survival.
        upper: of survival.
        median: the first end of an interval with a survival of at most one half, with its interval; infinite: none.
    """

    arm: str
    patients: tuple[float, float, float]
    curve: Curve
    lower: Sums64
    upper: Sums64
    median: tuple[float, float, float]


@dataclass(frozen=True)
class LogRank:
    """The log-rank test of equal hazards in all arms.

    Attributes:
        statistic: χ², with the noise in its covariance.
        degrees: of freedom.
        p: the probability of as large a statistic if hazards are equal; NaN: there are no events to compare.
    """

    statistic: float
    degrees: int
    p: float


def bands(
    query: SurvivalCells, released: Released, times: Sums64, arms: Sequence[str], *, actuarial: bool, sampling: bool
) -> list[Band]:
    """The curve of each arm, with a band by parametric bootstrap over the noise and, if asked, sampling.

    The basic bootstrap: cells are those of the estimated curve with fresh noise, and the band turns the differences of
    their curves from the estimate around.
    """
    random = np.random.default_rng(0)  # of public numbers: it protects nobody
    noise = released.noise
    estimates = []
    for arm, cells in zip(arms, released.total.reshape(-1, query.of_arm), strict=True):
        estimate = partial(Curve.of, noise=noise.deviation, actuarial=actuarial)
        curve, fitted = estimate(cells), _fit_cells(estimate(cells), cells)
        draws = []
        for _ in range(DRAWS if noise.deviation or sampling else 0):
            drawn = random.poisson(fitted).astype(np.float64) if sampling else fitted
            draws.append(estimate(drawn + noise.draw(random, len(cells))).survival)
        total, spread = float(cells.sum()), Z95 * noise.deviation * math.sqrt(len(cells))
        patients = (max(total, 0.0), max(total - spread, 0.0), max(total + spread, 0.0))
        lower, upper = _basic(curve.survival, np.array(draws)) if draws else (curve.survival, curve.survival)
        median = tuple(_median(times, each) for each in (curve.survival, lower, upper))
        estimates.append(Band(arm, patients, curve, lower, upper, median))  # type: ignore[arg-type]
    return estimates


def log_rank(query: SurvivalCells, released: Released) -> LogRank | None:
    """The log-rank test between the arms; None: there are fewer than two.

    Observed minus expected events of each arm have the covariance of the exact test plus that of the noise in them,
    which is estimated by drawing more.
    """
    arms = released.total.reshape(-1, query.of_arm)
    if len(arms) < 2:
        return None
    random, noise = np.random.default_rng(0), released.noise
    excess, covariance = _excess(arms, query.intervals, noise.deviation)
    if noise.deviation:
        fitted = np.array([_fit_cells(Curve.of(each, noise=noise.deviation), each) for each in arms])
        draws = [
            _excess(fitted + noise.draw(random, *arms.shape), query.intervals, noise.deviation)[0] for _ in range(DRAWS)
        ]
        covariance = covariance + _covariance(np.array(draws))
    reduced = covariance[:-1, :-1]  # rows add up to zero
    if not np.any(reduced) or np.linalg.matrix_rank(reduced) < len(reduced):
        return LogRank(math.nan, len(reduced), math.nan)
    from scipy.stats import chi2  # which takes long to import

    statistic = float(excess[:-1] @ np.linalg.solve(reduced, excess[:-1]))
    return LogRank(statistic, len(reduced), float(chi2.sf(statistic, len(reduced))))


def _excess(arms: Sums64, intervals: int, noise: float) -> tuple[Sums64, Sums64]:
    """Observed minus expected events of each arm, and their covariance if hazards are equal."""
    curves = [Curve.of(cells, noise=noise) for cells in arms]
    at_risk, events = (np.array([getattr(each, name) for each in curves]) for name in ("at_risk", "events"))
    n, d = at_risk.sum(0), events.sum(0)
    share = np.divide(at_risk, n, out=np.zeros_like(at_risk), where=n > 0)
    variance = np.divide(d * (n - d), n - 1, out=np.zeros(intervals), where=n > 1).clip(min=0.0)
    covariance = np.diag((share * variance).sum(1)) - (share * variance) @ share.T
    return (events - share * d).sum(1), covariance


def _covariance(draws: Sums64) -> Sums64:
    centred = draws - draws.mean(0)
    estimates: Sums64 = centred.T @ centred / (len(draws) - 1)
    return estimates


def _fit_cells(curve: Curve, cells: Sums64) -> Sums64:
    """The cells of an estimated curve, without noise: events, censored, and those who were followed longer."""
    beyond = max(float(cells[-1]), 0.0)
    after = np.append(curve.at_risk[1:], min(beyond, curve.at_risk[-1]))
    left = np.maximum(curve.at_risk - after - curve.events, 0.0)
    return np.concatenate([np.maximum(curve.events, 0.0), left, [after[-1]]])


def _basic(estimate: Sums64, draws: Sums64) -> tuple[Sums64, Sums64]:
    """The wider of the basic and the percentile interval of each point, within 0 and 1 and descending as a curve is."""
    low, high = np.quantile(draws, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    lower = np.clip(np.minimum(2 * estimate - high, low), 0.0, 1.0)
    upper = np.clip(np.maximum(2 * estimate - low, high), 0.0, 1.0)
    return np.minimum.accumulate(lower), np.maximum.accumulate(upper[::-1])[::-1]


def _median(times: Sums64, survival: Sums64) -> float:
    """The first time with a survival of at most one half; infinite if there is none."""
    reached = np.flatnonzero(survival <= 0.5 + 1e-12)
    return float(times[reached[0]]) if len(reached) else math.inf


def grid_times(first: float, step: float, intervals: int) -> Sums64:
    """The ends of the intervals."""
    expect(step > 0, f"step={step:g} > 0")
    return np.asarray(first + step * np.arange(1, intervals + 1), dtype=np.float64)
