"""Sums of the terms of a query: the rows of each unit become one vector, which is clipped, all in float64."""

import torch
from torch import Tensor

from tacit.core import Query
from tacit.errors import expect

TERMS_AT_ONCE = 1 << 22  # terms that are held in memory at a time: 32 MiB
SURELY_WITHIN = 1 - 2**-30  # of a bound: a norm that is at most this is within it, however it was rounded


@torch.no_grad()
def term_sum(
    query: Query, state: Tensor, x: Tensor, y: Tensor, counts: Tensor | None, *, cells: bool = False
) -> Tensor:
    """The sum over units of their terms, each scaled down to the query's bound; without those that are not finite.

    Formal guarantees: norm, factor and product of a unit's terms are computed in float64, so that no unit adds a vector
    longer than the bound by a factor of more than 1 + 2⁻⁴⁰. The terms of a unit depend on its own rows alone, however
    rows are divided, if those of a row do.

    Args:
        query: maps rows to terms.
        state: what the server broadcast.
        x: the inputs of one client, those of a person next to each other.
        y: the targets.
        counts: the number of rows of each person; None: each row is a unit of its own.
        cells: a unit is in one cell at most: a person's first row counts, and terms other than a single 1 do not.
    """
    if cells and counts is not None:
        first_rows = counts.cumsum(0) - counts
        x, y, counts = x[first_rows], y[first_rows], None
    total = torch.zeros(query.length, dtype=torch.float64, device=x.device)
    size = max(1, TERMS_AT_ONCE // max(query.length, 1))
    sizes = torch.ones(len(x), dtype=torch.int64) if counts is None else counts
    ends = sizes.cumsum(0)
    first, begin = 0, 0
    while first < len(sizes):  # whole units, at least one at a time
        last = max(first + 1, int(torch.searchsorted(ends, begin + size, right=True)))
        end = int(ends[last - 1])
        total += _clip_terms(query, state, x[begin:end], y[begin:end], sizes[first:last], cells).sum(0)
        first, begin = last, end
    return total


def _clip_terms(query: Query, state: Tensor, x: Tensor, y: Tensor, sizes: Tensor, cells: bool) -> Tensor:
    """The clipped terms of a few units, (units, length)."""
    terms = query.terms(state, x, y)
    expect(
        terms.shape == (len(x), query.length) and terms.dtype == torch.float64,
        f"terms of {type(query).__name__} in float64, {query.length} for each of {len(x)} rows, got "
        f"{terms.dtype} of shape {tuple(terms.shape)}",
    )
    if cells:
        return torch.where(_are_cells(terms)[:, None], terms, 0.0)
    if len(sizes) < len(x):
        owner = torch.arange(len(sizes)).repeat_interleave(sizes)
        terms = terms.new_zeros(len(sizes), query.length).index_add_(0, owner, terms / sizes[owner, None])
    if bool((torch.linalg.vector_norm(terms, dim=1) <= query.bound * SURELY_WITHIN).all()):  # false for NaN
        return terms
    largest = terms.abs().amax(1)
    finite = torch.isfinite(largest)
    terms = torch.where(finite[:, None], terms, 0.0)
    scale = torch.where(finite & (largest > 0), largest, 1.0)[:, None]  # so that no square overflows or underflows
    norms = torch.linalg.vector_norm(terms / scale, dim=1, keepdim=True) * scale
    return torch.where(norms > query.bound, terms / norms * query.bound, terms)


def _are_cells(terms: Tensor) -> Tensor:
    """Which lines are a single 1 among zeros."""
    return (((terms == 0) | (terms == 1)).all(1)) & (terms.sum(1) == 1)
