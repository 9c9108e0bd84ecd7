"""AUROC and calibration of a model's scores, from one histogram of score and outcome: one cell a row.

Both are functions of how many rows of each outcome have a score in each of a few intervals. AUROC counts pairs in the
same interval half, which with many intervals differs little from the exact one; its interval comes from fresh draws of
the noise.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tacit.analyses.describe import Estimate, count_of
from tacit.analyses.sums import Released, Sums64, bins, one_hot
from tacit.core import Query
from tacit.errors import whole

BOOTSTRAPS = 1000


@dataclass(frozen=True, kw_only=True)
class ScoreCells(Query):
    """How many rows of each outcome have a score in each interval from 0 to 1: each row is in one cell.

    Args:
        score: the number of the input that is the score.
        missing: that which marks a missing score, which is in no cell.
        event: that which marks the outcome.
        unknown: that which marks an unknown one, of a row in no cell.
        intervals: of equal width.
    """

    score: int
    missing: int
    event: int
    unknown: int
    intervals: int = 50

    def __post_init__(self) -> None:
        whole(2, 1000, intervals=self.intervals)

    @property
    def length(self) -> int:
        return 2 * self.intervals

    @property
    def bound(self) -> float:
        return 1.0

    def terms(self, state: Tensor, x: Tensor, y: Tensor) -> Tensor:
        cell = bins(x[:, self.score], self.intervals) + self.intervals * (x[:, self.event] > 0.5)
        known = (x[:, self.missing] < 0.5) & (x[:, self.unknown] < 0.5)
        return one_hot(torch.where(known, cell, -1), self.length)


@dataclass(frozen=True)
class ScoreMetrics:
    """What a histogram of scores says about them.

    Attributes:
        auroc: the probability that a random row with the outcome has a higher score than one without.
        rows: how many have a score.
        events: how many of them have the outcome.
        calibration: for each tenth of the scores the rows, the mean score at its middle, and the part with the outcome.
    """

    auroc: Estimate
    rows: Estimate
    events: Estimate
    calibration: tuple[tuple[Estimate, float, Estimate], ...]


def score_metrics(query: ScoreCells, released: Released) -> ScoreMetrics:
    """The metrics of a released histogram, with intervals that include its noise."""
    random, noise = np.random.default_rng(0), released.noise
    cells = released.total.reshape(2, query.intervals)
    drawn = cells + noise.draw(random, BOOTSTRAPS if noise.deviation else 1, *cells.shape)
    value = float(auroc_of(cells[None])[0])
    low, high = np.quantile(2 * value - auroc_of(drawn), [0.025, 0.975])
    known = count_of(cells[0], noise.deviation).lower > 0 and count_of(cells[1], noise.deviation).lower > 0
    value, low, high = np.clip((value, low, high), 0.0, 1.0)
    limits = (float(low), float(high)) if known else (0.0, 1.0)
    tenth = max(query.intervals // 10, 1)
    groups = []
    for begin in range(0, query.intervals, tenth):
        part = cells[:, begin : begin + tenth]
        spread = drawn[:, :, begin : begin + tenth].sum(2)
        rates = spread[:, 1] / np.maximum(spread.sum(1), 1.0)
        rows = count_of(part.reshape(-1), noise.deviation)
        rate = float(np.clip(part[1].sum() / max(part.sum(), 1.0), 0.0, 1.0))
        low, high = np.clip(np.quantile(2 * rate - rates, [0.025, 0.975]), 0.0, 1.0)
        limits_of_rate = (float(low), float(high)) if rows.lower > 0 else (0.0, 1.0)
        middle = (begin + min(tenth, query.intervals - begin) / 2) / query.intervals
        groups.append((rows, middle, Estimate(rate, *limits_of_rate)))
    return ScoreMetrics(
        Estimate(float(value), *limits),
        count_of(cells.reshape(-1), noise.deviation),
        count_of(cells[1], noise.deviation),
        tuple(groups),
    )


def auroc_of(cells: Sums64) -> Sums64:
    """AUROC of each histogram, (histograms, outcomes, intervals); ½ where an outcome has no rows.

    That of noisy cells is not limited to [0, 1]: so that its distribution is that of the noise.

    Example:
        >>> float(auroc_of(np.array([[[3.0, 1.0], [1.0, 3.0]]]))[0])
        0.75
    """
    without, with_event = cells[:, 0], cells[:, 1]
    below = np.cumsum(without, 1) - without / 2
    pairs = without.sum(1) * with_event.sum(1)
    ordered = (below * with_event).sum(1)
    possible = (without.sum(1) > 0) & (with_event.sum(1) > 0)
    share = np.divide(ordered, pairs, out=np.full(len(cells), 0.5), where=possible)
    return np.asarray(share, dtype=np.float64)
