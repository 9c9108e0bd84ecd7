"""Central noise: rows respect the bound, and the released noise is the declared one."""

from math import sqrt
from typing import Any

import pytest
import torch
from scipy import stats

from tacit.core import Bound, DenseRows, Key, Messages, SimulatedRound, State, Sum
from tacit.core.method import Method
from tacit.core.prices import Gaussian, Release, Unproved
from tacit.core.server_half import reject_unusable, sum_messages
from tacit.errors import UserError
from tacit.pieces.mechanisms import CentralGaussian, FixedClip, MedianClip, QuantileClip
from tacit.pieces.mechanisms.clipping import BOUND, Clip
from tacit.pieces.samplers import Everyone
from tacit.pieces.trainers import Sgd
from tacit.privacy.noise.sum_grid import DISTANCE
from zoo import server_side

LAYERS = (3000, 1000, 2000)
STATE = State(0, torch.zeros(6000), layers=LAYERS)
CLIPS: list[Clip] = [
    FixedClip(0.5),
    FixedClip(0.5, per_layer=True),
    MedianClip(),
    MedianClip(per_layer=True),
    QuantileClip(start=0.5, count_noise=3.0),
]
every_clip = pytest.mark.parametrize("clip", CLIPS, ids=repr)


def now(seed: int = 0, *, index: int = 0, expected: float = 5.0) -> SimulatedRound:
    secret = Key.from_seed(seed, "secret").child("round", index)
    return SimulatedRound.of(index, 10, expected, 4, Key.from_seed(seed), secret)


def messages(rows: torch.Tensor) -> Messages:
    return Messages(torch.arange(len(rows)), DenseRows(rows))


def rows(count: int = 7, *, scale: float = 0.02) -> torch.Tensor:
    g = torch.Generator().manual_seed(1)
    return scale * torch.randn(count, 6000, generator=g) * torch.rand(count, 1, generator=g)


def method(mechanism: CentralGaussian) -> Method:
    return Method(name="x", rounds=1, sampler=Everyone(), trainer=Sgd(lr=1.0, steps=1), mechanism=mechanism)


def test_no_row_exceeds_the_bound_and_short_rows_do_not_change() -> None:
    hostile = torch.zeros(7, 6000)
    hostile[1, 0] = 1e-40
    hostile[2, :2] = torch.tensor([3.0, 4.0])
    hostile[3] = 1e30
    hostile[4, 0], hostile[5, 0] = torch.inf, torch.nan
    hostile[6, :2] = torch.tensor([0.1, 0.2])
    kept, wave_report = reject_unusable(messages(hostile))
    assert wave_report.rejected == (4, 5)
    bounded = CentralGaussian(clip=FixedClip(2.0), noise_multiplier=1.0).before_sum(kept, STATE)
    assert bounded.bound.whole == 2.0
    out = bounded.messages.rows.dense()
    assert float(out.double().norm(dim=1).max()) <= 2.0 * (1 + 1e-6)
    assert torch.equal(out[-1], hostile[6])
    torch.testing.assert_close(out[2, :3], torch.tensor([1.2, 1.6, 0.0]))


@every_clip
def test_rows_respect_the_bound_that_travels_with_them(clip: Clip) -> None:
    bounded = CentralGaussian(clip=clip, noise_multiplier=1.0).before_sum(messages(rows()), STATE)
    out, bound = bounded.messages.rows, bounded.bound
    assert float(out.norms().max()) <= bound.whole * (1 + 1e-6)
    if bound.layers:
        limits = torch.tensor(bound.values)
        assert bool((out.layer_norms(LAYERS) <= limits * (1 + 1e-6)).all())


def test_an_update_below_the_median_is_not_scaled_up() -> None:
    """The code published with the method scales short rows up and does not clip long ones."""
    given = torch.diag(torch.tensor([0.5, 1.0, 2.0, 4.0]))
    state = State(0, torch.zeros(4))
    out = CentralGaussian(clip=MedianClip(), noise_multiplier=1.0).before_sum(messages(given), state)
    assert out.messages.rows.norms().tolist() == pytest.approx([0.5, 1.0, 1.5, 1.5])


@every_clip
@pytest.mark.parametrize(("factor", "fits"), [(1.0, True), (2 / 3, False), (3 / 2, False)])
def test_the_noise_is_as_declared(clip: Clip, factor: float, fits: bool) -> None:
    """Kolmogorov–Smirnov on the released sum, layer by layer; it must also reject 2/3 and 3/2 of the noise.

    Divided by the sensitivity, sum and count together are a Gaussian of the declared multiplier.
    """
    declared = 1.2
    mechanism = CentralGaussian(clip=clip, noise_multiplier=declared * factor)
    total = sum_messages(method(mechanism), STATE, messages(rows()))
    noise = mechanism.after_sum(total, now()).total - total.total
    per_unit = (noise / total.bound.per_coordinate(noise)).numpy() / sqrt(len(total.bound.values))
    z_sum = (declared**-2 - (2 * 3.0) ** -2) ** -0.5 if isinstance(clip, QuantileClip) else declared
    parts = torch.split(torch.from_numpy(per_unit), list(LAYERS))
    assert all((stats.kstest(part.numpy() / z_sum, "norm").pvalue > 1e-3) == fits for part in parts)


@pytest.mark.parametrize("clip", [FixedClip(0.5), QuantileClip(start=0.5, count_noise=3.0)], ids=repr)
def test_the_noise_of_the_aggregate_is_declared_before_the_round(clip: Clip) -> None:
    mechanism = CentralGaussian(clip=clip, noise_multiplier=1.2)
    declared = mechanism.aggregate_noise(STATE, 5.0)
    assert declared is not None
    assert declared.bound == 0.5
    total = sum_messages(method(mechanism), STATE, messages(torch.zeros(4, 6000)))
    noise = mechanism.after_sum(total, now(expected=5.0)).total / 5.0
    assert stats.kstest(noise.numpy() / declared.deviation, "norm").pvalue > 1e-3


def test_noise_that_depends_on_the_round_s_rows_is_not_declared() -> None:
    for clip in (MedianClip(), FixedClip(1.0, per_layer=True)):
        assert CentralGaussian(clip=clip, noise_multiplier=1.0).aggregate_noise(STATE, 5.0) is None
    assert CentralGaussian(clip=FixedClip(1.0)).aggregate_noise(STATE, 5.0) is None


def test_sum_and_count_together_have_the_declared_price() -> None:
    """The composition of the two Gaussians has the multiplier of the price."""
    mechanism = CentralGaussian(clip=QuantileClip(count_noise=2.0), noise_multiplier=1.1)
    z_sum = mechanism.clip.sum_multiplier(1.1)
    together = (z_sum**-2 + (2 * 2.0) ** -2) ** -0.5
    assert together == pytest.approx(1.1)
    assert mechanism.price(0) == Release(Gaussian(1.1), DISTANCE)


@pytest.mark.parametrize("start", [0.1, 10.0])
@pytest.mark.parametrize("quantile", [0.3, 0.5, 0.8])
def test_the_adaptive_bound_converges_to_the_quantile(start: float, quantile: float) -> None:
    """40 rounds of 200 clients whose norms are uniform in [0.5, 1.5], from a tenth and from ten times the quantile."""
    target = 0.5 + quantile
    clip = QuantileClip(start=start * target, quantile=quantile, rate=0.4, count_noise=5.0)
    adaptive = method(CentralGaussian(clip=clip, noise_multiplier=0.1))
    state = State(0, torch.zeros(3), layers=(3,))
    for index in range(40):
        g = torch.Generator().manual_seed(index)
        directions = torch.nn.functional.normalize(torch.randn(200, 3, generator=g))
        given = directions * (0.5 + torch.rand(200, 1, generator=g))
        here = now(7, index=index, expected=200.0)
        state = server_side(adaptive, state, messages(given), here)
    assert float(state.memory[BOUND]) == pytest.approx(target, rel=0.1)


def test_the_noise_is_scaled_by_the_bound_of_the_sum() -> None:
    mechanism = CentralGaussian(clip=FixedClip(1.0), noise_multiplier=1.0)
    sums = (Sum(torch.zeros(10), 1.0, Bound((bound,))) for bound in (1.0, 3.0))
    small, large = (mechanism.after_sum(total, now()).total for total in sums)
    torch.testing.assert_close(large, 3 * small)


def test_the_sum_is_divided_by_the_expected_cohort() -> None:
    mechanism = CentralGaussian(clip=FixedClip(1.0), noise_multiplier=0.0)
    assert mechanism.after_sum(Sum(torch.ones(3), 4.0, Bound((1.0,))), now(expected=5.0)).weight == 5.0


def test_every_round_has_new_noise() -> None:
    mechanism = CentralGaussian(clip=FixedClip(1.0), noise_multiplier=1.0)
    sums = (Sum(torch.zeros(10), 1.0, Bound((1.0,))) for _ in range(2))
    one, other = (mechanism.after_sum(total, now(index=i)).total for i, total in enumerate(sums))
    assert not torch.equal(one, other)


def test_the_reason_for_no_guarantee() -> None:
    release = Release(Gaussian(1.0), DISTANCE)
    assert CentralGaussian(clip=FixedClip(1.0), noise_multiplier=1.0).price(0) == release
    assert CentralGaussian(clip=QuantileClip(), noise_multiplier=1.0).price(0) == release
    median = CentralGaussian(clip=MedianClip(), noise_multiplier=1.0).price(0)
    assert isinstance(median, Unproved)
    assert "median" in median.reason
    assert median.nominal == release
    assert CentralGaussian(clip=FixedClip(1.0), noise_multiplier=0.0).price(0) == Unproved(
        "no noise is added", noisy=False
    )


@pytest.mark.parametrize(
    ("clip", "sentence"),
    [
        (1.0, r"Use FixedClip\(1.0\)"),
        (QuantileClip(count_noise=0.5), "count alone would release more"),
    ],
    ids=str,
)
def test_the_clip_is_a_piece_with_enough_noise_on_its_count(clip: Any, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        CentralGaussian(clip=clip, noise_multiplier=1.0)
