"""Clipping to public ellipsoids: rows respect them, noise follows their axes, and the declared price holds."""

from dataclasses import replace
from math import sqrt
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor

from tacit.core import Bound, DenseRows, Key, Messages, Method, SimulatedRound, State, Sum
from tacit.core.prices import Gaussian, Release
from tacit.core.server_half import reject_unusable, sum_messages
from tacit.errors import CompositionError, UserError
from tacit.pieces.codecs import FixedRandom, Select, Size
from tacit.pieces.mechanisms import (
    CentralGaussian,
    DistributedGaussian,
    EllipsoidClip,
    PublicMovement,
    ReleasedMovement,
)
from tacit.pieces.mechanisms.clipping import clip_rows
from tacit.pieces.mechanisms.ellipsoid import MOVES, START
from tacit.pieces.samplers import Everyone
from tacit.pieces.trainers import Sgd
from tacit.privacy.noise.sum_grid import DISTANCE

SHAPES = ((20, 50), (20,), (10, 20), (10,))
DIM = 1230
RELEASED = EllipsoidClip(value=0.5, importance=ReleasedMovement())
POWERS = [-1.0, -0.5, 0.5, 1.0]
every_power = pytest.mark.parametrize("power", POWERS)
each_shape = pytest.mark.parametrize("ball", [False, True], ids=["ellipsoid", "ball"])


def now(expected: float = 5.0) -> SimulatedRound:
    return SimulatedRound.of(0, 10, expected, 4, Key.from_seed(0), Key.from_seed(0, "secret"))


def moved(seed: int = 0) -> Tensor:
    """A change of the weights with another scale for every input of the first layer."""
    change = torch.randn(DIM, generator=torch.Generator().manual_seed(seed))
    change[:1000].view(20, 50).mul_(torch.logspace(-3, 0, 50))
    return change


def state(clip: EllipsoidClip = RELEASED) -> State:
    start = clip.prepare(State(0, torch.zeros(DIM), shapes=SHAPES), lambda _: DenseRows(moved()[None]))
    return replace(start, weights=moved())


def messages(rows: Tensor) -> Messages:
    return Messages(torch.arange(len(rows)), DenseRows(rows))


def hostile() -> Tensor:
    rows = torch.zeros(7, DIM)
    rows[1, 0], rows[2], rows[3] = 1e-40, 1e30, torch.randn(DIM, generator=torch.Generator().manual_seed(3))
    rows[4, 0], rows[5, 0] = torch.inf, torch.nan
    rows[6, 3] = 1e-3
    return rows


@each_shape
@every_power
def test_no_row_exceeds_the_ellipsoid(power: float, ball: bool) -> None:
    clip = replace(RELEASED, power=power, ball=ball)
    kept, wave_report = reject_unusable(messages(hostile()))
    assert wave_report.rejected == (4, 5)
    bounded = CentralGaussian(clip=clip, noise_multiplier=1.0).before_sum(kept, state(clip))
    out, bound = bounded.messages.rows.dense().double(), bounded.bound
    assert bound.axes is not None
    assert float((out / bound.axes.double()).norm(dim=1).max()) <= 0.5 * (1 + 1e-5)
    assert float(out.norm(dim=1).max()) <= bound.whole * (1 + 1e-5)
    assert torch.equal(out[-1].float(), hostile()[6])  # a short row does not change
    if ball:
        assert bound.whole == pytest.approx(0.5)


@each_shape
@every_power
@pytest.mark.parametrize(("factor", "fits"), [(1.0, True), (2 / 3, False), (3 / 2, False)])
def test_the_noise_is_as_declared_along_every_axis(power: float, ball: bool, factor: float, fits: bool) -> None:
    """Divided by axes and bound, it is a Gaussian of the declared multiplier, for long and for short axes."""
    clip, declared = replace(RELEASED, power=power, ball=ball), 1.2
    mechanism = CentralGaussian(clip=clip, noise_multiplier=declared * factor)
    total = sum_messages(method(mechanism), state(clip), messages(0.01 * torch.randn(4, DIM)))
    noise = mechanism.after_sum(total, now()).total - total.total
    axes = total.bound.axes
    assert axes is not None
    standard, long = noise / axes / 0.5 / declared, axes > axes.median()
    assert all((stats.kstest(standard[half].numpy(), "norm").pvalue > 1e-3) == fits for half in (long, ~long))
    assert mechanism.price(0) == Release(Gaussian(declared * factor), DISTANCE)


def test_the_price_is_that_of_the_worst_direction() -> None:
    """No row within the bound shifts the sum by more than 1/z standard deviations, and some rows reach this."""
    for clip in (replace(RELEASED, ball=True), replace(RELEASED, power=-0.5)):
        bound = clip.bound(DenseRows(torch.empty(0, DIM)), state(clip))
        assert bound.axes is not None
        deviations = 1.2 * bound.per_coordinate(torch.empty(0))
        rows = clip_rows(DenseRows(10 * torch.cat([torch.eye(DIM), torch.randn(200, DIM)])), bound).dense()
        shifts = (rows / deviations).norm(dim=1)
        assert float(shifts.max()) == pytest.approx(1 / 1.2, rel=1e-4)
        worst = rows[shifts.argmax()].abs().argmax()
        assert not clip.ball or float(deviations[worst]) == pytest.approx(float(deviations.min()))


def test_a_ball_with_unequal_noise_has_more_noise_and_the_same_guarantee() -> None:
    """Compared with equal noise, it has as much where it has least, and more everywhere else."""
    equal = CentralGaussian(clip=replace(RELEASED, power=0.0), noise_multiplier=1.2)
    for power in POWERS:
        unequal = CentralGaussian(clip=replace(RELEASED, power=power, ball=True), noise_multiplier=1.2)
        bound = unequal.clip.bound(DenseRows(torch.empty(0, DIM)), state())
        assert float(bound.per_coordinate(torch.empty(0)).min()) == pytest.approx(0.5)
        assert unequal.price(0) == equal.price(0)


def test_the_least_noise_is_at_the_square_root() -> None:
    """If rows change in proportion to importance, the noise-to-signal ratio is least at power 1/2 (AdaCliP)."""
    noise = {}
    for power in (0.0, 0.25, 0.5, 0.75, 1.0):
        clip = replace(RELEASED, power=power, floor=1e-6)
        axes = clip.bound(DenseRows(torch.empty(0, DIM)), state(clip)).axes
        axes = torch.ones(DIM) if axes is None else axes
        noise[power] = float(axes.norm() * (moved() / axes).norm())
    assert min(noise, key=noise.__getitem__) == 0.5
    assert noise[0.5] < 0.9 * noise[0.0]


def test_axes_follow_the_inputs_and_layers() -> None:
    clip = replace(RELEASED, power=1.0, floor=0.01)
    axes = clip.bound(DenseRows(torch.empty(0, DIM)), state()).axes
    assert axes is not None
    first = axes[:1000].view(20, 50)
    assert bool((first == first[0]).all())
    assert float(first[0, -1] / first[0, 25]) > 5
    assert axes[1000:1020].unique().numel() == 1
    assert float(axes.square().mean().sqrt()) == pytest.approx(1.0)


def test_importance_is_at_least_the_floor() -> None:
    almost = replace(state(), weights=torch.cat([torch.ones(1), torch.zeros(DIM - 1)]))
    axes = replace(RELEASED, power=1.0, floor=0.1).bound(DenseRows(torch.empty(0, DIM)), almost).axes
    assert axes is not None
    assert float(axes.min()) > 0


def test_before_the_first_release_the_bound_is_a_ball() -> None:
    clip = RELEASED
    start = clip.prepare(State(0, torch.ones(DIM), shapes=SHAPES), None)
    assert torch.equal(start.memory[START], torch.ones(DIM))
    assert clip.bound(DenseRows(torch.empty(0, DIM)), start) == Bound((0.5,))
    assert clip.bound(DenseRows(torch.empty(0, DIM)), start).axes is None


def test_public_importance_is_computed_once() -> None:
    clip = replace(RELEASED, importance=PublicMovement())
    prepared = state(clip)
    assert prepared.memory[MOVES].shape == (50 + 3,)
    one, other = (clip.bound(DenseRows(torch.empty(0, DIM)), replace(prepared, weights=w)) for w in (moved(), moved(5)))
    assert one.axes is not None
    assert other.axes is not None
    assert torch.equal(one.axes, other.axes)
    with pytest.raises(UserError, match="PublicMovement needs public data"):
        clip.prepare(State(0, torch.zeros(DIM), shapes=SHAPES), None)


def test_axes_depend_only_on_released_models() -> None:
    """The ellipsoid of a round does not depend on its rows."""
    some, others = (RELEASED.bound(DenseRows(rows), state()) for rows in (torch.zeros(3, DIM), torch.randn(9, DIM)))
    assert some.axes is not None
    assert others.axes is not None
    assert torch.equal(some.axes, others.axes)


def test_sums_keep_their_axes() -> None:
    bound = RELEASED.bound(DenseRows(torch.empty(0, DIM)), state())
    total = Sum(torch.zeros(DIM), 1.0, bound) + Sum(torch.ones(DIM), 1.0, bound)
    assert bound.axes is not None
    assert total.bound.axes is bound.axes
    assert bound.whole == pytest.approx(0.5 * float(bound.axes.max()))
    assert sqrt(float(bound.per_coordinate(torch.empty(0)).square().mean())) == pytest.approx(0.5)


def test_where_it_cannot_be_used() -> None:
    with pytest.raises(UserError, match="Expected a public bound for whole rows"):
        DistributedGaussian(clip=RELEASED, noise_multiplier=1.0)
    with pytest.raises(CompositionError, match="CentralGaussian needs the layers of the model"):
        replace(
            method(CentralGaussian(clip=RELEASED, noise_multiplier=1.0)), codec=Select(FixedRandom(size=Size(number=1)))
        )
    bad: list[dict[str, Any]] = [{"value": 0.0}, {"power": 9.0}, {"floor": 0.0}]
    for wrong in bad:
        with pytest.raises(UserError, match="Expected"):
            replace(RELEASED, **wrong)


def method(mechanism: CentralGaussian) -> Method:
    return Method(name="x", rounds=1, sampler=Everyone(), trainer=Sgd(lr=1.0, steps=1), mechanism=mechanism)
