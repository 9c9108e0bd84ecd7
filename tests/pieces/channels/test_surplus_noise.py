"""Noise in shares under secure aggregation: the variance of the sum does not show who was lost, or when."""

from math import sqrt

import pytest
import torch
from scipy import stats
from torch import Tensor

import zoo
from protocols.secagg.federation import Federation, session
from tacit.core import (
    Bound,
    DenseRows,
    Key,
    Messages,
    Method,
    SimulatedRound,
    State,
    Sum,
    Traffic,
    Turnout,
)
from tacit.core.rows import Surplus
from tacit.core.server_half import released_sum, sum_messages
from tacit.errors import TooFewClientsError, UserError
from tacit.pieces.channels import IdealSum, SecureSum
from tacit.pieces.mechanisms import DistributedGaussian, FixedClip, Grid
from tacit.pieces.mechanisms.arithmetic import SharedNoise
from tacit.pieces.samplers import Everyone
from tacit.pieces.trainers import Sgd
from tacit.protocols.secagg import Phase

COHORT, CLIP, NOISE = 10, 0.5, 5.0
DATA = zoo.wave()


def method(
    channel: SecureSum | IdealSum, dropouts: float, noise: str = "gaussian", *, single_draw: bool = False
) -> Method:
    mechanism = DistributedGaussian(
        clip=FixedClip(CLIP),
        noise_multiplier=NOISE,
        dropouts=dropouts,
        arithmetic=Grid(noise=noise),  # type: ignore[arg-type]
        single_draw=single_draw,
    )
    trainer = Sgd(lr=1.0, steps=1)
    return Method(name="x", rounds=1, sampler=Everyone(), trainer=trainer, mechanism=mechanism, channel=channel)


def now(seed: int = 0) -> SimulatedRound:
    return SimulatedRound.of(0, COHORT, float(COHORT), COHORT, Key.from_seed(seed), Key.from_seed(seed, "secret"))


def state(dim: int) -> State:
    return State(0, torch.zeros(dim), layers=(dim,))


def sent(m: Method, dim: int, here: SimulatedRound) -> Messages:
    """The messages of a cohort without updates: noise alone."""
    rows = Messages(torch.arange(COHORT), DenseRows(torch.zeros(COHORT, dim)))
    return m.mechanism.at_client(rows, zoo.view_of(m, state(dim), here), DATA, here)


def released(m: Method, dim: int, lost: int, seed: int = 0) -> Tensor:
    """What the server learns if the last clients are lost."""
    here = now(seed)
    delivered = sent(m, dim, here).keep(torch.arange(COHORT) < COHORT - lost)
    with m.channel.open(m, COHORT) as conversation:
        total = conversation.aggregate(delivered, state(dim), here, lambda seen: sum_messages(m, state(dim), seen))
        return released_sum(m, conversation, total, here).total


def deviation(noise: Tensor) -> float:
    """By how many standard errors the variance differs from the declared one."""
    relative = float(noise.double().square().mean()) / (CLIP * NOISE) ** 2
    return (relative - 1) / sqrt(2 / noise.numel())


def fits_only(noise: Tensor) -> bool:
    """Chi-square: the declared variance, and neither 2/3 nor 3/2 of it."""
    squares, law = float(noise.double().square().sum()) / (CLIP * NOISE) ** 2, stats.chi2(noise.numel())
    return bool(1e-4 < law.cdf(squares) < 1 - 1e-4 and law.cdf(squares * 2 / 3) < 1e-9 and law.sf(squares * 1.5) < 1e-9)


def test_the_variance_does_not_show_that_a_client_is_offline() -> None:
    """100,100 numbers, noise multiplier 5, one of ten clients offline: shares that only add up show it at 22 sigma."""
    dim = 100_100
    sized_for_all = [deviation(released(method(IdealSum(), 0.0), dim, lost)) for lost in (0, 1)]
    assert abs(sized_for_all[0]) < 4
    assert sized_for_all[1] < -20
    for conversation in (False, True):
        secure = method(SecureSum(conversation=conversation), 0.1)
        assert all(abs(deviation(released(secure, dim, lost))) < 4 for lost in (0, 1))
        assert secure.mechanism.price(0, Turnout(10, 9)) == secure.mechanism.price(0, Turnout(10, 10))


@pytest.mark.parametrize("noise", ["gaussian", "skellam"])
@pytest.mark.parametrize("lost", [0, 1, 2, 3])
def test_the_conversation_removes_the_same_noise_as_the_simulation(lost: int, noise: str) -> None:
    simulated, complete = (
        released(method(SecureSum(dropout=0.3, conversation=conversation), 0.3, noise), 4000, lost)
        for conversation in (False, True)
    )
    assert torch.equal(simulated, complete)
    assert fits_only(complete)
    assert fits_only(
        released(method(SecureSum(dropout=0.3, conversation=True), 0.3, noise, single_draw=True), 4000, lost)
    )


@pytest.mark.parametrize("conversation", [False, True])
def test_more_losses_than_noise_provides_for_have_no_sum(conversation: bool) -> None:
    """Whichever of mechanism and channel tolerates less."""
    cases = [(0.3, 0.1, 2), (0.0, 0.3, 1), (0.2, 0.3, 3)]
    for dropouts, tolerated, lost in cases:
        m = method(SecureSum(dropout=tolerated, conversation=conversation), dropouts)
        with pytest.raises(TooFewClientsError):
            released(m, 20, lost)
        assert released(m, 20, lost - 1).numel() == 20


PHASES = [phase for phase in Phase if phase not in (Phase.DRAW, Phase.CLOSED)]  # complete graphs draw nothing


@pytest.mark.parametrize("phase", PHASES)
def test_the_variance_is_the_same_whenever_clients_are_lost(phase: Phase) -> None:
    """Those that are lost after their upload are in the sum; the seeds of their noise are recovered from shares."""
    dim = 4000
    m = method(SecureSum(dropout=0.3), 0.3)
    assert isinstance(m.channel, SecureSum)
    for lost in (0, 1, 3):
        here = now(lost)
        messages = sent(m, dim, here)
        assert messages.surplus is not None
        p, steps = m.channel.parameters(dim, here, messages.surplus.tolerated), m.channel.message_format
        vectors = {j + 1: steps.integers(messages, j) for j in range(COHORT)}
        seeds = {j + 1: seed.value for j, seed in messages.surplus.seeds.items()}
        outcome = Federation(session(p), vectors, {phase: frozenset(range(1, lost + 1))}, noise_seeds=seeds).run()
        assert len(outcome.clients) == COHORT - lost * (phase <= Phase.UPLOAD)
        losses = COHORT - len(outcome.clients)
        opened = Surplus(3, {j: Key(seed) for j, seed in outcome.noise_seeds.items()}, losses + 1)
        grid = messages.grid_step
        total = Sum(steps.numbers(outcome.result, messages), float(len(outcome.clients)), Bound((CLIP,)))
        total = Sum(total.total, total.weight, total.bound, grid_step=grid, surplus=opened)
        with m.channel.open(m, COHORT) as conversation:
            assert fits_only(released_sum(m, conversation, total, here).total)


def test_bytes_of_surplus_noise() -> None:
    """A hundred clients, 8,316 numbers, ten losses: half more than the payload up, instead of an eighth."""
    here = SimulatedRound.of(0, 6000, 100.0, 100, Key.from_seed(0), Key.from_seed(0, "secret"))
    payload = 4 * 8316
    plain, surplus = (sum(SecureSum().overhead(here, t).values(), Traffic()) for t in (0, 10))
    assert (payload + plain.up) / payload == pytest.approx(1.119, abs=0.001)
    assert (payload + surplus.up) / payload == pytest.approx(1.499, abs=0.001)
    assert (payload + surplus.up) / payload < 1.6
    assert (payload + surplus.up + surplus.down) / payload == pytest.approx(1.926, abs=0.001)


def test_components_too_narrow_for_the_grid_are_refused() -> None:
    """Sixteen bits for two hundred clients: components of less than a step; Skellam noise adds up exactly."""
    here = SimulatedRound.of(0, 200, 200.0, 200, Key.from_seed(0), Key.from_seed(0, "secret"))
    noise = SharedNoise(Bound((1.0,)), 1.0, 0.9, 0.1)
    with pytest.raises(UserError, match="Use more bits or steps, or Skellam noise"):
        Grid(bits=16).lattice(noise, 1000, here)
    assert Grid(bits=16, noise="skellam").lattice(noise, 1000, here).steps >= 16
    assert Grid(bits=16).lattice(SharedNoise(Bound((1.0,)), 1.0, 1.0), 1000, here).steps >= 16
    large = SimulatedRound.of(0, 9000, 9000.0, 9000, Key.from_seed(0), Key.from_seed(0, "secret"))
    assert Grid().lattice(noise, 1000, large).steps >= 2.2 * 9000  # a finer grid, where there is room
