"""What is doubtful about a column by its values: an id, or an input that alone predicts the target."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tacit.core.losses import auroc
from tacit.data.tables import Table, factorize, is_missing

LEAK = 0.99  # AUROC of a single column, from which it may be known only after the outcome
ID = 0.98  # of the rows have different values
RARE_ROWS = 10  # rows of a category, below which the draft leaves it out
ENOUGH = 200  # rows in which ids are told from numbers that happen to differ
MAX_DOUBTED = 20_000  # that are looked at before a run, evenly spaced


def is_id(column: NDArray[Any], different: int, rows: int) -> bool:
    """Whether a column of texts or whole numbers has another value in nearly every row that has one."""
    known = column[~np.isnan(column)] if column.dtype.kind == "f" else column
    whole = column.dtype.kind == "f" and bool((known % 1 == 0).all())
    return (column.dtype.kind == "O" or whole) and rows >= RARE_ROWS and different >= ID * rows


def auroc_alone(
    column: NDArray[Any], codes: NDArray[np.int64], absent: NDArray[np.bool_], positive: NDArray[np.bool_]
) -> float:
    """The AUROC of a column by itself: of a number in the better direction, of a category by its rate of outcomes.

    A category of one row predicts that row and says nothing: such categories are taken together.
    """
    if absent.all():
        return 0.0
    counts, hits = np.bincount(codes), np.bincount(codes, weights=positive)
    few = counts < RARE_ROWS
    rate = np.where(few, hits[few].sum() / max(counts[few].sum(), 1), hits / np.maximum(counts, 1))
    areas = [auroc(torch.from_numpy(rate[codes]), torch.from_numpy(positive))]
    if column.dtype.kind == "f":
        areas = [auroc(torch.from_numpy(np.where(absent, np.nanmedian(column), column)), torch.from_numpy(positive))]
    return max(max(area, 1 - area) for area in areas)


def rarer_outcome(column: NDArray[Any] | None) -> NDArray[np.bool_] | None:
    """Whether each row has the rarer of two outcomes; None: the target has not two."""
    if column is None:
        return None
    values, codes = factorize(column)
    if len(values) != 2:
        return None
    return np.asarray(codes == int(np.bincount(codes).argmin()))


def doubt_inputs(table: Table, inputs: Sequence[str], target: str) -> Iterator[str]:
    """A sentence for each input that looks like an id, or alone predicts a target of two values."""
    step = max(-(-table.rows // MAX_DOUBTED), 1)
    positive = rarer_outcome(table.columns[target][::step])
    for name in inputs:
        column = table.columns[name][::step]
        absent = is_missing(column)
        values, codes = factorize(column)
        different = sum(1 for value in values if value)
        rows = int((~absent).sum())
        if rows >= ENOUGH and is_id(column, different, rows):
            yield f"{name!r} looks like an id: nearly every row has another value. Leave it out, or give it as person."
        elif positive is not None and (area := auroc_alone(column, codes, absent, positive)) > LEAK:
            yield (
                f"{name!r} alone predicts {target!r} (AUROC {area:.3f}). Is it known only afterwards? Then leave "
                "it out: a model that uses it is of no use."
            )
