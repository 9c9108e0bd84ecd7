"""Clipping rules: where the bound comes from. That rows respect it is tested with the mechanisms."""

from math import exp

import pytest
import torch
from scipy import stats

from tacit.core import Bound, DenseRows, Key, SimulatedRound, State, Sum
from tacit.errors import PublicDataError, UserError
from tacit.pieces.mechanisms import MedianClip, PublicClip, QuantileClip
from tacit.pieces.mechanisms.clipping import BOUND

LAYERS = (3000, 1000, 2000)
STATE = State(0, torch.zeros(6000), layers=LAYERS)


def now(seed: int = 0, *, expected: float = 5.0) -> SimulatedRound:
    return SimulatedRound.of(0, 10, expected, 4, Key.from_seed(seed), Key.from_seed(seed, "secret").child("round", 0))


def test_a_public_bound_is_the_median_norm_of_the_dry_runs() -> None:
    norms = (3.0, 1.0, 2.0, 5.0, 4.0)
    clip = PublicClip(draws=5, factor=0.5)
    after = clip.prepare(STATE, lambda draw: DenseRows(torch.tensor([[norms[draw], 0.0]])))
    assert clip.bound(DenseRows(torch.zeros(0, 2)), after) == Bound((1.5,))


@pytest.mark.parametrize("norm", [0.0, torch.inf, torch.nan])
def test_a_public_bound_must_be_positive_and_finite(norm: float) -> None:
    with pytest.raises(UserError, match="update on the public data"):
        PublicClip().prepare(STATE, lambda _: DenseRows(torch.tensor([[norm]])))


def test_a_public_bound_needs_public_data() -> None:
    with pytest.raises(PublicDataError, match=r"PublicClip needs public data: .*`--set clip=...`"):
        PublicClip().prepare(STATE, None)


def test_the_median_is_that_of_the_cohort() -> None:
    generator = torch.Generator().manual_seed(1)
    rows = 0.02 * torch.randn(7, 6000, generator=generator) * torch.rand(7, 1, generator=generator)
    assert MedianClip().bound(DenseRows(rows), STATE).whole == pytest.approx(float(rows.norm(dim=1).median()))
    layered = MedianClip(per_layer=True).bound(DenseRows(rows), STATE)
    assert layered.values[1] == pytest.approx(float(rows[:, 3000:4000].norm(dim=1).median()))


def test_the_noise_on_the_count_is_as_declared() -> None:
    clip = QuantileClip(start=1.0, rate=1.0, count_noise=3.0, quantile=0.5)
    total = Sum(torch.zeros(1), 4.0, Bound((1.0,)), statistic=1.5)
    bounds = [float(clip.update_state(STATE, total, now(seed)).memory[BOUND]) for seed in range(2000)]
    noise = -(torch.tensor(bounds, dtype=torch.float64).log()) * 5.0 - 1.5
    assert stats.kstest(noise.numpy() / 3.0, "norm").pvalue > 1e-3
    assert stats.kstest(noise.numpy() / 2.0, "norm").pvalue < 1e-3
    assert stats.kstest(noise.numpy() / 4.5, "norm").pvalue < 1e-3


def test_the_adaptive_bound_shrinks_if_too_many_rows_are_within_it() -> None:
    clip = QuantileClip(start=2.0, rate=0.2, count_noise=1e-9)
    for statistic, fraction in ((2.0, 1.0), (-2.0, 0.0)):
        after = clip.update_state(STATE, Sum(torch.zeros(1), 4.0, Bound((2.0,)), statistic), now(expected=4.0))
        assert float(after.memory[BOUND]) == pytest.approx(2.0 * exp(-0.2 * (fraction - 0.5)))
