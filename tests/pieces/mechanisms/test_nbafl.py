"""NbAFL's formula: the paper's numbers, the noise that is added, and its exact ε."""

from dataclasses import replace
from math import sqrt

import pytest
import torch
from scipy import stats
from torch import Tensor

import zoo
from tacit.core import DenseRows, Key, Messages, Method, SimulatedRound, State, Sum
from tacit.core.interfaces import DirectConversation, Mechanism
from tacit.core.prices import Gaussian, Release, Unproved
from tacit.core.server_half import finish_round, reject_unusable
from tacit.errors import UserError
from tacit.pieces.mechanisms import CentralGaussian, FixedClip, NbaflGaussian
from tacit.pieces.mechanisms.nbafl import NOMINAL, exact_epsilon
from tacit.pieces.samplers import Everyone
from tacit.pieces.servers import Replace
from tacit.pieces.trainers import Sgd
from tacit.privacy.accountants import Accounting, Pld
from zoo import server_side

DIM = 6000
PAPER = NbaflGaussian(epsilon=1.0, delta=0.01, clip=5.0, samples=1120, rounds=25, exposures=1)
SMALL = replace(PAPER, samples=3)
STATE = State(0, torch.zeros(DIM), layers=(DIM,))
DATA = zoo.wave([3, 5, 4, 7])


def now(cohort: int = 4, seed: int = 0) -> SimulatedRound:
    return SimulatedRound.of(0, cohort, float(cohort), cohort, Key.from_seed(seed), Key.from_seed(seed, "secret"))


def method(mechanism: NbaflGaussian) -> Method:
    trainer = Sgd(lr=1.0, steps=1, sends="weights")
    return Method(name="x", rounds=1, sampler=Everyone(), trainer=trainer, mechanism=mechanism, server=Replace())


def sent(mechanism: NbaflGaussian, rows: Tensor) -> Tensor:
    messages, view = Messages(DATA.clients, DenseRows(rows)), zoo.view_of(method(mechanism), STATE, now())
    return mechanism.at_client(messages, view, DATA, now()).rows.dense()


def fits_only(noise: Tensor, scale: float) -> bool:
    """The noise fits a centred normal distribution of this scale, and neither 2/3 nor 3/2 of it."""
    fits = [stats.kstest(noise.numpy() / scale / factor, "norm").pvalue > 1e-3 for factor in (1, 2 / 3, 3 / 2)]
    return fits == [True, False, False]


@pytest.mark.parametrize(
    ("exposures", "up", "down"),
    [
        (1, (0.0555, 0.0277, 0.0055, 0.0028), (0.0451, 0.0226, 0.0045, 0.0023)),
        (25, (1.387, 0.694, 0.139, 0.0694), (0.0, 0.0, 0.0, 0.0)),
    ],
)
def test_the_noise_of_the_formula(exposures: int, up: tuple[float, ...], down: tuple[float, ...]) -> None:
    """δ = 0.01, m = 1120, C = 5, T = 25 > √30: Eq. 4 and 5 at ε = 0.5, 1, 5, 10."""
    paper = [replace(PAPER, epsilon=epsilon, exposures=exposures) for epsilon in (0.5, 1.0, 5.0, 10.0)]
    assert [mechanism.upload for mechanism in paper] == pytest.approx(list(up), rel=0.02)
    assert [mechanism.broadcast(30) for mechanism in paper] == pytest.approx(list(down), rel=0.02)


def test_the_server_adds_no_noise_if_the_rounds_are_few() -> None:
    """For T <= L·√N."""
    assert replace(PAPER, exposures=5).broadcast(25) == 0
    assert replace(PAPER, exposures=5).broadcast(24) > 0


@pytest.mark.parametrize(("epsilon", "exact"), [(1.0, 0.51), (5.0, 4.43), (10.0, 11.9)])
def test_the_formula_s_exact_epsilon(epsilon: float, exact: float) -> None:
    """Above 1 the formula understates it: 11.9 at a nominal 10."""
    figures = replace(PAPER, epsilon=epsilon).figures
    assert figures[NOMINAL] == epsilon
    assert figures["exact epsilon of one upload, if sensitivity were 2C/m"] == pytest.approx(exact, rel=0.01)


@pytest.mark.parametrize(("epsilon", "exact"), [(0.5, 1.73), (1.0, 4.43), (5.0, 50.2), (10.0, 166)])
def test_the_exact_epsilon_of_all_uploads(epsilon: float, exact: float) -> None:
    figures = replace(PAPER, epsilon=epsilon).figures
    assert figures["exact epsilon of all 25 uploads, if sensitivity were 2C/m"] == pytest.approx(exact, rel=0.01)


def test_the_exact_epsilon_of_the_true_sensitivity() -> None:
    name = "exact epsilon of one upload, at the true sensitivity 2C"
    assert PAPER.figures[name] == pytest.approx(6.6e4, rel=0.01)
    assert name not in replace(PAPER, clips=False).figures


@pytest.mark.parametrize("multiplier", [0.6, 1.0, 3.0])
def test_exact_epsilon_agrees_with_the_accountant(multiplier: float) -> None:
    found = Accounting.of(Pld(), [Release(Gaussian(multiplier))]).epsilon(1e-3)
    assert exact_epsilon(multiplier, 1e-3) == pytest.approx(found, rel=1e-3)


def test_epsilon_is_zero_if_delta_alone_suffices() -> None:
    assert exact_epsilon(1e3, 0.01) == 0


def test_every_client_s_noise_follows_the_formula() -> None:
    noise = sent(SMALL, torch.zeros(4, DIM))
    assert all(fits_only(row, SMALL.upload) for row in noise)
    assert fits_only(noise.sum(0), SMALL.upload * 2)  # independent
    assert SMALL.deviation(zoo.view_of(method(SMALL), STATE, now()), now()) == SMALL.upload


def test_the_server_s_noise_follows_the_formula() -> None:
    total = SMALL.after_sum(Sum(torch.zeros(DIM), 4.0), now())
    assert fits_only(total.total / total.weight, SMALL.broadcast(4))
    without = replace(SMALL, exposures=25)
    assert without.after_sum(Sum(torch.ones(DIM), 4.0), now()).total.equal(torch.ones(DIM))


def test_an_empty_round_adds_no_noise() -> None:
    state = finish_round(method(SMALL), DirectConversation(), STATE, Sum(torch.zeros(DIM), 0.0), now(0))
    assert state.weights.equal(STATE.weights)


def test_no_row_exceeds_the_bound() -> None:
    """Zero, huge and subnormal rows; the server rejects rows that are not finite."""
    noiseless = replace(SMALL, epsilon=1e12)
    hostile = torch.zeros(4, DIM)
    hostile[1], hostile[2, 0] = 1e30, 1e-40
    hostile[3, :2] = torch.tensor([3.0, 0.5])
    out = sent(noiseless, hostile)
    assert float(out.double().norm(dim=1).max()) <= 5 * (1 + 1e-6)
    torch.testing.assert_close(out[3], hostile[3])
    hostile[0, 0], hostile[2, 0] = torch.nan, torch.inf
    kept, wave_report = reject_unusable(Messages(DATA.clients, DenseRows(sent(noiseless, hostile))))
    assert wave_report.rejected == (0, 2)
    assert kept.rows.count == 2


def test_without_clipping_weights_do_not_change() -> None:
    unclipped = replace(SMALL, epsilon=1e12, clips=False)
    torch.testing.assert_close(sent(unclipped, torch.full((4, DIM), 7.0)), torch.full((4, DIM), 7.0))
    assert "not clipped" in unclipped.price(0).reason


def test_there_is_no_guarantee_and_the_reasons_are_given() -> None:
    mechanism: Mechanism = PAPER
    price = mechanism.price(0)
    assert isinstance(price, Unproved)
    assert price.nominal is None
    assert "2C/m" in price.reason
    assert "proved for ε < 1, but ε = 1" in price.reason
    assert "counts only 1 of a client's 25 uploads" in price.reason
    covered = replace(PAPER, epsilon=0.5, exposures=25).price(0).reason
    assert "proved for" not in covered
    assert "counts" not in covered
    assert CentralGaussian(clip=FixedClip(1.0), noise_multiplier=1.0).price(0).figures == {}


def test_a_client_with_fewer_samples_is_named() -> None:
    with pytest.raises(UserError, match="at least samples=4, the m of NbAFL's formula, but client 0 has 3"):
        sent(replace(SMALL, samples=4), torch.zeros(4, DIM))


def test_the_mean_of_a_round_has_both_noises() -> None:
    rows = torch.full((4, DIM), 0.01)
    messages = Messages(DATA.clients, DenseRows(sent(SMALL, rows)))
    state = server_side(method(SMALL), STATE, messages, now())
    both = sqrt(SMALL.upload**2 / 4 + SMALL.broadcast(4) ** 2)
    assert fits_only(state.weights - 0.01, both)
