"""Noise in shares under secure aggregation: the variance of the sum does not show who was lost, or when."""

from dataclasses import replace
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
from tacit.core.interfaces import Conversation
from tacit.core.rows import Surplus
from tacit.core.server_half import release_sum, sum_messages
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
        return release_sum(m, conversation, total, here).total


def declared(dropouts: float) -> float:
    """The standard deviation of a sum: without any one share of those that remain, it has the declared noise."""
    remaining = COHORT - int(dropouts * COHORT)
    return CLIP * NOISE * sqrt(remaining / (remaining - 1))


def deviation(noise: Tensor, dropouts: float) -> float:
    """By how many standard errors the variance differs from the declared one."""
    relative = float(noise.double().square().mean()) / declared(dropouts) ** 2
    return (relative - 1) / sqrt(2 / noise.numel())


def fits_only(noise: Tensor) -> bool:
    """Chi-square: the declared variance, and neither 2/3 nor 3/2 of it."""
    squares, law = float(noise.double().square().sum()) / declared(0.3) ** 2, stats.chi2(noise.numel())
    return bool(1e-4 < law.cdf(squares) < 1 - 1e-4 and law.cdf(squares * 2 / 3) < 1e-9 and law.sf(squares * 1.5) < 1e-9)


def test_the_variance_does_not_show_that_a_client_is_offline() -> None:
    """100,100 numbers, noise multiplier 5, one of ten clients offline: shares that only add up show it at 22 sigma."""
    dim, ideal = 100_100, method(IdealSum(), 0.0)
    assert all(abs(deviation(released(ideal, dim, lost), 0.0)) < 4 for lost in (0, 1, 5))
    shares = sent(ideal, dim, now()).keep(torch.arange(COHORT) < COHORT - 1)
    assert deviation(shares.rows.sum(), 0.0) < -20  # what is missing is added
    for conversation in (False, True):
        secure = method(SecureSum(conversation=conversation), 0.1)
        assert all(abs(deviation(released(secure, dim, lost), 0.1)) < 4 for lost in (0, 1))
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


@pytest.mark.parametrize("noise", ["gaussian", "skellam"])
def test_over_an_epoch_the_conversation_gives_the_simulated_sums(noise: str) -> None:
    """One set-up for three rounds, in which other clients are lost; then a run that begins within an epoch."""
    channel = SecureSum(dropout=0.3, epoch=3)
    absent: list[list[int]] = [[2], [0, 5, 7], [], [9]]
    sums: dict[bool, list[Tensor]] = {False: [], True: []}
    for conversation, found in sums.items():
        m = method(replace(channel, conversation=conversation), 0.3, noise)
        with m.channel.open(m, COHORT) as conversed, m.channel.open(m, COHORT) as resumed:
            found += [summed(m, conversed, index, lost) for index, lost in enumerate(absent)]
            found.append(summed(m, resumed, 1, []))
    assert all(torch.equal(one, other) for one, other in zip(sums[False], sums[True], strict=True))


def summed(m: Method, conversation: Conversation, index: int, lost: list[int]) -> Tensor:
    """What the server learns in one round of a run."""
    here = replace(now(index), index=index)
    delivered = sent(m, 40, here).keep(~torch.isin(torch.arange(COHORT), torch.tensor(lost)))
    total = conversation.aggregate(delivered, state(40), here, lambda seen: sum_messages(m, state(40), seen))
    return release_sum(m, conversation, total, here).total


def test_the_set_up_is_counted_once_in_an_epoch_and_in_every_round_of_a_drawn_cohort() -> None:
    channel = SecureSum(epoch=3)
    rounds = [replace(now(), index=index) for index in range(4)]
    assert ["set-up" in channel.overhead(here) for here in rounds] == [True, False, False, True]
    drawn = [replace(here, cohort=9, expected_cohort=9.0) for here in rounds]
    assert all("set-up" in channel.overhead(here) for here in drawn)
    assert channel.overhead(rounds[0])["set-up"].up > channel.overhead(drawn[0])["set-up"].up


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
        opened = Surplus(3, {j: Key(seed) for j, seed in outcome.noise_seeds.items()})
        grid = messages.grid_step
        total = Sum(steps.numbers(outcome.result, messages), float(len(outcome.clients)), Bound((CLIP,)))
        total = Sum(total.total, total.weight, total.bound, grid_step=grid, surplus=opened)
        with m.channel.open(m, COHORT) as conversation:
            assert fits_only(release_sum(m, conversation, total, here).total)


def test_bytes_of_surplus_noise() -> None:
    """A hundred clients, 8,316 numbers, ten losses: a hundredth of the payload, because ten clients share seeds."""
    here = SimulatedRound.of(0, 6000, 100.0, 100, Key.from_seed(0), Key.from_seed(0, "secret"))
    payload = 100 * 4 * 8316
    plain, surplus = (sum(SecureSum().overhead(here, t).values(), Traffic()) for t in (0, 10))
    assert (payload + plain.up) / payload == pytest.approx(1.0927, abs=0.0005)
    assert (payload + surplus.up) / payload == pytest.approx(1.0963, abs=0.0005)
    assert surplus.up - plain.up == 10 * (16 * (31 + 41) + 32)  # ten clients share, their holders open
    assert surplus.down == plain.down


def test_short_numbers_have_room_for_surplus_noise() -> None:
    """Sixteen bits for two hundred clients: shares are whole, and wider than the components that they once had."""
    here = SimulatedRound.of(0, 200, 200.0, 200, Key.from_seed(0), Key.from_seed(0, "secret"))
    noise = SharedNoise(Bound((1.0,)), 1.0, 0.9, 0.1)
    assert Grid(bits=16).lattice(noise, 1000, here).steps >= 16
    assert Grid(bits=16, noise="skellam").lattice(noise, 1000, here).steps >= 16
    with pytest.raises(UserError, match="Use more bits or steps, or Skellam noise"):
        Grid(bits=16, steps=16).lattice(SharedNoise(Bound((1.0,)), 0.2, 0.9, 0.1), 1000, here)
