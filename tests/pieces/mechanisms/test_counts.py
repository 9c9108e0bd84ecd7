"""Discrete Laplace noise in shares: its size for honest survivors, its price, and what it refuses."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import tacit
from tacit.analyses.sums import Released, SumRelease, method_of
from tacit.analyses.survival import SurvivalCells
from tacit.core import Method, Turnout
from tacit.core.prices import Adjacency, Laplace, Release
from tacit.data import Population, Task
from tacit.data.sum_task import SumModel
from tacit.errors import CompositionError, UserError
from tacit.pieces.mechanisms import DistributedLaplace
from tacit.privacy.accountants import Pld, Rdp
from tacit.privacy.release_json import from_json, to_json

QUERY = SurvivalCells(time=0, missing=1, event=2, unknown=3, intervals=4)


def method(epsilon: float = 1.0, **options: Any) -> Method:
    made = method_of("counts", QUERY, SumRelease(epsilon=epsilon, clients=6, units=20), cells=True)
    return replace(made, mechanism=replace(made.mechanism, **options)) if options else made  # type: ignore[type-var]


def task(clients: int = 6) -> Task:
    x = torch.rand(120, 4, generator=torch.Generator().manual_seed(0))
    x[:, 1:] = x[:, 1:].round()
    x[:, 3] = 0  # all outcomes are known
    parts = torch.arange(120).split(120 // clients)
    return Task(model=SumModel(QUERY.length), clients=Population.split(x, torch.zeros(120, 1), parts), loss=None)


def task_of() -> Task:
    return replace(task(), loss=tacit.MeanSquared())


@pytest.mark.parametrize("single_draw", [True, False])
def test_the_noise_is_what_the_price_says(single_draw: bool) -> None:
    """Drawn at once or in shares; two thirds and three halves of it are rejected."""
    data = task_of()
    exact = method_of("counts", QUERY, SumRelease(epsilon=None, clients=6, units=20), cells=True)
    truth = tacit.train(exact, data, workers=1).state.weights
    made = method(single_draw=single_draw)
    runs = [tacit.train(made, data, workers=1, seed=seed, randomness="seeded") for seed in range(80)]
    deviation = Released.of(runs[0].spec.method, runs[0].state).noise.deviation
    drawn = torch.stack([run.state.weights - truth for run in runs])
    assert torch.equal(drawn, drawn.round())
    assert abs(float(drawn.std()) / deviation - 1) < 0.17
    scale = runs[0].spec.method.mechanism.noise_multiplier  # type: ignore[attr-defined]
    assert scale == pytest.approx(1.0, abs=2e-3)
    assert deviation > math.sqrt(2 * math.exp(-1)) / (1 - math.exp(-1))  # one of six may know its share


def test_shares_are_sized_for_those_who_remain() -> None:
    """Of ten clients, two may be lost and one may collude: the other seven shares are the whole noise."""
    mechanism = DistributedLaplace(units=5, noise_multiplier=1.0, dropouts=0.2, colluding=0.1).in_shares
    noise = mechanism._noise_of(1.0, mechanism._bound(None))  # type: ignore[arg-type]
    assert noise.min_delivered(10) == 8
    assert 7 / noise.of_cohort(10) == pytest.approx(1.0)


def test_lost_shares_leave_no_guarantee() -> None:
    mechanism = DistributedLaplace(units=5, noise_multiplier=1.0, dropouts=0.2)
    promised, tolerated, lost = (mechanism.price(0, each) for each in (None, Turnout(10, 8), Turnout(10, 7)))
    assert isinstance(promised, Release)
    assert isinstance(promised.loss, Laplace)
    assert isinstance(tolerated, Release)
    assert not isinstance(lost, Release)
    assert "no noise" in lost.reason


def test_the_price_is_pure() -> None:
    release = Release(Laplace(2.0))
    assert release.loss.rho == pytest.approx(1 / 8)
    for accountant in (Pld(), Rdp()):
        one = accountant.empty().compose(release)
        assert one.epsilon(1e-9) <= 0.52
        assert accountant.empty().compose(release, 2).epsilon(1e-12) <= 1.05
    replaced = replace(Pld(), adjacency=Adjacency.REPLACE_ONE).empty().compose(release)
    assert replaced.epsilon(1e-9) == pytest.approx(1.0, abs=1e-3)
    assert from_json(to_json(release)) == release
    assert release.loss.at_distance(3) == Laplace(2.0 / 3)


def test_a_mixture_of_noises_adds_up() -> None:
    mixed = Pld().empty().compose(Release(Laplace(2.0))).compose(Release(tacit.core.prices.Gaussian(4.0)))
    gaussian = Pld().empty().compose(Release(tacit.core.prices.Gaussian(4.0)))
    assert gaussian.epsilon(1e-5) < mixed.epsilon(1e-5) <= gaussian.epsilon(1e-5) + 0.5 + 1e-3


def test_a_hostile_row_is_in_no_cell() -> None:
    """Terms other than a single 1 add nothing, however a query was written."""
    from tacit.engine.learners.records.term_sums import term_sum

    class Several:
        length, bound = 3, 1.0

        def terms(self, state: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x.double()

    x = torch.tensor([[1.0, 0, 0], [1, 1, 0], [0.5, 0, 0], [-1, 1, 1], [torch.nan, 0, 1], [0, 0, 0]])
    state = torch.zeros(3, dtype=torch.float64)
    assert term_sum(Several(), state, x, x, None, cells=True).tolist() == [1, 0, 0]
    assert term_sum(Several(), state, x, x, torch.tensor([2, 4]), cells=True).tolist() == [1, 0, 0]


def test_it_needs_counts() -> None:
    with pytest.raises(CompositionError, match=r"Use QuerySum\(cells=True\)"):
        replace(method(), trainer=tacit.pieces.QuerySum(QUERY))


def test_counts_are_limited_to_the_units_of_a_client() -> None:
    """A client with more persons than declared costs accuracy and no privacy."""
    from tacit.core import DenseRows, Messages
    from tacit.pieces.mechanisms.counts import Counts

    noise = DistributedLaplace(units=5, noise_multiplier=1.0).in_shares._noise_of(1.0, tacit.core.Bound((1.0,)))
    rows = DenseRows(torch.tensor([[3.0, 9.0, -1.0], [torch.nan, 1.0, 2.0]], dtype=torch.float64))
    encoded = Counts().encode(Messages(torch.arange(2), rows), noise, None)  # type: ignore[arg-type]
    assert encoded.rows.dense().tolist() == [[3, 5, 0], [0, 1, 2]]


@pytest.mark.parametrize(
    "options", [{"units": 0}, {"noise_multiplier": 0.0}, {"dropouts": 1.0}, {"dropouts": 0.5, "colluding": 0.5}]
)
def test_what_means_nothing_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UserError):
        DistributedLaplace(**{"units": 5, **options})


def test_variance_of_all_shares() -> None:
    made = DistributedLaplace(units=5, noise_multiplier=1.0, dropouts=0.2, colluding=0.1)
    noise = made.aggregate_noise(tacit.State(0, torch.zeros(1)), 1.0)
    assert noise is not None
    assert noise.deviation == pytest.approx(np.sqrt(8 / 7 * 2 * math.exp(-1)) / (1 - math.exp(-1)))
