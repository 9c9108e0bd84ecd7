"""Distributed noise: no share suffices, but all honest shares together are the declared noise, despite dropouts."""

from dataclasses import replace
from fractions import Fraction
from math import sqrt
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor

import zoo
from tacit.core import Bound, ClientKeys, DenseRows, Key, MaskedRows, Messages, Method, SimulatedRound, State, Sum, View
from tacit.core.interfaces import DirectConversation, Mechanism
from tacit.core.prices import Gaussian, Price, Release, Uncalibrated, Unproved
from tacit.core.server_half import finish_round, reject_unusable, sum_messages
from tacit.core.state import Turnout
from tacit.errors import UserError
from tacit.pieces.channels import IdealSum, SecureSum
from tacit.pieces.mechanisms import (
    CentralGaussian,
    DistributedGaussian,
    FixedClip,
    Grid,
    MedianClip,
    PublicClip,
    QuantileClip,
    Reals,
)
from tacit.pieces.mechanisms.arithmetic import Arithmetic, norm_limit
from tacit.pieces.mechanisms.clipping import BOUND, Clip
from tacit.pieces.samplers import Everyone
from tacit.pieces.trainers import Sgd
from tacit.wire.frames import Part

DIM, CLIP, DECLARED = 6000, 0.5, 1.2
STATE = State(0, torch.zeros(DIM), layers=(DIM,))
DATA = zoo.wave()  # not used by the mechanism
FRACTIONS = [(0.0, 0.0), (0.3, 0.0), (0.0, 0.2), (0.3, 0.2)]
all_fractions = pytest.mark.parametrize(("dropouts", "colluding"), FRACTIONS)
at_once_or_not = pytest.mark.parametrize("single_draw", [True, False], ids=["at once", "own shares"])
ARITHMETICS = {"reals": Reals(), "integers": Grid(), "18 bits": Grid(bits=18), "skellam": Grid(noise="skellam")}
every_arithmetic = pytest.mark.parametrize("arithmetic", ARITHMETICS.values(), ids=ARITHMETICS)


def gaussian(**changes: Any) -> DistributedGaussian:
    return DistributedGaussian(**{"clip": FixedClip(CLIP), "noise_multiplier": DECLARED, **changes})


def method(mechanism: DistributedGaussian) -> Method:
    trainer = Sgd(lr=1.0, steps=1)
    return Method(name="x", rounds=1, sampler=Everyone(), trainer=trainer, mechanism=mechanism, channel=IdealSum())


def now(cohort: int, *, seed: int = 0) -> SimulatedRound:
    return SimulatedRound.of(0, 100, 20.0, cohort, Key.from_seed(seed), Key.from_seed(seed, "secret"))


def total(mechanism: DistributedGaussian) -> float:
    """The noise multiplier of a sum, of cohorts of 20 on average: it includes what colluders, or one client, know."""
    remaining = 20 - int(20 * mechanism.dropouts)
    known = max(Fraction(1, remaining), Fraction(str(mechanism.colluding)) / (1 - Fraction(str(mechanism.dropouts))))
    return DECLARED / sqrt(1 - known)


def messages(rows: Tensor) -> Messages:
    return Messages(torch.arange(len(rows)), DenseRows(rows))


def released(mechanism: DistributedGaussian, cohort: int, delivered: int) -> Tensor:
    """The noise of a round: the sum of zero rows if only the first `delivered` clients of a cohort deliver."""
    distributed, here = method(mechanism), now(cohort)
    sent = mechanism.at_client(messages(torch.zeros(cohort, DIM)), zoo.view_of(distributed, STATE, here), DATA, here)
    survivors = sent.keep(torch.arange(cohort) < delivered)
    return mechanism.after_sum(sum_messages(distributed, STATE, survivors), here).total


def fits(noise: Tensor, scale: float) -> bool:
    """Kolmogorov–Smirnov against a centred normal distribution."""
    return bool(stats.kstest(noise.numpy() / scale, "norm").pvalue > 1e-3)


def fits_only(noise: Tensor, scale: float) -> bool:
    """The noise fits this scale, and neither 2/3 nor 3/2 of it."""
    return fits(noise, scale) and not fits(noise, scale * 2 / 3) and not fits(noise, scale * 3 / 2)


@at_once_or_not
@all_fractions
@every_arithmetic
def test_the_released_noise_is_the_same_however_many_are_lost(
    arithmetic: Arithmetic, single_draw: bool, dropouts: float, colluding: float
) -> None:
    mechanism = gaussian(dropouts=dropouts, colluding=colluding, single_draw=single_draw, arithmetic=arithmetic)
    for cohort, delivered in ((20, 20), (20, 17), (20, 13), (20, 2), (1, 1)):
        assert fits_only(released(mechanism, cohort, delivered), CLIP * total(mechanism))


@at_once_or_not
@every_arithmetic
def test_the_variance_of_the_sum_does_not_show_how_many_were_lost(arithmetic: Arithmetic, single_draw: bool) -> None:
    """Chi-square, for every number of losses that is tolerated; 2/3 and 3/2 of the variance are rejected."""
    mechanism = gaussian(dropouts=0.3, single_draw=single_draw, arithmetic=arithmetic)
    for delivered in (7, 8, 9, 10):
        squares = float(released(mechanism, 10, delivered).double().square().sum()) / (CLIP * total(mechanism)) ** 2
        assert 1e-4 < stats.chi2(DIM).cdf(squares) < 1 - 1e-4
        assert stats.chi2(DIM).cdf(squares * 2 / 3) < 1e-9
        assert stats.chi2(DIM).sf(squares * 3 / 2) < 1e-9


def test_excess_noise_that_nobody_opens_is_not_left_in_the_sum() -> None:
    mechanism, here = gaussian(dropouts=0.3, single_draw=False), now(10)
    total = Sum(torch.zeros(DIM), 10.0, Bound((CLIP,)))
    with pytest.raises(UserError, match="Use SecureSum, or dropouts=0"):
        mechanism.after_sum(total, here)
    lost = replace(total, weight=7.0)  # as many as tolerated: there is no excess
    assert torch.equal(mechanism.after_sum(lost, here).total, lost.total)


@all_fractions
@pytest.mark.parametrize("arithmetic", [Reals(), Grid()])
def test_the_shares_of_honest_survivors_are_the_declared_noise(
    arithmetic: Arithmetic, dropouts: float, colluding: float
) -> None:
    """As many clients drop out as assumed, and colluding clients, or one curious one, subtract their own shares."""
    cohort, mechanism = 20, gaussian(dropouts=dropouts, colluding=colluding, single_draw=False, arithmetic=arithmetic)
    delivered = round(cohort * (1 - dropouts))
    honest = delivered - max(1, round(cohort * colluding))
    assert mechanism.honest_clients(cohort) == honest
    here = replace(now(cohort), population=cohort)  # all take part: the size of the cohort is public
    shares = mechanism.at_client(
        messages(torch.zeros(cohort, DIM)), zoo.view_of(method(mechanism), STATE, here), DATA, here
    )
    seen = shares.rows.dense()[:delivered].sum(0) - shares.rows.dense()[honest:delivered].sum(0)
    declared = mechanism.price(0, Turnout(cohort, delivered))
    assert isinstance(declared, Release)
    assert declared.loss == Gaussian(DECLARED)
    assert fits_only(seen, CLIP * DECLARED)


@pytest.mark.parametrize("colluding", [0.0, 0.2])
@pytest.mark.parametrize("delivered", [20, 16, 9])
def test_the_price_of_a_turnout_is_that_of_the_remaining_noise(delivered: int, colluding: float) -> None:
    """Colluding clients subtract their own shares, and those that are removed are of honest ones: the worst case."""
    mechanism = gaussian(dropouts=0.1, colluding=colluding, single_draw=False)
    here, colluders = replace(now(20), population=20), max(1, round(20 * colluding))
    shares = mechanism.at_client(
        messages(torch.zeros(20, DIM)), zoo.view_of(method(mechanism), STATE, here), DATA, here
    )
    kept = shares.keep((torch.arange(20) >= colluders) & (torch.arange(20) < delivered))
    assert kept.surplus is not None
    total = Sum(STATE.weights, float(delivered), surplus=kept.surplus)
    excess = mechanism._excess(total, mechanism._noise(Bound((CLIP,)), here), here)
    assert fits_only(kept.rows.sum() - excess, CLIP * multiplier(mechanism.price(0, Turnout(20, delivered))))


def test_the_price_is_the_same_for_tolerated_losses_and_without_honest_shares_nothing_is_proved() -> None:
    mechanism = gaussian(dropouts=0.3, colluding=0.2)
    losses = {multiplier(mechanism.price(0, Turnout(20, delivered))) for delivered in range(14, 21)}
    assert losses == {multiplier(mechanism.price(0))}
    assert multiplier(mechanism.price(0, Turnout(20, 13))) == pytest.approx(DECLARED * sqrt(0.45 / 0.5))
    assert mechanism.price(0, Turnout(20, 0)) == Unproved("no noise is added", noisy=False)


@pytest.mark.parametrize(("dropouts", "colluding"), [(0.3, 0.1), (0.1, 0.3), (0.2, 0.1), (0.3, 0.3)])
def test_a_turnout_as_assumed_has_exactly_the_declared_price(dropouts: float, colluding: float) -> None:
    """To the last bit; otherwise the difference would be charged."""
    mechanism = gaussian(dropouts=dropouts, colluding=colluding)
    assert multiplier(mechanism.price(0, Turnout(10, round(10 * (1 - dropouts))))) == multiplier(mechanism.price(0))


@at_once_or_not
def test_an_empty_cohort_gets_the_same_noise(single_draw: bool) -> None:
    mechanism = gaussian(single_draw=single_draw)
    empty = Sum(torch.zeros(DIM), 0.0, Bound((CLIP,)))
    noisy = mechanism.after_sum(empty, now(0))
    assert fits_only(noisy.total, CLIP * total(mechanism))
    assert noisy.weight == 20.0
    assert multiplier(mechanism.price(0, Turnout(0, 0))) == multiplier(mechanism.price(0))


@pytest.mark.parametrize("single_draw", [True, False])
def test_the_noise_does_not_reveal_the_cohort_s_size(single_draw: bool) -> None:
    mechanism = gaussian(single_draw=single_draw)
    deviations = [float(released(mechanism, cohort, cohort).std()) for cohort in (1, 7, 40)]
    assert deviations == pytest.approx([CLIP * total(mechanism)] * 3, rel=0.04)  # four standard errors


@all_fractions
def test_a_share_is_its_part_of_the_noise_and_independent_of_others(dropouts: float, colluding: float) -> None:
    mechanism = gaussian(dropouts=dropouts, colluding=colluding, single_draw=False)
    here = now(20)
    view = zoo.view_of(method(mechanism), STATE, here)
    shares = mechanism.at_client(messages(torch.zeros(20, DIM)), view, DATA, here).rows.dense()
    one = CLIP * total(mechanism) / sqrt(20 - int(20 * dropouts))
    assert all(fits_only(share, one) for share in shares[:5])
    assert float(torch.corrcoef(shares).fill_diagonal_(0).abs().max()) < 5 / sqrt(DIM)
    again = mechanism.at_client(
        messages(torch.zeros(20, DIM)), view, DATA, replace(here, clients=ClientKeys(Key.from_seed(9)))
    )
    assert not torch.equal(shares, again.rows.dense())


def test_if_noise_is_drawn_at_once_clients_add_none() -> None:
    mechanism, rows = gaussian(), torch.full((2, DIM), 1e-4)
    sent = mechanism.at_client(messages(rows), zoo.view_of(method(mechanism), STATE, now(2)), DATA, now(2))
    assert torch.equal(sent.rows.dense(), rows)


@pytest.mark.parametrize("value", [1e-30, 1e-3, 2.0, 1e30])
@pytest.mark.parametrize("clip", [FixedClip, PublicClip])
def test_no_row_exceeds_its_bound(clip: type, value: float) -> None:
    """Zero, huge, tiny and subnormal rows; rows that are not finite become zeros, and their clients add their noise."""
    public = clip is PublicClip
    mechanism = gaussian(clip=PublicClip() if public else FixedClip(value))
    state = replace(STATE, memory={BOUND: torch.tensor(value, dtype=torch.float64)} if public else {})
    view = zoo.view_of(method(mechanism), state, now(8))
    assert float(view.parts[Part.BOUND]) == value
    kept, wave_report = reject_unusable(mechanism.at_client(messages(_hostile()), view, DATA, now(8)))
    assert wave_report.rejected == ()
    assert not kept.rows.dense()[6:].any()
    assert float(kept.rows.dense().double().norm(dim=1).max()) <= value * (1 + 1e-6)
    if value >= 1e-3:
        assert torch.equal(kept.rows.dense()[:3], _hostile()[:3])
    assert mechanism.before_sum(kept, state).bound == Bound((value,))


def _hostile() -> Tensor:
    rows = torch.zeros(8, DIM)
    rows[1] = 1e-40
    rows[2] = 1e-25
    rows[3] = 3e38  # its factor of 1e-44 is subnormal in float32: rounded, it would exceed a bound of 0.001 by 0.9 %
    rows[4, ::2] = -1e20
    rows[5] = torch.randn(DIM, generator=torch.Generator().manual_seed(0))
    rows[6, 3], rows[7, 5] = torch.inf, torch.nan
    return rows


def test_a_million_weights_are_clipped_as_exactly_as_a_thousand() -> None:
    """Summed in float32, their squares would be 2e-5 too small."""
    rows = torch.randn(1, 1_500_000, generator=torch.Generator().manual_seed(0))
    mechanism = gaussian(clip=FixedClip(1.0))
    view = View(torch.zeros(1), mechanism.broadcast_parts(STATE))
    clipped = mechanism.at_client(messages(rows), view, DATA, now(1)).rows.dense()
    assert float(clipped.double().norm()) == pytest.approx(1.0, abs=1e-6)


def test_masked_rows_are_clipped_under_the_mask() -> None:
    rows = MaskedRows(torch.tensor([[3.0, 4.0], [0.3, 0.0]]), torch.tensor([1, 4]), 6)
    mechanism, clients = gaussian(clip=FixedClip(1.0)), torch.arange(2)
    view = View(torch.zeros(6), mechanism.broadcast_parts(STATE))
    sent = mechanism.at_client(Messages(clients, rows), view, DATA, now(2)).rows
    torch.testing.assert_close(sent.dense()[:, [1, 4]], torch.tensor([[0.6, 0.8], [0.3, 0.0]]))


@all_fractions
@every_arithmetic
def test_the_noise_of_the_aggregate_is_declared_before_the_round(
    dropouts: float, colluding: float, arithmetic: Arithmetic
) -> None:
    mechanism = gaussian(dropouts=dropouts, colluding=colluding, arithmetic=arithmetic)
    declared = mechanism.aggregate_noise(STATE, now(20).expected_cohort)
    assert declared is not None
    assert declared.bound == CLIP
    assert fits_only(released(mechanism, 20, 20) / now(20).expected_cohort, declared.deviation)
    assert gaussian(noise_multiplier=None).aggregate_noise(STATE, 20.0) is None


def test_the_sum_is_divided_by_the_expected_cohort() -> None:
    mechanism = gaussian(noise_multiplier=1e-9)
    after = finish_round(
        method(mechanism), DirectConversation(), STATE, Sum(torch.full((DIM,), 0.01), 7.0, Bound((CLIP,))), now(7)
    )
    torch.testing.assert_close(after.weights, torch.full((DIM,), 0.01 / 20), rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("clip", [MedianClip(), QuantileClip(), FixedClip(1.0, per_layer=True)], ids=repr)
def test_clients_can_only_clip_to_a_public_bound_for_whole_rows(clip: Clip) -> None:
    with pytest.raises(UserError) as error:
        gaussian(clip=clip)
    assert str(error.value) == (
        f"Expected a public bound for whole rows, because clients clip before they send, got {clip}. "
        "Use FixedClip or PublicClip."
    )


def test_without_a_noise_multiplier_there_is_neither_price_nor_noise() -> None:
    mechanisms: list[Mechanism] = [gaussian(noise_multiplier=None), CentralGaussian(clip=FixedClip(1.0))]
    for mechanism in mechanisms:
        assert mechanism.price(0) == Uncalibrated()
        with pytest.raises(UserError, match="Expected a noise multiplier"):
            mechanism.after_sum(Sum(torch.zeros(1), 1.0, Bound((1.0,))), now(1))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"clip": 1.0}, r"Use FixedClip\(1.0\)"),
        ({"dropouts": 0.5, "colluding": 0.5}, "dropouts . colluding = 1.0 < 1"),
    ],
)
def test_a_clip_is_a_piece_and_somebody_honest_remains(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        gaussian(**arguments)


def multiplier(price: Price) -> float:
    assert isinstance(price, Release)
    assert isinstance(price.loss, Gaussian)
    return price.loss.noise_multiplier


def test_a_small_fraction_of_dropouts_is_kept() -> None:
    """Four of 10,000 clients may be lost, not none."""
    few = DistributedGaussian(clip=FixedClip(1.0), noise_multiplier=1.0, dropouts=0.0004)
    assert multiplier(few.price(0, Turnout(10_000, 9_996))) == 1.0
    assert multiplier(few.price(0, Turnout(10_000, 9_995))) < 1.0
    channel = SecureSum(dropout=0.0004, corrupt=1e-7).parameters_for(10_000)
    assert (channel.dropout, channel.corrupt) == (Fraction(4, 10_000), Fraction(1, 10**7))


@pytest.mark.parametrize(("bits", "most"), [(1, 0.5), (3, 0.125)])
def test_honest_sums_exceed_the_limit_as_rarely_as_it_says(bits: int, most: float) -> None:
    """Rows of all clients in one direction are the worst case; half of the excess over it would be noticed."""
    source, dim, bound = torch.Generator().manual_seed(1), 60, 8.0
    along = torch.zeros(dim)
    along[0] = bound
    norms = (along + 1.5 * torch.randn(20_000, dim, generator=source)).norm(dim=1)
    assert float((norms > norm_limit(bound, 1.5, dim, bits)).float().mean()) <= most
    assert float((norms > norm_limit(bound, 1.5, dim, 40)).float().mean()) == 0
    assert norm_limit(bound, 1.5, dim, 40) < 2 * float(norms.median())
    assert float((norms > norm_limit(bound / 2, 1.0, dim, bits)).float().mean()) > most  # a limit for less noise
