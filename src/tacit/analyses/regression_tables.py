"""Results of regressions, hazards and boosted models: tables, pictures and sentences from a released sum."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from tacit.analyses.boosting import LONGEST_SCORE, MODEL_SCORE_CELLS, BoostTerms, base_rate
from tacit.analyses.boosting_results import read_shapes
from tacit.analyses.hazards import MAX_HAZARD, HazardTerms
from tacit.analyses.regression import RegressionTerms
from tacit.analyses.regression_results import (
    PRESENT,
    CalibrationCell,
    Coefficient,
    Fitted,
    calibration,
    discrimination,
    read_fit,
    read_hazards,
    score_cells,
    score_edges,
)
from tacit.analyses.results import WITHOUT_NOISE, Cell, Effect, Result, ResultTable, Shape, finite, interpret
from tacit.analyses.sums import Released, Sums64
from tacit.data.encoding import Encoding, Scale
from tacit.errors import one_line

RATIOS = {"logistic": "odds ratio", "linear": "", "poisson": "rate ratio"}
LARGEST_EXPONENT = 50.0  # of a ratio that is shown
WIDE_NOISE = 3.0  # a deviation of the noise, in standard errors, that makes most of an interval
NOT_CONVERGED = (
    "The fit did not converge: there are no events, or columns separate events from the others perfectly, so that no "
    "finite coefficients fit best."
)


@interpret.register
def _(query: RegressionTerms, released: Released, encoding: Encoding) -> Result:
    fit, noisy = _drop_diverged(read_fit(query, released, encoding)), released.noise.deviation > 0
    tables = [_coefficients(fit, RATIOS[query.family])]
    sentences = list(_sentences(query, fit, noisy=noisy))
    if query.plan.histogram:
        cells, noise = score_cells(query, released)
        more, words = _quality(cells, noise, score_edges(query, released))
        tables, sentences = [*tables, *more], [*sentences, words]
    name = encoding.names[query.target].partition("=")[0]
    title = f"{query.family.capitalize()} regression of {name}"
    return Result(title, tuple(tables), tuple(sentences), effects=_effects(fit.coefficients[1:]))


@interpret.register
def _(query: HazardTerms, released: Released, encoding: Encoding) -> Result:
    baseline, fit = map(_drop_diverged, read_hazards(query, released, encoding))
    noisy = released.noise.deviation > 0
    name = encoding.names[query.time]
    scale = Scale.of(encoding.numbers[name], name)
    step = (scale.high - scale.low) / (query.pieces + 2)
    sentences = list(_sentences(query, fit, noisy=noisy))
    if noisy and query.second_order:
        sentences.append(
            f"With noise, a patient's cumulative hazard counts as at most {MAX_HAZARD:g}: where many have more, "
            "hazards are too low."
        )
    tables = (_coefficients(fit, "hazard ratio"), _baseline(baseline, scale.low + step, step))
    event = encoding.names[query.event].partition("=")[0]
    title = f"Hazard of {event} by {name}, constant in pieces of {step:g}"
    return Result(title, tables, tuple(sentences), effects=_effects(fit.coefficients))


@interpret.register
def _(query: BoostTerms, released: Released, encoding: Encoding) -> Result:
    noisy = released.noise.deviation > 0
    parts = query.parts
    noise = released.noise.deviation / query.bound
    cells = released.total[parts.histogram].reshape(2, MODEL_SCORE_CELLS) / query.bound
    base = base_rate(released.total)
    shapes = read_shapes(query, released, encoding)
    told = float(cells.sum()) > PRESENT * noise * math.sqrt(cells.size)
    if not told:
        shapes = [replace(each, values=tuple(math.nan for _ in each.values)) for each in shapes]
    edges = math.log(base / (1 - base)) + np.linspace(-LONGEST_SCORE, LONGEST_SCORE, MODEL_SCORE_CELLS + 1)
    more, words = _quality(cells, noise, edges)
    sentences = [one_line(query.plan.why) if noisy else WITHOUT_NOISE]
    if told:
        start = math.log(base / (1 - base))
        sentences.append(f"The log odds of an event are {start:.3g} plus the scores of all columns.")
        sentences.append("Intervals of 95 % include the noise in each score, and not sampling." * noisy)
        sentences.append("Values without a score are those of no person, or of too few to be told from none.")
    else:
        sentences.append("The number of rows cannot be told from zero: there are no curves to show.")
    name = encoding.names[query.target].partition("=")[0]
    return Result(
        f"Additive model of {name}",
        (_scores(shapes), *more),
        (*filter(None, sentences), words),
        shapes=tuple(shapes) if told else (),
    )


def _scores(shapes: Sequence[Shape]) -> ResultTable:
    """The score of every bin or value of every column."""
    columns: dict[str, list[Cell]] = {"column": [], "value": [], "score": [], "from": [], "to": []}
    for shape in shapes:
        labels = shape.labels or tuple(f"{low:.4g} to {high:.4g}" for low, high in pairwise(shape.edges))
        labels = (*labels, "missing" if shape.edges else "other")
        for label, value, spread in zip(labels, shape.values, shape.spread, strict=True):
            numbers = map(finite, (value, value - spread, value + spread))
            for key, cell in zip(columns, (shape.name, label, *numbers), strict=True):
                columns[key].append(cell)
    return ResultTable("scores", columns)


def _quality(cells: Sums64, noise: float, edges: Sums64) -> tuple[list[ResultTable], str]:
    """AUROC and calibration from a histogram of scores, and what they mean."""
    quality = discrimination(cells, noise)
    tables = [
        ResultTable(
            "discrimination",
            {
                "AUROC": [finite(quality.auroc)],
                "from": [finite(quality.lower)],
                "to": [finite(quality.upper)],
                "persons": [float(cells.sum())],
                "events": [float(cells[1].sum())],
            },
        ),
        _calibration(calibration(cells, noise, edges)),
    ]
    if math.isnan(quality.auroc):
        told = " that can be told from the noise" * (noise > 0)
        return tables, f"There are too few events, or too few persons without one{told}, for AUROC."
    return tables, "AUROC and calibration are those of the rows of the fit; on others they may be worse."


def _drop_diverged(fit: Fitted) -> Fitted:
    """The fit, without numbers if it did not converge."""
    if fit.converged:
        return fit
    return replace(fit, coefficients=tuple(replace(each, value=math.nan) for each in fit.coefficients))


def _effects(coefficients: Sequence[Coefficient]) -> tuple[Effect, ...]:
    known = [each for each in coefficients if not math.isnan(each.value + each.noise)]
    return tuple(Effect(each.name, each.value, each.of_pooled, each.of_truth) for each in known)


def _coefficients(fit: Fitted, ratio: str) -> ResultTable:
    rows = fit.coefficients
    columns: dict[str, Sequence[Cell]] = {
        "column": [each.name for each in rows],
        "coefficient": [finite(each.value) for each in rows],
    }
    for of, limits in (("pooled", [each.of_pooled for each in rows]), ("population", [each.of_truth for each in rows])):
        columns[f"{of} from"] = [finite(low) for low, _ in limits]
        columns[f"{of} to"] = [finite(high) for _, high in limits]
    if ratio:
        columns[ratio] = [_exp(each.value) for each in rows]
        columns[f"{ratio} from"] = [_exp(each.of_truth[0]) for each in rows]
        columns[f"{ratio} to"] = [_exp(each.of_truth[1]) for each in rows]
    return ResultTable("coefficients", columns)


def _baseline(fit: Fitted, first: float, step: float) -> ResultTable:
    """Hazards of the pieces for a patient whose numbers are 0 and whose categories are those of reference."""
    rows = fit.coefficients
    return ResultTable(
        "baseline hazard",
        {
            "from time": [first + step * place for place in range(len(rows))],
            "to time": [first + step * (place + 1) for place in range(len(rows))],
            "hazard": [_exp(each.value - math.log(step)) for each in rows],
            "from": [_exp(each.of_truth[0] - math.log(step)) for each in rows],
            "to": [_exp(each.of_truth[1] - math.log(step)) for each in rows],
        },
    )


def _calibration(cells: Sequence[CalibrationCell]) -> ResultTable:
    names = {"predicted": "predicted", "persons": "persons", "observed": "observed", "from": "lower", "to": "upper"}
    return ResultTable("calibration", {shown: [getattr(each, name) for each in cells] for shown, name in names.items()})


def _sentences(query: RegressionTerms | HazardTerms, fit: Fitted, *, noisy: bool) -> Iterator[str]:
    if noisy:
        yield one_line(query.plan.why)
    else:
        yield WITHOUT_NOISE
    if not fit.converged:
        yield NOT_CONVERGED
        return
    if not query.second_order:
        if math.isnan(fit.coefficients[0].value):
            yield "The number of complete rows cannot be told from zero: there are no coefficients to show."
            return
        yield (
            "Coefficients are drawn towards zero and have no intervals, which would be too wide to be useful: use them "
            "to predict, not to explain. For intervals, use a larger ε, fewer columns or more persons."
        )
        return
    unknown = [each.name for each in fit.coefficients if math.isnan(each.value)]
    if unknown:
        why = ", or their part of it is below the noise" * noisy
        yield (
            f"The rows do not determine {', '.join(unknown)}: a column is constant, follows from others, or has a "
            f"value that is too rare{why}."
        )
    if noisy:
        yield (
            "Intervals of 95 %: those of the pooled estimate include the noise alone, those of the population include "
            "sampling, too."
        )
        wide = [each.name for each in fit.coefficients[1:] if each.noise > WIDE_NOISE * each.sampling]
        if wide:
            yield f"Most of the width of the intervals of {', '.join(wide)} is noise: a larger ε would narrow them."


def _exp(value: float) -> float | None:
    """The exponential, where it is a number that can be shown."""
    return math.exp(value) if abs(value) < LARGEST_EXPONENT else None
