"""What a record, or a person, adds to the sum of an analysis is bounded and its own, whatever the server sends."""

from collections.abc import Iterator, Mapping
from contextlib import suppress

import pytest
import torch
from torch import Tensor

from tacit.analyses.boosting import BoostTerms, Columns
from tacit.analyses.describe import DescribeTerms
from tacit.analyses.fit_rule import NEWTON_FITS
from tacit.analyses.fitting import FitPlan
from tacit.analyses.hazards import HazardTerms
from tacit.analyses.metrics import ScoreCells
from tacit.analyses.regression import Design, RegressionTerms
from tacit.analyses.survival import SurvivalCells
from tacit.core import Query
from tacit.engine.learners.records.term_sums import term_sum
from tacit.pieces.trainers.per_record import Moments

INPUTS = 7  # two numbers, what marks them as missing, two categories and an event
DESIGN = Design(numbers=(0,), missing=(2,), categories=((4, 5),))
COLUMNS = Columns(numbers=(0,), missing=(2,), categories=((4, 5),))
SLOPE = FitPlan(20, lr=0.1, persons=1000.0)


def regression(family: str, plan: FitPlan) -> Query:
    target, largest = (6 if family == "logistic" else 1), (30.0 if family == "poisson" else 1.0)
    return RegressionTerms(family=family, design=DESIGN, target=target, unknown=3, plan=plan, largest=largest)  # type: ignore[arg-type]


def hazards(plan: FitPlan) -> Query:
    return HazardTerms(design=DESIGN, time=1, missing=3, event=6, unknown=5, pieces=3, plan=plan)


SUMS: Mapping[str, Query] = {
    "describe": DescribeTerms(numbers=(0, 1), missing=(2, 3), categories=((4, 5),), cells=4),
    "moments": Moments(INPUTS, 3, 2.0, 1.0),
    **{f"regress, {family}": regression(family, plan) for family, plan in NEWTON_FITS.items() if family != "cox"},
    **{f"regress, {family}, steps": regression(family, SLOPE) for family in ("logistic", "linear", "poisson")},
    "regress, cox": hazards(NEWTON_FITS["cox"]),
    "regress, cox, steps": hazards(SLOPE),
    "regress, ebm": BoostTerms(columns=COLUMNS, target=6, unknown=3, plan=FitPlan(2)),
}
CELLS: Mapping[str, Query] = {
    "describe": DescribeTerms(categories=((4, 5),)),
    "survival": SurvivalCells(time=0, missing=2, event=6, unknown=3, intervals=5, arms=(4, 5)),
    "metrics": ScoreCells(score=0, missing=2, event=6, unknown=3, intervals=10),
}
HOSTILE = (1e6, -1.0, 1e18, 1e30, -1e30, torch.inf, torch.nan)


def states(query: Query) -> Iterator[Tensor]:
    """Honest ones, and finite numbers of a lying server, but those that fail whatever a client's data are."""
    for state in broadcasts(query):
        answered = False
        with suppress(RuntimeError):
            answered = term_sum(query, state, *rows(0.0), None) is not None
        if answered:
            yield state


def broadcasts(query: Query) -> Iterator[Tensor]:
    g = torch.Generator().manual_seed(0)
    noise = torch.randn(query.length, generator=g, dtype=torch.float64)
    yield from (factor * noise for factor in (0.0, 1.0, -1e5, 1e30, 1e300))
    for first in (1.0, 1e9, -3.0):  # which may count rounds
        yield torch.cat([torch.tensor([first], dtype=torch.float64), 10 * noise[1:]])


def rows(hostile: float) -> tuple[Tensor, Tensor]:
    """Ordinary rows, of which the last two are hostile."""
    g = torch.Generator().manual_seed(1)
    x = torch.rand(9, INPUTS, generator=g)
    x[:, 2:] = (x[:, 2:] > 0.6).float()
    x[:, 5] = 1 - x[:, 4]
    x[-2:] = hostile * torch.randn(2, INPUTS, generator=g)
    return x, torch.arange(9) % 3


def added(query: Query, state: Tensor, hostile: float, persons: bool, *, cells: bool) -> tuple[Tensor, Tensor]:
    """By how much a unit moves the sum, and its own terms."""
    x, y = rows(hostile)
    kept = 7 if persons else 8
    whole, rest, own = (
        term_sum(query, state, x[part], y[part], counts if persons else None, cells=cells)
        for part, counts in (
            (slice(None), torch.tensor([3, 4, 2])),
            (slice(kept), torch.tensor([3, 4])),
            (slice(kept, None), torch.tensor([2])),
        )
    )
    return whole - rest, own


@pytest.mark.parametrize("persons", [False, True])
@pytest.mark.parametrize("name", SUMS)
def test_a_unit_moves_a_sum_by_no_more_than_is_priced(name: str, persons: bool) -> None:
    query = SUMS[name]
    bound = query.bound
    for state in states(query):
        for hostile in HOSTILE:
            moved, own = added(query, state, hostile, persons, cells=False)
            assert float(moved.norm()) <= bound * (1 + 1e-9)
            assert float((moved - own).norm()) <= 1e-9 * bound  # and no other unit's terms


@pytest.mark.parametrize("persons", [False, True])
@pytest.mark.parametrize("name", CELLS)
def test_a_unit_adds_one_in_one_cell(name: str, persons: bool) -> None:
    query = CELLS[name]
    for state in states(query):
        for hostile in HOSTILE:
            moved, own = added(query, state, hostile, persons, cells=True)
            assert torch.equal(moved, own)
            assert moved[moved != 0].tolist() in ([], [1.0])
