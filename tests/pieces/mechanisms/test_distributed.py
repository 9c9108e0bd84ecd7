"""Noise in shares: every client's is too little, all together are what is declared, whoever drops out or colludes."""

from dataclasses import replace
from math import sqrt

import dp_accounting
import pytest
import torch
from scipy import stats
from torch import Tensor

import zoo
from tacit.core import Bound, DenseRows, Key, MaskedRows, Messages, Method, Near, Round, State, Sum, View
from tacit.core.round import broadcast, close, receive, refuse
from tacit.core.state import Turnout
from tacit.errors import UserError
from tacit.pieces.channels import IdealSum
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
from tacit.pieces.mechanisms.clipping import BOUND
from tacit.pieces.mechanisms.numbers import DISTANCE, Numbers, Shares
from tacit.pieces.samplers import Everyone
from tacit.pieces.trainers import Sgd
from tacit.wire.frames import Part

DIM, CLIP, DECLARED = 6000, 0.5, 1.2
STATE = State(0, torch.zeros(DIM), layers=(DIM,))
DATA = zoo.wave()  # which nobody looks at
PARTS = [(0.0, 0.0), (0.3, 0.0), (0.0, 0.2), (0.3, 0.2)]
every_parts = pytest.mark.parametrize(("dropouts", "colluding"), PARTS)
each_way = pytest.mark.parametrize("at_once", [True, False], ids=["at once", "own shares"])
NUMBERS = {"reals": Reals(), "integers": Grid(), "18 bits": Grid(bits=18), "skellam": Grid(noise="skellam")}
in_all_numbers = pytest.mark.parametrize("numbers", NUMBERS.values(), ids=NUMBERS)


def gaussian(**changes: object) -> DistributedGaussian:
    return DistributedGaussian(**{"clip": FixedClip(CLIP), "noise_multiplier": DECLARED, **changes})


def method(mechanism: DistributedGaussian) -> Method:
    trainer = Sgd(lr=1.0, steps=1)
    return Method(name="x", rounds=1, sampler=Everyone(), trainer=trainer, mechanism=mechanism, channel=IdealSum())


def now(cohort: int, *, seed: int = 0) -> Round:
    return Round(0, 100, 20.0, cohort, Key.from_seed(seed), Key.from_seed(seed, "secret"))


def messages(rows: Tensor) -> Messages:
    return Messages(torch.arange(len(rows)), DenseRows(rows))


def released(mechanism: DistributedGaussian, cohort: int, delivered: int) -> Tensor:
    """The sum of empty rows after a round in which only the first so many of a cohort delivered: nothing but noise."""
    playing, here = method(mechanism), now(cohort)
    sent = mechanism.at_client(messages(torch.zeros(cohort, DIM)), broadcast(playing, STATE, here), DATA, here)
    survivors = sent.keep(torch.arange(cohort) < delivered)
    return mechanism.after_sum(receive(playing, STATE, survivors, here), here).total


def fits(noise: Tensor, scale: float) -> bool:
    """Kolmogorov–Smirnov against a centred normal distribution."""
    return bool(stats.kstest(noise.numpy() / scale, "norm").pvalue > 1e-3)


def fits_only(noise: Tensor, scale: float) -> bool:
    """It fits, and 2/3 and 3/2 of it do not."""
    return fits(noise, scale) and not fits(noise, scale * 2 / 3) and not fits(noise, scale * 3 / 2)


@each_way
@every_parts
@in_all_numbers
def test_the_released_noise_is_what_the_delivered_shares_make(
    numbers: Numbers, at_once: bool, dropouts: float, colluding: float
) -> None:
    mechanism = gaussian(dropouts=dropouts, colluding=colluding, at_once=at_once, numbers=numbers)
    for cohort, delivered in ((20, 20), (20, 13), (1, 1)):
        everything = DECLARED * sqrt(delivered / cohort / mechanism.honest)
        assert fits_only(released(mechanism, cohort, delivered), CLIP * everything)


@every_parts
@pytest.mark.parametrize("numbers", [Reals(), Grid()])
def test_what_honest_survivors_give_is_the_declared_event(numbers: Numbers, dropouts: float, colluding: float) -> None:
    """Colluding clients take off their own shares; as many drop out as may: what is left is what is promised."""
    cohort, mechanism = 20, gaussian(dropouts=dropouts, colluding=colluding, at_once=False, numbers=numbers)
    delivered, honest = round(cohort * (1 - dropouts)), round(cohort * mechanism.honest)
    here = now(cohort)
    shares = mechanism.at_client(
        messages(torch.zeros(cohort, DIM)), broadcast(method(mechanism), STATE, here), DATA, here
    )
    seen = shares.rows.dense()[:delivered].sum(0) - shares.rows.dense()[honest:delivered].sum(0)
    promised = mechanism.event(0)
    assert promised == mechanism.event(0, Turnout(cohort, delivered))
    priced = promised.event if isinstance(promised, Near) else promised
    assert priced == dp_accounting.GaussianDpEvent(DECLARED)
    assert fits_only(seen, CLIP * DECLARED)


@pytest.mark.parametrize("colluding", [0.0, 0.2])
@pytest.mark.parametrize("delivered", [20, 16, 9])
def test_the_event_of_a_turnout_is_the_noise_that_is_left(delivered: int, colluding: float) -> None:
    mechanism = gaussian(dropouts=0.1, colluding=colluding, at_once=False)
    here, colluders = now(20), round(20 * colluding)
    shares = mechanism.at_client(messages(torch.zeros(20, DIM)), broadcast(method(mechanism), STATE, here), DATA, here)
    left = shares.rows.dense()[colluders:delivered].sum(0)
    event = mechanism.event(0, Turnout(20, delivered))
    assert isinstance(event, dp_accounting.GaussianDpEvent)
    assert fits_only(left, CLIP * event.noise_multiplier)


def test_more_than_promised_is_worth_more_and_nobody_honest_is_worth_nothing() -> None:
    mechanism = gaussian(dropouts=0.3, colluding=0.2)
    kept = mechanism.event(0, Turnout(20, 20))
    assert kept.noise_multiplier == pytest.approx(DECLARED * sqrt(0.8 / 0.5))
    assert mechanism.event(0, Turnout(20, 4)) is None
    assert mechanism.event(0, Turnout(20, 0)) is None


@pytest.mark.parametrize(("dropouts", "colluding"), [(0.3, 0.1), (0.1, 0.3), (0.2, 0.1), (0.3, 0.3)])
def test_a_turnout_as_promised_is_the_promised_event(dropouts: float, colluding: float) -> None:
    """To the last bit, or it would be charged a second time."""
    mechanism = gaussian(dropouts=dropouts, colluding=colluding)
    assert mechanism.event(0, Turnout(10, round(10 * (1 - dropouts)))) == mechanism.event(0)


@each_way
def test_an_empty_cohort_is_blurred_as_any_other(at_once: bool) -> None:
    mechanism = gaussian(at_once=at_once)
    nobody = Sum(torch.zeros(DIM), 0.0, Bound((CLIP,)))
    blurred = mechanism.after_sum(nobody, now(0))
    assert fits_only(blurred.total, CLIP * DECLARED)
    assert blurred.weight == 20.0
    assert mechanism.event(0, Turnout(0, 0)) == mechanism.event(0)


@pytest.mark.parametrize("at_once", [True, False])
def test_the_total_does_not_show_the_cohort_s_size(at_once: bool) -> None:
    mechanism = gaussian(at_once=at_once)
    deviations = [float(released(mechanism, cohort, cohort).std()) for cohort in (1, 7, 40)]
    assert deviations == pytest.approx([CLIP * DECLARED] * 3, rel=0.04)  # four times the error of a deviation


@every_parts
def test_a_share_is_its_part_of_the_noise_and_nobody_else_s(dropouts: float, colluding: float) -> None:
    mechanism = gaussian(dropouts=dropouts, colluding=colluding, at_once=False)
    here = now(20)
    view = broadcast(method(mechanism), STATE, here)
    shares = mechanism.at_client(messages(torch.zeros(20, DIM)), view, DATA, here).rows.dense()
    one = CLIP * DECLARED / sqrt(mechanism.honest * 20)
    assert all(fits_only(share, one) for share in shares[:5])
    assert float(torch.corrcoef(shares).fill_diagonal_(0).abs().max()) < 5 / sqrt(DIM)
    again = mechanism.at_client(messages(torch.zeros(20, DIM)), view, DATA, replace(here, secret=Key.from_seed(9)))
    assert not torch.equal(shares, again.rows.dense())


def test_drawn_at_once_no_client_adds_any() -> None:
    mechanism, rows = gaussian(), torch.full((2, DIM), 1e-4)
    sent = mechanism.at_client(messages(rows), broadcast(method(mechanism), STATE, now(2)), DATA, now(2))
    assert torch.equal(sent.rows.dense(), rows)


@pytest.mark.parametrize("value", [1e-30, 1e-3, 2.0, 1e30])
@pytest.mark.parametrize("clip", [FixedClip, PublicClip])
def test_no_row_exceeds_its_bound(clip: type, value: float) -> None:
    """Zero, huge, tiny and subnormal rows; what is not finite is refused and costs only its own work."""
    public = clip is PublicClip
    mechanism = gaussian(clip=PublicClip() if public else FixedClip(value))
    state = replace(STATE, memory={BOUND: torch.tensor(value, dtype=torch.float64)} if public else {})
    view = broadcast(method(mechanism), state, now(8))
    assert float(view.parts[Part.BOUND]) == value
    kept, receipt = refuse(mechanism.at_client(messages(_hostile()), view, DATA, now(8)))
    assert receipt.refused == (6, 7)
    assert float(kept.rows.dense().double().norm(dim=1).max()) <= value * (1 + 1e-6)
    if value >= 1e-3:
        assert torch.equal(kept.rows.dense()[:3], _hostile()[:3])
    assert mechanism.before_sum(kept, state, now(8)).bound == Bound((value,))


def _hostile() -> Tensor:
    rows = torch.zeros(8, DIM)
    rows[1] = 1e-40
    rows[2] = 1e-25
    rows[3] = 3e38  # its factor of 1e-44 has few bits in float32: rounded, it would pass a bound of 0.001 by 0.9 %
    rows[4, ::2] = -1e20
    rows[5] = torch.randn(DIM, generator=torch.Generator().manual_seed(0))
    rows[6, 3], rows[7, 5] = torch.inf, torch.nan
    return rows


def test_a_million_weights_are_clipped_as_exactly_as_a_thousand() -> None:
    """Their squares added up in float32 come to 2e-5 less than they are."""
    rows = torch.randn(1, 1_500_000, generator=torch.Generator().manual_seed(0))
    mechanism = gaussian(clip=FixedClip(1.0))
    view = View(torch.zeros(1), mechanism.tells(STATE))
    clipped = mechanism.at_client(messages(rows), view, DATA, now(1)).rows.dense()
    assert float(clipped.double().norm()) == pytest.approx(1.0, abs=1e-6)


def test_rows_at_a_mask_are_clipped_there() -> None:
    rows = MaskedRows(torch.tensor([[3.0, 4.0], [0.3, 0.0]]), torch.tensor([1, 4]), 6)
    mechanism, whose = gaussian(clip=FixedClip(1.0)), torch.arange(2)
    view = View(torch.zeros(6), mechanism.tells(STATE))
    sent = mechanism.at_client(Messages(whose, rows), view, DATA, now(2)).rows
    torch.testing.assert_close(sent.dense()[:, [1, 4]], torch.tensor([[0.6, 0.8], [0.3, 0.0]]))


def test_the_sum_is_divided_by_the_expected_cohort() -> None:
    mechanism = gaussian(noise_multiplier=1e-9)
    after = close(method(mechanism), STATE, Sum(torch.ones(DIM), 7.0, Bound((CLIP,))), now(7))
    torch.testing.assert_close(after.weights, torch.full((DIM,), 1 / 20), rtol=1e-5, atol=1e-6)


def test_a_public_bound_is_the_median_length_of_the_rehearsals() -> None:
    lengths = (3.0, 1.0, 2.0, 5.0, 4.0)
    clip = PublicClip(draws=5, factor=0.5)
    after = clip.prepare(STATE, lambda draw: DenseRows(torch.tensor([[lengths[draw], 0.0]])))
    assert clip.bound(DenseRows(torch.zeros(0, 2)), after) == Bound((1.5,))


@pytest.mark.parametrize("length", [0.0, torch.inf, torch.nan])
def test_a_public_bound_needs_an_update_of_some_length(length: float) -> None:
    with pytest.raises(UserError, match="update on the public data"):
        PublicClip().prepare(STATE, lambda _: DenseRows(torch.tensor([[length]])))


def test_a_public_bound_needs_public_data() -> None:
    with pytest.raises(UserError, match=r"PublicClip takes the bound from public data, but the task has none.*clip="):
        PublicClip().prepare(STATE, None)


@pytest.mark.parametrize("clip", [MedianClip(), QuantileClip(), FixedClip(1.0, per_layer=True)], ids=repr)
def test_clients_can_keep_only_a_public_bound_of_whole_rows(clip: object) -> None:
    with pytest.raises(UserError) as error:
        gaussian(clip=clip)
    assert str(error.value) == (
        f"Expected a public bound for whole rows, got {clip}: clients clip before anybody sees a norm. "
        "Use FixedClip or PublicClip."
    )


def test_unsized_noise_prices_and_blurs_nothing() -> None:
    for mechanism in (gaussian(noise_multiplier=None), CentralGaussian(clip=FixedClip(1.0))):
        assert mechanism.needs_noise
        with pytest.raises(UserError, match="not sized yet"):
            mechanism.event(0)
        with pytest.raises(UserError, match="not sized yet"):
            mechanism.after_sum(Sum(torch.zeros(1), 1.0, Bound((1.0,))), now(1))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"clip": 1.0}, r"Use FixedClip\(1.0\)"),
        ({"noise_multiplier": -0.1}, "noise_multiplier=-0.1 >= 0"),
        ({"dropouts": -0.1}, r"dropouts=-0.1 in \[0, 1\)"),
        ({"colluding": 1.0}, r"colluding=1.0 in \[0, 1\)"),
        ({"dropouts": 0.5, "colluding": 0.5}, "dropouts . colluding = 1.0 < 1"),
    ],
)
def test_bad_arguments(arguments: dict[str, object], words: str) -> None:
    with pytest.raises(UserError, match=words):
        gaussian(**arguments)


@pytest.mark.parametrize("arguments", [{"draws": 0}, {"factor": 0.0}, {"factor": float("inf")}])
def test_bad_public_bounds(arguments: dict[str, float]) -> None:
    with pytest.raises(UserError, match="Expected"):
        PublicClip(**arguments)


HOSTILE = {
    "zeros": torch.zeros(DIM),
    "huge": torch.full((DIM,), 1e30),
    "infinite": torch.full((DIM,), torch.inf),
    "nan": torch.full((DIM,), torch.nan),
    "subnormal": torch.full((DIM,), 1e-42),
    "one large": torch.eye(1, DIM)[0] * 1e20,
    "halves": torch.full((DIM,), CLIP / sqrt(DIM)),
}


@pytest.mark.parametrize("numbers", [Grid(), Grid(bits=18)], ids=["integers", "18 bits"])
@pytest.mark.parametrize("name", HOSTILE)
def test_on_a_grid_no_row_is_longer_than_its_bound_and_rounding(name: str, numbers: Grid) -> None:
    here = now(20)
    put = numbers.put(messages(HOSTILE[name][None]), Shares(Bound((CLIP,)), DECLARED, 1.0), here)
    assert put.step is not None
    steps = put.rows.dense() / put.step.size
    assert torch.equal(steps, steps.round())
    longest = CLIP * (1 + put.step.inflation)
    assert float(put.rows.dense().norm()) <= longest * (1 + 1e-12)
    if name in ("infinite", "nan"):
        assert not steps.any()


def test_on_a_grid_sums_are_exact_in_any_order() -> None:
    rows = torch.randn(20, DIM, generator=torch.Generator().manual_seed(3))
    put = Grid().put(messages(rows), Shares(Bound((CLIP,)), DECLARED, 1.0), now(20)).rows.dense()
    forward, backward = put[0].clone(), put[-1].clone()
    for i in range(1, 20):
        forward += put[i]
        backward += put[-1 - i]
    assert torch.equal(forward, backward)
    assert torch.equal(forward, put.sum(0))


def test_the_grid_does_not_tell_how_large_a_cohort_is() -> None:
    how = Shares(Bound((CLIP,)), DECLARED, 0.8)
    grids = {Grid(bits=18).lattice(how, DIM, now(cohort)).steps for cohort in (1, 5, 20, 60)}
    assert len(grids) == 1
    totals = {round(sqrt(c) * Grid().lattice(how, DIM, now(c)).noise.sigma, 6) for c in (1, 5, 20, 60)}
    assert len(totals) == 1
    with pytest.raises(UserError, match="a cohort of at most 86 clients, got 90"):
        Grid().lattice(how, DIM, now(90))


@pytest.mark.parametrize(
    ("grid", "sentence"),
    [
        ({"noise": "laplace"}, "Expected noise in gaussian, skellam, got 'laplace'"),
        ({"bits": 33}, r"Expected bits=33 in \[8, 32\]"),
        ({"steps": 0}, "Expected steps=0 >= 1"),
    ],
)
def test_grids_that_cannot_be_are_refused(grid: dict[str, object], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        Grid(**grid)  # type: ignore[arg-type]


def test_a_grid_needs_room_and_noise() -> None:
    how = Shares(Bound((CLIP,)), DECLARED, 1.0)
    with pytest.raises(UserError, match="Use more bits"):
        Grid(bits=9).lattice(how, DIM, now(20))
    with pytest.raises(UserError, match=r"32 bits for 4096 steps .* noise of 700 times the bound\. .* a larger ε"):
        Grid().lattice(replace(how, multiplier=700.0), DIM, now(20))
    with pytest.raises(UserError, match="use NoNoise"):
        Grid().lattice(replace(how, multiplier=0.0), DIM, now(20))


def test_a_round_is_as_near_to_its_event_as_it_says() -> None:
    """The distance that is charged covers the largest rounds there can be: samplers, wrapping, smoothing."""
    event = gaussian(numbers=Grid()).event(0)
    assert isinstance(event, Near)
    assert event.distance == DISTANCE == 2.0**-62
    widest = 14 * 1e5  # steps that a table reaches at the largest noise
    assert 2**15 * 2**28 * (widest + 5) * 2.0**-128 + 2.0**-64 < DISTANCE * 7 / 8
