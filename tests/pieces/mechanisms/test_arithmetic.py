"""Rows and noise on an integer grid: bounds, exact sums, and what the grid reveals."""

from dataclasses import replace
from math import sqrt

import pytest
import torch
from torch import Tensor

from tacit.core import Bound, DenseRows, Key, Messages, SimulatedRound, Sum
from tacit.errors import UserError
from tacit.pieces.mechanisms import Grid
from tacit.pieces.mechanisms.arithmetic import INTEGER_DISTANCE, Arithmetic, Reals, SharedNoise
from tacit.pieces.mechanisms.counts import Counts

DIM, CLIP, DECLARED = 6000, 0.5, 1.2
NOISE = SharedNoise(Bound((CLIP,)), DECLARED, 1.0)
HOSTILE = {
    "zeros": torch.zeros(DIM),
    "huge": torch.full((DIM,), 1e30),
    "infinite": torch.full((DIM,), torch.inf),
    "nan": torch.full((DIM,), torch.nan),
    "subnormal": torch.full((DIM,), 1e-42),
    "one large": torch.eye(1, DIM)[0] * 1e20,
    "halves": torch.full((DIM,), CLIP / sqrt(DIM)),
}


def now(cohort: int) -> SimulatedRound:
    return SimulatedRound.of(0, 100, 20.0, cohort, Key.from_seed(0), Key.from_seed(0, "secret"))


def messages(rows: Tensor) -> Messages:
    return Messages(torch.arange(len(rows)), DenseRows(rows))


@pytest.mark.parametrize("grid", [Grid(), Grid(bits=18)], ids=["32 bits", "18 bits"])
@pytest.mark.parametrize("name", HOSTILE)
def test_no_row_exceeds_its_bound_with_rounding(name: str, grid: Grid) -> None:
    encoded = grid.encode(messages(HOSTILE[name][None]), NOISE, now(20))
    assert encoded.grid_step is not None
    steps = encoded.rows.dense() / encoded.grid_step.size
    assert torch.equal(steps, steps.round())
    bound = CLIP * (1 + encoded.grid_step.inflation)
    assert float(encoded.rows.dense().norm()) <= bound * (1 + 1e-12)
    if name in ("infinite", "nan"):
        assert not steps.any()


def test_sums_are_exact_in_any_order() -> None:
    rows = torch.randn(20, DIM, generator=torch.Generator().manual_seed(3))
    encoded = Grid().encode(messages(rows), NOISE, now(20)).rows.dense()
    forward, backward = encoded[0].clone(), encoded[-1].clone()
    for i in range(1, 20):
        forward += encoded[i]
        backward += encoded[-1 - i]
    assert torch.equal(forward, backward)
    assert torch.equal(forward, encoded.sum(0))


def test_the_grid_does_not_reveal_the_cohort_s_size() -> None:
    noise = replace(NOISE, honest=0.8)
    steps = {Grid(bits=18).lattice(noise, DIM, now(cohort)).steps for cohort in (1, 5, 20, 60)}
    assert len(steps) == 1
    totals = {round(sqrt(c) * Grid().lattice(noise, DIM, now(c)).noise.sigma, 6) for c in (1, 5, 20, 60)}
    assert len(totals) == 1
    with pytest.raises(UserError, match=r"Expected a cohort that the grid has room for\. Use larger cohorts"):
        Grid().lattice(noise, DIM, now(90))


def test_an_unknown_noise_is_refused() -> None:
    with pytest.raises(UserError, match="Expected noise in gaussian, skellam, got 'laplace'"):
        Grid(noise="laplace")  # type: ignore[arg-type]


def test_a_grid_needs_room_and_noise() -> None:
    with pytest.raises(UserError, match="Use more bits"):
        Grid(bits=9).lattice(NOISE, DIM, now(20))
    with pytest.raises(UserError, match=r"32 bits to have room for 4096 steps .* noise of 700 times it\. .* larger ε"):
        Grid().lattice(replace(NOISE, multiplier=700.0), DIM, now(20))
    with pytest.raises(UserError, match="use NoNoise"):
        Grid().lattice(replace(NOISE, multiplier=0.0), DIM, now(20))


def test_the_declared_distance_covers_the_largest_round() -> None:
    """The distance that is charged covers sampling errors, overflow and smoothing of the largest possible round."""
    release = Grid().release(DECLARED, 1.0)
    assert release is not None
    assert release.distance == INTEGER_DISTANCE == 2.0**-62
    magnitude = 14 * 1e5  # the largest of a table with the widest noise
    assert 2**15 * 2**28 * (magnitude + 5) * 2.0**-128 + 2.0**-64 < INTEGER_DISTANCE * 7 / 8


def limits(arithmetic: Arithmetic, noise: SharedNoise, dim: int, monkeypatch: pytest.MonkeyPatch, bits: int) -> float:
    """The limit of a sum of twenty rows, at this probability."""
    monkeypatch.setattr("tacit.pieces.mechanisms.arithmetic.SUM_BITS", bits)
    like = arithmetic.encode(messages(torch.zeros(1, dim)), noise, now(20))
    return arithmetic.norm_limit(Sum(torch.zeros(dim), 20.0, grid_step=like.grid_step), noise, 20.0, 20, now(20))


@pytest.mark.parametrize(
    ("arithmetic", "noise"),
    [
        (Reals(), NOISE),
        (Grid(), NOISE),
        (Grid(noise="skellam"), NOISE),
        (Counts(), SharedNoise(Bound((1.0,)), 2.0, 1.0, records=3, wide=True)),
    ],
    ids=["reals", "gaussian", "skellam", "counts"],
)
@pytest.mark.parametrize("dim", [1, 40])
def test_honest_sums_stay_below_their_limit_and_lies_do_not(arithmetic, noise, dim, monkeypatch) -> None:
    """The rarer the limit, the further; at one in two, no more than half of honest sums exceed it."""
    rows = torch.zeros(dim, dtype=torch.float64)
    rows[0] = 20 * noise.row_bound.whole
    drawn = [arithmetic.draw(rows, noise, 20.0, Key.from_seed(seed), now(20)) for seed in range(300)]
    norms = torch.stack([(rows + each).norm() for each in drawn])
    often, rarely = (limits(arithmetic, noise, dim, monkeypatch, bits) for bits in (1, 40))
    assert float((norms > often).float().mean()) <= 0.5
    assert float(norms.max()) < rarely
    assert often < rarely < 6 * float(norms.max())
    assert float((1.5 * norms).max()) > limits(arithmetic, noise, dim, monkeypatch, 1) * 0.9


@pytest.mark.parametrize("grid", [Grid(), Grid(noise="skellam")], ids=["gaussian", "skellam"])
def test_a_row_with_its_share_of_the_noise_stays_below_its_limit(grid: Grid) -> None:
    sent = grid.encode(messages(torch.full((50, 400), 1.0)), NOISE, now(20))
    shares = [grid.draw(row, NOISE, 1.0, Key.from_seed(seed), now(20)) for seed, row in enumerate(sent.rows.dense())]
    norms = (sent.rows.dense() + torch.stack(shares)).norm(dim=1)
    limit = grid.norm_limit(sent, NOISE, 1.0, 1, now(20))
    assert float(norms.max()) < limit < 4 * float(norms.median())


def test_without_noise_a_sum_of_clipped_rows_is_no_longer_than_they_are_together() -> None:
    noise = SharedNoise(Bound((CLIP,)), 0.0, 1.0)
    limit = Reals().norm_limit(Sum(torch.zeros(DIM), 20.0), noise, 20.0, 20, now(20))
    assert limit == pytest.approx(20 * CLIP, rel=1e-5)
