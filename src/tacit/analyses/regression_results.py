"""Coefficients with intervals, calibration and AUROC, from the state of a fit."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from tacit.analyses.fitting import FitState
from tacit.analyses.hazards import HazardTerms
from tacit.analyses.metrics import BOOTSTRAPS, auroc_of
from tacit.analyses.regression import Design, RegressionTerms, score_range
from tacit.analyses.sums import Released, Sums64
from tacit.data.encoding import Encoding, Scale

Z = 1.959964
TOLD = 3.0  # standard deviations of the noise above which a count can be told from zero
PRESENT = 2.0  # of these deviations above which there are rows at all
LAST_CHANGE = 1e-4  # the last step of an exact fit, if it has converged


@dataclass(frozen=True, eq=False)
class Coefficient:
    """A coefficient of a regression, in the unit of its column.

    Attributes:
        name: the column, or its value and the value of reference.
        value: the estimate; NaN: the sums do not determine it.
        noise: the standard deviation of the noise in it; NaN: unknown.
        sampling: its standard error, as for a sample of a larger population, without noise; NaN: unknown.
    """

    name: str
    value: float
    noise: float
    sampling: float

    @property
    def of_pooled(self) -> tuple[float, float]:
        """The interval that contains the exact pooled estimate with a probability of 95 %."""
        return self.value - Z * self.noise, self.value + Z * self.noise

    @property
    def of_truth(self) -> tuple[float, float]:
        """The interval that contains the coefficient of the population with a probability of 95 %."""
        spread = Z * math.hypot(self.noise, self.sampling)
        return self.value - spread, self.value + spread


@dataclass(frozen=True, eq=False)
class Fitted:
    """A regression.

    Attributes:
        coefficients: with the first for the intercept.
        converged: whether the last steps changed little; always, with noise.
    """

    coefficients: tuple[Coefficient, ...]
    converged: bool


@dataclass(frozen=True)
class Discrimination:
    """How well scores tell events from others, from a histogram of scores.

    Attributes:
        auroc: the area under the receiver operating characteristic; NaN: there are too few events, or others.
        lower: of its interval.
        upper: of its interval.
    """

    auroc: float
    lower: float
    upper: float


@dataclass(frozen=True)
class CalibrationCell:
    """Persons of similar scores.

    Attributes:
        predicted: the probability of an event by the model, in the middle of the cell.
        persons: how many there are.
        observed: the part of them with the event.
        lower: of its interval.
        upper: of its interval.
    """

    predicted: float
    persons: float
    observed: float
    lower: float
    upper: float


def read_fit(query: RegressionTerms, released: Released, encoding: Encoding) -> Fitted:
    """The coefficients of a fit that is complete."""
    state = FitState(released.total, query.step)
    unit, names = to_units(query.design, encoding)
    shift = 0.0
    if query.family == "linear":
        limits = Scale.of(encoding.numbers[encoding.names[query.target]], encoding.names[query.target])
        unit, shift = unit * (limits.high - limits.low) / 2, (limits.high + limits.low) / 2
    if query.second_order:
        return _read_newton(state, unit, names, released.noise.deviation, shift, residual_variance(query, state))
    fitted = _read_descent(state, unit, names, shift)
    if query.plan.histogram:
        cells, of_cell = score_cells(query, released)
        if cells.sum() <= PRESENT * of_cell * math.sqrt(cells.size):
            return replace(fitted, coefficients=tuple(replace(each, value=math.nan) for each in fitted.coefficients))
    return fitted


def read_hazards(query: HazardTerms, released: Released, encoding: Encoding) -> tuple[Fitted, Fitted]:
    """The log hazards of the pieces, of a patient whose columns are all 0, in units of a piece; and the effects."""
    state, pieces = FitState(released.total, query.step), query.pieces
    inner, names = to_units(query.design, encoding)
    unit = np.eye(query.layout.size)
    unit[pieces:, pieces:] = inner[1:, 1:]
    unit[:pieces, pieces:] = inner[0, 1:]
    labels = [*(f"piece {number}" for number in range(1, pieces + 1)), *names[1:]]
    if query.second_order:
        fitted = _read_newton(state, unit, labels, released.noise.deviation, 0.0, 1.0)
    else:
        fitted = _read_descent(state, unit, labels, 0.0)
    parts = fitted.coefficients[:pieces], fitted.coefficients[pieces:]
    return Fitted(parts[0], fitted.converged), Fitted(parts[1], fitted.converged)


def _read_descent(state: FitState, unit: Sums64, names: Sequence[str], shift: float) -> Fitted:
    """Coefficients without intervals."""
    values = unit @ state.estimate
    values[0] += shift
    unknown = (Coefficient(name, float(value), math.nan, math.nan) for name, value in zip(names, values, strict=True))
    return Fitted(tuple(unknown), converged=True)


def _read_newton(
    state: FitState, unit: Sums64, names: Sequence[str], deviation: float, shift: float, variance: float
) -> Fitted:
    """Coefficients with intervals, where the sums determine them."""
    values = unit @ state.estimate
    values[0] += shift
    of_noise = unit @ state.noise_covariance(deviation) @ unit.T
    of_sample = variance * unit @ state.covariance_root @ unit.T
    determined = np.array([bool(state.determined[np.abs(row) > 0].all()) for row in unit], dtype=bool)
    noise, sampling = (np.sqrt(np.maximum(np.diag(each), 0.0)) for each in (of_noise, of_sample))
    change = np.abs(state.estimate - state.values[state.step.layout.means])
    last = change[state.determined].max(initial=0.0)
    return Fitted(
        tuple(
            Coefficient(
                name, *(float(part[row]) if determined[row] else math.nan for part in (values, noise, sampling))
            )
            for row, name in enumerate(names)
        ),
        converged=deviation > 0 or state.step.plan.rounds == 1 or bool(last < LAST_CHANGE),
    )


def to_units(design: Design, encoding: Encoding) -> tuple[Sums64, list[str]]:
    """The matrix from coefficients of scaled inputs to those in units of the columns, and their names."""
    names, labels, unit = encoding.names, ["intercept"], np.eye(design.size)
    for row, place in enumerate(design.numbers, 1):
        scale = Scale.of(encoding.numbers[names[place]], names[place])
        unit[row, row] = 2 / (scale.high - scale.low)
        unit[0, row] = -1 - 2 * scale.low / (scale.high - scale.low)
        labels.append(names[place])
    for values in design.categories:
        labels += [f"{names[place]} against {names[values[0]].partition('=')[2] or 'missing'}" for place in values[1:]]
    return unit, labels


def residual_variance(query: RegressionTerms, state: FitState) -> float:
    """The variance of residuals of a linear regression; 1 for the other families."""
    if query.family != "linear":
        return 1.0
    layout = query.layout
    matrix, change = layout.unpack(state.values[layout.hessian]), state.estimate - state.values[layout.means]
    squares = state.others[0] / query.square_scale
    squares += change @ (2 * state.values[layout.gradient] + matrix @ change)
    return max(float(squares), 0.0) / max(float(matrix[0, 0]) - len(change), 1.0)


def score_cells(query: RegressionTerms, released: Released) -> tuple[Sums64, float]:
    """Persons by outcome and cell of the score, (2, cells), and the standard deviation of the noise in each."""
    cells: Sums64 = released.total[query.layout.others].reshape(2, query.score_cells) / query.bound
    return cells, released.noise.deviation / query.bound


def discrimination(cells: Sums64, noise: float) -> Discrimination:
    """AUROC with its interval, by parametric bootstrap over persons and noise."""
    total = noise * math.sqrt(cells.shape[1])
    if min(cells.sum(1)) <= TOLD * total:
        return Discrimination(math.nan, math.nan, math.nan)
    random = np.random.default_rng(0)  # of public numbers: it protects nobody
    spread = np.sqrt(np.maximum(cells, 0.0) + noise**2)
    drawn = auroc_of(cells + spread * random.standard_normal((BOOTSTRAPS, *cells.shape)))
    estimate = float(auroc_of(cells[None])[0])
    low, high = np.quantile(drawn, [0.025, 0.975])
    return Discrimination(*np.clip((estimate, 2 * estimate - high, 2 * estimate - low), 0.0, 1.0).tolist())


def calibration(cells: Sums64, noise: float, scores: Sums64) -> list[CalibrationCell]:
    """Observed by predicted probabilities, for the cells whose persons can be told from the noise.

    Args:
        cells: persons by outcome and score.
        noise: its standard deviation in each.
        scores: at the edges of the cells.
    """
    shown = []
    for place in range(0, cells.shape[1], 2):
        without, having = cells[:, place : place + 2].sum(1)
        persons, of_count = float(without + having), noise * math.sqrt(2)
        if persons <= max(TOLD * of_count * math.sqrt(2), 0.5):
            continue
        share = float(having) / persons
        spread = math.hypot(
            of_count * math.hypot(1 - share, share) / persons, math.sqrt(max(share * (1 - share), 0.0) / persons)
        )
        limits = (np.clip(each, 0.0, 1.0) for each in (share, share - Z * spread, share + Z * spread))
        shown.append(CalibrationCell(1 / (1 + math.exp(-scores[place + 1])), persons, *map(float, limits)))
    return shown


def score_edges(query: RegressionTerms, released: Released) -> Sums64:
    """The scores at the edges of the cells of the histogram."""
    centre, width = score_range(torch.from_numpy(released.total), query.layout)
    return centre + width * (np.arange(query.score_cells + 1) / query.score_cells - 0.5)
